"""Tracer, the entry point: binds a model, a data set, components and a metric."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args, overload

from jaxtyping import Float
from torch import Tensor
from typing_extensions import Unpack

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
from tracekit.components.members import mask_of, members_of
from tracekit.data.prompts import PromptPairs
from tracekit.engine import checks
from tracekit.engine.capabilities import Capabilities
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.engine.pair_checks import check_continuations
from tracekit.engine.prepared import EngineConfig
from tracekit.engine.setup import Components, Setup, SetupOptions
from tracekit.engine.sources import name_of
from tracekit.errors import (
    ConfigError,
    MaskError,
    MissingExtraError,
    NoResultError,
    PairsError,
    SearchStoppedWarning,
)
from tracekit.metrics import Direction, Effects, Metric, MetricFunction, MetricName
from tracekit.models import HookedModel, load_model, model_name
from tracekit.results.faithfulness import Faithfulness, Ranking, faithfulness_of
from tracekit.results.interactions import (
    MOST_IN_GRID,
    InteractionGrid,
    chosen_for_pairs,
    measure_pairs,
)
from tracekit.results.metric_table import effect_row, metric_table
from tracekit.results.mib import model_sizes, read_mib
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceCurve, TraceResult
from tracekit.results.strongest_pairs import StrongestPairs, strongest_pairs
from tracekit.search import Goal, LocalSearch, MethodName, Search, Selection, make
from tracekit.search.base import config_of, require_gradient
from tracekit.search.cross_fit import FEWEST_EXAMPLES, as_judged
from tracekit.search.objectives import Objective, ObjectiveName
from tracekit.search.targets import Constraint, Target
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


@dataclass(frozen=True)
class _ByHand:
    """Stands for the search of a set that somebody clicked together."""

    name: ClassVar[str] = "by-hand"
    title: ClassVar[str] = "by hand"

    def search(self, engine: Target, goal: Goal, seed: int) -> list[Selection]:
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
        components: Components | Setup = "attention-patterns",
        metric: MetricChoice | Metric | MetricFunction | None = None,
        *,
        held_out: PromptPairs | None = None,
        extra_metrics: Sequence[MetricChoice | Metric] = (),
        max_batch_size: int = 64,
        max_memory: int | None = None,
        progress: bool | None = None,
        capabilities: Capabilities | None = None,
        **options: Unpack[SetupOptions],
    ) -> None:
        """Binds them, and checks that every hook acts.

        Args:
            model: A TransformerLens model, or anything `load_model` takes.
            pairs: The data set.
            components: Kind or kinds (see `tracekit.components.KINDS`), joined by `+` or in a
                list; a `Kind` of one's own; a registry; or a `Setup`, which says the metric and
                the options too.
            metric: Name of a metric (see `tracekit.metrics.METRICS`), a `Metric`, or a callable
                of the clean and the intervened `ContinuationLogProbs`. Default: `odds-ratio`.
            held_out: Examples that no search sees; every result says what its selection does on
                them (`TraceResult.held_out_effect`). `pairs.split` makes some.
            extra_metrics: Further metrics; every result says what its selection does by each of
                them. They guide no search.
            max_batch_size: Examples per pass; bounds memory, changes no result.
            max_memory: Bytes that the activations of the counterfactual run may take on the
                model's device; see `EngineConfig`. Changes no result.
            progress: Whether every run shows one progress bar, with the time that is left. None: in
                notebooks and terminals.
            capabilities: Optimisations to use. None: those that the model supports;
                `Capabilities.none()`: the plain way, with equal results.
            **options: Fields of `Setup`: `layers`, `indices`, `positions`, `split_by`,
                `layer_window`, `source`, `source_seed`, `direction`, `continuation_mean`.

        Raises:
            HookPointError: A component cannot be intervened on in this model.
            IdentityCheckError: The empty mask has an effect, or the full mask has none.
            SourceError: The source is unknown, or does not suit the data or the components.
            PairsError: The prompts have no spans, or not all the same ones.
            PairsError: Denoising from a source that is no run of the model.
            ConfigError: A setup along with a metric or options, or options that contradict.
        """
        if not isinstance(components, Setup):
            named = "odds-ratio" if metric is None else metric
            components = Setup(components=components, metric=named, **options)
        elif metric is not None or options:
            raise ConfigError(
                "A setup was given along with a metric or options, which it has. Leave them out, "
                "or use dataclasses.replace(setup, ...)."
            )
        self.model = model if isinstance(model, HookedModel) else load_model(model)
        config = EngineConfig(
            max_batch_size=max_batch_size,
            max_memory=max_memory,
            progress=_is_shown(progress),
            capabilities=capabilities,
        )
        further = [] if held_out is None else [held_out]
        self._bound = components.bind(self.model, pairs, config, further=further)
        self.setup: Setup = self._bound.named
        """What is traced and how, with metric and source by their names."""
        self._given = pairs
        self.engine = self._bound.engine(pairs)
        self.extra_metrics = self._bound.metrics(extra_metrics)
        """Further metrics that every result is measured by."""
        for each in self.extra_metrics:
            check_continuations(self.engine.pairs, each)
        checks.check_engine(self.engine)
        self._held_out = None if held_out is None else self._bound.engine(held_out)
        self._has_looked = False
        self._front: ParetoFront | None = None
        self.results: list[TraceResult] = []
        """All results of `run`, in order."""

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
        """Whether counterfactual values are patched in (`noising`) or clean ones back."""
        return self.setup.direction

    @property
    def source(self) -> str:
        """Where the values come from that are patched in."""
        return name_of(self.setup.source)

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
            ("positions", str(self.setup.positions)),
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
        constraint: Constraint | None = ...,
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
        constraint: Constraint | None = ...,
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
        constraint: Constraint | None = None,
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
            constraint: A metric to leave within bounds: only sets within them are given back.
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
            NothingFoundError: No set that was tried stays within the bound of `constraint`.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
        """
        check_seed(seed)
        search = make(method, options)
        goal = Goal.make(
            len(self.registry), budget=budget, budgets=budgets, target_effect=target_effect
        )
        run = self._run_of(search, goal, objective, constraint, seed)
        self._look_once()
        with self._observed(observe, run) as observed:
            results = run.results(observed.step)
            observed.results(results)
        self.results += results
        self._front = None
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
        constraint: Constraint | None = None,
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
                `auto`, or `mean` without statistics or with a constraint. With `auto` no sets are
                made for single examples unless you ask for them (`start_from_examples=True`).
            constraint: A metric to leave within bounds: the front holds the sets within them.
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
            NothingFoundError: No set that was measured stays within the bound of `constraint`.
            ResultFormatError: The checkpoint is damaged, or of another search, model or data set.
        """
        check_seed(seed)
        run = self._pareto_run(max_budget, objective, constraint, statistics, seed, options)
        self._look_once()
        with self._observed(observe, run) as observed:
            front = run.front(statistics=statistics, on_note=observed.step)
            observed.results(front.results)
        self._front = front
        return front

    def estimate(
        self,
        method: MethodChoice | type | Search = "pgb-ct",
        *,
        budget: int | float | None = None,
        budgets: Sequence[int | float] | None = None,
        target_effect: float | None = None,
        objective: ObjectiveName | Objective = "mean",
        constraint: Constraint | None = None,
        **options: Any,
    ) -> Estimate:
        """What `run` with these arguments will take: passes, time and memory.

        Runs nothing but one timed probe, of a few sets and, for methods that learn, a gradient.

        ```python
        print(tracer.estimate("pgb-ct", budget=6))
        print(tracer.estimate("greedy", budgets=[2, 4, 6]).seconds)
        ```

        Args:
            method: As in `run`, like all arguments.
            budget: One size.
            budgets: Several sizes.
            target_effect: An effect to reach.
            objective: What is maximised.
            constraint: What is to stay within bounds.
            **options: Fields of the search.

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
        run = self._run_of(search, goal, objective, constraint, 0)
        return estimate(run.question(), self.engine)

    def estimate_pareto(
        self,
        *,
        max_budget: int | float | None = None,
        objective: ObjectiveName | Objective | None = None,
        constraint: Constraint | None = None,
        statistics: bool = True,
        **options: Any,
    ) -> Estimate:
        """What `pareto` with these arguments will take at most; see `estimate`.

        `passes` are those of the front; `example_passes` and `seconds` hold the statistics too.

        Args:
            max_budget: As in `pareto`.
            objective: As in `pareto`.
            constraint: As in `pareto`.
            statistics: As in `pareto`.
            **options: As in `pareto`.

        Raises:
            UnknownNameError, ConfigError: About the options.
            BudgetError: About `max_budget`.
        """
        checks.check_unchanged(self.engine)
        run = self._pareto_run(max_budget, objective, constraint, statistics, 0, options)
        return estimate(run.question(statistics=statistics), self.engine)

    def _pareto_run(
        self,
        max_budget: int | float | None,
        objective: ObjectiveName | Objective | None,
        constraint: Constraint | None,
        statistics: bool,
        seed: int,
        options: Mapping[str, Any],
    ) -> SearchRun:
        search = make(LocalSearch, options)
        goal = Goal.make(len(self.registry), budget=1.0 if max_budget is None else max_budget)
        if objective is None:
            has_halves = statistics and self.engine.n_examples >= FEWEST_EXAMPLES
            objective = "auto" if has_halves and constraint is None else "mean"
        return self._run_of(search, goal, objective, constraint, seed)

    def _run_of(
        self,
        search: Search,
        goal: Goal,
        objective: ObjectiveName | Objective,
        constraint: Constraint | None,
        seed: int,
    ) -> SearchRun:
        return SearchRun(
            traced=self._traced(),
            search=as_judged(search) if objective == "auto" else search,
            goal=goal,
            objective=objective,
            keeping=None
            if constraint is None
            else (constraint, self._engine_of_constraint(constraint)),
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
            setup=self.setup,
            also=self.extra_metrics,
            held_out=self._held_out,
            tracer=weakref.ref(self),
        )

    def _engine_of_constraint(self, constraint: Constraint) -> Engine:
        """The engine that measures the constraint."""
        if not isinstance(constraint, Constraint):
            raise ConfigError(
                f"constraint is {shortened(constraint)}. Give a tk.Constraint, e.g. "
                "tk.Constraint(pairs=..., at_most=0.05)."
            )
        pairs = self._given if constraint.pairs is None else constraint.pairs
        return self._bound.engine(pairs, metric=constraint.metric)  # type: ignore[arg-type]

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
        entries = mask_of(mask, self.registry)
        if entries.ndim != 1:
            raise MaskError(
                f"The mask has shape {tuple(entries.shape)}. evaluate() takes one mask with an "
                f"entry for each of the {len(self.registry)} components; call it once per mask."
            )
        if metrics is not None:
            resolved = self._bound.metrics(metrics)
            if not resolved:
                raise ConfigError("metrics is empty. Name at least one, or leave it out.")
            return metric_table(self.engine, entries, resolved, per_example=per_example)
        effects = self.engine.effects(entries)
        return effects if per_example else effects.mean().item()

    def noising_and_denoising(self, members: Any) -> pd.DataFrame:
        """The effect of a set in both directions: is it necessary, is it sufficient?

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
        entries = mask_of(members, self.registry)
        engines = {d: self._engine_in(d) for d in get_args(Direction)}
        rows = {
            direction: effect_row(
                engine.effects(entries), engine.full_effects, engine.pairs.weights
            )
            for direction, engine in engines.items()
        }
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
        return faithfulness_of(self.engine, members, ranking)

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
        chosen = members_of(members, self.registry)
        outside = self._looks_outside(look_outside)
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
            members_of(members, self.registry),
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
        return SetGame(self.engine, members_of(members, self.registry))

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
                members_of(members, self.registry),
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
            engines[name] = self._bound.engine(pairs, metric=metric)
        return engines

    def from_mib(self, path: str | Path) -> Tensor:
        """Reads importances of a file of the MIB benchmark, one for each component.

        Measure them by `faithfulness(scores, ranking="signed")`.

        Raises:
            DataFormatError: The file is none, or is of another model or other components.
        """
        return read_mib(Path(path), self.registry, model_sizes(self.model.cfg))

    def _engine_in(self, direction: Direction) -> Engine:
        """The engine of the data set in a direction."""
        return self.engine if direction == self.direction else self._opposite

    @cached_property
    def _opposite(self) -> Engine:
        other: Direction = "denoising" if self.direction == "noising" else "noising"
        return self._bound.engine(self._given, direction=other)

    def interactions(
        self,
        components: Sequence[Component] | None = None,
        *,
        layers: Sequence[int] | None = None,
        given: Any = None,
        both_directions: bool = False,
    ) -> InteractionGrid:
        """Measures every pair of components: l({i, j}) - l({i}) - l({j}).

        Every interaction has a 95 % interval over examples and a p value that is corrected for
        all pairs.

        Args:
            components: The components; all by default.
            layers: Only those in these layers.
            given: What is patched besides, in every set: a result, a list of components or a mask
                of zeros and ones. Then l is what a set adds to it.
            both_directions: Whether to measure the pairs by noising and by denoising, which tells
                AND from OR: the column `kind` of the table. `given` takes the values of each
                direction.

        Raises:
            ComponentError: Fewer than two components, or so many that the grid would be
                unreadable and its passes countless; or one that is patched besides.
            PairsError: The source is no run of the model that denoising could start from.
            IdentityCheckError: The model's weights or hooks changed since the Tracer was built.
        """
        checks.check_unchanged(self.engine)
        context = members_of(given, self.registry, or_none=True)
        if layers is not None:
            n_layers = self.model.cfg.n_layers
            layers = [layer + n_layers if layer < 0 else layer for layer in layers]
        paired = chosen_for_pairs(
            self.registry, components, given=context, layers=layers, most=MOST_IN_GRID
        )
        grid = measure_pairs(self.engine, paired, title=self._title, given=context)
        if not both_directions:
            return grid
        opposite = measure_pairs(self._opposite, paired, title=self._title, given=context)
        return replace(grid, opposite=opposite)

    @property
    def _title(self) -> str:
        return f"{self.pairs.name} data, {model_name(self.model)} model"

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
        context = members_of(given, self.registry, or_none=True)
        chosen = chosen_for_pairs(self.registry, components, given=context)
        return strongest_pairs(
            self.engine,
            chosen,
            count,
            given=context,
            n_looked_at=n_looked_at,
            race=race,
            seed=seed,
            title=self._title,
        )

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
            members_of(start, self.registry, or_none=True),
            front=[members_of(result, self.registry) for result in front or ()],
            # Effects of results from elsewhere may be of other data: they are measured again.
            measured=[
                Measurement(
                    members_of(result, self.registry), result.per_example, weights=result.weights
                )
                for result in results
                if result.tracer is not None and result.tracer() is self
            ],
        )
        return Explorer(
            exploration,
            to_members=lambda given: members_of(given, self.registry, or_none=True),
            to_result=self._result_by_hand,
            source=self.source,
            front_name="Pareto front" if isinstance(front, ParetoFront) else "Budget",
        )

    def _result_by_hand(self, members: ComponentSet, effects: Effects) -> TraceResult:
        """A set that no search selected, as a result."""
        mask = masks.from_indices(members, len(self.registry))
        selection = Selection(mask=mask, effects=effects)
        spent = Spent(Cost(1, 0), 0.0)
        return self._traced().result(_ByHand(), selection, Goal(), 0, spent)

    # ---- drawing --------------------------------------------------------------------------

    def heatmap(
        self, result: TraceResult | None = None, *, color: figures.Color = "selected"
    ) -> go.Figure:
        """Per-layer selection heatmap of a result, by default the last or a front's largest.

        Args:
            result: The result.
            color: What the colour of a cell says: `selected`, `soft`, `score`, `rank` or `none`
                (see `figures.heatmap`).

        Raises:
            NoResultError: Nothing was run yet.
        """
        from tracekit import figures

        return figures.heatmap(result or self._latest()[-1], color=color)

    def curve(self, results: TraceResult | Sequence[TraceResult] | None = None) -> go.Figure:
        """Effect against number of components, a line per method.

        By default of all runs, or of the front if that came last.

        Raises:
            NoResultError: Nothing was run yet.
        """
        from tracekit import figures

        drawn = [results] if isinstance(results, TraceResult) else results
        return figures.curve(drawn or self._latest())

    def _latest(self) -> list[TraceResult]:
        results = self.results if self._front is None else list(self._front)
        if not results:
            raise NoResultError("There is no result to draw yet. Call run() first.")
        return results


def _is_shown(progress: bool | None) -> bool:
    # Of several processes that share a trace, one is watched.
    return (_progress.is_wanted() if progress is None else progress) and Ranks.joined().is_first
