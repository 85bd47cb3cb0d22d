"""Members by layer, joined by arrows: who acts on the metric through whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, degrees
from typing import Any

import plotly.graph_objects as go

from tracekit.figures.members import bend_line, layer_axis, write_at
from tracekit.figures.style import ABOVE, BELOW, finish, plain

_PLOT = 400.0
"""Width of the plot, in pixels."""
_ROW = 62.0
"""Between rows of a plot that is no wider, in pixels; in print all become equally wide."""
_BOX = (58.0, 24.0)
"""Least width, and height of a node, in pixels."""
_ASIDE = (-0.4, 0.3, -0.1, 0.5, -0.25, 0.1)
"""How far nodes of one row after another stand aside, as shares of the room beside them."""
_WIDEST = 6.0
_GROUND = "rgba(255, 255, 255, 0.85)"
"""Colour below texts."""
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


def path_network(
    names: Sequence[str],
    layers: Sequence[float | None],
    arrows: Sequence[Arrow],
    *,
    title: str,
    subtitle: str,
    quantity: str = "effect",
    is_signed: bool = True,
) -> go.Figure:
    """Draws nodes in a row for each layer that has any, and arrows between them.

    Rows are as far apart whatever their layers, and so are nodes of a row. Of nodes without a layer
    the last stands above all others, another one below them. The width of an arrow is its size;
    above 0 it is orange and solid, below it blue and dashed. Arrows that are not sure are half as
    wide, with an open head.
    """
    rows = sorted({layer for layer in layers if layer is not None}) or [0.0]
    spots, right = _spots(layers, rows, max(_BOX[0], 10 + 8.0 * max(map(len, names))))
    row = _ROW * right / _PLOT
    spots = [(x, row * y) for x, y in spots]
    lines = _lines(arrows, spots, right)
    figure = go.Figure()
    strongest = max((abs(arrow.value) for arrow in arrows), default=1.0)
    shown: set[str] = set()
    by_size = sorted(zip(arrows, lines, strict=True), key=lambda each: abs(each[0].value))
    for arrow, points in by_size:
        side = f" {'above' if arrow.value > 0 else 'below'} 0" if is_signed else ""
        name = quantity + side
        line, head = _traces(arrow, points, strongest)
        figure.add_scatter(**line, name=name, showlegend=name not in shown)
        figure.add_scatter(**head, showlegend=False)
        shown.add(name)
    for arrow, points in zip(arrows, lines, strict=True):
        write_at(figure, arrow.letter, points[-4], xshift=-7, bgcolor=_GROUND)
    for name, spot in zip(names, spots, strict=True):
        frame = {"bordercolor": "black", "borderwidth": 1, "borderpad": 3}
        write_at(figure, plain(name), spot, bgcolor=_GROUND, **frame)
    ticks: dict[int, float] = {}
    for number, layer in enumerate(rows):
        # MLPs stand half a layer above, without a tick of their own.
        ticks.setdefault(int(layer), row * number)
    bottom, top = (end(y for _, y in spots) for end in (min, max))
    figure.update_xaxes(visible=False, range=[0, right])
    figure.update_yaxes(layer_axis([*ticks.values()], [*ticks]), range=[bottom - 16, top + 16])
    figure.update_layout(showlegend=bool(arrows))
    return finish(figure, title, subtitle, plot=(right, top - bottom + 32))


def _spots(
    layers: Sequence[float | None], rows: Sequence[float], width: float
) -> tuple[list[tuple[float, float]], float]:
    """Places of nodes, in pixels from the left and in rows from below, and the width of all."""
    by_row = [[n for n, layer in enumerate(layers) if layer == row] for row in rows]
    right = max(_PLOT, 1.15 * width * max(map(len, by_row)))
    places: dict[int, tuple[float, float]] = {}
    for number, nodes in enumerate(by_row):
        cell = right / max(1, len(nodes))
        # One node above another would hide arrows between others.
        aside = _ASIDE[number % len(_ASIDE)] * (cell - width)
        for rank, node in enumerate(nodes):
            places[node] = (rank + 0.5) * cell + aside, number
    ends = {n: -1.0 if n < len(layers) - 1 else float(len(rows)) for n in range(len(layers))}
    return [places.get(node, (right / 2, ends[node])) for node in range(len(layers))], right


def _lines(
    arrows: Sequence[Arrow], spots: Sequence[tuple[float, float]], right: float
) -> list[_Line]:
    """Bent lines from the upper edge of one node to the lower of another, where heads spread."""
    lines = []
    for arrow in arrows:
        (x0, y0), (x1, y1) = spots[arrow.start], spots[arrow.end]
        beside = sorted(spots[each.start][0] for each in arrows if each.end == arrow.end)
        share = (beside.index(x0) + 0.5) / len(beside) - 0.5
        x1, y0, y1 = x1 + 0.9 * _BOX[0] * share, y0 + _BOX[1] / 2, y1 - _BOX[1] / 2 - 8
        # Bent, the further the longer it is, so that it passes by nodes in between; to the inside
        # where it would leave the plot.
        bend = 0.12 * (y1 - y0) * (1 if x0 <= x1 else -1)
        bend *= 1 if 0 <= (x0 + x1) / 2 + bend <= right else -1
        lines.append(bend_line((x0, y0), ((x0 + x1) / 2 + bend, (y0 + y1) / 2), (x1, y1), 24))
    return lines


def _traces(arrow: Arrow, points: _Line, strongest: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """An arrow as plotly draws it: its line, and its head."""
    color = ABOVE if arrow.value > 0 else BELOW
    width = _WIDEST * abs(arrow.value) / strongest * (1 if arrow.is_sure else 0.5)
    line = {"color": color, "width": max(1.2, width)}
    line["dash"] = "solid" if arrow.value > 0 else "dash"
    x, y = zip(*points, strict=True)
    head = {
        "symbol": "triangle-up" if arrow.is_sure else "triangle-up-open",
        "size": 7 + width,
        "color": color,
        # In degrees from upwards.
        "angle": degrees(atan2(x[-1] - x[-3], y[-1] - y[-3])),
    }
    texts = {"hoverinfo": "text", "text": arrow.hover}
    return (
        {"x": x, "y": y, "mode": "lines", "line": line, **texts},
        {"x": x[-1:], "y": y[-1:], "mode": "markers", "marker": head, **texts},
    )
