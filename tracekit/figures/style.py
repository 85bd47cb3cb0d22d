"""The style that all figures share: size, fonts, colours, frame.

Sizes and fonts are readable at the width of a column of text (85 mm). Colours are distinct under
the common colour-vision deficiencies and in grey; lines differ in marker and dash as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import cycle
from typing import Any, Literal

import plotly.graph_objects as go

from tracekit.figures.layout import FONT_SIZE, place

WIDTH = 520
"""Pixels."""
WIDE = 648
"""Pixels: the width of a page, 6.75 inches."""
HEIGHT = 400
"""Pixels, where the content asks for no other height."""

FONT: dict[str, Any] = {
    "family": "Arial, Helvetica, sans-serif",
    "size": FONT_SIZE,
    "color": "black",
}
GRID = "#d9d9d9"
BOX: dict[str, Any] = {
    "showline": True,
    "mirror": True,
    "linecolor": "black",
    "linewidth": 1,
    "ticks": "outside",
    "zeroline": False,
}
"""Axes with a line on all four sides."""
TICK_SIZE = 13
"""Size of tick labels and legends, in pixels."""
_TITLE_SIZE = 17
SUBTITLE_SIZE = 14
"""Size of subtitles and of the titles of panels, in pixels."""
# Okabe and Ito's palette, in an order that also differs in lightness; two more of Tol's.
SELECTED = ABOVE = "#D55E00"
"""Colour of what is selected, and of values above 0 where there is no scale."""
BELOW = "#0072B2"
UNSTUDIED = "#D0D0D0"
"""Colour of cell borders, and of cells that are not studied."""
EXPLORER_COLORS = (
    "--fg: #1a1a1a; --muted: #5c5c5c; --line: #b9b9b9; --faint: #e6e6e6; --zero: #ffffff; "
    f"--plus: {ABOVE}; --minus: {BELOW}; --mark: #ffe08a; --problem: #a40000; --panel: #f6f6f4;",
    "--fg: #ececec; --muted: #ababab; --line: #6d6d6d; --faint: #3d3d3d; --zero: #1f1f1f; "
    "--plus: #ff8c3b; --minus: #4fb3f2; --mark: #7a5c00; --problem: #ff9c9c; --panel: #2b2b2b;",
)
"""Those of the explorer in light and in dark surroundings, as CSS."""
QUIET: dict[str, Any] = {"hoverinfo": "skip", "showlegend": False}
"""Of marks that say nothing at the pointer and in the legend."""
CONTROL = ("#7F7F7F", "x", "dashdot")
"""Colour, marker and dash of random controls."""
OTHER_SETS = ("#000000", "triangle-down-open")
"""Colour and marker of sets beside the best ones."""
STYLES: dict[str, tuple[str, str, str]] = {
    "random": CONTROL,
    "pgb-ct": ("#D55E00", "circle", "solid"),
    "pgb-ct+local": ("#D55E00", "hexagon", "solid"),
    "greedy": ("#0072B2", "square", "dash"),
    "top-k": ("#009E73", "diamond", "dot"),
    "exhaustive": ("#000000", "star", "longdash"),
    "local-search": ("#CC79A7", "triangle-up", "solid"),
    "dcm": ("#E69F00", "triangle-down", "dash"),
    "learned-ranking": ("#332288", "triangle-right", "solid"),
    "mask-ig": ("#56B4E9", "cross", "dot"),
    "eap-ig": ("#117733", "triangle-left", "longdash"),
    "attribution": ("#882255", "pentagon", "dashdot"),
    "empirical-bayes-top-k": ("#999933", "diamond-tall", "longdash"),
}
"""Colour, marker and dash by method."""
SPARE_STYLES = (
    ("#56B4E9", "cross", "dot"),
    ("#D55E00", "circle", "solid"),
    ("#0072B2", "square", "dash"),
    ("#009E73", "diamond", "dashdot"),
    ("#CC79A7", "triangle-up", "longdash"),
    ("#E69F00", "triangle-down", "dash"),
    ("#000000", "star", "dot"),
)
COLORS = list(dict.fromkeys(color for color, _, _ in SPARE_STYLES))
"""Colours for figures of one's own."""


