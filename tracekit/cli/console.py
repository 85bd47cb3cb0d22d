"""What commands print to: the terminal, or with `--json` one document for programs."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal, NoReturn

from rich.console import Console
from rich.text import Text
from typer import Exit
from typing_extensions import TypedDict

from tracekit._util.markup import clean_text
from tracekit._util.version import __version__


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
