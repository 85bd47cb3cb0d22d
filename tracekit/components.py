"""Components and where they live: (layer, head | neuron | block) <-> flat index <-> hook point.

A *kind* says which activation a component is a part of, and everything else that is known of such
components. A *site* is one kind in one layer: one hook point and the components that are parts of
its activation. A registry is a tuple of sites; the flat index of a component is its position when
the sites are laid end to end, kind by kind, layer by layer. Every mask in the package is a vector
over that flat index, and 1 always means: take the counterfactual value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from tracekit._options import shortened, whole_numbers
from tracekit.errors import ComponentError, UnknownKindError

ComponentSet = tuple[int, ...]
"""Some components, as ascending flat indices."""

Axis = Literal["batch", "pos", "query", "key", "component", "d_head", "d_model"]
"""What an axis of an activation stands for."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of component. A new kind is one entry in `KINDS`."""

    name: str
    """What users write, e.g. `head-outputs`."""
    hook: str
    """Hook point within a block, as TransformerLens names it."""
    axes: tuple[Axis, ...]
    """Axes of the activation. Without an axis `component` the whole activation is one component."""
    width: str | None
    """Attribute of `ModelShape` that says how many components a layer has; None: one."""
    label: str
    """Format of a component's printed name."""
    noun: str
    """What one component is called on the axis of a figure."""
    meaning: str
    """What one component is, in a phrase."""
    learning_rate: float
    """Adam's step when a mask over this kind alone is learned (paper, experimental setup)."""
    instead: str
    """What to use where this kind cannot be intervened on."""

    @property
    def component_dim(self) -> int | None:
        """Axis of the activation that indexes the components; None if it is one component."""
        return self.axes.index("component") if "component" in self.axes else None

    @property
    def position_dim(self) -> int:
        """Axis of the position; for attention patterns of the query."""
        return self.axes.index("query" if "query" in self.axes else "pos")

    @property
    def key_dim(self) -> int | None:
        """Axis of the position attended to; None if there is none."""
        return self.axes.index("key") if "key" in self.axes else None

    def expected_shape(
        self, *, rows: int, length: int, n_components: int, d_model: int
    ) -> tuple[int | None, ...]:
        """Shape of the activation on a batch; None where any size will do.

        Args:
            rows: Sequences in the batch.
            length: Tokens in each.
            n_components: Components of this kind in the layer.
            d_model: Width of the residual stream.
        """
        sizes: dict[str, int | None] = {
            "batch": rows,
            **dict.fromkeys(("pos", "query", "key"), length),
            "component": n_components,
            "d_model": d_model,
            "d_head": None,
        }
        return tuple(sizes[axis] for axis in self.axes)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="attention-patterns",
            hook="attn.hook_pattern",
            axes=("batch", "component", "query", "key"),
            width="n_heads",
            label="L{layer}H{index}",
            noun="head",
            meaning="a head's attention weights over the prompt",
            learning_rate=0.1,
            instead="head-outputs",
        ),
        Kind(
            name="head-outputs",
            hook="attn.hook_z",
            axes=("batch", "pos", "component", "d_head"),
            width="n_heads",
            label="L{layer}H{index}",
            noun="head",
            meaning="a head's output before the output projection",
            learning_rate=0.1,
            instead="mlp-blocks",
        ),
        Kind(
            name="mlp-outputs",
            hook="hook_mlp_out",
            axes=("batch", "pos", "component"),
            width="d_model",
            label="L{layer}O{index}",
            noun="coordinate of the MLP output",
            meaning="one coordinate of what the MLP adds to the residual stream",
            learning_rate=0.5,
            instead="mlp-neurons",
        ),
        Kind(
            name="mlp-neurons",
            hook="mlp.hook_post",
            axes=("batch", "pos", "component"),
            width="d_mlp",
            label="L{layer}N{index}",
            noun="neuron",
            meaning="one hidden unit of the MLP, after the activation function",
            learning_rate=0.5,
            instead="mlp-outputs or mlp-blocks",
        ),
        Kind(
            name="mlp-blocks",
            hook="hook_mlp_out",
            axes=("batch", "pos", "d_model"),
            width=None,
            label="MLP{layer}",
            noun="MLP block",
            meaning="all that an MLP layer adds to the residual stream",
            learning_rate=0.01,
            instead="mlp-neurons",
        ),
    )
}

_READINGS = {
    "heads": (
        "'heads' has two readings: 'attention-patterns' (attention weights, which the paper calls "
        "heads) and 'head-outputs' (what a head writes, before the output projection)."
    ),
    "neurons": (
        "'neurons' has two readings: 'mlp-neurons' (hidden units of the MLP) and 'mlp-outputs' "
        "(coordinates of the MLP output, which the paper calls neurons)."
    ),
}
"""Names that mean one thing in the paper and another in the field."""


def kind_of(name: str) -> Kind:
    """A kind by name.

    Raises:
        UnknownKindError: There is none of that name, or the name has two readings.
    """
    if name not in KINDS:
        raise UnknownKindError(name, KINDS, hint=_READINGS.get(name))
    return KINDS[name]


class ModelShape(Protocol):
    """The sizes a registry needs; a TransformerLens configuration has them."""

    n_layers: int
    n_heads: int
    d_model: int


