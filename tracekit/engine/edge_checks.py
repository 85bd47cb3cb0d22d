"""Checks of edges on a model, on random tokens, before its numbers are trusted.

1. The empty mask leaves every logit bit-equal.
2. If edges from the embedding carry its value in the same run, the logits do not change: receivers
   have the norms and projections of the model.
3. Patching all edges out of the heads of a layer, or out of an MLP, equals patching the heads or
   the MLP: senders write what the model writes, and where it writes it.
4. A gradient reaches the edges into every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tracekit.components import ComponentRegistry, Site
from tracekit.components.edges import EMBEDDING, EdgesBy
from tracekit.engine.edge_patch import EdgePatch, edges_error
from tracekit.engine.patching import MaskedPatch
from tracekit.errors import IdentityCheckError, SourceError
from tracekit.models.architectures import MLP, out_hook
from tracekit.models.hooked import (
    Hook,
    HookedModel,
    device_of,
    freeze,
    is_exact,
    model_name,
    random_tokens,
    record_pass,
)


def check_edges(model: HookedModel, registry: ComponentRegistry, tokens: Tensor) -> None:
    """Proves on random tokens that edges act; call it within `freeze`."""
    assert registry.edges is not None
    nodes = ComponentRegistry.build(model.cfg, "head-outputs+mlp-blocks")
    names = dict.fromkeys([*registry.hook_names, *nodes.hook_names])
    clean, activations = record_pass(model, tokens, names)
    clean = clean.float()
    missing = [name for name in names if name not in activations]
    if missing:
        raise edges_error(model, f"its hook point {missing[0]} did not fire")
    others = {name: value.flip(0) for name, value in activations.items()}
    positions = torch.ones_like(tokens, dtype=torch.bool)
    patch = EdgePatch(model=model, registry=registry, counterfactual=others, positions=positions)
    same_values = replace(patch, counterfactual=activations)
    node_patch = MaskedPatch(registry=nodes, counterfactual=others, positions=positions)
    if not torch.equal(_logits(model, tokens, patch.hooks(torch.zeros(len(registry)))), clean):
        raise IdentityCheckError(f"The empty mask on edges changes logits of {model_name(model)}.")
    senders = [edge.ends.split(">")[0] for edge in registry]
    is_first = torch.tensor([sender == EMBEDDING for sender in senders]).float()
    unchanged = _logits(model, tokens, same_values.hooks(is_first))
    problem = "its queries, keys, values or MLPs do not read the stream by their norms"
    runs = [(problem, unchanged, clean)]
    for site in nodes.sites:
        part = slice(site.start, site.stop)
        is_attention = site.hook_name != out_hook(site.layer, MLP)
        is_block = is_attention and registry.edges.by == "blocks"
        labels = {f"ATT{site.layer}"} if is_block else set(map(str, nodes[part]))
        of_edges = torch.tensor([sender in labels for sender in senders]).float()
        of_nodes = torch.zeros(len(nodes))
        of_nodes[part] = 1
        by_edges = _logits(model, tokens, patch.hooks(of_edges))
        by_nodes = _logits(model, tokens, node_patch.hooks(of_nodes))
        problem = f"all edges out of {min(labels)} and those beside it do not do what it does"
        runs.append((problem, by_edges, by_nodes))
    tolerance = (1e-3 if is_exact(model) else 0.1) * (clean - clean.flip(0)).abs().max()
    for problem, value, expected in runs:
        if not (value - expected).abs().max() <= tolerance:
            raise edges_error(model, problem)
    site = find_site_without_gradient(model, patch, tokens)
    if site is not None:
        raise edges_error(model, f"no gradient reaches the edges into layer {site.layer}")


def check_other_model(model: HookedModel, other: HookedModel, by: EdgesBy) -> None:
    """Refuses another model as a source if patching all edges does not reproduce its logits."""
    registry = ComponentRegistry.of_edges(model.cfg, by)
    tokens = random_tokens(model, 3, 8).to(device_of(model))
    theirs, others = record_pass(other, tokens, registry.hook_names)
    theirs = theirs.float().to(tokens.device)
    positions = torch.ones_like(tokens, dtype=torch.bool)
    patch = EdgePatch(model=model, registry=registry, counterfactual=others, positions=positions)
    with torch.no_grad(), freeze(model):
        edges = patch.hooks(torch.ones(len(registry)))
        gap, apart = ((_logits(model, tokens, h) - theirs).abs().max() for h in (edges, []))
    rounding = (1e-4 if is_exact(model) and is_exact(other) else 0.02) * theirs.abs().max()
    if not gap <= 0.05 * apart + rounding:
        raise SourceError(
            f"{model_name(model)} with all edges patched does not do what {model_name(other)} does "
            f"(logits are up to {gap:.2g} apart): they differ in what no edge carries, such as the "
            "output projections or biases of attention. Trace attention-blocks+mlp-blocks."
        )


def find_site_without_gradient(
    model: HookedModel, patch: EdgePatch | MaskedPatch, tokens: Tensor
) -> Site | None:
    """The first site to whose part of a soft mask no gradient of the logits comes, if any."""
    sites = patch.registry.sites
    mask = torch.full((len(patch.registry),), 0.5, device=tokens.device, requires_grad=True)
    with torch.enable_grad():
        logits = _logits(model, tokens, patch.hooks(mask))
        if not logits.requires_grad:
            return sites[0]
        factors = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
        (gradient,) = torch.autograd.grad((logits * factors.to(logits)).sum(), mask)
    return next((s for s in sites if not gradient[s.start : s.stop].abs().max() > 0), None)


def _logits(model: HookedModel, tokens: Tensor, hooks: Sequence[Hook]) -> Tensor:
    return model.run_with_hooks(tokens, fwd_hooks=list(hooks)).float()
