"""`tracekit explain`."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from typing_extensions import TypedDict

from tracekit.cli.app import app
from tracekit.cli.options import HOW, LIMITS, OPTIONAL_OUTPUT, REBUILT, Given, option, takes
from tracekit.cli.output import check_folder, console, print_estimates, print_rows, write_figures
from tracekit.cli.rebuild import OF_RUN, Run, rebuild_tracer

if TYPE_CHECKING:
    import pandas as pd

    from tracekit.anatomy import Explanation

_TABLES = ("table", "interactions", "replacements", "backups")
"""Tables of an explanation, and the names of their files."""


class Findings(TypedDict):
    """What `tracekit explain --json` prints, and `findings.json` holds; null where there is none.

    The tables are those of an `Explanation` in Python, a mapping from column to cell for each row.
    """

    model: str
    dataset: str
    metric: str
    members: list[str]
    additivity: dict[str, float | None]
    """Effect of the set, sum of single effects, and their difference, with 95 % intervals."""
    n_orders: int | None
    """Orders that Shapley values are sampled from; null if they are exact."""
    redundant: list[str]
    passes: float
    table: list[dict[str, str | float | None]]
    """What each member brings."""
    interactions: list[dict[str, str | float | bool | None]]
    replacements: list[dict[str, str | float | bool | None]] | None
    backups: list[dict[str, str | float | bool | None]] | None


@app.command()
@takes(
    *(*REBUILT, "seed", "dry_run", "quiet"),
    **OF_RUN,
    max_sets=option(
        *(2000, int, LIMITS, "N"),
        "Subsets to measure at most for the values of more than 12 components.",
        min=1,
    ),
    tolerance=option(
        *(0.02, float, HOW, "X"),
        "Share of the effect that may be lost without redundant components.",
    ),
    output=OPTIONAL_OUTPUT.saying("Folder for tables (CSV) and figures; made if missing."),
)
def explain(given: Given, run: Run) -> None:
    """Says why the set of a saved run acts together, and saves that beside the run."""
    import tracekit as tk

    output, max_sets = given["output"], given["max_sets"]
    result = tk.TraceResult.load(run)
    check_folder(run)
    if output is not None:
        check_folder(output)
    tracer = rebuild_tracer(result, given)
    if given["dry_run"]:
        estimate = tracer.estimate_explain(result, max_sets=max_sets)
        console.findings = asdict(estimate)
        print_estimates([estimate])
        return
    why = tracer.explain(
        result, max_sets=max_sets, tolerance=given["tolerance"], seed=given["seed"]
    )
    why.save(run)
    console.findings = _document(why)
    _print(why, run)
    if output is not None:
        _write(why, output)


def _print(why: Explanation, run: Path) -> None:
    from tracekit.reports.report import member_table

    console.print(f"{why}", highlight=False, soft_wrap=True)
    frame = member_table(why)
    table = Table(*frame.columns)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for row in frame.itertuples(index=False):
        table.add_row(*map(str, row))
    print_rows(table)
    console.print(
        "Alone: nothing else is patched. Last: what leaving it out costs. Value: the Shapley "
        "value. Brackets: 95 % intervals over examples.",
        style="dim",
    )
    passes = f"{why.cost.forward_equivalents:.0f} passes."
    console.print(f"{passes} The explanation is saved in {run}/.", highlight=False, soft_wrap=True)


def _document(why: Explanation) -> dict[str, Any]:
    """All findings, ready for JSON; None where there is no number."""
    entries: dict[str, Any] = {
        "model": why.model,
        "dataset": why.dataset,
        "metric": why.metric,
        "members": why.labels,
        "additivity": why.additivity.to_dict(),
        "n_orders": why.shapley.n_orders,
        "redundant": [str(component) for component in why.redundant],
        "passes": why.cost.forward_equivalents,
    }
    for name, frame in _frames(why).items():
        entries[name] = None if frame is None else frame.to_dict("records")
    return _without_nan(entries)


def _frames(why: Explanation) -> dict[str, pd.DataFrame | None]:
    return {name: getattr(why, name) for name in _TABLES}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _write(why: Explanation, output: Path) -> None:
    from tracekit._util.files import write_beside, write_csv

    output.mkdir(parents=True, exist_ok=True)
    for name, frame in _frames(why).items():
        if frame is not None:
            write_csv(frame, output / f"{'members' if name == 'table' else name}.csv")
    write_beside(output / "findings.json", json.dumps(_document(why), indent=1))
    drawn = {"waterfall": why.waterfall(), "heatmap": why.heatmap(), "network": why.network()}
    write_figures(drawn, output)
