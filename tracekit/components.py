"""Components and where they live: (layer, head | neuron | block) <-> flat index <-> hook point.

A *kind* says which activation a component is a part of. A *site* is one kind in one layer:
one hook point and the components that are parts of its activation. A registry is a tuple of
sites; the flat index of a component is its place when the sites are laid end to end, kind by
kind, layer by layer. Every mask in the package is a vector over that flat index, and 1 always
means: take the counterfactual value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from tracekit.errors import ComponentError, UnknownKindError


@dataclass(frozen=True)
class Kind:
    """One kind of component."""

    name: str
    """What users write, e.g. `heads`."""
    hook: str
    """Hook point within a block, as TransformerLens names it."""
    axis: int | None
    """Axis of the activation that indexes the components; None if the whole activation is one."""
    width: str | None
    """Attribute of `ModelShape` that says how many components a layer has; None for one."""
    label: str
    """Format of a component's printed name."""
    meaning: str
    """What one component is."""
    instead: str
    """What to use where this kind cannot be intervened on."""


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "heads",
            "attn.hook_pattern",
            1,
            "n_heads",
            "L{layer}H{index}",
            "a head's attention weights over the prompt",
            "head-outputs",
        ),
        Kind(
            "head-outputs",
            "attn.hook_z",
            2,
            "n_heads",
            "L{layer}H{index}",
            "a head's output before the output projection",
            "mlp-blocks",
        ),
        Kind(
            "neurons",
            "hook_mlp_out",
            2,
            "d_model",
            "L{layer}N{index}",
            "one coordinate of the MLP output, after the down-projection",
            "mlp-hidden",
        ),
        Kind(
            "mlp-hidden",
            "mlp.hook_post",
            2,
            "d_mlp",
            "L{layer}U{index}",
            "one hidden unit of the MLP, after the activation function",
            "neurons or mlp-blocks",
        ),
        Kind(
            "mlp-blocks",
            "hook_mlp_out",
            None,
            None,
            "MLP{layer}",
            "the output of a whole MLP layer",
            "mlp-hidden",
        ),
    )
}


class ModelShape(Protocol):
    """The sizes a registry needs; a TransformerLens configuration has them."""

    n_layers: int
    n_heads: int
    d_model: int


@dataclass(frozen=True, order=True)
class Component:
    """One component; prints as `L5H3`, `L5N1024`, `L5U7` or `MLP5`."""

    kind: str
    layer: int
    index: int = 0

    def __str__(self) -> str:
        return KINDS[self.kind].label.format(layer=self.layer, index=self.index)


@dataclass(frozen=True)
class Site:
    """The components of one kind in one layer."""

    kind: Kind
    layer: int
    width: int
    """Components of this kind that the layer has."""
    indices: tuple[int, ...]
    """Those that the registry contains, ascending."""
    start: int
    """Flat index of the first."""

    @property
    def stop(self) -> int:
        """One past the flat index of the last."""
        return self.start + len(self.indices)

    @property
    def hook_name(self) -> str:
        """Full name of the hook point."""
        return f"blocks.{self.layer}.{self.kind.hook}"

    @property
    def complete(self) -> bool:
        """Whether every component of the layer is in the registry."""
        return len(self.indices) == self.width


