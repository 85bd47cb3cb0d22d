"""Plans: the passes that a request will take, known before it begins."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tracekit._util import progress
from tracekit.engine.cost import Cost
from tracekit.engine.effects import can_count_choices
from tracekit.measure.front_statistics import MOST_CONTROLS, sizes_of_statistics
from tracekit.search import Goal, Search
from tracekit.search.auto import Auto
from tracekit.search.backward import most_backward_passes
from tracekit.search.base import PlannedPasses, planned_passes_of
from tracekit.search.baselines.empirical_bayes_topk import sizes_ranked_alone
from tracekit.search.objectives import Faithful, LogOdds
from tracekit.search.targets import Target
from tracekit.tracer.request import ResolvedRequest

_LITTLE = 1.5
"""Times the passes of a search up to which no warning says what else is measured."""


@dataclass(frozen=True, kw_only=True)
class Plan(PlannedPasses):
    """How many passes a search, as a result's `cost` has them, and measuring its results take."""

    search: Search
    extra_passes: float
    """Passes that no `cost` counts, at most: what results are measured by, and statistics."""
    limited: tuple[Cost, ...]
    """Passes of each search that has limits of its own: on all examples, and on either half."""

    @property
    def passes(self) -> float:
        """All passes, at most."""
        return self.cost.forward_equivalents + self.extra_passes

    @property
    def limit_warning(self) -> str | None:
        """What the limits of the search do not bound; None if that is little."""
        limits = [
            (getattr(self.search, f"max_{unit}", None), unit) for unit in ("passes", "seconds")
        ]
        given = " and ".join(f"{limit:g} {unit}" for limit, unit in limits if limit is not None)
        if not given or self.passes < _LITTLE * self.limited[0].forward_equivalents:
            return None
        bounded = "the search"
        if len(self.limited) > 1:
            bounded = "each of three searches (on all examples, and on either half)"
        return (
            f"A limit of {given} applies to {bounded}. Measuring the results takes further "
            f"passes: at most {self.passes:.0f} in all. Ask for fewer sizes to take fewer."
        )


def plan(request: ResolvedRequest) -> Plan | None:
    """The passes of a search for budgets or a target; None if the search does not say."""
    planned = _planned(request, request.target(), request.search, request.goal_of_search)
    if planned is None:
        return None
    return Plan(
        search=request.searches[0],
        cost=planned.cost,
        is_exact=planned.is_exact,
        extra_passes=_passes_of_results(request, max(1, len(request.goal.budgets))),
        limited=_costs_of_limited_searches(request, has_halves=isinstance(request.search, Auto)),
    )


def plan_front(request: ResolvedRequest, *, statistics: bool) -> Plan | None:
    """The passes of a front, with its statistics or without; None if its search does not say."""
    target, last = request.target(), request.goal.budgets[-1]
    n, joint, is_choice = target.n_components, request.searches[0], isinstance(request.search, Auto)
    planned = _planned(request, target, joint, request.goal_of_search)
    if planned is None:
        return None
    cost = planned.cost
    sizes = tuple(sizes_of_statistics(range(1, last + 1)))
    if is_choice:
        goal = Goal(budgets=tuple(sorted({*sizes, *sizes_ranked_alone(n, 1, last)})))
        alone = _planned(request, target, request.searches[1], goal)
        cost += Cost() if alone is None else alone.cost
    extra = _passes_of_results(request, last)
    if statistics or is_choice:
        # Searches on both halves of the examples, whose sets are measured on the other half.
        goal = Goal(budgets=sizes)
        halves = [_planned(request, target, search, goal) for search in request.searches]
        if None not in halves:
            measured = Cost(2 * len(halves) * len(sizes))
            extra += sum((each.cost for each in halves if each), measured).forward_equivalents
    if statistics:
        # The walk from all components downwards, and four measurements of its sets.
        downwards = most_backward_passes(n, sizes) / 2 + 2 * len(sizes)
        extra += MOST_CONTROLS * len(sizes)
        extra += target.cost_of(Cost(downwards, downwards)).forward_equivalents
    limited = _costs_of_limited_searches(request, has_halves=statistics or is_choice)
    return Plan(
        search=joint, cost=cost, is_exact=planned.is_exact, extra_passes=extra, limited=limited
    )


def progress_bar(
    request: ResolvedRequest, planned: Plan | None, on_note: progress.OnNote
) -> AbstractContextManager[Any]:
    """The bar of a run; `on_note` is called with every step."""
    passes, shown = None if planned is None else planned.passes, request.question.config.progress
    n, name = request.question.search_engine.n_examples, request.search.name
    return progress.open_bar(name, passes, n, shown=shown, on_note=on_note)


def _planned(
    request: ResolvedRequest, target: Target, search: Search, goal: Goal
) -> PlannedPasses | None:
    """Passes of a search through a target: of its objective, its constraint and its paths."""
    planned = planned_passes_of(search, target.n_components, goal)
    if planned is None:
        return None
    # A limit is on all that is run.
    is_limited = getattr(search, "max_passes", None) is not None
    more = Cost() if target.faithful is None else planned.if_faithful
    cost = planned.cost if is_limited else target.cost_of(planned.cost + more)
    if target.paths is not None and not planned.is_exact:
        # Sets that lose idle edges are measured again.
        cost += target.cost_of(Cost(max(1, len(goal.budgets))))
    if more.forward and request.constraint is None:
        cost -= Cost(planned.cost.backward, planned.cost.backward)
    if request.training is not None:
        cost += planned.if_drawn
    if request.constraint is not None:
        share = request.constraint[1].n_examples / target.n_examples
        cost += Cost(2 * max(1, len(goal.budgets)) * share)
    follows_scores = not request.by_effect and planned.cost.backward > 0
    is_plain = not (request.constraint or follows_scores or more.forward > 0)
    return PlannedPasses(cost=cost, is_exact=planned.is_exact and is_plain)


def _passes_of_results(request: ResolvedRequest, n_results: int) -> float:
    """Passes by which results are measured: complements, held-out examples, further metrics."""
    question = request.question
    n, goal, objective = len(question.registry), request.goal_of_search, request.objective
    planned = [planned_passes_of(search, n, goal) for search in request.searches]
    by_masks = all(each is not None and each.is_exact for each in planned)
    is_faithful, has_extra = isinstance(objective, Faithful), len(question.extra_metrics) > 0
    # Many scores are made of effects, for faithful sets of both sides; others take a further pass.
    is_of_effects = is_faithful or (request.sign > 0 and not isinstance(objective, LogOdds))
    is_known = request.by_effect or (by_masks and is_of_effects)
    counts = can_count_choices(question.search_engine) and (by_masks or not is_known)
    passes = 3 - is_known - (by_masks and is_faithful) - counts + has_extra
    if (held_out := question.held_out_engine) is not None:
        share = held_out.n_examples / question.search_engine.n_examples
        passes += share * (3 - can_count_choices(held_out) + has_extra)
    return n_results * passes


def _costs_of_limited_searches(request: ResolvedRequest, *, has_halves: bool) -> tuple[Cost, ...]:
    n_components = len(request.question.registry)
    planned = planned_passes_of(request.searches[0], n_components, request.goal_of_search)
    assert planned is not None
    return (planned.cost, *([planned.cost * 0.5] * 2 if has_halves else []))
