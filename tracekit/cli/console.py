"""What commands print to, a terminal or with `--json` one document, and the files they write.

Commands check before slow work that their files can be written.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, NoReturn

from rich.console import Console
from rich.text import Text
from typer import Exit
from typing_extensions import TypedDict

import tracekit as tk
from tracekit._util.markup import clean_text
from tracekit._util.versions import __version__
from tracekit.errors import FigureExportError, OutputError


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
    """None if the command fails because of its findings, such as a red line or a failed run."""


class PlainConsole(Console):
    """Prints every text as it is: names come from files, and are neither markup nor commands."""

    document: CommandOutput | None = None
    """With `--json`, what is printed goes here."""
    has_begun_document: bool = False
    """Whether there is a document, or was one."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects, or adds them to the document."""
        if self.document is None:
            super().print(*objects, **options)
            return
        for each in objects:
            self.document["lines"] += clean_text(str(each)).splitlines()

    def begin_document(self, command: str) -> None:
        """Starts a document; nothing else is printed until `print_document`."""
        self.has_begun_document = True
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
        """Prints the document of a command, once. An `Exit` with code 0 counts as ok."""
        document, self.document = self.document, None
        if document is not None:
            document["ok"] = error is None or getattr(error, "exit_code", 1) == 0
            if error is not None and not isinstance(error, Exit):
                # Usage errors have a fuller text here.
                message = getattr(error, "format_message", error.__str__)()
                document["error"] = {"type": type(error).__name__, "message": message}
            sys.stdout.write(json.dumps(document, indent=1) + "\n")

    def render_str(self, text: str, **options: Any) -> Text:
        """A text without markup or emoji codes, and with control characters shown as �."""
        plain = {"markup": False, "emoji": False}
        return super().render_str(clean_text(text), **{**options, **plain})

    def on_broken_pipe(self) -> NoReturn:
        """Raises the error, so that the program ends."""
        raise BrokenPipeError


console: PlainConsole = PlainConsole(highlight=False)
error_console: PlainConsole = PlainConsole(stderr=True, highlight=False)


def print_problem(word: str, text: object, style: str) -> None:
    """Prints an error or a warning to standard error, in one line.

    Where several processes share a trace, all but the first also print their rank.
    """
    if console.document is not None and word == "Warning":
        console.document["warnings"].append(clean_text(str(text)))
    message = Text.assemble((f"{word}:", style), " ", clean_text(str(text)))
    if console.quiet:
        from tracekit._util.ranks import Ranks

        message = Text.assemble((f"Rank {Ranks.current().rank}: ", style), message)
    error_console.print(message, soft_wrap=True)


def check_folder(output: Path | None) -> None:
    """Checks that a folder can be written to; commands call it before slow work."""
    if output is None:
        return
    if os.path.isfile(output):
        raise OutputError(f"The output {output} is a file. Give a folder.")
    new_folders = [path for path in (output, *output.parents) if not os.path.exists(path)]
    try:
        output.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise _output_error(output, error, "folder") from error
    finally:
        # A command that fails early leaves no empty folder behind.
        for path in new_folders:
            with suppress(OSError):
                path.rmdir()


def check_file(output: Path | None) -> None:
    """Checks that a file can be written; commands call it before slow work."""
    if output is None:
        return
    if os.path.isdir(output):
        raise OutputError(f"The output {output} is a folder. Give a file.")
    check_folder(output.parent)
    try:
        with suppress(FileNotFoundError), output.open("ab"):
            pass
    except OSError as error:
        raise _output_error(output, error, "file") from error
    with suppress(OSError):
        if output.stat().st_size == 0:
            output.unlink()


def _output_error(output: Path, error: OSError, noun: str) -> OutputError:
    return OutputError(
        f"The output {output} cannot be written to ({error.strerror or error}). Give a {noun} that "
        "you can write to."
    )


def save_results(results: Iterable[tk.TraceResult], output: Path) -> None:
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
    for suffix in (".html", ".png"):
        figures = {output / f"{name}{suffix}": each for name, each in figures_by_name.items()}
        try:
            tk.figures.write_all(figures)  # type: ignore[arg-type]
        except FigureExportError as error:
            console.print(f"No PNG figures: {error}", style="dim")
    console.print(f"Figures and results are in {output}/.")
