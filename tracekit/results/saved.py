"""Results from wherever they are: in memory, in curves, fronts and runs, or in folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tracekit._util.options import as_path, short_repr
from tracekit.errors import ConfigError
from tracekit.results.result import TraceResult


@runtime_checkable
class HasCurve(Protocol):
    """A run of a search, as `load_runs` gives them."""

    curve: Any
    """Its results."""


def load_saved(folder: str | Path) -> list[TraceResult]:
    """Reads every result that was saved to a folder, or to one below it.

    They come in the order of their paths, `budget-2` before `budget-10`.

    Raises:
        ConfigError: It is no path.
        ResultNotFoundError, ResultFormatError: As of `TraceResult.load`.
    """
    root = as_path("folder", folder)
    folders = [file.parent for file in root.rglob(TraceResult.FILE)]

    def pieces(path: Path) -> list[tuple[str, int]]:
        return [(text, int(n or 0)) for text, n in re.findall(r"(\D*)(\d*)", str(path))]

    # Without any, the error says what a folder must hold.
    return [TraceResult.load(each) for each in sorted(folders, key=pieces) or [root]]


def is_several(given: object) -> bool:
    """Whether it is a list, a tuple or an iterator, and no text, mapping, array or table."""
    is_one = isinstance(given, (str, bytes, os.PathLike, Mapping)) or hasattr(given, "shape")
    return isinstance(given, Iterable) and not is_one


def all_results(given: Any) -> list[TraceResult]:
    """The results in what a user gives: results, curves, fronts, runs and folders, in any nesting.

    Raises:
        ConfigError: Something else.
        ResultNotFoundError, ResultFormatError: As of `load_saved`.
    """
    if isinstance(given, TraceResult):
        return [given]
    if isinstance(given, (str, os.PathLike)):
        return load_saved(given)  # type: ignore[arg-type]
    for name in ("results", "curve"):
        # Curves, fronts, comparisons, tracers and `load_runs` have results; one run has a curve.
        if hasattr(given, name):
            return all_results(getattr(given, name))
    if is_several(given):
        return [result for each in given for result in all_results(each)]
    raise ConfigError(
        f"A {type(given).__name__} was given where results are wanted: {short_repr(given)}. Give "
        "results, curves, fronts, what tk.load_runs returns, folders that these were saved to, or "
        "a list of such."
    )
