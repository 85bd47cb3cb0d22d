"""Output: text and tables in the terminal, and files. Loads models without progress bars."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import isfinite, nan
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NoReturn

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typer import Exit
from typing_extensions import TypedDict

from tracekit._util.markup import interval_text, printable
from tracekit._util.version import __version__
from tracekit.errors import FigureExportError, OutputError

if TYPE_CHECKING:
    from tracekit.data.prompts import PromptPairs
    from tracekit.results.curve import TraceCurve
    from tracekit.results.result import TraceResult
    from tracekit.runs import Failure, Run
    from tracekit.tracer.estimate import Estimate
    from tracekit.tracer.tracer import Tracer


class CommandError(TypedDict):
    """An error of a command."""

    type: str
    """Class of the error."""
    message: str


class CommandOutput(TypedDict):
    """The one JSON document that a command prints with `--json`."""

    command: str
    ok: bool
    """Whether the exit code is 0."""
    tracekit: str
    """Version."""
    tables: list[list[dict[str, str | float]]]
    """Each table that is printed without `--json`, a mapping from column to cell for each row."""
    lines: list[str]
    """Everything else that is printed."""
    warnings: list[str]
    error: CommandError | None
    """None where what was found makes the command fail, as a red line or a failed run."""


class PlainConsole(Console):
    """Prints every text as it is: names come from files, and are neither markup nor commands."""

    document: CommandOutput | None = None
    """With `--json`, what is printed goes here."""
    had_document: bool = False
    """Whether there is a document, or was one."""
    findings: Any = None
    """What is printed in place of the document of a command without error."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints, or records."""
        if self.document is None:
            super().print(*objects, **options)
            return
        for each in objects:
            if isinstance(each, Table):
                names = [str(column.header) or str(n) for n, column in enumerate(each.columns)]
                rows = zip(*(column.cells for column in each.columns), strict=True)
                cells = [dict(zip(names, map(_json_cell, row), strict=True)) for row in rows]
                self.document["tables"].append(cells)
            else:
                self.document["lines"] += printable(str(each)).splitlines()

    def begin_document(self, command: str) -> None:
        """From now on nothing is printed until `print_document`."""
        self.had_document, self.findings = True, None
        self.document = CommandOutput(
            command=command.replace("_", "-"),
            ok=True,
            tracekit=__version__,
            tables=[],
            lines=[],
            warnings=[],
            error=None,
        )

    def print_document(self, error: BaseException | None = None) -> None:
        """Prints the document of a command, once; of an exit, the code says whether it is ok."""
        document, self.document = self.document, None
        if document is not None:
            document["ok"] = error is None or getattr(error, "exit_code", 1) == 0
            if error is not None and not isinstance(error, Exit):
                # Errors of usage say in full what they are about.
                message = getattr(error, "format_message", error.__str__)()
                document["error"] = {"type": type(error).__name__, "message": message}
            printed = self.findings if self.findings and error is None else document
            sys.stdout.write(json.dumps(printed, indent=1) + "\n")

    def render_str(self, text: str, **options: Any) -> Text:
        """A text without markup or emoji codes, and with control characters shown as �."""
        plain = {"markup": False, "emoji": False}
        return super().render_str(printable(text), **{**options, **plain})

    def on_broken_pipe(self) -> NoReturn:
        """Leaves it to the program, which ends."""
        raise BrokenPipeError


_MOST_LABELS = 20
"""Components of a result that a table names."""


def _json_cell(cell: Any) -> str | float:
    """A number where the cell holds one, else its text."""
    text = printable(str(cell))
    try:
        number = float(text)
    except ValueError:
        return text
    # Digests may look like numbers.
    return number if isfinite(number) and len(text) < 14 else text


console: PlainConsole = PlainConsole()
error_console: PlainConsole = PlainConsole(stderr=True)


def print_problem(word: str, text: object, style: str) -> None:
    """Prints an error or a warning to standard error, in one line.

    Of several processes that share a trace, the others say who they are.
    """
    if console.document is not None and word == "Warning":
        console.document["warnings"].append(printable(str(text)))
    message = Text.assemble((f"{word}:", style), " ", printable(str(text)))
    if console.quiet:
        from tracekit._util.ranks import Ranks

        message = Text.assemble((f"Rank {Ranks.joined().rank}: ", style), message)
    error_console.print(message, highlight=False, soft_wrap=True)


