"""Lines, bars and similarity tables drawn straight from a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from tracekit.figures.style import BOX, TICK_SIZE, color_bar, finish, frame, plain, styles, ticked

if TYPE_CHECKING:
    import pandas as pd

_PATTERNS = ("", "/", ".", "x", "-", "+")
"""Fill patterns of bars, one per series."""
_BLUES: dict[str, Any] = {"colorscale": "Blues", "zmin": 0, "zmax": 1}
"""Of maps of shares."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """The table that a chart shows, and its titles."""

    frame: pd.DataFrame
    """A row per point or bar."""
    x: str
    """Column of the horizontal axis."""
    y: str
    """Column of the vertical axis."""
    series: str
    """Column that names the line or bar of a row; search methods have their usual colours."""
    title_of: Callable[[str], str] = str
    """Printed name of a line or bar."""
    axis_titles: tuple[str, str]
    """Titles of the horizontal and the vertical axis, with units."""
    title: str
    subtitle: str = ""


def lines(
    chart: Chart, *, reference: tuple[float, str] | None = None, log_x: bool = False
) -> go.Figure:
    """A line per series; rows without a y value are left out.

    Args:
        chart: Table and titles.
        reference: Height and name of a horizontal line.
        log_x: Whether the horizontal axis is logarithmic.
    """
    import pandas as pd

    frame, (x_title, y_title) = chart.frame, chart.axis_titles
    figure = go.Figure()
    for label, (color, symbol, dash) in styles(frame[chart.series]).items():
        points = frame[(frame[chart.series] == label) & frame[chart.y].notna()]
        hover = f"{chart.title_of(label)}<br>{x_title}: %{{x:.4g}}<br>{y_title}: %{{y:.4g}}"
        figure.add_scatter(
            x=points[chart.x],
            y=points[chart.y],
            name=plain(chart.title_of(label)),
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(points) < 14 else 5},
            hovertemplate=f"{hover}<extra></extra>",
        )
    if reference is not None:
        line = {"color": "black", "width": 1.5, "dash": "dot"}
        note = {"text": reference[1], "font_size": TICK_SIZE}
        figure.add_hline(reference[0], annotation=note, annotation_position="top left", line=line)
    x_axis: dict[str, Any] = {"rangemode": "tozero"}
    values = frame[chart.x]
    if log_x:
        x_axis = {"type": "log", "dtick": 1}
    elif pd.api.types.is_integer_dtype(values) and len(frame) and values.max() <= 16:
        x_axis["dtick"] = 1 if values.max() <= 8 else 2
    figure.update_xaxes(exponentformat="power", **x_axis)
    figure.update_yaxes(rangemode="tozero")
    return _finish(figure, chart)


def bars(chart: Chart, *, log_y: bool = False) -> go.Figure:
    """A group of bars per x value, one bar of each series.

    Args:
        chart: Table and titles.
        log_y: Whether heights are logarithmic, where they differ by more than a decade.
    """
    frame = chart.frame
    figure = go.Figure()
    for rank, (label, (color, _, _)) in enumerate(styles(frame[chart.series]).items()):
        rows = frame[frame[chart.series] == label]
        pattern = {"shape": _PATTERNS[rank % len(_PATTERNS)], "bgcolor": color, "fgcolor": "white"}
        hover = f"%{{x}}<br>{chart.title_of(label)}<br>{chart.axis_titles[1]}: %{{y:.4g}}"
        figure.add_bar(
            x=rows[chart.x],
            y=rows[chart.y],
            name=plain(chart.title_of(label)),
            marker={"color": color, "line": {"color": "black", "width": 1}, "pattern": pattern},
            hovertemplate=f"{hover}<extra></extra>",
        )
    heights = frame[chart.y]
    is_wide = log_y and len(frame) and heights.max() > 10 * heights.min() > 0
    y_axis: dict[str, Any] = {"type": "log", "dtick": 1} if is_wide else {"rangemode": "tozero"}
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(**y_axis)
    figure.update_layout(barmode="group")
    return _finish(figure, chart)


def _finish(figure: go.Figure, chart: Chart) -> go.Figure:
    x_title, y_title = chart.axis_titles
    figure.update_xaxes(title_text=x_title)
    figure.update_yaxes(title_text=y_title, exponentformat="power")
    figure.update_layout(showlegend=True)
    return finish(frame(figure), chart.title, chart.subtitle)


def similarities(frame: pd.DataFrame, *, title: str, subtitle: str = "") -> go.Figure:
    """A square table of Jaccard similarities, in [0, 1], with the numbers in the cells."""
    labels = list(map(plain, frame.columns))
    figure = go.Figure(
        go.Heatmap(
            z=frame.to_numpy(),
            x=labels,
            y=labels,
            **_BLUES,
            texttemplate="%{z:.2f}",
            textfont={"size": TICK_SIZE},
            hovertemplate="%{y} and %{x}<br>Jaccard similarity: %{z:.3f}<extra></extra>",
            colorbar=color_bar("Jaccard"),
        )
    )
    figure.update_xaxes(ticked(labels, tickangle=-90))
    figure.update_yaxes(ticked(labels, is_down=True))
    return finish(figure, title, subtitle, plot=(300, 300))


_ROW, _GAP = 22.0, 0.45
"""Height of a row, in pixels, and of the gap between heads, in rows."""
_PLOT = 270.0
_MOST_NUMBERS = 7
"""Columns up to which cells hold their values."""


@dataclass(frozen=True, kw_only=True)
class HeadRow:
    """A head in one run."""

    head: str
    run: str
    values: Sequence[float]
    """Attention to each place."""
    beside: str
    """On the right."""
    hover: Sequence[str]
    """Text at the pointer, by place."""


def attention_map(
    rows: Sequence[HeadRow], places: Sequence[str], *, beside: str, title: str, subtitle: str
) -> go.Figure:
    """Draws rows from top to bottom, those of one head together; `beside` heads the numbers."""
    edges, middles = [0.0], []
    z: list[Sequence[float | None]] = []
    texts: list[Sequence[str]] = []
    hover: list[Sequence[str]] = []
    is_short = len(places) <= _MOST_NUMBERS
    empty = [""] * len(places)
    for row, before in zip(rows, [None, *rows], strict=False):
        if before is not None and before.head != row.head:
            edges.append(edges[-1] + _GAP)
            z, texts, hover = [*z, [None] * len(places)], [*texts, empty], [*hover, empty]
        edges.append(edges[-1] + 1)
        middles.append(edges[-1] - 0.5)
        z, hover = [*z, row.values], [*hover, row.hover]
        texts.append([f"{value:.2f}".lstrip("0") if is_short else "" for value in row.values])
    figure = go.Figure(
        go.Heatmap(
            z=z,
            x=list(range(len(places))),
            y=edges,
            text=texts,
            texttemplate="%{text}",
            textfont={"size": TICK_SIZE},
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
            hoverongaps=False,
            **_BLUES,
            showscale=not is_short,
            colorbar=color_bar("attention"),
        )
    )
    note = {"xref": "x domain", "x": 1, "xshift": 8, "xanchor": "left", "showarrow": False}
    note["font"] = {"size": TICK_SIZE}
    for row, y in zip(rows, middles, strict=True):
        figure.add_annotation(**note, yref="y", y=y, text=row.beside)
    figure.add_annotation(**note, yref="y domain", y=1, yanchor="bottom", text=beside)
    names = [f"{plain(row.head)} {row.run}".strip() for row in rows]
    figure.update_yaxes(
        **BOX, tickvals=middles, ticktext=names, range=[edges[-1], 0], showgrid=False
    )
    is_upright = max(map(len, places)) * 8.0 * len(places) > _PLOT
    figure.update_xaxes(ticked(list(map(plain, places)), tickangle=-90 if is_upright else 0))
    return finish(figure, title, subtitle, plot=(_PLOT, _ROW * edges[-1]), grows="rows")
