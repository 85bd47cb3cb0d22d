"""Kinds of component: the activation that a component is a part of, its axes and its names.

`KINDS` holds the built-in kinds. A user's kind is a `Kind`, given to a `Tracer` in place of a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from jaxtyping import Float
from torch import Tensor
from torch.nn import Module
from typing_extensions import TypedDict

from tracekit._util.files import tensors_digest
from tracekit._util.options import is_int, short_repr
from tracekit.errors import ComponentError, UnknownNameError

_PATTERN_HOOK = "attn.hook_pattern"
Axis = Literal["batch", "pos", "query", "key", "component", "d_head", "d_model"]


@runtime_checkable
class FeatureMap(Protocol):
    """Features of an activation, such as those of a sparse autoencoder of SAELens.

    Both functions run on the device of the layer, read and return float32, and keep all axes but
    the last. At a hook point with an axis for heads, such as `attn.hook_z`, they read the outputs
    of all heads concatenated; an object that concatenates them itself gets them by head. Feature
    maps are the same if their tensors (`state_dict()`, or else attributes) are equal.
    """

    def encode(self, activation: Tensor, /) -> Tensor:
        """Features of activations: the last axis becomes that of the features."""
        ...

    def decode(self, features: Tensor, /) -> Tensor:
        """Activations from features."""
        ...


def encode_features(
    features: FeatureMap, values: Float[Tensor, ...], n_axes: int
) -> Float[Tensor, ...]:
    """Features of an activation with `n_axes` axes, or one more if it has an axis for heads."""
    if values.ndim > n_axes:
        with suppress(Exception):  # Feature maps of concatenated heads fail on separate heads.
            of_heads = features.encode(values)
            if of_heads.shape[:-1] == values.shape[:-2]:
                return of_heads
        values = values.flatten(-2)
    return features.encode(values)


def decode_features(
    features: FeatureMap, encoded: Float[Tensor, ...], like: Float[Tensor, ...]
) -> Float[Tensor, ...]:
    """The activation that features stand for, by head if `like` is."""
    activation = features.decode(encoded)
    is_flat = like.ndim > encoded.ndim and activation.shape == like.flatten(-2).shape
    return activation.reshape(like.shape) if is_flat else activation


def _problem_of_features(features: Any) -> str | None:
    if features is None:
        return None
    if not isinstance(features, Mapping) or not features or not all(map(is_int, features)):
        return f"has the features {short_repr(features)}. Give a mapping from layer to autoencoder."
    for layer, each in features.items():
        if not isinstance(each, FeatureMap):
            return (
                f"has {short_repr(each)} as the features of layer {layer}. Give an object with the "
                "methods encode and decode."
            )
    return None


def _digest_of_features(features: Mapping[int, FeatureMap]) -> str:
    tensors: dict[str, Tensor] = {}
    for layer, each in features.items():
        state = each.state_dict() if isinstance(each, Module) else vars(each)
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"{layer} {type(each).__qualname__} {name}"] = value
    return tensors_digest(tensors)


def _problem_of(kind: Kind) -> str | None:
    """What is wrong with a kind, as the end of a message; None if nothing is."""
    axes = kind.axes
    are_known = not isinstance(axes, str) and set(axes) <= set(get_args(Axis))
    if (
        not are_known
        or len(set(axes)) < len(axes)
        or axes[:1] != ("batch",)
        or ("pos" in axes) == ("query" in axes)
        or ("query" in axes) != ("key" in axes)
        or "key" in axes[:-1]
    ):
        return (
            f"has the axes {axes!r}. Give a tuple of different ones of {', '.join(get_args(Axis))}:"
            " 'batch' first, and 'pos', or 'query' and 'key', which is last."
        )
    if (kind.width is None) != ("component" not in axes):
        return (
            f"has the axes {axes!r} and the width {kind.width!r}. A width goes with an axis "
            "'component', and none with an activation that is one component."
        )
    if isinstance(kind.width, int) and (not is_int(kind.width) or kind.width < 1):
        return f"has a width of {kind.width!r}. Give a whole number, at least 1."
    if any(symbol in kind.name for symbol in "+@,") or not kind.name.strip():
        return "has a name that is empty or holds one of + @ ,. Give it another."
    if kind.feature_layers and (axes[-1:] != ("component",) or not isinstance(kind.width, int)):
        return (
            f"is of features, and has the axes {axes!r} and the width {kind.width!r}. Features lie "
            "along the last axis, 'component'; give their number as the width."
        )
    if kind.hook.startswith("blocks.") or not kind.hook:
        return f"has the hook point {kind.hook!r}. Name it within a block, e.g. 'hook_resid_post'."
    if not _LABEL.fullmatch(kind.label):
        return f"has the label {kind.label!r}. Use {{layer}} and {{index}} only."
    return None


_LABEL = re.compile(r"([^{}]|\{\{|\}\}|\{layer\}|\{index\})*")
"""Format of labels: text, whose braces are doubled, with the layer and the index."""


class KindSpec(TypedDict):
    """The definition of a kind, in values of JSON."""

    name: str
    hook: str
    axes: list[str]
    width: str | int | None
    label: str
    noun: str
    meaning: str
    learning_rate: float
    instead: str
    feature_layers: list[int]
    features_digest: str
    is_added: bool


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of component; a user's kind is given to a `Tracer` in place of a name."""

    name: str
    """Name that users write, e.g. `head-outputs`."""
    hook: str
    """Hook point within a block, as TransformerLens names it, e.g. `attn.hook_z`."""
    axes: tuple[Axis, ...]
    """Axes of the activation. Without an axis `component` the whole activation is one component."""
    width: str | int | None
    """Number of components in a layer, or its name in the model's configuration; None: one."""
    label: str
    """Format of a component's printed name, with `{layer}` and `{index}`."""
    noun: str = "component"
    """Noun for one component on the axis of a figure."""
    meaning: str = ""
    """A phrase that describes one component."""
    learning_rate: float = 0.1
    """Adam's step when a mask over this kind alone is learned (paper, experimental setup)."""
    instead: str = "another kind"
    """Kind to use where this one cannot be intervened on."""
    features: Mapping[int, FeatureMap] | None = field(default=None, compare=False, repr=False)
    """By layer, an object that encodes the activation into features and decodes them. Components
    are then features, along the axis `component`; what these do not reconstruct keeps its value.
    None: components are parts of the activation."""
    feature_layers: tuple[int, ...] = ()
    """Layers that have features; follows from `features`."""
    features_digest: str = ""
    """Identifies the features by their tensors; follows from `features`."""
    is_added: bool = False
    """Whether the activation is added to the residual stream, and thus must not contain it."""

    def __post_init__(self) -> None:
        for name in ("axes", "feature_layers"):
            if isinstance(values := getattr(self, name), list):
                object.__setattr__(self, name, tuple(values))
        problem = _problem_of_features(self.features)
        if self.features and not problem:
            object.__setattr__(self, "feature_layers", tuple(sorted(self.features)))
            object.__setattr__(self, "features_digest", _digest_of_features(self.features))
        problem = problem or _problem_of(self)
        if problem:
            raise ComponentError(f"The kind {self.name!r} {problem}")

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.name not in KINDS:
            # Components know their kind by name, in whatever process they are unpickled.
            register_kind(self)

    def features_in(self, layer: int) -> FeatureMap | None:
        """Features of a layer; None if components are parts of the activation itself."""
        if not self.feature_layers:
            return None
        if self.features is None:
            raise ComponentError(
                f"The kind {self.name!r} is of features, which are not saved with results. Trace "
                "with a Kind that has them."
            )
        return self.features[layer]

    def definition(self) -> KindSpec:
        """The definition of the kind in values of JSON: all but its features."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        lists = {name: list(values[name]) for name in ("axes", "feature_layers")}
        return KindSpec(**{**values, **lists})

    @classmethod
    def from_definition(cls, definition: KindSpec) -> Kind:
        """The kind of a definition, without its features."""
        tuples = {name: tuple(definition[name]) for name in ("axes", "feature_layers")}
        return cls(**{**definition, **tuples})

    def width_in(self, shape: Any) -> int:
        """Number of components of this kind in a layer; `shape` has the sizes of the model."""
        if self.width is None:
            return 1
        if isinstance(self.width, int):
            return self.width
        width = getattr(shape, self.width, None)
        if width is None and self.width == "n_key_value_heads":
            # Without grouped queries, every head has keys and values of its own.
            width = shape.n_heads
        if width is None or not is_int(width) or width < 1:
            raise ComponentError(
                f"The kind {self.name!r} takes its width from {self.width!r}, and the model's "
                f"configuration has {short_repr(width)} there. Give the width as a number."
            )
        return int(width)

    @cached_property
    def component_dim(self) -> int | None:
        """Axis of the activation that indexes the components; None if it is one component."""
        return self.axes.index("component") if "component" in self.axes else None

    @cached_property
    def position_dim(self) -> int:
        """Axis of the position; for attention patterns of the query."""
        return self.axes.index("query" if "query" in self.axes else "pos")

    @cached_property
    def key_dim(self) -> int | None:
        """Axis of the position attended to; None if there is none."""
        return self.axes.index("key") if "key" in self.axes else None

    @property
    def is_attention_pattern(self) -> bool:
        """Whether it is the attention after the softmax, whose rows are distributions over keys."""
        return self.hook == _PATTERN_HOOK

    def expected_shape(
        self, *, rows: int, length: int, n_components: int, d_model: int
    ) -> tuple[int | None, ...]:
        """Shape of the activation on a batch; None for axes of any size."""
        sizes: dict[str, int | None] = {
            "batch": rows,
            **dict.fromkeys(("pos", "query", "key"), length),
            # The number of features differs from the size of the activation.
            "component": None if self.feature_layers else n_components,
            "d_model": d_model,
            "d_head": None,
        }
        return tuple(sizes[axis] for axis in self.axes)


_whole = partial(Kind, axes=("batch", "pos", "d_model"), width=None, learning_rate=0.01)
_stream = partial(_whole, noun="residual stream", instead="residual")
_head = partial(
    Kind,
    axes=("batch", "pos", "component", "d_head"),
    width="n_heads",
    noun="head",
    instead="head-outputs",
)
_shared_head = partial(_head, width="n_key_value_heads", noun="key/value head")
_unit = partial(Kind, axes=("batch", "pos", "component"), learning_rate=0.5)
_edge = partial(
    _whole, hook="hook_resid_pre", label="{index}>{layer}", noun="edge", instead="edges-by-block"
)
"""A kind of edge into a layer; `tracekit.components.edges` numbers and names the edges."""

_KINDS = (
    Kind(
        name="attention-patterns",
        hook=_PATTERN_HOOK,
        axes=("batch", "component", "query", "key"),
        width="n_heads",
        label="L{layer}H{index}",
        noun="head",
        meaning="a head's attention weights over the prompt",
        instead="head-outputs",
    ),
    _head(
        name="head-outputs",
        hook="attn.hook_z",
        label="L{layer}H{index}",
        meaning="a head's output before the output projection",
        instead="mlp-blocks",
    ),
    _unit(
        name="mlp-outputs",
        hook="hook_mlp_out",
        width="d_model",
        label="L{layer}O{index}",
        noun="coordinate of the MLP output",
        meaning="one coordinate of what the MLP adds to the residual stream",
        instead="mlp-neurons",
        is_added=True,
    ),
    _unit(
        name="mlp-neurons",
        hook="mlp.hook_post",
        width="d_mlp",
        label="L{layer}N{index}",
        noun="neuron",
        meaning="one hidden unit of the MLP, after the activation function",
        instead="mlp-outputs or mlp-blocks",
    ),
    _whole(
        name="mlp-blocks",
        hook="hook_mlp_out",
        label="MLP{layer}",
        noun="MLP block",
        meaning="all that an MLP layer adds to the residual stream",
        instead="mlp-neurons",
        is_added=True,
    ),
    _whole(
        name="attention-blocks",
        hook="hook_attn_out",
        label="ATT{layer}",
        noun="attention block",
        meaning="all that an attention layer adds to the residual stream",
        instead="head-outputs",
        is_added=True,
    ),
    _head(name="queries", hook="attn.hook_q", label="L{layer}Q{index}", meaning="a head's queries"),
    _shared_head(
        name="keys",
        hook="attn.hook_k",
        label="L{layer}K{index}",
        meaning="the keys of a key/value head, which several heads may share",
    ),
    _shared_head(
        name="values",
        hook="attn.hook_v",
        label="L{layer}V{index}",
        meaning="the values of a key/value head, which several heads may share",
    ),
    _stream(
        name="residual",
        hook="hook_resid_post",
        label="R{layer}",
        meaning="the residual stream after a block",
        instead="residual-before",
    ),
    _stream(
        name="residual-before",
        hook="hook_resid_pre",
        label="RB{layer}",
        meaning="the residual stream before a block",
    ),
    _stream(
        name="residual-between",
        hook="hook_resid_mid",
        label="RM{layer}",
        meaning="the residual stream between attention and MLP",
    ),
    _edge(
        name="edges", meaning="what a head or MLP hands to one query, key, value or MLP behind it"
    ),
    _edge(name="edges-by-head", meaning="what a head or MLP hands to one head or MLP behind it"),
    _edge(
        name="edges-by-block",
        meaning="what an attention or MLP block hands to one behind it",
        instead="head-outputs+mlp-blocks",
    ),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}

_USER_KINDS: dict[str, Kind] = {}
"""Kinds that users defined, by name; registered when a registry is built from them."""

_AMBIGUOUS = {
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
    """A kind by name."""
    kind = KINDS.get(name) or _USER_KINDS.get(name)
    if kind is None:
        kinds = {**KINDS, **_USER_KINDS}
        raise UnknownNameError("component kind", name, kinds, hint=_AMBIGUOUS.get(name))
    return kind


def register_kind(kind: Kind) -> Kind:
    """Registers a user's kind by its name, in place of an earlier one of that name."""
    if kind.name in KINDS:
        if KINDS[kind.name] != kind:
            raise ComponentError(
                f"The name {kind.name!r} belongs to another kind: {KINDS[kind.name]}. "
                "Give this one a new name."
            )
        return KINDS[kind.name]
    earlier = _USER_KINDS.get(kind.name)
    # The newest definition counts, unless it equals the earlier one and lacks its features.
    if earlier != kind or kind.features is not None:
        _USER_KINDS[kind.name] = kind
    return _USER_KINDS[kind.name]