def join_ranks() -> None:
    """Joins the processes that a launcher has started; only the first of them prints."""
    from tracekit._util.ranks import join_launched

    console.quiet = not join_launched().is_first


def load(source: str, **options: Any) -> Any:
    """Loads a model without the progress bar of transformers, which also shows in pipes."""
    from transformers.utils import logging

    from tracekit.models import load_model

    logging.disable_progress_bar()
    return load_model(source, **options)


def progress_is_shown(quiet: bool) -> bool:
    """Whether to show progress bars: only in a terminal, where they are redrawn in place."""
    return not quiet and sys.stderr.isatty()


def check_folder(output: Path) -> None:
    """Tries whether a folder can be written to; commands call it before anything slow."""
    if os.path.isfile(output):
        raise OutputError(f"The output {output} is a file. Give a folder.")
    made: list[Path] = []
    try:
        made = [path for path in (output, *output.parents) if not os.path.exists(path)]
        output.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise _not_writable(output, error, "folder") from error
    finally:
        # A command that fails early leaves no empty folder behind.
        for path in made:
            with suppress(OSError):
                path.rmdir()


def check_file(output: Path) -> None:
    """Tries whether a file can be written; commands call it before anything slow."""
    if os.path.isdir(output):
        raise OutputError(f"The output {output} is a folder. Give a file.")
    check_folder(output.parent)
    try:
        with suppress(FileNotFoundError), output.open("ab"):
            pass
    except OSError as error:
        raise _not_writable(output, error, "file") from error
    with suppress(OSError):
        if output.stat().st_size == 0:
            output.unlink()


def _not_writable(output: Path, error: OSError, noun: str) -> OutputError:
    return OutputError(
        f"The output {output} cannot be written to ({error.strerror or error}). "
        f"Give a {noun} of yours."
    )


def print_step(text: str) -> None:
    """Says in a terminal what the command does before its first result."""
    if error_console.is_terminal and not console.quiet:
        error_console.print(text, style="dim", highlight=False, soft_wrap=True)


def print_skipped(pairs: PromptPairs) -> None:
    """Prints the examples that were dropped, one per line."""
    for line in pairs.skipped:
        console.print(f"Skipped {line}.", highlight=False)


def print_tracer(tracer: Tracer) -> None:
    """Prints what is traced, and the effect of all components together."""
    console.print(f"{tracer}", highlight=False, soft_wrap=True)
    console.print(f"Effect of all components together: {tracer.full_effect:.4g}")
    if tracer.n_prefers_x is not None:
        run = "clean" if tracer.direction == "noising" else "counterfactual"
        console.print(
            f"The {run} model prefers x to y on {tracer.n_prefers_x} of {len(tracer.pairs)} "
            "examples."
        )


def print_rows(table: Table, n_names: int = 1) -> None:
    """Prints a table so that no word is broken.

    A table that is too wide for the terminal is printed in parts, one below the other, each with
    the first `n_names` columns, which name a row. Only a word that is wider than the terminal is
    folded.
    """
    if console.document is not None:
        console.print(table)
        return
    widths = [_longest(column, "\n" if column.no_wrap else " ") for column in table.columns]
    parts, part = [], list(range(n_names))
    for number in range(n_names, len(widths)):
        # Two spaces and a line for each column, and a line at the end.
        width = sum(widths[each] + 3 for each in (*part, number)) + 1
        if width > console.width and len(part) > n_names:
            parts.append(part)
            part = list(range(n_names))
        part.append(number)
    for columns in (*parts, part):
        console.print(_part_of(table, columns, [widths[each] for each in columns]))


def _longest(column: Column, separator: str) -> int:
    """Width of the longest piece of a column between separators."""
    lines = [line for text in (column.header, *column.cells) for line in str(text).split("\n")]
    pieces = [piece for line in lines for piece in printable(line).split(separator)]
    return max(map(cell_len, pieces), default=0)


def _part_of(table: Table, columns: Sequence[int], least: Sequence[int]) -> Table:
    """Some columns of a table, none of them narrower than its longest word."""
    part = Table(title=table.title, title_justify=table.title_justify)
    chosen = [table.columns[number] for number in columns]
    widths: list[int | None] = [None] * len(chosen)
    room = console.width - sum(width + 3 for width in least) - 1
    if room >= 0:
        # Not left to rich, which narrows the widest columns first, whatever words they hold.
        widths = list(_widened(least, [_longest(column, "\n") for column in chosen], room))
    for column, width in zip(chosen, widths, strict=True):
        part.add_column(column.header, justify=column.justify, overflow="fold", width=width)
    for row in zip(*(column.cells for column in chosen), strict=True):
        part.add_row(*row)
    return part


