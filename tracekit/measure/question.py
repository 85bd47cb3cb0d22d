"""The question of a tracer: a setup on a model, the searched examples and those held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor
from typing_extensions import assert_never

from tracekit._util.clusters import count_text
from tracekit._util.options import short_repr
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.masks import complement_of, from_indices
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.pair import SeenPrompts
from tracekit.data.prompts import PromptPairs
from tracekit.data.spans import position_names
from tracekit.engine import checks
from tracekit.engine.cost import Cost
from tracekit.engine.effects import count_choices, noise_floor
from tracekit.engine.engine import Engine
from tracekit.engine.prepared import DEFAULT_ROWS, EngineConfig
from tracekit.engine.setup import Setup
from tracekit.engine.sources import Binding, ToPairs, as_source, set_counterfactuals, source_name
from tracekit.errors import ConfigError, PairsError
from tracekit.metrics import Direction, Effects, Metric, MetricFunction
from tracekit.metrics import resolve_metric as resolve_metric
from tracekit.models import HookedModel, foreign_hooks, model_name, revision_of, weights_digest
from tracekit.results.mib import model_sizes
from tracekit.results.on_examples import OnExamples, examples_text
from tracekit.results.result import ModelFacts, TraceResult

AnyMetric = str | Metric | MetricFunction
"""A metric by name, as a value, or as a function."""


class MeasuredSet(NamedTuple):
    """A set that was measured on all searched examples."""

    mean: float
    members: ComponentSet
    effects: Effects


class KnownSets:
    """What is known of sets: of every size the best that were measured, and those selected.

    The best ones are what is left of a search that is interrupted, and what no front leaves out.
    """

    def __init__(self) -> None:
        """Knows none yet."""
        self._best: dict[int, dict[int, MeasuredSet]] = {1: {}, -1: {}}
        self.selected: set[ComponentSet] = set()
        """Sets that were chosen by their effects on the searched examples."""

    def by_size(self, sign: int = 1) -> dict[int, MeasuredSet]:
        """The measured set of every size with the largest mean effect, or the least (sign -1)."""
        return self._best[sign]

    def record(self, sets: Sequence[ComponentSet], effects: Float[Tensor, "set example"]) -> None:
        """Takes note of sets and their effects, a row for each."""
        for members, row in zip(sets, effects, strict=True):
            mean, size = float(row.mean()), len(members)
            for sign, best in self._best.items():
                if size and (size not in best or sign * mean > sign * best[size].mean):
                    best[size] = MeasuredSet(mean, members, row.clone())


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """Components of a model, what takes their place, a metric, and the examples."""

    setup: Setup
    """The setup, as it was given."""
    model: HookedModel
    pairs: PromptPairs
    """The searched examples, as they were given."""
    held_out_pairs: PromptPairs | None = None
    """Examples that no search sees, as they were given."""
    registry: ComponentRegistry
    """The components under study."""
    config: EngineConfig
    """Settings that change no result."""
    metric: Metric
    """By which effects are measured; in the direction of noising."""
    extra_metrics: tuple[Metric, ...] = ()
    """Further metrics that every result is measured by."""
    explained_variance: Mapping[str, float]
    """By kind of features and layer, the share of the variance of activations they rebuild."""
    splitter: ToPairs = field(repr=False)
    """Splits prompts into the spans of the setup."""
    apply_source: ToPairs = field(repr=False)
    """Gives pairs the counterfactuals of the setup's source."""
    sets: KnownSets = field(default_factory=KnownSets)
    results: list[TraceResult] = field(default_factory=list)
    """Results of all searches, in their order."""
    seen_prompts: SeenPrompts = field(default_factory=SeenPrompts, repr=False)
    """The pairs that searches have seen."""
    fresh_examples: dict[tuple[ComponentSet, str], list[dict[str, float]]] = field(
        default_factory=dict, repr=False
    )
    """Quantities that certificates measured on examples, by set and fingerprint of the pairs."""

    @cached_property
    def search_engine(self) -> Engine:
        """The engine of the searched examples, which notes the best sets."""
        return replace(self.engine_of(self.pairs), record=self.sets.record)

    @cached_property
    def held_out_engine(self) -> Engine | None:
        """The engine of the held-out examples, if there are some."""
        return None if self.held_out_pairs is None else self.engine_of(self.held_out_pairs)

    @property
    def eval_engine(self) -> Engine:
        """The engine of the examples that no search saw, where there are some."""
        return self.held_out_engine or self.search_engine

    def engine_of(
        self,
        pairs: PromptPairs,
        *,
        metric: AnyMetric | None = None,
        direction: Direction | None = None,
    ) -> Engine:
        """The engine of pairs, as a user gives them; the setup's spans and source are applied.

        Metric and direction are by default those of the setup.
        """
        split = self.splitter(pairs)
        if as_source(self.setup.source).reads_spans:
            # These are the spans that prompts name, whatever the components are split by.
            drawn = [each.counterfactual for each in self.apply_source(pairs)]
            prepared = set_counterfactuals(split, drawn)
        else:
            prepared = self.apply_source(split)
        resolved = self.metric if metric is None else resolve_metric(metric)
        started = direction or self.setup.direction
        if started == "denoising":
            prepared, resolved = prepared.reversed(), resolved.denoising()
        elif started != "noising":
            assert_never(started)
        return Engine.build(self.model, prepared, self.registry, resolved, self.config, pairs)

    @cached_property
    def opposite(self) -> Question:
        """The same question in the other direction.

        Its engines raise a `PairsError` where the source is no run that denoising could start from.
        """
        direction: Direction = "denoising" if self.direction == "noising" else "noising"
        setup = replace(self.setup, direction=direction)
        return replace(self, setup=setup, extra_metrics=(), sets=KnownSets(), results=[])

    @property
    def model_name(self) -> str:
        """Name of the model."""
        return model_name(self.model)

    @property
    def dtype(self) -> str:
        """Type of the model's weights, as `load_model` takes it."""
        return str(next(iter(self.model.parameters())).dtype).removeprefix("torch.")

    @cached_property
    def named_setup(self) -> Setup:
        """The setup as results hold it, with metric and source by their names."""
        return self.setup.named(self.registry)

    @property
    def direction(self) -> Direction:
        """Whether counterfactual values are patched in (`noising`) or clean ones back."""
        return self.setup.direction

    @property
    def source(self) -> str:
        """Where the values come from that are patched in."""
        return source_name(self.setup.source)

    @property
    def title(self) -> str:
        """Data and model, for a figure."""
        return f"{self.search_engine.pairs.name} data, {self.model_name} model"

    @property
    def n_prefers_x(self) -> int | None:
        """Searched examples whose run finds x more probable than y; None if not all have a y."""
        clean = self.search_engine.clean
        return None if clean.y is None else int((clean.x > clean.y).sum())

    @cached_property
    def noise_floor(self) -> float:
        """Mean effect that the rounding of a model in low precision can have alone; float32: 0.

        Measured on the clean run in other batch shapes (`tracekit.engine.effects.noise_floor`).
        """
        return noise_floor(self.search_engine)

    @property
    def model_facts(self) -> ModelFacts:
        """Which model it is."""
        model = self.model
        name = str(getattr(model.cfg, "model_name", ""))
        return ModelFacts(
            weights_digest=weights_digest(model),
            revision=revision_of(model),
            foreign_hooks=tuple(foreign_hooks(model)),
            sizes=model_sizes(model.cfg),
            path=str(Path(name).absolute()) if Path(name).exists() else name,
            dtype=self.dtype,
            explained_variance=self.explained_variance,
        )

    def on_examples(
        self, sets: Sequence[ComponentSet], effects: Sequence[Effects]
    ) -> list[tuple[OnExamples, OnExamples | None]]:
        """Values of sets on the searched examples, and on those held out.

        `effects` are those on the searched examples. All other components are measured on both.
        """
        others = [complement_of(members, len(self.registry)) for members in sets]

        def measured(is_held_out: bool, effects: Sequence[Effects]) -> list[OnExamples]:
            engine = self.eval_engine if is_held_out else self.search_engine
            label = "complements, held out" if is_held_out else "complements"
            without = engine.set_effects(others, label)
            choices = self.choices(sets, is_held_out=is_held_out)
            rows = zip(effects, without, range(2, len(choices)), strict=True)
            return [on_examples(engine, *row, choices=choices[[0, 1, n]]) for *row, n in rows]

        searched = measured(False, effects)
        if self.held_out_engine is None:
            return [(each, None) for each in searched]
        masks = [from_indices(members, len(self.registry)).float() for members in sets]
        held_out = measured(True, [self.held_out_engine.effects(mask) for mask in masks])
        return list(zip(searched, held_out, strict=True))

    def choices(self, sets: Sequence[ComponentSet] = (), *, is_held_out: bool = False) -> Tensor:
        """First choices without and with each of some sets; see `count_choices`."""
        own, other = self.eval_engine if is_held_out else self.search_engine, None
        with suppress(PairsError):  # The source is not a run that denoising could start from.
            other = self.opposite.eval_engine if is_held_out else self.opposite.search_engine
        return count_choices(own, other, sets)

    def facts_of_patch(self, engine: Engine) -> dict[str, Any]:
        """Returns fields of a `PatchedSet` that `engine` measures."""
        positions = engine.config.positions
        return {
            "model": self.model_name,
            "source": self.source,
            "source_seed": self.setup.source_seed,
            "registry": engine.registry,
            "direction": engine.metric.direction,
            "positions": positions if isinstance(positions, str) else tuple(positions),
        }

    def facts_of(self, engine: Engine, before: Cost) -> dict[str, Any]:
        """Returns fields of an `OfMembers` that `engine` measures.

        `before` is what the engine had cost before the work.
        """
        return {
            **self.facts_of_patch(engine),
            **engine.pairs.statistics_options,
            "axis_label": engine.metric.axis_label,
            "dataset": engine.pairs.name,
            "dataset_fingerprint": engine.fingerprint,
            "metric": engine.metric.name,
            "cost": engine.cost - before,
        }

    def selection_fingerprint(self, members: ComponentsLike) -> str | None:
        """Returns the fingerprint of the examples that a set was selected on.

        None where no search selected it. Sets of this tracer are recognised as a list or mask, too.
        """
        if isinstance(members, TraceResult):
            if not members.config.get("selected", True):
                return None
            # A set that was selected on some of the searched examples counts as selected on all.
            is_among = members.searched.count_shared_pairs(self.eval_engine.pairs_given) > 0
            return self.eval_engine.fingerprint if is_among else members.searched.fingerprint
        indices = members_of(members, self.registry, allow_empty=True)
        if len(indices) == len(self.registry):
            return None  # Nothing was selected: these are all components.
        return self.search_engine.fingerprint if indices in self.sets.selected else None

    def selected_on(self, members: ComponentsLike) -> str | None:
        """Returns the same, as results record it.

        With held-out examples, a set that no search selected counts as selected on the searched
        examples: it was not selected on the held-out ones.
        """
        fingerprint = self.selection_fingerprint(members)
        if fingerprint is None and self.held_out_engine is not None:
            return self.search_engine.fingerprint
        return fingerprint


