"""`tracekit explain` and `tracekit side-effects`: why a saved set acts, and what else it does."""

from __future__ import annotations

import json
from typing import Any

import tracekit as tk
from tracekit._util.table import Table
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.files import write_figures
from tracekit.cli.options import (
    HOW,
    LIMITS,
    OPTIONAL_OUTPUT,
    REQUIRED,
    SAVED_RUN_KEYS,
    SEVERAL,
    WHAT,
    with_options,
)
from tracekit.cli.parsing import parse_named_values
from tracekit.cli.rebuild import RUN_OPTIONS, RunFolder, rebuild_tracer
from tracekit.cli.summaries import print_estimates
from tracekit.cli.tables import print_table, record_table
from tracekit.errors import ConfigError

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


@app.command("side-effects")
@with_options(
    *(*SAVED_RUN_KEYS, "seed", "dry_run", "quiet"),
    **RUN_OPTIONS,
    other=WHAT.settings(
        f"Other data as NAME=DATASET or NAME=FILE (.csv, .jsonl){SEVERAL}",
        default=REQUIRED,
    ),
    other_metric=HOW.settings(
        "Metric of other data as NAME=METRIC, e.g. neutral=kl. Default: that of the run."
    ),
    other_limit=HOW.count("Use only the first N examples of each other data.", min=1),
    draws=HOW.count("Random sets to compare with.", default=20, min=0),
    output=OPTIONAL_OUTPUT.with_help("Folder for the table and the figure."),
)
def side_effects(values: OptionValues, run: RunFolder) -> None:
    """Says what the set of a saved run does to other data, and saves that beside the run."""
    from tracekit._util.files import write_csv

    output, limit = values["output"], values["other_limit"]
    named = _parse_names("--other", values["other"])
    metrics = _parse_names("--other-metric", values["other_metric"] or [])
    unknown = [name for name in metrics if name not in named]
    if unknown:
        raise ConfigError(f"--other-metric names {unknown[0]!r}, and no --other has this name.")
    result, tracer = rebuild_tracer(run, values, run, output)
    others: dict[str, Any] = {}
    for name, source in named.items():
        pairs = tk.load_dataset(source, tracer.model)[:limit]
        others[name] = (pairs, metrics[name]) if name in metrics else pairs
    if values["dry_run"]:
        print_estimates([tracer.estimate_side_effects(result, others, draws=values["draws"])])
        return
    effects = tracer.side_effects(result, others, draws=values["draws"], seed=values["seed"])
    effects.save(run)
    console.print(f"{effects}", soft_wrap=True)
    record_table("side_effects", Table.of_rows(effects.table))
    console.print(f"Saved in {run}/.", soft_wrap=True)
    if output is not None:
        write_csv(effects.table, output / "side_effects.csv")
        write_figures({"side_effects": effects.figure()}, output)


def _parse_names(option: str, texts: list[str]) -> dict[str, str]:
    """Parses texts `NAME=VALUE`; refuses a name that occurs twice."""
    named: dict[str, str] = {}
    for text in texts:
        name, value = next(iter(parse_named_values([text]).items()))
        if name in named:
            raise ConfigError(f"{option} names {name!r} twice. Give each its own name.")
        named[name] = value
    return named
