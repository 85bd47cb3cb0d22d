"""Tracer, the entry point: binds a model, a data set, components and a metric."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    overload,
)

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util import progress as _progress
from tracekit._util.markup import printable
from tracekit._util.options import check_seed, shortened
from tracekit._util.ranks import Ranks
from tracekit.anatomy import (
    Explanation,
    SetGame,
    SideEffects,
    explain_set,
    measure_side_effects,
    planned_explanation,
)
from tracekit.anatomy.side_effects import TARGET
from tracekit.components import Component, ComponentRegistry, ComponentSet, masks
from tracekit.components.kinds import Kind, KindName
from tracekit.data.prompts import PromptPairs
from tracekit.data.spans import position_names
from tracekit.engine import checks
from tracekit.engine.capabilities import Capabilities
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine, EngineConfig
from tracekit.engine.layout import Positions
from tracekit.engine.sources import (
    Noise,
    Source,
    draws,
    name_of,
    resolve_source,
    with_counterfactuals,
)
from tracekit.errors import (
    ComponentError,
    ConfigError,
    MaskError,
    MissingExtraError,
    NoResultError,
    PairsError,
    SearchStoppedWarning,
)
from tracekit.metrics import (
    ContinuationMean,
    Direction,
    Effects,
    Metric,
    MetricFunction,
    MetricName,
)
from tracekit.metrics import resolve as resolve_metric
from tracekit.models import HookedModel, load_model, model_name
from tracekit.results.faithfulness import (
    MIB_SHARES,
    Faithfulness,
    Ranking,
    measure_faithfulness,
    prefix_sets,
)
from tracekit.results.interactions import InteractionGrid, measure_pairs
from tracekit.results.metric_table import effect_row, metric_table
from tracekit.results.mib import model_sizes, read_mib
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceCurve, TraceResult
from tracekit.results.strongest_pairs import StrongestPairs, strongest_pairs
from tracekit.results.triples import MOST_IN_TRIPLES, TripleInteractions, measure_triples
from tracekit.search import Goal, LocalSearch, MethodName, Search, Selection, make
from tracekit.search.base import config_of, require_gradient
from tracekit.search.cross_fit import FEWEST_EXAMPLES, as_judged
from tracekit.search.keeping import Keep
from tracekit.search.objectives import (
    Objective,
    ObjectiveName,
)
from tracekit.tracer import diagnostics
from tracekit.tracer.estimate import Estimate, estimate, estimate_planned
from tracekit.tracer.search_run import SearchRun, Spent, Traced
from tracekit.tracer.trackers import Observed, Observer

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from tracekit import figures
    from tracekit.explore.explorer import Explorer

if TYPE_CHECKING:
    MethodChoice = MethodName
    MetricChoice = MetricName
else:
    # At run time a wrong name has an error of its own, with suggestions.
    MethodChoice = MethodName | str
    MetricChoice = MetricName | str

By = Literal["span", "position"]
"""What is told apart beside layers and indices."""
_MAX_PAIRED = 256
_T = TypeVar("_T")


class _Question(NamedTuple):
    """What is asked of the model in one direction."""

    pairs: PromptPairs
    metric: Metric

    def reversed(self) -> _Question:
        """The same in the other direction: from the counterfactual run back to the clean one."""
        return _Question(self.pairs.reversed(), self.metric.denoising())


@dataclass(frozen=True)
class _ByHand:
    """Stands for the search of a set that somebody clicked together."""

    name: ClassVar[str] = "by-hand"
    title: ClassVar[str] = "by hand"

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Selection]:
        """Selects nothing."""
        raise NotImplementedError("Sets by hand are not searched for.")


class Tracer:
    """Traces which components of a model jointly move a metric.

    ```python
    tracer = tk.Tracer(model, pairs, components="attention-patterns", metric="odds-ratio")
    result = tracer.run(budget=0.2)
    tracer.heatmap()
    ```

    Building one checks every hook point on the loaded model (see `tracekit.engine.checks`), so a
    run never rests on a hook that does nothing.
    """

    def __init__(
        self,
        model: HookedModel | str | Path,
        pairs: PromptPairs,
        components: KindName
        | str
        | Kind
        | Sequence[KindName | str | Kind]
        | ComponentRegistry = "attention-patterns",
        metric: MetricChoice | Metric | MetricFunction = "odds-ratio",
        *,
        layers: Sequence[int] | None = None,
        indices: Sequence[int] | Mapping[int, Sequence[int]] | None = None,
        positions: Positions = "prompt",
        by: By | None = None,
        windows: int = 1,
        source: Source = "counterfactual",
        direction: Direction = "noising",
        source_seed: int = 0,
        continuation_mean: ContinuationMean = "geometric",
        max_batch_size: int = 64,
        max_memory: int | None = None,
        progress: bool | None = None,
        held_out: PromptPairs | None = None,
        also: Sequence[MetricChoice | Metric] = (),
        capabilities: Capabilities | None = None,
    ) -> None:
        """Binds them, and checks that every hook acts.

        Args:
            model: A TransformerLens model, or anything `load_model` takes.
            pairs: The data set.
            components: Kind or kinds (see `tracekit.components.KINDS`), joined by `+` or in a
                list; a `Kind` of one's own; or a registry (with `by` again, if it has spans).
            metric: Name of a metric (see `tracekit.metrics.METRICS`), a `Metric`, or a callable
                of the clean and the intervened `ContinuationLogProbs`.
            layers: Layers to study; all by default.
            indices: Heads, coordinates or neurons to study in every layer, or by layer.
            positions: Where to intervene: `prompt`, `last`, `all`, or prompt positions.
            by: What makes components of their own besides: `span` (named parts of the prompts, see
                `PromptPairs.from_text`; `last` and `rest` are implied) or `position` (for prompts
                of one length).
            windows: Consecutive layers in which a component acts at once, around its own.
            source: Where the values come from that are put in: `counterfactual` (each pair's own
                prompt or noise), `noise`, `zero`, `mean`, `mean-positional`, `resample`, a `Noise`
                on spans, a `Mean` over other pairs, or tensors by hook point (see
                `tracekit.engine.sources`).
            direction: `noising` puts counterfactual values into the clean run. `denoising` starts
                from the counterfactual run and puts clean values back; the effect is then how
                much of the way back one comes.
            source_seed: Draws the noise of `noise` and the examples of `resample`.
            continuation_mean: Probability of a continuation of several tokens: `geometric` or
                `arithmetic` mean of its token probabilities.
            max_batch_size: Examples per pass; bounds memory, changes no result.
            max_memory: Bytes that the activations of the counterfactual run may take on the
                model's device; see `EngineConfig`. Changes no result.
            progress: Whether every run shows one progress bar, with the time that is left. None: in
                notebooks and terminals.
            held_out: Examples that no search sees; every result says what its selection does on
                them (`TraceResult.held_out_effect`). `pairs.split` makes some.
            also: Further metrics; every result says what its selection does by each of them
                (`TraceResult.also`). They guide no search.
            capabilities: Optimisations to use. None: those that the model supports;
                `Capabilities.none()`: the plain way, with equal results.

        Raises:
            HookPointError: A component cannot be intervened on in this model.
            IdentityCheckError: The empty mask has an effect, or the full mask has none.
            SourceError: The source is unknown, or does not suit the data or the components.
            PairsError: The prompts have no spans, or not all the same ones.
            PairsError: Denoising from a source that is no run of the model.
        """
        if direction not in get_args(Direction):
            raise ConfigError(f"Unknown direction {direction!r}. Use noising or denoising.")
        self.model = model if isinstance(model, HookedModel) else load_model(model)
        registry = components if isinstance(components, ComponentRegistry) else None
        _check_split(by, positions, registry, pairs, [layers, indices, windows != 1 or None])
        self._tell_apart = self._splitter(by, registry, [pairs, *([held_out] if held_out else [])])
        given, pairs = pairs, self._tell_apart(pairs)
        components = registry or ComponentRegistry.build(
            self.model.cfg,
            components,  # type: ignore[arg-type]
            layers=layers,
            indices=indices,
            spans=pairs.span_names if by is not None else (),
            windows=windows,
        )
        # Before anything else runs the model: what an engine learns of it is kept.
        checks.check_sites(self.model, components)
        config = EngineConfig(
            positions=positions,
            continuation_mean=continuation_mean,
            max_batch_size=max_batch_size,
            max_memory=max_memory,
            progress=_is_shown(progress),
            capabilities=capabilities,
        )
        to_pairs = resolve_source(
            source,
            self.model,
            pairs,
            components,
            positions=positions,
            seed=source_seed,
            max_batch_size=max_batch_size,
        )
        self.source = name_of(source)
        """Where the values come from that are put in."""
        self._source_seed = source_seed if draws(source) else None
        self._by = by
        self._to_pairs = to_pairs
        self._is_on_spans = isinstance(source, Noise) and source.spans is not None
        self._noising = _Question(self._prepared(given), resolve_metric(metric))
        self._engines: dict[str, Engine] = {}
        asked = self._noising if direction == "noising" else self._noising.reversed()
        self.engine = Engine(self.model, asked.pairs, components, asked.metric, config)
        self.also = self._resolved(also)
        """Further metrics that every result is measured by."""
        for further in self.also:
            self.engine.check_metric(further)
        checks.check_engine(self.engine)
        self._held_out = None
        if held_out is not None:
            self._held_out = self.engine.with_pairs(self._asked_of(held_out))
        self._has_looked = False
        self.results: list[TraceResult] = []
        """All results of `run`, in order."""

    def _splitter(
        self, by: By | None, registry: ComponentRegistry | None, given: Sequence[PromptPairs]
    ) -> Callable[[PromptPairs], PromptPairs]:
        """What tells the spans of pairs apart; positions of all the given ones have one name."""
        if by is None:
            return lambda pairs: pairs
        if by == "span":
            return lambda pairs: pairs.by_span()
        decode = getattr(getattr(self.model, "tokenizer", None), "decode", None)
        token_text = None if decode is None else lambda token: str(decode([token]))
        prompts = [pair.prompt_ids for pairs in given for pair in pairs]
        names = registry.spans if registry else position_names(prompts, token_text)
        return lambda pairs: pairs.by_position(names)

    @property
    def registry(self) -> ComponentRegistry:
        """The components under study."""
        return self.engine.registry

    @property
    def pairs(self) -> PromptPairs:
        """The data set."""
        return self.engine.pairs

    @property
    def direction(self) -> Direction:
        """Whether counterfactual values are put in (`noising`) or clean ones back."""
        return self.engine.metric.direction

    @property
    def full_effect(self) -> float:
        """Mean effect of all components together."""
        return self.engine.full_effects.mean().item()

    @property
    def n_prefers_x(self) -> int | None:
        """Examples on which the run that is started from finds x more probable than y.

        None if not every example has a y. Where the clean model does not prefer x, it does not
        show the behaviour that is traced.
        """
        clean = self.engine.clean
        return None if clean.y is None else int((clean.x > clean.y).sum())

    def __repr__(self) -> str:
        return printable(
            f"Tracer({self.registry.describe()} of {model_name(self.model)}, "
            f"{len(self.pairs)} examples of {self.pairs.name}, {self.engine.metric.name})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: what is traced, how, and the results so far."""
        from tracekit.results.display import tracer_html

        engine = self.engine
        facts = [
            ("model", model_name(self.model)),
            ("data", f"{len(self.pairs)} examples of {self.pairs.name}"),
            ("components", self.registry.describe()),
            ("metric", f"{engine.metric.name}: {engine.metric.axis_label}"),
            ("positions", str(engine.config.positions)),
            ("source", f"{self.source}, {self.direction}"),
        ]
        # Only what was measured before: looking at a tracer runs nothing.
        if "full_effects" in vars(engine):
            facts.append(("all components", f"effect {self.full_effect:.4g}"))
        return tracer_html(facts, self.results)

    # ---- searching ------------------------------------------------------------------------

    @overload
    def run(
        self,
        method: MethodChoice | type | Search = ...,
        *,
        budgets: Sequence[int | float],
        objective: ObjectiveName | Objective = ...,
        keep: Keep | None = ...,
        observe: Observer | None = ...,
        seed: int = ...,
        **options: Any,
    ) -> TraceCurve: ...

    @overload
    def run(
        self,
        method: MethodChoice | type | Search = ...,
        *,
        budget: int | float | None = ...,
        target_effect: float | None = ...,
        objective: ObjectiveName | Objective = ...,
        keep: Keep | None = ...,
        observe: Observer | None = ...,
        seed: int = ...,
        **options: Any,
    ) -> TraceResult: ...

    def run(
        self,
        method: MethodChoice | type | Search = "pgb-ct",
        *,
        budget: int | float | None = None,
        budgets: Sequence[int | float] | None = None,
        target_effect: float | None = None,
        objective: ObjectiveName | Objective = "mean",
        keep: Keep | None = None,
        observe: Observer | None = None,
        seed: int = 0,
        **options: Any,
    ) -> TraceResult | TraceCurve:
        """Searches for a small set of components with a large effect.

        Args:
            method: `pgb-ct`, `local-search`, `dcm`, `top-k`, `shrunken-top-k`, `greedy`, `random`,
                `exhaustive`, `mask-ig`, `attribution`, or a search such as `PGBCT(epochs=30)`, one
                of tracekit or your own.
            budget: Largest number of components: a count (int) or a share (float), rounded down.
            budgets: Several budgets; gives a `TraceCurve`.
            target_effect: Instead of a budget, the mean effect to reach with as few components
                as possible.
            objective: What the search maximises over the examples, if not the mean effect:
                `log-odds`, `trimmed-mean`, `lower-bound` or `median` (see
                `tracekit.search.objectives`). `auto` chooses between the search and single effects
                by how far the search is ahead on the examples at hand, and by what holds on
                examples that had no part in the selection. Results report mean effects all the
                same.
            keep: What is to stay as it is: only sets within its bound are given back.
            observe: Is called with a `RunRecord` at the start, at every step, with every result and
                at the end; one of `tracekit.tracer.trackers`, say. If it raises, that is a warning.
            seed: Seed of the search; the same seed gives the same result.
            **options: Fields of the search, e.g. `lambda1=1e-3` or `draws=200`.

        Returns:
            A `TraceResult`, or with `budgets` a `TraceCurve` of them, ascending.

        Raises:
            UnknownNameError, ConfigError: About the search, or the seed.
            BudgetError: About the budget.
            TargetNotReachedError: No set that was tried reaches the target.
            NothingFoundError: No set that was tried stays within the bound of `keep`.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
        """
        check_seed(seed)
        search = make(method, options)
        goal = Goal.make(
            len(self.registry), budget=budget, budgets=budgets, target_effect=target_effect
        )
        run = self._run_of(search, goal, objective, keep, seed)
        self._look_once()
        with self._observed(observe, run) as observed:
            results = run.results(observed.step)
            observed.results(results)
        self.results += results
        diagnostics.warn_of_results(results, self.pairs)
        if any(result.stopped == "interrupted" for result in results):
            diagnostics.warn(
                "Stopped by Ctrl-C: the result is the best found so far.", SearchStoppedWarning
            )
        return results[0] if budgets is None else TraceCurve(tuple(results))

    def pareto(
        self,
        *,
        max_budget: int | float | None = None,
        objective: ObjectiveName | Objective | None = None,
        keep: Keep | None = None,
        statistics: bool = True,
        observe: Observer | None = None,
        seed: int = 0,
        **options: Any,
    ) -> ParetoFront:
        """Searches for the best set of every size in one run.

        Ctrl-C, `max_seconds` and `max_passes` end the search with the best found so far; with
        `checkpoint`, a file, the same call goes on where it stopped.

        Args:
            max_budget: Largest size: a count (int) or a share (float). None: all components.
            objective: What the search maximises over the examples, as in `run`. By default
                `auto`, or `mean` without statistics or with `keep`. With `auto` no sets are made
                for single examples unless you ask for them (`start_from_examples=True`).
            keep: What is to stay as it is: the front holds the sets within its bound.
            statistics: Whether to measure held-out effects, random controls and stability, at up
                to 12 sizes. That takes two searches on half the examples each, about as long as
                the front itself; their passes are in `statistics_cost`, and limits apply to each
                of the three searches. The same halves serve `auto`. `max_memory` bounds what each
                holds; while a half is searched, two are held.
            observe: As in `run`.
            seed: Seed of the search, of the halves and of the controls.
            **options: Fields of `LocalSearch`, e.g. `max_passes=300`.

        Raises:
            UnknownNameError, ConfigError: About the options.
            BudgetError: About `max_budget`.
            NotDifferentiableError: The metric has no gradient.
            NothingFoundError: A limit was reached before any set was measured.
            NothingFoundError: No set that was measured stays within the bound of `keep`.
            ResultFormatError: The checkpoint is damaged, or of another search, model or data set.
        """
        check_seed(seed)
        run = self._pareto_run(max_budget, objective, keep, statistics, seed, options)
        self._look_once()
        with self._observed(observe, run) as observed:
            front = run.front(statistics=statistics, on_note=observed.step)
            observed.results(front.results)
        return front

    def estimate(
        self,
        method: MethodChoice | type | Search = "pgb-ct",
        *,
        budget: int | float | None = None,
        budgets: Sequence[int | float] | None = None,
        target_effect: float | None = None,
        objective: ObjectiveName | Objective = "mean",
        keep: Keep | None = None,
        **options: Any,
    ) -> Estimate:
        """What `run` with these arguments will take: passes, time and memory.

        Runs nothing but one timed probe, of a few sets and, for methods that learn, a gradient.

        ```python
        print(tracer.estimate("pgb-ct", budget=6))
        print(tracer.estimate("greedy", budgets=[2, 4, 6]).seconds)
        ```

        Args:
            method: As in `run`.
            budget: As in `run`.
            budgets: As in `run`.
            target_effect: As in `run`.
            objective: As in `run`.
            keep: As in `run`.
            **options: As in `run`.

        Raises:
            ConfigError: A search of one's own that does not say how many passes it takes.
            UnknownNameError, ConfigError: About the search.
            BudgetError: About the budget.
        """
        search = make(method, options)
        goal = Goal.make(
            len(self.registry), budget=budget, budgets=budgets, target_effect=target_effect
        )
        if getattr(search, "lambda1", None) is None:
            goal.require(search.name)
        checks.check_unchanged(self.engine)
        run = self._run_of(search, goal, objective, keep, 0)
        return estimate(run.question(), self.engine)

    def estimate_pareto(
        self,
        *,
        max_budget: int | float | None = None,
        objective: ObjectiveName | Objective | None = None,
        keep: Keep | None = None,
        statistics: bool = True,
        **options: Any,
    ) -> Estimate:
        """What `pareto` with these arguments will take at most; see `estimate`.

        `passes` are those of the front; `example_passes` and `seconds` hold the statistics too.

        Args:
            max_budget: As in `pareto`.
            objective: As in `pareto`.
            keep: As in `pareto`.
            statistics: As in `pareto`.
            **options: As in `pareto`.

        Raises:
            UnknownNameError, ConfigError: About the options.
            BudgetError: About `max_budget`.
        """
        checks.check_unchanged(self.engine)
        run = self._pareto_run(max_budget, objective, keep, statistics, 0, options)
        return estimate(run.question(statistics=statistics), self.engine)

    def _pareto_run(
        self,
        max_budget: int | float | None,
        objective: ObjectiveName | Objective | None,
        keep: Keep | None,
        statistics: bool,
        seed: int,
        options: Mapping[str, Any],
    ) -> SearchRun:
        search = make(LocalSearch, options)
        goal = Goal.make(len(self.registry), budget=1.0 if max_budget is None else max_budget)
        if objective is None:
            has_halves = statistics and self.engine.n_examples >= FEWEST_EXAMPLES
            objective = "auto" if has_halves and keep is None else "mean"
        return self._run_of(search, goal, objective, keep, seed)

    def _run_of(
        self,
        search: Search,
        goal: Goal,
        objective: ObjectiveName | Objective,
        keep: Keep | None,
        seed: int,
    ) -> SearchRun:
        return SearchRun(
            traced=self._traced(),
            search=as_judged(search) if objective == "auto" else search,
            goal=goal,
            objective=objective,
            keeping=None if keep is None else (keep, self._engine_that_keeps(keep)),
            seed=seed,
        )

    def _observed(self, observe: Observer | None, run: SearchRun) -> Observed:
        """Tells an observer about a run; of several processes, one does."""
        if observe is not None and not callable(observe):
            raise ConfigError(
                f"observe is {shortened(observe)}. Give a callable of a RunRecord, e.g. one of "
                "tracekit.tracer.trackers."
            )
        engine, goal, search = self.engine, run.goal, run.search
        setting = {
            "method": search.name,
            "model": model_name(self.model),
            "dataset": self.pairs.name,
            "dataset_fingerprint": self.pairs.fingerprint,
            "n_examples": len(self.pairs),
            "components": self.registry.describe(),
            "n_components": len(self.registry),
            "metric": engine.metric.name,
            "source": self.source,
            "direction": self.direction,
            "objective": run.objective if isinstance(run.objective, str) else repr(run.objective),
            "budgets": list(goal.budgets),
            "target_effect": goal.target,
            "seed": run.seed,
            **{f"options.{name}": value for name, value in config_of(search).items()},
        }
        return Observed(observe if engine.ranks.is_first else None, setting)

    def _look_once(self) -> None:
        """Warns, before the first search, of effects that say little."""
        if not self._has_looked:
            self._has_looked = True
            diagnostics.warn_of_effects(self.engine)

    def _bar(self, label: str, passes: float | None = None) -> AbstractContextManager[Any]:
        """The one progress bar of work, with an end where its passes are known before."""
        engine = self.engine
        return _progress.run(label, passes, engine.n_examples, shown=engine.config.progress)

    def _traced(self) -> Traced:
        return Traced(
            engine=self.engine,
            source=self.source,
            source_seed=self._source_seed,
            by=self._by,
            also=self.also,
            held_out=self._held_out,
            tracer=weakref.ref(self),
        )

    def _engine_that_keeps(self, keep: Keep) -> Engine:
        """Measures what is to stay as it is."""
        if not isinstance(keep, Keep):
            raise ConfigError(
                f"keep is {shortened(keep)}. Give a tk.Keep, e.g. tk.Keep(pairs=..., at_most=0.05)."
            )
        engine, metric = self.engine, self._resolved([keep.metric])[0]
        pairs = self.pairs if keep.pairs is None else self._asked_of(keep.pairs)
        return Engine(engine.model, pairs, engine.registry, metric, engine.config)

    def _prepared(self, pairs: PromptPairs) -> PromptPairs:
        """Pairs with this tracer's spans and source."""
        told_apart = self._tell_apart(pairs)
        if not self._is_on_spans:
            return self._to_pairs(told_apart)
        # Noise is on the spans that prompts name, whatever is told apart.
        return with_counterfactuals(told_apart, self._to_pairs(pairs))

    def _asked_of(self, pairs: PromptPairs) -> PromptPairs:
        """Other pairs, with this tracer's spans, source and direction."""
        prepared = self._prepared(pairs)
        return prepared if self.direction == "noising" else prepared.reversed()

    def _resolved(self, metrics: Sequence[str | Metric | MetricFunction]) -> tuple[Metric, ...]:
        """Metrics in this tracer's direction."""
        if isinstance(metrics, (str, Metric)):
            raise ConfigError(
                f"The metrics are {shortened(metrics)}. Give a list, e.g. ['kl', 'accuracy']."
            )
        resolved = tuple(map(resolve_metric, metrics))
        names = [metric.name for metric in resolved]
        if len(set(names)) < len(names):
            raise ConfigError(f"A metric is named twice in {names}. Name each one once.")
        is_noising = self.direction == "noising"
        return tuple(m if is_noising else m.denoising() for m in resolved)

    # ---- measuring ------------------------------------------------------------------------

    @overload
    def evaluate(self, mask: Any) -> float: ...

    @overload
    def evaluate(self, mask: Any, *, per_example: bool) -> float | Float[Tensor, " example"]: ...

    @overload
    def evaluate(
        self,
        mask: Any,
        *,
        metrics: Sequence[MetricChoice | Metric | MetricFunction],
        per_example: bool = ...,
    ) -> pd.DataFrame: ...

    def evaluate(
        self,
        mask: Any,
        *,
        metrics: Sequence[MetricChoice | Metric | MetricFunction] | None = None,
        per_example: bool = False,
    ) -> float | Float[Tensor, " example"] | pd.DataFrame:
        """Mean effect of a mask.

        Args:
            mask: Soft or binary, one entry in [0, 1] per component; or with the axes layer and
                component, where one kind is studied whole in every layer; or a list of
                components; or a result, whose selected components are taken.
            metrics: Instead of the tracer's metric, several, all measured in one pass; gives a
                pandas DataFrame with a column per metric and the rows `effect`, `low` and `high`
                (95 % interval), `full_effect` (all components) and `share` of it.
            per_example: Give one effect per example instead of their mean; times the example's
                weight, if examples have weights.

        Raises:
            MaskError: About the mask.
            ComponentError: A component that is not among those of this tracer.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
            NonFiniteMetricError: The metric is NaN or infinite on some examples.
            UnknownNameError, MissingContinuationError: About one of the metrics.
        """
        checks.check_unchanged(self.engine)
        entries = self._as_mask(mask)
        if entries.ndim != 1:
            raise MaskError(
                f"The mask has shape {tuple(entries.shape)}. evaluate() takes one mask with an "
                f"entry for each of the {len(self.registry)} components; call it once per mask."
            )
        if metrics is not None:
            resolved = self._resolved(metrics)
            if not resolved:
                raise ConfigError("metrics is empty. Name at least one, or leave it out.")
            return metric_table(self.engine, entries, resolved, per_example=per_example)
        effects = self.engine.effects(entries)
        return effects if per_example else effects.mean().item()

    def both(self, members: Any) -> pd.DataFrame:
        """What a set does in both directions: is it necessary, is it sufficient?

        Noising: the set takes counterfactual values, everything else stays clean. Denoising: the
        set takes clean values, everything else stays counterfactual.

        Args:
            members: A result, a list of components or a mask, as in `evaluate`.

        Returns:
            A pandas DataFrame with the rows `noising` and `denoising` and the columns `effect`,
            `low` and `high` (95 % interval), `full_effect` (all components), `share` of it.

        Raises:
            PairsError: The source is no run of the model that denoising could start from.
            MaskError, ComponentError: About the set.
        """
        import pandas as pd

        checks.check_unchanged(self.engine)
        entries = self._as_mask(members)
        rows = {}
        for direction in get_args(Direction):
            engine = self._engine_in(direction)
            effects, full_effects = engine.effects(entries), engine.full_effects
            rows[direction] = effect_row(effects, full_effects, engine.pairs.weights)
        return pd.DataFrame.from_dict(rows, orient="index")

    def faithfulness(self, members: Any, *, ranking: Ranking | None = None) -> Faithfulness:
        """How much sets of components do alone, and how much is left without them.

        Args:
            members: A result, a list of components or a mask; a curve or a front, for all of its
                sets; or, with `ranking`, a score for each component.
            ranking: Take the components with the highest scores at each share of the MIB
                benchmark: by the scores themselves (`signed`) or their absolute values
                (`absolute`). Of a result, by what its method ranked by.

        Raises:
            ConfigError: Another ranking.
            MaskError, ComponentError: About the set, or soft masks.
        """
        checks.check_unchanged(self.engine)
        method = getattr(members, "method", "")
        if ranking is not None:
            if ranking not in get_args(Ranking):
                raise ConfigError(f"Unknown ranking {ranking!r}. Use 'signed' or 'absolute'.")
            sets = prefix_sets(self._scores_of(members), ranking)
            return measure_faithfulness(
                self.engine, sets, shares=MIB_SHARES, how=ranking, method=method
            )
        if isinstance(members, ParetoFront) and members.largest == len(self.registry):
            n = len(self.registry)
            chosen = [
                self._members(members.at(int(share * n))) if share * n >= members.sizes[0] else ()
                for share in MIB_SHARES
            ]
            # All components, of which no set of fewer may do better.
            chosen[-1] = tuple(range(n))
            return measure_faithfulness(
                self.engine, chosen, shares=MIB_SHARES, method=members[0].method
            )
        if isinstance(members, (ParetoFront, TraceCurve)):
            sets = [self._members(result) for result in members]
            return measure_faithfulness(self.engine, sets, method=members[0].method)
        return measure_faithfulness(self.engine, [self._members(members)], method=method)

    def _members(self, members: Any) -> ComponentSet:
        """Flat indices of the components of a result, a list or a binary mask."""
        entries = self._as_mask(members)
        if entries.ndim != 1 or not ((entries == 0) | (entries == 1)).all():
            raise MaskError(
                "Only sets of components can be asked about here. Give a result, a list of "
                "components, or one mask of zeros and ones."
            )
        return tuple(entries.nonzero()[:, 0].tolist())

    def _scores_of(self, members: Any) -> Tensor:
        if isinstance(members, TraceResult):
            by_component = members.ranked_by
            self.registry.check_same(self.registry, members.registry)
            order = [members.registry.index(component) for component in self.registry]
            return by_component[order]
        try:
            scores = torch.as_tensor(members, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            raise MaskError(
                f"A ranking is of scores, and {shortened(members)} was given. Give a result, or "
                f"one number for each of the {len(self.registry)} components."
            ) from error
        if scores.shape != (len(self.registry),) or not torch.isfinite(scores).all():
            raise MaskError(
                f"The scores have shape {tuple(scores.shape)} or are not finite. Give one number "
                f"for each of the {len(self.registry)} components."
            )
        return scores

    def explain(
        self,
        members: Any,
        *,
        max_sets: int = 2000,
        tolerance: float = 0.02,
        look_outside: bool | None = None,
        seed: int = 0,
    ) -> Explanation:
        """Why a set acts together: what each member brings, who interacts, who can be replaced.

        ```python
        why = tracer.explain(tracer.run(budget=4))
        print(why)
        why.table, why.interactions, why.additivity, why.redundant, why.backups
        ```

        Args:
            members: A result, a list of components or a mask of zeros and ones; for a size of a
                front, `front.at(size)`.
            max_sets: Of more than 12 members, the subsets to measure at most for their values.
            tolerance: Share of the effect that may be lost without redundant members.
            look_outside: Whether to look for outsiders that replace or back up a member. By
                default where the metric has a gradient, which proposes them.
            seed: Draws the orders in which more than 12 members join.

        Raises:
            ComponentError: Fewer than two members, or others than of this tracer.
            MaskError: About the mask.
            ConfigError: About the options.
            NotDifferentiableError: Outsiders are asked for, and the metric has no gradient.
            NonFiniteMetricError: The metric is not finite on a subset; names both.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
        """
        check_seed(seed)
        checks.check_unchanged(self.engine)
        chosen, outside = self._members(members), self._looks_outside(look_outside)
        planned = planned_explanation(
            self.registry, chosen, max_sets=max_sets, look_outside=outside
        )
        with self._bar("explain", planned.cost.forward_equivalents):
            return explain_set(
                self.engine,
                chosen,
                max_sets=max_sets,
                tolerance=tolerance,
                look_outside=outside,
                seed=seed,
                model=model_name(self.model),
                source=self.source,
            )

    def estimate_explain(
        self, members: Any, *, max_sets: int = 2000, look_outside: bool | None = None
    ) -> Estimate:
        """What `explain` with these arguments will take; see `estimate`.

        The time is an upper bound: subsets share what lies below the first layer in which they
        differ, which a probe of single sets does not see.

        Args:
            members: As in `explain`.
            max_sets: As in `explain`.
            look_outside: As in `explain`.

        Raises:
            ComponentError, MaskError, ConfigError: As in `explain`.
            NotDifferentiableError: As in `explain`.
            IdentityCheckError: As in `explain`.
        """
        checks.check_unchanged(self.engine)
        planned = planned_explanation(
            self.registry,
            self._members(members),
            max_sets=max_sets,
            look_outside=self._looks_outside(look_outside),
        )
        return estimate_planned("explain", planned, self.engine)

    def _looks_outside(self, asked: bool | None) -> bool:
        """Whether `explain` looks for outsiders, which takes a metric with a gradient."""
        metric = self.engine.metric
        if asked:
            require_gradient(metric, "explain(look_outside=True)")
        return metric.differentiable if asked is None else asked

    def as_game(self, members: Any) -> SetGame:
        """The effect of every subset of a set, as libraries for cooperative games take it.

        ```python
        game = tracer.as_game(result)
        shapiq.KernelSHAPIQ(n=game.n_players, max_order=2).approximate(budget=200, game=game)
        ```

        Args:
            members: As in `explain`.
        """
        return SetGame(self.engine, self._members(members))

    def side_effects(
        self,
        members: Any,
        others: Mapping[
            str, PromptPairs | tuple[PromptPairs, MetricChoice | Metric | MetricFunction]
        ],
        *,
        draws: int = 20,
        seed: int = 0,
    ) -> SideEffects:
        """What a set does to other data and by other metrics, against random sets of its layers.

        ```python
        side = tracer.side_effects(result, {"neutral": (text, "kl"), "other task": pairs})
        print(side)
        side.to_frame(), side.figure()
        ```

        Each data set is measured with this tracer's components, source and direction.

        Args:
            members: As in `explain`; one component is enough.
            others: By name, pairs, which are measured by the tracer's metric, or pairs with a
                metric. As the tracer was given its own: denoising reverses them.
            draws: Random sets with as many components of every kind in every layer, the same for
                all data. `p` cannot be below 1 / (draws + 1).
            seed: Draws them.

        Raises:
            PairsError: There are no others, or something else than pairs, or all components
                together change nothing on them.
            ConfigError: About the number of draws, or the seed.
            MissingContinuationError, PairsError: The others do not suit the metric, the
                model or the components.
            MaskError, ComponentError: About the set.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
        """
        check_seed(seed)
        checks.check_unchanged(self.engine)
        engines = self._engines_of(others)
        with self._bar("side effects"):
            return measure_side_effects(
                self.engine,
                engines,
                self._members(members),
                draws=draws,
                seed=seed,
                model=model_name(self.model),
                source=self.source,
            )

    def _engines_of(self, others: Mapping[str, Any]) -> dict[str, Engine]:
        """Engines that ask this tracer's question of other data, or by other metrics."""
        if not isinstance(others, Mapping) or not others:
            raise PairsError(
                f"The others are {shortened(others)}. Give a mapping from names to pairs, e.g. "
                "{'neutral': pairs} or {'neutral': (pairs, 'kl')}."
            )
        engines = {}
        for name, given in others.items():
            pairs, metric = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
            if name == TARGET or not isinstance(name, str) or not isinstance(pairs, PromptPairs):
                raise PairsError(
                    f"Under {name!r} stands {shortened(given)}. Give pairs, or pairs with a "
                    f"metric, under a name other than {TARGET!r}."
                )
            asked = self.engine.metric if metric is None else self._resolved([metric])[0]
            engines[name] = Engine(
                self.model, self._asked_of(pairs), self.registry, asked, self.engine.config
            )
        return engines

    def from_mib(self, path: str | Path) -> Tensor:
        """Reads importances of a file of the MIB benchmark, one for each component.

        Measure them by `faithfulness(scores, ranking="signed")`.

        Raises:
            DataFormatError: The file is none, or is of another model or other components.
        """
        return read_mib(Path(path), self.registry, model_sizes(self.model.cfg))

    def _engine_in(self, direction: str) -> Engine:
        """This tracer's engine, or one that asks in the other direction; made once."""
        if direction == self.direction:
            return self.engine
        if direction not in self._engines:
            asked = self._noising if direction == "noising" else self._noising.reversed()
            engine = self.engine
            self._engines[direction] = Engine(
                engine.model, asked.pairs, engine.registry, asked.metric, engine.config
            )
        return self._engines[direction]

    @overload
    def interactions(
        self,
        components: Sequence[Component] | None = ...,
        *,
        layers: Sequence[int] | None = ...,
        given: Any = ...,
        order: Literal[2] = ...,
        both_directions: bool = ...,
    ) -> InteractionGrid: ...

    @overload
    def interactions(
        self,
        components: Sequence[Component],
        *,
        given: Any = ...,
        order: Literal[3],
    ) -> TripleInteractions: ...

    def interactions(
        self,
        components: Sequence[Component] | None = None,
        *,
        layers: Sequence[int] | None = None,
        given: Any = None,
        order: Literal[2, 3] = 2,
        both_directions: bool = False,
    ) -> InteractionGrid | TripleInteractions:
        """Measures every pair of components: l({i, j}) - l({i}) - l({j}).

        Every interaction has a 95 % interval over examples and a p value that is corrected for
        all pairs.

        Args:
            components: The components; all by default.
            layers: Only those in these layers.
            given: What is patched besides, in every set: a result, a list of components or a mask
                of zeros and ones. Then l is what a set adds to it.
            order: 3 measures all triples of 3 to 24 named components instead, and gives
                `TripleInteractions`.
            both_directions: Whether to measure the pairs by noising and by denoising, which tells
                AND from OR: the column `kind` of the table. `given` takes the values of each
                direction.

        Raises:
            ComponentError: Fewer than two components, or so many that the grid would be
                unreadable and its passes countless; or one that is patched besides.
            ConfigError: Another order, or both directions of triples.
            PairsError: The source is no run of the model that denoising could start from.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
        """
        checks.check_unchanged(self.engine)
        if order not in (2, 3):
            raise ConfigError(f"order is {shortened(order)}. Use 2 for pairs or 3 for triples.")
        if order == 3 and (both_directions or components is None):
            raise ConfigError(
                "order=3 takes a list of components, and one direction. Name the components, and "
                "leave both_directions out."
            )
        context = self._members_or_none(given)
        paired = self._paired(components, layers, context, MOST_IN_TRIPLES if order == 3 else None)
        title = f"{self.pairs.name} data, {model_name(self.model)} model"
        if order == 3:
            return measure_triples(self.engine, paired, title=title, given=context)
        grid = measure_pairs(self.engine, paired, title=title, given=context)
        if not both_directions:
            return grid
        other = "denoising" if self.direction == "noising" else "noising"
        opposite = measure_pairs(self._engine_in(other), paired, title=title, given=context)
        return replace(grid, opposite=opposite)

    def strongest_pairs(
        self,
        count: int = 20,
        *,
        components: Sequence[Component] | None = None,
        given: Any = None,
        n_looked_at: int = 64,
        race: bool = False,
        seed: int = 0,
    ) -> StrongestPairs:
        """Finds the pairs that interact most among any number of components.

        `interactions` measures every pair. Of thousands of components, this method proposes pairs
        from gradients on one half of the examples, measures five times as many as asked for (at
        least 100), and tests them on the other half. See `docs/interactions.md` for how many of
        the strongest pairs it finds.

        Args:
            count: Pairs wanted.
            components: The components; all by default.
            given: What is patched besides, in every set, as in `interactions`.
            n_looked_at: Components whose interactions with all others are predicted, one by one;
                the more, the more passes, and the fewer pairs are missed.
            race: Whether pairs that are far behind on a part of the proposing half are measured no
                further. From 192 examples on; what is reported is measured on all.
            seed: Draws the halves, and the random signs that choose these components.

        Raises:
            ComponentError: Fewer than two components, or one that is patched besides.
            ConfigError: A number of pairs or components that cannot be.
            NotDifferentiableError: The metric has no gradient.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
        """
        checks.check_unchanged(self.engine)
        require_gradient(self.engine.metric, "strongest_pairs")
        context = self._members_or_none(given)
        chosen = self._chosen(components, None, context)
        if len(chosen) < 2:
            raise ComponentError(
                f"{len(chosen)} components were chosen for pairs. Choose at least 2."
            )
        title = f"{self.pairs.name} data, {model_name(self.model)} model"
        return strongest_pairs(
            self.engine,
            chosen,
            count,
            given=context,
            n_looked_at=n_looked_at,
            race=race,
            seed=seed,
            title=title,
        )

    def _paired(
        self,
        components: Sequence[Component] | None,
        layers: Sequence[int] | None,
        given: ComponentSet,
        most_in_triples: int | None,
    ) -> list[int]:
        """Flat indices of the components all of whose pairs or triples are asked for."""
        paired = self._chosen(components, layers, given)
        if most_in_triples is not None and not 3 <= len(paired) <= most_in_triples:
            raise ComponentError(
                f"{len(paired)} components were chosen for triples. Choose 3 to {most_in_triples}."
            )
        if not 2 <= len(paired) <= _MAX_PAIRED:
            raise ComponentError(
                f"{len(paired)} components were chosen for pairs. Choose 2 to {_MAX_PAIRED}, "
                f"for instance by layers; there are components in layers "
                f"{', '.join(map(str, self.registry.layers))}. Of more components, "
                "strongest_pairs finds the pairs that interact most."
            )
        return paired

    def _chosen(
        self,
        components: Sequence[Component] | None,
        layers: Sequence[int] | None,
        given: ComponentSet,
    ) -> list[int]:
        """Flat indices of named components, or of all, that are not patched besides."""
        if components is not None and len(set(components)) < len(components):
            raise ComponentError(
                "A component is named twice among those to be paired. Name each one once."
            )
        rest = [i for i in range(len(self.registry)) if i not in set(given)]
        paired = rest if components is None else [self.registry.index(c) for c in components]
        both = sorted(set(paired) & set(given))
        if both:
            raise ComponentError(
                f"{self.registry.label(both[0])} is among those to be paired and patched in every "
                "set by given. Leave it out of one of them."
            )
        if layers is not None:
            wanted = {n + self.model.cfg.n_layers if n < 0 else n for n in layers}
            paired = [i for i in paired if self.registry[i].layer in wanted]
        return paired

    # ---- exploring ------------------------------------------------------------------------

    def explore(
        self, start: Any = None, *, front: ParetoFront | TraceCurve | None = None
    ) -> Explorer:
        """A view in which components are clicked on and off, and the measured effect follows.

        It needs Jupyter, and the extra `explore`. The set is measured a batch at a time, and the
        latest click wins. Everything that this tracer measured before is at hand at once.

        ```python
        view = tracer.explore(tracer.run(budget=6))
        view  # the last line of a cell shows it
        view.components, view.effect  # what is on screen, in the next cell
        view.save("explore.html")  # everything measured so far, clickable without a kernel
        ```

        Args:
            start: The first set: a result, a list of components or a mask. By default the empty
                set; of a front, its largest set. A front or curve is taken as `front` too.
            front: Sets to move along with a slider.

        Raises:
            MissingExtraError: anywidget is not installed.
            ComponentError: More components than can be shown.
            MaskError, ComponentError: About the first set.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
        """
        try:
            from tracekit.explore.explorer import Explorer
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"The explorer needs {error.name}, which is not installed. "
                "Run pip install 'tracekit[explore]'."
            ) from error
        from tracekit.explore.exploration import Exploration, Measurement

        if isinstance(start, (ParetoFront, TraceCurve)):
            front = start if front is None else front
            start = start[-1]
        results = [*self.results, *(front or ())]
        results += [start] if isinstance(start, TraceResult) else []
        exploration = Exploration(
            self.engine,
            self._members_or_none(start),
            front=[self._members(result) for result in front or ()],
            # Effects of results from elsewhere may be of other data: they are measured again.
            measured=[
                Measurement(self._members(result), result.per_example, weights=result.weights)
                for result in results
                if result.tracer is not None and result.tracer() is self
            ],
        )
        return Explorer(
            exploration,
            to_members=self._members_or_none,
            to_result=self._result_by_hand,
            source=self.source,
            front_name="Pareto front" if isinstance(front, ParetoFront) else "Budget",
        )

    def _members_or_none(self, members: Any) -> ComponentSet:
        """As `_members`, where nothing or an empty list is the empty set."""
        is_empty = members is None or (isinstance(members, Sequence) and not len(members))
        return () if is_empty else self._members(members)

    def _result_by_hand(self, members: ComponentSet, effects: Effects) -> TraceResult:
        """A set that no search selected, as a result."""
        mask = masks.from_indices(members, len(self.registry))
        selection = Selection(mask=mask, effects=effects)
        spent = Spent(Cost(1, 0), 0.0)
        return self._traced().result(_ByHand(), selection, Goal(), 0, spent)

    def _as_mask(self, mask: Any) -> Tensor:
        is_result = isinstance(mask, TraceResult)
        # By component: another registry may have as many entries that mean something else.
        members = mask.components if is_result else mask
        if is_result or (isinstance(mask, Sequence) and mask and isinstance(mask[0], Component)):
            if is_result:
                self.registry.check_same(members, mask.registry)
            entries = torch.zeros(len(self.registry))
            entries[[self.registry.index(component) for component in members]] = 1
            return entries
        entries = masks.as_tensor(mask, len(self.registry))
        return entries.flatten() if tuple(entries.shape) == self.registry.grid_shape else entries

    # ---- drawing --------------------------------------------------------------------------

    def heatmap(
        self, result: TraceResult | None = None, *, color: figures.Color = "selected"
    ) -> go.Figure:
        """Per-layer selection heatmap of a result, by default the last.

        Args:
            result: The result.
            color: What the colour of a cell says: `selected`, `soft`, `score`, `rank` or `none`
                (see `figures.heatmap`).

        Raises:
            NoResultError: Nothing was run yet.
        """
        from tracekit import figures

        return figures.heatmap(result or self._require_results()[-1], color=color)

    def curve(self, results: TraceResult | Sequence[TraceResult] | None = None) -> go.Figure:
        """Effect against number of components, a line per method, by default of all runs.

        Raises:
            NoResultError: Nothing was run yet.
        """
        from tracekit import figures

        drawn = [results] if isinstance(results, TraceResult) else results
        return figures.curve(drawn or self._require_results())

    def _require_results(self) -> list[TraceResult]:
        if not self.results:
            raise NoResultError("There is no result to draw yet. Call run() first.")
        return self.results


