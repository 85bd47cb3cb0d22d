"""`tracekit explain`."""

from __future__ import annotations

import json

import tracekit as tk
from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.files import write_figures
from tracekit.cli.options import HOW, LIMITS, OPTIONAL_OUTPUT, SAVED_RUN_KEYS, with_options
from tracekit.cli.rebuild import RUN_OPTIONS, RunFolder, rebuild_tracer
from tracekit.cli.summaries import print_estimates
from tracekit.cli.tables import print_table, record_table

_TABLES = ("table", "interactions", "replacements", "backups")
"""Tables of an explanation, and the names of their files; the first is that of its members."""


@app.command()
@with_options(
    *(*SAVED_RUN_KEYS, "seed", "dry_run", "quiet"),
    **RUN_OPTIONS,
    max_sets=LIMITS.count(
        "Subsets to measure at most for the values of more than 12 components.", default=2000, min=1
    ),
    tolerance=HOW.number(
        "Share of the effect that may be lost without redundant components.", default=0.02
    ),
    output=OPTIONAL_OUTPUT.with_help("Folder for tables (CSV) and figures; made if missing."),
)
def explain(values: OptionValues, run: RunFolder) -> None:
    """Says why the set of a saved run acts together, and saves that beside the run."""
    from tracekit._util.files import write_atomically, write_csv
    from tracekit.reports.report import member_table

    output, max_sets = values["output"], values["max_sets"]
    result, tracer = rebuild_tracer(run, values, run, output)
    if values["dry_run"]:
        print_estimates([tracer.estimate_explain(result, max_sets=max_sets)])
        return
    why = tracer.explain(
        result, max_sets=max_sets, tolerance=values["tolerance"], seed=values["seed"]
    )
    why.save(run)
    console.print(f"{why}", soft_wrap=True)
    tables = _explanation_tables(why)
    print_table("members", tables["members"], member_table(why))
    for name, table in tables.items():
        if name != "members":
            record_table(name, table)
    console.print(
        "Alone: nothing else is patched. Last: what leaving it out costs. Value: the Shapley "
        "value. Brackets: 95 % intervals over examples.",
        style="dim",
    )
    passes = f"{why.cost.forward_equivalents:.0f} passes."
    console.print(f"{passes} The explanation is saved in {run}/.", soft_wrap=True)
    if output is None:
        return
    rows = {name: table.records() for name, table in tables.items()}
    write_atomically(output / "findings.json", json.dumps(rows, indent=1))
    del tables["explanation"]
    for name, table in tables.items():
        write_csv(table.frame(), output / f"{name}.csv")
    figures = {"waterfall": why.waterfall(), "heatmap": why.heatmap(), "network": why.network()}
    write_figures(figures, output)


def _explanation_tables(why: tk.measure.Explanation) -> dict[str, Table]:
    """Tables by name; `explanation` has one row for the whole set."""
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
