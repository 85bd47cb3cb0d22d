"""What a model can be asked to do faster, found out by trying it on random tokens.

Two shortcuts need something of a model: packing x and y into one row needs an attention mask of
its own and position ids; leaving blocks out needs blocks that are a chain. Where a trial fails or
differs from the plain way, the plain way is taken and one warning says so.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tracekit.batches import Sequences
from tracekit.blocks import Blocks
from tracekit.errors import SlowPathWarning
from tracekit.models import HookedModel, device_of, dtype_of, frozen, model_name, random_tokens

_TRUNK, _BRANCH = 4, 3


@dataclass(frozen=True, eq=False)
class Abilities:
    """Shortcuts that serve on one model."""

    pack_up_to: int
    """Longest row in which two continuations may share their prompt; 0 if none may."""
    blocks: Blocks | None
    """The model's blocks, if passes can begin and end at any of them."""


_KNOWN: WeakKeyDictionary[Any, Abilities] = WeakKeyDictionary()


def abilities_of(model: HookedModel) -> Abilities:
    """Tries the shortcuts on a model, once per model. Warns of those that do not serve."""
    if model not in _KNOWN:
        with frozen(model), torch.no_grad():
            pack_up_to, no_packing = _packing(model)
            blocks, no_cuts = _cuts(model)
        _KNOWN[model] = Abilities(pack_up_to, blocks)
        if no_packing:
            _warn(model, no_packing, "x and y of an example are run as two sequences")
        if no_cuts:
            _warn(model, no_cuts, "every candidate set is run through all layers")
    return _KNOWN[model]


def _warn(model: HookedModel, reason: str, instead: str) -> None:
    warnings.warn(
        f"{model_name(model)} takes the slower way: {instead}, because {reason}. "
        "Results are the same.",
        SlowPathWarning,
        stacklevel=4,
    )


def _packing(model: HookedModel) -> tuple[int, str]:
    """Longest row that may fork, and why none may."""
    tokens = tuple(random_tokens(model, 1, _TRUNK + 2 * _BRANCH)[0].tolist())
    trunk, first, second = tokens[:_TRUNK], tokens[_TRUNK:-_BRANCH], tokens[-_BRANCH:]
    try:
        packed = _logits(model, trunk, (first, second))[0]
    except Exception as error:  # Whatever a model raises, it then does not serve.
        return 0, f"it takes no attention mask of its own ({type(error).__name__})"
    plain = [_logits(model, trunk, (branch,))[0] for branch in (first, second)]
    expected = torch.cat([plain[0], plain[1][_TRUNK:]])
    tolerance = 1e-4 if dtype_of(model) == torch.float32 else 0.05
    if not (packed - expected).abs().max() <= tolerance * expected.abs().max():
        return 0, "the logits differ under an attention mask of its own"
    return _longest(model), ""


def _logits(model: HookedModel, trunk: tuple[int, ...], limbs: tuple[Any, ...]) -> torch.Tensor:
    sequences = Sequences.build([(trunk, limbs)]).to(device_of(model))
    inputs = sequences.inputs(dtype_of(model))
    return model.run_with_hooks(sequences.tokens, fwd_hooks=[], **inputs).float()


def _longest(model: HookedModel) -> int:
    """Rows may fork up to the context, or the attention window that a full mask would undo."""
    config = getattr(getattr(model, "original_model", None), "config", None)
    config = getattr(config, "text_config", config)
    limits = [
        getattr(model.cfg, "n_ctx", None),
        getattr(config, "max_position_embeddings", None),
        getattr(config, "sliding_window", None),
    ]
    return min((int(limit) for limit in limits if limit), default=1 << 30)


def _cuts(model: HookedModel) -> tuple[Blocks | None, str]:
    blocks = Blocks(model)
    tokens = random_tokens(model, 2, _TRUNK + _BRANCH).to(device_of(model))
    try:
        reason = blocks.refusal(model, tokens)
    except Exception as error:  # Whatever a model raises, it then does not serve.
        reason = f"its blocks cannot be left out ({type(error).__name__})"
    return (None if reason else blocks), reason
