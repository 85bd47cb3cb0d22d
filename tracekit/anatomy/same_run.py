"""Whether an explanation, paths or side effects belong to the run that they are saved beside."""

from __future__ import annotations

from pathlib import Path

from tracekit.anatomy.explanation import EXPLANATION, Explanation
from tracekit.anatomy.paths import PATHS, Paths
from tracekit.anatomy.side_effects import SIDE_EFFECTS, SideEffects
from tracekit.errors import ResultFormatError
from tracekit.results.result import TraceResult


def check_of_run(
    saved: Explanation | Paths | SideEffects, result: TraceResult, folder: Path
) -> None:
    """Refuses what was measured on another run than the one that it is saved beside.

    Args:
        saved: What was loaded.
        result: The run beside it.
        folder: Where both were saved.

    Raises:
        ResultFormatError: It is of another set, or of other data, another metric or model.
    """
    if isinstance(saved, SideEffects):
        asked, noun, name = saved.target, "record of side effects", SIDE_EFFECTS
    elif isinstance(saved, Paths):
        asked, noun, name = saved, "record of paths", PATHS
    else:
        asked, noun, name = saved, "explanation", EXPLANATION
    pairs = [
        # Of held-out examples, those that the set was selected on.
        (saved.selected_on or asked.dataset_fingerprint, result.dataset_fingerprint),
        (asked.metric, result.setup.metric),
        (saved.source, result.setup.source),
        (saved.direction, result.setup.direction),
        (saved.model, result.model),
        (saved.components, result.components),
    ]
    if any(mine != theirs for mine, theirs in pairs):
        raise ResultFormatError(
            f"The {noun} in {folder} is of another run than the one beside it. Measure it again, "
            f"or delete its {name}."
        )