def bind(
    setup: Setup,
    model: HookedModel,
    pairs: PromptPairs,
    config: EngineConfig,
    *,
    held_out: PromptPairs | None = None,
    extra_metrics: Sequence[AnyMetric] = (),
) -> Question:
    """Binds a setup to a model, whose hooks are checked, and to examples, as `Question` has them.

    Means are taken over `pairs`, and their prompts name the spans.

    Raises:
        HookPointError: A component cannot be intervened on in this model.
        SourceError, PairsError: The source or the spans do not suit the data.
    """
    registry = setup.components if isinstance(setup.components, ComponentRegistry) else None
    if setup.has_spans and setup.split_by is None and not pairs.is_split:
        raise PairsError(
            "The registry tells spans of the prompts apart, and the pairs do not. Say "
            "split_by='span' or split_by='position', as where the registry was made."
        )
    splitter = _splitter(setup, model, registry, [pairs, *filter(None, [held_out])])
    split = splitter(pairs)
    registry = registry or ComponentRegistry.build(
        model.cfg,
        setup.components,  # type: ignore[arg-type]
        layers=setup.layers,
        indices=setup.indices,
        spans=split.span_names if setup.split_by is not None else (),
        layer_window=setup.layer_window,
    )
    # Before anything else runs the model: what an engine learns of it is kept.
    checks.check_sites_once(model, registry)
    at = Binding(
        model=model,
        pairs=split,
        registry=registry,
        positions=setup.positions,
        seed=setup.source_seed,
        max_batch_size=config.max_batch_size or DEFAULT_ROWS,
    )
    return Question(
        setup=setup,
        model=model,
        pairs=pairs,
        held_out_pairs=held_out,
        registry=registry,
        config=replace(
            config, positions=setup.positions, continuation_mean=setup.continuation_mean
        ),
        metric=resolve_metric(setup.metric),
        extra_metrics=further_metrics(extra_metrics, setup.direction),
        explained_variance=checks.explained_variance(model, pairs, registry),
        splitter=splitter,
        apply_source=as_source(setup.source).bind(at),
    )


