"""Members of a set: values as a waterfall, and a network of those that act together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from tracekit.figures import style

_BAR = 26.0
"""Height of a bar, in pixels."""
_PLOT = 340.0
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
    0, blue below. Edges that are not sure are dashed, and half as wide. The values of the widest
    edges stand at them.
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
