"""Passes, time and memory of a run before it begins, by a timed probe of a few examples."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, NamedTuple
from weakref import WeakKeyDictionary

import torch
from typing_extensions import ParamSpec

from tracekit._util.markup import clean_text
from tracekit._util.names import MethodChoice, SignName
from tracekit._util.progress import duration_text
from tracekit.components import ComponentSet
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.prompts import PromptPairs
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.engine.prepared import PreparedData
from tracekit.errors import ConfigError
from tracekit.measure.evaluation import PlannedSets
from tracekit.measure.explanation import plan_explanation
from tracekit.measure.question import Question
from tracekit.results.display import text_html
from tracekit.search import LocalSearch, MaskIG, Search, make
from tracekit.search.base import PlannedPasses, log_spaced_sizes
from tracekit.search.constraint import Constraint
from tracekit.search.objectives import Objective, ObjectiveName
from tracekit.tracer.request import Plan, Request, plan, plan_front, resolve_front, resolve_request

_P = ParamSpec("_P")
_PROBED_PLACES, _NEIGHBOURS, _PROBED = 2, 4, 8
"""What is measured to see what a pass takes: neighbours at some places, or some planned sets."""
_PROBED_EXAMPLES = 8
"""Examples that they are measured on; on an accelerator a batch, as it idles on fewer."""
_LEAST_SECONDS = 0.3
"""A shorter probe times calls rather than passes: a larger one follows."""
_LONG, _SIZES_OF_FRONT = 600.0, 12
"""Seconds from which an estimate names a faster way, and the sizes of it in place of a front."""
_BY_GRADIENTS = ("mask-ig", "eap-ig", "attribution")
_PACES: WeakKeyDictionary[PreparedData, dict[tuple[Any, ...], Pace]] = WeakKeyDictionary()
"""By data; by whether a gradient was taken, and the sets that were measured."""


class Pace(NamedTuple):
    """Seconds of a pass over the data, and of a gradient there and back; bytes at the peak."""

    forward: float
    gradient: float
    memory: int | None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Passes, time and memory of a run. Printed, it is one line."""

    method: str
    """Name of the search."""
    passes: float
    """Passes over the data, forward and backward alike: the result's `cost`, or at most that."""
    further: float = 0.0
    """Further passes at most: complements, held-out examples, further metrics and statistics."""
    is_exact: bool
    """Whether the run takes exactly these passes."""
    example_passes: float
    """Examples that are run in all, each way and the further passes counted."""
    rows: int
    """Examples that go through the model at once at most, each under one mask."""
    seconds: float
    """Estimated wall time, from a timed probe; on a busier machine a run takes longer."""
    memory: int | None
    """Bytes at the peak: of the accelerator in the probe, or of this process; None if unknown."""
    faster: str = ""
    """What answers the same question in minutes, and its estimated time, where this takes long."""

    @property
    def total(self) -> str:
        """Passes and time in words, as `up to 98 passes and 290 for the results, about 4 min`."""
        further = f" and {self.further:.0f} for the results" * (self.further > 0.05 * self.passes)
        passes = f"{'' if self.is_exact else 'up to '}{self.passes:.0f} passes{further}"
        return f"{passes}, about {duration_text(self.seconds)}"

    def __repr__(self) -> str:
        memory = "" if self.memory is None else f"; {self.memory / 2**20:.0f} MiB"
        faster = f". Faster: {self.faster}" if self.faster else ""
        return clean_text(
            f"Estimate({self.method}: {self.total}; {self.example_passes:.0f} examples are "
            f"run, up to {self.rows} at once{memory}){faster}"
        )

    _repr_html_ = text_html


