"""Reruns tables and figures of the paper: `python -m paper --help`."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from tqdm.auto import tqdm

from paper.experiment import Setting
from paper.jobs import ModelAt
from paper.reproduction import EXPERIMENTS, Reproduction, plan, reproduce, select_experiments, slug
from tracekit.errors import (
    ConfigError,
    DataNotFoundError,
    OutputError,
    TracekitError,
    UnknownNameError,
)
from tracekit.results import Table
from tracekit.runs import Failure, Run, part_of, reasons
from tracekit.search import METHODS

_MOST_ROWS = 16
"""Rows beyond which a table is not printed, only written."""
_PAIR_FILES = (".csv", ".json", ".jsonl")
_SEVERAL = "; may be given several times."

app: typer.Typer = typer.Typer(add_completion=False, rich_markup_mode="markdown")
console: Console = Console(highlight=False, markup=False, emoji=False)
error_console: Console = Console(highlight=False, markup=False, emoji=False, stderr=True)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of tables and figures, or `all`; --list lists them."),
    ] = None,
    list_experiments: Annotated[bool, typer.Option("--list", help="List what there is.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="`demo`, a hub name, a directory, or NAME=DIRECTORY for a model of the paper"
            f"{_SEVERAL} Default: those of the paper."
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A data set or a file of pairs{_SEVERAL} Default: those of the paper; with the "
            "embedded model the ones that stand in for them."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, joined by commas. Default: those of the paper."),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(min=1, help="Random sets per budget. Default: 1000, 100 with `demo`."),
    ] = None,
    held_out: Annotated[
        bool, typer.Option(help="Also run the tables' methods without a fifth of the examples.")
    ] = True,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder with data files, or with a folder per data set. Default: downloaded once."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N examples of each data set.")
    ] = None,
    data_option: Annotated[
        list[str] | None,
        typer.Option(help=f"Option of the data sets that have it, as name=value{_SEVERAL}"),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of the methods that have it, e.g. trials=2 or reward=per-example"
            f"{_SEVERAL}"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every search.")] = 0,
    model_option: Annotated[
        list[str] | None,
        typer.Option(help=f"Option of loading the model as name=value, e.g. n_devices=2{_SEVERAL}"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="E.g. cpu or cuda:0.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "float32",
    max_batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Examples per pass; bounds memory, changes no result."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of runs at a time, each on a CUDA device of its own if there are several.",
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            help="Such as 3/16: only every sixteenth run, beginning with the third, and no report."
        ),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            help="dask://HOST:PORT: the workers of a Dask scheduler. submitit://slurm: jobs of "
            "Slurm. Default: this machine."
        ),
    ] = None,
    executor_option: Annotated[
        list[str] | None,
        typer.Option(help=f"Parameter of submitit as name=value, e.g. timeout_min=240{_SEVERAL}"),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder; runs in it are not repeated.")
    ] = Path("reproduction"),
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    """Reruns tables and figures of the paper.

    Every finished run is kept, so a command that was stopped goes on where it was. Published
    values stand beside ours where model and data are the paper's.
    """
    if list_experiments or not names:
        rows = [{"name": each.name, "about": each.about} for each in EXPERIMENTS.values()]
        _print_table("", Table.of_rows(rows))
        return
    setting = Setting(
        models=[ModelAt.parse(text) for text in model or []],
        datasets=dataset or [],
        methods=_methods(methods),
        seed=seed,
        limit=limit,
        draws=draws,
        held_out=held_out,
        dtype=dtype,
        data_options=_values(data_option),
        method_options=_values(option),
    )
    _check_paths(setting, data_dir, output)
    total = len(part_of(plan(select_experiments(names), setting), part))
    is_shown = not quiet and sys.stderr.isatty()
    tally = _Tally(prints=not is_shown)
    with tqdm(total=total, disable=not is_shown, unit="run", desc="paper", leave=False) as bar:

        def on_done(outcome: Run | Failure) -> None:
            bar.set_postfix_str(tally.add(outcome))
            bar.update()

        reproductions = reproduce(
            names,
            setting,
            output,
            data_dir=data_dir,
            device=device,
            max_batch_size=max_batch_size,
            loading=_read(_values(model_option), int),
            processes=jobs,
            executor=executor,
            executor_options=_read(_values(executor_option), json.loads),
            part=part,
            progress=False if is_shown or quiet else None,
            on_done=on_done,
        )
    for reproduction in reproductions:
        _print_report(reproduction)
    if part is not None:
        for reason in reasons(tally.failures):
            console.print(f"Skipped: {reason}")
    kept = "Tables, figures and runs are" if part is None else "Runs are"
    console.print(f"{tally} {kept} in {output}/.", soft_wrap=True)
    if tally.failures and setting.models:
        raise typer.Exit(1)


def _methods(text: str | None) -> list[str]:
    methods = [name.strip() for name in text.split(",")] if text else []
    for name in methods:
        if name not in METHODS:
            raise UnknownNameError("method", name, METHODS)
    return methods


def _values(texts: list[str] | None) -> dict[str, Any]:
    """Values by their names, from `name=value`."""
    for text in texts or []:
        if "=" not in text:
            raise ConfigError(f"The option {text!r} is not of the form name=value. Write it so.")
    return {text.partition("=")[0]: text.partition("=")[2] for text in texts or []}


def _read(values: dict[str, Any], read: Any) -> dict[str, Any]:
    """The values, each as what `read` makes of its text; a text that it refuses stays a text."""
    for name, text in values.items():
        with suppress(ValueError):
            values[name] = read(text)
    return values


def _check_paths(setting: Setting, data_dir: Path | None, output: Path) -> None:
    """Refuses files and folders that are not there, before a model is loaded."""
    for name in setting.datasets:
        if name.endswith(_PAIR_FILES) and not Path(name).is_file():
            raise DataNotFoundError(f"There is no file {name}. Give a data set or another file.")
    if data_dir is not None and not data_dir.is_dir():
        raise DataNotFoundError(f"There is no folder {data_dir} with data files. Give another.")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"The output {output} cannot be written to ({error.strerror or error}). Give another "
            "folder."
        ) from error


class _Tally:
    """Counts the outcomes of jobs; prints each where no progress bar shows it."""

    def __init__(self, *, prints: bool) -> None:
        self._counts = {"ran": 0, "kept": 0, "failed": 0}
        self._prints = prints
        self.failures: list[Failure] = []

    def add(self, outcome: Run | Failure) -> str:
        """Counts an outcome; returns the description of its job."""
        if isinstance(outcome, Failure):
            self.failures.append(outcome)
            state = "failed"
        else:
            state = "ran" if outcome.fresh else "kept"
        self._counts[state] += 1
        description = outcome.job.description
        if self._prints:
            console.print(f"{state}: {description}", style="dim")
        return description

    def __str__(self) -> str:
        counts = self._counts
        text = f"Ran {counts['ran']} of {sum(counts.values())}"
        text += f", {counts['failed']} failed" if counts["failed"] else ""
        return text + (f", {counts['kept']} were there." if counts["kept"] else ".")


def _print_report(reproduction: Reproduction) -> None:
    """Prints failures, tables and notes of an experiment; of long tables the path of the file."""
    experiment, report = reproduction.experiment, reproduction.report
    console.print(Text.assemble("\n", (experiment.name, "bold"), f": {experiment.about}"))
    for reason in reproduction.reasons:
        console.print(f"Skipped: {reason}")
    if report is None:
        return
    for name, entry in report.tables.items():
        table = entry.shown
        if entry.brief and len(table) <= _MOST_ROWS:
            _print_table(name, table)
        else:
            path = reproduction.folder / f"{slug(name)}.csv"
            console.print(f"{name}: {len(table)} rows, in {path}", style="dim")
    for note in report.notes:
        console.print(note, style="dim")


def _print_table(heading: str, table: Table) -> None:
    drawn = RichTable(title=heading or None, title_justify="left")
    for number, column in enumerate(table.columns):
        is_left = number == 0 or column.is_text
        drawn.add_column(column.title, justify="left" if is_left else "right", overflow="fold")
    for row in table.cells:
        drawn.add_row(*map(Text, row))
    console.print(drawn)


def _stop(number: int, frame: object) -> None:
    """Leaves by an exception, which ends the workers."""
    error_console.print("Stopped.")
    sys.exit(128 + number)


def run() -> None:
    """Runs the command; prints an error of tracekit as one sentence, with exit code 1."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for category in (DeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category)
    warnings.showwarning = lambda message, *_, **__: error_console.print(f"Warning: {message}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        app()
    except TracekitError as error:
        error_console.print(f"Error: {error}", soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    run()
