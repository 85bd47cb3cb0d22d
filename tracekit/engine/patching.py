"""Soft interventions as hooks: h = (1 - m) f(g) + m h' at the hook points of a registry.

From a mask, `MaskedPatch` makes the `fwd_hooks` that any TransformerLens model takes in
`run_with_hooks`. Where two kinds share a hook point (`mlp-outputs` and `mlp-blocks`), they act one
after the other, so that a coordinate is counterfactual if either says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit.components import ComponentRegistry, Kind, Site
from tracekit.components.kinds import FeatureMap, decode_features, encode_features
from tracekit.data.counterfactuals import Constants
from tracekit.engine.batch import to_device
from tracekit.errors import MaskError, SourceError
from tracekit.models.architectures import STREAM_PASSES_BY, scores_hook
from tracekit.models.hooked import Hook, running_pass

_MASKED = -1e30
"""Scores below this are those of keys that a query does not see."""

Activations = Mapping[str, Tensor]
"""Hook point -> activation with the axes of its `Kind`; the first is the row."""
AnyMask = Float[Tensor, "*set component"] | Float[Tensor, "set row component"]
"""A mask for all rows, a stack of such masks, or masks for each row."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedPatch:
    """Mixes counterfactual activations into a run, by `hooks` that `run_with_hooks` takes."""

    registry: ComponentRegistry
    counterfactual: Activations
    """Activations of the counterfactual run at `registry.hook_names`, row by row. They cover as
    many positions (and keys of attention patterns) as they have, from `first_position` on."""
    positions: Bool[Tensor, "row pos"]
    """Where to intervene. For `attention-patterns`, the queries whose attention is replaced."""
    span_numbers: Int[Tensor, "row pos"] | None = None
    """Number of the span of each position, -1 for none; needed if the registry has spans."""
    first_position: int = 0
    """Position of the run that the first one of the counterfactual activations belongs to."""
    constants: Constants | None = None
    """The constants put in, if any; rows of attention are cut to the keys that a query sees."""

    def hooks(self, mask: AnyMask) -> list[Hook]:
        """Hooks that apply a mask, or each of a stack of masks; 1 takes the counterfactual value.

        With a stack, the run must have the rows of `positions` once per mask, one mask after the
        other. With three axes, every row has a mask of its own.
        """
        by_name: dict[str, list[Site]] = {}
        for site in self.registry.sites:
            for name in site.hook_names:
                if name in self.counterfactual:
                    by_name.setdefault(name, []).append(site)
        return [
            hook for name, sites in by_name.items() for hook in self._hooks_at(name, sites, mask)
        ]

    def _hooks_at(self, name: str, sites: list[Site], mask: Tensor) -> list[Hook]:
        source, kind = self.counterfactual[name], sites[0].kind
        layer = int(name.split(".")[1])
        first = self.first_position
        covered = slice(first, first + source.shape[kind.position_dim])
        numbers = None if self.span_numbers is None else self.span_numbers[:, covered]
        parts = [
            (mask_shares(site, mask, source.ndim, numbers), site.kind.features_in(layer))
            for site in sites
        ]
        is_patched, shape = self.positions[:, covered], [1] * source.ndim
        shape[0], shape[kind.position_dim] = is_patched.shape
        is_patched = is_patched.reshape(shape)
        rows = SeenRows.for_hook(self.constants, name, kind)

        def mix(activation: Tensor, hook: Any = None) -> Tensor:
            dim, key_dim = kind.position_dim, kind.key_dim
            length, n_sources = activation.shape[dim], source.shape[dim]
            before = running_pass(length).n_before
            # The part of the source that this pass reads; later steps of a generation read none.
            start, stop = max(first, before), min(first + n_sources, before + length)
            if start >= stop:
                return activation
            n_sets = max(len(weight) for weight, _ in parts)
            if len(source) > 1 and len(activation) != len(source) * n_sets:
                raise MaskError(
                    f"The run has {len(activation)} rows, and the patch {len(source)} under "
                    f"{n_sets} masks. Run every row once for each mask; give beams and samples a "
                    "patch of one prompt."
                )
            part, keys = slice(start - before, stop - before), slice(None)
            values = source.narrow(dim, start - first, stop - start)
            if key_dim is not None:
                # A cache with a window has forgotten the first keys. The last ones, which no query
                # sees, keep what they have.
                first_key = max(0, before + length - activation.shape[key_dim])
                n_keys = min(source.shape[key_dim] - first_key, activation.shape[key_dim])
                keys = slice(0, n_keys)
                values = values.narrow(key_dim, first_key, n_keys)
            by_axis = {dim: part, key_dim: keys}
            where = tuple(by_axis.get(axis, slice(None)) for axis in range(activation.ndim))
            acts = is_patched.narrow(dim, start - first, stop - start)
            if rows is not None:
                values = rows(length, part, keys, acts)
            # In float32, or in the activation's own type where that is wider.
            dtype = torch.promote_types(activation.dtype, torch.float32)
            # The rows once per mask, beside the one copy of their counterfactual values.
            mixed = rearrange(
                activation[where].to(dtype), "(set row) ... -> set row ...", row=len(source)
            )
            # Layers may lie on different devices.
            values = values.to(activation.device, dtype)
            if len(values) > len(source):
                values = rearrange(values, "(set row) ... -> set row ...", row=len(source))
            for weight, features in parts:
                if weight.shape[dim + 1] > 1:
                    weight = weight.narrow(dim + 1, start - first, stop - start)
                share = (weight * acts).to(activation.device, dtype)
                mixed = _interpolate(mixed, values, share, features, 1 + len(kind.axes))
            mixed = rearrange(mixed, "set row ... -> (set row) ...").to(activation.dtype)
            if mixed.shape == activation.shape:
                return mixed
            changed = activation.clone()
            changed[where] = mixed
            return changed

        return _mixing_hooks(name, mix, rows)