def _widened(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Widths between the least and the most, the room going where most is missing."""
    widths = list(least)
    for _ in range(room):
        missing = [wanted - width for wanted, width in zip(most, widths, strict=True)]
        if max(missing) <= 0:
            break
        widths[missing.index(max(missing))] += 1
    return widths


def print_frame(frame: Any, *, title: str | None = None, n_names: int = 1) -> None:
    """Prints a pandas DataFrame; `n_names` of its first columns name a row."""
    table = Table(title=title, title_justify="left")
    for name in frame.columns:
        table.add_column(str(name), overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*map(_cell, row))
    print_rows(table, n_names=n_names)


def _cell(value: Any) -> str:
    """Four significant digits of a number, `-` for a missing value, else the text."""
    if value is None or value != value:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Tally:
    """Counts the outcomes of jobs; prints each where no progress bar shows it."""

    def __init__(self, quiet: bool) -> None:
        """Counts none yet."""
        self._counts = {"ran": 0, "kept": 0, "failed": 0}
        self._prints = not progress_is_shown(quiet)
        self.failures: list[Failure] = []

    def __call__(self, outcome: Run | Failure) -> str:
        """Counts an outcome; returns the job in words."""
        from tracekit.runs import Failure

        if isinstance(outcome, Failure):
            self.failures.append(outcome)
            state = "failed"
        else:
            state = "ran" if outcome.fresh else "kept"
        self._counts[state] += 1
        job = outcome.job
        described = printable(f"{job.model}, {job.dataset}, {job.label or job.work}")
        if self._prints:
            console.print(f"{state}: {described}", style="dim", highlight=False)
        return described

    def __str__(self) -> str:
        failed = f", {self._counts['failed']} failed" if self._counts["failed"] else ""
        return f"Ran {self._counts['ran']} of {sum(self._counts.values())}{failed}"


def print_estimates(estimates: Iterable[Estimate]) -> None:
    """Prints what runs will take, a line each, and all of them together."""
    from tracekit.tracer.estimate import duration

    listed = list(estimates)
    for each in listed:
        console.print(f"{each.method}: {each.total}", highlight=False)
    memory = max((each.memory for each in listed if each.memory is not None), default=None)
    held = "" if memory is None else f"; {memory / 2**20:.0f} MiB of memory"
    seconds = sum(each.seconds for each in listed)
    console.print(
        f"In all about {duration(seconds)}{held}. Nothing was run or written.", highlight=False
    )


def print_table(results: Sequence[TraceResult], *, is_full: bool = True) -> None:
    """Prints a row per result, by method and budget; the best effect of a budget is bold.

    Results of several setups have a table each. Above it stands what all of its rows share. If not
    `is_full`, components take the place of times and of intervals of held-out effects.
    """
    by_setup: dict[str, list[TraceResult]] = {}
    for result in results:
        setup = result.setup
        parts = [result.model, f"{len(result.per_example)} examples of {result.dataset}"]
        parts += [result.registry.describe(), str(setup.positions), setup.metric]
        parts += [] if setup.continuation_mean == "geometric" else [setup.continuation_mean]
        parts += [] if setup.source == "counterfactual" else [f"source {setup.source}"]
        parts += [] if setup.direction == "noising" else [setup.direction]
        by_setup.setdefault("; ".join(parts) + result.dataset_fingerprint, []).append(result)
    for text, rows in by_setup.items():
        if len(results) > 1:
            console.print(text.removesuffix(rows[0].dataset_fingerprint), highlight=False)
        order = list(dict.fromkeys(result.series for result in rows))
        rows.sort(key=lambda result: (order.index(result.series), result.budget or 0))
        _print_rows_of(rows, is_full)
    console.print(
        "Effect: mean over the examples that the set was selected on. Spread: 95 % of the means "
        "of resampled examples. Of all: share of the effect of all components. Faithful: 1 less "
        "the share that all others have; complete: 1 less the share that the set has (0 is "
        "complete). Passes: forward and backward, over all data; budgets of a run share them.",
        style="dim",
    )


def _print_rows_of(results: Sequence[TraceResult], is_full: bool) -> None:
    budgets = ["-" if result.budget is None else str(result.budget) for result in results]
    also = dict.fromkeys(name for result in results for name in result.extra_effects)
    columns: dict[str, list[Any]] = {"method": [result.series for result in results]}
    columns["budget"] = budgets
    columns["selected"] = [f"{result.n_selected} of {result.n_components}" for result in results]
    # What a set does on the examples that selected it is no rank among methods.
    is_tested = all(result.held_out is not None for result in results)
    shown = [(r.held_out_effect or 0.0) if is_tested else r.effect for r in results]
    tops = [
        max(value for value, r in zip(shown, results, strict=True) if r.budget == each.budget)
        for each in results
    ]
    bold = [
        "bold" if value == top and len(results) > 1 else ""
        for value, top in zip(shown, tops, strict=True)
    ]
    columns["effect"] = [
        Text(f"{each.effect:.4g}", "" if is_tested else style)
        for each, style in zip(results, bold, strict=True)
    ]
    columns["95 % spread"] = [interval_text(*result.spread) for result in results]
    columns["of all"] = [f"{100 * result.share_of_full_effect:.0f} %" for result in results]
    scores = [[cell.split(" [")[0] for cell in result.circuit_cells()] for result in results]
    columns["faithful"], columns["complete"] = map(list, zip(*scores, strict=True))
    cells = [_held_out_cells(r, s) for r, s in zip(results, bold, strict=True)]
    columns["held out"], columns["95 % interval"] = map(list, zip(*cells, strict=True))
    for name in also:
        effects = [result.extra_effects.get(name) for result in results]
        columns[name] = ["-" if effect is None else f"{effect:.4g}" for effect in effects]
    columns["passes"] = [f"{result.cost.forward_equivalents:.0f}" for result in results]
    columns["seconds"] = [f"{result.run.seconds:.1f}" for result in results]
    dropped = [] if any(result.held_out is not None for result in results) else ["held out"]
    dropped += ["95 % interval"] if dropped or not is_full else []
    if not is_full:
        columns["components"] = [" ".join(result.labels[:_MOST_LABELS]) for result in results]
    if not is_full and console.document is None:
        dropped += ["seconds", "passes", "of all", "complete"]
        if len(results) > 1:
            same = [name for name in [*columns][1:-1] if len({str(c) for c in columns[name]}) == 1]
            for name in [name for name in same if name not in dropped]:
                console.print(f"{name}: {columns[name][0]}", highlight=False)
            dropped += same
        if budgets == [str(result.n_selected) for result in results]:
            dropped += ["budget"]
    columns = {name: cells for name, cells in columns.items() if name not in dropped}
    table = Table(*columns)
    for column in table.columns[1 : None if is_full else -1]:
        column.justify = "right"
        column.no_wrap = not is_full and column.header == "95 % spread"
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    print_rows(table, n_names=min(2, len(columns)))


def _held_out_cells(result: TraceResult, style: str) -> tuple[Text | str, str]:
    """Effect on the held-out examples, in a style, and its interval."""
    if result.held_out_effect is None:
        return "-", "-"
    ends = result.held_out_interval or (nan, nan)
    return Text(f"{result.held_out_effect:.4g}", style=style), interval_text(*ends)


def save(run: TraceResult | TraceCurve, output: Path) -> None:
    """Writes each result of a run to its own folder, e.g. `pgb-ct-6` below `output`."""
    from tracekit.results.result import TraceResult

    if console.quiet:
        return
    for result in [run] if isinstance(run, TraceResult) else run:
        size = result.n_selected if result.budget is None else result.budget
        result.save(output / f"{result.method}-{size}")


def write_figures(figures_by_name: dict[str, Any], output: Path) -> None:
    """Writes figures as HTML, and as PNG if there is a browser."""
    from tracekit import figures

    if console.quiet:
        return

    def at_paths(suffix: str) -> dict[str | Path, Any]:
        return {output / f"{name}{suffix}": figure for name, figure in figures_by_name.items()}

    figures.write_all(at_paths(".html"))
    try:
        figures.write_all(at_paths(".png"))
    except FigureExportError as error:
        console.print(f"No PNG figures: {error}", style="dim", highlight=False)
    console.print(f"Figures and results are in {output}/.", highlight=False)
