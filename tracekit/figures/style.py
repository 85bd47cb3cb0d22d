"""The style that all figures share: size, fonts, colours, frame.

Sizes and fonts are readable at the width of a column of text (85 mm). Colours are distinct under
the common colour-vision deficiencies and in grey; lines differ in marker and dash as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from itertools import cycle, pairwise
from typing import Any

import plotly.graph_objects as go

WIDTH = 520
"""Pixels."""
WIDE = 648
"""Pixels: the width of a page, 6.75 inches."""
HEIGHT = 400
"""Pixels, where the content asks for no other height."""

FONT: dict[str, Any] = {"family": "Arial, Helvetica, sans-serif", "size": 15, "color": "black"}
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
_BELOW_PLOT = 60.0
"""Height of tick labels and the title of the axis, in pixels."""
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
    "mask-ig": ("#56B4E9", "cross", "dot"),
    "attribution": ("#882255", "pentagon", "dashdot"),
    "shrunken-top-k": ("#999933", "diamond-tall", "longdash"),
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


def two_digits(value: float) -> str:
    """Two digits of a number, without zeros that a narrow place has no room for."""
    return f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e").replace("-", "\u2212")


def error_bars(
    values: Iterable[float], low: Iterable[float], high: Iterable[float], **more: Any
) -> dict[str, Any]:
    """Bars from values to the ends of their intervals; `more` is passed to plotly."""
    middle = list(values)
    return {
        "array": [top - value for top, value in zip(high, middle, strict=True)],
        "arrayminus": [value - bottom for value, bottom in zip(middle, low, strict=True)],
        **more,
    }


def set_titles(figure: go.Figure, title: str, subtitle: str) -> go.Figure:
    """Sets title, subtitle and the sizes of all texts; widens the margin of a narrow figure."""
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(title_font_size=FONT["size"], tickfont_size=TICK_SIZE)
    layout: Any = figure.layout
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
    )
    missing = title_width(figure) - (layout.width or WIDTH)
    if layout.width and missing > 0:
        figure.update_layout(width=layout.width + round(missing))
        layout.margin.r += round(missing)
    return place_title(figure)


def title_width(figure: go.Figure) -> float:
    """Pixels that title and subtitle need on the screen."""
    title: Any = figure.layout.title  # type: ignore[attr-defined]
    return max(8.5 * len(title.text or ""), 7.2 * len(title.subtitle.text or "")) + 24


def fit_titles(figure: go.Figure, plot_width: float) -> None:
    """Makes titles smaller where figure or panels are too narrow for them."""
    layout: Any = figure.layout
    for each in (layout.title, layout.title.subtitle):
        if each.text:
            # A letter is about half as wide as it is high; the title begins at 2 % of the width.
            each.font.size = min(each.font.size, 0.96 * layout.width / (0.5 * len(each.text)))
    notes = [
        note for note in layout.annotations if (note.x, note.y, note.yanchor) == (0, 1, "bottom")
    ]
    starts = [layout["xaxis" + note.xref.removesuffix(" domain")[1:]].domain[0] for note in notes]
    sizes = [
        plot_width * (end - start) / (0.5 * len(note.text) + 1)
        for note, (start, end) in zip(notes, pairwise([*starts, 1.0]), strict=True)
    ]
    for note in notes:
        note.font.size = min(note.font.size, *sizes)


def fit_bar(figure: go.Figure, plot_height: float, texts: float = 1.0) -> None:
    """Makes the colour bar longer than a plot that is too low for its ticks.

    `plot_height` is in pixels, `texts` the size of texts over that on the screen.
    """
    length = 104.0 * texts
    if plot_height >= length:
        return
    layout: Any = figure.layout
    figure.update_traces(
        {"colorbar": {"lenmode": "pixels", "len": length, "y": 1, "yanchor": "top", "ypad": 0}},
        {"type": "heatmap", "showscale": True},
    )
    missing = max(0.0, length + 9 * texts - plot_height - layout.margin.b)
    layout.margin.b += missing
    layout.height += missing


def place_title(figure: go.Figure) -> go.Figure:
    """Puts the title at the upper edge, whatever the height and the margin; returns the figure."""
    layout: Any = figure.layout
    layout.title.y = 1 - 1.4 * layout.title.font.size / (layout.height or HEIGHT)
    return figure


def add_margins(
    figure: go.Figure, margins: Mapping[str, float], plot_width: float, plot_height: float
) -> None:
    """Sets margins, and the size of the figure so that the plot has the one given, in pixels."""
    figure.update_layout(
        width=round(margins["l"] + plot_width + margins["r"]),
        height=round(margins["t"] + plot_height + margins["b"]),
        margin={**margins, "pad": 0, "autoexpand": False},
    )


def finish(figure: go.Figure, title: str, subtitle: str) -> go.Figure:
    """Sets frame, title and size of a figure, and returns it."""
    figure.update_xaxes(linecolor="black", ticks="outside", gridcolor=GRID, zeroline=False)
    figure.update_yaxes(linecolor="black", ticks="outside", gridcolor=GRID, zeroline=False)
    # Tick labels of large numbers push the title outwards.
    figure.update_yaxes(automargin=True, title_standoff=10)
    figure.update_xaxes(title_standoff=8)
    figure.update_layout(legend_font_size=TICK_SIZE)
    plot = (WIDTH - 90.0, HEIGHT - 70.0 - _BELOW_PLOT)
    bottom = add_legend(figure, plot)
    figure.update_layout(
        width=WIDTH,
        height=round(70 + plot[1] + bottom),
        margin={"l": 70, "r": 20, "t": 70, "b": bottom},
    )
    return set_titles(figure, title, subtitle)


def add_legend(figure: go.Figure, plot: tuple[float, float], texts: float = 1.0) -> float:
    """Puts the legend below the axis title; returns the margin that axis and legend need.

    Left to itself, plotly lets a legend of several rows grow upwards, over the axis. `plot` is its
    width and height in pixels, `texts` the size of texts over that on the screen.
    """
    drawn: list[Any] = list(figure.data)
    shown = [trace for trace in drawn if trace.name and trace.showlegend is not False]
    names = [str(trace.name) for trace in shown]
    layout: Any = figure.layout
    if len(names) < 2 and not layout.showlegend:
        return _BELOW_PLOT * texts
    widest = 48 + 0.5 * TICK_SIZE * texts * max(map(len, names), default=0)
    n_rows = -(-len(names) // max(1, int(plot[0] / widest)))
    figure.update_layout(
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -(_BELOW_PLOT - 2) * texts / plot[1],
            "yanchor": "top",
            "entrywidth": widest - 44,
            "entrywidthmode": "pixels",
        }
    )
    return _BELOW_PLOT * texts + 10 + max(20 * texts, 17) * n_rows
