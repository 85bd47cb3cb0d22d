"""Soft interventions as hooks: h = (1 - m) f(g) + m h' at the hook points of a registry.

`MaskedPatch` is the hook factory: from a mask it makes the `fwd_hooks` that any TransformerLens
model takes in `run_with_hooks`. Where two kinds share a hook point (`mlp-outputs` and
`mlp-blocks`), they act one after the other, so that a coordinate is counterfactual if either says
so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tracekit.components import ComponentRegistry, Kind, Site
from tracekit.models.hooked import Hook, to_device

Activations = Mapping[str, Tensor]
"""Hook point -> activation; the first axis is the row, and the position (for attention patterns
the query) is axis 1 (2), as in `Kind`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedPatch:
    """Mixes counterfactual activations into a run.

    ```python
    patch = tk.MaskedPatch(registry=registry, counterfactual=cache, positions=positions)
    logits = model.run_with_hooks(tokens, fwd_hooks=patch.hooks(mask))
    ```
    """

    registry: ComponentRegistry
    """The components that mask entries stand for."""
    counterfactual: Activations
    """Activations of the counterfactual run at `registry.hook_names`, row by row. They may be
    shorter than the clean run: they cover positions 0 to their length less one."""
    positions: Bool[Tensor, "row pos"]
    """Where to intervene. For `attention-patterns`, the queries whose attention is replaced."""

    def hooks(
        self, mask: Float[Tensor, "*set component"] | Float[Tensor, "set row component"]
    ) -> list[Hook]:
        """Hooks that apply a mask, or each of a stack of masks.

        Args:
            mask: In [0, 1], 1 takes the counterfactual value. With a stack, the run must have the
                rows of `positions` once per mask, one mask after the other. With three axes,
                every row has a mask of its own, whose gradient then tells rows apart.
        """
        by_name: dict[str, list[Site]] = {}
        for site in self.registry.sites:
            if site.hook_name in self.counterfactual:
                by_name.setdefault(site.hook_name, []).append(site)
        return [(name, self._hook(name, sites, mask)) for name, sites in by_name.items()]

    def _hook(self, name: str, sites: list[Site], mask: Tensor) -> Callable[..., Tensor]:
        source, kind = self.counterfactual[name], sites[0].kind
        weights = [_weight(site, mask, source.ndim) for site in sites]
        span = source.shape[kind.position_dim]
        is_patched = _along_positions(self.positions[:, :span], kind, source.ndim)

        def mix(activation: Tensor, hook: Any = None) -> Tensor:
            start = _first_positions(activation, kind, span)
            # In float32, or in the activation's own type where that is wider.
            dtype = torch.promote_types(activation.dtype, torch.float32)
            # The rows once per mask, beside the one copy of their counterfactual values.
            mixed = start.to(dtype).unflatten(0, (-1, len(source)))
            # Layers may lie on different devices.
            values = source.to(activation.device, dtype)
            for weight in weights:
                share = (weight * is_patched).to(activation.device, dtype)
                mixed = torch.lerp(mixed, values, share)
            mixed = mixed.flatten(0, 1).to(activation.dtype)
            return _replace_first_positions(activation, mixed, kind)

        return mix


def _weight(site: Site, mask: Tensor, ndim: int) -> Float[Tensor, ...]:
    """Mask entries of a site, shaped `set row *axes` to broadcast against its activation."""
    entries = mask[..., site.start : site.stop]
    if not site.complete:
        # Components of the layer that are not under study keep their clean value: weight 0.
        full = entries.new_zeros(*entries.shape[:-1], site.width)
        indices = to_device(torch.tensor(site.indices), entries.device)
        entries = full.index_copy(-1, indices, entries)
    shape = [1] * (ndim + 1)
    shape[: entries.ndim - 1] = entries.shape[:-1]
    if site.kind.component_dim is not None:
        # One further than in the activation: the axis of the set comes first.
        shape[site.kind.component_dim + 1] = site.width
    return entries.reshape(shape)


def _along_positions(positions: Tensor, kind: Kind, ndim: int) -> Tensor:
    """A mask over rows and positions, shaped to broadcast against an activation."""
    shape = [1] * ndim
    shape[0], shape[kind.position_dim] = positions.shape
    return positions.reshape(shape)


def _first_positions(activation: Tensor, kind: Kind, span: int) -> Tensor:
    """The part of an activation that belongs to the first `span` positions."""
    start = activation.narrow(kind.position_dim, 0, span)
    # Attention from these queries cannot reach later keys: the models are causal.
    return start if kind.key_dim is None else start.narrow(kind.key_dim, 0, span)


def _replace_first_positions(activation: Tensor, start: Tensor, kind: Kind) -> Tensor:
    """The activation with `start` in its first positions."""
    dim = kind.position_dim
    span, length = start.shape[dim], activation.shape[dim]
    if span == length:
        return start
    if kind.key_dim is not None:
        # The last axis: these queries pay no attention to the keys after them.
        start = torch.nn.functional.pad(start, (0, activation.shape[kind.key_dim] - span))
    return torch.cat([start, activation.narrow(dim, span, length - span)], dim=dim)
