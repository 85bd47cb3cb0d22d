"""Prompt pairs: token ids of prompts, counterfactuals and continuations.

A pair is a clean prompt, what the counterfactual run reads instead (another prompt of the same
number of tokens, or the same prompt with fixed noise on its embeddings), a continuation x, and,
for metrics that compare two, a continuation y. Everything is checked here, once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.errors import (
    ConfigError,
    EmptyContinuationError,
    LengthMismatchError,
    PairsError,
    UnsupportedModelError,
)

OnMismatch = Literal["error", "skip"]

ID_KEYS = frozenset({"prompt_ids", "counterfactual_ids", "noise", "x_ids", "y_ids"})
TEXT_KEYS = frozenset({"prompt", "counterfactual", "x", "y"})
_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Noise for the embeddings of the prompt: drawn once per pair, then fixed.

    The sum of token and position embeddings (the input of the first block) is disturbed at every
    prompt position. The paper uses a standard deviation of 3 x 0.2015 for GPT-2.
    """

    std: float
    """Standard deviation, in the units of the embeddings."""
    seed: int = 0
    """Seed of the generator; the same seed draws the same noise for the same prompts."""

    def __post_init__(self) -> None:
        if not self.std > 0:
            raise ConfigError(f"The noise has std {self.std}. It must be positive.")

    def draw(self, lengths: Sequence[int], d_model: int) -> list[Float[Tensor, "pos d_model"]]:
        """One tensor per prompt length, in order."""
        generator = torch.Generator().manual_seed(self.seed)
        return [self.std * torch.randn(length, d_model, generator=generator) for length in lengths]


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptPair:
    """One example."""

    prompt_ids: tuple[int, ...]
    """Tokens of the clean prompt."""
    x_ids: tuple[int, ...]
    """Tokens of the continuation x."""
    y_ids: tuple[int, ...] | None = None
    """Tokens of the continuation y, if the example has one."""
    counterfactual_ids: tuple[int, ...] | None = None
    """Tokens of the counterfactual prompt; None if the counterfactual is noise."""
    noise: Float[Tensor, "pos d_model"] | None = None
    """Added to the embeddings of the prompt in the counterfactual run."""
    texts: Mapping[str, str] | None = None
    """What the ids were made from, for messages and tables."""
    weight: float = 1.0
    """Weight of its effect in the mean, relative to the other examples'."""

    @property
    def source_ids(self) -> tuple[int, ...]:
        """Tokens that the counterfactual run reads."""
        return self.prompt_ids if self.counterfactual_ids is None else self.counterfactual_ids

    def describe(self) -> str:
        """The prompt as text where it is known, as ids otherwise."""
        if self.texts and self.texts.get("prompt"):
            return repr(self.texts["prompt"])
        shown = " ".join(map(str, self.prompt_ids[:12]))
        return f"[{shown}{' ...' if len(self.prompt_ids) > 12 else ''}]"


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptPairs(Sequence[PromptPair]):
    """A data set of pairs, ready to trace. Make one with `from_text` or `from_ids`."""

    pairs: tuple[PromptPair, ...]
    name: str = "pairs"
    """Shown in tables and figures."""
    skipped: tuple[str, ...] = ()
    """One line per example dropped under `on_mismatch="skip"`."""

    def __post_init__(self) -> None:
        if not self.pairs:
            dropped = f" All {len(self.skipped)} were skipped." if self.skipped else ""
            raise PairsError(f"There are no prompt pairs.{dropped} Give at least one.")
        _check_pairs(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, item: Any) -> Any:
        return (
            replace(self, pairs=self.pairs[item]) if isinstance(item, slice) else self.pairs[item]
        )

    def __iter__(self) -> Iterator[PromptPair]:
        return iter(self.pairs)

    def subset(self, indices: Sequence[int]) -> PromptPairs:
        """The pairs at `indices`, in that order."""
        return replace(self, pairs=tuple(self.pairs[i] for i in indices))

    def split(self, share: float, *, seed: int = 0) -> tuple[PromptPairs, PromptPairs]:
        """Two disjoint random parts; the first holds `share` of the pairs, rounded.

        Raises:
            ConfigError: A share that leaves a part empty.
        """
        count = round(share * len(self))
        if not 0 < count < len(self):
            raise ConfigError(
                f"A share of {share} leaves one part of the {len(self)} pairs empty. "
                "Use a share strictly between 0 and 1 that gives each part a pair."
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        return self.subset(sorted(order[:count])), self.subset(sorted(order[count:]))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all ids and noise, in hexadecimal; equal data have equal fingerprints."""
        digest = hashlib.sha256()
        for pair in self.pairs:
            ids = (pair.prompt_ids, pair.counterfactual_ids, pair.x_ids, pair.y_ids)
            digest.update(repr(ids).encode())
            if pair.noise is not None:
                digest.update(pair.noise.contiguous().numpy().tobytes())
        if self.weights is not None:
            digest.update(self.weights.numpy().tobytes())
        return digest.hexdigest()

    @property
    def weights(self) -> Float[Tensor, " example"] | None:
        """Weights with a mean of 1; None if all are equal."""
        weights = torch.tensor([pair.weight for pair in self.pairs])
        return None if (weights == weights[0]).all() else weights / weights.mean()

    @classmethod
    def from_ids(
        cls,
        rows: Sequence[Mapping[str, Any]],
        *,
        name: str = "pairs",
        on_mismatch: OnMismatch = "error",
    ) -> PromptPairs:
        """Pairs from token ids.

        Args:
            rows: Mappings with `prompt_ids`, `x_ids`, either `counterfactual_ids` or `noise`
                (a list or tensor of shape `pos d_model`), and optionally `y_ids` and `weight`.
                Other keys are ignored, but `prompt`, `counterfactual`, `x` and `y` are kept as
                texts.
            name: Name of the data set.
            on_mismatch: `error` refuses examples whose counterfactual has another length than
                the prompt and lists them; `skip` drops them and says so in `skipped`.

        Raises:
            LengthMismatchError: Such an example, under `error`.
            EmptyContinuationError: A prompt or continuation without a token.
            PairsError: A missing key, both kinds of counterfactual, or no example at all.
        """
        if on_mismatch not in ("error", "skip"):
            raise ConfigError(f"on_mismatch is {on_mismatch!r}. Use 'error' or 'skip'.")
        pairs = [_pair_from_ids(number, row) for number, row in enumerate(rows)]
        misaligned = [
            f"example {number}: {len(pair.prompt_ids)} tokens in {pair.describe()}, "
            f"{_source_length(pair)} in its counterfactual"
            for number, pair in enumerate(pairs)
            if len(pair.prompt_ids) != _source_length(pair)
        ]
        if misaligned and on_mismatch == "error":
            more = f"; and {len(misaligned) - _LISTED} more" if len(misaligned) > _LISTED else ""
            raise LengthMismatchError(
                f"{len(misaligned)} of {len(pairs)} counterfactuals differ in length from their "
                f"prompts ({'; '.join(misaligned[:_LISTED])}{more}). "
                'Align them token by token, or drop them with on_mismatch="skip".'
            )
        kept = [pair for pair in pairs if len(pair.prompt_ids) == _source_length(pair)]
        return cls(pairs=tuple(kept), name=name, skipped=tuple(misaligned))

    @classmethod
    def from_text(
        cls,
        rows: Sequence[Mapping[str, Any]],
        model: Any,
        *,
        noise: GaussianNoise | None = None,
        name: str = "pairs",
        on_mismatch: OnMismatch = "error",
        prepend_bos: bool = False,
    ) -> PromptPairs:
        """Pairs from text.

        Prompt and continuations are encoded one by one, without special tokens: a continuation
        that starts a new word needs its leading space. With tokenizers that put a space before
        every text, as those of the first Llamas do, a continuation is what its tokens add to
        those of the prompt.

        Args:
            rows: Mappings with `prompt`, `x`, optionally `y` and `weight`, and `counterfactual`
                unless `noise` is given.
            model: The model to be traced, for its tokenizer and width; or a tokenizer.
            noise: Draws the counterfactual of every row as noise on the embeddings.
            name: Name of the data set.
            on_mismatch: As in `from_ids`.
            prepend_bos: Start prompts and counterfactuals with the tokenizer's
                beginning-of-sequence token. The paper's numbers use none.

        Raises:
            UnsupportedModelError: The model has no tokenizer.
            LengthMismatchError, EmptyContinuationError, PairsError: As in `from_ids`.
        """
        tokenizer = tokenizer_of(model)
        encode = encoder(tokenizer)
        bos = _bos_of(tokenizer) if prepend_bos else []
        encoded: list[dict[str, Any]] = []
        for number, row in enumerate(rows):
            missing = {"prompt", "x"} - set(row)
            if missing:
                raise PairsError(
                    f"Example {number} lacks {' and '.join(sorted(missing))}. "
                    f"Give the keys {', '.join(sorted(TEXT_KEYS))} (y may be left out)."
                )
            entry: dict[str, Any] = {key: row[key] for key in TEXT_KEYS if row.get(key)}
            if row.get("weight") is not None:
                entry["weight"] = row["weight"]
            for key in TEXT_KEYS & set(entry):
                if key in ("prompt", "counterfactual"):
                    entry[f"{key}_ids"] = bos + encode("", row[key])
                else:
                    entry[f"{key}_ids"] = encode(row["prompt"], row[key])
            entry.setdefault("x_ids", [])
            if row.get("y") == "":
                entry["y_ids"] = []
            entry.setdefault("prompt_ids", [])
            encoded.append(entry)
        if noise is not None:
            lengths = [len(entry["prompt_ids"]) for entry in encoded]
            for entry, drawn in zip(encoded, noise.draw(lengths, _width_of(model)), strict=True):
                entry["noise"] = drawn
        return cls.from_ids(encoded, name=name, on_mismatch=on_mismatch)


def _pair_from_ids(number: int, row: Mapping[str, Any]) -> PromptPair:
    missing = {"prompt_ids", "x_ids"} - set(row)
    if missing:
        raise PairsError(
            f"Example {number} lacks {' and '.join(sorted(missing))}. "
            f"Give the keys {', '.join(sorted(ID_KEYS))} (y_ids may be left out)."
        )
    ids = {
        key: tuple(int(token) for token in row[key])
        for key in ("prompt_ids", "counterfactual_ids", "x_ids", "y_ids")
        if row.get(key) is not None
    }
    for key, tokens in ids.items():
        if not tokens:
            what = key.removesuffix("_ids")
            text = f" ({row[what]!r})" if what in row else ""
            raise EmptyContinuationError(
                f"The {what} of example {number}{text} encodes to no token. "
                "Give it at least one token, or leave the example out."
            )
    noise = row.get("noise")
    if (noise is None) == ("counterfactual_ids" not in ids):
        what = (
            "both a counterfactual prompt and" if noise is not None else "no counterfactual and no"
        )
        raise PairsError(
            f"Example {number} has {what} noise. "
            "Give it counterfactual_ids or noise, one of the two."
        )
    texts = {key: str(row[key]) for key in TEXT_KEYS if key in row}
    try:
        weight = float(row.get("weight", 1.0))
    except (TypeError, ValueError):
        weight = float("nan")
    if not 0 < weight < float("inf"):
        raise PairsError(
            f"The weight of example {number} is {row['weight']!r}. "
            "Weights must be positive numbers; leave out what is to count for nothing."
        )
    if noise is not None:
        noise = torch.as_tensor(noise, dtype=torch.float32)
        if noise.ndim != 2:
            raise PairsError(
                f"The noise of example {number} has shape {tuple(noise.shape)}. "
                "It needs two axes: prompt position and d_model."
            )
    return PromptPair(**ids, noise=noise, texts=texts or None, weight=weight)


def _check_pairs(pairs: Sequence[PromptPair]) -> None:
    for number, pair in enumerate(pairs):
        if len(pair.prompt_ids) != _source_length(pair):
            raise LengthMismatchError(
                f"The counterfactual of example {number} has {_source_length(pair)} tokens, its "
                f"prompt {len(pair.prompt_ids)}. Align them token by token."
            )


def _source_length(pair: PromptPair) -> int:
    return len(pair.source_ids) if pair.noise is None else pair.noise.shape[0]


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of a model, or what is one already.

    Raises:
        UnsupportedModelError: The model has none.
    """
    if callable(getattr(model, "encode", None)):
        return model
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise UnsupportedModelError(
            "The model has no tokenizer, so text cannot be encoded. "
            "Load it with tokenizer=..., or use PromptPairs.from_ids."
        )
    return tokenizer


def encoder(tokenizer: Any) -> Callable[[str, str], list[int]]:
    """Encodes what follows a prompt ("" for a prompt itself)."""

    def alone(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    # A space put before every text shows where a text is cut at a space.
    if alone("a b") == alone("a") + alone(" b"):
        return lambda _, text: alone(text)

    def after(prompt: str, text: str) -> list[int]:
        if not prompt:
            return alone(text)
        before, whole = alone(prompt), alone(prompt + text)
        if whole[: len(before)] != before:
            raise PairsError(
                f"The tokenizer joins the beginning of {text!r} to the end of {prompt!r}. "
                "Cut prompt and continuation where a word begins."
            )
        return whole[len(before) :]

    return after


def _bos_of(tokenizer: Any) -> list[int]:
    if tokenizer.bos_token_id is None:
        raise UnsupportedModelError(
            "The tokenizer has no beginning-of-sequence token. Use prepend_bos=False."
        )
    return [tokenizer.bos_token_id]


def _width_of(model: Any) -> int:
    width = getattr(getattr(model, "cfg", None), "d_model", None)
    if width is None:
        raise UnsupportedModelError(
            "Noise needs the width of the model's embeddings, and a tokenizer does not know it. "
            "Pass the model itself."
        )
    return int(width)