def styles(labels: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and dash of each line.

    Methods have those of `STYLES`. Other lines get spare ones, which differ from those in use in
    colour or marker as far as possible. Repeated labels count once.
    """
    labels = list(dict.fromkeys(labels))
    taken = {STYLES[label][:2] for label in labels if label in STYLES}
    free = [style for style in SPARE_STYLES if style[:2] not in taken]
    spare = cycle(free or SPARE_STYLES)
    return {label: STYLES.get(label) or next(spare) for label in labels}


def data_and_model(dataset: str, model: str) -> str:
    """The title of a figure about one data set and one model."""
    return f"{plain(dataset)} data, {plain(model)} model"


def plain(text: str) -> str:
    """A name as plotly shows it letter by letter, which else takes `<b>` as HTML, `$a$` as TeX."""
    return escape(text, quote=False).replace("$", "&#36;")


def color_bar(title: str, note: str = "", **more: Any) -> dict[str, Any]:
    """The bar beside a map that says which colour a value has, with a note below its title."""
    return {
        "title": {"text": f"{title}<br>{note or ' '}", "side": "top", "font": {"size": TICK_SIZE}},
        "tickfont": {"size": TICK_SIZE},
        "thickness": 13,
        "outlinewidth": 1,
        **more,
    }


def axis_with_labels(texts: Sequence[str], *, is_down: bool = False, **more: Any) -> dict[str, Any]:
    """A framed axis with a text at 0, 1, 2 and so on, from the top if `is_down`."""
    ends = [-0.5, len(texts) - 0.5]
    ticks = {"tickvals": list(range(len(texts))), "ticktext": list(texts), "showgrid": False}
    return {**BOX, **ticks, "range": ends[::-1] if is_down else ends, **more}


def two_digits(value: float) -> str:
    """Two digits of a number, without zeros that a narrow place has no room for."""
    return f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e").replace("-", "\u2212")


def interval_hover(name: str, value: float, low: float, high: float, text: str) -> str:
    """What stands at the pointer of a value: its name, its interval, and a text below them."""
    return f"{plain(name)}: {value:.4g} ({low:.4g} to {high:.4g})<br>{text}"


def error_bars(
    values: Iterable[float], low: Iterable[float], high: Iterable[float], **more: Any
) -> dict[str, Any]:
    """Bars from values to the ends of their intervals; `more` is passed to plotly."""
    middle = list(values)
    return {
        **{"color": "black", "thickness": 1.4, "width": 4},
        "array": [top - value for top, value in zip(high, middle, strict=True)],
        "arrayminus": [value - bottom for value, bottom in zip(middle, low, strict=True)],
        **more,
    }


def add_key(figure: go.Figure, name: str, **look: Any) -> None:
    """Adds an entry to the legend, if it is new, by a trace whose only point has no place."""
    if not any(figure.select_traces({"name": name})):
        figure.add_scatter(x=[None], y=[None], name=name, **{"mode": "markers", **look})


def shape(color: str, width: float = 1, symbol: str = "square") -> dict[str, Any]:
    """Marks of a cell, bar or node in a legend, with a frame of some width."""
    line = {"color": "black", "width": width}
    return {"marker": {"symbol": symbol, "size": 13, "color": color, "line": line}}


def frame(figure: go.Figure) -> go.Figure:
    """Draws axes and their grid, where values are read from both; returns the figure."""
    axes = {"linecolor": "black", "ticks": "outside", "gridcolor": GRID, "zeroline": False}
    # Ticks of large numbers push the title outwards.
    return figure.update_xaxes(axes).update_yaxes(axes, automargin=True)


def in_style(
    figure: go.Figure,
    title: str = "",
    subtitle: str = "",
    *,
    plot: tuple[float, float] = (WIDTH - 90.0, HEIGHT - 130.0),
) -> go.Figure:
    """Gives a figure of one's own the fonts, sizes, frame and colours of all others; returns it.

    `write` and `for_print` then set it for print as these. Traces without a colour have one of
    `COLORS`, which are distinct under the common colour-vision deficiencies.

    Args:
        figure: With titles of its axes.
        title: Above it.
        subtitle: Below the title.
        plot: Width and height between the axes on the screen, in pixels.
    """
    figure.update_layout(colorway=COLORS).update_annotations(font_size=TICK_SIZE)
    fonts = {"tickfont_size": TICK_SIZE, "title_font_size": TICK_SIZE, "thickness": 13}
    figure.update_traces({"colorbar": fonts}, {"type": "heatmap"})
    return finish(frame(figure), title, subtitle, plot=plot)


def finish(
    figure: go.Figure,
    title: str,
    subtitle: str,
    *,
    plot: tuple[float, float] = (WIDTH - 90.0, HEIGHT - 130.0),
    grows: Literal["plot", "rows", "cells"] = "plot",
    columns: Sequence[int] = (),
    widest: float = 0,
) -> go.Figure:
    """Sets title, fonts and size of a figure, and returns it.

    `plot` is its width and height on the screen, in pixels (of cells, the height in rows); `grows`,
    what the height follows in another width: the width, the texts in its rows, or the cells. Of
    cells, `columns` are those of each panel (0 for bars), and `widest` is the largest width of the
    figure, in pixels; 0: as wide as the plot needs.
    """
    size = {"plot": plot, "grows": grows, "columns": columns, "widest": widest}
    for update, standoff in ((figure.update_xaxes, 8), (figure.update_yaxes, 10)):
        update(title_font_size=FONT["size"], tickfont_size=TICK_SIZE)
        update({"title.standoff": standoff}, lambda axis: axis.title.standoff is None)
    figure.update_layout(
        template="none",
        title={
            "text": title,
            "subtitle": {"text": subtitle, "font": {"size": SUBTITLE_SIZE}},
            "font": {"size": _TITLE_SIZE},
            "x": 0.02,
            "xanchor": "left",
            "yanchor": "middle",
        },
        font=FONT,
        legend_font_size=TICK_SIZE,
        margin_autoexpand=bool(figure.layout.yaxis.automargin),  # type: ignore[attr-defined]
        meta={**size, "texts": 1.0, "marks": 1.0, "ticks": {}},
    )
    return place(figure)
