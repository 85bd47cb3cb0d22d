"""`tracekit explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from tracekit._util.table import Table, json_value
from tracekit.cli.app import app
from tracekit.cli.options import HOW, LIMITS, OPTIONAL_OUTPUT, REBUILT, Given, option, takes
from tracekit.cli.output import (
    Row,
    check_folder,
    console,
    print_estimates,
    print_table,
    recorded,
    write_figures,
)
from tracekit.cli.rebuild import OF_RUN, Run, rebuild_tracer

if TYPE_CHECKING:
    from tracekit.anatomy import Explanation

_TABLES = ("table", "interactions", "replacements", "backups")
"""Tables of an explanation, and the names of their files; the first is that of its members."""


class Findings(TypedDict):
    """What `tracekit explain` finds, beside its tables; null where there is none."""

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


class Explained(TypedDict):
    """What `findings.json` holds: entries of what `tracekit explain --json` prints."""

    findings: Findings
    tables: dict[str, list[Row]]
    """`members` says what each brings; `interactions`; `replacements` and `backups` where they were
    looked for."""


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
        print_estimates([tracer.estimate_explain(result, max_sets=max_sets)])
        return
    why = tracer.explain(
        result, max_sets=max_sets, tolerance=given["tolerance"], seed=given["seed"]
    )
    why.save(run)
    _print(why, run)
    if output is not None:
        _write(why, output)


def _print(why: Explanation, run: Path) -> None:
    from tracekit.reports.report import member_table

    console.print(f"{why}", highlight=False, soft_wrap=True)
    tables = _tables(why)
    print_table("members", tables.pop("members"), member_table(why))
    for name, table in tables.items():
        recorded(name, table)
    if console.document is not None:
        console.document["findings"] = {**_findings(why)}
    console.print(
        "Alone: nothing else is patched. Last: what leaving it out costs. Value: the Shapley "
        "value. Brackets: 95 % intervals over examples.",
        style="dim",
    )
    passes = f"{why.cost.forward_equivalents:.0f} passes."
    console.print(f"{passes} The explanation is saved in {run}/.", highlight=False, soft_wrap=True)


def _findings(why: Explanation) -> Findings:
    return Findings(
        model=why.model,
        dataset=why.dataset,
        metric=why.metric,
        members=why.labels,
        additivity=json_value(why.additivity.to_dict()),
        n_orders=why.shapley.n_orders,
        redundant=[str(component) for component in why.redundant],
        passes=why.cost.forward_equivalents,
    )


def _tables(why: Explanation) -> dict[str, Table]:
    frames = {name.replace("table", "members"): getattr(why, name) for name in _TABLES}
    return {
        name: Table.of_rows(frame.to_dict("records"))
        for name, frame in frames.items()
        if frame is not None
    }


def _write(why: Explanation, output: Path) -> None:
    from tracekit._util.files import write_beside, write_csv

    output.mkdir(parents=True, exist_ok=True)
    tables = _tables(why)
    for name, table in tables.items():
        write_csv(table.frame(), output / f"{name}.csv")
    rows = {name: table.records() for name, table in tables.items()}
    explained = Explained(findings=_findings(why), tables=rows)
    write_beside(output / "findings.json", json.dumps(explained, indent=1))
    drawn = {"waterfall": why.waterfall(), "heatmap": why.heatmap(), "network": why.network()}
    write_figures(drawn, output)