def _is_shown(progress: bool | None) -> bool:
    # Of several processes that share a trace, one is watched.
    return (_progress.is_wanted() if progress is None else progress) and Ranks.joined().is_first


def _check_split(
    by: By | None,
    positions: Positions,
    registry: ComponentRegistry | None,
    pairs: PromptPairs,
    selection: Sequence[Any],
) -> None:
    """Refuses components, spans and positions that contradict each other."""
    if by is not None and by not in get_args(By):
        raise ConfigError(f"Unknown by={by!r}. Use 'span' or 'position'.")
    if registry is not None and any(given is not None for given in selection):
        raise ComponentError(
            "layers, indices or windows were given along with a registry, which has its own. "
            "Leave them out, or give kinds instead of a registry."
        )
    if registry is not None and by is not None and not registry.spans:
        raise ComponentError(f"by={by!r} was given along with a registry without spans. Leave it.")
    tells_apart = by is not None or (registry is not None and registry.spans)
    if tells_apart and by is None and not pairs.told_apart:
        raise PairsError(
            "The registry tells spans of the prompts apart, and the pairs do not. Say "
            "by='span' or by='position', as where the registry was made."
        )
    if tells_apart and positions != "prompt":
        raise ConfigError(
            f"Both spans and positions={positions!r} say where to intervene. Leave one out."
        )
