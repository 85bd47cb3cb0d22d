"""Members of a set: values as a waterfall, and networks of those that act together.

Arrows between members by layer say who acts on the metric through whom.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from tracekit.figures import style
from tracekit.figures.layout import text_width

_BAR = 26.0
"""Height of a bar, in pixels."""
_PLOT = 340.0
"""Width of a plot, in pixels."""
_LARGEST_NODE = 44.0
"""Diameter of the node of the largest value, in pixels."""
_WIDEST_EDGE = 7.0
_ROW = 100.0
"""Height of a layer in the network, in pixels."""
_TALLEST = 500.0
"""Height of all layers in the network, in pixels."""
_COLUMN = 84.0
_MOST_VALUES = 8
"""Edges whose values are written, where there is room."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Members:
    """The members of a set, each with a value."""

    names: Sequence[str]
    values: Sequence[float]
    low: Sequence[float]
    """Low end of the interval of each value."""
    high: Sequence[float]
    """High end of each."""
    hover: Sequence[str]
    """Text of each at the pointer, below its name."""


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Two members that act together."""

    first: int
    second: int
    """Their places among the members."""
    value: float
    """How much more (above 0) or less they do together."""
    hover: str
    """Text at the pointer."""
    is_sure: bool = True
    """Whether it is significant; else its interval only leaves out 0."""

    @property
    def meaning(self) -> str:
        """What colour and dash say, for the legend."""
        return ("more together" if self.value > 0 else "less together") + (
            ", p &lt; .05" if self.is_sure else ", p \u2265 .05"
        )


def waterfall(members: Members, *, value_title: str, title: str, subtitle: str) -> go.Figure:
    """Values from 0 to their sum, one bar after the other from top to bottom, with intervals."""
    names, values = list(map(style.plain, members.names)), list(members.values)
    ends = [sum(values[: rank + 1]) for rank in range(len(values))]
    total = ends[-1]
    figure = go.Figure()
    colors = [*(style.ABOVE if value >= 0 else style.BELOW for value in values), style.CONTROL[0]]
    figure.add_bar(
        x=[*values, total],
        y=[*names, "all"],
        base=[0, *ends[:-1], 0],
        orientation="h",
        marker={"color": colors, "line": {"color": "black", "width": 1}},
        customdata=[*_texts(members), f"all members: {total:.4g}"],
        hovertemplate="%{customdata}<extra></extra>",
        width=0.72,
        showlegend=False,
    )
    bars = style.error_bars(values, members.low, members.high)
    dots = {"size": 1, "color": "black"}
    figure.add_scatter(x=ends, y=names, mode="markers", marker=dots, error_x=bars, **style.QUIET)
    figure.add_vline(x=0, line={"color": "black", "width": 1})
    _add_signs(figure, values, "square")
    interval = {"symbol": "line-ew-open", "size": 13, "color": "black"}
    style.add_key(figure, "95 % interval", marker=interval)
    figure.update_layout(showlegend=True)
    figure.update_xaxes(**style.BOX, title=style.plain(value_title), gridcolor=style.GRID)
    rows = [*names, "all"]
    figure.update_yaxes(style.axis_with_labels(rows, is_down=True))
    return style.finish(figure, title, subtitle, plot=(_PLOT, _BAR * len(rows)), grows="rows")


def _add_signs(figure: go.Figure, values: Sequence[float], symbol: str, noun: str = "") -> None:
    """Entries of the legend for the colours of values."""
    if max(values) >= 0:
        style.add_key(figure, f"{noun}above 0", **style.shape(style.ABOVE, symbol=symbol))
    if min(values) < 0:
        style.add_key(figure, f"{noun}below 0", **style.shape(style.BELOW, symbol=symbol))


def _texts(members: Members) -> list[str]:
    rows = zip(members.names, members.values, members.low, members.high, members.hover, strict=True)
    return [style.interval_hover(*row) for row in rows]


def network(
    members: Members, layers: Sequence[int], edges: Sequence[Edge], *, title: str, subtitle: str
) -> go.Figure:
    """Members by layer, joined by edges; distances of layers are true.

    The area of a node is the size of its value, the width of an edge that of its own: orange above
    0, blue below. Unsure edges are dashed and half as wide; the widest show their values.
    """
    used = sorted({*layers})
    height = min(_TALLEST, max(150.0, _ROW * (used[-1] - used[0] + 1)))
    # Layers that a row is high.
    row = max(1.0, _ROW * (used[-1] - used[0] + 1) / height)
    # Layers nearer than a row share their columns, so that no name lies on a node.
    bands = [[used[0]]]
    for upper, lower in pairwise(used):
        bands[-1:] = [[*bands[-1], lower]] if lower - upper < row else [bands[-1], [lower]]
    by_band = [
        [n for layer in band for n, at in enumerate(layers) if at == layer] for band in bands
    ]
    widest = max(map(len, by_band))
    # Room for the edge from the first to the last of a row.
    above = max(0.6, 0.35 + 0.11 * widest)
    spots = {
        n: (column + (widest - len(band)) / 2, layers[n])
        for band in by_band
        for column, n in enumerate(band)
    }
    figure = go.Figure()
    _add_signs(figure, members.values, "circle", "node: ")
    strongest = max((abs(edge.value) for edge in edges), default=1.0)
    shown: set[str] = set()
    # Where texts stand: below nodes their names.
    taken = [(x, y + 0.3 * row) for x, y in spots.values()]
    for edge in sorted(edges, key=lambda edge: (not edge.is_sure, -abs(edge.value))):
        drawn, (x, y) = _curve(edge, spots[edge.first], spots[edge.second], strongest, row)
        figure.add_scatter(**drawn, showlegend=edge.meaning not in shown)
        shown.add(edge.meaning)
        is_free = all(abs(x - x0) > 0.5 or abs(y - y0) > 0.25 * row for x0, y0 in taken)
        if is_free and len(taken) < len(spots) + _MOST_VALUES:
            write_at(figure, f"{edge.value:+.2g}".replace("-", "\u2212"), (x, y))
            taken.append((x, y))
    largest = max(map(abs, members.values)) or 1.0
    # The area is proportional to the value.
    sizes = [max(4.0, _LARGEST_NODE * (abs(v) / largest) ** 0.5) for v in members.values]
    for n, (name, value) in enumerate(zip(members.names, members.values, strict=True)):
        text = f"{style.plain(name)}<br>{value:.3g}".replace("-", "\u2212")
        write_at(figure, text, spots[n], yanchor="top", yshift=-sizes[n] / 2)
    colors = [style.ABOVE if value >= 0 else style.BELOW for value in members.values]
    outline = {"line": {"color": "black", "width": 1}, "opacity": 1}
    figure.add_scatter(
        x=[spots[n][0] for n in range(len(layers))],
        y=[spots[n][1] for n in range(len(layers))],
        mode="markers",
        text=list(map(style.plain, members.names)),
        marker={"size": sizes, "color": colors, **outline},
        customdata=_texts(members),
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )
    figure.update_xaxes(visible=False, range=[-0.7, widest - 0.3])
    figure.update_yaxes(layer_axis(used, used), range=[used[-1] + 0.6 * row, used[0] - above * row])
    plot = max(_PLOT, _COLUMN * widest), height + (above - 0.4) * _ROW
    figure.update_layout(showlegend=True)
    return style.finish(figure, title, subtitle, plot=plot)


def layer_axis(places: Sequence[float], layers: Sequence[int]) -> dict[str, Any]:
    """The axis of a network, with a line at the place of each layer."""
    ticks = {"tickmode": "array", "tickvals": places, "ticktext": list(map(str, layers))}
    return {**ticks, "title": "layer", "ticks": "", "zeroline": False, "gridcolor": "#e8e8e8"}


def write_at(figure: go.Figure, text: str, at: tuple[float, float], **options: Any) -> None:
    """Writes a text so that lines below it do not cross it."""
    font, ground = {"size": style.TICK_SIZE}, "rgba(255, 255, 255, 0.75)"
    more = {"showarrow": False, "font": font, "bgcolor": ground, "borderpad": 0, **options}
    figure.add_annotation(x=at[0], y=at[1], text=text, **more)


def _curve(
    edge: Edge, start: tuple[float, float], end: tuple[float, float], strongest: float, row: float
) -> tuple[dict[str, Any], tuple[float, float]]:
    """An edge as plotly draws it, and its middle."""
    (x0, y0), (x1, y1) = start, end
    # Bent, so that a line between two members does not pass through a third: over those of its
    # layer, beside those between layers.
    over = 0.5 + 0.22 * abs(x1 - x0) if y0 == y1 else 0.18 * (x1 - x0)
    mx, my = (x0 + x1) / 2 + 0.18 * (y1 - y0) / row, (y0 + y1) / 2 - over * row
    weights = [((1 - t) ** 2, 2 * t * (1 - t), t**2) for t in (n / 16 for n in range(17))]
    x = [a * x0 + b * mx + c * x1 for a, b, c in weights]
    y = [a * y0 + b * my + c * y1 for a, b, c in weights]
    width = _WIDEST_EDGE * abs(edge.value) / strongest
    line = {
        "color": style.ABOVE if edge.value > 0 else style.BELOW,
        "width": max(1.0, width if edge.is_sure else width / 2),
        "dash": "dash" if not edge.is_sure else "solid" if edge.value > 0 else "dot",
    }
    texts = {"hoverinfo": "text", "text": edge.hover, "name": edge.meaning}
    return {"x": x, "y": y, "mode": "lines", "line": line, **texts}, (x[8], y[8])


_HIGHEST_ROW, _FLATTEST_ROW, _TALLEST_PATHS = 62.0, 44.0, 800.0
"""Between rows of a plot that is no wider, in pixels, and less where all rows would be higher."""
_BOX = 24.0
"""Height of a node, in pixels."""
_CLEAR, _STUB = 4.0, 17.0
"""Pixels between a line and a box that it passes by, and of a line upright below a head."""
_ASIDE = (-0.4, 0.3, -0.1, 0.5, -0.25, 0.1)
"""How far nodes of one row after another stand aside, as shares of the room beside them."""
_WIDEST, _HEAD = 6.0, 13.0
"""Largest width of an arrow, and least between two heads, in pixels."""
_Line = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """A path between two nodes."""

    start: int
    end: int
    """Places among the nodes."""
    value: float
    letter: str
    """Written at its head; empty: none."""
    hover: str
    """Text at the pointer."""
    is_sure: bool
    """Whether it is significant; else its interval only leaves out 0."""


@dataclass(frozen=True)
class _Box:
    """Where a node stands, in pixels from the left, and in rows from below."""

    x: float
    row: int
    width: float


def path_network(
    names: Sequence[str],
    layers: Sequence[float | None],
    arrows: Sequence[Arrow],
    *,
    title: str,
    subtitle: str,
    quantity: str = "effect",
    is_signed: bool = True,
    notes: Sequence[str] = (),
) -> go.Figure:
    """Draws nodes in a row for each layer that has any, and arrows between them.

    Rows are as far apart whatever their layers, and so are nodes of a row. Of nodes without a layer
    the last stands above all others, another one below them. The width of an arrow is its size;
    above 0 it is orange and solid, below it blue and dashed. Arrows that are not sure are half as
    wide, with an open head. Lines pass by the nodes in between. `notes` end the legend.
    """
    rows = sorted({layer for layer in layers if layer is not None}) or [0.0]
    boxes, right = _boxes(names, layers, rows, arrows)
    row = max(_FLATTEST_ROW, min(_HIGHEST_ROW, _TALLEST_PATHS / len(rows))) * right / _PLOT
    lines = _lines(arrows, boxes, right, row)
    figure = go.Figure()
    strongest = max((abs(arrow.value) for arrow in arrows), default=1.0)
    sides = {True: " above 0", False: " below 0"} if is_signed else defaultdict(str)
    for arrow, points in sorted(zip(arrows, lines, strict=True), key=lambda e: abs(e[0].value)):
        _add_arrow(figure, arrow, points, strongest, quantity + sides[arrow.value > 0])
    for share in (1, 0.25):
        line = {"color": style.CONTROL[0], "width": _WIDEST * share}
        size = f"{quantity} {chr(177) * is_signed}{style.two_digits(share * strongest)}"
        style.add_key(figure, size, mode="lines", line=line)
    if not all(arrow.is_sure for arrow in arrows):
        head = {"symbol": "arrow-open", "size": 11, "color": "black"}
        style.add_key(figure, "p \u2265 .05", marker=head)
    for note in notes:
        style.add_key(figure, note, marker={"color": "rgba(0, 0, 0, 0)"})
    for name, box in zip(names, boxes, strict=True):
        x, y = box.x, row * box.row
        ends = {"x0": x - box.width / 2, "x1": x + box.width / 2}
        ends |= {"y0": y - _BOX / 2, "y1": y + _BOX / 2}
        figure.add_shape(**ends, fillcolor="white", line={"color": "black", "width": 1})
        write_at(figure, style.plain(name), (x, y))
    ticks: dict[int, float] = {}
    for number, layer in enumerate(rows):
        # MLPs stand half a layer above, without a tick of their own.
        ticks.setdefault(int(layer), row * number)
    bottom, top = (row * end(box.row for box in boxes) for end in (min, max))
    figure.update_xaxes(visible=False, range=[-2, right + 2])
    figure.update_yaxes(layer_axis([*ticks.values()], [*ticks]), range=[bottom - 16, top + 16])
    figure.update_layout(showlegend=bool(arrows))
    return style.finish(figure, title, subtitle, plot=(right, top - bottom + 32))


def _boxes(
    names: Sequence[str],
    layers: Sequence[float | None],
    rows: Sequence[float],
    arrows: Sequence[Arrow],
) -> tuple[list[_Box], float]:
    """The nodes, as wide as their names and heads need, and the width of all."""
    n_heads = Counter(arrow.end for arrow in arrows)
    widths = [
        max(12 + text_width(name, style.TICK_SIZE), _HEAD * n_heads[n])
        for n, name in enumerate(names)
    ]
    by_row = [[n for n, layer in enumerate(layers) if layer == row] for row in rows]
    needed = [1.25 * len(each) * max(widths[n] for n in each) for each in by_row if each]
    right = max([_PLOT, *needed])
    places: dict[int, tuple[float, int]] = {}
    for number, nodes in enumerate(by_row):
        cell = right / max(1, len(nodes))
        # One node above another would hide arrows between others.
        aside = _ASIDE[number % len(_ASIDE)] * (cell - max((widths[n] for n in nodes), default=0))
        for rank, node in enumerate(nodes):
            places[node] = (rank + 0.5) * cell + aside, number
    ends = {n: -1 if n < len(layers) - 1 else len(rows) for n in range(len(layers))}
    boxes = [_Box(*places.get(n, (right / 2, ends[n])), width) for n, width in enumerate(widths)]
    return boxes, right


def _lines(arrows: Sequence[Arrow], boxes: Sequence[_Box], right: float, row: float) -> list[_Line]:
    """Lines from the upper edge of one node to the lower of another, by the nodes in between."""
    lines, taken = [], defaultdict[float, list[float]](list)
    spans = defaultdict[int, list[tuple[float, float]]](list)
    for box in boxes:
        reach = box.width / 2 + _CLEAR
        spans[box.row].append((box.x - reach, box.x + reach))
    for arrow in arrows:
        start, end = boxes[arrow.start], boxes[arrow.end]
        x0 = _port(start, arrow, [each for each in arrows if each.start == arrow.start], boxes)
        x1 = _port(end, arrow, [each for each in arrows if each.end == arrow.end], boxes)
        low, high = row * start.row + _BOX / 2, row * end.row - _BOX / 2
        knots = {low: x0, high - _STUB: x1, high: x1}
        between = [(row * n, spans[n]) for n in range(start.row + 1, end.row)]
        is_behind = True
        while is_behind:
            is_behind = _lead_by(knots, between, right, taken)
        # Its end is one piece, of which the head takes a part.
        steps = (low + (high - _STUB - low) * step / 48 for step in range(49))
        heights = sorted({*knots, *steps})
        lines.append(list(zip(_x_at(knots, heights), heights, strict=True)))
    return lines


def _lead_by(
    knots: dict[float, float],
    between: Sequence[tuple[float, list[tuple[float, float]]]],
    right: float,
    taken: dict[float, list[float]],
) -> bool:
    """Leads a line upright through the nearest gap of the first row where it is behind a node.

    Returns whether there is such a row; in others, the line has moved.
    """
    for middle, spans in between:
        edges = [middle - _BOX / 2, middle + _BOX / 2]
        low, high = sorted(_x_at(knots, edges))
        if all(high <= left or low >= end for left, end in spans):
            continue
        at, used = (low + high) / 2, taken[middle]
        # If possible, not on another line.
        _, x = min(
            (abs(x - at) + 40 * any(abs(x - other) < 6 for other in used), x)
            for left, end in spans
            for step in (1, 7, 13, 19)
            for x in (left - step, end + step)
            if 0 <= x <= right and not any(a < x < b for a, b in spans)
        )
        used.append(x)
        knots |= dict.fromkeys(edges, x)
        return True
    return False


def _port(box: _Box, arrow: Arrow, sharing: list[Arrow], boxes: Sequence[_Box]) -> float:
    """Where an arrow leaves or enters a box, in the order of the boxes at the other ends."""
    ranked = sorted(sharing, key=lambda each: boxes[each.end].x + boxes[each.start].x)
    share = (ranked.index(arrow) + 0.5) / len(ranked) - 0.5
    return box.x + (box.width - 8) * share


def _x_at(knots: dict[float, float], heights: Sequence[float]) -> list[float]:
    """Where a line through some points is; between two of them it goes beyond neither."""
    from scipy.interpolate import PchipInterpolator

    at = sorted(knots)
    return PchipInterpolator(at, [knots[y] for y in at])(heights).tolist()


def _add_arrow(figure: go.Figure, arrow: Arrow, points: _Line, strongest: float, name: str) -> None:
    """Adds an arrow: its line, its head, and its letter."""
    width = _WIDEST * abs(arrow.value) / strongest * (1 if arrow.is_sure else 0.5)
    color, dash = (style.ABOVE, "solid") if arrow.value > 0 else (style.BELOW, "dash")
    x, y = zip(*points, strict=True)
    # The point of this symbol is its tip.
    symbol = "arrow" if arrow.is_sure else "arrow-open"
    head = {"symbol": symbol, "size": 13 + width, "color": color}
    line = {"color": color, "width": max(1.2, width), "dash": dash, "backoff": 0.85 * head["size"]}
    texts = {"hoverinfo": "text", "text": arrow.hover, "showlegend": False}
    figure.add_scatter(x=x, y=y, mode="lines", line=line, **texts)
    figure.add_scatter(x=x[-1:], y=y[-1:], mode="markers", marker=head, **texts)
    style.add_key(figure, name, mode="lines", line={**line, "width": 2})
    write_at(figure, arrow.letter, (x[-1], y[-1] - _STUB), xanchor="right", xshift=-6 - width / 2)
