"""Soft interventions as hooks: h = (1 - m) f(g) + m h' at the hook points of a registry.

`MaskedPatch` is the hook factory: from a mask it makes the `fwd_hooks` that any TransformerLens
model takes in `run_with_hooks`. Where two kinds share a hook point (`mlp-outputs` and
`mlp-blocks`), they act one after the other, so that a coordinate is counterfactual if either says
so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit._util.devices import to_device
from tracekit.components import ComponentRegistry, Kind, Site
from tracekit.components.kinds import FeatureMap
from tracekit.data.counterfactuals import Constants
from tracekit.models.hooked import Hook

_STREAM_PASSES_BY = ".hook_resid_mid"
"""Hook point of the residual stream that a `TransformerBridge` has at the entry of the second norm:
what a hook returns there reaches the MLP only. `checks` proves that a mask reaches the stream."""

Activations = Mapping[str, Tensor]
"""Hook point -> activation; the first axis is the row, and the position (for attention patterns
the query) is axis 1 (2), as in `Kind`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedPatch:
    """Mixes counterfactual activations into a run.

    ```python
    patch = tk.engine.MaskedPatch(registry=registry, counterfactual=cache, positions=positions)
    logits = model.run_with_hooks(tokens, fwd_hooks=patch.hooks(mask))
    ```
    """

    registry: ComponentRegistry
    """The components that mask entries stand for."""
    counterfactual: Activations
    """Activations of the counterfactual run at `registry.hook_names`, row by row. They may be
    shorter than the clean run: they cover as many positions as they have, from
    `first_position` on; and of the keys of attention patterns those up to the last of these."""
    positions: Bool[Tensor, "row pos"]
    """Where to intervene. For `attention-patterns`, the queries whose attention is replaced."""
    span_numbers: Int[Tensor, "row pos"] | None = None
    """Number of the span of each position, -1 for none; needed if the registry has spans."""
    first_position: int = 0
    """Position of the run that the first one of the counterfactual activations belongs to."""

    def hooks(
        self, mask: Float[Tensor, "*set component"] | Float[Tensor, "set row component"]
    ) -> list[Hook]:
        """Hooks that apply a mask, or each of a stack of masks; 1 takes the counterfactual value.

        With a stack, the run must have the rows of `positions` once per mask, one mask after the
        other. With three axes, every row has a mask of its own, whose gradient then tells rows
        apart.
        """
        by_name: dict[str, list[Site]] = {}
        for site in self.registry.sites:
            for name in site.hook_names:
                if name in self.counterfactual:
                    by_name.setdefault(name, []).append(site)
        return [(name, self._hook(name, sites, mask)) for name, sites in by_name.items()]

    def _hook(self, name: str, sites: list[Site], mask: Tensor) -> Callable[..., Tensor]:
        source, kind = self.counterfactual[name], sites[0].kind
        layer = int(name.split(".")[1])
        first = self.first_position
        covered = slice(first, first + source.shape[kind.position_dim])
        numbers = None if self.span_numbers is None else self.span_numbers[:, covered]
        weights = [shares_of(site, mask, source.ndim, numbers) for site in sites]
        is_patched = _along_positions(self.positions[:, covered], kind, source.ndim)
        features = [site.kind.features_in(layer) for site in sites]
        parts = list(zip(weights, features, strict=True))
        mix = partial(
            _mix, source=source, kind=kind, first=first, is_patched=is_patched, parts=parts
        )
        return partial(_mix_in_place, mix=mix) if name.endswith(_STREAM_PASSES_BY) else mix


def constant_hooks(
    registry: ComponentRegistry, constants: Constants, mask: Float[Tensor, " component"]
) -> list[Hook]:
    """Hooks that put constants in at every token of any pass, also with a cache of keys.

    Entries of the mask may lie beyond 1, which goes past the constants.
    """

    def mix(activation: Tensor, hook: Any = None, *, name: str, sites: list[Site]) -> Tensor:
        kind = sites[0].kind
        n_tokens = activation.shape[kind.position_dim]
        first = 0 if kind.key_dim is None else activation.shape[kind.key_dim] - n_tokens
        values = constants.activation(name, kind, first, first + n_tokens)
        dtype = torch.promote_types(activation.dtype, torch.float32)
        mixed, values = activation.to(dtype), values.to(activation.device, dtype)
        for site in sites:
            share = shares_of(site, mask, activation.ndim, None)[0].to(mixed)
            mixed = torch.lerp(mixed, values[None].expand_as(mixed), share.expand_as(mixed))
        return mixed.to(activation.dtype)

    hooks = []
    for name in registry.hook_names:
        acting = [site for site in registry.sites if name in site.hook_names]
        mixing = partial(mix, name=name, sites=acting)
        in_place = name.endswith(_STREAM_PASSES_BY)
        hooks.append((name, partial(_mix_in_place, mix=mixing) if in_place else mixing))
    return hooks


