"""A search on a question, as a request asks for it, once or on resampled examples; its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from tracekit._util import progress
from tracekit._util.names import MethodName, SignName
from tracekit._util.options import check_int, short_repr
from tracekit._util.progress import OnNote, report_waiting
from tracekit._util.versions import versions
from tracekit.components.masks import BinaryMask, from_indices, members_of_mask
from tracekit.components.members import members_of
from tracekit.engine import checks
from tracekit.engine.cost import Cost
from tracekit.engine.effects import metric_effects
from tracekit.engine.resampled import ResampledEngine, SharedMeasurements
from tracekit.errors import ConfigError, TargetNotReachedError
from tracekit.measure.question import KnownSets, Question
from tracekit.metrics import Effects
from tracekit.results.by_component import Stability
from tracekit.results.curve import TraceCurve
from tracekit.results.result import RunFacts, TraceResult
from tracekit.search import Search, Selection, make
from tracekit.search.base import best_within, config_of
from tracekit.search.constraint import SCORE_OUTSIDE, nothing_within_error
from tracekit.search.objectives import Faithful, Objective, ObjectiveName, describe_objective
from tracekit.search.prefix import drop_idle_edges
from tracekit.search.targets import ConstraintEffect, Record, Target
from tracekit.tracer import diagnostics
from tracekit.tracer.request import (
    Plan,
    Request,
    ResolvedRequest,
    plan,
    progress_bar,
    resolve_request,
)
from tracekit.tracer.trackers import Observed, Observer

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a search took."""

    cost: Cost
    seconds: float
    """Wall time."""

    def __add__(self, other: Work) -> Work:
        return Work(cost=self.cost + other.cost, seconds=self.seconds + other.seconds)


def measure_work(
    request: ResolvedRequest, target: Target, search: Callable[[], _T]
) -> tuple[_T, Work]:
    """Searches a target on an unchanged model, and measures what that takes."""
    engine = request.question.search_engine
    # All searches share these runs, so no search pays for them.
    engine.prepare_full_effects()
    checks.check_model_unchanged(engine)
    cost, start = target.cost, time.perf_counter()
    with target.engine.cuda_graphs.recording():
        outcome = search()
    return outcome, Work(cost=target.cost - cost, seconds=time.perf_counter() - start)


def run_search(
    question: Question, request: Request, observe: Observer | None = None
) -> list[TraceResult]:
    """The results that a request asks for, with the warnings about them; see `Tracer.run`."""
    with report_waiting(request.search.name, shown=question.config.progress):
        resolved = resolve_request(question, request)
        planned = plan(resolved)
        diagnostics.warn_before(resolved, request.sign, planned)
        with Observed(observe, resolved) as observed:
            results = search(resolved, planned, observed.step)
            if request.faithfulness is not None:
                results = [TraceCurve(tuple(results)).smallest(faithfulness=request.faithfulness)]
            observed.results(results)
        question.results.extend(results)
        diagnostics.warn_of_results(results, question.search_engine.pairs, question.noise_floor)
    return results


def search(
    request: ResolvedRequest, planned: Plan | None, on_note: OnNote = None
) -> list[TraceResult]:
    """A result per budget, ascending, or one for a target; steps are reported to `on_note`.

    Raises:
        TargetNotReachedError: No set that was tried reaches the target.
        NothingFoundError: No set that was tried stays within the bound of the constraint.
        KeyboardInterrupt: Ctrl-C, before a set was measured that answers the goal.
    """
    question, recorded = request.question, KnownSets()
    with progress_bar(request, planned, on_note):
        target = request.target(recorded)
        before, start = target.cost, time.perf_counter()
        try:
            goal, seed = request.goal_of_search, request.seed
            selections, work = measure_work(
                request, target, lambda: request.search.search(target, goal, seed)
            )
        except TargetNotReachedError as error:
            if request.sign > 0:
                raise
            also = "Effects below 0 are sought, and all effects in this message are times -1."
            raise TargetNotReachedError(f"{error} {also}") from None
        except KeyboardInterrupt:
            selections = _best_so_far(request, recorded)
            work = Work(cost=target.cost - before, seconds=time.perf_counter() - start)
        selections, more = measure_work(
            request, target, lambda: [drop_idle_edges(target, each) for each in selections]
        )
        work += more
        if request.constraint is not None and request.goal.budgets:
            selections = [best_within(selections, budget) for budget in request.goal.budgets]
        bounds = [target.report(members_of_mask(each.mask)) for each in selections]
        for effect in bounds:
            if request.constraint is not None and effect is not None and not effect.is_within:
                raise nothing_within_error(request.constraint[0], effect.effect)
        results = results_of(request, selections, bounds, work)
        question.sets.selected |= {members_of(each, each.registry) for each in results}
        return results


