"""Which receivers and senders a pass over edges needs, and how it leaves parts of the model out.

Where few edges are patched, a pass follows these alone. Where few are kept, it starts from the
counterfactual run: a part that no kept edge enters does there what it does in the counterfactual
run, which is known, so that it is not computed.

    kept: E>L1Q0, L1H0>MLP2, MLP2>logits
    computed: the attention of layer 1, the MLP of layer 2, and the logits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from tracekit.components.edges import EdgeGraph
from tracekit.engine.block_skipping import block_input
from tracekit.models.architectures import ATTENTION, MLP, patch_modules

Part = tuple[int, int]
"""A layer, and `ATTENTION` or `MLP`."""


@dataclass(frozen=True)
class ActiveEdges:
    """Receivers that read something in addition to the stream, and the senders of what they read.

    Both are on the CPU.
    """

    receivers: list[list[Bool[Tensor, " label"]]]
    """By layer, for each of its groups in `EdgeGraph.receivers`."""
    senders_into: Bool[Tensor, "layer sender"]
    """The senders whose changes are read in each layer."""

    @classmethod
    def of(cls, graph: EdgeGraph, edges: Mapping[int, Bool[Tensor, " edge"]]) -> ActiveEdges:
        """The two ends of edges, which are given by the layer that they enter."""
        receivers: list[list[Tensor]] = []
        senders_into = torch.zeros(len(graph.receivers), len(graph.senders), dtype=torch.bool)
        for layer, groups in enumerate(graph.receivers):
            chosen = edges.get(layer, torch.zeros(groups[-1].stop, dtype=torch.bool))
            by_group = [chosen[g.start : g.stop].view(len(g.labels), g.n_senders) for g in groups]
            receivers.append([each.any(1) for each in by_group])
            for each in by_group:
                senders_into[layer, : each.shape[1]] |= each.any(0)
        return cls(receivers, senders_into)

    @cached_property
    def senders(self) -> Bool[Tensor, " sender"]:
        """The senders whose changes are read in any layer."""
        return self.senders_into.any(0)

    @property
    def n_layers(self) -> int:
        """One more than the last layer with such receivers."""
        return max(self.senders_into.any(1).nonzero()[:, 0].tolist(), default=-1) + 1


class PartSkipper:
    """Leaves attentions and MLPs out of a pass, where what they write is known."""

    def __init__(self, model: Any, tokens: Tensor) -> None:
        """Runs the model once to see what its parts return."""
        self._lengths: dict[Part, int | None] = {}
        """Of the tuple that a part returns; None: it returns a tensor."""
        with ExitStack() as handles:
            for layer, block in enumerate(model.blocks):
                for part, name in ((ATTENTION, "attn"), (MLP, "mlp")):
                    record = partial(self._record, part=(layer, part))
                    handle = getattr(block, name).register_forward_hook(record)
                    handles.callback(handle.remove)
            model.run_with_hooks(tokens, fwd_hooks=[])

    def _record(self, module: Any, args: Any, output: Any, *, part: Part) -> None:
        self._lengths[part] = len(output) if isinstance(output, tuple) else None

    def skip(
        self, model: Any, outputs: Mapping[Part, Callable[[Tensor], Tensor]]
    ) -> AbstractContextManager[None]:
        """Within the block, parts return what functions make of their inputs.

        Parts that the model does not call as modules run as always.
        """
        names = {ATTENTION: "attn", MLP: "mlp"}
        replaced = []
        for (layer, part), output in outputs.items():
            if (layer, part) in self._lengths:
                length = self._lengths[layer, part]
                forward = partial(_return_output, output=output, length=length)
                replaced.append((getattr(model.blocks[layer], names[part]), {"forward": forward}))
        return patch_modules(replaced)


def _return_output(
    *args: Any, output: Callable[[Tensor], Tensor], length: int | None, **kwargs: Any
) -> Any:
    value = output(block_input(args, kwargs))
    return value if length is None else (value, *[None] * (length - 1))
