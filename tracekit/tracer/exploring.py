"""The explorer on the sets and results of a tracer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit.components import ComponentSet, masks
from tracekit.components.members import members_of
from tracekit.engine.cost import Cost
from tracekit.errors import MissingExtraError
from tracekit.metrics import Effects
from tracekit.results.curve import TraceCurve
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult
from tracekit.search import Goal, Selection
from tracekit.tracer.search_run import RunContext, Usage

if TYPE_CHECKING:
    from tracekit.explore.explorer import Explorer


@dataclass(frozen=True)
class Manual:
    """Stands for the search of a set that somebody clicked together."""

    name: ClassVar[str] = "by-hand"
    title: ClassVar[str] = "by hand"

    def search(self, engine: Any, goal: Goal, seed: int) -> list[Selection]:
        """Selects nothing."""
        raise NotImplementedError("Sets by hand are not searched for.")


def result_by_hand(traced: RunContext, members: ComponentSet, effects: Effects) -> TraceResult:
    """A result of a set that no search selected."""
    mask = masks.from_indices(members, traced.engine.n_components)
    selection = Selection(mask=mask, effects=effects)
    (complement,) = traced.complements([selection])
    spent = Usage(Cost(1, 0), 0.0)
    return traced.result(Manual(), selection, Goal(), 0, spent, complement=complement)


def open_explorer(
    traced: RunContext,
    start: Any,
    front: ParetoFront | TraceCurve | None,
    results: Sequence[TraceResult],
    is_own: Callable[[TraceResult], bool],
) -> Explorer:
    """A view of sets; see `Tracer.explore`.

    It starts at a set, or at the largest set of a front or curve, and shows further results; those
    that are not `is_own` are of other data, and are measured again.
    """
    try:
        from tracekit.explore.explorer import Explorer
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"The explorer needs {error.name}, which is not installed. "
            "Run pip install 'tracekit-lm[explore]'."
        ) from error
    from tracekit.explore.exploration import Exploration, Measurement

    registry = traced.engine.registry

    def to_members(given: Any) -> ComponentSet:
        return members_of(given, registry, or_none=True)

    to_result = partial(result_by_hand, traced)

    if isinstance(start, (ParetoFront, TraceCurve)):
        front = start if front is None else front
        start = start[-1]
    earlier = [*results, *(front or ())]
    earlier += [start] if isinstance(start, TraceResult) else []
    exploration = Exploration(
        traced.engine,
        to_members(start),
        front=[members_of(result, registry) for result in front or ()],
        measured=[
            Measurement(
                members_of(each, registry),
                each.per_example,
                weights=each.weights,
                clusters=each.clusters,
                bounds=traced.engine.metric.bounds,
            )
            for each in earlier
            if is_own(each)
        ],
    )
    return Explorer(
        exploration,
        to_members=to_members,
        to_result=to_result,
        source=str(traced.setup.source),
        front_name="Pareto front" if isinstance(front, ParetoFront) else "Budget",
    )
