"""Writes the files of commands; checks before slow work that they can be written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import tracekit as tk
from tracekit.cli.console import console
from tracekit.errors import FigureExportError, OutputError


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
