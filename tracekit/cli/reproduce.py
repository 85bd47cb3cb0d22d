"""`tracekit reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text
from tqdm.auto import tqdm

import tracekit as tk
from tracekit import paper
from tracekit._util.table import Table
from tracekit.cli.app import app
from tracekit.cli.options import (
    HOW,
    OPTIONS,
    OUTPUT,
    SEVERAL,
    WHAT,
    WORKERS,
    Given,
    check_data,
    takes,
)
from tracekit.cli.output import Tally, check_folder, console, print_table, progress_is_shown
from tracekit.cli.parsing import parse_executor_options, parse_loading, parse_values
from tracekit.errors import UnknownNameError

_PASSED_ON = ("data_dir", "device", "max_batch_size", "executor", "part")
"""Options that `paper.reproduce` takes as they are."""
_MOST_ROWS = 16
"""Rows beyond which a table is not printed, only written."""


@app.command()
@takes(
    *(*WORKERS, "model_option", "device", "max_batch_size", "seed", "quiet"),
    list_experiments=OUTPUT.flag("List what there is.", "--list"),
    model=WHAT.names(
        "`demo`, a hub name, a directory, or NAME=DIRECTORY for a model of the paper; may be given "
        "several times. Default: those of the paper."
    ),
    dataset=WHAT.names(
        "May be given several times. Default: those of the paper; with the embedded model the ones "
        "that stand in for them."
    ),
    methods=HOW.name("Methods, joined by commas. Default: those of the paper."),
    draws=HOW.count("Random sets per budget. Default: 1000, 100 with `demo`.", min=1),
    held_out=HOW.flag(
        "Also run the tables' methods without a fifth of the examples.", default=True
    ),
    output=OPTIONS["output"].saying(
        "Folder; runs in it are not repeated.", default=Path("reproduction")
    ),
    data_dir=OPTIONS["data_dir"].saying("Folder with data files, or with a folder per data set."),
    limit=OPTIONS["limit"].saying("Use only the first N examples of each data set."),
    data_option=OPTIONS["data_option"].saying(
        f"Option of the data sets that have it, as name=value{SEVERAL}"
    ),
    option=HOW.settings(
        f"Option of the methods that have it, e.g. trials=2 or reward=per-example{SEVERAL}"
    ),
    dtype=OPTIONS["dtype"]._replace(default="float32"),
)
def reproduce(
    given: Given,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of tables and figures, or `all`; --list lists them."),
    ] = None,
) -> None:
    """Reruns tables and figures of the paper.

    Every finished run is kept, so a command that was stopped goes on where it was. Published
    values stand beside ours where model and data are the paper's.
    """
    from tracekit.runs.grid import part_of
    from tracekit.runs.worker import reasons

    part, output = given["part"], given["output"]
    if given["list_experiments"] or not names:
        rows = [{"name": each.name, "about": each.about} for each in paper.EXPERIMENTS.values()]
        print_table("experiments", Table.of_rows(rows))
        return
    setting = _setting(given)
    check_folder(output)
    check_data(*setting.datasets, data_dir=given["data_dir"])
    total = len(part_of(paper.plan(paper.select_experiments(names), setting), part))
    is_shown = progress_is_shown(given["quiet"])
    tally = Tally(given["quiet"])
    with tqdm(total=total, disable=not is_shown, unit="run", desc="reproduce", leave=False) as bar:

        def on_done(outcome: paper.Run | paper.Failure) -> None:
            bar.set_postfix_str(tally(outcome))
            bar.update()

        reproductions = paper.reproduce(
            names,
            setting,
            output,
            loading=parse_loading(given["model_option"]),
            processes=given["jobs"],
            executor_options=parse_executor_options(given["executor_option"]),
            progress=False if is_shown or given["quiet"] else None,
            on_done=on_done,
            **{name: given[name] for name in _PASSED_ON},
        )
    for reproduction in reproductions:
        _print_report(reproduction)
    if part is not None:
        for reason in reasons(tally.failures):
            console.print(f"Skipped: {reason}")
    kept = "Tables, figures and runs are" if part is None else "Runs are"
    console.print(f"{tally} {kept} in {output}/.")
    if tally.failures and setting.models:
        raise typer.Exit(1)


def _setting(given: Given) -> paper.Setting:
    """The setting of the options of the command."""
    methods = [name.strip() for name in given["methods"].split(",")] if given["methods"] else []
    for name in methods:
        if name not in tk.search.METHODS:
            raise UnknownNameError("method", name, tk.search.METHODS)
    return paper.Setting(
        models=[paper.ModelAt.parse(text) for text in given["model"] or []],
        datasets=given["dataset"] or [],
        methods=methods,
        data_options=parse_values(given["data_option"]),
        method_options=parse_values(given["option"]),
        **{name: given[name] for name in ("seed", "limit", "draws", "held_out", "dtype")},
    )


def _print_report(reproduction: paper.Reproduction) -> None:
    """Prints failures, tables and notes of an experiment; of long tables the path of the file."""
    from tracekit.paper.reproduction import slug

    experiment, report = reproduction.experiment, reproduction.report
    console.print(Text.assemble("\n", (experiment.name, "bold"), f": {experiment.about}"))
    for reason in reproduction.reasons:
        console.print(f"Skipped: {reason}")
    if report is None:
        return
    for name, entry in report.tables.items():
        table = entry.shown
        if not entry.brief or len(table) > _MOST_ROWS:
            path = reproduction.folder / f"{slug(name)}.csv"
            console.print(f"{name}: {len(table)} rows, in {path}", style="dim")
            continue
        print_table(f"{experiment.name}/{name}", table, heading=name)
    for note in report.notes:
        console.print(note, style="dim")
