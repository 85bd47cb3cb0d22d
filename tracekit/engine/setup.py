"""The setup of a trace: everything that decides an effect beside the model and the data.

Tracers, jobs, sweeps and results hold a `Setup`, a frozen value, whose `repr` is the code that
makes it again. `tracekit.measure.question.bind` puts it on a model and on examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, cast

from typing_extensions import TypedDict

from tracekit._util.markup import clean_text
from tracekit._util.names import ContinuationMean, Direction
from tracekit._util.options import check_fields, check_keywords
from tracekit.components import ComponentRegistry
from tracekit.components.kinds import KINDS, Kind
from tracekit.components.registry import Components, SiteSpec
from tracekit.engine.layout import Positions
from tracekit.engine.setup_fields import Indices, SetupFields, SplitBy
from tracekit.engine.sources import WORDINGS, AnySource, as_source, draws_values, source_name
from tracekit.errors import ComponentError, ConfigError, SourceError
from tracekit.metrics import METRICS, resolve_metric


class SetupOptions(TypedDict, total=False):
    """The fields of a `Setup` beside components and metric, as keyword arguments."""

    layers: Sequence[int] | None
    indices: Indices | None
    split_by: SplitBy | str | None
    layer_window: int
    positions: Positions
    source: AnySource
    source_seed: int
    direction: Direction
    continuation_mean: ContinuationMean


class SetupSpec(TypedDict):
    """A setup in values of JSON."""

    components: str | list[SiteSpec]
    metric: str
    layers: list[int] | None
    indices: list[int] | dict[str, list[int]] | None
    split_by: SplitBy | str | None
    layer_window: int
    positions: str | list[int]
    source: str
    source_seed: int
    direction: Direction
    continuation_mean: ContinuationMean


@check_keywords
@dataclass(frozen=True, kw_only=True, repr=False)
class Setup(SetupFields):
    """Which components take which values, and how their effect is measured."""

    def __post_init__(self) -> None:
        check_fields(
            self, "split_by", "layer_window", "source_seed", "direction", "continuation_mean"
        )
        if not draws_values(self.source):  # So that setups that give the same numbers are equal.
            object.__setattr__(self, "source_seed", 0)
        for name in ("layers", "indices", "positions"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        if isinstance(self.indices, Mapping):
            object.__setattr__(self, "indices", {n: _as_tuple(v) for n, v in self.indices.items()})
        if isinstance(self.components, ComponentRegistry):
            self._check_registry(self.components)
        if self.has_spans and self.positions != "prompt":
            raise ConfigError(
                f"Both spans and positions={self.positions!r} say where to intervene. Leave one "
                "out."
            )

    def _check_registry(self, registry: ComponentRegistry) -> None:
        if self.layers is not None or self.indices is not None or self.layer_window != 1:
            raise ComponentError(
                "layers, indices or layer_window were given along with a registry, which has its "
                "own. Leave them out, or give kinds instead of a registry."
            )
        if self.split_by is not None and not registry.spans:
            raise ComponentError(
                f"split_by={self.split_by!r} was given along with a registry without spans. Leave "
                "it out."
            )

    @property
    def has_spans(self) -> bool:
        """Whether components are told apart by where they act in the prompt."""
        given = self.components
        of_registry = given.spans if isinstance(given, ComponentRegistry) else ()
        return self.split_by is not None or bool(of_registry)

    @property
    def intervention(self) -> str:
        """Source, positions and direction in words; see `intervention_text`."""
        return intervention_text(self.source, self.positions, self.direction)

    def named(self, registry: ComponentRegistry) -> Setup:
        """The setup as a file can hold it: by names, or by `registry` if a kind is the user's."""
        kinds, layers = _kind_names(self.components), self.layers
        setup = self
        if kinds is None:
            setup = self.with_registry(registry)
            kinds, layers = _kinds_and_layers(registry) or (registry, None)
        metric = self.metric if isinstance(self.metric, str) else resolve_metric(self.metric).name
        source = source_name(self.source)
        return replace(setup, components=kinds, layers=layers, metric=metric, source=source)

    def with_registry(self, registry: ComponentRegistry) -> Setup:
        """The same setup with exactly these components."""
        return replace(self, components=registry, layers=None, indices=None, layer_window=1)

    Spec: ClassVar[Any] = SetupSpec
    """Type of `spec()`."""

    def spec(self) -> SetupSpec:
        """A named setup in values of JSON, from which `from_spec` makes it again."""
        values = {each.name: _json_value(getattr(self, each.name)) for each in fields(self)}
        return cast(SetupSpec, values)

    @classmethod
    def from_spec(cls, spec: SetupSpec) -> Setup:
        """The setup of a `spec`; refuses values that are those of no setup."""
        values: dict[str, Any] = {**spec}
        if isinstance(values.get("components"), list):
            values["components"] = ComponentRegistry.from_spec(values["components"])
        if isinstance(values.get("indices"), dict):
            values["indices"] = {int(n): tuple(v) for n, v in values["indices"].items()}
        return cls(**values)

    def code(self) -> dict[str, str]:
        """Python code of each value by its field: of components, metric, and what is no default.

        A value without code is written as `...`, and a user's metric function as its name.
        """
        values = {"components": self.components, "metric": self.metric, **self.changes}
        return {name: _CODES.get(name, repr)(value) for name, value in values.items()}

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that are not at their defaults, by name."""
        changed = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) is not type(each.default) or value != each.default:
                changed[each.name] = value
        return changed

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={code}" for name, code in self.code().items())
        return clean_text(f"tk.Setup({options})")


SETUP_OPTIONS = tuple(SetupOptions.__annotations__)
"""Names of the fields that a `Tracer` and a sweep take as keyword arguments."""


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, range)) else value


def _kind_names(components: Components) -> str | None:
    """Kinds of tracekit as one text; None for a registry or a kind of one's own."""
    if isinstance(components, (ComponentRegistry, Kind)):
        return None
    given = components.split("+") if isinstance(components, str) else components
    names = [each.strip() if isinstance(each, str) else "" for each in given]
    return "+".join(names) if all(name in KINDS for name in names) else None


