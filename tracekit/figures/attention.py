"""Attention of heads by place, two runs of each below one another, and a number beside each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tracekit.figures.style import BOX, TICK_SIZE, add_margins, color_bar, plain, set_titles

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
            colorscale="Blues",
            zmin=0,
            zmax=1,
            showscale=not is_short,
            colorbar=color_bar("attention", x=1.28),
        )
    )
    for row, y in zip(rows, middles, strict=True):
        note = {"xref": "x domain", "x": 1, "xshift": 8, "xanchor": "left", "yref": "y", "y": y}
        figure.add_annotation(text=row.beside, showarrow=False, font={"size": TICK_SIZE}, **note)
    head = {"xref": "x domain", "x": 1, "xshift": 8, "xanchor": "left", "yref": "y domain", "y": 1}
    figure.add_annotation(
        text=beside, showarrow=False, font={"size": TICK_SIZE}, yanchor="bottom", **head
    )
    names = [f"{plain(row.head)} {row.run}".strip() for row in rows]
    figure.update_yaxes(
        **BOX, tickvals=middles, ticktext=names, range=[edges[-1], 0], showgrid=False
    )
    longest = max(map(len, places))
    is_upright = longest * 8.0 * len(places) > _PLOT
    figure.update_xaxes(
        **BOX,
        tickvals=list(range(len(places))),
        ticktext=list(map(plain, places)),
        tickangle=-90 if is_upright else 0,
        range=[-0.5, len(places) - 0.5],
        showgrid=False,
    )
    below = 28.0 + 8.0 * longest if is_upright else 40.0
    margins = {
        "l": 24.0 + 7.6 * max(map(len, names)),
        "r": 70.0 if is_short else 168.0,
        "t": 88.0,
        "b": below,
    }
    add_margins(figure, margins, _PLOT, _ROW * edges[-1])
    return set_titles(figure, title, subtitle)
