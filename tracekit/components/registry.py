"""Components: (layer, head | neuron | block) <-> flat index <-> hook point.

A *kind* says which activation a component is a part of. A *site* is one kind in one layer: one hook
point and the components that are parts of its activation. A registry numbers the components of its
sites kind by kind and layer by layer; this number is the *flat index*. Every mask in the package is
a vector over the flat index, and 1 means: take the counterfactual value.

If prompts are split into *spans*, a component is (layer, index, span), and takes its counterfactual
value only at the positions of its span. With a *layer window* it acts in several layers at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

from typing_extensions import NotRequired, TypedDict

from tracekit._util.markup import clean_text
from tracekit._util.names import KindName
from tracekit._util.options import as_ints, is_int, short_repr
from tracekit.components.edges import (
    EDGE_KINDS,
    EMBEDDING,
    LOGITS,
    EdgeGraph,
    EdgesBy,
    EdgeSpec,
    activations_read,
)
from tracekit.components.kinds import KINDS, Kind, KindSpec, kind_of, register_kind
from tracekit.errors import ComponentError, near_miss

ComponentSet = tuple[int, ...]
"""Some components, as ascending flat indices."""


@dataclass(frozen=True, order=True)
class Component:
    """One component; printed as `L5H3`, `L5O1024`, `L5N7`, `MLP5` or, at a span, `R5@subject`."""

    kind: str
    layer: int
    index: int = 0
    span: str = ""
    """Part of the prompt at which it acts; empty: all positions that are intervened on."""
    ends: str = ""
    """Sender and receiver of an edge, e.g. `L5H3>L7Q2`; empty for other components."""

    def __str__(self) -> str:
        label = self.ends or kind_of(self.kind).label.format(layer=self.layer, index=self.index)
        return f"{label}@{self.span}" if self.span else label


class SiteSpec(TypedDict):
    """A site in values of JSON."""

    kind: str
    layer: int
    width: int
    indices: list[int] | None
    """None: all of them."""
    spans: list[str]
    acts_in: list[int]
    definition: KindSpec | None
    """None for built-in kinds."""
    edges: NotRequired[EdgeSpec]


_MAX_SIZE, _MAX_HEADS = 2**31, 2**16
"""Bounds on layers and widths in a description of a registry; on layers and heads of edges."""


@dataclass(frozen=True)
class Site:
    """The components of one kind in one layer."""

    kind: Kind
    layer: int
    width: int
    """Number of components of this kind in the layer."""
    indices: Sequence[int]
    """Indices of the components that the registry contains, ascending."""
    spans: tuple[str, ...] = ()
    """Spans of the prompt that are components of their own; empty: none."""
    acts_in: tuple[int, ...] = ()
    """Layers of the window in which the components act; empty: `layer` only."""
    edges: EdgeGraph | None = None
    """Senders and receivers, if the components are the edges into the layer."""
    start: int = 0
    """Flat index of the first component; set by the registry."""

    def __post_init__(self) -> None:
        if len(self.indices) == self.width:
            # A range takes no memory, however large the width.
            object.__setattr__(self, "indices", range(self.width))

    @cached_property
    def stop(self) -> int:
        """One past the flat index of the last component."""
        return self.start + len(self.indices) * self.n_spans

    @cached_property
    def n_spans(self) -> int:
        """Number of components for each index."""
        return max(1, len(self.spans))

    @property
    def hook_name(self) -> str:
        """Full name of the hook point in the layer itself."""
        return f"blocks.{self.layer}.{self.kind.hook}"

    @cached_property
    def reads(self) -> Mapping[str, Kind]:
        """Hook points whose counterfactual values the components take, and the kind at each."""
        if self.edges is not None:
            return activations_read(self.edges, self.layer)
        layers = self.acts_in or (self.layer,)
        return {f"blocks.{layer}.{self.kind.hook}": self.kind for layer in layers}

    @cached_property
    def hook_names(self) -> tuple[str, ...]:
        """Full names of the hook points of `reads`."""
        return tuple(self.reads)

    @property
    def complete(self) -> bool:
        """Whether every component of the layer is in the registry."""
        return len(self.indices) == self.width


MOST_COLUMNS = 64
"""Widest layer for which a grid has a column for every component, studied or not."""


@dataclass(frozen=True)
class ComponentGrid:
    """Layout of the components of one kind in figures and the explorer: a row per layer."""

    kind: str
    span: str
    """The span at which all of them act; empty if they act everywhere, or if columns are spans."""
    layers: tuple[int, ...]
    """Layer of each row."""
    indices: tuple[int, ...]
    """Index of the component in each column, or number of its span."""
    span_names: tuple[str, ...]
    """Name of the span in each column, where columns are spans."""
    cells: tuple[tuple[int | None, ...], ...]
    """Flat index of the component in each cell, by row; None if it is not in the registry."""


@dataclass(frozen=True, repr=False)
class ComponentRegistry(Sequence[Component]):
    """The components under study, in flat order.

    `ComponentRegistry.build` makes one. `registry[i]` is the component with flat index i,
    `registry["L5H3"]` the one with this label, and `registry.index` returns flat indices.
    """

    sites: tuple[Site, ...]

    def __post_init__(self) -> None:
        sites, start = [], 0
        for site in self.sites:
            sites.append(replace(site, start=start))
            start = sites[-1].stop
        object.__setattr__(self, "sites", tuple(sites))

    @classmethod
    def build(
        cls,
        shape: Any,
        kinds: str | Kind | Sequence[str | Kind] = "attention-patterns",
        *,
        layers: Sequence[int] | None = None,
        indices: Sequence[int] | Mapping[int, Sequence[int]] | None = None,
        spans: Sequence[str] = (),
        layer_window: int = 1,
    ) -> ComponentRegistry:
        """Lists the components of `kinds` in a model.

        Args:
            shape: Sizes of the model: anything with `n_layers`, `n_heads`, `d_model` and (for
                `mlp-neurons`) `d_mlp`, such as a TransformerLens configuration.
            kinds: One kind, several, or several joined by `+`; users' kinds as `Kind`.
            layers: Layers to use; negative ones count from the end. All by default.
            indices: Head, neuron or unit numbers to use in every layer, or by layer. All by
                default. `mlp-blocks` have none and are kept whole.
            spans: Spans of the prompt; each component is then one per span.
            layer_window: Consecutive layers around its own in which a component acts at once.

        Raises:
            UnknownNameError: There is no kind of this name.
            ComponentError: A layer, index or window outside the model, or nothing left.
        """
        chosen = _check_kinds(kinds)
        if any(kind.name in EDGE_KINDS for kind in chosen):
            if len(chosen) > 1 or indices is not None or layer_window != 1:
                raise ComponentError(
                    "Edges cannot be combined with other kinds, indices or layer_window. Select "
                    "some of them by layers, or by ComponentRegistry.of_edges."
                )
            return cls.of_edges(shape, EDGE_KINDS[chosen[0].name], layers=layers, spans=spans)
        if not is_int(layer_window) or not 1 <= layer_window <= shape.n_layers:
            raise ComponentError(
                f"layer_window is {short_repr(layer_window)}. Give a number of layers, 1 to "
                f"{shape.n_layers}."
            )
        in_layers = _check_layers(layers, shape.n_layers)
        if isinstance(indices, Mapping):
            indices = _check_keys(indices, in_layers, shape.n_layers)
        sites: list[Site] = []
        for kind in chosen:
            width = kind.width_in(shape)
            for layer in _check_features(kind, in_layers, layers, layer_window, shape.n_layers):
                picked = _check_indices(kind, layer, width, indices)
                if picked:
                    first = layer - layer_window // 2
                    window = range(max(0, first), min(shape.n_layers, first + layer_window))
                    acts_in = tuple(window) if layer_window > 1 else ()
                    sites.append(Site(kind, layer, width, picked, tuple(spans), acts_in))
        if not sites:
            raise ComponentError(
                "The selection contains no component. Name at least one layer and index."
            )
        return cls(tuple(sites))

    @classmethod
    def of_edges(
        cls,
        shape: Any,
        by: EdgesBy = "inputs",
        *,
        layers: Sequence[int] | None = None,
        senders: Sequence[str] | None = None,
        receivers: Sequence[str] | None = None,
        among: Any = None,
        spans: Sequence[str] = (),
    ) -> ComponentRegistry:
        """Lists the edges of a model, or those between some of its parts.

        Args:
            shape: As in `build`.
            by: How finely blocks are divided into senders and receivers: see `EdgeGraph`.
            layers: Layers in which both ends must lie; the embedding and the logits always may.
            senders: Labels of the senders, such as `E`, `L5H3`, `MLP2`. All by default.
            receivers: Labels of the receivers, such as `L7Q2`, `MLP5`, `logits`; `L7H2` stands for
                all receivers of the head.
            among: Nodes of a circuit, as labels or as a result of nodes or edges. Edges are then
                between these, from the embedding and to the logits, unless ends are given.
            spans: Spans of the prompt; each edge is then one per span.

        Raises:
            ComponentError: A layer, sender or receiver that is not in the model, or nothing left.
        """
        graph = EdgeGraph.of(shape, by)
        if among is not None:
            is_of_edges = getattr(getattr(among, "registry", None), "edges", None) is not None
            nodes = among.nodes if is_of_edges else getattr(among, "labels", among)
            senders = [EMBEDDING, *nodes] if senders is None else senders
            receivers = [*nodes, LOGITS] if receivers is None else receivers
        in_layers = None if layers is None else _check_layers(layers, graph.n_layers)
        kind = kind_of(next(name for name, each in EDGE_KINDS.items() if each == by))
        sites: list[Site] = []
        for layer in range(graph.n_layers + 1):
            picked = graph.select_edges(layer, in_layers, senders, receivers)
            if picked:
                width = graph.receivers[layer][-1].stop
                sites.append(Site(kind, layer, width, picked, tuple(spans), edges=graph))
        if not sites:
            raise ComponentError(
                "No sender lies before a receiver in this selection. Name senders of earlier "
                "layers than the receivers."
            )
        return cls(tuple(sites))

    def __repr__(self) -> str:
        return clean_text(f"ComponentRegistry({self.describe()})")

    def __len__(self) -> int:
        return self.sites[-1].stop

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        if isinstance(item, (str, tuple)):
            item = self.index(item)
        flat = int(item) + len(self) if item < 0 else int(item)
        if not 0 <= flat < len(self):
            raise IndexError(f"Component {item} of {len(self)}. Use 0 to {len(self) - 1}.")
        site = self.site_of(flat)
        rank, number = divmod(flat - site.start, site.n_spans)
        span = site.spans[number] if site.spans else ""
        index = site.indices[rank]
        ends = () if site.edges is None else site.edges.edge_ends_by_layer[site.layer][index]
        return Component(site.kind.name, site.layer, index, span, ">".join(ends))

    def index(self, value: Component | str | tuple[int, int]) -> int:  # type: ignore[override]
        """Flat index of a component: itself, its printed label, or its layer and index.

        Raises:
            ComponentError: It is not in the registry, or several components have this name.
        """
        if isinstance(value, Component):
            flats = self._flat_of(value.layer, value.index, value)
        elif isinstance(value, str):
            flats = self.flat_by_label.get(value, ())
        elif isinstance(value, tuple) and len(value) == 2 and all(map(is_int, value)):
            flats = self._flat_of(*value)
        else:
            flats = ()
        if len(flats) == 1:
            return flats[0]
        if flats:
            raise ComponentError(
                f"{value!r} names {len(flats)} components. Give one of their labels: "
                f"{', '.join(repr(self.label(i)) for i in flats[:6])}."
            )
        name = f"{value} ({value.kind})" if isinstance(value, Component) else short_repr(value)
        guess = ""
        if isinstance(value, (str, Component)):
            labels = self.flat_by_label
            guess = near_miss(value, labels) or near_miss(str(value).upper(), labels)
        raise ComponentError(
            f"{name} is not among the {len(self)} components of this registry. "
            f"{guess + ' ' if guess else ''}It contains {self.describe()}."
        )

    def _flat_of(self, layer: int, index: int, component: Component | None = None) -> list[int]:
        """Flat indices at a layer and index; only the one of `component` if that is given."""
        flats = []
        for site in self.sites:
            # The flat index counts only the indices that are in the registry.
            rank = bisect_right(site.indices, index) - 1
            if site.layer == layer and rank >= 0 and site.indices[rank] == index:
                first = site.start + rank * site.n_spans
                flats += range(first, first + site.n_spans)
        return flats if component is None else [i for i in flats if self[i] == component]

    @cached_property
    def flat_by_label(self) -> dict[str, list[int]]:
        """Flat indices by printed label; components of two kinds may have the same label."""
        flat: dict[str, list[int]] = {}
        for number, component in enumerate(self):
            for label in dict.fromkeys((str(component), self.label(number))):
                flat.setdefault(label, []).append(number)
        return flat

    def check_same(self, components: Iterable[Component], of: ComponentRegistry) -> None:
        """Refuses components of the registry `of` that are not here, or have another meaning."""
        for component in components:
            site, other = self.site_of(self.index(component)), of.site_of(of.index(component))
            if site.kind != other.kind:
                raise ComponentError(
                    f"{component} is of another kind {component.kind!r} there: "
                    f"{_difference(site.kind, other.kind)}. Trace with the same definition."
                )
            here, there = site.acts_in, other.acts_in
            if here != there:
                raise ComponentError(
                    f"{component} acts in layers {ranges(there or (component.layer,))} in the "
                    f"registry that it is from, and in layers {ranges(here or (component.layer,))} "
                    "in this one. Give both the same layer_window."
                )

    def site_of(self, flat: int) -> Site:
        """The site that contains a flat index."""
        return self.sites[bisect_right(self.sites, flat, key=attrgetter("start")) - 1]

    def whole_sites(self) -> ComponentRegistry:
        """The same hook points with all of their components, at all positions."""
        if self.edges is not None:
            return self.of_edges(self.edges, self.edges.by)
        # Windows overlap, but every layer is needed only once.
        sites = dict.fromkeys(
            Site(site.kind, layer, site.width, range(site.width))
            for site in self.sites
            for layer in site.acts_in or (site.layer,)
        )
        return ComponentRegistry(tuple(sites))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds, in flat order."""
        return tuple(dict.fromkeys(site.kind.name for site in self.sites))

    @cached_property
    def spans(self) -> tuple[str, ...]:
        """Spans of the prompt that are components of their own; empty: none."""
        return self.sites[0].spans

    @cached_property
    def has_windows(self) -> bool:
        """Whether a component acts in several layers."""
        return any(len(site.hook_names) > 1 for site in self.sites)

    @property
    def windows(self) -> str:
        """The size of the layer windows in words; empty if components act in one layer."""
        window = max((len(site.acts_in) for site in self.sites), default=1)
        return f" in windows of {window} layers" if window > 1 else ""

    @property
    def edges(self) -> EdgeGraph | None:
        """Senders and receivers, if the components are edges."""
        return self.sites[0].edges

    @property
    def has_all_edges(self) -> bool:
        """Whether the components are all edges of the model."""
        n_layers = len(self.edges.receivers) if self.edges is not None else 0
        return 0 < len(self.sites) == n_layers and all(site.complete for site in self.sites)

    @cached_property
    def kinds_by_hook(self) -> dict[str, Kind]:
        """Hook points in the order of the sites, and a kind at each."""
        return {name: kind for site in self.sites for name, kind in site.reads.items()}

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers that have at least one component, ascending."""
        return tuple(sorted({site.layer for site in self.sites}))

    @cached_property
    def hook_names(self) -> tuple[str, ...]:
        """Hook points, each once, in the order of the sites."""
        return tuple(self.kinds_by_hook)

    @cached_property
    def grid_shape(self) -> tuple[int, int] | None:
        """Number of layers and of components per layer, if the registry has one complete kind."""
        widths = {site.width * site.n_spans for site in self.sites if site.complete}
        is_grid = len(self.kinds) == 1 and len(widths) == 1 and all(s.complete for s in self.sites)
        return (len(self.sites), widths.pop()) if is_grid else None

    @cached_property
    def grids(self) -> tuple[ComponentGrid, ...]:
        """A grid per kind, or per kind and span; spans are columns where layers have one index."""
        grids = []
        for kind in self.kinds:
            sites = [site for site in self.sites if site.kind.name == kind]
            if self.spans and all(site.width == 1 for site in sites):
                layers = tuple(site.layer for site in sites)
                numbers = tuple(range(len(self.spans)))
                cells = tuple(tuple(range(site.start, site.stop)) for site in sites)
                grids.append(ComponentGrid(kind, "", layers, numbers, self.spans, cells))
            else:
                for number, span in enumerate(self.spans or ("",)):
                    grids.append(_grid(kind, span, sites, number))
        return tuple(grids)

    def label(self, flat: int) -> str:
        """Printed name of a component, with its kind if another kind has the same label format."""
        component = self[flat]
        formats = [kind_of(kind).label for kind in self.kinds]
        is_ambiguous = formats.count(kind_of(component.kind).label) > 1
        return f"{component} ({component.kind})" if is_ambiguous else str(component)

    def describe(self) -> str:
        """The registry in one phrase, e.g. `72 attention-patterns in layers 0-5`."""
        parts = []
        for kind in self.kinds:
            sites = [site for site in self.sites if site.kind.name == kind]
            count = sum(len(site.indices) for site in sites)
            layers = [site.layer for site in sites]
            where = f"in layers {ranges(layers)}"
            if self.edges is not None:
                within = [layer for layer in layers if layer < self.edges.n_layers]
                into = [f"layers {ranges(within)}"] if within else []
                if within != layers:
                    into.append("the logits")
                where = f"into {' and '.join(into)}"
            parts.append(f"{count} {kind} {where}")
        more = ", ..." if len(self.spans) > 4 else ""
        by = f" by span ({', '.join(self.spans[:4])}{more})" if self.spans else ""
        return ", ".join(parts) + by + self.windows

    Spec: ClassVar[Any] = list[SiteSpec]
    """Type of `spec()`."""

    def spec(self) -> list[SiteSpec]:
        """A description in JSON values, from which `from_spec` rebuilds the registry."""
        specs: list[SiteSpec] = []
        for site in self.sites:
            spec: SiteSpec = {
                "kind": site.kind.name,
                "layer": site.layer,
                "width": site.width,
                "indices": None if site.complete else list(site.indices),
                "spans": list(site.spans),
                "acts_in": list(site.acts_in),
                "definition": None if site.kind.name in KINDS else site.kind.definition(),
            }
            if site.edges is not None:
                spec["edges"] = EdgeSpec(**asdict(site.edges))
            specs.append(spec)
        return specs

    @classmethod
    def from_spec(cls, spec: Sequence[SiteSpec]) -> ComponentRegistry:
        """The registry of a `spec()`; refuses impossible numbers and unknown kinds."""
        sites: list[Site] = []
        for entry in spec:
            layer, width, listed = entry["layer"], entry["width"], entry["indices"]
            acts_in, spans = tuple(entry["acts_in"]), tuple(entry["spans"])
            indices: Sequence[int] = range(width) if listed is None else tuple(listed)
            is_valid = listed is None or listed == sorted(set(listed))
            first, last = (indices[0], indices[-1]) if indices else (-1, -1)
            is_valid = is_valid and first >= 0 and last < width < _MAX_SIZE
            is_valid = is_valid and all(0 <= each < _MAX_SIZE for each in (layer, *acts_in))
            if not is_valid or len(set(spans)) < len(spans):
                raise ComponentError(
                    f"The description {short_repr(entry)} is invalid. Give a layer, its width, and "
                    "ascending indices below the width."
                )
            if entry["definition"] is not None:
                register_kind(Kind.from_definition(entry["definition"]))
            kind = kind_of(entry["kind"])
            edges = EdgeGraph(**entry["edges"]) if "edges" in entry else None
            _check_edges(kind, layer, width, edges, sites)
            sites.append(Site(kind, layer, width, indices, spans, acts_in, edges))
        if not sites or len({(s.kind.name, s.layer) for s in sites}) < len(sites):
            raise ComponentError(
                "The description has no components, or one layer of a kind twice. List each once."
            )
        return cls(tuple(sites))


def _check_edges(
    kind: Kind, layer: int, width: int, edges: EdgeGraph | None, before: Sequence[Site]
) -> None:
    is_valid = EDGE_KINDS.get(kind.name) == (None if edges is None else edges.by)
    if edges is not None and is_valid:
        sizes = edges.n_layers, edges.n_heads, edges.n_key_value_heads
        is_valid = layer <= edges.n_layers and all(0 < each < _MAX_HEADS for each in sizes)
        is_valid = is_valid and edges.receivers[layer][-1].stop == width
    if not is_valid or (before and before[0].edges != edges):
        raise ComponentError(
            f"The description has {width} {kind.name} in layer {layer}, which does not agree with "
            "its senders and receivers. Describe the edges of one model."
        )


def _difference(here: Kind, there: Kind) -> str:
    """The first field in which two definitions of a kind differ, in words."""
    mine, other = here.definition(), there.definition()
    name = next(name for name in mine if mine[name] != other[name])
    if name == "features_digest":
        return "its features have other weights"
    return f"its {name} is {other[name]!r} there and {mine[name]!r} here"


def _grid(kind: str, span: str, sites: Sequence[Site], number: int) -> ComponentGrid:
    width = max(site.width for site in sites)
    columns = range(width)
    if width > MOST_COLUMNS:
        columns = sorted({index for site in sites for index in site.indices})
    cells = []
    for site in sites:
        flats = range(site.start + number, site.stop, site.n_spans)
        flat_of_index = dict(zip(site.indices, flats, strict=True))
        cells.append(tuple(flat_of_index.get(index) for index in columns))
    layers = tuple(site.layer for site in sites)
    return ComponentGrid(kind, span, layers, tuple(columns), (), tuple(cells))


def _check_kinds(kinds: Any) -> list[Kind]:
    given = [kinds] if isinstance(kinds, Kind) else kinds
    given = given.split("+") if isinstance(given, str) else given
    if not isinstance(given, Sequence) or not all(isinstance(k, (str, Kind)) for k in given):
        raise ComponentError(
            f"The components are {short_repr(kinds)}. Name a kind, several joined by +, or give "
            "a list of kinds or a registry."
        )
    chosen = [register_kind(k) if isinstance(k, Kind) else kind_of(k.strip()) for k in given]
    names = [kind.name for kind in chosen]
    if len(set(names)) != len(names):
        raise ComponentError(f"A kind is named twice in {names}. Name each kind once.")
    return chosen


def _check_features(
    kind: Kind,
    in_layers: Sequence[int],
    given_layers: Sequence[int] | None,
    layer_window: int,
    n_layers: int,
) -> Sequence[int]:
    """The layers among `in_layers` in which a kind has components; only features may lack some."""
    if not kind.feature_layers:
        return in_layers
    outside = [layer for layer in kind.feature_layers if not 0 <= layer < n_layers]
    if outside:
        raise ComponentError(
            f"The kind {kind.name!r} has features of layer {outside[0]}, but the model has layers "
            f"0 to {n_layers - 1}. Number the layers as the model does."
        )
    missing = [layer for layer in in_layers if layer not in kind.feature_layers]
    if (given_layers is not None and missing) or layer_window > 1:
        problem = f"in layers {ranges(missing)}" if missing else "of windows"
        raise ComponentError(
            f"The kind {kind.name!r} has no features {problem}. It has features of single layers: "
            f"{ranges(kind.feature_layers)}."
        )
    return [layer for layer in in_layers if layer in kind.feature_layers]


def _check_layers(layers: Sequence[int] | None, n_layers: int) -> list[int]:
    if layers is None:
        return list(range(n_layers))
    numbers = as_ints(layers)
    in_layers = sorted({each + n_layers if each < 0 else each for each in numbers or ()})
    if numbers is None or (in_layers and not 0 <= in_layers[0] <= in_layers[-1] < n_layers):
        raise ComponentError(
            f"The layers are {short_repr(layers)}, which are not all in the model. Give a list of "
            f"whole numbers from 0 to {n_layers - 1}."
        )
    return in_layers


def _check_keys(
    indices: Mapping[int, Sequence[int]], in_layers: Sequence[int], n_layers: int
) -> dict[int, Sequence[int]]:
    if as_ints(tuple(indices)) is None:
        raise ComponentError(
            f"The keys of the indices are {short_repr(list(indices))}. They must be whole numbers: "
            "layers."
        )
    by_layer = {layer + n_layers if layer < 0 else layer: v for layer, v in indices.items()}
    if set(by_layer) - set(in_layers) or len(by_layer) < len(indices):
        raise ComponentError(
            f"The layers {sorted(indices)} of the indices are not all among the chosen layers, or "
            f"name one twice. Use layers {ranges(in_layers)}."
        )
    return by_layer


def _check_indices(
    kind: Kind, layer: int, width: int, indices: Sequence[int] | Mapping[int, Sequence[int]] | None
) -> tuple[int, ...]:
    if indices is None or kind.component_dim is None:
        return tuple(range(width))
    given = indices.get(layer, ()) if isinstance(indices, Mapping) else indices
    numbers = as_ints(given)
    picked = tuple(sorted(set(numbers or ())))
    if numbers is None or (picked and not 0 <= picked[0] <= picked[-1] < width):
        raise ComponentError(
            f"The indices are {short_repr(given)}, which are not all {kind.name} of layer {layer}. "
            f"Give a list of whole numbers from 0 to {width - 1}, or a mapping from layer to such "
            "lists."
        )
    return picked


def ranges(numbers: Sequence[int], separator: str = ", ") -> str:
    """`[0, 1, 2, 5]` as `0-2, 5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return separator.join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


Components = KindName | str | Kind | Sequence[KindName | str | Kind] | ComponentRegistry
"""What says which components to trace: kinds of component, or a registry."""
