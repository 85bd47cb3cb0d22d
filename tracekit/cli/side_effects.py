"""`tracekit side-effects`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tracekit.cli.app import app
from tracekit.cli.options import HOW, OUTPUT, REBUILT, WHAT, Given, takes
from tracekit.cli.output import check_folder, console, write_figures
from tracekit.cli.parsing import parse_options
from tracekit.cli.rebuild import DatasetOfRun, ModelOfRun, Run, rebuild_tracer
from tracekit.errors import ConfigError


@app.command("side-effects")
@takes(*REBUILT, "seed", "quiet")
def side_effects(
    given: Given,
    run: Run,
    other: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE",
            help="Other data as NAME=DATASET or NAME=FILE (.csv, .jsonl); may be given several "
            "times.",
            rich_help_panel=WHAT,
        ),
    ],
    other_metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Metric of other data as NAME=METRIC, e.g. neutral=kl. Default: that of the run.",
            rich_help_panel=HOW,
        ),
    ] = None,
    other_limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Use only the first N examples of each other data.",
            rich_help_panel=HOW,
        ),
    ] = None,
    draws: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Random sets to compare with.", rich_help_panel=HOW),
    ] = 20,
    model: ModelOfRun = None,
    dataset: DatasetOfRun = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Folder for the table and the figure.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Says what the set of a saved run does to other data, and saves that beside the run."""
    import tracekit as tk
    from tracekit._util.files import write_csv

    named = _named("--other", other)
    metrics = _named("--other-metric", other_metric or [])
    unknown = [name for name in metrics if name not in named]
    if unknown:
        raise ConfigError(f"--other-metric names {unknown[0]!r}, which no --other is called.")
    result = tk.TraceResult.load(run)
    check_folder(run)
    if output is not None:
        check_folder(output)
    tracer = rebuild_tracer(result, given, model=model, dataset=dataset, quiet=given["quiet"])
    others: dict[str, Any] = {}
    for name, source in named.items():
        pairs = tk.load_dataset(source, tracer.model)
        pairs = pairs if other_limit is None else pairs[:other_limit]
        others[name] = (pairs, metrics[name]) if name in metrics else pairs
    side = tracer.side_effects(result, others, draws=draws, seed=given["seed"])
    side.save(run)
    console.print(f"{side}", highlight=False, soft_wrap=True)
    console.print(f"Saved in {run}/.", highlight=False, soft_wrap=True)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        write_csv(side.table, output / "side_effects.csv")
        write_figures({"side_effects": side.figure()}, output)


def _named(option: str, texts: list[str]) -> dict[str, str]:
    """Names and what they stand for, from `NAME=VALUE`.

    Raises:
        ConfigError: Text of another form, or a name that is given twice.
    """
    named: dict[str, str] = {}
    for text in texts:
        name, value = next(iter(parse_options([text], [""])[""].items()))
        if name in named:
            raise ConfigError(f"{option} names {name!r} twice. Give each a name of its own.")
        named[name] = value
    return named
