"""Leaving attentions and MLPs out of a pass, where what they write is known or not read.

A part is known if a mask replaces all of it at every token. With almost all edges patched, no kept
edge leaves most parts: nothing reads what they write, and the counterfactual values take its place.

    kept: E>L1Q0, L1H0>MLP2, MLP2>logits
    computed: the attention of layer 1, the MLP of layer 2, and the logits
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from tracekit.components import ComponentRegistry
from tracekit.engine.block_skipping import block_input, record_calls
from tracekit.engine.patching import Activations
from tracekit.models.architectures import ATTENTION, MLP, block_parts, patch_modules

Part = tuple[int, int]
"""A layer, and `ATTENTION` or `MLP`."""
KnownOutputs = dict[Part, Callable[[Tensor], Tensor]]
"""Makes the output of each known part from its input, of which only the shape is read."""
_MODULES = {ATTENTION: "attn", MLP: "mlp"}
_PARTS = {"attn.hook_z": ATTENTION, "hook_attn_out": ATTENTION, "hook_mlp_out": MLP}
"""Hook points within a block through which all goes that a part writes."""


class PartSkipper:
    """Leaves parts of a model out of a pass."""

    def __init__(self, model: Any, tokens: Tensor) -> None:
        """Runs the model once to see what its parts return."""
        modules = {
            (layer, part): getattr(block, name)
            for layer, block in enumerate(model.blocks)
            for part, name in _MODULES.items()
        }
        with record_calls(modules) as calls:
            model.run_with_hooks(tokens, fwd_hooks=[])
        self._lengths: dict[Part, int | None] = {
            part: len(output) if isinstance(output, tuple) else None
            for part, (_, output) in calls.items()
        }
        """Of the tuple that a part returns; None: it returns a tensor."""

    def skip(self, model: Any, outputs: KnownOutputs) -> AbstractContextManager[None]:
        """Within the block, known parts that the model calls as modules are not computed."""
        replaced = []
        for (layer, part), output in outputs.items():
            if (layer, part) in self._lengths:
                length = self._lengths[layer, part]
                forward = partial(_return_output, output=output, length=length)
                replaced.append(
                    (getattr(model.blocks[layer], _MODULES[part]), {"forward": forward})
                )
        return patch_modules(replaced)


def _return_output(
    *args: Any, output: Callable[[Tensor], Tensor], length: int | None, **kwargs: Any
) -> Any:
    value = output(block_input(args, kwargs))
    return value if length is None else (value, *[None] * (length - 1))


def replaced_parts(
    model: Any,
    registry: ComponentRegistry,
    source: Activations,
    is_replaced: Bool[Tensor, " component"],
) -> KnownOutputs:
    """The parts of which all is replaced by counterfactual values, at all tokens."""
    outputs: KnownOutputs = {}
    for site in registry.sites:
        part = _PARTS.get(site.hook_name.split(".", 2)[2])
        is_whole = site.complete and len(site.hook_names) == 1
        if part is not None and is_whole and is_replaced[site.start : site.stop].all():
            values = partial(repeat_values, source[site.hook_name])
            if site.hook_name.endswith("hook_z"):
                out = partial(_project_out, model=model, layer=site.layer)
                values = partial(project_heads, heads=values, out=out)
            outputs[site.layer, part] = values
    return outputs


def _project_out(heads: Tensor, *, model: Any, layer: int) -> Tensor:
    # A model whose parts cannot be told apart is refused here, within the trial.
    return block_parts(model, layer).out(heads)


def project_heads(
    like: Tensor, *, heads: Callable[[Tensor], Tensor], out: Callable[[Tensor], Tensor]
) -> Tensor:
    """What an attention writes, from the values of its heads for the rows of an input."""
    return out(heads(like).flatten(2))


def repeat_values(values: Tensor, like: Tensor, first: int = 0) -> Tensor:
    """Values from position `first` on, repeated to the rows of `like`; 0 at other positions."""
    values = values.to(like.device, like.dtype)
    repeated = values.new_zeros(len(like), like.shape[1], *values.shape[2:])
    target = repeated[:, first : first + values.shape[1]].unflatten(0, (-1, len(values)))
    target.copy_(values.expand_as(target))
    return repeated
