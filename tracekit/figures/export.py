"""Writing figures to files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tracekit.errors import FigureExportError
from tracekit.files import write_beside

_PIXELS_PER_POINT = 2


def write(figure: go.Figure, path: str | Path) -> Path:
    """Writes a figure in the format that the suffix names.

    `.html` opens without a network: `plotly.min.js` is written beside it. `.png`, `.svg` and
    `.pdf` need kaleido and Chrome or Chromium.

    Returns:
        The path.

    Raises:
        FigureExportError: Kaleido or a browser is missing.
    """
    return write_all({path: figure})[0]


def write_all(figures: Mapping[str | Path, go.Figure]) -> list[Path]:
    """Writes figures, each to its path, as `write` does; a browser is started once for all.

    Args:
        figures: By path.

    Returns:
        The paths, in order.

    Raises:
        FigureExportError: Kaleido or a browser is missing; `.html` files are written all the same.
    """
    images: dict[Path, go.Figure] = {}
    for name, figure in figures.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".html":
            _write_plotly(path.parent)
            figure.write_html(path, include_plotlyjs="directory")
        else:
            images[path] = figure
    if images:
        _write_images(images)
    return [Path(name) for name in figures]


def _write_plotly(folder: Path) -> None:
    """Writes plotly's script unless it is there and whole; plotly would take any file of its name.

    A script that was cut short leaves every figure of the folder blank.
    """
    script = get_plotlyjs().encode()
    path = folder / "plotly.min.js"
    try:
        is_there = path.read_bytes() == script
    except OSError:
        is_there = False
    if not is_there:
        write_beside(path, script)


def _write_images(images: Mapping[Path, go.Figure]) -> None:
    from plotly.io import write_images

    try:
        # Left to itself, plotly gives several figures one size, whatever their layouts say.
        layouts: list[Any] = [figure.layout for figure in images.values()]
        write_images(
            list(images.values()),
            list(images),
            width=[layout.width for layout in layouts],
            height=[layout.height for layout in layouts],
            scale=[_PIXELS_PER_POINT if path.suffix == ".png" else 1 for path in images],
        )
    except (ValueError, RuntimeError, ImportError) as error:
        first = str(error).strip().splitlines()[0].rstrip(" .,:;")
        raise FigureExportError(
            f"Could not write {', '.join(path.name for path in images)}: {first}. "
            "Install tracekit[figures] and Chrome or Chromium, or write .html."
        ) from error
