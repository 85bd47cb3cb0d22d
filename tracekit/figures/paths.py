"""Members by layer, joined by arrows: who acts on the metric through whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, degrees
from typing import Any

import plotly.graph_objects as go

from tracekit.figures.members import bent, layer_axis, write_at
from tracekit.figures.style import ABOVE, BELOW, TICK_SIZE, finish, plain

_PLOT = 400.0
"""Width of the plot, in pixels."""
_LAYER, _LEAST, _MOST = 60.0, 200.0, 520.0
"""Height of a layer, and the least and the greatest of all, in pixels."""
_BOX = (58.0, 24.0)
"""Least width, and height of a node, in pixels."""
_COLUMNS = (0.14, 0.74, 0.44, 0.94, 0.29, 0.59)
"""Where members stand one after the other, as shares of the width, so that arrows spread."""
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
) -> go.Figure:
    """Draws nodes at their layers and arrows between them.

    Of nodes without a layer the last stands above all others, another one below them. The width of
    an arrow is its size; above 0 it is orange and solid, below it blue and dashed. Arrows that are
    not sure are half as wide, with an open head.
    """
    used = sorted(layer for layer in layers if layer is not None)
    scale = min(_MOST, max(_LEAST, _LAYER * (used[-1] - used[0]))) / max(0.5, used[-1] - used[0])
    spots = _spots(layers, used[0], scale, max(_BOX[0], 10 + 8.0 * max(map(len, names))))
    lines = _lines(arrows, spots)
    figure = go.Figure()
    strongest = max((abs(arrow.value) for arrow in arrows), default=1.0)
    shown: set[str] = set()
    for arrow, points in sorted(
        zip(arrows, lines, strict=True), key=lambda each: abs(each[0].value)
    ):
        name = "effect above 0" if arrow.value > 0 else "effect below 0"
        line, head = _traces(arrow, points, strongest)
        figure.add_scatter(**line, name=name, showlegend=name not in shown)
        figure.add_scatter(**head, showlegend=False)
        shown.add(name)
    for arrow, points in zip(arrows, lines, strict=True):
        write_at(figure, arrow.letter, points[-4], xshift=-7, bgcolor=_GROUND)
    for name, spot in zip(names, spots, strict=True):
        frame = {"bordercolor": "black", "borderwidth": 1, "borderpad": 3}
        write_at(figure, plain(name), spot, bgcolor=_GROUND, **frame)
    ticks: list[int] = []
    for layer in dict.fromkeys(map(int, used)):
        # As many as have room.
        if not ticks or (layer - ticks[-1]) * scale >= 1.3 * TICK_SIZE:
            ticks.append(layer)
    bottom, top = (end(y for _, y in spots) for end in (min, max))
    figure.update_xaxes(visible=False, range=[0, _PLOT])
    places = [(layer - used[0]) * scale for layer in ticks]
    figure.update_yaxes(layer_axis(places, ticks), range=[bottom - 16, top + 16])
    plot = _PLOT, top - bottom + 32
    figure.update_layout(showlegend=bool(arrows))
    return finish(figure, title, subtitle, plot=plot)


def _spots(
    layers: Sequence[float | None], first: float, scale: float, width: float
) -> list[tuple[float, float]]:
    """Places of nodes in pixels; none covers another where there is room."""
    spots: dict[int, tuple[float, float]] = {}
    for layer, node in sorted((layer, n) for n, layer in enumerate(layers) if layer is not None):
        y = (layer - first) * scale
        turn = len(spots) % len(_COLUMNS)
        columns = [_PLOT * share for share in (*_COLUMNS[turn:], *_COLUMNS[:turn])]
        free = (
            x
            for x in columns
            if all(abs(x - x0) > width or abs(y - y0) > _BOX[1] for x0, y0 in spots.values())
        )
        spots[node] = next(free, columns[0]), y
    heights = [y for _, y in spots.values()]
    above, below = (_PLOT / 2, max(heights) + 62.0), (_PLOT / 2, min(heights) - 62.0)
    last = len(layers) - 1
    return [spots.get(node, above if node == last else below) for node in range(len(layers))]


def _lines(arrows: Sequence[Arrow], spots: Sequence[tuple[float, float]]) -> list[_Line]:
    """Bent lines from the upper edge of one node to the lower of another, where heads spread."""
    lines = []
    for arrow in arrows:
        (x0, y0), (x1, y1) = spots[arrow.start], spots[arrow.end]
        beside = sorted(spots[each.start][0] for each in arrows if each.end == arrow.end)
        share = (beside.index(x0) + 0.5) / len(beside) - 0.5
        x1, y0, y1 = x1 + 0.9 * _BOX[0] * share, y0 + _BOX[1] / 2, y1 - _BOX[1] / 2 - 5
        # Bent, the further the longer it is, so that it passes by nodes in between.
        middle = (x0 + x1) / 2 + 0.12 * (y1 - y0) * (1 if x0 <= x1 else -1), (y0 + y1) / 2
        lines.append(bent((x0, y0), middle, (x1, y1), 24))
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