def constant_hooks(
    registry: ComponentRegistry, constants: Constants, mask: Float[Tensor, " component"]
) -> list[Hook]:
    """Hooks that put constants in at every token of any pass, also with a cache of keys.

    Entries of the mask may lie beyond 1, which goes past the constants.
    """

    def mix(
        activation: Tensor, hook: Any = None, *, name: str, sites: list[Site], rows: Any
    ) -> Tensor:
        kind = sites[0].kind
        n_tokens = activation.shape[kind.position_dim]
        if rows is None:
            values = constants.activation(name, kind, 0, n_tokens)[None]
        else:
            values = rows(n_tokens, slice(None), slice(None))
        dtype = torch.promote_types(activation.dtype, torch.float32)
        mixed, values = activation.to(dtype), values.to(activation.device, dtype)
        for site in sites:
            share = mask_shares(site, mask, activation.ndim, None)[0].to(mixed)
            mixed = torch.lerp(mixed, values.expand_as(mixed), share.expand_as(mixed))
        return mixed.to(activation.dtype)

    hooks = []
    for name, kind in registry.kinds_by_hook.items():
        acting = [site for site in registry.sites if name in site.hook_names]
        rows = SeenRows.for_hook(constants, name, kind)
        hooks += _mixing_hooks(name, partial(mix, name=name, sites=acting, rows=rows), rows)
    return hooks


def _mixing_hooks(name: str, mix: Callable[..., Tensor], rows: SeenRows | None) -> list[Hook]:
    """The hook that mixes values, after the hook that it depends on."""

    def mix_in_place(activation: Tensor, hook: Any = None) -> Tensor:
        # The model goes on with this very tensor, and the norm with what is returned.
        return activation.copy_(mix(activation.clone()))

    mixing = mix_in_place if name.endswith(STREAM_PASSES_BY) else mix
    return [(name, mixing)] if rows is None else [rows.recording_hook, (name, mixing)]