def _best_so_far(request: ResolvedRequest, recorded: KnownSets) -> list[Selection]:
    """The best sets that an interrupted search has measured; Ctrl-C again if there are none."""
    by_size, n = recorded.by_size(), len(request.question.registry)
    goal, budgets = request.goal_of_search, request.goal.budgets
    fitting = [[size for size in by_size if size <= budget] for budget in budgets]
    if goal.target is not None:
        reaching = [size for size in by_size if by_size[size].mean >= goal.target]
        fitting = [[min(reaching)]] if reaching else []
    if not fitting or not all(fitting):
        raise KeyboardInterrupt
    selections = []
    for sizes, budget in zip(fitting, budgets or [None], strict=True):
        best = by_size[max(sizes, key=lambda size: by_size[size].mean)]
        mask, effects = from_indices(best.members, n), best.effects
        each = Selection(mask=mask, effects=effects, budget=budget, stopped="interrupted")
        selections.append(each)
    return selections


def results_of(
    request: ResolvedRequest,
    selections: Sequence[Selection],
    bounds: Sequence[ConstraintEffect | None],
    work: Work,
) -> list[TraceResult]:
    """A result for each set that a search selected; `bounds` are effects on its constraint.

    Selections have scores instead of effects unless the search was by effect.
    """
    sets = [members_of_mask(each.mask) for each in selections]
    histories = [_history(request, each) for each in selections]
    question = request.question
    engine, extra_metrics = question.search_engine, question.extra_metrics
    effects: Sequence[Effects] = [each.effects for each in selections]
    if not request.by_effect:
        effects = [engine.effects(each.mask) for each in selections]
    seen_prompts = tuple(sorted(request.seen_prompts.digests))
    facts, by_example = question.model_facts, question.on_examples(sets, effects)
    rows = zip(selections, by_example, bounds, histories, strict=True)
    results = []
    for selection, (own, held_out), bound, history in rows:
        by, mask = selection.by or request.searches[0], selection.mask
        soft_mask = mask.float() if selection.soft_mask is None else selection.soft_mask
        extra = metric_effects(engine, mask, extra_metrics) if extra_metrics else {}
        results.append(
            TraceResult(
                setup=question.named_setup,
                run=RunFacts(
                    method=by.name,
                    title=getattr(by, "title", by.name),
                    records_every_size=request.by_effect
                    and getattr(by, "records_every_size", False),
                    objective=describe_objective(request.objective),
                    sign="positive" if request.sign > 0 else "negative",
                    config=config_of(by),
                    seed=request.seed,
                    cost=work.cost + selection.saved,
                    seconds=work.seconds,
                    stopped=selection.stopped,
                    held_out_by=selection.held_out_by,
                    n_skipped=selection.n_skipped,
                    training=None if request.training is None else request.training.drawn,
                    seen_prompts=seen_prompts,
                    versions=versions(),
                ),
                registry=question.registry,
                binary_mask=mask,
                soft_mask=soft_mask,
                component_scores=_component_scores(request, selection, bound),
                searched=own,
                held_out=held_out,
                extra_metrics=tuple(metric.name for metric in extra_metrics),
                extra_per_example=torch.stack([*extra.values()]) if extra else None,
                constraint=bound,
                budget=selection.budget,
                target_effect=request.goal.target,
                history=history,
                axis_label=engine.metric.axis_label,
                model=question.model_name,
                model_facts=facts,
                noise_floor=question.noise_floor,
            )
        )
    return results


def _history(request: ResolvedRequest, selection: Selection) -> tuple[Record, ...]:
    """Records of sets within the bounds; those of a search that was not by effect have scores."""
    lowest, records = SCORE_OUTSIDE / 2, selection.history
    history = tuple(each for each in records if float(each.get("effect", 0.0)) > lowest)
    if request.by_effect:
        return history
    renamed = {"effect": "score"}
    return tuple({renamed.get(key, key): record[key] for key in record} for record in history)


