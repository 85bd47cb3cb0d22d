"""The program: it runs a command and turns errors into exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tracekit.cli.output import console, error_console, print_problem
from tracekit.errors import TracekitError

app = typer.Typer(
    name="tracekit",
    help="Which components of a language model act together? Multi-component causal tracing.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

_RENAMED_OPTIONS = {
    "--path": "the command `tracekit pareto`",
    "--max-forwards": "--max-passes",
    "--mean": "--continuation-mean",
    "--batch-size": "--max-batch-size",
}
"""Earlier option -> its present name."""


def main() -> None:
    """Runs the command line.

    Errors of tracekit are printed as one sentence, with exit code 1; wrong usage ends with 2, and
    Ctrl-C with 130.
    """
    _quieten_libraries()
    try:
        code = app(standalone_mode=False)
        if isinstance(code, int) and code:
            sys.exit(code)
    except TracekitError as error:
        print_problem("Error", error, "bold red")
        sys.exit(1)
    except OSError as error:
        # A full or read-only disk: what was written before is kept.
        named = f" ({error.filename})" if error.filename else ""
        print_problem("Error", f"{error.strerror or error}{named}.", "bold red")
        sys.exit(1)
    except (typer.Abort, KeyboardInterrupt):
        error_console.print("Stopped.")
        sys.exit(130)
    except Exception as error:
        # Errors of typer about wrong usage print themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        option = getattr(error, "option_name", None)
        if option in _RENAMED_OPTIONS:
            print_problem("Error", f"{option} is now {_RENAMED_OPTIONS[option]}.", "bold red")
        else:
            show()
        sys.exit(getattr(error, "exit_code", 2))


@app.callback(invoke_without_command=True)
def version(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""
    if show_version:
        import tracekit

        console.print(f"tracekit {tracekit.__version__}")
        raise typer.Exit


def _quieten_libraries() -> None:
    """Keeps the libraries' own progress bars and advice out of the terminal."""
    import os
    import warnings

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.showwarning = lambda message, *_, **__: print_problem("Warning", message, "bold")
