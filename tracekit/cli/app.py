"""The program: its options, and how it ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from tracekit.errors import TracekitError

app = typer.Typer(
    name="tracekit",
    help="Which components of a language model act together? Multi-component causal tracing.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

console = Console()
errors = Console(stderr=True)

Output = Annotated[
    Path, typer.Option("--output", "-o", help="Folder for figures and results; made if missing.")
]
Seed = Annotated[int, typer.Option(help="Seed of every search.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bars.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the data set's files. Default: downloaded once.")
]
Device = Annotated[str | None, typer.Option(help="E.g. cpu or cuda:0.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Option of loading the model as name=value, e.g. device_map=auto, n_devices=2 or "
        "revision=main; may be given several times."
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples per pass.")]


def main() -> None:
    """Runs the command line; errors end it with one sentence and exit code 1."""
    _quieten()
    try:
        code = app(standalone_mode=False)
        if isinstance(code, int) and code:
            sys.exit(code)
    except TracekitError as error:
        text = escape(str(error))
        errors.print(f"[bold red]Error:[/] {text}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except typer.Abort:
        errors.print("Stopped.")
        sys.exit(130)
    except KeyboardInterrupt:
        errors.print("Stopped.")
        sys.exit(130)
    except Exception as error:
        show = getattr(error, "show", None)
        if show is None:
            raise
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


def _quieten() -> None:
    """Keeps the libraries' own progress bars and advice out of the terminal."""
    import os
    import warnings

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
