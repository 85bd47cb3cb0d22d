"""Whether an explanation, paths or side effects belong to the run that they are saved beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracekit.anatomy.attention import Attention
from tracekit.anatomy.explanation import Explanation
from tracekit.anatomy.paths import Paths
from tracekit.anatomy.side_effects import SIDE_EFFECTS, SideEffects
from tracekit.errors import ResultFormatError
from tracekit.results.result import TraceResult


def check_of_run(
    saved: Explanation | Paths | Attention | SideEffects, result: TraceResult, folder: Path
) -> None:
    """Refuses what was measured on another run than the one that it is saved beside.

    Raises:
        ResultFormatError: It is of another set, or of other data, another metric or model.
    """
    asked = saved.target if isinstance(saved, SideEffects) else saved
    name = SIDE_EFFECTS if isinstance(saved, SideEffects) else saved.FILE
    stem = Path(name).stem.replace("_", " ")
    noun = stem if isinstance(saved, Explanation) else f"record of {stem}"
    pairs: list[tuple[Any, Any]] = [
        # Of held-out examples, those that the set was selected on.
        (saved.selected_on or asked.dataset_fingerprint, result.dataset_fingerprint),
        (asked.metric, result.setup.metric),
        (saved.source, result.setup.source),
        (saved.direction, result.setup.direction),
        (saved.model, result.model),
    ]
    if isinstance(saved, Attention):
        # Only heads are read.
        pairs.append(({*saved.components} - {*result.components}, set()))
    else:
        pairs.append((saved.components, result.components))
    if any(mine != theirs for mine, theirs in pairs):
        raise ResultFormatError(
            f"The {noun} in {folder} is of another run than the one beside it. Measure it again, "
            f"or delete its {name}."
        )
