"""Counterfactuals: the values that an intervention (an ablation) patches in, example by example.

The sources of a `Tracer` (`source="mean"`) are in `tracekit/engine/sources.py`.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit._util.options import as_ints, check_seed, short_repr
from tracekit.components import Kind
from tracekit.errors import ConfigError, PairsError

Ids = tuple[int, ...]
"""Token ids."""
_ROUNDING_OF_ROWS = 5e-3
"""By how much the sum of a mean row of attention may miss 1 in half precision."""


def as_ids(value: object, part: str, example: int) -> Ids:
    """Checks token ids from a user: a list, tuple, array or tensor of whole numbers."""
    ids = as_ints(value)
    # Larger numbers do not fit into a tensor.
    if ids is None or any(abs(token) >= 2**63 for token in ids):
        raise PairsError(
            f"The ids of the {part} of example {example} are {short_repr(value)}. "
            "Give a list of whole numbers: token ids."
        )
    return ids


class Counterfactual(ABC):
    """The run, or the constants, that the counterfactual values of one example come from."""

    row_key: ClassVar[str] = ""
    """Key under which a row of token ids describes one; empty if rows cannot."""

    @property
    def n_tokens(self) -> int | None:
        """Prompt positions that it covers; None if it fits a prompt of any length."""
        return None

    def reads(self, prompt_ids: Ids) -> Ids:
        """Tokens that the counterfactual run reads; by default the prompt."""
        return prompt_ids

    def differs_from(self, prompt_ids: Ids) -> bool:
        """Whether it can differ from the clean run of this prompt; by default always."""
        return True

    @abstractmethod
    def content(self) -> bytes:
        """Bytes that are equal for equal counterfactuals; part of a data set's fingerprint."""

    @property
    def sharing_key(self) -> Hashable:
        """Counterfactuals with equal keys, over equal tokens, share one run and its activations."""
        return id(self)

    def added_to_embeddings(self) -> Float[Tensor, "pos d_model"] | None:
        """Tensor that is added to the input of the first block; None: nothing."""
        return None

    def run_by(self) -> Any:
        """The model that makes the counterfactual run; None: the one that is traced."""
        return None

    def values_from(self, activation: Tensor) -> Tensor:
        """Values from an activation of the counterfactual run, which has no batch axis."""
        return activation

    @classmethod
    def from_row(cls, value: Any, example: int) -> Counterfactual:
        """Makes one from the entry of a row under `row_key`; classes with a key override it."""
        raise NotImplementedError(f"Rows do not describe a {cls.__name__}.")


@dataclass(frozen=True, eq=False)
class PromptCounterfactual(Counterfactual):
    """Another prompt of as many tokens (resample ablation, patching)."""

    row_key: ClassVar[str] = "counterfactual_ids"

    ids: Ids
    """Its tokens."""

    @property
    def n_tokens(self) -> int:
        """Its number of tokens."""
        return len(self.ids)

    def reads(self, prompt_ids: Ids) -> Ids:
        """Its own tokens."""
        return self.ids

    def differs_from(self, prompt_ids: Ids) -> bool:
        """Whether a token differs."""
        return self.ids != prompt_ids

    def content(self) -> bytes:
        """Its tokens."""
        return repr(self.ids).encode()

    @property
    def sharing_key(self) -> Hashable:
        """Equal tokens are run once."""
        return PromptCounterfactual

    @classmethod
    def from_row(cls, value: Any, example: int) -> PromptCounterfactual:
        """From a sequence of token ids."""
        return cls(as_ids(value, "counterfactual", example))


