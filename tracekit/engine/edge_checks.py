"""Checks of edges on a model, on random tokens, before its numbers are trusted.

1. The empty mask leaves every logit bit-equal.
2. Receivers that are given what they read anyway, by a full mask whose values are those of the run
   itself, give the same logits: their norms and projections are the model's.
3. All edges out of the heads of a layer do what patching these heads does, and those out of an MLP
   what patching it does: what senders write, and where, is the model's.
4. A gradient reaches every receiver.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tracekit.components import ComponentRegistry
from tracekit.engine.edge_patch import EdgePatch, refusal
from tracekit.engine.patching import MaskedPatch
from tracekit.errors import IdentityCheckError
from tracekit.models.architectures import MLP, out_of
from tracekit.models.hooked import Hook, HookedModel, is_exact, model_name, recording_hooks

_TOLERANCE, _ROUNDED = 1e-3, 0.1
"""Largest difference of logits as a share of the largest change, and in a low precision."""


def check_edges(model: HookedModel, registry: ComponentRegistry, tokens: Tensor) -> None:
    """Proves on random tokens that edges act; within `frozen`.

    Raises:
        HookPointError: Says what cannot be split.
        IdentityCheckError: The empty mask changes the logits.
    """
    edges = registry.edges
    assert edges is not None
    nodes = ComponentRegistry.build(model.cfg, "head-outputs+mlp-blocks")
    hooks, recorded = recording_hooks([*registry.hook_names, *nodes.hook_names])
    clean = _logits(model, tokens, hooks)
    own = {name: fired[0] for name, fired in recorded.items() if fired}
    positions = torch.ones_like(tokens, dtype=torch.bool)
    given = {"model": model, "registry": registry, "positions": positions}
    missing = [name for name in registry.hook_names if name not in own]
    if missing:
        raise refusal(model, f"its hook point {missing[0]} did not fire")
    others = {name: value.flip(0) for name, value in own.items()}
    patch, same = (EdgePatch(counterfactual=values, **given) for values in (others, own))
    n_edges = len(registry)
    if not torch.equal(_logits(model, tokens, patch.hooks(torch.zeros(n_edges))), clean):
        raise IdentityCheckError(
            f"The empty mask over edges changes the logits of {model_name(model)}."
        )
    by_sender: dict[str, list[int]] = {}
    for number, edge in enumerate(registry):
        by_sender.setdefault(edge.ends.split(">")[0], []).append(number)
    of_edges, of_nodes = [torch.zeros(n_edges)], [torch.zeros(len(nodes))]
    for site in nodes.sites:
        is_mlp = site.hook_name == out_of(site.layer, MLP)
        heads = (
            [f"ATT{site.layer}"]
            if edges.by == "blocks"
            else map(str, nodes[site.start : site.stop])
        )
        senders = [f"MLP{site.layer}"] if is_mlp else heads
        of_edges.append(torch.zeros(n_edges))
        of_edges[-1][[number for sender in senders for number in by_sender[sender]]] = 1
        of_nodes.append(torch.zeros(len(nodes)))
        of_nodes[-1][site.start : site.stop] = 1
    node_patch = MaskedPatch(registry=nodes, counterfactual=others, positions=positions)
    runs: list[tuple[str, Tensor, Tensor]] = []
    kept = _logits(model, tokens, same.hooks(torch.ones(n_edges)))
    runs.append(
        ("queries, keys, values or MLPs are not those of the norms and weights", kept, clean)
    )
    for first in range(0, len(of_edges), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        copies = tokens.repeat(len(of_edges[some]), 1)
        by_edges = _logits(model, copies, patch.hooks(torch.stack(of_edges[some])))
        by_nodes = _logits(model, copies, node_patch.hooks(torch.stack(of_nodes[some])))
        runs.append(
            ("all edges out of a head or an MLP do not do what it does", by_edges, by_nodes)
        )
    scale = (clean - clean.flip(0)).abs().max()
    for problem, value, expected in runs:
        if (
            not (value - expected).abs().max()
            <= (_TOLERANCE if is_exact(model) else _ROUNDED) * scale
        ):
            raise refusal(model, f"{problem} that its blocks name")
    _check_gradient(model, patch, tokens)


_AT_ONCE = 16


def _check_gradient(model: HookedModel, patch: EdgePatch, tokens: Tensor) -> None:
    """Refuses a receiver through which no gradient reaches the mask."""
    registry, edges = patch.registry, patch.registry.edges
    assert edges is not None
    mask = torch.full((len(registry),), 0.5, requires_grad=True)
    with torch.enable_grad():
        logits = _logits(model, tokens, patch.hooks(mask))
        drawn = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
        (slopes,) = torch.autograd.grad((logits * drawn.to(logits)).sum(), mask)
    for site in registry.sites:
        for into in edges.receivers(site.layer):
            part = slopes[site.start + into.start : site.start + into.stop]
            if not part.any():
                raise refusal(model, f"no gradient reaches {into.labels[0]}")


def _logits(model: HookedModel, tokens: Tensor, hooks: Sequence[Hook]) -> Tensor:
    return model.run_with_hooks(tokens, fwd_hooks=list(hooks)).float()
