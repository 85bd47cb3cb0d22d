"""`tracekit side-effects`."""

from __future__ import annotations

from typing import Any

from tracekit._util.table import Table
from tracekit.cli import options
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import console
from tracekit.cli.files import write_figures
from tracekit.cli.parsing import parse_named_values
from tracekit.cli.rebuild import RUN_OPTIONS, RunFolder, rebuild_tracer
from tracekit.cli.summaries import print_estimates
from tracekit.cli.tables import record_table
from tracekit.errors import ConfigError


@app.command("side-effects")
@options.with_options(
    *(*options.SAVED_RUN_KEYS, "seed", "dry_run", "quiet"),
    **RUN_OPTIONS,
    other=options.WHAT.settings(
        f"Other data as NAME=DATASET or NAME=FILE (.csv, .jsonl){options.SEVERAL}",
        default=options.REQUIRED,
    ),
    other_metric=options.HOW.settings(
        "Metric of other data as NAME=METRIC, e.g. neutral=kl. Default: that of the run."
    ),
    other_limit=options.HOW.count("Use only the first N examples of each other data.", min=1),
    draws=options.HOW.count("Random sets to compare with.", default=20, min=0),
    output=options.OPTIONAL_OUTPUT.with_help("Folder for the table and the figure."),
)
def side_effects(values: OptionValues, run: RunFolder) -> None:
    """Says what the set of a saved run does to other data, and saves that beside the run."""
    import tracekit as tk
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
