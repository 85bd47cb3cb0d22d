"""What a report is of, read from folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from tracekit._util.options import as_path
from tracekit.errors import ResultFormatError
from tracekit.measure.attention import Attention
from tracekit.measure.explanation import Explanation
from tracekit.measure.look import Look
from tracekit.measure.paths import Paths
from tracekit.measure.side_effects import SideEffects
from tracekit.results.generations import Generations
from tracekit.results.interactions import InteractionGrid
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult

OfRun = Explanation | Paths | Attention | SideEffects | Generations
"""What is measured of the set of a run, and saved beside it."""


def read_saved(path: str | Path) -> list[Any]:
    """Results, and what was measured of sets, saved at a path or below it.

    Raises:
        ConfigError: It is no path.
        ResultNotFoundError, ResultFormatError: As of `TraceResult.load`.
    """
    path = as_path("path", path)
    if path.suffix == ".json":
        return [InteractionGrid.load(path)]
    explanations: list[Any] = []
    for kind in get_args(OfRun):
        for folder in [file.parent for file in sorted(path.rglob(kind.FILE))]:
            explanations.append(kind.load(folder))
            # It must be of the run beside it, if there is one.
            if (folder / "result.json").exists():
                check_of_run(explanations[-1], TraceResult.load(folder), folder)
    explanations += [Look.load(file.parent) for file in sorted(path.rglob(Look.FILE))]
    folders = [file.parent for file in sorted(path.rglob("pareto.json"))]
    fronts = [ParetoFront.load(folder) for folder in folders]
    files = sorted(path.rglob("result.json"))
    # Results of a front were read with it.
    runs = [TraceResult.load(file.parent) for file in files if not {*folders} & {*file.parents}]
    if not fronts and not runs and not explanations:
        # The error says what a folder must hold.
        runs.append(TraceResult.load(path))
    runs.sort(key=lambda result: (result.method, result.n_selected))
    return [*runs, *fronts, *explanations]


def check_of_run(saved: OfRun, result: TraceResult, folder: Path) -> None:
    """Refuses what was measured on another run than the one that it is saved beside.

    Raises:
        ResultFormatError: It is of another set, or of other data, another metric or model.
    """
    stem = Path(saved.FILE).stem.replace("_", " ")
    noun = stem if isinstance(saved, Explanation) else f"record of {stem}"
    pairs: list[tuple[Any, Any]] = [(saved.model, result.model)]
    if isinstance(saved, Generations):
        mine, theirs = (
            (each.source, each.source_seed, each.positions) for each in (saved.setup, result.setup)
        )
        pairs += [(saved.dataset_fingerprint, result.dataset_fingerprint), (mine, theirs)]
    else:
        measured = saved.target if isinstance(saved, SideEffects) else saved
        pairs += [
            # Of held-out examples, those that the set was selected on.
            (saved.selected_on or measured.dataset_fingerprint, result.dataset_fingerprint),
            (measured.metric, result.setup.metric),
        ]
        names = ("source", "source_seed", "direction", "positions")
        pairs += [(getattr(saved, name), getattr(result.setup, name)) for name in names]
    if isinstance(saved, Attention):
        # Only heads are read.
        pairs.append(({*saved.components} - {*result.components}, set()))
    else:
        pairs.append((saved.components, result.components))
    if any(mine != theirs for mine, theirs in pairs):
        raise ResultFormatError(
            f"The {noun} in {folder} is of another run than the one beside it. Measure it again, "
            f"or delete its {saved.FILE}."
        )
