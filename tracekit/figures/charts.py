"""Lines, bars and similarity tables of a DataFrame; rows of attention, and of strengths.

And values against the number of components: lines with intervals, and a second axis of shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go

from tracekit._util.deferred import pd
from tracekit._util.markup import interval_text
from tracekit.figures import style
from tracekit.figures.layout import text_width

_PATTERNS = ("", "/", ".", "x", "-", "+")
"""Fill patterns of bars, one per series."""
_BLUES: dict[str, Any] = {"colorscale": "Blues", "zmin": 0, "zmax": 1}
"""Of maps of shares."""
_BESIDE: dict[str, Any] = {"xref": "x domain", "x": 1, "xshift": 8, "xanchor": "left"}
_BESIDE |= {"showarrow": False, "font": {"size": style.TICK_SIZE}}
"""Of texts on the right of a plot."""


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
    frame, (x_title, y_title) = chart.frame, chart.axis_titles
    figure = go.Figure()
    for label, (color, symbol, dash) in style.styles(frame[chart.series]).items():
        points = frame[(frame[chart.series] == label) & frame[chart.y].notna()]
        hover = f"{chart.title_of(label)}<br>{x_title}: %{{x:.4g}}<br>{y_title}: %{{y:.4g}}"
        figure.add_scatter(
            x=points[chart.x],
            y=points[chart.y],
            name=style.plain(chart.title_of(label)),
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(points) < 14 else 5},
            hovertemplate=f"{hover}<extra></extra>",
        )
    if reference is not None:
        line = {"color": "black", "width": 1.5, "dash": "dot"}
        note = {"text": reference[1], "font_size": style.TICK_SIZE}
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
    for rank, (label, (color, _, _)) in enumerate(style.styles(frame[chart.series]).items()):
        rows = frame[frame[chart.series] == label]
        pattern = {"shape": _PATTERNS[rank % len(_PATTERNS)], "bgcolor": color, "fgcolor": "white"}
        hover = f"%{{x}}<br>{chart.title_of(label)}<br>{chart.axis_titles[1]}: %{{y:.4g}}"
        figure.add_bar(
            x=rows[chart.x],
            y=rows[chart.y],
            name=style.plain(chart.title_of(label)),
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


def _finish(figure: go.Figure, chart: Chart, **size: Any) -> go.Figure:
    x_title, y_title = chart.axis_titles
    figure.update_xaxes(title_text=x_title)
    figure.update_yaxes(title_text=y_title, exponentformat="power")
    figure.update_layout(showlegend=True)
    return style.finish(style.frame(figure), chart.title, chart.subtitle, **size)


def similarities(frame: pd.DataFrame, *, title: str, subtitle: str = "") -> go.Figure:
    """A square table of Jaccard similarities, in [0, 1], with the numbers in the cells."""
    labels = list(map(style.plain, frame.columns))
    figure = go.Figure(
        go.Heatmap(
            z=frame.to_numpy(),
            x=labels,
            y=labels,
            **_BLUES,
            texttemplate="%{z:.2f}",
            textfont={"size": style.TICK_SIZE},
            hovertemplate="%{y} and %{x}<br>Jaccard similarity: %{z:.3f}<extra></extra>",
            colorbar=style.color_bar("Jaccard"),
        )
    )
    figure.update_xaxes(style.axis_with_labels(labels, tickangle=-90))
    figure.update_yaxes(style.axis_with_labels(labels, is_down=True))
    return style.finish(figure, title, subtitle, plot=(300, 300))


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
            textfont={"size": style.TICK_SIZE},
            customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
            hoverongaps=False,
            **_BLUES,
            showscale=not is_short,
            colorbar=style.color_bar("attention"),
        )
    )
    for row, y in zip(rows, middles, strict=True):
        figure.add_annotation(**_BESIDE, yref="y", y=y, text=row.beside)
    figure.add_annotation(**_BESIDE, yref="y domain", y=1, yanchor="bottom", text=beside)
    names = [f"{style.plain(row.head)} {row.run}".strip() for row in rows]
    figure.update_yaxes(
        **style.BOX, tickvals=middles, ticktext=names, range=[edges[-1], 0], showgrid=False
    )
    angle = -90 if max(map(len, places)) * 8.0 * len(places) > _PLOT else 0
    figure.update_xaxes(style.axis_with_labels(list(map(style.plain, places)), tickangle=angle))
    return style.finish(figure, title, subtitle, plot=(_PLOT, _ROW * edges[-1]), grows="rows")


_STRENGTH_PLOT, _STRENGTH_ROW = 250.0, 62.0
"""Width of the plot of strengths, and height of one of its rows, in pixels."""
_APART = 0.17
"""How far the set stands above the middle of its row, and random sets below it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Strength:
    """A row: the strength of a set on one data set."""

    name: str
    metric: str
    n: str
    """How many examples, in words."""
    value: float
    low: float
    """Low end of its interval."""
    high: float
    """High end."""
    controls: Sequence[float]
    """Strengths of random sets."""
    hover: str
    """Text at the pointer, below the name."""
    beside: str = ""
    """Text on the right."""


