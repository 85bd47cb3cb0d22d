"""Soft interventions as hooks: h = (1 - m) f(g) + m h' at the hook points of a registry.

`MaskedPatch` is the hook factory: from a mask it makes the `fwd_hooks` that any TransformerLens
model takes in `run_with_hooks`. Where two kinds share a hook point (`neurons` and `mlp-blocks`),
they act one after the other, so that a coordinate is counterfactual if either says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tracekit.components import ComponentRegistry, Site
from tracekit.models.loading import sent

Hook = tuple[str, Callable[..., Tensor]]
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
    """Where to intervene. For `heads`, the query positions whose attention is replaced."""

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
        source = self.counterfactual[name]
        axis = position_axis(sites[0])
        weights = [_weight(site, mask, source.ndim) for site in sites]
        span = source.shape[axis]
        at = _at_axis(self.positions[:, :span], axis, source.ndim)

        def mix(activation: Tensor, hook: Any = None) -> Tensor:
            head = _head(activation, axis, span)
            # The rows once per mask, beside the one copy of their counterfactual values.
            mixed = head.float().unflatten(0, (-1, len(source)))
            # Layers may lie on different devices.
            values = source.to(activation.device).float()
            for weight in weights:
                share = (weight * at).to(activation.device)
                mixed = torch.lerp(mixed, values, share)
            return _replace(activation, mixed.flatten(0, 1).to(activation.dtype), axis)

        return mix


def position_axis(site: Site) -> int:
    """Axis of the position (of the query, for attention patterns) in a site's activation."""
    return 2 if site.kind.axis == 1 else 1


def _weight(site: Site, mask: Tensor, ndim: int) -> Float[Tensor, ...]:
    """Mask entries of a site, shaped `set row *axes` to broadcast against its activation."""
    entries = mask[..., site.start : site.stop]
    if not site.complete:
        full = entries.new_zeros(*entries.shape[:-1], site.width)
        indices = sent(torch.tensor(site.indices), entries.device)
        entries = full.index_copy(-1, indices, entries)
    shape = [1] * (ndim + 1)
    shape[: entries.ndim - 1] = entries.shape[:-1]
    if site.kind.axis is not None:
        shape[site.kind.axis + 1] = site.width
    return entries.reshape(shape)


def _at_axis(positions: Tensor, axis: int, ndim: int) -> Tensor:
    shape = [1] * ndim
    shape[0], shape[axis] = positions.shape
    return positions.reshape(shape)


def _head(activation: Tensor, axis: int, span: int) -> Tensor:
    """The part of an activation that belongs to the first `span` positions."""
    head = activation.narrow(axis, 0, span)
    # Attention from these queries cannot reach later keys: the models are causal.
    return head.narrow(3, 0, span) if axis == 2 else head


def _replace(activation: Tensor, head: Tensor, axis: int) -> Tensor:
    """The activation with its first positions replaced."""
    span, length = head.shape[axis], activation.shape[axis]
    if span == length:
        return head
    if axis == 2:
        head = torch.nn.functional.pad(head, (0, activation.shape[3] - span))
    return torch.cat([head, activation.narrow(axis, span, length - span)], dim=axis)