def _splitter(
    setup: Setup,
    model: HookedModel,
    registry: ComponentRegistry | None,
    data_sets: Sequence[PromptPairs],
) -> ToPairs:
    """Splits prompts as the setup says; positions of all data sets have the same names."""
    if setup.split_by is None:
        return lambda pairs: pairs
    if setup.split_by != "position":
        only = None if setup.split_by == "span" else setup.split_by
        return lambda pairs: pairs.by_span(only)
    every = [pair for pairs in data_sets for pair in pairs]
    prompts, spans = [pair.prompt_ids for pair in every], [pair.spans for pair in every]
    names = registry.spans if registry else position_names(prompts, token_text_of(model), spans)
    return lambda pairs: pairs.by_position(names)


def token_text_of(model: HookedModel) -> Callable[[int], str] | None:
    """Gives the text of a token; None where the model has no tokenizer."""
    decode = getattr(getattr(model, "tokenizer", None), "decode", None)
    return None if decode is None else lambda token: str(decode([token]))


def further_metrics(given: Sequence[AnyMetric], direction: Direction) -> tuple[Metric, ...]:
    """Further metrics, in a direction; refuses one that is named twice."""
    if isinstance(given, (str, Metric)):
        raise ConfigError(
            f"The metrics are {short_repr(given)}. Give a list, e.g. ['kl', 'accuracy']."
        )
    resolved = tuple(map(resolve_metric, given))
    names = [metric.name for metric in resolved]
    if len(set(names)) < len(names):
        raise ConfigError(f"A metric is named twice in {names}. Name each one once.")
    return resolved if direction == "noising" else tuple(m.denoising() for m in resolved)


def on_examples(
    engine: Engine,
    effects: Effects,
    complement: Effects | None = None,
    full: Effects | None = None,
    choices: Float[Tensor, "run 5"] | None = None,
) -> OnExamples:
    """Returns measured effects together with the examples of the engine that measured them.

    `full` are the effects of all components by another metric than that of the engine.
    """
    pairs = engine.pairs
    return OnExamples(
        effects=effects,
        full=engine.full_effects if full is None else full,
        complement=complement,
        **pairs.statistics_options,
        dataset=pairs.name,
        fingerprint=engine.fingerprint,
        prompts=tuple(pair.prompts_digest for pair in pairs),
        origin=pairs.origin,
        chat=pairs.chat,
        pairs=engine.pairs_given,
        metric=engine.metric.name,
        direction=engine.metric.direction,
        choices=choices,
    )


def examples_of(engine: Engine, selected_on: str | None) -> str:
    """On which examples an engine measures a set, in words, and on how many."""
    n = count_text(engine.n_examples, engine.pairs.clusters)
    return examples_text(selected_on, engine.fingerprint, n)
