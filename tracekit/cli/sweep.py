"""`tracekit sweep`."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from tracekit import runs
from tracekit.cli.app import OptionValues, app
from tracekit.cli.console import check_folder, console
from tracekit.cli.options import OPTIONAL_OUTPUT, WORKER_KEYS, read_options, with_options
from tracekit.cli.tables import print_table

_MOST_ROWS = 40
"""Rows beyond which a table is not printed, only written."""


@app.command()
@with_options(
    *(*WORKER_KEYS, "device", "max_batch_size", "quiet"),
    output=OPTIONAL_OUTPUT.with_help("Folder; runs in it are not repeated. Default: the file's."),
)
def sweep(
    values: OptionValues,
    file: Annotated[
        Path,
        typer.Argument(help="A TOML file with models, datasets, methods, budgets and the like."),
    ],
) -> None:
    """Runs every method on every data set and model of a file, and writes a table of all runs.

    Every finished run is kept, so a command that was stopped goes on where it was. Options that
    are given here count more than those of the file.
    """
    from tracekit.engine.setup import SETUP_OPTIONS

    parameters = inspect.signature(runs.sweep).parameters
    keys = {*parameters, *(field.name for field in fields(runs.Grid)), *SETUP_OPTIONS}
    allowed = keys - {"further", "on_done", "progress", "part", "setup", "executor"}
    options = {"output": "sweep", "models": [], "datasets": [], **read_options(file, allowed)}
    quiet, part = values.pop("quiet"), values["part"]
    options |= {name: value for name, value in values.items() if value is not None}
    folder = Path(options["output"])
    check_folder(folder)
    # A progress bar, which shows outcomes, is redrawn in place: only a terminal can do that.
    has_bar = sys.stderr.isatty() and not quiet

    def print_outcome(outcome: runs.Run | runs.Failure) -> None:
        if not has_bar:
            console.print(f"{_state(outcome)}: {outcome.job.description}", style="dim")

    sweep_runs = runs.sweep(**options, progress=False if quiet else None, on_done=print_outcome)
    _print_runs(sweep_runs, folder, has_table=part is None)
    if sweep_runs.failures:
        raise typer.Exit(1)


def _state(outcome: runs.Run | runs.Failure) -> str:
    if isinstance(outcome, runs.Failure):
        return "failed"
    return "ran" if outcome.fresh else "kept"


def _print_runs(sweep_runs: runs.Runs, folder: Path, *, has_table: bool) -> None:
    from tracekit.runs.worker import reasons

    for reason in reasons(sweep_runs.failures):
        console.print(f"Failed: {reason}")
    table = sweep_runs.table()
    if has_table and len(table) > 0 and (console.document is not None or len(table) <= _MOST_ROWS):
        shown = sweep_runs.shown()
        print_table("runs", table, shown, n_names=shown.titles.index(table["effect"].title))
    counts = Counter(map(_state, (*sweep_runs, *sweep_runs.failures)))
    tally = f"Ran {counts['ran']} of {counts.total()}"
    tally += f", {counts['failed']} failed" if counts["failed"] else ""
    tally += f", {counts['kept']} were there" if counts["kept"] else ""
    written = f"The table of all runs is {folder / 'runs.csv'}." if has_table else ""
    console.print(f"{tally}. Runs are in {folder / 'runs'}/. {written}".rstrip(), soft_wrap=True)