def _pace_of(
    engine: Engine, *, sets: Sequence[ComponentSet] = (), with_gradient: bool = False
) -> Pace:
    """Measured on a few examples, and on single components if no sets are given; kept for both."""
    kept, asked = _PACES.setdefault(engine, {}), (with_gradient, *sets)
    if asked not in kept:
        n, device, is_cuda = engine.n_examples, engine.device, engine.device.type == "cuda"
        count = min(n, _PROBED_EXAMPLES if device.type == "cpu" else engine.max_rows)
        places = _PROBED_PLACES
        while True:
            few = engine.with_pairs(engine.pairs.subset([i * n // count for i in range(count)]))
            # Clean and counterfactual runs are made before the clock starts.
            few.prepare_full_effects()
            if is_cuda:
                torch.cuda.reset_peak_memory_stats(device)
            these = sets or _probe_sets(engine.n_components, places)
            forward, gradient = _seconds_of_passes(few, these, with_gradient=with_gradient)
            if few.n_examples == n or len(these) * forward >= _LEAST_SECONDS:
                break
            places, count = 2 * places, min(n, 4 * count)
        memory = torch.cuda.max_memory_allocated(device) if is_cuda else _peak_of_process()
        scale = n / few.n_examples
        kept[asked] = Pace(scale * forward, scale * gradient, memory)
    return kept[asked]


def _seconds_of_passes(
    engine: Engine, sets: Sequence[ComponentSet], *, with_gradient: bool
) -> tuple[float, float]:
    start = _now(engine)
    engine.set_effects(sets)
    forward = (_now(engine) - start) / len(sets)
    if not with_gradient:
        return forward, 2 * forward
    start = _now(engine)
    engine.gradient(torch.full((engine.n_components,), 0.5), torch.ones_like)
    return forward, _now(engine) - start


def _probe_sets(n: int, places: int) -> list[ComponentSet]:
    """Single components: where sets begin says how much of a pass they take, and share."""
    starts = [(2 * number + 1) * n // (2 * places) for number in range(places)]
    return [(i,) for i in sorted({min(n - 1, s + k) for s in starts for k in range(_NEIGHBOURS)})]


def _now(engine: Engine) -> float:
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    return time.perf_counter()


def _peak_of_process() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def estimate(
    question: Question,
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
    **options: Any,
) -> Estimate:
    """The passes, time and memory that `run` with these arguments will take.

    Runs nothing but a timed probe on a few examples, whose result is kept for the next estimate.

    Raises:
        ConfigError: The search does not say how many passes it takes, as one of your own.
        UnknownNameError, BudgetError: As in `run`.
    """
    request = Request(
        search=make(method, options, signature(estimate).parameters, question.registry.kinds),
        budget=budget,
        budgets=budgets,
        target_effect=target_effect,
        faithfulness=faithfulness,
        objective=objective,
        sign=sign,
        constraint=constraint,
        training_pairs=training_pairs,
    )
    return estimate_run(question, request)


def estimate_run(question: Question, request: Request) -> Estimate:
    """As `estimate`, of a request for a run."""
    resolved = resolve_request(question, request)
    if getattr(request.search, "lambda1", None) is None:
        resolved.goal.require(request.search.name)
    return _with_faster(question, _estimate_plan(question, request, plan(resolved)), request)


def estimate_pareto(
    question: Question,
    *,
    max_budget: int | float | None = None,
    objective: ObjectiveName | Objective | None = None,
    sign: SignName | None = None,
    constraint: Constraint | None = None,
    statistics: bool = True,
    **options: Any,
) -> Estimate:
    """As `estimate`, of `pareto` with these arguments.

    `passes` are those of the front; `further` includes the statistics. Errors are as in `pareto`.
    """
    search = make(LocalSearch, options, signature(estimate_pareto).parameters)
    request = Request(
        search=search, budget=max_budget, objective=objective, sign=sign, constraint=constraint
    )
    return estimate_front(question, request, statistics=statistics)


def estimate_front(question: Question, request: Request, *, statistics: bool = True) -> Estimate:
    """As `estimate_pareto`, of a request for a front."""
    resolved = resolve_front(question, request, statistics=statistics)
    slow = _estimate_plan(question, request, plan_front(resolved, statistics=statistics))
    sizes = log_spaced_sizes(1, resolved.goal.budgets[-1], _SIZES_OF_FRONT)
    return _with_faster(question, slow, replace(request, budget=None, budgets=sizes))


def estimate_explain(
    question: Question,
    members: ComponentsLike,
    *,
    max_sets: int = 2000,
    look_outside: bool | None = None,
) -> Estimate:
    """As `estimate`, of `explain` with these arguments; sets that lack a member are timed."""
    chosen = members_of(members, question.registry)
    planned = plan_explanation(
        question.eval_engine, chosen, max_sets=max_sets, look_outside=look_outside
    )
    sets = [(*chosen[:i], *chosen[i + 1 :]) for i in range(min(len(chosen), _PROBED))]
    slow = _estimate_passes("explain", planned, question.eval_engine, sets=sets)
    return _with_faster(question, slow)


def estimate_of(
    planned: Callable[Concatenate[Question, _P], PlannedSets], *, is_exact: bool = True
) -> Callable[Concatenate[Question, _P], Estimate]:
    """Estimates a call that measures the planned sets, or at most these; some of them are probed.

    The effect of all components, which calls share, is not counted.
    """
    name = planned.__name__.removeprefix("planned_")

    @wraps(planned)
    def estimate(question: Question, /, *args: _P.args, **options: _P.kwargs) -> Estimate:
        parts = [
            (engine.n_examples, len(sets), _pace_of(engine, sets=sets[:: -(-len(sets) // _PROBED)]))
            for engine, sets in planned(question, *args, **options)
        ]
        slow = Estimate(
            method=name,
            passes=sum(n_sets for _, n_sets, _ in parts),
            is_exact=is_exact,
            example_passes=sum(n * n_sets for n, n_sets, _ in parts),
            rows=question.eval_engine.max_rows,
            seconds=sum(n_sets * pace.forward for _, n_sets, pace in parts),
            memory=parts[-1][2].memory,
        )
        return _with_faster(question, slow)

    estimate.__doc__ = f"As `estimate`, of `{name}` with these arguments."
    return estimate


def _with_faster(question: Question, slow: Estimate, request: Request | None = None) -> Estimate:
    """Names a ranking by gradients, fewer examples or both: the first that takes minutes."""
    n, ways = question.eval_engine.n_examples, [("", slow)]
    if slow.seconds < _LONG:
        return slow
    is_smooth = question.search_engine.metric.differentiable
    if request is not None and is_smooth and request.search.name not in _BY_GRADIENTS:
        by_gradients = replace(request, search=MaskIG(), training_pairs=None)
        resolved = resolve_request(question, by_gradients)
        sizes = "" if request.budgets is None else f" with budgets={list(request.budgets)}"
        if resolved.goal.budgets or resolved.goal.target is not None:
            quick = _estimate_plan(question, by_gradients, plan(resolved))
            ways.insert(0, (f"{MaskIG.name}{sizes}", quick))
    for name, way in ways:
        if way.seconds < _LONG:
            return replace(slow, faster=f"{name}, about {duration_text(way.seconds)}")
    for name, way in reversed(ways):
        few = int(n * 0.5 * _LONG / way.seconds)
        if few >= _PROBED_EXAMPLES:
            on = f"{few} of the {n} examples, about {duration_text(way.seconds * few / n)}"
            return replace(slow, faster=f"{name} on {on}" if name else on)
    name, quick = ways[0]
    if quick.seconds >= slow.seconds / 2:
        return slow
    return replace(slow, faster=f"{name}, about {duration_text(quick.seconds)}")


def _estimate_plan(question: Question, request: Request, planned: Plan | None) -> Estimate:
    if planned is None:
        raise ConfigError(
            f"The search {request.search.name!r} does not say how many passes it takes. Give it a "
            "method planned_passes(n_components, goal) that returns tracekit.search.PlannedPasses."
        )
    return _estimate_passes(request.search.name, planned, question.search_engine)


def _estimate_passes(
    name: str, planned: PlannedPasses, engine: Engine, *, sets: Sequence[ComponentSet] = ()
) -> Estimate:
    cost, passes = planned.cost, planned.cost.forward_equivalents
    further, limited, max_seconds = 0.0, (), None
    if isinstance(planned, Plan):
        further, limited = planned.extra_passes, planned.limited
        max_seconds = getattr(planned.search, "max_seconds", None)
    forward, gradient, memory = _pace_of(engine, sets=sets, with_gradient=cost.backward > 0)

    def seconds_of(cost: Cost) -> float:
        return (cost.forward - cost.backward) * forward + cost.backward * gradient

    seconds = seconds_of(cost + Cost(further))
    if max_seconds is not None:
        seconds -= sum(max(0.0, seconds_of(part) - max_seconds) for part in limited)
    return Estimate(
        method=name,
        passes=passes,
        further=further,
        is_exact=planned.is_exact,
        example_passes=(passes + further) * engine.n_examples,
        rows=engine.max_rows,
        seconds=seconds,
        memory=memory,
    )
