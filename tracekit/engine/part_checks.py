"""Trials of passes that leave parts out: on random tokens, they must give what whole passes do.

In two trials, a random half of the parts is left out, and then the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import compress

import torch
from jaxtyping import Bool
from torch import Tensor

from tracekit.components import ComponentRegistry
from tracekit.components.edges import EdgeGraph, EdgesBy
from tracekit.engine.edge_patch import EdgePatch
from tracekit.engine.part_skipping import PartSkipper, replaced_parts
from tracekit.engine.patching import MaskedPatch
from tracekit.models.hooked import Hook, HookedModel, is_exact, record_pass

_Trial = tuple[Sequence[Hook], Sequence[Hook], AbstractContextManager[None]]
"""Hooks of a whole pass; hooks of one that leaves parts out, and the context that does so."""


def reason_not_skipped(
    model: HookedModel, by: EdgesBy | None, skipper: PartSkipper, tokens: Tensor
) -> str:
    """Why parts cannot be left out; empty if they can be, for edges `by` or for nodes.

    Call it within `freeze`.
    """

    def logits(hooks: Sequence[Hook]) -> Tensor:
        return model.run_with_hooks(tokens, fwd_hooks=list(hooks)).float()

    if by is None:
        registry = ComponentRegistry.build(model.cfg, "head-outputs+mlp-blocks")
    else:
        registry = ComponentRegistry.of_edges(model.cfg, by)
    clean, recorded = record_pass(model, tokens, registry.hook_names)
    clean, others = clean.float(), {name: value.flip(0) for name, value in recorded.items()}
    positions = torch.ones_like(tokens, dtype=torch.bool)
    trials: Iterator[_Trial]
    if by is None:
        nodes = MaskedPatch(registry=registry, counterfactual=others, positions=positions)
        trials = _trials_of_nodes(model, nodes, skipper)
    else:
        trials = _trials_of_edges(
            EdgePatch(model=model, registry=registry, counterfactual=others, positions=positions),
            skipper,
        )
    tolerance = (1e-4 if is_exact(model) else 0.1) * (clean - clean.flip(0)).abs().max()
    for whole, sparse, skipping in trials:
        with skipping:
            without_parts = logits(sparse)
        if not (without_parts - logits(whole)).abs().max() <= tolerance:
            return "other logits come out if they are left out"
    return ""


def _halves(graph: EdgeGraph) -> Iterator[Bool[Tensor, "layer node"]]:
    """Which nodes of each layer, its heads and its MLP, are in a random half of the parts."""
    drawn = torch.rand(graph.n_layers, 2, generator=torch.Generator().manual_seed(0)) < 0.5
    for is_in in (drawn, ~drawn):
        yield is_in.repeat_interleave(torch.tensor([graph.n_in_attention, 1]), 1)


def _trials_of_nodes(
    model: HookedModel, patch: MaskedPatch, skipper: PartSkipper
) -> Iterator[_Trial]:
    """Replaces all nodes of half of the parts."""
    for is_in in _halves(EdgeGraph.of(model.cfg, "inputs")):
        # The registry has all heads first, and then all MLPs.
        mask = torch.cat([is_in[:, :-1].flatten(), is_in[:, -1]])
        hooks = patch.hooks(mask.float())
        outputs = replaced_parts(model, patch.registry, patch.counterfactual, mask)
        yield hooks, hooks, skipper.skip(model, outputs)


def _trials_of_edges(patch: EdgePatch, skipper: PartSkipper) -> Iterator[_Trial]:
    """Keeps the edges between the nodes of half of the parts."""
    graph, registry = patch.graph, patch.registry
    starts = {site.layer: site.start for site in registry.sites}
    for is_in in _halves(graph):
        nodes = list(compress(graph.senders[1:], is_in.flatten().tolist()))
        kept = ComponentRegistry.of_edges(patch.model.cfg, graph.by, among=nodes)
        mask = torch.ones(1, len(registry), device=patch.positions.device)
        for site in kept.sites:
            mask[0, [starts[site.layer] + index for index in site.indices]] = 0
        hooks, outputs = patch.sparse_pass(mask, starts_from_counterfactual=True)
        yield patch.hooks(mask), hooks, skipper.skip(patch.model, outputs)
