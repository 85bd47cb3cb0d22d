"""Checks of edges on a model, on random tokens, before its numbers are trusted.

1. The empty mask leaves every logit bit-equal.
2. Receivers that are given what they read anyway, by edges from the embedding that carry its value
   in the run itself, give the same logits: their norms and projections are the model's.
3. All edges out of the heads of a layer do what patching these heads does, and those out of an MLP
   what patching it does: what senders write, and where, is the model's.
4. A gradient reaches the edges into every layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tracekit.components import ComponentRegistry
from tracekit.components.edges import EMBEDDING, EdgesBy
from tracekit.engine.edge_patch import EdgePatch, unsupported_edges
from tracekit.engine.patching import MaskedPatch
from tracekit.errors import IdentityCheckError, SourceError
from tracekit.models.architectures import MLP, out_of
from tracekit.models.hooked import (
    Hook,
    HookedModel,
    device_of,
    frozen,
    is_exact,
    model_name,
    random_tokens,
    recording_hooks,
)


def check_edges(model: HookedModel, registry: ComponentRegistry, tokens: Tensor) -> None:
    """Proves on random tokens that edges act; within `frozen`.

    Raises:
        HookPointError: Says what cannot be split.
        IdentityCheckError: The empty mask changes the logits.
    """
    assert registry.edges is not None
    nodes = ComponentRegistry.build(model.cfg, "head-outputs+mlp-blocks")
    hooks, recorded = recording_hooks([*registry.hook_names, *nodes.hook_names])
    clean = _logits(model, tokens, hooks)
    own = {name: fired[0] for name, fired in recorded.items() if fired}
    missing = [name for name in recorded if name not in own]
    if missing:
        raise unsupported_edges(model, f"its hook point {missing[0]} did not fire")
    others = {name: value.flip(0) for name, value in own.items()}
    positions = torch.ones_like(tokens, dtype=torch.bool)
    patch, same = (
        EdgePatch(model=model, registry=registry, counterfactual=values, positions=positions)
        for values in (others, own)
    )
    node_patch = MaskedPatch(registry=nodes, counterfactual=others, positions=positions)
    if not torch.equal(_logits(model, tokens, patch.hooks(torch.zeros(len(registry)))), clean):
        raise IdentityCheckError(f"The empty mask on edges changes logits of {model_name(model)}.")
    senders = [edge.ends.split(">")[0] for edge in registry]
    is_first = torch.tensor([sender == EMBEDDING for sender in senders]).float()
    kept = _logits(model, tokens, same.hooks(is_first))
    runs = [
        ("its queries, keys, values or MLPs do not read the stream by their norms", kept, clean)
    ]
    for site in nodes.sites:
        part = slice(site.start, site.stop)
        is_attention = site.hook_name != out_of(site.layer, MLP)
        is_block = is_attention and registry.edges.by == "blocks"
        named = {f"ATT{site.layer}"} if is_block else set(map(str, nodes[part]))
        of_edges = torch.tensor([sender in named for sender in senders]).float()
        of_nodes = torch.zeros(len(nodes))
        of_nodes[part] = 1
        by_edges = _logits(model, tokens, patch.hooks(of_edges))
        by_nodes = _logits(model, tokens, node_patch.hooks(of_nodes))
        problem = f"all edges out of {min(named)} and those beside it do not do what it does"
        runs.append((problem, by_edges, by_nodes))
    tolerance = (1e-3 if is_exact(model) else 0.1) * (clean - clean.flip(0)).abs().max()
    for problem, value, expected in runs:
        if not (value - expected).abs().max() <= tolerance:
            raise unsupported_edges(model, problem)
    _check_gradient(model, patch, tokens)


def check_other(model: HookedModel, other: HookedModel, by: EdgesBy) -> None:
    """Refuses another model as a source where all its edges do not make the model do what it does.

    Raises:
        SourceError: The two differ in what no edge carries.
    """
    registry = ComponentRegistry.of_edges(model.cfg, by)
    tokens = random_tokens(model, 3, 8).to(device_of(model))
    hooks, recorded = recording_hooks(registry.hook_names)
    with torch.no_grad(), frozen(other):
        theirs = _logits(other, tokens.to(device_of(other)), hooks).to(tokens.device)
    patch = EdgePatch(
        model=model,
        registry=registry,
        counterfactual={name: fired[0] for name, fired in recorded.items()},
        positions=torch.ones_like(tokens, dtype=torch.bool),
    )
    with torch.no_grad(), frozen(model):
        edges = patch.hooks(torch.ones(len(registry)))
        gap, apart = ((_logits(model, tokens, h) - theirs).abs().max() for h in (edges, []))
    rounding = (1e-4 if is_exact(model) and is_exact(other) else 0.02) * theirs.abs().max()
    if not gap <= 0.05 * apart + rounding:
        raise SourceError(
            f"{model_name(model)} with all edges patched does not do what {model_name(other)} does "
            f"(logits are up to {gap:.2g} apart): they differ in what no edge carries, such as the "
            "output projections or biases of attention. Trace attention-blocks+mlp-blocks."
        )


def _check_gradient(model: HookedModel, patch: EdgePatch, tokens: Tensor) -> None:
    """Refuses a layer into which no gradient reaches the mask."""
    mask = torch.full((len(patch.registry),), 0.5, requires_grad=True)
    with torch.enable_grad():
        logits = _logits(model, tokens, patch.hooks(mask))
        drawn = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
        (slopes,) = torch.autograd.grad((logits * drawn.to(logits)).sum(), mask)
    for site in patch.registry.sites:
        if not slopes[site.start : site.stop].any():
            raise unsupported_edges(model, f"no gradient reaches the edges into layer {site.layer}")


def _logits(model: HookedModel, tokens: Tensor, hooks: Sequence[Hook]) -> Tensor:
    return model.run_with_hooks(tokens, fwd_hooks=list(hooks)).float()