@dataclass(frozen=True, eq=False)
class SeenRows:
    """Constant rows of attention over the keys that each query of a pass sees.

    The scores that the softmax reads say which keys these are: a weight of 0 may be rounded.
    """

    constants: Constants
    name: str
    _seen: list[Tensor] = field(default_factory=list)

    @classmethod
    def for_hook(cls, constants: Constants | None, name: str, kind: Kind) -> SeenRows | None:
        """The rows of a hook point; None if it has no rows to cut."""
        if constants is None or not kind.is_attention_pattern or not constants.values[name].any():
            return None
        return cls(constants, name)

    @property
    def recording_hook(self) -> Hook:
        """A hook that reads which keys each query sees from the scores."""

        def look(scores: Tensor, hook: Any = None) -> Tensor:
            # Some models scale the smallest number of their type, which masks a key.
            self._seen[:] = [scores.detach() > max(torch.finfo(scores.dtype).min / 2, _MASKED)]
            return scores

        return scores_hook(self.name), look

    def __call__(
        self, n_queries: int, queries: slice, keys: slice, is_patched: Tensor | None = None
    ) -> Float[Tensor, "row head query key"]:
        """Rows of some queries of a pass of `n_queries` tokens, over some keys of the pattern."""
        if not self._seen:
            raise SourceError(
                f"The attention scores before {self.name} were not seen, so it is unknown which "
                "keys a query sees. Use source='zero', or head-outputs."
            )
        seen, running = self._seen.pop(), running_pass(n_queries)
        at = running.key_positions(n_queries, seen.shape[-1])[:, keys].to(seen.device)
        seen = seen[:, :, queries, keys]
        rows = self.constants.rows(self.name, seen, at)
        n_known = self.constants.values[self.name].shape[-1]
        last = running.n_before + (n_queries if queries.stop is None else queries.stop)
        if last > n_known:
            lost = seen.any(-1) & (rows == 0).all(-1)
            if is_patched is not None:
                lost = lost.unflatten(0, (-1, len(is_patched))) & is_patched[..., 0].to(lost.device)
            if lost.any():
                raise SourceError(
                    f"The mean rows of {self.name} are over {n_known} keys, and a query of this "
                    f"text of {last} tokens sees only later ones, which have no mean. Take a mean "
                    "over longer prompts (tk.Mean), shorten the text, or use head-outputs."
                )
        return rows


def _interpolate(
    clean: Tensor, counterfactual: Tensor, share: Tensor, features: FeatureMap | None, n_axes: int
) -> Tensor:
    """Values between the clean and the counterfactual ones, with the axis of the set first."""
    if features is None:
        return torch.lerp(clean, counterfactual, share)
    # Features read float32, whatever the model runs in, and may return another type.
    with torch.autocast(clean.device.type, enabled=False):
        own = encode_features(features, clean.float(), n_axes)
        other = encode_features(features, counterfactual.float(), n_axes - 1)[None]
        # Features have no axis of the heads.
        share = share.flatten(own.ndim - 1)
        dtype = torch.promote_types(own.dtype, torch.float32)
        mixed = torch.lerp(own.to(dtype), other.to(dtype), share.to(dtype)).to(own.dtype)
        # What the features do not reconstruct stays as it is.
        changed, same = (decode_features(features, each, clean).float() for each in (mixed, own))
        return clean + (changed - same)


def mask_shares(
    site: Site, mask: Tensor, ndim: int, span_numbers: Int[Tensor, "row pos"] | None
) -> Float[Tensor, ...]:
    """Mask entries of a site, shaped `set row *axes` to broadcast against its activation."""
    kind, entries = site.kind, mask_entries(site, mask)
    while entries.ndim < 4:
        # One mask for all sets, or for all rows.
        entries = entries[None] if entries.ndim == 2 else entries[:, None]
    if site.spans:
        assert span_numbers is not None
        # Each position takes the entry of its span. Picked, not multiplied: products may be rounded
        # where masks are learned.
        numbers = span_numbers.to(entries.device)[None, :, None]
        index = numbers.clamp(min=0).expand(len(entries), -1, site.width, -1)
        entries = entries.expand(-1, len(span_numbers), -1, -1).gather(3, index)
        entries = entries.masked_fill(numbers < 0, 0.0)
    # One further than in the activation: the axis of the set comes first.
    shape = [1] * (ndim + 1)
    shape[0], shape[1], _, shape[kind.position_dim + 1] = entries.shape
    if kind.component_dim is not None:
        shape[kind.component_dim + 1] = site.width
        if kind.component_dim > kind.position_dim:
            entries = entries.transpose(2, 3)
    return entries.reshape(shape)


def mask_entries(site: Site, mask: Tensor) -> Float[Tensor, "*axes index span"]:
    """Mask entries of a site, 0 for components of its layer that are not in the registry."""
    entries = mask[..., site.start : site.stop].unflatten(-1, (-1, site.n_spans))
    if site.complete:
        return entries
    whole = entries.new_zeros(*entries.shape[:-2], site.width, site.n_spans)
    return whole.index_copy(-2, _numbers_on_device(site.indices, entries.device), entries)


@lru_cache(maxsize=1024)
def _numbers_on_device(numbers: Sequence[int], device: torch.device) -> Int[Tensor, " number"]:
    """Numbers on a device, copied there once."""
    return to_device(torch.tensor(numbers), device)
