"""Writing figures to files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tracekit._util.files import draft_folder, write_beside
from tracekit._util.options import as_path
from tracekit.errors import ConfigError, FigureExportError
from tracekit.figures import browser_process
from tracekit.figures.style import add_legend, fit_bar, fit_titles, place_title, title_width

_PIXELS_PER_POINT = 2
_PER_INCH = 96
"""Pixels of a figure that make an inch."""
_DPI = 300
"""Pixels of a PNG that make an inch, in print."""
_UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72, "px": 1 / _PER_INCH}
"""Unit of width -> inches."""
_FONTS = ("font", "tickfont", "textfont", "title_font")
_DISTANCES = ("standoff", "ticklen", "xshift", "yshift")
_TO_START, _PER_IMAGE = 60.0, 15.0
"""Seconds that a browser has to start, and to draw an image."""
_TRIES = 2
"""A browser that hung once need not do so again."""
_SMALLEST_PLOT = 60
"""Pixels; a narrower plot shows nothing."""
_HIGHEST, _HIGHEST_CELL = 8.0, 0.12
"""Inches of a figure in print, and of a row of one of many rows."""
_LOW_PLOT = 80.0
"""Pixels that a plot of few rows of bars is high in print."""
_WIDTH = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>in|cm|mm|pt|px)?")


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
        width: For print, the most, e.g. `"3.3in"` (a column), `"85mm"`, or a number of inches. A
            deep model takes less: its cells are at most 0.12 inches high. None: as it is on the
            screen.
        height: For print, the most, as a width. None: 8 inches where a width is given.
        font_size: Of axis titles, in points of 1/72 inch; other texts keep their proportion to it.
            None: with a width 8 points, else as on the screen.
        font: Of all texts, e.g. `"Times"`.
        title: Whether to write title and subtitle, which a caption may say instead.

    Raises:
        ConfigError: The width, the height or the size of the font is no such measure, or leaves no
            room for the plot.
        FigureExportError: Kaleido or a browser is missing, or the browser hangs.
    """
    if width is None and height is None and font_size is None and font is None and title:
        return write_all({path: figure})[0]
    resized = for_print(
        figure, width=width, height=height, font_size=font_size, font=font, title=title
    )
    is_screen = width is None and height is None
    path = as_path("path", path)
    _write({path: resized}, scale=_PIXELS_PER_POINT if is_screen else _DPI / _PER_INCH)
    return path


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

    The plot keeps its proportions; margins, which hold texts, grow and shrink with the font. A plot
    that would get too high is smaller; where its cells are no squares, only lower. A title that is
    wider than the figure is smaller, too.
    """
    drawn = figure.to_dict()
    layout = drawn["layout"]
    old_size = layout["font"]["size"]
    old_width, old_height, old_margin = layout["width"], layout["height"], layout["margin"]
    new_width = old_width if width is None else _inches(width, "width") * _PER_INCH
    points = old_size * 72 / _PER_INCH if width is None else 8.0
    points = points if font_size is None else font_size
    if not 2 <= points <= 72:
        raise ConfigError(f"font_size is {font_size}. Give points, from 2 to 72.")
    texts = points * _PER_INCH / 72 / old_size
    margin = {side: old_margin[side] * texts for side in "lrtb"}
    # Room on the right that only the title needed.
    margin["r"] = min(margin["r"], _right_of_plot(figure) * texts)
    if not title:
        margin["t"] = _above_plot(figure) * texts
        layout["title"] = {"text": "", "font": layout["title"]["font"]}
    plot = new_width - margin["l"] - margin["r"]
    if plot < _SMALLEST_PLOT:
        raise ConfigError(
            f"The width {width} leaves {plot:.0f} pixels for the plot at {points:g} points. "
            "Give a larger width or a smaller font_size."
        )
    scale = plot / (old_width - old_margin["l"] - old_margin["r"])
    old_plot = old_height - old_margin["t"] - old_margin["b"]
    highest = inf
    has_legend = "orientation" in layout.get("legend", {})
    if has_legend:
        margin["b"] = add_legend(go.Figure(drawn), (plot, old_plot), texts)
    if width is not None or height is not None:
        page = _inches(height or _HIGHEST, "height") * _PER_INCH
        highest = min(page - margin["t"] - margin["b"], _highest_plot(figure, plot))
        if highest < _SMALLEST_PLOT / 2:
            raise ConfigError(
                f"The height {height} leaves {highest:.0f} pixels for the plot at {points:g} "
                "points. Give a larger height or a smaller font_size."
            )
    plot_height = min(old_plot * scale, highest)
    if _has_squares(figure):
        scale = plot_height / old_plot
        shrunk = plot - (old_width - old_margin["l"] - old_margin["r"]) * scale
        plot -= shrunk
        # The title may need some of the room.
        spare = title_width(figure) * texts - (new_width - shrunk) if title else 0.0
        margin["r"] += min(shrunk, max(0.0, spare))
        new_width = margin["l"] + plot + margin["r"]
    layout["width"] = new_width
    _scale_texts(layout, texts)
    for trace in drawn["data"]:
        _scale_texts(trace, texts)
        _scale_marks(trace, min(scale, texts))
    if font is not None:
        layout["font"]["family"] = font
    resized = go.Figure(drawn)
    _thin_ticks(resized, plot, plot_height)
    if has_legend:
        add_legend(resized, (plot, plot_height), texts)
    resized.update_layout(
        height=margin["t"] + plot_height + margin["b"], margin={**old_margin, **margin}
    )
    fit_titles(resized, plot)
    fit_bar(resized, plot_height, texts)
    return place_title(resized)


def write_all(figures: Mapping[str | Path, go.Figure]) -> list[Path]:
    """Writes figures, each to its path, as `write` does; a browser is started once for all.

    Raises:
        FigureExportError: Kaleido or a browser is missing, or the browser hangs; `.html` files are
            written all the same.
    """
    named = {as_path("path", name): figure for name, figure in figures.items()}
    return _write(named, _PIXELS_PER_POINT)


def _write(figures: Mapping[Path, go.Figure], scale: float) -> list[Path]:
    images: dict[Path, go.Figure] = {}
    for path, figure in figures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".html":
            _write_plotly(path.parent)
            # The same figure is the same file: left to itself, plotly draws an id at random.
            text = figure.to_html(include_plotlyjs="directory", div_id="figure")
            write_beside(path, text)
        else:
            images[path] = figure
    if images:
        _write_images(images, scale)
    return list(figures)


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
            write_beside(path, draft.read_bytes())


def _draw(document: Mapping[str, Any]) -> str | None:
    """Draws images in another process; returns what went wrong, if anything did."""
    seconds = _TO_START + _PER_IMAGE * len(document["paths"])
    for _ in range(_TRIES):
        with suppress(subprocess.TimeoutExpired):
            ended = subprocess.run(
                [sys.executable, browser_process.__file__],
                input=json.dumps(document),
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=seconds,
            )
            if ended.returncode == 0:
                return None
            lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
            # The last line of a traceback says what it was.
            line = lines[0] if ended.returncode == browser_process.FAILED else lines[-1]
            return line.rstrip(" .,:;")
    return f"the browser did not answer in {seconds:g} seconds, {_TRIES} times"


def _has_squares(figure: go.Figure) -> bool:
    axes: list[Any] = [*figure.select_xaxes(), *figure.select_yaxes()]
    return any(axis.scaleanchor for axis in axes)


def _highest_plot(figure: go.Figure, plot_width: float) -> float:
    """Pixels that a plot of rows may be high in print: few rows may be higher than many."""
    layout: Any = figure.layout
    traces: list[Any] = list(figure.data)
    is_rows = any(trace.type == "heatmap" or trace.orientation == "h" for trace in traces)
    if not is_rows or layout.yaxis.range is None:
        return inf
    first, last = layout.yaxis.range
    least = plot_width if _has_squares(figure) else _LOW_PLOT
    return max(least, _HIGHEST_CELL * _PER_INCH * abs(last - first))


def _thin_ticks(figure: go.Figure, width: float, height: float) -> None:
    """Leaves out ticks whose texts would overlap in a plot of a size in pixels."""
    for letter, size in (("x", width), ("y", height)):
        for axis in getattr(figure, f"select_{letter}axes")():
            ticks, texts = axis.tickvals, axis.ticktext
            if axis.range is None or ticks is None or texts is None or len(ticks) < 2:
                continue
            low, high = axis.domain or (0, 1)
            room = size * (high - low) / abs(axis.range[1] - axis.range[0])
            is_upright = letter == "y" or axis.tickangle
            longest = 0.9 if is_upright else 0.6 * max(map(len, texts)) + 0.4
            kept = [0]
            for rank in range(1, len(ticks)):
                apart = abs(ticks[rank] - ticks[kept[-1]]) * room
                kept += [rank] if apart >= longest * axis.tickfont.size - 1e-6 else []
            axis.update(tickvals=[ticks[i] for i in kept], ticktext=[texts[i] for i in kept])


def _inches(measure: str | float, name: str) -> float:
    match = _WIDTH.fullmatch(str(measure))
    inches = float(match["number"]) * _UNITS[match["unit"] or "in"] if match else 0.0
    if not 0.5 <= inches <= 50:
        raise ConfigError(
            f"The {name} is {measure!r}. Give inches, or a number with a unit: 3.3in, 85mm, 8.5cm."
        )
    return inches


def _right_of_plot(figure: go.Figure) -> float:
    """Pixels that a figure needs on the right of its plot."""
    traces: list[Any] = list(figure.data)
    bars = [
        trace.colorbar
        for trace in traces
        if trace.type == "heatmap" and trace.showscale is not False
    ]
    layout: Any = figure.layout
    plot = layout.width - layout.margin.l - layout.margin.r
    # A bar stands 2 % of the plot beside it, if not further.
    of_bars = [
        max([98.0, *(42 + 8.5 * len(text) for text in bar.ticktext or ())])
        + ((bar.x or 1.02) - 1.02) * plot
        for bar in bars
    ]
    beside = [
        len(text) * 7.2 + 20.0
        for note in layout.annotations
        if (note.x, note.xref, note.xanchor) == (1, "x domain", "left")
        for text in note.text.split("<br>")
    ]
    axes: list[Any] = list(figure.select_xaxes())
    # Half of a title is beside the axis that it is wider than.
    beyond = [
        (8.2 * len(axis.title.text or "") - plot * (axis.domain[1] - axis.domain[0])) / 2 + 12
        for axis in axes
        if axis.domain is not None and axis.domain[1] > 0.999
    ]
    return max([20.0, *of_bars, *beside, *beyond])


def _above_plot(figure: go.Figure) -> float:
    """Pixels that a figure needs above its plot without a title."""
    layout: Any = figure.layout
    axes: list[Any] = list(figure.select_xaxes())
    has_axis = any(axis.side == "top" for axis in axes)
    has_panels = any(note["yanchor"] == "bottom" for note in layout["annotations"])
    return 34.0 if has_axis else 24.0 if has_panels else 12.0


def _scale_texts(part: Any, factor: float) -> None:
    """Multiplies the sizes of fonts, and the distances of texts, in a part of a figure."""
    if isinstance(part, (list, tuple)):
        for entry in part:
            _scale_texts(entry, factor)
    if not isinstance(part, dict):
        return
    for name, value in part.items():
        if (
            name in _FONTS
            and isinstance(value, dict)
            and isinstance(value.get("size"), (int, float))
        ):
            value["size"] *= factor
        elif name in _DISTANCES and isinstance(value, (int, float)):
            part[name] = value * factor
        elif name != "template":
            _scale_texts(value, factor)


def _scale_marks(trace: dict[str, Any], factor: float) -> None:
    """Multiplies the widths of lines and the sizes of markers of a trace."""
    marker = trace.get("marker", {})
    for line in (trace.get("line", {}), marker.get("line", {}), trace.get("error_y", {})):
        for name in ("width", "thickness"):
            if isinstance(line.get(name), (int, float)):
                line[name] *= factor
    size = marker.get("size")
    if isinstance(size, (int, float)):
        marker["size"] = size * factor
    elif size is not None:
        marker["size"] = [one_size * factor for one_size in size]