def strengths(
    rows: Sequence[Strength], *, beside: str, value_title: str, title: str, subtitle: str
) -> go.Figure:
    """Points with intervals from top to bottom, crosses for random sets; `beside` heads texts."""
    n, figure = len(rows), go.Figure()
    color, symbol, _ = style.CONTROL
    controls = [(x, number) for number, row in enumerate(rows) for x in row.controls]
    figure.add_scatter(
        x=[x for x, _ in controls],
        y=[number + _APART for _, number in controls],
        mode="markers",
        name="random sets",
        marker={"symbol": f"{symbol}-thin", "size": 7, "line": {"color": color, "width": 1.2}},
        hovertemplate="random set: %{x:.4g}<extra></extra>",
    )
    ends = [[row.value for row in rows], [row.low for row in rows], [row.high for row in rows]]
    figure.add_scatter(
        x=ends[0],
        y=[number - _APART for number in range(n)],
        mode="markers",
        name="the set",
        marker={"symbol": "circle", "size": 8, "color": style.SELECTED, "line": {"width": 1}},
        error_x=style.error_bars(*ends),
        customdata=[
            style.interval_hover(row.name, row.value, row.low, row.high, row.hover) for row in rows
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure.add_annotation(**_BESIDE, yref="y domain", y=1, yanchor="bottom", text=beside)
    for number, row in enumerate(rows):
        if row.beside:
            figure.add_annotation(**_BESIDE, yref="y", y=number, align="left", text=row.beside)
    texts = [f"{style.plain(row.name)}<br>{style.plain(row.metric)}<br>n = {row.n}" for row in rows]
    figure.update_yaxes(style.axis_with_labels(texts, is_down=True, tickmode="array"))
    figure.update_xaxes(**style.BOX, title=value_title, gridcolor=style.GRID)
    largest = max([*ends[2], *(x for x, _ in controls)])
    figure.update_xaxes(range=[-0.04 * largest, 1.06 * largest])
    plot = _STRENGTH_PLOT, _STRENGTH_ROW * n
    return style.finish(figure, title, subtitle, plot=plot, grows="rows")


_SCATTER_PLOT = (style.WIDTH - 90.0, 330.0)
_MANY, _PLACES = 2000, (120, 92)
"""Points beyond which one is drawn at each place, and the columns and rows of places."""


def scatter(chart: Chart, line: tuple[float, float], n_outliers: int) -> go.Figure:
    """A point per row, the first `n_outliers` marked and labelled, and a line by slope and start.

    Of more than 2000 others, one point is drawn at each place. A label without room is left out.
    """
    values = chart.frame[[chart.x, chart.y]]
    room = 0.08 * (values.max() - values.min()).replace(0, 1)
    low, high = values.min() - room, values.max() + room
    places, legend = (values - low) / (high - low), "components"
    outliers, others = chart.frame[:n_outliers], chart.frame[n_outliers:]
    if len(others) > _MANY:
        is_new = ~(places[n_outliers:] * _PLACES).astype(int).duplicated()
        legend += f" (one at each place, {is_new.sum():,} of {len(others):,})"
        others = others[is_new]
    figure, ends = go.Figure(), [low[chart.x], high[chart.x]]
    figure.add_scatter(
        x=ends,
        y=[line[1] + line[0] * end for end in ends],
        name="y = x" if line == (1, 0) else "equal standard scores",
        mode="lines",
        line={"color": "black", "width": 1.2, "dash": "dot"},
    )
    taken = [(across - 0.02, across + 0.02, up) for across, up in places[:n_outliers].to_numpy()]
    labels, sides = [""] * len(outliers), ["top left"] * len(outliers)
    rows = zip(outliers[chart.series], values.to_numpy(), places.to_numpy(), strict=False)
    for number, (name, (x, y), (across, up)) in enumerate(rows):
        # Texts stand away from the line, and take more of the plot in print.
        width = text_width(name, 1.3 * style.TICK_SIZE) / _SCATTER_PLOT[0]
        is_above = y > line[1] + line[0] * x
        middle = up + (0.05 if is_above else -0.05)
        for side, start in (("left", across - width), ("right", across))[:: 1 if is_above else -1]:
            end, beside = start + width, [box for box in taken if abs(middle - box[2]) < 0.045]
            if start > 0 and end < 1 and not any(a < end and start < b for a, b, _ in beside):
                labels[number] = style.plain(name)
                sides[number] = f"{'top' if is_above else 'bottom'} {side}"
                taken.append((start, end, middle))
                break
    for rows, name, color, symbol, size in (
        (others, legend, style.BELOW, "circle", 5),
        (outliers, "farthest from the line", style.SELECTED, "diamond", 9),
    ):
        figure.add_scatter(
            x=rows[chart.x],
            y=rows[chart.y],
            name=name,
            mode="markers" if rows is others else "markers+text",
            marker={"color": color, "symbol": symbol, "size": size, "line": {"width": 0.5}},
            text=None if rows is others else labels,
            textposition=None if rows is others else sides,
            textfont={"size": style.TICK_SIZE},
            cliponaxis=False,
            customdata=list(map(style.plain, rows[chart.series])),
            hovertemplate=f"%{{customdata}}<br>{chart.axis_titles[0]}: %{{x:.4g}}<br>"
            f"{chart.axis_titles[1]}: %{{y:.4g}}<extra></extra>",
        )
    figure.update_xaxes(range=ends)
    figure.update_yaxes(range=[low[chart.y], high[chart.y]])
    return _finish(figure, chart, plot=_SCATTER_PLOT)


_UNSEEN = {"mode": "markers", "marker_opacity": 0, **style.QUIET}
"""Of points that only make room."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """One line, or the points of one, with the text of every point."""

    name: str
    """In the legend."""
    sizes: Sequence[int]
    """Number of components of each point."""
    values: Sequence[float]
    style: tuple[str, str, str]
    """Colour, marker and dash, as from `styles`."""
    hover: Sequence[str]
    """Text of each point at the pointer, below the name and the size."""
    low: Sequence[float] | None = None
    """Low end of the interval of each point; None: there are none."""
    high: Sequence[float] | None = None
    """High end of each."""
    is_band: bool = False
    """Whether intervals are a band around the line instead of bars."""
    is_hollow: bool = False
    """Whether markers are hollow, so that those below can be seen, and the line starts at 0, 0.

    A single point has no line."""
    mode: str = "lines+markers"
    """Marks that are drawn, as plotly calls them."""
    rank: int = 0
    """Place in the legend."""
    in_legend: bool = True

    @classmethod
    def with_intervals(
        cls,
        name: str,
        sizes: Sequence[int],
        values: Sequence[float],
        intervals: Sequence[tuple[float, float]],
        *,
        label: str,
        **fields: Any,
    ) -> Line:
        """A line whose points have intervals; the text of each gives both after the `label`."""
        points = zip(values, intervals, strict=True)
        hover = [f"{label}: {value:.4g} ({interval_text(*ends)})" for value, ends in points]
        # Plotly draws no end that is not finite.
        ends = [[end if isfinite(end) else nan for end in pair] for pair in intervals]
        low, high = zip(*ends, strict=True)
        return cls(name=name, sizes=sizes, values=values, hover=hover, low=low, high=high, **fields)


def size_lines(
    lines: Sequence[Line],
    *,
    n_components: int,
    largest: int,
    value_title: str,
    title: str,
    subtitle: str,
    full: float | None = None,
    log_x: bool = False,
    log_y: bool = False,
    keys: Mapping[str, str] = MappingProxyType({}),
) -> go.Figure:
    """Lines over the number of components, the last one on top.

    The axis of shares ends at `largest` components. At the value of all components, `full`, there
    is a horizontal line; without it, at 0 and 1. Axes are logarithmic with `log_x` and `log_y`;
    values that are not positive are then missing. `keys` are further entries of the legend, each
    with its marker.
    """
    figure = go.Figure()
    for each in lines:
        _add(figure, each, n_components, has_origin=not log_y)
    for name, symbol in keys.items():
        style.add_key(
            figure, name, legendrank=1100, marker={"symbol": symbol, "size": 9, "color": "black"}
        )
    figure.update_xaxes(title_text="number of components", rangemode="tozero")
    figure.update_yaxes(title_text=value_title, rangemode="tozero", exponentformat="power")
    if full is None:
        for height in (0, 1):
            figure.add_hline(y=height, line={"color": "black", "width": 1, "dash": "dot"})
    else:
        line = {"color": "black", "width": 1.5, "dash": "dot"}
        figure.add_hline(full, line=line)
        style.add_key(
            figure, f"all {n_components} components", legendrank=1100, mode="lines", line=line
        )
        # A point without colour keeps the line off the frame.
        figure.add_scatter(x=[0], y=[1.05 * full], **_UNSEEN)
    figure.update_layout(showlegend=True)
    style.frame(figure)
    # A second axis on top, with the share of all components.
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 25)
    last = 100 * largest / n_components
    step = next((each for each in steps if last <= 6 * each), 20)
    shares = [step * k for k in range(1, int(last / step + 1e-9) + 1)]
    if log_x:
        shares = [10.0**k for k in range(-4, 3) if 10.0**k <= last]
    # An axis without a trace is not drawn.
    figure.add_scatter(x=[largest], y=[0], xaxis="x2", **_UNSEEN)
    places = [share * n_components / 100 for share in shares]
    texts = [f"{share:g} %" for share in shares]
    ticks = {"tickvals": places, "ticktext": texts, "ticks": "outside"}
    line = {"linecolor": "black", "showgrid": False, "zeroline": False}
    figure.update_layout(xaxis2={"overlaying": "x", "matches": "x", "side": "top", **ticks, **line})
    if log_x:
        figure.update_xaxes(type="log", rangemode="normal")
        figure.update_layout(xaxis_dtick=1)
    if log_y:
        figure.update_yaxes(type="log", rangemode="normal")
    return style.finish(figure, title, subtitle)


def _add(figure: go.Figure, line: Line, n: int, *, has_origin: bool) -> None:
    (color, symbol, dash), name = line.style, style.plain(line.name)
    stroke, bars = {"color": color, "dash": dash, "width": 2}, None
    if line.low is not None and line.high is not None:
        bars = style.error_bars(line.values, line.low, line.high, color=color, thickness=1, width=3)
        if line.is_band:
            x, y = [*line.sizes, *line.sizes[::-1]], [*line.high, *line.low[::-1]]
            band = {"fill": "toself", "fillcolor": color, "opacity": 0.2, "line": {"width": 0}}
            figure.add_scatter(x=x, y=y, mode="lines", **band, **style.QUIET)
    if line.is_hollow and len(line.sizes) > 1 and has_origin:
        start = {"x": [0, line.sizes[0]], "y": [0, line.values[0]]}
        figure.add_scatter(**start, mode="lines", line=stroke, **style.QUIET)
    few, many = (9, 6) if line.is_hollow else (8, 5)
    marker = {"color": color, "symbol": symbol, "size": few if len(line.sizes) < 14 else many}
    if line.is_hollow:
        marker |= {"color": "white", "line": {"color": color, "width": 2}}
    figure.add_scatter(
        x=line.sizes,
        y=line.values,
        name=name,
        legendrank=1000 + line.rank,
        showlegend=line.in_legend,
        mode=line.mode,
        line=stroke,
        marker=marker,
        error_y=None if line.is_band else bars,
        customdata=[
            f"{name}<br>{size} of {n} components ({100 * size / n:.1f} %)<br>{text}"
            for size, text in zip(line.sizes, line.hover, strict=True)
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
