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


def _option(text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=text, **settings)


# One line for each parameter of the command. Types that are lists may be given several times.
Names = Annotated[
    list[str] | None,
    typer.Argument(help="Names of tables and figures, or `all`; --list lists them."),
]
Listing = Annotated[bool, _option("List what there is.", "--list")]
Models = Annotated[
    list[str] | None,
    _option(
        "`demo`, a hub name, a directory, or NAME=DIRECTORY for a model of the paper"
        f"{_SEVERAL} Default: those of the paper."
    ),
]
Datasets = Annotated[
    list[str] | None,
    _option(
        f"A data set or a file of pairs{_SEVERAL} Default: those of the paper; with the embedded "
        "model the ones that stand in for them."
    ),
]
Methods = Annotated[str | None, _option("Methods, joined by commas. Default: those of the paper.")]
Draws = Annotated[
    int | None, _option("Random sets per budget. Default: 1000, 100 with `demo`.", min=1)
]
HeldOut = Annotated[bool, _option("Also run the tables' methods without a fifth of the examples.")]
DataDir = Annotated[
    Path | None,
    _option("Folder with data files, or with a folder per data set. Default: downloaded once."),
]
Limit = Annotated[int | None, _option("Use only the first N examples of each data set.", min=1)]
DataOptions = Annotated[
    list[str] | None, _option(f"Option of the data sets that have it, as name=value{_SEVERAL}")
]
MethodOptions = Annotated[
    list[str] | None,
    _option(f"Option of the methods that have it, e.g. trials=2 or reward=per-example{_SEVERAL}"),
]
Seed = Annotated[int, _option("Seed of every search.")]
ModelOptions = Annotated[
    list[str] | None,
    _option(f"Option of loading the model as name=value, e.g. n_devices=2{_SEVERAL}"),
]
Device = Annotated[str | None, _option("E.g. cpu or cuda:0.")]
Dtype = Annotated[str, _option("auto, float32, bfloat16 or float16.")]
MaxBatchSize = Annotated[
    int | None, _option("Examples per pass; bounds memory, changes no result.", min=1)
]
Jobs = Annotated[
    int | None,
    _option(
        "Number of runs at a time, each on a CUDA device of its own if there are several.", min=1
    ),
]
Part = Annotated[
    str | None,
    _option("Such as 3/16: only every sixteenth run, beginning with the third, and no report."),
]
Output = Annotated[Path, _option("Folder; runs in it are not repeated.", "--output", "-o")]
Quiet = Annotated[bool, _option("No progress bars.")]
AsJson = Annotated[
    bool, _option("Print one JSON document of tables, notes and failures instead.", "--json")
]


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def main(
    names: Names = None,
    list_experiments: Listing = False,
    model: Models = None,
    dataset: Datasets = None,
    methods: Methods = None,
    draws: Draws = None,
    held_out: HeldOut = True,
    data_dir: DataDir = None,
    limit: Limit = None,
    data_option: DataOptions = None,
    option: MethodOptions = None,
    seed: Seed = 0,
    model_option: ModelOptions = None,
    device: Device = None,
    dtype: Dtype = "float32",
    max_batch_size: MaxBatchSize = None,
    jobs: Jobs = None,
    part: Part = None,
    output: Output = Path("reproduction"),
    quiet: Quiet = False,
    as_json: AsJson = False,
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
    run_options = {
        "part": part,
        "data_dir": data_dir,
        "device": device,
        "max_batch_size": max_batch_size,
        "loading": _read(_values(model_option), int),
        "processes": jobs,
    }
    console.quiet = as_json
    reproductions, tally = _reproduce(names, setting, output, quiet, run_options)
    _print_reports(reproductions, tally, output, is_part=part is not None)
    if as_json:
        document = [_document(each) for each in reproductions]
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    if tally.failures and setting.models:
        raise typer.Exit(1)


def _reproduce(
    names: list[str], setting: Setting, output: Path, quiet: bool, run_options: dict[str, Any]
) -> tuple[list[Reproduction], _Tally]:
    """Runs experiments with a progress bar, where a terminal can show one."""
    total = len(part_of(plan(select_experiments(names), setting), run_options["part"]))
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
            progress=False if is_shown or quiet else None,
            on_done=on_done,
            **run_options,
        )
    return reproductions, tally


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


def _print_reports(
    reproductions: list[Reproduction], tally: _Tally, output: Path, *, is_part: bool
) -> None:
    for reproduction in reproductions:
        _print_report(reproduction)
    if is_part:
        for reason in reasons(tally.failures):
            console.print(f"Skipped: {reason}")
    written = "Runs are" if is_part else "Tables, figures and runs are"
    console.print(f"{tally} {written} in {output}/.", soft_wrap=True)


def _document(reproduction: Reproduction) -> dict[str, Any]:
    """An experiment in values of JSON: its folder, the rows of its tables, notes and failures."""
    report = reproduction.report
    tables, notes = ({}, []) if report is None else (report.tables, report.notes)
    return {
        "name": reproduction.experiment.name,
        "folder": str(reproduction.folder),
        "tables": {
            name: json.loads(table.frame.to_json(orient="records"))
            for name, table in tables.items()
        },
        "notes": list(notes),
        "skipped": reproduction.reasons,
    }


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