def _kinds_and_layers(registry: ComponentRegistry) -> tuple[str, tuple[int, ...]] | None:
    """Kinds and layers that make a registry again; None if it takes more."""
    are_whole = all(site.complete and not site.acts_in for site in registry.sites)
    is_split = registry.edges is not None or bool(registry.spans)
    by_kind = [
        tuple(site.layer for site in registry.sites if site.kind.name == kind)
        for kind in registry.kinds
    ]
    is_named = all(kind in KINDS for kind in registry.kinds)
    if are_whole and is_named and not is_split and len(set(by_kind)) == 1:
        return "+".join(registry.kinds), by_kind[0]
    return None


def _json_value(value: Any) -> Any:
    if isinstance(value, ComponentRegistry):
        return value.spec()
    if isinstance(value, Mapping):
        return {str(name): list(entry) for name, entry in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _components_code(components: Any) -> str:
    if isinstance(components, ComponentRegistry):
        return f"tk.components.ComponentRegistry.from_spec({components.spec()!r})"
    if isinstance(components, Kind):
        return f"tk.{components!r}"
    if isinstance(components, str):
        return repr(components)
    return f"[{', '.join(map(_components_code, components))}]"


def _metric_code(metric: Any) -> str:
    name = resolve_metric(metric).name if not isinstance(metric, str) else metric
    return repr(name) if name in METRICS else name if name.isidentifier() else "..."


def _source_code(source: AnySource) -> str:
    try:
        return as_source(source).code()
    except SourceError:  # Of a saved setup, whose source only Python can give.
        return "..."


_CODES: Mapping[str, Callable[[Any], str]] = {
    "components": _components_code,
    "metric": _metric_code,
    "source": _source_code,
}
"""How the code of a field is made, where `repr` does not make it."""


def intervention_text(source: AnySource, positions: str | Sequence[int], direction: str) -> str:
    """What is patched, where and in which direction, e.g. `zero ablation at the last token`."""
    name = source if isinstance(source, str) else source_name(source)
    kind = re.split("[: ]", name, maxsplit=1)[0]
    over = r"^(?::pairs=| over )(.*?)(?:,digest=\w+)?$"  # The digest of a file stays in its name.
    rest = re.sub(over, r" over the prompts of \1", name.removeprefix(kind))
    rest = f" with {rest[1:]}" if rest.startswith(":") else rest
    where = {"prompt": "", "last": " at the last token", "all": " at all tokens"}.get(
        str(positions), f" at positions {', '.join(map(str, positions))}"
    )
    return f"{WORDINGS.get(kind, kind)}{rest}{where}" + ", denoising" * (direction == "denoising")