@dataclass(frozen=True, eq=False)
class NoiseCounterfactual(Counterfactual):
    """The prompt itself, with fixed noise on its embeddings (as in ROME)."""

    row_key: ClassVar[str] = "noise"

    noise: Float[Tensor, "pos d_model"]
    """Added to the sum of token and position embeddings at every prompt position."""

    @property
    def n_tokens(self) -> int:
        """Positions that have noise."""
        return self.noise.shape[0]

    def content(self) -> bytes:
        """The noise."""
        return self.noise.contiguous().numpy().tobytes()

    def added_to_embeddings(self) -> Float[Tensor, "pos d_model"]:
        """The noise."""
        return self.noise

    @classmethod
    def from_row(cls, value: Any, example: int) -> NoiseCounterfactual:
        """From a list or tensor with the axes prompt position and d_model."""
        try:
            noise = torch.as_tensor(value, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise PairsError(
                f"The noise of example {example} is {short_repr(value)}. "
                "Give numbers with two axes: prompt position and d_model."
            ) from error
        if noise.ndim != 2 or not torch.isfinite(noise).all():
            raise PairsError(
                f"The noise of example {example} has shape {tuple(noise.shape)} or is not finite. "
                "Give finite numbers with two axes: prompt position and d_model."
            )
        return cls(noise)


@dataclass(frozen=True, eq=False)
class Constants:
    """Values that do not depend on the example: zeros, means, or a user's tensors."""

    name: str
    """Name for messages and figures, e.g. `mean`."""
    values: Mapping[str, Float[Tensor, ...]]
    """By hook point, an activation without the axes of row and position; if `positional`, with
    the axis of the position. For attention patterns the axes are head and key."""
    positional: bool = False
    """Whether every position of the prompt has values of its own."""

    def activation(self, hook_name: str, kind: Kind, first: int, stop: int) -> Float[Tensor, ...]:
        """The values at positions `first` to `stop` - 1, as an activation without its row axis.

        For attention patterns every query gets the same row, over all keys; `rows` cuts it.
        """
        values = self.values[hook_name]
        if kind.key_dim is not None:
            padded = torch.nn.functional.pad(values, (0, max(0, stop - values.shape[-1])))
            return padded[:, None, :stop].expand(-1, stop - first, -1)
        at = kind.position_dim - 1
        if self.positional:
            return values.narrow(at, first, stop - first)
        shape = list(values.shape)
        return values.unsqueeze(at).expand(*shape[:at], stop - first, *shape[at:])

    def rows(
        self,
        hook_name: str,
        seen: Bool[Tensor, "row head query key"],
        key_positions: Int[Tensor, "#row key"],
    ) -> Float[Tensor, "row head query key"]:
        """Cuts rows of attention to the keys that each query sees, and normalises them.

        The part that a row lacks of 1 belongs to an attention sink, which every query sees.
        """
        values = self.values[hook_name].to(seen.device)
        n_known = values.shape[-1]
        at_keys = values[:, key_positions.clamp(max=n_known - 1)].movedim(1, 0)[:, :, None]
        is_known = (key_positions < n_known)[:, None, None]
        rows = torch.where(seen & is_known, at_keys, 0.0)
        sink = 1 - values.sum(-1)
        sink = torch.where(sink > _ROUNDING_OF_ROWS, sink, 0.0)[:, None, None]
        total = rows.sum(-1, keepdim=True) + sink
        return torch.where(total != 0, rows / torch.where(total != 0, total, 1.0), rows)


@dataclass(frozen=True, eq=False)
class ConstantCounterfactual(Counterfactual):
    """The same values at every example (zero and mean ablation); nothing is run for them."""

    constants: Constants
    """The values."""

    def content(self) -> bytes:
        """Name and values."""
        parts = [self.constants.name.encode()]
        for hook_name in sorted(self.constants.values):
            parts += [hook_name.encode(), self.constants.values[hook_name].numpy().tobytes()]
        return b"".join(parts)

    @property
    def sharing_key(self) -> Hashable:
        """One key for all."""
        return id(self.constants)


def constants_of(counterfactuals: Sequence[Counterfactual]) -> Constants | None:
    """The constants that all counterfactuals share; None if none is constant."""
    constants = [c.constants for c in counterfactuals if isinstance(c, ConstantCounterfactual)]
    if not constants:
        return None
    is_same = all(values is constants[0] for values in constants)
    if len(constants) < len(counterfactuals) or not is_same:
        raise PairsError(
            "All examples must take the same constant values, or none. Use one source for all."
        )
    return constants[0]


@dataclass(frozen=True, eq=False)
class OtherModelCounterfactual(Counterfactual):
    """The prompt itself, read by another model."""

    model: Any
    """The other model."""
    digest: str
    """Digest of its weights."""

    def content(self) -> bytes:
        """The weights."""
        return self.digest.encode()

    @property
    def sharing_key(self) -> Hashable:
        """Equal tokens are run once."""
        return id(self.model)

    def run_by(self) -> Any:
        """The other model."""
        return self.model


@dataclass(frozen=True, eq=False)
class NoCounterfactual(Counterfactual):
    """The pair has no counterfactual, so only sources that need none can be traced."""

    def differs_from(self, prompt_ids: Ids) -> bool:
        """It never differs."""
        return False

    def content(self) -> bytes:
        """Nothing."""
        return b"none"


COUNTERFACTUALS: tuple[type[Counterfactual], ...] = (PromptCounterfactual, NoiseCounterfactual)
"""Counterfactuals that a row of data can describe."""


def counterfactual_from_row(row: Mapping[str, Any], example: int) -> Counterfactual:
    """The counterfactual that a row of token ids describes; a `NoCounterfactual` if it has none."""
    described = [kind for kind in COUNTERFACTUALS if row.get(kind.row_key) is not None]
    if len(described) > 1:
        keys = [kind.row_key for kind in COUNTERFACTUALS]
        raise PairsError(
            f"Example {example} has several counterfactuals. Give it one of {', '.join(keys)}."
        )
    if not described:
        return NoCounterfactual()
    return described[0].from_row(row[described[0].row_key], example)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Noise for the embeddings of the prompt: drawn once per pair, then fixed.

    The sum of token and position embeddings (the input of the first block) is disturbed at every
    prompt position. The paper uses a standard deviation of 3 x 0.2015 for GPT-2.
    """

    std: float
    """Standard deviation, in the units of the embeddings."""
    seed: int = 0
    """Seed of the draw; the same seed draws the same noise for the same examples."""
    in_order: bool = False
    """Draws one example after the other, as the published code does: the noise of each then depends
    on those before it. By default it depends on seed and example alone."""

    def __post_init__(self) -> None:
        if not 0 < self.std <= sys.float_info.max:
            raise ConfigError(
                f"The noise has std {short_repr(self.std)}. It must be positive and finite."
            )
        check_seed(self.seed)

    def draw(
        self, lengths: Sequence[int], d_model: int, examples: Sequence[object] = ()
    ) -> list[Float[Tensor, "pos d_model"]]:
        """Draws one tensor per prompt length; with `examples`, equal ones get the same noise."""
        generator = torch.Generator().manual_seed(self.seed)
        draws = []
        for number, length in enumerate(lengths):
            if examples and not self.in_order:
                generator.manual_seed(draw_key(self.seed, examples[number]))
            draws.append(self.std * torch.randn(length, d_model, generator=generator))
        return draws


def draw_key(seed: int, example: object) -> int:
    """A number from the digest of seed and example."""
    digest = hashlib.sha256(repr((int(seed), example)).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