def _mix(
    activation: Tensor,
    hook: Any = None,
    *,
    source: Tensor,
    kind: Kind,
    first: int,
    is_patched: Tensor,
    parts: Sequence[tuple[Tensor, FeatureMap | None]],
) -> Tensor:
    """An activation with counterfactual values mixed in, by the weights of each site in turn."""
    if activation.shape[kind.position_dim] == 1 < first + source.shape[kind.position_dim]:
        # A later step of a generation: the prompt is in the cache of keys and values.
        return activation
    start = _covered_positions(activation, kind, first, source.shape[kind.position_dim])
    # In float32, or in the activation's own type where that is wider.
    dtype = torch.promote_types(activation.dtype, torch.float32)
    # The rows once per mask, beside the one copy of their counterfactual values.
    mixed = start.to(dtype).unflatten(0, (-1, len(source)))
    # Layers may lie on different devices.
    values = source.to(activation.device, dtype)
    for weight, features in parts:
        share = (weight * is_patched).to(activation.device, dtype)
        mixed = _mixed(mixed, values, share, features)
    return _replaced(activation, mixed.flatten(0, 1).to(activation.dtype), kind, first)


def _mix_in_place(
    activation: Tensor, hook: Any = None, *, mix: Callable[[Tensor], Tensor]
) -> Tensor:
    # The model goes on with this very tensor, and the norm with what is returned.
    return activation.copy_(mix(activation.clone()))


def _mixed(
    clean: Tensor, counterfactual: Tensor, share: Tensor, features: FeatureMap | None
) -> Tensor:
    """Values between the clean and the counterfactual ones."""
    if features is None:
        return torch.lerp(clean, counterfactual, share)
    # Features read float32, whatever the model runs in, and may return another type.
    with torch.autocast(clean.device.type, enabled=False):
        own, other = (features.encode(each.float()) for each in (clean, counterfactual))
        dtype = torch.promote_types(own.dtype, torch.float32)
        mixed = torch.lerp(own.to(dtype), other.to(dtype)[None], share.to(dtype)).to(own.dtype)
        # What the features do not reconstruct stays as it is.
        return clean + (features.decode(mixed).float() - features.decode(own).float())


def shares_of(
    site: Site, mask: Tensor, ndim: int, span_numbers: Int[Tensor, "row pos"] | None
) -> Float[Tensor, ...]:
    """Mask entries of a site, shaped `set row *axes` to broadcast against its activation."""
    entries = mask[..., site.start : site.stop]
    if site.spans:
        assert span_numbers is not None
        return _weight_by_span(site, entries, ndim, span_numbers)
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


def _weight_by_span(
    site: Site, entries: Tensor, ndim: int, span_numbers: Int[Tensor, "row pos"]
) -> Float[Tensor, ...]:
    """The same where every span has an entry of its own: each position takes that of its span."""
    kind, n_spans = site.kind, site.n_spans
    by_index = entries.unflatten(-1, (len(site.indices), n_spans))
    if not site.complete:
        full = by_index.new_zeros(*by_index.shape[:-2], site.width, n_spans)
        indices = to_device(torch.tensor(site.indices), entries.device)
        by_index = full.index_copy(-2, indices, by_index)
    while by_index.ndim < 4:
        # One mask for all sets, or for all rows.
        by_index = by_index[None] if by_index.ndim == 2 else by_index[:, None]
    numbers = span_numbers.to(by_index.device)
    n_sets, n_rows, width = by_index.shape[0], len(numbers), site.width
    # Picked, not multiplied: products may be rounded where masks are learned.
    picked = (
        by_index.expand(-1, n_rows, -1, -1)
        .gather(3, numbers.clamp(min=0)[None, :, None].expand(n_sets, -1, width, -1))
        .masked_fill((numbers < 0)[None, :, None], 0.0)
    )
    spread = picked.transpose(2, 3)
    shape = [1] * (ndim + 1)
    shape[:2], shape[kind.position_dim + 1] = spread.shape[:2], spread.shape[2]
    if kind.component_dim is None:
        return spread[..., 0].reshape(shape)
    shape[kind.component_dim + 1] = site.width
    if kind.component_dim < kind.position_dim:
        spread = spread.transpose(2, 3)
    return spread.reshape(shape)


def _along_positions(positions: Tensor, kind: Kind, ndim: int) -> Tensor:
    """A mask over rows and positions, shaped to broadcast against an activation."""
    shape = [1] * ndim
    shape[0], shape[kind.position_dim] = positions.shape
    return positions.reshape(shape)


def _covered_positions(activation: Tensor, kind: Kind, first: int, n_positions: int) -> Tensor:
    """The part of an activation that belongs to some positions, one after the other."""
    covered = activation.narrow(kind.position_dim, first, n_positions)
    # Attention from these queries cannot reach later keys: the models are causal.
    return covered if kind.key_dim is None else covered.narrow(kind.key_dim, 0, first + n_positions)


def _replaced(activation: Tensor, covered: Tensor, kind: Kind, first: int) -> Tensor:
    """The activation with `covered` in its positions from `first` on."""
    dim = kind.position_dim
    n_positions, length = covered.shape[dim], activation.shape[dim]
    if n_positions == length:
        return covered
    stop = first + n_positions
    if kind.key_dim is not None:
        # The keys after these queries, which they cannot see, keep what they have.
        own = activation.narrow(dim, first, n_positions)
        later = own.narrow(kind.key_dim, stop, activation.shape[kind.key_dim] - stop)
        covered = torch.cat([covered, later], dim=kind.key_dim)
    before, after = activation.narrow(dim, 0, first), activation.narrow(dim, stop, length - stop)
    return torch.cat([before, covered, after], dim=dim)
