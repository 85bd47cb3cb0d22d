"""Strengths with intervals, a row each, beside those of random sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tracekit.figures import style

_ROW = 62.0
"""Height of a row, in pixels."""
_PLOT = 250.0
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
    note = {"xref": "x domain", "x": 1, "xshift": 8, "xanchor": "left", "showarrow": False}
    note["font"] = {"size": style.TICK_SIZE}
    figure.add_annotation(**note, yref="y domain", y=1, yanchor="bottom", text=beside)
    for number, row in enumerate(rows):
        if row.beside:
            figure.add_annotation(**note, yref="y", y=number, align="left", text=row.beside)
    texts = [f"{style.plain(row.name)}<br>{style.plain(row.metric)}<br>n = {row.n}" for row in rows]
    figure.update_yaxes(style.ticked(texts, is_down=True, tickmode="array"))
    figure.update_xaxes(**style.BOX, title=value_title, gridcolor=style.GRID)
    largest = max([*ends[2], *(x for x, _ in controls)])
    figure.update_xaxes(range=[-0.04 * largest, 1.06 * largest])
    return style.finish(figure, title, subtitle, plot=(_PLOT, _ROW * n), grows="rows")
