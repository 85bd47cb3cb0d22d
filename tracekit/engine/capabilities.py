"""What a model can be asked to do faster, found out by trying it on random tokens.

Two shortcuts need something of a model: packing x and y into one row needs an attention mask of
its own and position ids; leaving blocks out needs blocks that form a chain. Where a trial fails or
differs from the plain way, the plain way is taken and one warning says so.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tracekit.engine.block_skipping import Blocks
from tracekit.engine.packing import Sequences
from tracekit.errors import SlowPathWarning
from tracekit.models.loading import (
    HookedModel,
    device_of,
    dtype_of,
    frozen,
    model_name,
    random_tokens,
)

_SHORTEST = 8
_PACKAGE = str(Path(__file__).parents[1])
_WINDOWS = ("sliding_window", "window_size", "attention_window_size", "attention_chunk_size")


class Abilities:
    """Shortcuts that serve on one model, in its present type and place."""

    def __init__(self, model: HookedModel) -> None:
        """Tries to leave blocks out; packing is tried when it is asked for."""
        self._packs: dict[int, str] = {}
        self._warned = False
        # The model itself is not kept: what is known of it must not keep it alive.
        self.blocks, reason = _cuts(model)
        """The model's blocks, if passes can begin and end at any of them."""
        if reason:
            _warn(model, reason, "every candidate set is run through all layers")

    def pack(self, model: HookedModel, length: int) -> bool:
        """Whether the model heeds an attention mask of its own in rows of up to a length.

        A longer row shows more: such a mask undoes an attention window that is shorter than it.
        """
        length = max(length, _SHORTEST)
        if length not in self._packs:
            with frozen(model), torch.no_grad():
                self._packs[length] = _no_packing(model, length)
        return not self._packs[length]

    def warn_of_packing(self, model: HookedModel, length: int) -> None:
        """Says once that rows of a length are not packed."""
        if not self._warned:
            reason = self._packs[max(length, _SHORTEST)]
            _warn(model, reason, "x and y of an example are run as two sequences")
        self._warned = True


_KNOWN: WeakKeyDictionary[Any, dict[tuple[torch.dtype, torch.device], Abilities]]
_KNOWN = WeakKeyDictionary()


def abilities_of(model: HookedModel) -> Abilities:
    """Tries the shortcuts on a model, once per model. Warns of those that do not serve."""
    known = _KNOWN.setdefault(model, {})
    key = (dtype_of(model), device_of(model))
    if key not in known:
        with frozen(model), torch.no_grad():
            known[key] = Abilities(model)
    return known[key]


def _warn(model: HookedModel, reason: str, instead: str) -> None:
    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(
        f"{model_name(model)} takes the slower way: {instead}, because {reason}. "
        "Results are the same.",
        SlowPathWarning,
        stacklevel=depth,
    )


def _no_packing(model: HookedModel, length: int) -> str:
    """Why rows of a length are not packed; empty if they can be."""
    window = _window(model)
    if window < length:
        return f"its attention window of {window} tokens is shorter than rows of {length}"
    tokens = tuple(random_tokens(model, 1, length + 1)[0].tolist())
    trunk, branches = tokens[:-2], ((tokens[-2],), (tokens[-1],))
    try:
        packed = _log_probs(model, Sequences.build([(trunk, branches)], told=True))
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        return f"it takes no attention mask of its own ({type(error).__name__})"
    plain = [_log_probs(model, Sequences.build([(trunk, (one,))])) for one in branches]
    expected = torch.cat([plain[0], plain[1][-1:]])
    unheeded = _log_probs(model, Sequences.build([(trunk, branches)]))
    # Rounding is told from a mask that is not heeded by what the latter costs.
    tolerance = 0.1 * (unheeded - expected).abs().max()
    if dtype_of(model) == torch.float32:
        tolerance = min(tolerance, 1e-4 * expected.abs().max())
    if not (packed - expected).abs().max() <= tolerance:
        return f"its logits differ under an attention mask of its own in rows of {length} tokens"
    return ""


def _log_probs(model: HookedModel, sequences: Sequences) -> Tensor:
    """Log-probabilities at every place of the only row."""
    sequences = sequences.to(device_of(model))
    inputs = sequences.inputs(dtype_of(model))
    logits = model.run_with_hooks(sequences.tokens, fwd_hooks=[], **inputs)
    return logits[0].float().log_softmax(-1)


def _window(model: HookedModel) -> int:
    """Shortest attention window that the configuration tells of."""
    config = getattr(getattr(model, "original_model", None), "config", None)
    configs = (getattr(config, "text_config", config), model.cfg)
    found = [getattr(one, name, None) for one in configs for name in _WINDOWS]
    return min((size for size in found if isinstance(size, int) and size > 0), default=sys.maxsize)


def _cuts(model: HookedModel) -> tuple[Blocks | None, str]:
    blocks = Blocks(model)
    tokens = random_tokens(model, 2, _SHORTEST).to(device_of(model))
    try:
        reason = blocks.refusal(model, tokens)
    except Exception as error:  # Whatever a model raises, it then does not serve.
        reason = f"its blocks cannot be left out ({type(error).__name__})"
    return (None if reason else blocks), reason
