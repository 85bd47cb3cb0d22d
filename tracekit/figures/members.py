"""Members of a set: values as a waterfall, and a network of those that act together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tracekit.figures.style import (
    BOX,
    FONT,
    GRID,
    TICK_SIZE,
    add_margins,
    error_bars,
    plain,
    set_titles,
)

_MORE, _LESS = "#D55E00", "#0072B2"
"""Colours of values above and below 0."""
_TOTAL = "#7F7F7F"
_BAR = 26.0
"""Height of a bar, in pixels."""
_PLOT = 340.0
_LARGEST_NODE = 44.0
"""Diameter of the node of the largest value, in pixels."""
_WIDEST_EDGE = 7.0
_ROW = 74.0
"""Height of a layer in the network, in pixels."""
_COLUMN = 84.0


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


def waterfall(members: Members, *, value_title: str, title: str, subtitle: str) -> go.Figure:
    """Values from 0 to their sum, one bar after the other from top to bottom, with intervals."""
    names, values = list(map(plain, members.names)), list(members.values)
    ends = [sum(values[: rank + 1]) for rank in range(len(values))]
    total = ends[-1]
    figure = go.Figure()
    figure.add_bar(
        x=[*values, total],
        y=[*names, "all"],
        base=[0, *ends[:-1], 0],
        orientation="h",
        marker={
            "color": [*(_MORE if value >= 0 else _LESS for value in values), _TOTAL],
            "line": {"color": "black", "width": 1},
        },
        customdata=[*_texts(members), f"all members: {total:.4g}"],
        hovertemplate="%{customdata}<extra></extra>",
        width=0.72,
        showlegend=False,
    )
    bars = error_bars(values, members.low, members.high, color="black", thickness=1.4, width=4)
    figure.add_scatter(
        x=ends,
        y=names,
        mode="markers",
        marker={"size": 1, "color": "black"},
        error_x=bars,
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_vline(x=0, line={"color": "black", "width": 1})
    figure.update_xaxes(**BOX, title=plain(value_title), gridcolor=GRID)
    figure.update_yaxes(**BOX, autorange="reversed", showgrid=False)
    longest = max(len(name) for name in [*names, "all"])
    margins = {"l": 22.0 + 8.2 * longest, "r": 24.0, "t": 70.0, "b": 62.0}
    add_margins(figure, margins, _PLOT, _BAR * (len(names) + 1))
    return set_titles(figure, title, subtitle)


def _texts(members: Members) -> list[str]:
    rows = zip(members.names, members.values, members.low, members.high, members.hover, strict=True)
    return [
        f"{plain(name)}: {value:.4g} ({low:.4g} to {high:.4g})<br>{text}"
        for name, value, low, high, text in rows
    ]


def network(
    members: Members, layers: Sequence[int], edges: Sequence[Edge], *, title: str, subtitle: str
) -> go.Figure:
    """Members by layer, joined by edges.

    The area of a node is the size of its value, the width of an edge that of its own: orange above
    0, blue below.
    """
    rows = [[n for n, at in enumerate(layers) if at == layer] for layer in sorted({*layers})]
    widest = max(map(len, rows))
    spots = {
        n: (column + (widest - len(row)) / 2, rank)
        for rank, row in enumerate(rows)
        for column, n in enumerate(row)
    }
    figure = go.Figure()
    strongest = max((abs(edge.value) for edge in edges), default=1.0)
    for edge in edges:
        _add_edge(figure, edge, spots[edge.first], spots[edge.second], strongest)
    largest = max(map(abs, members.values)) or 1.0
    figure.add_scatter(
        x=[spots[n][0] for n in range(len(layers))],
        y=[spots[n][1] for n in range(len(layers))],
        mode="markers+text",
        text=list(map(plain, members.names)),
        textposition="bottom center",
        textfont={"size": TICK_SIZE, "color": "black"},
        marker={
            # The area is proportional to the value.
            "size": [max(4.0, _LARGEST_NODE * (abs(v) / largest) ** 0.5) for v in members.values],
            "color": [_MORE if value >= 0 else _LESS for value in members.values],
            "line": {"color": "black", "width": 1},
            "opacity": 1,
        },
        customdata=_texts(members),
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )
    figure.update_xaxes(visible=False, range=[-0.7, widest - 0.3])
    figure.update_yaxes(
        title="layer",
        ticks="",
        zeroline=False,
        tickmode="array",
        tickvals=list(range(len(rows))),
        ticktext=list(map(str, sorted({*layers}))),
        range=[len(rows) - 0.35, -0.85],
        gridcolor="#e8e8e8",
    )
    margins = {"l": 62.0, "r": 24.0, "t": 70.0, "b": 24.0}
    add_margins(figure, margins, max(_PLOT, _COLUMN * widest), max(150.0, _ROW * len(rows)))
    figure.update_layout(font=FONT)
    return set_titles(figure, title, subtitle)


def _add_edge(
    figure: go.Figure,
    edge: Edge,
    start: tuple[float, float],
    end: tuple[float, float],
    strongest: float,
) -> None:
    (x0, y0), (x1, y1) = start, end
    # Bent, so that a line between two members does not pass through a third: over those of its
    # layer, beside those between layers.
    over = 0.5 + 0.22 * abs(x1 - x0) if y0 == y1 else 0.18 * (x1 - x0)
    middle = (x0 + x1) / 2 + 0.18 * (y1 - y0), (y0 + y1) / 2 - over
    steps = [step / 16 for step in range(17)]
    figure.add_scatter(
        x=[(1 - t) ** 2 * x0 + 2 * t * (1 - t) * middle[0] + t**2 * x1 for t in steps],
        y=[(1 - t) ** 2 * y0 + 2 * t * (1 - t) * middle[1] + t**2 * y1 for t in steps],
        mode="lines",
        line={
            "color": _MORE if edge.value > 0 else _LESS,
            "width": max(1.0, _WIDEST_EDGE * abs(edge.value) / strongest),
            "dash": "solid" if edge.value > 0 else "dot",
        },
        hoverinfo="text",
        text=edge.hover,
        showlegend=False,
    )
