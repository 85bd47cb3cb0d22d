"""Writing figures to files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tracekit._util.files import draft_folder, write_atomically
from tracekit._util.options import as_path, check_keywords
from tracekit._util.progress import report_waiting
from tracekit.errors import ConfigError, FigureExportError
from tracekit.figures import browser_process
from tracekit.figures.layout import FONT_SIZE, PER_INCH, place, resized

_PIXELS_PER_POINT = 2
_DPI = 300
"""Pixels of a PNG that make an inch, in print."""
_UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72, "px": 1 / PER_INCH}
"""Unit of width -> inches."""
_TO_START, _PER_IMAGE = 60.0, 15.0
"""Seconds that a browser has to start, and to draw an image."""
_TRIES = 2
"""A browser that hung once need not do so again."""
_HIGHEST = 8.0
"""Inches of a figure in print."""
_WIDTH = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>in|cm|mm|pt|px)?")


@check_keywords
def write(
    figure: go.Figure,
    path: str | Path,
    *,
    width: str | float | None = None,
    height: str | float | None = None,
    font_size: float | None = None,
    font: str | None = None,
    title: bool = True,
) -> Path:
    """Writes a figure in the format that the suffix names, and returns the path.

    `.html` opens without a network: `plotly.min.js` is written beside it. `.png`, `.svg` and `.pdf`
    need kaleido and Chrome or Chromium, and have the size of the figure; a PNG has two pixels for
    each, or 300 for each inch if a width is given.

    Args:
        figure: Is left as it is.
        path: The file.
        width: For print, e.g. `"3.3in"` (a column), `"85mm"`, or a number of inches: the file is
            exactly as wide. None: as it is on the screen.
        height: For print, the most, as a width. None: 8 inches where a width is given.
        font_size: Of axis titles, in points of 1/72 inch; other texts keep their proportion to it.
            None: with a width 8 points, else as on the screen.
        font: Of all texts, e.g. `"Times"`.
        title: Whether to write title and subtitle, which a caption may say instead.

    Raises:
        ConfigError: Width, height or font size is not a measure, or leaves no room for the plot.
        FigureExportError: Kaleido or a browser is missing, or the browser hangs.
    """
    if width is None and height is None and font_size is None and font is None and title:
        return write_all({path: figure})[0]
    resized = for_print(
        figure, width=width, height=height, font_size=font_size, font=font, title=title
    )
    is_screen = width is None and height is None
    return _write({path: resized}, _PIXELS_PER_POINT if is_screen else _DPI / PER_INCH)[0]


def for_print(
    figure: go.Figure,
    *,
    width: str | float | None = None,
    height: str | float | None = None,
    font_size: float | None = None,
    font: str | None = None,
    title: bool = True,
) -> go.Figure:
    """A copy of a figure in another size and font; arguments as in `write`.

    It is laid out anew: margins are as wide as their texts, titles are broken into lines, and the
    plot has what is left. Rows of cells are squares as far as 0.12 inches are enough for them.
    """
    points = font_size or (FONT_SIZE * 72 / PER_INCH if width is None else 8.0)
    if not 2 <= points <= 72:
        raise ConfigError(f"font_size is {font_size}. Give points, from 2 to 72.")
    copied = resized(figure, points * PER_INCH / 72 / FONT_SIZE)
    layout: Any = copied.layout
    if not title:
        layout.title.update(text="", subtitle_text="")
    if font is not None:
        layout.font.family = font
    if width is None and height is None:
        pixels, page = layout.width, inf
    else:
        pixels = layout.width if width is None else _inches(width, "width") * PER_INCH
        page = _inches(_HIGHEST if height is None else height, "height") * PER_INCH
    return place(copied, pixels, page)


def write_all(figures: Mapping[str | Path, go.Figure]) -> list[Path]:
    """Writes figures, each to its path, as `write` does; a browser is started once for all.

    Raises:
        FigureExportError: Kaleido or a browser is missing, or it hangs; `.html` files are written.
    """
    return _write(figures, _PIXELS_PER_POINT)


@report_waiting("Writing figures")
def _write(figures: Mapping[str | Path, go.Figure], scale: float) -> list[Path]:
    named = {as_path("path", name): figure for name, figure in figures.items()}
    images = {path: figure for path, figure in named.items() if path.suffix != ".html"}
    for path in [path for path in named if path not in images]:
        _write_plotly(path.parent)
        # The same figure is the same file: left to itself, plotly draws an id at random.
        write_atomically(path, named[path].to_html(include_plotlyjs="directory", div_id="figure"))
    if images:
        _write_images(images, scale)
    return list(named)


def _write_plotly(folder: Path) -> None:
    """Writes plotly's script unless it is there and whole; plotly would take any file of its name.

    A script that was cut short leaves every figure of the folder blank.
    """
    script = get_plotlyjs().encode()
    path = folder / "plotly.min.js"
    with suppress(OSError):
        if path.read_bytes() == script:
            return
    write_atomically(path, script)


def _write_images(images: Mapping[Path, go.Figure], scale: float) -> None:
    with draft_folder(next(iter(images))) as drafts:
        # Numbered, as figures of several folders may have one name.
        paths = {drafts / f"{n}{path.suffix}": path for n, path in enumerate(images)}
        document = {
            "figures": [json.loads(str(figure.to_json())) for figure in images.values()],
            "paths": list(map(str, paths)),
            "scales": [scale if path.suffix == ".png" else 1 for path in images],
        }
        wrong = _draw(document)
        if wrong is not None:
            raise FigureExportError(
                f"Could not write {', '.join(path.name for path in images)}: {wrong}. "
                "Install tracekit-lm[figures] and Chrome or Chromium, or write .html."
            )
        for draft, path in paths.items():
            write_atomically(path, draft.read_bytes())


def _draw(document: Mapping[str, Any]) -> str | None:
    """Draws images in another process; returns what went wrong, if anything did."""
    seconds = _TO_START + _PER_IMAGE * len(document["paths"])
    for _ in range(_TRIES):
        with (
            suppress(subprocess.TimeoutExpired),
            TemporaryDirectory(ignore_cleanup_errors=True) as home,
        ):
            ended = subprocess.run(
                [sys.executable, browser_process.__file__],
                input=json.dumps(document),
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=seconds,
                # A browser leaves settings and caches in the user's home.
                env={**os.environ, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home},
            )
            if ended.returncode == 0:
                return None
            lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
            # The last line of a traceback says what it was.
            line = lines[0] if ended.returncode == browser_process.FAILED else lines[-1]
            return line.rstrip(" .,:;")
    return f"the browser did not answer in {seconds:g} seconds, {_TRIES} times"


def _inches(measure: str | float, name: str) -> float:
    match = _WIDTH.fullmatch(str(measure))
    inches = float(match["number"]) * _UNITS[match["unit"] or "in"] if match else 0.0
    if not 0.5 <= inches <= 50:
        raise ConfigError(
            f"The {name} is {measure!r}. Give inches, or a number with a unit: 3.3in, 85mm, 8.5cm."
        )
    return inches
