"""`tracekit reproduce` and `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tracekit.cli.app import (
    BatchSize,
    DataDir,
    Device,
    Dtype,
    ModelOption,
    Quiet,
    Seed,
    app,
    console,
)
from tracekit.cli.output import bars, load
from tracekit.cli.parsing import parse_loading, parse_options
from tracekit.errors import ConfigError, DisagreementError, UnknownMethodError

if TYPE_CHECKING:
    from tracekit.paper.reproduction import Failure, Run, Written

_MOST_ROWS = 16
"""Of a table that is printed; longer ones are in their files."""


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names of tables and figures, or `all`; --list lists them."),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List what there is.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="`demo`, a hub name, a directory, or NAME=DIRECTORY for a model of the paper; "
            "may be given several times. Default: those of the paper."
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="May be given several times. Default: those of the paper; with the embedded "
            "model the ones that stand in for them."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, joined by commas. Default: those of the paper."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder; runs in it are not repeated.")
    ] = Path("reproduction"),
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with data files, or with a folder per data set."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs at the same time.")] = 1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first examples of each data set.")
    ] = None,
    data_option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of the data sets that have it, as name=value; may be given several times."
        ),
    ] = None,
    model_option: ModelOption = None,
    draws: Annotated[
        int | None,
        typer.Option(min=1, help="Random sets per budget. Default: 1000, 100 with `demo`."),
    ] = None,
    held_out: Annotated[
        bool,
        typer.Option(help="Also run the tables' methods without a fifth of the examples."),
    ] = True,
    device: Device = None,
    dtype: Dtype = "float32",
    batch_size: BatchSize = 64,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Reruns tables and figures of the paper.

    Every finished run is kept, so a command that was stopped goes on where it was. Published
    values stand beside ours where model and data are the paper's.
    """
    from tracekit import paper
    from tracekit.search import METHODS

    if list_them or not names:
        _list()
        return
    wanted = [name.strip() for name in methods.split(",")] if methods else []
    for name in wanted:
        if name not in METHODS:
            raise UnknownMethodError(name, METHODS)
    if output.is_file():
        raise ConfigError(f"The output {output} is a file. Give a folder.")
    setting = paper.Setting(
        models=[paper.ModelAt.parse(text) for text in model or []],
        datasets=dataset or [],
        methods=wanted,
        seed=seed,
        limit=limit,
        draws=draws,
        held_out=held_out,
        dtype=dtype,
        data_options=parse_options(data_option or [], [""])[""],
    )
    chosen = paper.chosen(names)
    total = len(paper.plan(chosen, setting))
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not bars(quiet),
        transient=True,
    )
    with progress:
        task = progress.add_task("runs", total=total)
        fresh = [0]

        def tell(done: Run | Failure) -> None:
            fresh[0] += bool(getattr(done, "fresh", False))
            job = done.job
            what = f"{job.model}, {job.dataset}, {job.label or job.work}"
            progress.update(task, advance=1, description=what)
            if not bars(quiet):
                state = "ran" if getattr(done, "fresh", False) else "kept"
                state = "failed" if isinstance(done, paper.Failure) else state
                console.print(f"{state}: {what}", style="dim", highlight=False)

        written = paper.reproduce(
            names,
            setting,
            output,
            data_dir=data_dir,
            device=device,
            batch_size=batch_size,
            loading=parse_loading(model_option),
            processes=jobs,
            tell=tell,
        )
    for one in written:
        _print_report(one)
    failed = sum(len(one.failures) for one in written)
    console.print(
        f"{fresh[0]} of {total} runs were new. Tables, figures and runs are in "
        f"{escape(str(output))}/.",
        highlight=False,
    )
    if failed and model:
        raise typer.Exit(1)


def _list() -> None:
    from tracekit.paper.reproduction import EXPERIMENTS

    table = Table("name", "what", "models", "data sets")
    for one in EXPERIMENTS.values():
        table.add_row(one.name, one.about, ", ".join(one.models), ", ".join(one.datasets))
    console.print(table)


def _print_report(one: Written) -> None:
    """The tables that fit, and what must be known."""
    console.print(f"\n[bold]{one.experiment.name}[/]: {one.experiment.about}", highlight=False)
    for reason in one.reasons:
        console.print(f"Not done: {escape(reason)}", highlight=False)
    if one.report is None:
        return
    for name, entry in one.report.tables.items():
        frame = entry.frame[list(entry.columns)] if entry.columns else entry.frame
        if not entry.brief or len(frame) > _MOST_ROWS:
            console.print(f"{name}: {len(frame)} rows, in {one.folder}/{name}.csv", style="dim")
            continue
        table = Table(title=name, title_justify="left")
        for column in frame.columns:
            table.add_column(str(column), overflow="fold")
        for row in frame.itertuples(index=False):
            table.add_row(*map(_cell, row))
        console.print(table)
    for note in one.report.notes:
        console.print(note, style="dim", highlight=False)


def _cell(value: object) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))


@app.command()
def validate(
    model: Annotated[str, typer.Argument(help="A hub name or a directory.")],
    dataset: Annotated[str, typer.Option(help="winobias or winogender.")] = "winogender",
    table_of: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="Which model it is said to be: distilgpt2, gpt2, gpt2-medium, gpt2-large or "
            "gpt2-xl. Default: its name.",
        ),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="A table of your own (JSON), instead of the published one.")
    ] = None,
    data_dir: DataDir = None,
    model_option: ModelOption = None,
    device: Device = None,
    dtype: Dtype = "float32",
    batch_size: BatchSize = 64,
    quiet: Quiet = False,
) -> None:
    """Compares every single-head effect with those published for the real GPT-2 family.

    Exit code 1 if they do not agree, as with other weights.
    """
    import tracekit as tk
    from tracekit.paper.published import read_single_heads, single_heads
    from tracekit.paper.validation import validate as compare

    names = {"winobias": "winobias-dev", "winogender": "winogender-bergsma"}
    if table is not None:
        known = read_single_heads(table)
    else:
        known = single_heads(table_of or Path(model).name, names.get(dataset, dataset))
    loaded = load(model, device=device, dtype=dtype, **parse_loading(model_option))
    options = {} if data_dir is None else {"data_dir": data_dir}
    pairs = tk.load_dataset(dataset, loaded, **options)
    tracer = tk.Tracer(loaded, pairs, batch_size=batch_size, progress=bars(quiet))
    found = compare(tracer, known)
    shown = Table(show_header=False, box=None)
    for name, value in (
        ("heads", str(found.singles.numel())),
        ("correlation of single effects", f"{found.correlation:.6f}"),
        ("largest difference", f"{found.largest_difference:.3g}"),
        ("largest published effect", f"{found.largest_published:.3g}"),
        ("all heads", f"{found.all_heads:.6g} (published: {known.all_heads:.6g})"),
        ("published by", known.source),
    ):
        shown.add_row(name, value)
    console.print(shown)
    if not found.agrees:
        raise DisagreementError(
            f"{model} does not agree with the table for {known.model} on {known.dataset}: "
            f"{'; '.join(found.problems)}. It has other weights, another tokenizer or other data."
        )
    console.print(f"[bold]{escape(model)} agrees with {known.model}.[/]", highlight=False)