@dataclass(frozen=True)
class ComponentRegistry(Sequence[Component]):
    """The components under study, in flat order.

    Build one with `ComponentRegistry.build`. `registry[i]` is the i-th component,
    `registry.index(component)` its flat index, `registry.sites` the hook points.
    """

    sites: tuple[Site, ...]
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", tuple(site.start for site in self.sites))

    @classmethod
    def build(
        cls,
        shape: Any,
        kinds: str | Sequence[str] = "heads",
        *,
        layers: Sequence[int] | None = None,
        indices: Sequence[int] | Mapping[int, Sequence[int]] | None = None,
    ) -> ComponentRegistry:
        """Lists the components of `kinds` in a model.

        Args:
            shape: Sizes of the model: anything with `n_layers`, `n_heads`, `d_model` and (for
                `mlp-hidden`) `d_mlp`, such as a TransformerLens configuration.
            kinds: One kind, several, or several joined by `+`.
            layers: Layers to use; negative ones count from the end. All by default.
            indices: Head, neuron or unit numbers to use in every layer, or a mapping from
                layer to numbers. All by default. `mlp-blocks` have none and are kept whole.

        Raises:
            UnknownKindError: A kind of another name.
            ComponentError: A layer or index outside the model, or nothing left.
        """
        names = kinds.split("+") if isinstance(kinds, str) else list(kinds)
        names = [name.strip() for name in names]
        for name in names:
            if name not in KINDS:
                raise UnknownKindError(name, KINDS)
        if len(set(names)) != len(names):
            raise ComponentError(f"A kind is named twice in {names}. Name each kind once.")
        chosen = _check_layers(layers, shape.n_layers)
        if isinstance(indices, Mapping):
            indices = _check_keys(indices, chosen, shape.n_layers)
        sites: list[Site] = []
        start = 0
        for name in names:
            kind = KINDS[name]
            width = 1 if kind.width is None else int(getattr(shape, kind.width))
            for layer in chosen:
                picked = _check_indices(kind, layer, width, indices)
                if picked:
                    sites.append(Site(kind, layer, width, picked, start))
                    start = sites[-1].stop
        if not sites:
            raise ComponentError(
                "The selection contains no component. Name at least one layer and index."
            )
        return cls(tuple(sites))

    def __len__(self) -> int:
        return self.sites[-1].stop

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        flat = item + len(self) if item < 0 else item
        if not 0 <= flat < len(self):
            raise IndexError(f"Component {item} of {len(self)}. Use 0 to {len(self) - 1}.")
        site = self.sites[bisect_right(self._starts, flat) - 1]
        return Component(site.kind.name, site.layer, site.indices[flat - site.start])

    def __iter__(self) -> Iterator[Component]:
        for site in self.sites:
            for index in site.indices:
                yield Component(site.kind.name, site.layer, index)

    def index(self, value: Component) -> int:  # type: ignore[override]
        """Flat index of a component.

        Raises:
            ComponentError: The registry does not contain it.
        """
        for site in self.sites:
            if site.kind.name == value.kind and site.layer == value.layer:
                place = bisect_right(site.indices, value.index) - 1
                if place >= 0 and site.indices[place] == value.index:
                    return site.start + place
        raise ComponentError(
            f"{value} ({value.kind}) is not among the {len(self)} components of this registry. "
            f"It contains {self.describe()}."
        )

    def whole_sites(self) -> ComponentRegistry:
        """The same hook points with all of their components."""
        return self.from_spec([{**entry, "indices": None} for entry in self.spec()])

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds, in flat order."""
        return tuple(dict.fromkeys(site.kind.name for site in self.sites))

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers that have at least one component, ascending."""
        return tuple(sorted({site.layer for site in self.sites}))

    @cached_property
    def hook_names(self) -> tuple[str, ...]:
        """Hook points, each once, in the order of the sites."""
        return tuple(dict.fromkeys(site.hook_name for site in self.sites))

    def label(self, flat: int) -> str:
        """Printed name of a component; names its kind where two kinds would print alike."""
        component = self[flat]
        ambiguous = {"heads", "head-outputs"} <= set(self.kinds)
        suffix = f" ({component.kind})" if ambiguous and "H" in str(component) else ""
        return f"{component}{suffix}"

    def describe(self) -> str:
        """The registry in one phrase, e.g. `72 heads in layers 0-5`."""
        parts = []
        for kind in self.kinds:
            sites = [site for site in self.sites if site.kind.name == kind]
            count = sum(len(site.indices) for site in sites)
            parts.append(f"{count} {kind} in layers {_ranges([site.layer for site in sites])}")
        return ", ".join(parts)

    def spec(self) -> list[dict[str, Any]]:
        """A JSON-ready description from which `from_spec` rebuilds the registry."""
        return [
            {
                "kind": site.kind.name,
                "layer": site.layer,
                "width": site.width,
                "indices": None if site.complete else list(site.indices),
            }
            for site in self.sites
        ]

    @classmethod
    def from_spec(cls, spec: Sequence[Mapping[str, Any]]) -> ComponentRegistry:
        """Rebuilds a registry from `spec()`."""
        sites: list[Site] = []
        start = 0
        for entry in spec:
            given = entry["indices"]
            indices = tuple(range(entry["width"])) if given is None else tuple(given)
            sites.append(Site(KINDS[entry["kind"]], entry["layer"], entry["width"], indices, start))
            start = sites[-1].stop
        return cls(tuple(sites))


def _check_layers(layers: Sequence[int] | None, n_layers: int) -> list[int]:
    if layers is None:
        return list(range(n_layers))
    chosen = sorted({layer + n_layers if layer < 0 else layer for layer in layers})
    if chosen and not 0 <= chosen[0] <= chosen[-1] < n_layers:
        raise ComponentError(
            f"Layers {sorted(layers)} are not all in the model. It has layers 0 to {n_layers - 1}."
        )
    return chosen


def _check_keys(
    indices: Mapping[int, Sequence[int]], chosen: Sequence[int], n_layers: int
) -> dict[int, Sequence[int]]:
    """Indices by layer, with negative layers counted from the end."""
    by_layer = {layer + n_layers if layer < 0 else layer: v for layer, v in indices.items()}
    unknown = sorted(set(by_layer) - set(chosen))
    if unknown or len(by_layer) < len(indices):
        raise ComponentError(
            f"The layers {sorted(indices)} of the indices are not all among the chosen layers, or "
            f"name one twice. Use layers {_ranges(chosen)}."
        )
    return by_layer


def _check_indices(
    kind: Kind, layer: int, width: int, indices: Sequence[int] | Mapping[int, Sequence[int]] | None
) -> tuple[int, ...]:
    if indices is None or kind.axis is None:
        return tuple(range(width))
    wanted = indices.get(layer, ()) if isinstance(indices, Mapping) else indices
    picked = tuple(sorted(set(wanted)))
    if picked and not 0 <= picked[0] <= picked[-1] < width:
        raise ComponentError(
            f"Indices {list(picked)} are not all {kind.name} of layer {layer}. "
            f"Use 0 to {width - 1}."
        )
    return picked


def _ranges(layers: Sequence[int]) -> str:
    """`[0, 1, 2, 5]` as `0-2, 5`."""
    parts: list[list[int]] = []
    for layer in sorted(layers):
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
