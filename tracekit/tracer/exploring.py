"""The explorer on the sets and results of a tracer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tracekit._util.options import as_path
from tracekit.components import ComponentSet, masks
from tracekit.components.masks import complement_of
from tracekit.components.members import ComponentsLike, members_of
from tracekit.engine.cost import Cost
from tracekit.errors import ConfigError, MissingExtraError
from tracekit.measure.paths import Paths
from tracekit.measure.question import Question
from tracekit.metrics import Effects
from tracekit.models import model_name, weights_digest
from tracekit.results.curve import TraceCurve
from tracekit.results.faithfulness import MIB_SHARES
from tracekit.results.mib import read_mib_circuits
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult
from tracekit.search import Goal, Selection
from tracekit.tracer.generation import generate
from tracekit.tracer.request import ResolvedRequest
from tracekit.tracer.search import Work, results_of

if TYPE_CHECKING:
    from tracekit.explore.explorer import Explorer


@dataclass(frozen=True)
class Manual:
    """Stands for the search of a set that somebody brought or clicked together."""

    name: ClassVar[str] = "by-hand"
    title: ClassVar[str] = "by hand"
    selected: bool
    """Whether it was chosen by its effects on the examples."""

    def search(self, target: Any, goal: Goal, seed: int) -> list[Selection]:
        """Selects nothing."""
        raise NotImplementedError("Sets by hand are not searched for.")


def as_result(question: Question, members: ComponentsLike) -> TraceResult:
    """A set of your own as a result, with all that a result says of it.

    Raises:
        MaskError, ComponentError: About the set.
    """
    is_selected = question.selection_fingerprint(members) is not None
    return result_by_hand(question, members_of(members, question.registry), selected=is_selected)


def curve_from_mib(question: Question, folder: str | Path) -> TraceCurve:
    """The nine circuits of edges in a folder of the MIB benchmark, and that of all edges.

    `faithfulness` of the curve has the CPR and the CMD that MIB computes on these examples.

    Raises:
        DataFormatError: The folder has not nine circuits, or they are of another model.
    """
    n, path = len(question.registry), as_path("folder", folder)
    circuits = read_mib_circuits(path, question.registry, question.model.cfg)
    rows = zip(MIB_SHARES, [*circuits, "all"], strict=True)
    results = (replace(as_result(question, each), budget=int(share * n)) for share, each in rows)
    return TraceCurve(tuple(results))


def result_by_hand(
    question: Question,
    members: ComponentSet,
    effects: Effects | None = None,
    *,
    selected: bool = True,
) -> TraceResult:
    """A result of a set that no search selected; its effects, if they were measured before."""
    mask = masks.from_indices(members, len(question.registry))
    effects = question.search_engine.effects(mask.float()) if effects is None else effects
    request = ResolvedRequest(question=question, search=Manual(selected), goal=Goal())
    selection, work = Selection(mask=mask, effects=effects), Work(cost=Cost(1, 0), seconds=0.0)
    return results_of(request, [selection], [None], work)[0]


def arrows_of(paths: Paths, question: Question) -> list[dict[str, Any]]:
    """Paths whose interval leaves out 0, the strongest first; ends without a flat index are None.

    Raises:
        ConfigError: They were measured with another question.
        ComponentError: A member that the tracer does not study.
    """
    engine, held_out = question.search_engine, question.held_out_engine
    prints = [each.fingerprint for each in (engine, held_out) if each is not None]
    how, model, metric = question.setup, model_name(engine.model), engine.metric.name
    of_question = model, metric, how.intervention, how.source_seed
    of_paths = paths.model, paths.metric, paths.intervention, paths.source_seed
    if of_paths != of_question or paths.dataset_fingerprint not in prints:
        raise ConfigError(
            f"The paths are of {paths.dataset} data and {paths.model}, by {paths.metric} and "
            f"{paths.intervention}, and this tracer has another model, question or examples. Give "
            "what tracer.paths(...) measured."
        )
    registry = question.search_engine.registry
    at = dict(zip(paths.labels, map(registry.index, paths.components), strict=True))
    columns = ["sender", "receiver", "strongest", "effect", "effect_low", "effect_high"]
    columns += ["significant"] if paths.is_tested else ["is_apart"]
    names = ("from", "to", "by", "effect", "low", "high", "sure")
    return [
        dict(zip(names, (at.get(start), at.get(end), *rest), strict=True))
        for start, end, *rest in paths.table.loc[paths.table["is_apart"], columns].values.tolist()
    ]


def answers_question(question: Question, result: TraceResult) -> bool:
    """Whether a result answers the question on its data and model, so that its effects hold."""
    engine, weights = question.search_engine, weights_digest(question.model)
    return (
        result.searched.fingerprint == engine.fingerprint
        and result.setup == question.named_setup
        and result.model_facts.weights_digest == weights
        and result.registry == engine.registry
    )


def explore(
    question: Question,
    start: ComponentsLike | ParetoFront | TraceCurve | None = None,
    *,
    front: ParetoFront | TraceCurve | None = None,
    paths: Paths | None = None,
) -> Explorer:
    """A view in which components are clicked on and off, and the measured effect follows.

    It needs Jupyter, and the extra `explore`. What this tracer measured before is there at once.

    ```python
    view = tracer.explore(tracer.run(budget=6))
    view  # the last line of a cell shows it
    view.components, view.effect  # what is on screen, in the next cell
    view.save("explore.html")  # a page to click on without a kernel
    ```

    Args:
        question: The question.
        start: The first set, as in `explain`. By default the empty set; of a front, its largest
            set. A front or curve is taken as `front` too.
        front: Sets to move along with a slider.
        paths: What `paths` measured, to draw between members of the set on screen.

    Raises:
        MissingExtraError: anywidget is not installed.
        MaskError, ComponentError: About the first set, or more components than can be shown.
        ConfigError: Paths that were measured with another question.
    """
    try:
        from tracekit.explore.explorer import Explorer
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("The explorer", error, "explore") from error
    from tracekit.explore.exploration import Exploration, Measurement

    registry = question.search_engine.registry
    to_members = partial(members_of, registry=registry, allow_empty=True)
    if isinstance(start, (ParetoFront, TraceCurve)):
        front = start if front is None else front
        start = start[-1]
    earlier = [
        (members_of(each, registry), each)
        for each in (*question.results, *(front or ()), start)
        if isinstance(each, TraceResult) and answers_question(question, each)
    ]
    exploration = Exploration(
        question.search_engine,
        to_members(start),
        front=[members_of(result, registry) for result in front or ()],
        measured=[
            Measurement(complement_of(members, len(registry)) if is_other else members, effects)
            for members, each in earlier
            for is_other, effects in enumerate((each.searched.effects, each.searched.complement))
            if effects is not None
        ],
    )
    exploration.held_out = {members: each.held_out for members, each in earlier if each.held_out}
    return Explorer(
        exploration,
        to_members=to_members,
        to_result=partial(result_by_hand, question),
        generate=partial(generate, question),
        arrows=() if paths is None else arrows_of(paths, question),
        source=question.source,
        front_name="Pareto front" if isinstance(front, ParetoFront) else "Budget",
    )
