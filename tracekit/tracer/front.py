"""A Pareto front: the best set of every size by local search, and what it takes to believe it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

from tracekit._util.progress import report_waiting
from tracekit._util.warn import warn
from tracekit.components import ComponentSet
from tracekit.components.masks import members_of_mask
from tracekit.components.members import members_of
from tracekit.engine.cost import Cost
from tracekit.errors import NothingFoundError, SearchStoppedWarning
from tracekit.measure.controls import measure_statistics, sizes_of_statistics
from tracekit.measure.question import Question
from tracekit.results.pareto_front import ParetoFront, TradeOff, trade_offs
from tracekit.search import LocalSearch, Selection
from tracekit.search.auto import FEWEST_EXAMPLES, Auto, CrossFit, cross_fit
from tracekit.search.backward import backward_elimination
from tracekit.search.constraint import make_target, nothing_within_error
from tracekit.search.measurements import BestSets
from tracekit.search.targets import Target
from tracekit.tracer import diagnostics
from tracekit.tracer.request import (
    Request,
    ResolvedRequest,
    plan_front,
    progress_bar,
    resolve_front,
)
from tracekit.tracer.search import Work, measure_work, results_of
from tracekit.tracer.trackers import Observed, Observer

_INTERRUPTED = "Stopped by Ctrl-C: the front holds the best sets found so far, no statistics."
_CUT_SHORT = "Stopped by Ctrl-C: the front is complete, but has no statistics."
_NO_ROOM = "The limits left no room for statistics: the front has none."


@dataclass(frozen=True, kw_only=True)
class _Sets:
    """The sets of a front, and how they were found."""

    best: BestSets
    """What local search measured."""
    by_size: Mapping[int, Selection]
    work: Work
    """What selecting them took."""
    from_all: Mapping[int, ComponentSet] = field(default_factory=dict)
    """Sets of a walk from all components downwards, by size; for statistics."""
    walk_cost: Cost = field(default_factory=Cost)
    fit: CrossFit | None = None
    """What the searches select on halves of the examples, where these chose between them."""


def run_front(
    question: Question,
    request: Request,
    observe: Observer | None = None,
    *,
    statistics: bool = True,
) -> ParetoFront:
    """The front that a request asks for, with the warnings about it; see `Tracer.pareto`.

    Ctrl-C, or a limit, after the search ends the front with what was found until then.
    """
    with report_waiting("pareto", shown=question.config.progress):
        resolved = resolve_front(question, request, statistics=statistics)
        planned = plan_front(resolved, statistics=statistics)
        diagnostics.warn_before(resolved, request.sign, planned)
        with Observed(observe, resolved) as observed:
            with progress_bar(resolved, planned, observed.step):
                target = resolved.target()
                sets = _best_of_every_size(resolved, target)
                notes = [_INTERRUPTED] if sets.best.stopped == "interrupted" else []
                with _until_stopped(notes):
                    if statistics and not notes:
                        sets = _walk_from_all(resolved, target, sets)
                    if isinstance(resolved.search, Auto) and not notes:
                        sets = _choose(resolved, target, sets)
                front = _measured_front(resolved, target, sets)
                with _until_stopped(notes):
                    if statistics and not notes:
                        front = _with_statistics(resolved, target, sets, front)
                for note in notes:
                    warn(note, SearchStoppedWarning)
            observed.results(front.results)
        diagnostics.warn_of_circuits(front.results)
    return front


@contextmanager
def _until_stopped(notes: list[str]) -> Iterator[None]:
    """Within the block Ctrl-C, or a lack of passes, ends it and adds a note that says so."""
    try:
        yield
    except KeyboardInterrupt:
        notes.append(_CUT_SHORT)
    except NothingFoundError:
        notes.append(_NO_ROOM)


def _best_of_every_size(request: ResolvedRequest, target: Target) -> _Sets:
    question, local = request.question, cast(LocalSearch, request.searches[0])

    def search() -> BestSets:
        best = local.run(target, request.goal, request.seed)
        # The best sets that were measured before, and all that were selected.
        measured = question.sets.by_size(request.sign).values()
        earlier = {each.members: each.effects for each in measured}
        earlier |= {members_of(r, r.registry): r.searched.effects for r in question.results}
        fitting = {members: row for members, row in earlier.items() if len(members) <= best.largest}
        best.add_measured(target.scores_of(fitting, better_than=best.effect))
        return best

    best, work = measure_work(request, target, search)
    return _Sets(best=best, by_size=_improving_selections(best), work=work)


def _improving_selections(best: BestSets) -> dict[int, Selection]:
    return {size: best.selection(size, size) for size in best.improving_sizes}


def _walk_from_all(request: ResolvedRequest, target: Target, sets: _Sets) -> _Sets:
    """A walk from all components downwards, whose better sets become those of the front."""
    best = sets.best

    def walk() -> dict[int, ComponentSet]:
        others = backward_elimination(target, sizes_of_statistics(best.improving_sizes))
        effects = target.set_effects(list(others.values()), "from all")
        best.add_measured(dict(zip(others.values(), effects, strict=True)))
        return others

    others, work = measure_work(request, target, walk)
    return replace(sets, by_size=_improving_selections(best), from_all=others, walk_cost=work.cost)


def _choose(request: ResolvedRequest, target: Target, sets: _Sets) -> _Sets:
    """By size, the sets of the search that holds better on halves of the examples."""
    auto, largest = cast(Auto, request.search), request.goal.budgets[-1]
    sizes = sizes_of_statistics(sorted(sets.by_size))
    (chosen, fit), work = measure_work(
        request, target, lambda: auto.front(target, sets.by_size, sizes, largest, request.seed)
    )
    spent = sets.work + replace(work, cost=work.cost - fit.on_all_examples)
    return replace(sets, by_size=chosen, fit=fit, work=spent)


def _measured_front(request: ResolvedRequest, target: Target, sets: _Sets) -> ParetoFront:
    bounds = {n: target.report(members_of_mask(each.mask)) for n, each in sets.by_size.items()}
    within = [size for size, bound in bounds.items() if bound is None or bound.is_within]
    if not within and request.constraint is not None:
        raise nothing_within_error(request.constraint[0])
    selections, reports = [sets.by_size[n] for n in within], [bounds[n] for n in within]
    results = results_of(request, selections, reports, sets.work)
    request.question.sets.selected |= {members_of(each, each.registry) for each in results}
    order = sets.best.rankings_at_empty_set[0]
    front = ParetoFront.of(results, request.goal.budgets[-1], order=order)
    cost = sets.walk_cost + (Cost() if sets.fit is None else sets.fit.cost)
    kept = _trade_offs(request, target, front.sizes)
    return replace(front, statistics_cost=cost, trade_offs=kept)


def _trade_offs(
    request: ResolvedRequest, target: Target, sizes: Sequence[int]
) -> tuple[TradeOff, ...]:
    """Sets between the largest effect that the question knows and the most faithful one."""
    if (faithful := target.faithful) is None:
        return ()
    best, engine = request.question.sets.by_size(request.sign), request.question.search_engine
    full, is_denoising = engine.full_effects.mean().item(), engine.metric.direction == "denoising"
    strongest = [best[size].members for size in sizes if size in best]
    target.set_effects([each for each in strongest if each not in faithful.measured])
    return trade_offs(
        faithful.measured, sizes, full=full, is_denoising=is_denoising, sign=request.sign
    )


def _with_statistics(
    request: ResolvedRequest, target: Target, sets: _Sets, front: ParetoFront
) -> ParetoFront:
    engine, fit, cost = request.question.search_engine, sets.fit, front.statistics_cost
    # Scores of an objective have an account of their own.
    is_shared = target.engine.account is engine.account
    accounts = [target] if is_shared else [engine, target]
    before = [account.cost for account in accounts]
    sizes = sizes_of_statistics(front.sizes) if fit is None else fit.sizes
    if fit is None and engine.pairs.n_distinct >= FEWEST_EXAMPLES:
        fit = cross_fit(make_target(engine), request.searches, sizes, request.seed, searched=target)
        cost += fit.on_halves
    measured = [each for each in front if each.n_selected in sizes]
    rows = measure_statistics(
        engine,
        {each.n_selected: members_of(each, each.registry) for each in measured},
        request.seed,
        maximised=target,
        others=sets.from_all,
        fit=fit,
        names=[search.name for search in request.searches],
    )
    for account, earlier in zip(accounts, before, strict=True):
        cost += account.cost - earlier
    front = replace(front, statistics=rows, statistics_cost=cost)
    diagnostics.warn_of_front(front)
    return front