def _component_scores(
    request: ResolvedRequest, selection: Selection, bound: ConstraintEffect | None
) -> torch.Tensor | None:
    """Scores that components were ranked by, as effects; None where they are no effects."""
    scores, objective = selection.component_scores, request.objective
    # Penalties and scores of several examples are no effects of single components, nor of sets.
    if scores is None or bound is not None or not isinstance(objective, Faithful | None):
        return None
    if objective is None:
        return request.sign * scores.float()
    return scores.float() * (-1 if request.question.search_engine.full_effects.mean() < 0 else 1)


def stability(
    question: Question,
    method: MethodName | type | Search | None = None,
    *,
    budget: int | float,
    resamples: int = 20,
    threshold: float = 0.9,
    objective: ObjectiveName | Objective | None = None,
    sign: SignName | None = None,
    seed: int = 0,
    **options: Any,
) -> Stability:
    """Repeats a search on resampled examples, and counts how often each component is selected.

    A resample has as many independent examples as the searched ones, drawn from them with
    replacement (the bootstrap); pairs of one group stay together. What several resamples measure is
    measured once, on all examples: every set, and gradients at masks whose entries are equal, which
    are all that gradient rankings of masks need. Ctrl-C keeps the resamples so far.

    Args:
        question: The question.
        method: As in `run`, with its options.
        budget: As in `run`.
        resamples: Number of searches, at least 2.
        threshold: Share of the resamples from which on a component counts as stable, in (0, 1].
        objective: As in `run`.
        sign: As in `run`.
        seed: Draws the resamples, and is the seed of the first search; the next seed is that of the
            second, and so on.
        **options: Of the method.

    Raises:
        ConfigError: Fewer resamples, another threshold, or about the search.
        UnknownNameError, BudgetError, NothingFoundError: As in `run`.
    """
    check_int("resamples", resamples, 2)
    if not 0 < threshold <= 1:
        raise ConfigError(f"threshold is {short_repr(threshold)}. Give a share in (0, 1].")
    search = make(method, options, signature(stability).parameters, question.registry.kinds)
    asked = Request(search=search, budget=budget, objective=objective, sign=sign, seed=seed)
    request = resolve_request(question, asked)
    engine, measured = question.search_engine, question.eval_engine
    checks.check_model_unchanged(engine)
    target, before, cost = request.target(), measured.cost, Cost()
    shared = SharedMeasurements(engine)
    generator = torch.Generator().manual_seed(seed)
    masks: list[BinaryMask] = []
    name = f"stability of {search.name}"
    with progress.open_bar(name, None, engine.n_examples, shown=engine.config.progress):
        try:
            for number in range(resamples):
                rows = _resample(target.pairs.clusters, engine.n_examples, generator)
                part = target.with_engine(ResampledEngine.draw(shared, rows))
                (selection,) = search.search(part, request.goal_of_search, seed + number)
                if selection.stopped == "interrupted":
                    raise KeyboardInterrupt
                masks.append(drop_idle_edges(part, selection).mask)
                cost += part.cost
        except KeyboardInterrupt:
            if len(masks) < 2:
                raise
    chosen = torch.stack(masks).double()
    frequencies = chosen.mean(0)
    stable = members_of_mask(frequencies >= threshold - 1e-6)
    effects = measured.set_effects([*map(members_of_mask, masks), stable], "sets of the resamples")
    facts = question.facts_of(measured, before)
    return Stability(
        members=stable,
        frequencies=frequencies.float(),
        threshold=threshold,
        method=getattr(search, "title", search.name),
        n_resamples=len(masks),
        n_selected=chosen.sum(1).mean().item(),
        effects=effects[-1],
        mean_effect=effects[:-1].mean().item(),
        selected_on=engine.fingerprint,
        **{**facts, "cost": cost - shared.saved + facts["cost"]},
    )


def _resample(
    clusters: Int[Tensor, " example"] | None, n_examples: int, generator: torch.Generator
) -> list[int]:
    """Numbers of the examples of a resample: whole clusters, drawn with replacement."""
    of_example = torch.arange(n_examples) if clusters is None else clusters
    n = int(of_example.max()) + 1
    drawn = torch.randint(n, (n,), generator=generator)
    return [row for each in drawn for row in (of_example == each).nonzero().flatten().tolist()]
