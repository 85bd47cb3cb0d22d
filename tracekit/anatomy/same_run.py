"""Whether what was measured of a set belongs to the run that it is saved beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracekit.anatomy.attention import Attention
from tracekit.anatomy.explanation import Explanation
from tracekit.anatomy.paths import Paths
from tracekit.anatomy.side_effects import SideEffects
from tracekit.errors import ResultFormatError
from tracekit.results.generations import Generations
from tracekit.results.result import TraceResult


def check_of_run(
    saved: Explanation | Paths | Attention | SideEffects | Generations,
    result: TraceResult,
    folder: Path,
) -> None:
    """Refuses what was measured on another run than the one that it is saved beside.

    Raises:
        ResultFormatError: It is of another set, or of other data, another metric or model.
    """
    stem = Path(saved.FILE).stem.replace("_", " ")
    noun = stem if isinstance(saved, Explanation) else f"record of {stem}"
    pairs: list[tuple[Any, Any]] = [(saved.model, result.model)]
    if isinstance(saved, Generations):
        mine, theirs = ((each.source, each.positions) for each in (saved.setup, result.setup))
        pairs += [(saved.dataset_fingerprint, result.dataset_fingerprint), (mine, theirs)]
    else:
        asked = saved.target if isinstance(saved, SideEffects) else saved
        pairs += [
            # Of held-out examples, those that the set was selected on.
            (saved.selected_on or asked.dataset_fingerprint, result.dataset_fingerprint),
            (asked.metric, result.setup.metric),
            (saved.source, result.setup.source),
            (saved.direction, result.setup.direction),
            (saved.positions, result.setup.positions),
        ]
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
