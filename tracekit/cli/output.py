"""Output: text and tables in the terminal, and files. Loads models without progress bars."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text
from typer import Exit
from typing_extensions import TypedDict

import tracekit as tk
from tracekit import models, runs
from tracekit._util.deferred import transformers
from tracekit._util.markup import printable
from tracekit._util.table import Column, Table
from tracekit._util.version import __version__
from tracekit.errors import FigureExportError, OutputError

if TYPE_CHECKING:
    from tracekit.tracer.estimate import Estimate


class CommandError(TypedDict):
    """An error of a command."""

    type: str
    """Class of the error."""
    message: str


Row = dict[str, str | float | bool | list[str] | None]
"""A row of a table by its columns; null where there is no value. Components are a list."""


class CommandOutput(TypedDict):
    """The one JSON document that a command prints with `--json`, also after an error."""

    format_version: Literal[1]
    command: str
    ok: bool
    """Whether the exit code is 0."""
    tracekit: str
    """Version."""
    tables: dict[str, list[Row]]
    """Rows of tables, by the names of these."""
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

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints, or records."""
        if self.document is None:
            super().print(*objects, **options)
            return
        for each in objects:
            self.document["lines"] += printable(str(each)).splitlines()

    def begin_document(self, command: str) -> None:
        """From now on nothing is printed until `print_document`."""
        self.had_document = True
        self.document = CommandOutput(
            format_version=1,
            command=command.replace("_", "-"),
            ok=True,
            tracekit=__version__,
            tables={},
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
            sys.stdout.write(json.dumps(document, indent=1) + "\n")

    def render_str(self, text: str, **options: Any) -> Text:
        """A text without markup or emoji codes, and with control characters shown as �."""
        plain = {"markup": False, "emoji": False}
        return super().render_str(printable(text), **{**options, **plain})

    def on_broken_pipe(self) -> NoReturn:
        """Leaves it to the program, which ends."""
        raise BrokenPipeError


_MOST_LABELS = 20
"""Components of a result that a table names."""
_LIST_WIDTH = 12
"""Width below which a column of components is not narrowed."""


console: PlainConsole = PlainConsole(highlight=False)
error_console: PlainConsole = PlainConsole(stderr=True, highlight=False)


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
    error_console.print(message, soft_wrap=True)


def join_ranks() -> None:
    """Joins the processes that a launcher has started; only the first of them prints."""
    from tracekit._util.ranks import join_launched

    console.quiet = not join_launched().is_first


def load(source: str, **options: Any) -> Any:
    """Loads a model without the progress bar of transformers, which also shows in pipes."""
    transformers.utils.logging.disable_progress_bar()
    return models.load_model(source, **options)


def progress_is_shown(quiet: bool) -> bool:
    """Whether to show progress bars: only in a terminal, where they are redrawn in place."""
    return not quiet and sys.stderr.isatty()


def check_folder(output: Path | None) -> None:
    """Tries whether a folder can be written to; commands call it before anything slow."""
    if output is None:
        return
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


def check_file(output: Path | None) -> None:
    """Tries whether a file can be written; commands call it before anything slow."""
    if output is None:
        return
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
        error_console.print(text, style="dim", soft_wrap=True)


def print_tracer(tracer: tk.Tracer) -> None:
    """Prints what is traced, and the effect of all components together."""
    from tracekit._util.clusters import n_text

    console.print(f"{tracer}", soft_wrap=True)
    of = "" if tracer.held_out is None else " searched"
    n = f"{n_text(tracer.engine.n_examples, tracer.engine.pairs.clusters)}{of} examples"
    console.print(
        f"Effect of all components together ({tracer.engine.metric.name}, {n}): "
        f"{tracer.full_effect:.4g}"
    )
    if tracer.n_prefers_x is not None:
        run = "clean" if tracer.direction == "noising" else "counterfactual"
        console.print(f"The {run} model prefers x to y on {tracer.n_prefers_x} of the {n}.")


def recorded(name: str, table: Table) -> bool:
    """Puts a table into the document under a name; says whether there is a document."""
    if console.document is None:
        return False
    console.document["tables"].setdefault(name, []).extend(table.records())
    return True


def print_table(
    name: str,
    table: Table,
    shown: Table | None = None,
    *,
    heading: str | None = None,
    n_names: int = 1,
) -> None:
    """Prints a table so that no word is broken; with `--json` records it under a name.

    A table that is too wide for the terminal is printed in parts, one below the other, each with
    the first `n_names` columns, which name a row. Only a word that is wider than the terminal is
    folded.

    Args:
        name: In the document.
        table: All columns and rows.
        shown: Those that a terminal has room for. None: all.
        heading: Above it.
        n_names: How many columns each part begins with.
    """
    if recorded(name, table):
        console.print(*filter(None, [heading]))
        return
    columns = (table if shown is None else shown).columns
    texts = [[column.title, *column.texts] for column in columns]
    least = [_least(column, cells) for column, cells in zip(columns, texts, strict=True)]
    parts, part = [], list(range(n_names))
    for number in range(n_names, len(columns)):
        # Two spaces and a line for each column, and a line at the end.
        width = sum(least[each] + 3 for each in (*part, number)) + 1
        if width > console.width and len(part) > n_names:
            parts.append(part)
            part = list(range(n_names))
        part.append(number)
    for numbers in (*parts, part):
        drawn = RichTable(title=heading, title_justify="left")
        room = console.width - sum(least[number] + 3 for number in numbers) - 1
        most = [_longest(texts[number], "\n") for number in numbers]
        # Not left to rich, which narrows the widest columns first, whatever words they hold.
        widths = _widened([least[number] for number in numbers], most, room)
        for number, width in zip(numbers, widths, strict=True):
            justify = "left" if number == 0 or columns[number].is_text else "right"
            fixed = width if room >= 0 else None
            drawn.add_column(texts[number][0], justify=justify, overflow="fold", width=fixed)
        for row in range(1, len(texts[0])):
            styles = [columns[number].styles.get(row - 1, "") for number in numbers]
            drawn.add_row(*map(Text, [texts[number][row] for number in numbers], styles))
        console.print(drawn)


def _least(column: Column, texts: Sequence[str]) -> int:
    """Width of a column below which its words would be broken; lists have a little more."""
    kinds = {type(value) for value in column.values}
    longest = _longest(texts, "\n")
    if tuple in kinds:
        # An interval is one word.
        return max(_longest(texts[:1], " "), _longest(texts[1:], "\n"))
    return max(_longest(texts, " "), min(longest, _LIST_WIDTH) if list in kinds else 0)


def _longest(texts: Iterable[str], separator: str) -> int:
    """Width of the longest piece of texts between separators."""
    lines = [line for text in texts for line in text.split("\n")]
    return max((cell_len(piece) for line in lines for piece in line.split(separator)), default=0)


def _widened(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Widths between the least and the most, the room going where most is missing."""
    widths = list(least)
    for _ in range(room):
        missing = [wanted - width for wanted, width in zip(most, widths, strict=True)]
        if max(missing) <= 0:
            break
        # Names of rows first: they are read in one piece.
        widths[0 if missing[0] > 0 else missing.index(max(missing))] += 1
    return widths


def print_facts(name: str, table: Table) -> None:
    """Prints a table of one row as a line for each column."""
    if not recorded(name, table):
        drawn = RichTable(show_header=False, box=None)
        for column in table.columns:
            drawn.add_row(column.title, *column.texts)
        console.print(drawn)


class Tally:
    """Counts the outcomes of jobs; prints each where no progress bar shows it."""

    def __init__(self, quiet: bool) -> None:
        """Counts none yet."""
        self._counts = {"ran": 0, "kept": 0, "failed": 0}
        self._prints = not progress_is_shown(quiet)
        self.failures: list[runs.Failure] = []

    def __call__(self, outcome: runs.Run | runs.Failure) -> str:
        """Counts an outcome; returns the job in words."""
        if isinstance(outcome, runs.Failure):
            self.failures.append(outcome)
            state = "failed"
        else:
            state = "ran" if outcome.fresh else "kept"
        self._counts[state] += 1
        described = printable(outcome.job.description)
        if self._prints:
            console.print(f"{state}: {described}", style="dim")
        return described

    def __str__(self) -> str:
        counts = self._counts
        said = f", {counts['failed']} failed" if counts["failed"] else ""
        said += f", {counts['kept']} were there" if counts["kept"] else ""
        return f"Ran {counts['ran']} of {sum(counts.values())}{said}."


def print_checks(checked: tk.data.PairsCheck, *, is_short: bool = False) -> None:
    """Prints the lines of a check as a table; if `is_short`, it counts those that are green."""
    lines = [line for line in checked.lines if not (is_short and line.color == "green")]
    colors = [line.color for line in lines]
    columns = [
        Column("color", "color", colors, styles=dict(enumerate(colors))),
        Column("check", "check", [line.topic for line in lines]),
        Column("finding", "finding", [line.text for line in lines]),
    ]
    if lines:
        print_table("checks", Table(columns), n_names=2)
    if is_short:
        n = len(checked.lines)
        console.print(f"{n - len(lines)} of {n} checks of the pairs are green.")


def print_estimates(estimates: Iterable[Estimate]) -> None:
    """Prints what runs will take, a line each, and all of them together."""
    from tracekit._util.progress import duration_text

    listed = list(estimates)
    recorded("estimates", Table.of_rows([asdict(each) for each in listed]))
    for each in listed:
        console.print(f"{each.method}: {each.total}")
    memory = max((each.memory for each in listed if each.memory is not None), default=None)
    held = "" if memory is None else f"; {memory / 2**20:.0f} MiB of memory"
    most = "" if all(each.is_exact for each in listed) else "at most "
    seconds = duration_text(sum(each.seconds for each in listed))
    console.print(f"In all {most}about {seconds}{held}. Nothing was run or written.")


def print_results(results: Sequence[tk.TraceResult], *, is_full: bool = True) -> None:
    """Prints a row per result, by method and budget; the best effect of a budget is bold.

    Results of several setups have a table each. Above it stands what all of its rows share. If not
    `is_full`, times are left out.
    """
    from tracekit.results.on_examples import rows_of
    from tracekit.results.tables import examples_text, legend, result_table

    by_setup: dict[str, list[tk.TraceResult]] = {}
    for result in results:
        setup = result.setup
        parts = [result.model, examples_text(result), result.registry.describe()]
        parts += [str(setup.positions), f"{setup.metric}: {result.axis_label}"]
        parts += [] if setup.continuation_mean == "geometric" else [setup.continuation_mean]
        parts += [] if setup.source == "counterfactual" else [f"source {setup.source}"]
        parts += [f"seed of the source {setup.source_seed}"] if setup.source_seed else []
        parts += [] if setup.direction == "noising" else [setup.direction]
        by_setup.setdefault("; ".join(parts) + result.dataset_fingerprint, []).append(result)
    for text, rows in by_setup.items():
        console.print(text.removesuffix(rows[0].dataset_fingerprint))
        order = list(dict.fromkeys(result.series for result in rows))
        rows.sort(key=lambda result: (order.index(result.series), result.budget or 0))
        table = result_table(rows, most_labels=_MOST_LABELS)
        print_table("results", table, _shown(rows, table, is_full), n_names=2)
    for result in results:
        for on in filter(None, (result.searched, result.held_out)):
            where = "searched" if on is result.searched else "held out"
            of = {"method": result.series, "n_selected": result.n_selected, "examples": where}
            runs = [of | run for run in rows_of(on.choices, on.n_examples)]
            if runs and not recorded("choices", Table.of_rows(runs)):
                said = f"{result.series}, {result.n_selected} selected, {where}: {on.choices_text}."
                console.print(said, highlight=False)
    console.print(
        f"{legend(results)} Passes: forward and backward, over all data; budgets of a run share "
        "them.",
        style="dim",
    )


def _shown(results: Sequence[tk.TraceResult], table: Table, is_full: bool) -> Table:
    """The columns of results for a terminal, of which `show` has some."""
    from tracekit.results.tables import competing, effect_columns

    # What a set does on the examples that selected it is no rank among methods.
    best = "effect" if None in table["held_out"].values else "held_out"
    table = table.ranked(best, ["budget"], among=competing(results))
    columns = ["method", "budget", *effect_columns(results)]
    if not is_full:
        columns = [
            each for each in columns if each not in ("share", "held_out_share", "completeness")
        ]
    names = {name for result in results for name in result.extra_effects}
    columns += [
        each.title for each in table.columns if each.title.removesuffix(" (metric)") in names
    ]
    columns += ["passes", "seconds"] if is_full else []
    if table["budget"].values == table["n_selected"].values:
        columns.remove("budget")
    return table.only(*columns, "components", brief=True)


def save(results: Iterable[tk.TraceResult], output: Path) -> None:
    """Writes each result of a run to its own folder, e.g. `pgb-ct-6` below `output`."""
    if console.quiet:
        return
    for result in results:
        size = result.n_selected if result.budget is None else result.budget
        result.save(output / f"{result.method}-{size}")


def write_figures(figures_by_name: dict[str, Any], output: Path) -> None:
    """Writes figures as HTML, and as PNG if there is a browser."""
    if console.quiet:
        return

    def at_paths(suffix: str) -> dict[str | Path, Any]:
        return {output / f"{name}{suffix}": figure for name, figure in figures_by_name.items()}

    tk.figures.write_all(at_paths(".html"))
    try:
        tk.figures.write_all(at_paths(".png"))
    except FigureExportError as error:
        console.print(f"No PNG figures: {error}", style="dim")
    console.print(f"Figures and results are in {output}/.")
