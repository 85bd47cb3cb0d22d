"""Attention patterns where TransformerLens reads them only after they were used.

For some architectures (OPT, GPT-Neo, GPT-J) a bridge lets the Hugging Face module compute its
attention, and fires `hook_pattern` on the weights that it gives back: an edit is thrown away.
Within `patterns_in_place` the hook point fires where the weights are computed instead, on the
softmax in the module's own forward, so that edited weights multiply the values; `hook_attn_scores`
fires on what the softmax reads. Nothing else of the computation changes, and the model is as it was
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SOFTMAX = (torch.nn.functional.softmax, torch.softmax, Tensor.softmax)
_WEIGHTS_NDIM = 4
"""Axes of attention weights: row, head, query, key."""
_FORWARD = "AttentionBridge.forward"
"""The forward of TransformerLens that leaves the computation to Hugging Face."""


class _SoftmaxMode(TorchFunctionMode):
    """Within the mode, attention scores and weights pass through functions around the softmax."""

    def __init__(self, before: Callable[..., Tensor], after: Callable[..., Tensor]) -> None:
        super().__init__()
        self._before, self._after = before, after

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls the function; the mode is off meanwhile."""
        if func not in _SOFTMAX or not args or args[0].ndim != _WEIGHTS_NDIM:
            return func(*args, **(kwargs or {}))
        return self._after(func(self._before(args[0]), *args[1:], **(kwargs or {})))


@contextmanager
def patterns_in_place(model: Any) -> Iterator[None]:
    """Within the block, edits at `attn.hook_pattern` act on every block of a bridge."""
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for block in getattr(model, "blocks", None) or ():
            attention = getattr(block, "attn", None)
            if not _ignores_edits(attention):
                continue
            for name, value in _replacements(attention).items():
                # Not setattr: a bridge would hand it through to the module it wraps.
                replaced.append((vars(attention), name, vars(attention).get(name)))
                vars(attention)[name] = value
        yield
    finally:
        for attributes, name, before in reversed(replaced):
            if before is None:
                attributes.pop(name, None)
            else:
                attributes[name] = before


def _ignores_edits(attention: Any) -> bool:
    forward = getattr(type(attention), "forward", None)
    fires_late = hasattr(type(attention), "_fire_post_hoc_hook")
    return fires_late and getattr(forward, "__qualname__", "") == _FORWARD


def _replacements(attention: Any) -> dict[str, Callable[..., Any]]:
    """Replacements of two methods of an attention bridge."""
    kind = type(attention)

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _SoftmaxMode(attention.hook_attn_scores, attention.hook_pattern):
            return kind.forward(attention, *args, **kwargs)

    def fire(hook: Any, value: Tensor, name: str) -> Tensor:
        return value  # Both have fired within.

    return {"forward": forward, "_fire_post_hoc_hook": fire}
