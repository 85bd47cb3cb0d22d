"""A search on what a tracer asks: what it is given to search, and what becomes a result.

A search is given a target (`search/targets.py`): by the objective, within the constraint. With
`objective="auto"` it is a search that chooses between two by halves of the examples
(`search/auto.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast, get_args

import torch

from tracekit._util import progress as _progress
from tracekit._util.names import SignName, listed
from tracekit._util.options import shortened
from tracekit._util.warn import warn
from tracekit.components import ComponentSet
from tracekit.components.masks import from_indices, members_of_mask
from tracekit.components.members import members_of
from tracekit.engine import checks
from tracekit.engine.cost import Cost
from tracekit.engine.effects import check_metric, metric_effects
from tracekit.engine.engine import Engine
from tracekit.engine.sources import OtherModel
from tracekit.errors import (
    BudgetError,
    ConfigError,
    NothingFoundError,
    SearchStoppedWarning,
    TargetNotReachedError,
)
from tracekit.results.pareto_front import ParetoFront, TradeOff, trade_offs
from tracekit.results.pareto_statistics import (
    MOST_CONTROLS,
    measure_statistics,
    passes_from_all,
    sizes_of_statistics,
)
from tracekit.results.result import RunFacts, TraceResult
from tracekit.results.storage import versions
from tracekit.results.traced import KnownSets, Traced
from tracekit.search import Goal, LocalSearch, Search, Selection, make
from tracekit.search.auto import (
    FEWEST_EXAMPLES,
    Auto,
    CrossFit,
    cross_fit,
    halving,
    searches_of,
    sizes_alone,
)
from tracekit.search.backward import backward_elimination
from tracekit.search.base import Planned, best_within, config_of, planned_for
from tracekit.search.local.best_sets import BestSets
from tracekit.search.objectives import (
    Faithful,
    Objective,
    ObjectiveName,
    describe,
    resolve_objective,
    usual_objective,
)
from tracekit.search.targets import (
    Constraint,
    ConstraintEffect,
    Target,
    measured_history,
    nothing_within,
    require_full_effect,
)
from tracekit.tracer import diagnostics

_T = TypeVar("_T")
_CUT_SHORT = "Stopped by Ctrl-C: the front is complete, but has no statistics."
_OF_FRONTS = ("max_budget", "objective", "sign", "constraint", "statistics", "observe", "seed")
_LITTLE = 1.5
"""Times the passes of a search up to which nobody is told what is measured besides."""
_NO_ROOM = "The limits left no room for statistics: the front has none."


class Usage(NamedTuple):
    """Cost and wall time of a search."""

    cost: Cost
    seconds: float


def accounted(traced: Traced, target: Target, work: Callable[[], _T]) -> tuple[_T, Usage]:
    """Searches a target on an unchanged model, and says what that took."""
    _ = traced.own.full_effects  # Shared by all methods, so it counts for none.
    checks.check_unchanged(traced.own)
    cost, start = target.cost, time.perf_counter()
    with target.data.recorder.recording():
        outcome = work()
    return outcome, Usage(target.cost - cost, time.perf_counter() - start)


class Found(NamedTuple):
    """What a search selected, and how."""

    search: Search
    goal: Goal
    seed: int
    spent: Usage
    objective: Objective | None = None
    sign: int = 1


def results_of(
    traced: Traced,
    outcome: Found,
    selections: Sequence[Selection],
    bounds: Sequence[ConstraintEffect | None],
) -> list[TraceResult]:
    """A result for each set that a search selected; `bounds` are effects on its constraint.

    Selections have scores instead of effects if there is an objective, or a sign of -1.
    """
    facts, cost = traced.model_facts, outcome.spent.cost
    histories = [measured_history(selection.history) for selection in selections]
    effects = [selection.effects for selection in selections]
    by_effect = outcome.objective is None and outcome.sign > 0
    if not by_effect:
        cost += Cost(1, 0)
        effects = [traced.own.effects(selection.mask) for selection in selections]
        # Effects of a search by another objective are scores.
        renamed = {"effect": "score"}
        histories = [
            tuple({renamed.get(key, key): record[key] for key in record} for record in history)
            for history in histories
        ]
    sets = [members_of_mask(each.mask) for each in selections]
    rows = zip(selections, traced.on_examples(sets, effects), bounds, histories, strict=True)
    results = []
    for selection, (own, held_out), bound, history in rows:
        search, mask, soft_mask = selection.by, selection.mask, selection.soft_mask
        search = search or outcome.search
        also = traced.extra_metrics
        extra = metric_effects(traced.own.data, mask, also) if also else None
        # Penalties and scores are no effects of single components, nor of sets.
        has_plain = bound is None and isinstance(outcome.objective, Faithful | None)
        scores = selection.component_scores if has_plain else None
        sign = outcome.sign if outcome.objective is None else _sign_of(traced, "full", None)
        results.append(
            TraceResult(
                setup=traced.setup,
                run=RunFacts(
                    method=search.name,
                    title=getattr(search, "title", search.name),
                    records_every_size=by_effect and getattr(search, "records_every_size", False),
                    objective=describe(outcome.objective),
                    sign="positive" if outcome.sign > 0 else "negative",
                    config=config_of(search),
                    seed=outcome.seed,
                    cost=cost + selection.saved,
                    seconds=outcome.spent.seconds,
                    stopped=selection.stopped,
                    held_out_by=selection.held_out_by,
                    versions=versions(),
                ),
                registry=traced.registry,
                binary_mask=mask,
                soft_mask=mask.float() if soft_mask is None else soft_mask,
                component_scores=None if scores is None else sign * scores.float(),
                own=own,
                held_out=held_out,
                extra_metrics=tuple(metric.name for metric in traced.extra_metrics),
                extra_per_example=torch.stack([*extra.values()]) if extra else None,
                constraint=bound,
                budget=selection.budget,
                target_effect=outcome.goal.target,
                history=history,
                axis_label=traced.own.metric.axis_label,
                model=traced.model_name,
                model_facts=facts,
                noise_floor=traced.noise_floor,
            )
        )
    return results


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """One search for a goal, by an objective, within the bounds of a constraint."""

    traced: Traced
    search: Search
    goal: Goal
    objective: ObjectiveName | Objective
    """Maximised over the examples; with `auto` the mean, and the search is an `Auto`."""
    constraint: tuple[Constraint, Engine] | None
    """The constraint, and the engine that measures it."""
    seed: int
    sign: int = 1
    """Of the effects that are sought."""

    def __post_init__(self) -> None:
        _ = self._maximised

    @property
    def _maximised(self) -> Objective | None:
        return resolve_objective(self.objective)

    @property
    def _searches(self) -> list[Search]:
        return searches_of(self.search)

    @cached_property
    def _best(self) -> KnownSets:
        return KnownSets()

    @cached_property
    def target(self) -> Target:
        """Target of the search."""
        own, objective = self.traced.own, self._maximised
        if isinstance(objective, Faithful) and objective.complement:
            require_full_effect(own, self.sign)
        records = self._best.record, self.traced.sets.record
        return Target(own, objective, self.constraint, *records, self.sign)

    @property
    def _goal_of_search(self) -> Goal:
        goal = self.goal
        if goal.target is not None:
            goal = replace(goal, target=self.sign * goal.target)
        if self.constraint is not None and getattr(self.search, "records_every_size", False):
            return goal.with_smaller_sizes()  # Its sets grow until they leave the bounds.
        return goal

    @property
    def _by_effect(self) -> bool:
        """Whether the search is told of the effects themselves."""
        return self._maximised is None and self.sign > 0

    # ---- what it takes --------------------------------------------------------------------

    def planned(self, *, statistics: bool | None = None) -> Planned | None:
        """Passes as a result's `cost` counts them; None if a search does not say.

        Of a front, with its statistics or not; None: this is no front.
        """
        n, goal = self.traced.own.n_components, self.goal
        # Of a front, halves are counted with its statistics.
        search = self.search if statistics is None else self._searches[0]
        planned = planned_for(search, n, self._goal_of_search)
        cost = self._cost_of(search, self._goal_of_search)
        if planned is None or cost is None:
            return None
        if not self._by_effect:
            cost += Cost(1)
        if search is not self.search:
            last = goal.budgets[-1]
            sizes = {*sizes_of_statistics(range(1, last + 1)), *sizes_alone(n, 1, last)}
            cost += self._cost_of(self._searches[1], Goal(budgets=tuple(sorted(sizes)))) or Cost()
        follows_scores = not self._by_effect and planned.cost.backward > 0
        may_balance = self.target.has_complement and planned.if_faithful.forward > 0
        is_exact = planned.is_exact and not (self.constraint or follows_scores or may_balance)
        return Planned(cost=cost, is_exact=is_exact)

    def further_passes(self, *, statistics: bool | None = None) -> float:
        """Passes that no `cost` of a result counts: measured besides, or for statistics."""
        traced, budgets = self.traced, self.goal.budgets
        n_results = max(1, len(budgets)) if statistics is None else budgets[-1]
        n_held_out = 0 if traced.held_out is None else traced.held_out.n_examples
        has_also = len(traced.extra_metrics) > 0
        share = n_held_out / traced.own.n_examples
        # The effects of sets that were chosen by scores; one pass of these is in their cost.
        again = 0 if self._by_effect else n_results - 1
        passes = again + n_results * (2 + has_also + share * (3 + has_also))
        if statistics is None:
            return passes
        sizes = sizes_of_statistics(range(1, budgets[-1] + 1))
        if statistics or isinstance(self.search, Auto):
            halves = self._cost_of_halves(Goal(budgets=tuple(sizes)))
            passes += 0 if halves is None else halves.forward_equivalents
        if statistics:
            downwards = passes_from_all(traced.own.n_components, sizes) / 2
            passes += MOST_CONTROLS * len(sizes)
            passes += self.target.cost_of(Cost(downwards, downwards)).forward_equivalents
        return passes

    def limited(self, *, statistics: bool | None = None) -> list[Cost]:
        """Passes of each search that has limits of its own: on all examples, and on halves."""
        planned = planned_for(self._searches[0], self.traced.own.n_components, self._goal_of_search)
        has_halves = bool(statistics) or isinstance(self.search, Auto)
        return [] if planned is None else [planned.cost, *[planned.cost * 0.5] * (2 * has_halves)]

    def outside(self, *, statistics: bool | None = None) -> str | None:
        """What the limits of the search do not bound, in words; None if that is little."""
        parts, search = self.limited(statistics=statistics), self._searches[0]
        limits = [(getattr(search, f"max_{unit}", None), unit) for unit in ("passes", "seconds")]
        said = " and ".join(f"{limit:g} {unit}" for limit, unit in limits if limit is not None)
        planned = self.planned(statistics=statistics)
        if not said or planned is None or not parts:
            return None
        passes = planned.cost.forward_equivalents + self.further_passes(statistics=statistics)
        if passes < _LITTLE * parts[0].forward_equivalents:
            return None
        each = "the search"
        if len(parts) > 1:
            each = "each of three searches (of all examples, and of either half)"
        return (
            f"A limit of {said} bounds {each}, and not what is measured besides: in all up to "
            f"{passes:.0f} passes. Fewer sizes take fewer."
        )

    def _cost_of(self, search: Search, goal: Goal) -> Cost | None:
        """Passes of a search through the target; None if it does not say."""
        planned = planned_for(search, self.traced.own.n_components, goal)
        if planned is None:
            return None
        # A limit is on all that is run.
        is_limited = getattr(search, "max_passes", None) is not None
        more = planned.if_faithful if self.target.has_complement else Cost()
        cost = planned.cost if is_limited else self.target.cost_of(planned.cost + more)
        if more.forward and self.constraint is None:
            cost -= Cost(planned.cost.backward, planned.cost.backward)
        if self.constraint is not None:
            share = self.constraint[1].n_examples / self.traced.own.n_examples
            cost += Cost(2 * max(1, len(goal.budgets)) * share)
        return cost

    def _cost_of_halves(self, goal: Goal) -> Cost | None:
        """Passes of searches on both halves of the examples, and of measuring their sets."""
        costs = [self._cost_of(search, goal) for search in self._searches]
        if any(cost is None for cost in costs):
            return None
        return sum((c for c in costs if c), Cost(2 * len(costs) * len(goal.budgets)))

    def _bar(
        self, on_note: Callable[..., None] | None, *, statistics: bool | None = None
    ) -> AbstractContextManager[Any]:
        engine, planned = self.traced.own, self.planned(statistics=statistics)
        passes = None
        if planned is not None:
            passes = planned.cost.forward_equivalents + self.further_passes(statistics=statistics)
        return _progress.run(
            self.search.name,
            passes,
            engine.n_examples,
            shown=engine.config.progress,
            on_note=on_note,
        )

    # ---- budgets and targets --------------------------------------------------------------

    def results(self, on_note: Callable[..., None] | None = None) -> list[TraceResult]:
        """A result per budget, ascending, or one for a target; `on_note` is told of every step."""
        if self._maximised is not None and self.goal.target is not None:
            raise BudgetError(
                "A target_effect is a mean effect, and the search maximises something else. Give "
                "a budget, or leave the objective out."
            )
        with self._bar(on_note):
            goal, target, search = self.goal, self.target, self.search
            before, start = target.cost, time.perf_counter()
            try:
                selections, spent = accounted(
                    self.traced,
                    target,
                    lambda: search.search(target, self._goal_of_search, self.seed),
                )
            except TargetNotReachedError as error:
                if self.sign > 0:
                    raise
                also = " Effects are told times -1 here: those below 0 are sought."
                raise TargetNotReachedError(f"{error}{also}") from None
            except KeyboardInterrupt:
                selections = self._best_so_far()
                spent = Usage(target.cost - before, time.perf_counter() - start)
            if self.constraint is not None and goal.budgets:
                selections = [best_within(selections, budget) for budget in goal.budgets]
            bounds = [target.report(members_of_mask(each.mask)) for each in selections]
            for effect in bounds:
                if self.constraint is not None and effect is not None and not effect.is_within:
                    raise nothing_within(self.constraint[0], effect.effect)
            return self._results_of(selections, bounds, spent)

    def _best_so_far(self) -> list[Selection]:
        by_size, goal, n = self._best.by_size, self._goal_of_search, self.traced.own.n_components
        goal = replace(goal, budgets=self.goal.budgets)
        fitting = [[size for size in by_size if size <= budget] for budget in goal.budgets]
        if goal.target is not None:
            reaching = [size for size in by_size if by_size[size].mean >= goal.target]
            fitting = [[min(reaching)]] if reaching else []
        if not fitting or not all(fitting):
            raise KeyboardInterrupt
        selections = []
        for rank, sizes in enumerate(fitting):
            best = by_size[max(sizes, key=lambda size: by_size[size].mean)]
            selections.append(
                Selection(
                    mask=from_indices(best.members, n),
                    effects=best.effects,
                    budget=goal.budgets[rank] if goal.budgets else None,
                    stopped="interrupted",
                )
            )
        return selections

    def _results_of(
        self,
        selections: Sequence[Selection],
        bounds: Sequence[ConstraintEffect | None],
        spent: Usage,
    ) -> list[TraceResult]:
        outcome = Found(self._searches[0], self.goal, self.seed, spent, self._maximised, self.sign)
        results = results_of(self.traced, outcome, selections, bounds)
        self.traced.sets.selected |= {members_of(each, each.registry) for each in results}
        return results

    # ---- the front ------------------------------------------------------------------------

    def front(self, *, statistics: bool, on_note: Callable[..., None] | None = None) -> ParetoFront:
        """The best set of every size, by local search; `on_note` is told of every step."""
        with self._bar(on_note, statistics=statistics):
            return self._front(statistics=statistics)

    def _front(self, *, statistics: bool) -> ParetoFront:
        search, target = cast(LocalSearch, self._searches[0]), self.target
        state, spent = accounted(
            self.traced, target, lambda: search.run(target, self.goal, self.seed)
        )
        best_sets, fit, note = state.best_sets, None, None
        if target.is_plain and self._by_effect:
            measured = self.traced.sets.by_size.values()
            fitting = [each for each in measured if len(each.members) <= best_sets.largest]
            best_sets.take_over({each.members: each.effects for each in fitting})
        walk, walked = {}, Usage(Cost(), 0.0)
        sets = {size: state.selection(size, size) for size in best_sets.improving}
        try:
            if state.stopped == "interrupted":
                note = (
                    "Stopped by Ctrl-C: the front holds the best sets found so far, no statistics."
                )
            elif statistics:
                walk, walked = self._walk_of(best_sets)
                sets = {size: state.selection(size, size) for size in best_sets.improving}
            if note is None and isinstance(self.search, Auto):
                sets, fit, spent = self._chosen(self.search, sets, spent)
        except KeyboardInterrupt:
            note = _CUT_SHORT
        except NothingFoundError:
            note = _NO_ROOM
        front = self._front_of(sets, spent, state.order)
        front = replace(
            front,
            statistics_cost=walked.cost + (Cost() if fit is None else fit.cost),
            trade_offs=self._trade_offs(front.sizes),
        )
        if statistics and note is None:
            # What was searched is not lost for what could not be added to it.
            try:
                return self._with_statistics(front, fit, walk)
            except KeyboardInterrupt:
                note = _CUT_SHORT
            except NothingFoundError:
                note = _NO_ROOM
        if note is not None:
            warn(note, SearchStoppedWarning)
        return front

    def _trade_offs(self, sizes: Sequence[int]) -> tuple[TradeOff, ...]:
        """Sets between the largest effect that the tracer knows and the most faithful one."""
        target, engine = self.target, self.traced.own
        if not target.has_complement:
            return ()
        by_size = self.traced.sets.by_size
        strongest = [by_size[size].members for size in sizes if size in by_size]
        target.set_effects([each for each in strongest if each not in target.measured])
        return trade_offs(
            target.measured,
            sizes,
            full=engine.full_effects.mean().item(),
            is_denoising=engine.metric.direction == "denoising",
            sign=self.sign,
        )

    def _walk_of(self, best_sets: BestSets) -> tuple[dict[int, ComponentSet], Usage]:
        """A walk from all components downwards, whose better sets become those of the front."""
        target = self.target

        def walk() -> dict[int, ComponentSet]:
            others = backward_elimination(target, sizes_of_statistics(best_sets.improving))
            effects = target.set_effects(list(others.values()), "from all")
            best_sets.take_over(dict(zip(others.values(), effects, strict=True)))
            return others

        return accounted(self.traced, target, walk)

    def _chosen(
        self, auto: Auto, sets: Mapping[int, Selection], spent: Usage
    ) -> tuple[dict[int, Selection], CrossFit, Usage]:
        """The sets of the search that holds better, by size, what chose, and what both took."""
        target, sizes = self.target, sizes_of_statistics(sorted(sets))
        (chosen, fit), more = accounted(
            self.traced,
            target,
            lambda: auto.front(target, sets, sizes, self.goal.budgets[-1], self.seed),
        )
        cost = spent.cost + more.cost - fit.on_all_examples
        return chosen, fit, Usage(cost, spent.seconds + more.seconds)

    def _front_of(
        self, sets: Mapping[int, Selection], spent: Usage, order: Sequence[int]
    ) -> ParetoFront:
        bounds = {size: self.target.report(members_of_mask(sets[size].mask)) for size in sets}
        within = [size for size, bound in bounds.items() if bound is None or bound.is_within]
        if not within:
            assert self.constraint is not None
            raise nothing_within(self.constraint[0])
        results = self._results_of(
            [sets[size] for size in within], [bounds[size] for size in within], spent
        )
        return ParetoFront.of(results, self.goal.budgets[-1], order=order)

    def _with_statistics(
        self, front: ParetoFront, fit: CrossFit | None, walk: Mapping[int, ComponentSet]
    ) -> ParetoFront:
        """A front with what it takes to believe it."""
        engine, target = self.traced.own, self.target
        # Scores have an account of their own.
        accounts = [target] if target.data.account is engine.data.account else [engine, target]
        before = [account.cost for account in accounts]
        sizes = sizes_of_statistics(front.sizes) if fit is None else fit.sizes
        cost = front.statistics_cost
        if fit is None and engine.pairs.n_distinct >= FEWEST_EXAMPLES:
            fit = cross_fit(Target(engine), self._searches, sizes, self.seed, searched=target)
            cost += fit.on_halves
        sets = {size: members_of_mask(front.at(size).binary_mask) for size in sizes}
        names = [search.name for search in self._searches]
        rows = measure_statistics(
            engine, sets, self.seed, maximised=target, others=walk, fit=fit, names=names
        )
        for account, earlier in zip(accounts, before, strict=True):
            cost += account.cost - earlier
        front = replace(front, statistics=rows, statistics_cost=cost)
        diagnostics.warn_of_front(front)
        return front


def run_of(
    traced: Traced,
    search: Search,
    goal: Goal,
    objective: ObjectiveName | Objective | None,
    constraint: Constraint | None,
    seed: int,
    sign: SignName | None = None,
    usual: ObjectiveName = "mean",
) -> SearchRun:
    """A search on a question, by default for the `usual`, or for faithful sets of edges.

    What two models differ in is what carries the whole effect: so between these (`OtherModel`) the
    default is a set that does what all components do.
    """
    if objective is None:
        objective = usual_objective(traced.registry.kinds, sign) or usual
        if isinstance(traced.bound.setup.source, OtherModel):
            objective = Faithful(complement=0.0) if sign in (None, "full") else "mean"
        objective = "mean" if goal.target is not None else objective
        sign = "full" if objective == "faithful" else sign  # Of edges: whatever all of them do.
    bound = None if constraint is None else (constraint, _constrained(traced, constraint))
    if objective == "auto":
        if constraint is not None:
            raise ConfigError(
                "objective='auto' chooses between sets that need not stay within a constraint. "
                "Leave one of them out, or use another objective."
            )
        search = halving(search, traced.own.pairs.n_distinct)
    return SearchRun(
        traced=traced,
        search=search,
        goal=goal,
        objective=objective,
        constraint=bound,
        seed=seed,
        sign=_sign_of(traced, sign, goal.target),
    )


def _sign_of(traced: Traced, sign: SignName | None, wanted: float | None) -> int:
    """Sign of the effects that are sought, 1 or -1; `wanted` is the effect to reach, if any."""
    if sign is not None and sign not in get_args(SignName):
        raise ConfigError(f"sign is {shortened(sign)}. Give one of {listed(SignName)}.")
    is_between = isinstance(traced.bound.setup.source, OtherModel)
    if sign is None and wanted:
        sought = 1 if wanted > 0 else -1
    elif sign == "full" or (sign is None and is_between):
        sought = -1 if traced.own.full_effects.mean() < 0 else 1
    else:
        sought = -1 if sign == "negative" else 1
    if wanted and wanted * sought < 0:
        raise BudgetError(
            f"The target_effect is {wanted:g}, and sign={sign!r} seeks effects "
            f"{'below' if sought < 0 else 'above'} 0. Leave out sign, or give one of its sign."
        )
    return sought


def pareto_run_of(
    traced: Traced,
    max_budget: int | float | None,
    objective: ObjectiveName | Objective | None,
    constraint: Constraint | None,
    statistics: bool,
    seed: int,
    options: Mapping[str, Any],
    sign: SignName | None = None,
) -> SearchRun:
    """The search of a front; see `Tracer.pareto`."""
    search = make(LocalSearch, options, _OF_FRONTS)
    goal = Goal.make(len(traced.registry), budget=1.0 if max_budget is None else max_budget)
    has_halves = statistics and traced.own.pairs.n_distinct >= FEWEST_EXAMPLES
    usual = "auto" if has_halves and constraint is None else "mean"
    return run_of(traced, search, goal, objective, constraint, seed, sign, usual)


def _constrained(traced: Traced, constraint: Constraint) -> Engine:
    """The engine that measures a constraint."""
    if not isinstance(constraint, Constraint):
        raise ConfigError(
            f"constraint is {shortened(constraint)}. Give a tk.Constraint, e.g. "
            "tk.Constraint(pairs=..., at_most=0.05)."
        )
    pairs = traced.pairs if constraint.pairs is None else constraint.pairs
    engine = traced.bound.engine(pairs, metric=constraint.metric)  # type: ignore[arg-type]
    check_metric(engine.data)
    return engine
