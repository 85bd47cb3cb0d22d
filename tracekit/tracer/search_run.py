"""A search on what a tracer asks: what it is given to search, and what becomes a result.

A search is given the tracer's engine, or one that stands in for it: with scores in place of effects
(`objective`), or one that leaves out sets beyond a bound (`keep`). With `objective="auto"` halves
of the examples choose between its sets and those of components ranked one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util import progress as _progress
from tracekit.components import ComponentSet
from tracekit.components.masks import from_indices
from tracekit.engine import checks
from tracekit.engine.cost import Cost
from tracekit.engine.effects import metric_effects
from tracekit.engine.engine import Engine
from tracekit.engine.set_effects import Recorder
from tracekit.engine.setup import Setup
from tracekit.engine.sources import draws
from tracekit.errors import (
    BudgetError,
    ConfigError,
    NothingFoundError,
    SearchStoppedWarning,
)
from tracekit.metrics import Effects, Metric
from tracekit.models import model_name
from tracekit.results.mib import model_sizes
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.pareto_statistics import measure_statistics, sizes_of_statistics
from tracekit.results.result import TraceResult
from tracekit.results.storage import versions
from tracekit.search import Goal, LocalSearch, Search, Selection
from tracekit.search.base import best_within, config_of
from tracekit.search.cross_fit import (
    FEWEST_EXAMPLES,
    RANKED_ALONE,
    CrossFit,
    cross_fit,
    only_first_raises,
    sizes_alone,
)
from tracekit.search.objectives import (
    Objective,
    ObjectiveName,
    describe,
    resolve_objective,
)
from tracekit.search.targets import (
    ConstrainedTarget,
    Constraint,
    Target,
    measured_history,
    nothing_within,
    target_of,
)
from tracekit.tracer import diagnostics
from tracekit.tracer.estimate import Question, most_passes

_T = TypeVar("_T")


class Measured(NamedTuple):
    """A set that was measured on all examples."""

    mean: float
    members: ComponentSet
    effects: Effects


class BestMeasured:
    """Of every size, the best set that a target has measured so far.

    That is what is left of a search that is interrupted.
    """

    def __init__(self) -> None:
        """Knows none yet."""
        self.by_size: dict[int, Measured] = {}

    def record(self, sets: Sequence[ComponentSet], effects: Float[Tensor, "set example"]) -> None:
        """Takes note of sets and their effects, a row for each."""
        for members, row in zip(sets, effects, strict=True):
            mean, size = float(row.mean()), len(members)
            if size and (size not in self.by_size or mean > self.by_size[size].mean):
                self.by_size[size] = Measured(mean, members, row.clone())


class Spent(NamedTuple):
    """What a search took."""

    cost: Cost
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What every result of a tracer is measured on and says, whatever the search."""

    engine: Engine
    """The question: model, data set, components, metric."""
    setup: Setup
    """What is traced and how, with metric and source by their names."""
    also: tuple[Metric, ...]
    """Further metrics."""
    held_out: Engine | None
    """The same question on examples that no search sees."""
    tracer: Any
    """A weak reference to the tracer, for results."""

    def accounted(self, engine: Target, work: Callable[[], _T]) -> tuple[_T, Spent]:
        """Searches an engine on an unchanged model, and says what that took."""
        _ = self.engine.full_effects  # Shared by all methods, so it counts for none.
        checks.check_unchanged(self.engine)
        cost, start = engine.cost, time.perf_counter()
        outcome = work()
        return outcome, Spent(engine.cost - cost, time.perf_counter() - start)

    def result(
        self,
        search: Search,
        selection: Selection,
        goal: Goal,
        seed: int,
        spent: Spent,
        *,
        kept: Mapping[str, Any] | None = None,
        objective: Objective | None = None,
    ) -> TraceResult:
        """A set that a search selected, with all that a result says of it.

        Args:
            search: The search.
            selection: The set, with effects, or with scores if there is an objective.
            goal: What was asked for.
            seed: Of the search.
            spent: What it took.
            kept: What the set does to what is kept.
            objective: What the search maximised, if not the mean effect.
        """
        engine = self.engine
        # Penalties and scores are no effects of single components, nor of sets.
        scores = selection.component_scores if kept is None and objective is None else None
        cost = spent.cost + selection.saved
        history = measured_history(selection.history)
        if objective is not None:
            selection = self._with_effects(replace(selection, history=history))
            history, cost = selection.history, cost + Cost(1, 0)
        mask, soft_mask = selection.mask, selection.soft_mask
        setup = self.setup
        positions = setup.positions
        return TraceResult(
            method=search.name,
            method_title=getattr(search, "title", search.name),
            records_every_size=objective is None and getattr(search, "records_every_size", False),
            objective=describe(objective),
            config=config_of(search),
            registry=engine.registry,
            binary_mask=mask,
            soft_mask=mask.float() if soft_mask is None else soft_mask,
            component_scores=None if scores is None else scores.float(),
            effect=selection.effect,
            per_example=selection.effects,
            weights=engine.pairs.weights,
            full_effect=engine.full_effects.mean().item(),
            held_out=None if self.held_out is None else self.held_out.effects(mask),
            held_out_weights=None if self.held_out is None else self.held_out.pairs.weights,
            also_metrics=tuple(metric.name for metric in self.also),
            also_per_example=self._also_per_example(mask),
            kept=kept,
            budget=selection.budget,
            target_effect=goal.target,
            history=history,
            seed=seed,
            cost=cost,
            seconds=spent.seconds,
            stopped=selection.stopped,
            metric=engine.metric.name,
            source=str(setup.source),
            source_seed=setup.source_seed if draws(setup.source) else None,
            by=setup.split_by,
            direction=engine.metric.direction,
            axis_label=engine.metric.axis_label,
            continuation_mean=setup.continuation_mean,
            positions=positions if isinstance(positions, str) else tuple(positions),
            model=model_name(engine.model),
            dataset=engine.pairs.name,
            dataset_fingerprint=engine.pairs.fingerprint,
            versions=versions(),
            model_sizes=model_sizes(engine.model.cfg),
            tracer=self.tracer,
        )

    def _with_effects(self, selection: Selection) -> Selection:
        """A selection that was searched by scores, with effects in their place."""
        history = [
            {{"effect": "score"}.get(name, name): value for name, value in record.items()}
            for record in selection.history
        ]
        effects = self.engine.effects(selection.mask)
        return replace(selection, effects=effects, history=tuple(history))

    def _also_per_example(self, mask: Tensor) -> Tensor | None:
        if not self.also:
            return None
        return torch.stack(list(metric_effects(self.engine.data, mask, self.also).values()))


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """One search for a goal, within bounds, by an objective."""

    traced: Traced
    search: Search
    goal: Goal
    objective: ObjectiveName | Objective
    """What is maximised, or `auto`."""
    keeping: tuple[Constraint, Engine] | None
    """What is to stay as it is, and the engine that measures it."""
    seed: int

    def __post_init__(self) -> None:
        _ = self._maximised
        if not self._chooses:
            return
        if self.keeping is not None:
            raise ConfigError(
                "objective='auto' chooses between sets that need not stay within a constraint. "
                "Leave one of them out, or use another objective."
            )
        if self.traced.engine.n_examples < FEWEST_EXAMPLES:
            raise ConfigError(
                f"objective='auto' searches halves of the examples, and there are "
                f"{self.traced.engine.n_examples}. Give at least {FEWEST_EXAMPLES}, or use 'mean'."
            )

    # ---- what is searched -----------------------------------------------------------------

    @property
    def _maximised(self) -> Objective | None:
        return resolve_objective(self.objective)

    @property
    def _chooses(self) -> bool:
        """Whether halves of the examples choose between searches."""
        return self.objective == "auto"

    @property
    def _rival(self) -> Search:
        return RANKED_ALONE

    def target(self, record: Recorder | None = None) -> Target:
        """What the search is given."""
        return target_of(self.traced.engine, self._maximised, self.keeping, record)

    def _kept(self, engine: Target, mask: Tensor) -> Mapping[str, Any] | None:
        """What a set does to what is kept; None if nothing is, or if it leaves the bound."""
        if not isinstance(engine, ConstrainedTarget):
            return None
        kept = engine.report(mask.nonzero()[:, 0].tolist())
        return kept if abs(kept["effect"]) <= kept["at_most"] else None

    # ---- what it takes --------------------------------------------------------------------

    def question(self, *, statistics: bool | None = None) -> Question:
        """The run as far as it decides how much is measured.

        Args:
            statistics: Of a front, whether they are taken; None: this is no front.
        """
        traced = self.traced
        return Question(
            search=self.search,
            goal=self.goal,
            objective=self.objective,
            n_components=traced.engine.n_components,
            n_examples=traced.engine.n_examples,
            n_kept=None if self.keeping is None else self.keeping[1].n_examples,
            n_also=len(traced.also),
            n_held_out=0 if traced.held_out is None else traced.held_out.n_examples,
            statistics=statistics,
        )

    def _progress_of(
        self, question: Question, on_note: Callable[..., None] | None
    ) -> AbstractContextManager[Any]:
        """The one progress bar of the run."""
        engine = self.traced.engine
        return _progress.run(
            self.search.name,
            most_passes(question),
            engine.n_examples,
            shown=engine.config.progress,
            on_note=on_note,
        )

    # ---- budgets and targets --------------------------------------------------------------

    def results(self, on_note: Callable[..., None] | None = None) -> list[TraceResult]:
        """A result for each budget, ascending, or one for a target.

        Args:
            on_note: Is told what each step reached.

        Raises:
            BudgetError: A target, or no goal, with an objective that needs budgets.
            NothingFoundError: No set that was tried stays within the bound.
        """
        self._check_goal()
        with self._progress_of(self.question(), on_note):
            return self._results()

    def _check_goal(self) -> None:
        goal = self.goal
        if self._maximised is not None and goal.target is not None:
            raise BudgetError(
                "A target_effect is a mean effect, and the search maximises something else. Give "
                "a budget, or leave the objective out."
            )
        if self._chooses and not goal.budgets:
            raise BudgetError(
                "objective='auto' compares sets of one size. Give budget or budgets, or use 'mean'."
            )

    def _results(self) -> list[TraceResult]:
        goal, search, seed = self.goal, self.search, self.seed
        best = BestMeasured()
        engine, to_search = self.target(best.record), goal
        if self.keeping is not None and getattr(search, "records_every_size", False):
            # Its sets grow until they leave the bounds.
            to_search = goal.with_smaller_sizes()
        before, start = engine.cost, time.perf_counter()
        try:
            selections, spent = self.traced.accounted(
                engine, lambda: search.search(engine, to_search, seed)
            )
        except KeyboardInterrupt:
            selections = self._best_so_far(best.by_size)
            spent = Spent(engine.cost - before, time.perf_counter() - start)
        if self.keeping is not None and goal.budgets:
            selections = [best_within(selections, budget) for budget in goal.budgets]
        results = []
        for selection in selections:
            kept = self._kept(engine, selection.mask)
            if isinstance(engine, ConstrainedTarget) and self.keeping and kept is None:
                report = engine.report(selection.mask.nonzero()[:, 0].tolist())
                raise nothing_within(self.keeping[0], report["effect"])
            results.append(self._result(selection, spent, kept))
        is_whole = results[0].stopped != "interrupted"
        if not self._chooses or not is_whole:
            return results
        try:
            return self._chosen(results)
        except KeyboardInterrupt:
            # The halves are not at an end; the search is.
            return [replace(result, stopped="interrupted") for result in results]

    def _best_so_far(self, by_size: dict[int, Measured]) -> list[Selection]:
        """The best sets that an interrupted search has measured, as answers to the goal.

        Raises:
            KeyboardInterrupt: They do not answer it.
        """
        goal, n = self.goal, self.traced.engine.n_components
        fitting = [[size for size in by_size if size <= budget] for budget in goal.budgets]
        if goal.target is not None:
            reaching = [size for size in by_size if by_size[size].mean >= goal.target]
            fitting = [[min(reaching)]] if reaching else []
        if not fitting or not all(fitting):
            raise KeyboardInterrupt
        selections = []
        for rank, sizes in enumerate(fitting):
            size = max(sizes, key=lambda size: by_size[size].mean)
            _, members, effects = by_size[size]
            selections.append(
                Selection(
                    mask=from_indices(members, n),
                    effects=effects,
                    budget=goal.budgets[rank] if goal.budgets else None,
                    stopped="interrupted",
                )
            )
        return selections

    def _result(
        self, selection: Selection, spent: Spent, kept: Mapping[str, Any] | None
    ) -> TraceResult:
        return self.traced.result(
            self.search,
            selection,
            self.goal,
            self.seed,
            spent,
            kept=kept,
            objective=self._maximised,
        )

    def _chosen(self, results: Sequence[TraceResult]) -> list[TraceResult]:
        """Results, or those of components ranked one by one where these hold better."""
        traced, rival, goal, seed = self.traced, self._rival, self.goal, self.seed
        engine, start = traced.engine, time.perf_counter()
        alone, spent = traced.accounted(engine, lambda: rival.search(engine, goal, seed))
        on_all = _effects_on_all(results, alone)
        fit = cross_fit(engine, [self.search, rival], goal.budgets, seed, on_all=on_all)
        cost = results[0].cost + fit.cost + spent.cost
        seconds = results[0].seconds + time.perf_counter() - start
        chosen = []
        for rank, choice in enumerate(fit.choice()):
            result = results[rank]
            if choice == 1:
                result = traced.result(rival, alone[rank], goal, seed, spent)
            names, effects = (self.search.name, rival.name), fit.effects[:, rank].mean(-1).tolist()
            held_out_by = dict(zip(names, effects, strict=True))
            chosen.append(replace(result, cost=cost, seconds=seconds, held_out_by=held_out_by))
        return chosen

    # ---- the front ------------------------------------------------------------------------

    def front(self, *, statistics: bool, on_note: Callable[..., None] | None = None) -> ParetoFront:
        """The best set of every size, by local search.

        Args:
            statistics: Whether to measure what it takes to believe it.
            on_note: Is told what each step reached.

        Raises:
            NothingFoundError: A limit was reached before any set was measured.
            NothingFoundError: No set that was measured stays within the bound.
        """
        with self._progress_of(self.question(statistics=statistics), on_note):
            return self._front(statistics=statistics)

    def _front(self, *, statistics: bool) -> ParetoFront:
        search, engine = cast(LocalSearch, self.search), self.target()
        state, spent = self.traced.accounted(
            engine, lambda: search.run(engine, self.goal, self.seed)
        )
        results = []
        for size in state.best_sets.improving:
            selection = state.selection(size, size)
            kept = self._kept(engine, selection.mask)
            if self.keeping is None or kept is not None:
                results.append(self._result(selection, spent, kept))
        if self.keeping is not None and not results:
            raise nothing_within(self.keeping[0])
        front = ParetoFront.of(results, self.goal.budgets[-1], order=state.order)
        if state.stopped == "interrupted":
            diagnostics.warn(
                "Stopped by Ctrl-C: the front holds the best sets found so far, no statistics.",
                SearchStoppedWarning,
            )
            return front
        if not statistics and not self._chooses:
            return front
        # What was searched is not lost for what could not be added to it.
        try:
            searches: list[Search] = [search]
            fit = None
            if self._chooses:
                searches.append(self._rival)
                front, fit = self._with_choices(front, searches)
            elif engine.n_examples >= FEWEST_EXAMPLES:
                sizes = sizes_of_statistics(front.sizes)
                fit = cross_fit(self.traced.engine, searches, sizes, self.seed, searched=engine)
            if statistics:
                front = self._with_statistics(front, searches, fit, engine)
        except KeyboardInterrupt:
            diagnostics.warn(
                "Stopped by Ctrl-C: the front is complete, but has no statistics.",
                SearchStoppedWarning,
            )
        except NothingFoundError:
            diagnostics.warn(
                "The limits left no room for statistics: the front has none.", SearchStoppedWarning
            )
        return front

    def _with_choices(
        self, front: ParetoFront, searches: Sequence[Search]
    ) -> tuple[ParetoFront, CrossFit]:
        """A front with the sets of components ranked one by one where these hold better.

        There it has sets of sizes, too, at which the joint search found none with a larger mean:
        for fresh examples, a component that does something alone is worth having.

        Returns:
            The front, and what chose.
        """
        traced, rival, seed = self.traced, self._rival, self.seed
        engine = traced.engine
        joint = {result.n_selected: result for result in front}
        sizes = sizes_of_statistics(front.sizes)
        between = sizes_alone(engine.n_components, front.sizes[0], front.largest)
        goal = Goal(budgets=tuple(sorted({*sizes, *between})))
        selections, spent = traced.accounted(engine, lambda: rival.search(engine, goal, seed))
        alone = dict(zip(goal.budgets, selections, strict=True))
        on_all = _effects_on_all([joint[size] for size in sizes], [alone[size] for size in sizes])
        fit = cross_fit(engine, searches, sizes, seed, on_all=on_all)
        taken = {
            size: selection
            for size, selection in alone.items()
            if fit.choice_near(size) == 1 and _is_taken(selection, joint.get(size))
        }
        # Whose set it is, both searches were run for it, and a limit of the first one counts.
        first = front[0]
        run = {
            "cost": first.cost + spent.cost,
            "seconds": first.seconds + spent.seconds,
            "stopped": first.stopped,
        }
        chosen = {
            size: traced.result(rival, selection, goal, seed, spent)
            for size, selection in taken.items()
        }
        kept = {
            size: result
            for size, result in joint.items()
            if fit.choice_near(size) == 0 or size in alone
        }
        by_size = sorted({**kept, **chosen}.items())
        results = [replace(result, **run) for _, result in by_size]
        front = ParetoFront.of(results, front.largest, order=front.ranking)
        return replace(front, statistics_cost=fit.cost), fit

    def _with_statistics(
        self,
        front: ParetoFront,
        searches: Sequence[Search],
        fit: CrossFit | None,
        searched: Target,
    ) -> ParetoFront:
        """A front with what it takes to believe it."""
        engine = self.traced.engine
        # A search that keeps something counts the traced work too; a score has accounts of its own.
        accounts = {searched} if self.keeping is not None else {engine, searched}
        before = [account.cost for account in accounts]
        sets = {
            size: tuple(front.at(size).binary_mask.nonzero()[:, 0].tolist())
            for size in (sizes_of_statistics(front.sizes) if fit is None else fit.sizes)
        }
        names = [search.name for search in searches]
        rows = measure_statistics(engine, sets, self.seed, maximised=searched, fit=fit, names=names)
        cost = Cost() if fit is None else fit.cost
        for account, spent in zip(accounts, before, strict=True):
            cost += account.cost - spent
        front = replace(front, statistics=rows, statistics_cost=cost)
        diagnostics.warn_of_front(front)
        return front


def _effects_on_all(
    joint: Sequence[TraceResult], alone: Sequence[Selection]
) -> Float[Tensor, "search size example"]:
    """Effects on every example of what either search selected on all of them, by size."""
    return torch.stack(
        [
            torch.stack([result.per_example for result in joint]),
            torch.stack([selection.effects for selection in alone]),
        ]
    )


def _is_taken(alone: Selection, joint: TraceResult | None) -> bool:
    """Whether a front has a set of components ranked alone, where these hold better.

    Where the joint search has no set of its size, all its components have to do something alone.

    Args:
        alone: The set.
        joint: The joint search's set of the same size.
    """
    if joint is not None:
        return not only_first_raises(joint.per_example.mean(), alone.effects.mean())
    scores = alone.component_scores
    does_something = scores is not None and bool((scores[alone.mask.bool()] > 0).all())
    return does_something and bool(alone.effects.mean() > 0)
