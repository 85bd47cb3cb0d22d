"""`tracekit explain`."""

from __future__ import annotations

import json
from pathlib import Path

import tracekit as tk
from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.files import write_figures
from tracekit.cli.options import HOW, LIMITS, OPTIONAL_OUTPUT, REBUILT, with_options
from tracekit.cli.rebuild import OF_RUN, Run, rebuild
from tracekit.cli.summaries import print_estimates
from tracekit.cli.tables import print_table, record_table

_TABLES = ("table", "interactions", "replacements", "backups")
"""Tables of an explanation, and the names of their files; the first is that of its members."""


@app.command()
@with_options(
    *(*REBUILT, "seed", "dry_run", "quiet"),
    **OF_RUN,
    max_sets=LIMITS.count(
        "Subsets to measure at most for the values of more than 12 components.", default=2000, min=1
    ),
    tolerance=HOW.number(
        "Share of the effect that may be lost without redundant components.", default=0.02
    ),
    output=OPTIONAL_OUTPUT.saying("Folder for tables (CSV) and figures; made if missing."),
)
def explain(values: OptionValues, run: Run) -> None:
    """Says why the set of a saved run acts together, and saves that beside the run."""
    output, max_sets = values["output"], values["max_sets"]
    result, tracer = rebuild(run, values, run, output)
    if values["dry_run"]:
        print_estimates([tracer.estimate_explain(result, max_sets=max_sets)])
        return
    why = tracer.explain(
        result, max_sets=max_sets, tolerance=values["tolerance"], seed=values["seed"]
    )
    why.save(run)
    _print(why, run)
    if output is not None:
        _write(why, output)


def _print(why: tk.measure.Explanation, run: Path) -> None:
    from tracekit.reports.report import member_table

    console.print(f"{why}", soft_wrap=True)
    tables = _tables(why)
    print_table("members", tables.pop("members"), member_table(why))
    for name, table in tables.items():
        record_table(name, table)
    console.print(
        "Alone: nothing else is patched. Last: what leaving it out costs. Value: the Shapley "
        "value. Brackets: 95 % intervals over examples.",
        style="dim",
    )
    passes = f"{why.cost.forward_equivalents:.0f} passes."
    console.print(f"{passes} The explanation is saved in {run}/.", soft_wrap=True)


def _tables(why: tk.measure.Explanation) -> dict[str, Table]:
    """By name; `explanation` has one row for the set as a whole."""
    explanation = {
        **{"model": why.model, "dataset": why.dataset, "metric": why.metric},
        **why.additivity.to_dict(),
        **{"members": why.labels, "redundant": list(map(str, why.redundant))},
        **{"n_orders": why.shapley.n_orders, "passes": why.cost.forward_equivalents},
    }
    tables = {"explanation": Table.of_rows([explanation])}
    for name in _TABLES:
        frame = getattr(why, name)
        if frame is not None:
            tables[name.replace("table", "members")] = Table.of_rows(frame)
    return tables


def _write(why: tk.measure.Explanation, output: Path) -> None:
    from tracekit._util.files import write_atomically, write_csv

    tables = _tables(why)
    rows = {name: table.records() for name, table in tables.items()}
    write_atomically(output / "findings.json", json.dumps(rows, indent=1))
    del tables["explanation"]
    for name, table in tables.items():
        write_csv(table.frame(), output / f"{name}.csv")
    figures = {"waterfall": why.waterfall(), "heatmap": why.heatmap(), "network": why.network()}
    write_figures(figures, output)
