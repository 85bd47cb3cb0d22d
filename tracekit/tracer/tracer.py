"""Tracer, the entry point: binds a model, a data set, components and a metric."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Concatenate, TypeVar, overload

import plotly.graph_objects as go
from typing_extensions import ParamSpec, Unpack

from tracekit._util.arguments import check_arguments
from tracekit._util.names import MethodChoice, MetricChoice, SignName
from tracekit._util.options import check_keywords, check_names
from tracekit._util.progress import report_waiting
from tracekit._util.ranks import Ranks
from tracekit.components import ComponentRegistry
from tracekit.components.registry import Components
from tracekit.data.pair import check_disjoint
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import describe, load_dataset
from tracekit.engine import checks
from tracekit.engine.capabilities import Capabilities
from tracekit.engine.effects import metric_effects
from tracekit.engine.engine import Engine
from tracekit.engine.prepared import EngineConfig
from tracekit.engine.setup import SETUP_OPTIONS, Setup, SetupOptions
from tracekit.errors import ConfigError, NoResultError
from tracekit.measure import (
    attention,
    certificate,
    controls,
    effects,
    evaluation,
    explanation,
    minimality,
    paths,
    shapley,
    side_effects,
)
from tracekit.measure.question import Question, bind
from tracekit.metrics import Direction, Metric, MetricFunction
from tracekit.models import HookedModel, load_model
from tracekit.results.curve import TraceCurve, effect_curve
from tracekit.results.panels import CellColor
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult
from tracekit.search import LocalSearch, Search, make
from tracekit.search.constraint import Constraint
from tracekit.search.objectives import Objective, ObjectiveName
from tracekit.tracer import diagnostics, exploring, exporting, generation
from tracekit.tracer import estimate as estimating
from tracekit.tracer import look as looking
from tracekit.tracer.display import tracer_html, tracer_text
from tracekit.tracer.estimate import estimate_of
from tracekit.tracer.front import run_front
from tracekit.tracer.request import Request
from tracekit.tracer.search import run_search
from tracekit.tracer.search import stability as repeated
from tracekit.tracer.trackers import Observer

_P = ParamSpec("_P")
_R = TypeVar("_R")


def as_method(
    function: Callable[Concatenate[Question, _P], _R],
) -> Callable[Concatenate[Any, _P], _R]:
    """A function of a question as a method of the tracer that asks it, on an unchanged model."""
    called, label = check_keywords(function), function.__name__.replace("_", " ")

    @wraps(function)
    def method(self: Tracer, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with report_waiting(label, shown=self.question.config.progress):
            checks.check_model_unchanged(self.question.search_engine)
            return called(self.question, *args, **kwargs)

    first, *others = signature(function).parameters.values()
    method.__signature__ = signature(function).replace(  # type: ignore[attr-defined]
        parameters=[first.replace(name="self", annotation=Parameter.empty), *others]
    )
    method.__doc__ = re.sub(r"\n *question: .*", "", function.__doc__ or "")
    return method


@check_arguments
class Tracer:
    """Traces which components of a model jointly move a metric.

    ```python
    tracer = tk.Tracer(model, pairs, components="attention-patterns", metric="odds-ratio")
    result = tracer.run(budget=0.2)
    tracer.heatmap()
    ```

    Building one checks every hook point on the loaded model (see `tracekit.engine.checks`). Methods
    raise `IdentityCheckError` where the model's weights or hooks changed since.
    """

    def __init__(
        self,
        model: HookedModel | str | Path,
        pairs: PromptPairs | str | Path,
        components: Components | Setup = "default",
        metric: MetricChoice | Metric | MetricFunction | None = None,
        *,
        held_out: PromptPairs | None = None,
        extra_metrics: Sequence[MetricChoice | Metric] = (),
        max_batch_size: int | None = None,
        max_memory: int | None = None,
        progress: bool | None = None,
        capabilities: Capabilities | None = None,
        **options: Unpack[SetupOptions],
    ) -> None:
        """Binds model, data, components and metric, and checks that every hook acts.

        Args:
            model: A TransformerLens model, or anything `load_model` takes.
            pairs: The data set, or its name for `load_dataset`.
            components: As in `Setup`: kinds of component, `default`: `attention-patterns`; or a
                `Setup`, which says the metric and the options too.
            metric: As in `Setup`; by default `odds-ratio`. For data given by name, components,
                metric and positions are by default those that it is usually traced with.
            held_out: Examples that no search sees; every result says what its selection does on
                them (`TraceResult.held_out_effect`). `pairs.split` makes some.
            extra_metrics: Further metrics of every result; they guide no search.
            max_batch_size: Examples per pass; bounds memory, changes no result. None: 64, or as
                many as fit on a card.
            max_memory: Bytes of counterfactual activations on the device, as in `EngineConfig`.
            progress: Whether every run shows one progress bar, with the time that is left. None: in
                notebooks and terminals; elsewhere two lines a minute on the standard error.
            capabilities: Optimisations to use; None: those that the model supports.
            **options: The other fields of `Setup`, e.g. `layers`, `positions` or `source`.

        Raises:
            HookPointError: A component cannot be intervened on in this model.
            IdentityCheckError: The empty mask has an effect, or the full mask has none.
            SourceError: The source is unknown, or does not suit the data or the components.
            PairsError: The prompts lack the spans or are padded, held-out examples are also among
                the pairs, or denoising from a source that is no run.
            ConfigError: Options that contradict each other.
        """
        check_names(options, {*signature(Tracer).parameters, *SETUP_OPTIONS} - {"options"})
        model = model if isinstance(model, HookedModel) else load_model(model)
        usual = None
        if isinstance(pairs, (str, Path)):
            usual, pairs = describe(str(pairs)), load_dataset(str(pairs), model)
        if not isinstance(components, Setup):
            if usual is not None and "split_by" not in options:
                options.setdefault("positions", usual.positions)  # type: ignore[typeddict-item]
            named = (usual.metric if usual else "odds-ratio") if metric is None else metric
            if isinstance(components, str) and components == "default":
                components = usual.components if usual else "attention-patterns"
            components = Setup(components=components, metric=named, **options)
        elif metric is not None or options:
            raise ConfigError(
                "A setup was given along with a metric or options, which it has. Leave them out, "
                "or use dataclasses.replace(setup, ...)."
            )
        config = EngineConfig(
            max_batch_size=max_batch_size,
            max_memory=max_memory,
            # Of several processes that share a trace, one is watched.
            progress=progress if Ranks.current().is_first else False,
            capabilities=capabilities,
        )
        with report_waiting("Preparing the tracer", shown=config.progress):
            self.question = bind(
                components, model, pairs, config, held_out=held_out, extra_metrics=extra_metrics
            )
            checks.check_engine(self.engine)
            if self.extra_metrics:
                # Otherwise only the end of a search would show that examples lack a y they read.
                metric_effects(self.engine, self.engine.masks_of([()])[0], self.extra_metrics)
            if self.question.held_out_engine is not None:
                check_disjoint(self.engine.pairs, self.question.held_out_engine.pairs)
            diagnostics.warn_of_pairs(self.question)
        self._last: Sequence[TraceResult] = ()

    def __repr__(self) -> str:
        return tracer_text(self.question)

    def _repr_html_(self) -> str:
        return tracer_html(self.question)

    @overload
    def run(
        self,
        method: MethodChoice | type | Search | None = ...,
        *,
        budgets: Sequence[int | float],
        objective: ObjectiveName | Objective | None = ...,
        sign: SignName | None = ...,
        constraint: Constraint | None = ...,
        training_pairs: Iterable[PromptPairs] | None = ...,
        observe: Observer | None = ...,
        seed: int = ...,
        **options: Any,
    ) -> TraceCurve: ...

    @overload
    def run(
        self,
        method: MethodChoice | type | Search | None = ...,
        *,
        budget: int | float | None = ...,
        target_effect: float | None = ...,
        faithfulness: float | None = ...,
        objective: ObjectiveName | Objective | None = ...,
        sign: SignName | None = ...,
        constraint: Constraint | None = ...,
        training_pairs: Iterable[PromptPairs] | None = ...,
        observe: Observer | None = ...,
        seed: int = ...,
        **options: Any,
    ) -> TraceResult: ...

    def run(
        self,
        method: MethodChoice | type | Search | None = None,
        *,
        budget: int | float | None = None,
        budgets: Sequence[int | float] | None = None,
        target_effect: float | None = None,
        faithfulness: float | None = None,
        objective: ObjectiveName | Objective | None = None,
        sign: SignName | None = None,
        constraint: Constraint | None = None,
        training_pairs: Iterable[PromptPairs] | None = None,
        observe: Observer | None = None,
        seed: int = 0,
        **options: Any,
    ) -> TraceResult | TraceCurve:
        """Searches for a small set of components with a large effect.

        Args:
            method: `pgb-ct+local` (PGB-CT, whose sets local search improves; the default for
                nodes), `learned-ranking` (the default for edges), `pgb-ct` (the paper's method),
                `local-search`, `dcm`, `top-k`, `empirical-bayes-top-k`, `greedy`, `random`,
                `exhaustive`, `mask-ig`, `eap-ig`, `attribution`, or a search such as
                `PGBCT(epochs=30)`, one of tracekit or your own.
            budget: Largest number of components: a count (int) or a share (float), rounded down.
            budgets: Several budgets; gives a `TraceCurve`.
            target_effect: Instead of a budget, the mean effect to reach by the fewest components.
            faithfulness: Instead of a budget, a level in (0, 1), e.g. 0.9: the smallest set that is
                so faithful on the searched examples, of up to 24 sizes (`TraceCurve.smallest`). The
                objective is by default `faithful`.
            objective: What the search maximises over the examples, if not the mean effect:
                `log-odds`, `trimmed-mean`, `lower-bound`, `median` or a value of
                `tracekit.search.objectives`. `auto` chooses between the search and single effects
                by what holds on other examples. Without `target_effect` or `sign`, the default is
                `faithful` for edges; where the source is another model `Faithful(complement=0)`:
                sets that do what all do. Results report mean effects all the same.
            sign: Sign of the effects that are sought: `positive`, away from x; `negative`; or
                `full`, that of the effect of all components. By default that of `target_effect`,
                `full` where the source is another model, else `positive`.
            constraint: A metric to leave within bounds: only sets within them are given back.
            training_pairs: Pairs without end that `learned-ranking`, PGB-CT or DCM trains on, such
                as `tk.data.endless_pairs("ioi", model)`, or another iterable of `PromptPairs`. Each
                epoch draws new ones; pairs that are searched or held out are left out. The searched
                examples then only decide between sets. `result.run.training` says what was drawn.
            observe: Is called with a `RunRecord` at the start, at every step, with every result and
                at the end. If it raises, that is a warning.
            seed: Seed of the search; the same seed gives the same result.
            **options: Fields of the search, e.g. `lambda1=1e-3` or `draws=200`.

        Returns:
            A `TraceResult`, or with `budgets` a `TraceCurve` of them, ascending.

        Raises:
            UnknownNameError, ConfigError: About the search, or the seed.
            BudgetError: About the budget.
            TargetNotReachedError: No set that was tried reaches the target, or is so faithful.
            NothingFoundError: No set within the bound of `constraint`, or no path of edges.
            PairsError: The `training_pairs` are no pairs, or have an end.
        """
        request = Request(
            search=make(method, options, signature(self.run).parameters, self.registry.kinds),
            budget=budget,
            budgets=budgets,
            target_effect=target_effect,
            faithfulness=faithfulness,
            objective=objective,
            sign=sign,
            constraint=constraint,
            training_pairs=training_pairs,
            seed=seed,
        )
        self._last = results = run_search(self.question, request, observe)
        return results[0] if budgets is None else TraceCurve(tuple(results))

    def pareto(
        self,
        *,
        max_budget: int | float | None = None,
        objective: ObjectiveName | Objective | None = None,
        sign: SignName | None = None,
        constraint: Constraint | None = None,
        statistics: bool = True,
        observe: Observer | None = None,
        seed: int = 0,
        **options: Any,
    ) -> ParetoFront:
        """Searches for the best set of every size in one run.

        The front is never worse than a set that this tracer has already measured, unless `auto`
        chose single effects at that size, or sets are searched by `log-odds` or for faithfulness.

        Ctrl-C, `max_seconds` and `max_passes` end the search with the best found so far; with
        `checkpoint`, a file, the same call goes on where it stopped.

        Args:
            max_budget: Largest size: a count (int) or a share (float). None: all components.
            objective: What the search maximises over the examples, as in `run`. By default
                `auto`, or `mean` without statistics or with a constraint; of edges as in `run`.
            sign: As in `run`.
            constraint: A metric to leave within bounds: the front holds the sets within them.
            statistics: Whether to measure held-out effects, random controls and stability, at up
                to 12 sizes. That takes two searches on half the examples each, about as long as
                the front itself. Their passes are in `statistics_cost`; limits bound each of the
                three searches. `max_memory` bounds each half, of which two are in memory.
            observe: As in `run`.
            seed: Seed of the search, of the halves and of the controls.
            **options: Fields of `LocalSearch`, e.g. `max_passes=300`.

        Raises:
            UnknownNameError, ConfigError: About the options.
            BudgetError: About `max_budget`.
            NotDifferentiableError: The metric has no gradient.
            NothingFoundError: No set was measured before a limit, or none within `constraint`.
            ResultFormatError: The checkpoint is damaged, or of another search, model or data set.
        """
        request = Request(
            search=make(LocalSearch, options, signature(self.pareto).parameters),
            budget=max_budget,
            objective=objective,
            sign=sign,
            constraint=constraint,
            seed=seed,
        )
        self._last = front = run_front(self.question, request, observe, statistics=statistics)
        return front

    look = as_method(looking.look)
    estimate = as_method(estimating.estimate)
    estimate_pareto = as_method(estimating.estimate_pareto)
    estimate_explain = as_method(estimating.estimate_explain)
    estimate_minimality = as_method(estimate_of(minimality.planned_minimality, is_exact=False))
    estimate_faithfulness = as_method(estimate_of(evaluation.planned_faithfulness))
    estimate_controls = as_method(estimate_of(controls.planned_controls))
    estimate_side_effects = as_method(estimate_of(side_effects.planned_side_effects))

    @property
    def model(self) -> HookedModel:
        """The model."""
        return self.question.model

    @property
    def setup(self) -> Setup:
        """The setup, with metric and source by their names."""
        return self.question.named_setup

    @property
    def engine(self) -> Engine:
        """Masks in, effects and gradients out."""
        return self.question.search_engine

    @property
    def extra_metrics(self) -> tuple[Metric, ...]:
        """Further metrics that every result is measured by."""
        return self.question.extra_metrics

    @property
    def registry(self) -> ComponentRegistry:
        """The components under study."""
        return self.question.registry

    @property
    def pairs(self) -> PromptPairs:
        """The data set as it was given; `engine.pairs` has what the source made of it."""
        return self.question.pairs

    @property
    def held_out(self) -> PromptPairs | None:
        """Examples that no search sees, as they were given, if there are any."""
        return self.question.held_out_pairs

    @property
    def results(self) -> list[TraceResult]:
        """Results of all runs, in their order."""
        return self.question.results

    @property
    def direction(self) -> Direction:
        """Whether counterfactual values are patched in (`noising`) or clean ones back."""
        return self.question.direction

    @property
    def source(self) -> str:
        """Where the values come from that are patched in."""
        return self.question.source

    @property
    def full_effect(self) -> float:
        """Mean effect of all components together."""
        return self.engine.full_effects.mean().item()

    @property
    def noise_floor(self) -> float:
        """Mean effect that the rounding of a model in low precision can have alone; float32: 0."""
        return self.question.noise_floor

    @property
    def explained_variance(self) -> Mapping[str, float]:
        """Share of the variance of activations that features reconstruct, by kind and layer.

        Over the tokens of the first prompts but the first of each; empty without features.
        """
        return self.question.explained_variance

    @property
    def n_prefers_x(self) -> int | None:
        """Examples on which the run that is started from finds x more probable than y.

        None if not every example has a y. Where the clean model does not prefer x, it does not
        show the behaviour that is traced.
        """
        return self.question.n_prefers_x

    evaluate = as_method(evaluation.evaluate)
    noising_and_denoising = as_method(evaluation.noising_and_denoising)
    faithfulness = as_method(evaluation.faithfulness)
    minimality = as_method(minimality.minimality)
    controls = as_method(controls.controls)
    certify = as_method(certificate.certify)
    as_result = as_method(exploring.as_result)
    explain = as_method(explanation.explain)
    as_game = as_method(shapley.as_game)
    side_effects = as_method(side_effects.side_effects)
    paths = as_method(paths.paths)
    attention = as_method(attention.attention)
    single_effects = as_method(effects.single_effects)
    interactions = as_method(effects.interactions)
    strongest_pairs = as_method(effects.strongest_pairs)
    export = as_method(exporting.export)
    steer = as_method(generation.steer)
    generate = as_method(generation.generate)
    from_mib = as_method(evaluation.from_mib)
    curve_from_mib = as_method(exploring.curve_from_mib)
    explore = as_method(exploring.explore)
    stability = as_method(repeated)

    def heatmap(
        self,
        result: TraceResult | Sequence[TraceResult] | None = None,
        *,
        color: CellColor | None = None,
        fold: bool = False,
    ) -> go.Figure:
        """Per-layer heatmap of a result, or of the last of several; options as of `TraceResult`.

        By default of the last result of `run`, or after `pareto` of the largest set of its front.

        Raises:
            NoResultError: Nothing was run yet.
        """
        drawn = _result_to_draw(result or self._last)
        shown = drawn if isinstance(drawn, TraceResult) else drawn[-1]
        return shown.heatmap(color=color, fold=fold)

    def curve(self, results: TraceResult | Sequence[TraceResult] | None = None) -> go.Figure:
        """Effect against number of components, a line per method.

        By default of all runs, or of the last front if there was no run.

        Raises:
            NoResultError: Nothing was run yet.
        """
        drawn = [results] if isinstance(results, TraceResult) else results
        return effect_curve(_result_to_draw(drawn or self.results or self._last))


def _result_to_draw(results: Any) -> Any:
    if not results:
        raise NoResultError("There is no result to draw yet. Call run() first.")
    return results