@dataclass(frozen=True, order=True)
class Component:
    """One component; prints as `L5H3`, `L5O1024`, `L5N7` or `MLP5`."""

    kind: str
    layer: int
    index: int = 0

    def __str__(self) -> str:
        return kind_of(self.kind).label.format(layer=self.layer, index=self.index)


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
        kinds: str | Sequence[str] = "attention-patterns",
        *,
        layers: Sequence[int] | None = None,
        indices: Sequence[int] | Mapping[int, Sequence[int]] | None = None,
    ) -> ComponentRegistry:
        """Lists the components of `kinds` in a model.

        Args:
            shape: Sizes of the model: anything with `n_layers`, `n_heads`, `d_model` and (for
                `mlp-neurons`) `d_mlp`, such as a TransformerLens configuration.
            kinds: One kind, several, or several joined by `+`.
            layers: Layers to use; negative ones count from the end. All by default.
            indices: Head, neuron or unit numbers to use in every layer, or a mapping from
                layer to numbers. All by default. `mlp-blocks` have none and are kept whole.

        Raises:
            UnknownKindError: A kind of another name.
            ComponentError: A layer or index outside the model, or nothing left.
        """
        if not isinstance(kinds, (str, Sequence)) or not all(isinstance(k, str) for k in kinds):
            raise ComponentError(
                f"The components are {shortened(kinds)}. Name a kind, several joined by +, or give "
                "a list of kinds or a registry."
            )
        names = kinds.split("+") if isinstance(kinds, str) else list(kinds)
        names = [name.strip() for name in names]
        for name in names:
            kind_of(name)
        if len(set(names)) != len(names):
            raise ComponentError(f"A kind is named twice in {names}. Name each kind once.")
        in_layers = _check_layers(layers, shape.n_layers)
        if isinstance(indices, Mapping):
            indices = _check_keys(indices, in_layers, shape.n_layers)
        sites: list[Site] = []
        start = 0
        for name in names:
            kind = KINDS[name]
            width = 1 if kind.width is None else int(getattr(shape, kind.width))
            for layer in in_layers:
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
                # Of a partial site, the flat index counts the components that are in the registry.
                rank = bisect_right(site.indices, value.index) - 1
                if rank >= 0 and site.indices[rank] == value.index:
                    return site.start + rank
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

    @cached_property
    def grid_shape(self) -> tuple[int, int] | None:
        """Layers and components per layer, where one kind is studied whole in each; else None."""
        widths = {site.width for site in self.sites if site.complete}
        is_grid = len(self.kinds) == 1 and len(widths) == 1 and all(s.complete for s in self.sites)
        return (len(self.sites), widths.pop()) if is_grid else None

    def label(self, flat: int) -> str:
        """Printed name of a component; names its kind where two kinds would print alike."""
        component = self[flat]
        formats = [KINDS[kind].label for kind in self.kinds]
        is_ambiguous = formats.count(KINDS[component.kind].label) > 1
        return f"{component} ({component.kind})" if is_ambiguous else str(component)

    def describe(self) -> str:
        """The registry in one phrase, e.g. `72 attention-patterns in layers 0-5`."""
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
    def from_spec(
        cls, spec: Sequence[Mapping[str, Any]], n_components: int | None = None
    ) -> ComponentRegistry:
        """Rebuilds a registry from `spec()`.

        Args:
            spec: The description.
            n_components: How many components it should have, where that is known.

        Raises:
            ComponentError: It has another number of components.
        """
        sizes = [e["width"] if e["indices"] is None else len(e["indices"]) for e in spec]
        # Before the components are listed: a damaged description may speak of billions.
        if n_components is not None and sum(sizes) != n_components:
            raise ComponentError(
                f"The description is of {sum(sizes)} components, and not of {n_components}."
            )
        sites: list[Site] = []
        start = 0
        for entry in spec:
            listed = entry["indices"]
            indices = tuple(range(entry["width"])) if listed is None else tuple(listed)
            sites.append(
                Site(kind_of(entry["kind"]), entry["layer"], entry["width"], indices, start)
            )
            start = sites[-1].stop
        return cls(tuple(sites))


def _check_layers(layers: Sequence[int] | None, n_layers: int) -> list[int]:
    if layers is None:
        return list(range(n_layers))
    numbers = whole_numbers(layers)
    if numbers is None:
        raise ComponentError(
            f"The layers are {shortened(layers)}. Give a list of whole numbers, e.g. [0, 3]."
        )
    in_layers = sorted({layer + n_layers if layer < 0 else layer for layer in numbers})
    if in_layers and not 0 <= in_layers[0] <= in_layers[-1] < n_layers:
        raise ComponentError(
            f"Layers {sorted(numbers)} are not all in the model. It has layers 0 to {n_layers - 1}."
        )
    return in_layers


def _check_keys(
    indices: Mapping[int, Sequence[int]], in_layers: Sequence[int], n_layers: int
) -> dict[int, Sequence[int]]:
    """Indices by layer, with negative layers counted from the end."""
    if whole_numbers(tuple(indices)) is None:
        raise ComponentError(
            f"The indices are for {shortened(list(indices))}. Give whole numbers: layers."
        )
    by_layer = {layer + n_layers if layer < 0 else layer: v for layer, v in indices.items()}
    unknown = sorted(set(by_layer) - set(in_layers))
    if unknown or len(by_layer) < len(indices):
        raise ComponentError(
            f"The layers {sorted(indices)} of the indices are not all among the chosen layers, or "
            f"name one twice. Use layers {_ranges(in_layers)}."
        )
    return by_layer


def _check_indices(
    kind: Kind, layer: int, width: int, indices: Sequence[int] | Mapping[int, Sequence[int]] | None
) -> tuple[int, ...]:
    if indices is None or kind.component_dim is None:
        return tuple(range(width))
    wanted = indices.get(layer, ()) if isinstance(indices, Mapping) else indices
    numbers = whole_numbers(wanted)
    if numbers is None:
        raise ComponentError(
            f"The indices are {shortened(wanted)}. Give a list of whole numbers, or one by layer."
        )
    picked = tuple(sorted(set(numbers)))
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
