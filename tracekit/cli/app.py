"""The program: it runs a command and turns errors into exit codes."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from io import TextIOWrapper
from threading import current_thread, main_thread
from threading import enumerate as enumerate_threads
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from tracekit._util.markup import clean_text
from tracekit._util.options import short_repr
from tracekit._util.progress import report_waiting
from tracekit._util.versions import __version__
from tracekit.cli.console import console, error_console, print_problem
from tracekit.errors import ConfigError, TracekitError

OptionValues = dict[str, Any]
"""Values of the options of a command, by name."""
PANELS = (
    "Arguments",
    "What is traced",
    "Data",
    "Model",
    "How it is searched",
    "Limits",
    "Where it runs",
    "Output",
)
"""Panels of `--help`, in their order."""


class _Command(TyperCommand):
    """A command whose help shows its options in panels, with the types of their values."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for parameter in self.params:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # Otherwise help shows `<bool>` for every flag.
        # Arguments and options without a panel come first.
        first = PANELS[0]
        self.params.sort(
            key=lambda each: PANELS.index(getattr(each, "rich_help_panel", None) or first)
        )

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = PANELS[-1]  # type: ignore[attr-defined]
            option.metavar = ""
        return option


class _CommandGroup(typer.Typer):
    def command(self, name: str | None = None, **settings: Any) -> Any:  # type: ignore[override]
        add = super().command(name, cls=_Command, **settings)
        return lambda function: add(_add_json_option(function))


def _add_json_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the option `--json`: the command then prints one document, also for an error."""
    signature = inspect.signature(command, eval_str=True)
    text = "Print one JSON document and nothing else to standard output."
    option = typer.Option("--json", metavar="", help=text, rich_help_panel=PANELS[-1])
    keyword = inspect.Parameter.KEYWORD_ONLY
    flag = inspect.Parameter("as_json", keyword, default=False, annotation=Annotated[bool, option])

    @wraps(command)
    def run(**values: Any) -> None:
        if values.pop("as_json"):
            console.begin_document(command.__name__)
        name = f"tracekit {command.__name__.replace('_', '-')}"
        try:
            with report_waiting(name, shown=False if values.get("quiet") else None):
                command(**values)
        except BaseException as error:
            console.print_document(error)
            raise
        console.print_document()

    parameters = [*signature.parameters.values(), flag]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


app: typer.Typer = _CommandGroup(
    name="tracekit",
    help="Which components of a language model act together? Multi-component causal tracing.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_BROKEN_PIPE = 141
_INTERRUPTED = 130
"""Exit code after Ctrl-C; releases of typer return it or raise."""


def main() -> None:
    """Runs the command line.

    Errors of tracekit are printed as one sentence, with exit code 1; wrong usage ends with 2,
    Ctrl-C with 130, and output that nobody reads with 141.
    """
    _quieten_libraries()
    console.has_begun_document = False
    for stream in (sys.stdout, sys.stderr):
        # Replace characters that the terminal or pipe cannot encode.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _check_arguments()
        with _raise_on_termination():
            code = app(standalone_mode=False)
            sys.stdout.flush()
        if code == _INTERRUPTED:
            _exit_interrupted()
        if isinstance(code, int) and code:
            sys.exit(code)
    except TracekitError as error:
        _print_early_error(error)
        print_problem("Error", error, "bold red")
        sys.exit(1)
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended. Discard the rest, also at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(_BROKEN_PIPE)
    except OSError as error:
        # A full or read-only disk: what was written before is kept.
        file_name = f" ({short_repr(error.filename)})" if error.filename else ""
        print_problem("Error", f"{error.strerror or error}{file_name}.", "bold red")
        sys.exit(1)
    except (typer.Abort, KeyboardInterrupt):
        _exit_interrupted()
    except _TerminationSignal as terminated:
        error_console.print("Stopped.")
        # End as the signal itself does: sys.exit would wait for threads that draw figures.
        signal.raise_signal(terminated.args[0])
    except Exception as error:
        # Errors of typer about wrong usage print themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        _print_early_error(error)
        show()
        sys.exit(getattr(error, "exit_code", 2))


def _check_arguments() -> None:
    """Refuses arguments that are not UTF-8 and could not be saved, before any work is done."""
    for text in sys.argv[1:]:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ConfigError(
                f"The argument {clean_text(text)!r} is not valid UTF-8, so no saved file could "
                "name it. Rename the file; or set PYTHONUTF8=1, if only your locale differs."
            )


def _print_early_error(error: Exception) -> None:
    """Prints the JSON document of an error before a command begins, such as a wrong option."""
    if "--json" in sys.argv[1:] and not console.has_begun_document:
        name = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        console.begin_document(name)
        console.print_document(error)


def _exit_interrupted() -> NoReturn:
    error_console.print("Stopped.")
    others = [thread for thread in enumerate_threads() if thread is not main_thread()]
    if any(not thread.daemon for thread in others):
        # sys.exit would wait until the threads have drawn all of their figures.
        sys.stdout.flush()
        os._exit(_INTERRUPTED)
    sys.exit(_INTERRUPTED)


class _TerminationSignal(BaseException):
    """The system asked the command to end, by a signal of this number."""


@contextmanager
def _raise_on_termination() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into an error: checkpoints are written and workers ended."""

    def stop(number: int, frame: object) -> NoReturn:
        raise _TerminationSignal(number)

    before = {}
    # Only the main thread can set handlers. A signal ignored by nohup stays ignored.
    for name in ("SIGTERM", "SIGHUP") if current_thread() is main_thread() else ():
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[
        bool, typer.Option("--version", metavar="", help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""
    if show_version:
        console.print(f"tracekit {__version__}")
        raise typer.Exit


def _quieten_libraries() -> None:
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.showwarning = lambda message, *_, **__: print_problem("Warning", message, "bold")
