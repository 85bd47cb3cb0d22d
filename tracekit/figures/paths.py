"""Members by layer, joined by arrows: who acts on the metric through whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tracekit.figures import style
from tracekit.figures.layout import text_width
from tracekit.figures.members import layer_axis, write_at

_PLOT = 340.0
"""Width of the plot, in pixels."""
_ROW, _FLATTEST_ROW, _TALLEST = 62.0, 44.0, 800.0
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
    row = max(_FLATTEST_ROW, min(_ROW, _TALLEST / len(rows))) * right / _PLOT
    lines = _lines(arrows, boxes, right, row)
    figure = go.Figure()
    strongest = max((abs(arrow.value) for arrow in arrows), default=1.0)
    sides = {True: " above 0", False: " below 0"} if is_signed else defaultdict(str)
    for arrow, points in sorted(zip(arrows, lines, strict=True), key=lambda e: abs(e[0].value)):
        _draw(figure, arrow, points, strongest, quantity + sides[arrow.value > 0])
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
    right = max(
        _PLOT, *(1.25 * len(each) * max(widths[n] for n in each) for each in by_row if each)
    )
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


def _draw(figure: go.Figure, arrow: Arrow, points: _Line, strongest: float, name: str) -> None:
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
