"""A square map of pairs: colour says how far two components are from additive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import plotly.graph_objects as go

from tracekit.figures import style

_PLOT = 360.0
"""Width and height of the map, in pixels."""
_MOST_GROUPS = 12
"""Groups beyond which only these are named, and not their rows."""
Cell = tuple[int, int]
"""Row and column."""
RING = "ring: interval<br>(95 %) without 0"
"""Note of maps that ring what is not significant but has an interval without 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PairMap:
    """A value for each ordered pair; those above and below the diagonal may mean two things."""

    labels: Sequence[str]
    """Of rows and columns."""
    groups: Sequence[tuple[str, str, int]] = ()
    """Long name, short name and number of neighbouring rows that belong together."""
    noun: str = ""
    """Title of the horizontal axis."""
    values: Sequence[Sequence[float | None]]
    """By row; None where there is no pair."""
    hover: Sequence[Sequence[str]]
    """Text at the pointer, by row."""
    bound: float
    """Size of the values with the darkest colours."""
    dotted: Iterable[Cell] = ()
    """Cells with a dot in the corner."""
    ringed: Iterable[Cell] = ()
    """Cells with a ring in the corner."""
    note: str = ""
    """Below the title of the colour bar."""


def pair_map(pairs: PairMap, *, title: str, subtitle: str) -> go.Figure:
    """Draws a map: red above 0, blue below, with signs where colours are lost in grey."""
    n, bound = len(pairs.labels), pairs.bound
    largest = max((abs(v) for row in pairs.values for v in row if v is not None), default=0.0)
    ticks = {}
    if largest > bound * (1 + 1e-6):
        ends = [-bound, -bound / 2, 0, bound / 2, bound]
        least, *inner, most = map(style.two_digits, ends)
        ticks = {"tickvals": ends, "ticktext": [f"\u25bc {least}", *inner, f"\u25b2 {most}"]}
    # Of many rows, only the strongest have a sign: it would be too small to read.
    faint = -(0.1 if n <= 24 else 0.5) * bound
    note = "<br>".join(filter(None, (f"\u2212: below {style.two_digits(faint)}", pairs.note)))
    figure = go.Figure(
        go.Heatmap(
            z=pairs.values,
            x=list(range(n)),
            y=list(range(n)),
            text=pairs.hover,
            hovertemplate="%{text}<extra></extra>",
            colorscale="RdBu_r",
            zmid=0,
            zmin=-bound,
            zmax=bound,
            xgap=0.5 if n > 40 else 1,
            ygap=0.5 if n > 40 else 1,
            colorbar=style.color_bar("interaction", note, exponentformat="power", **ticks),
        )
    )
    _mark(figure, pairs, faint)
    _label(figure, pairs)
    figure.update_xaxes(**style.BOX, range=[-0.5, n - 0.5], showgrid=False)
    figure.update_yaxes(**style.BOX, range=[n - 0.5, -0.5], showgrid=False)
    figure.update_layout(plot_bgcolor=style.UNSTUDIED)
    return style.finish(figure, title, subtitle, plot=(_PLOT, _PLOT))


def _mark(figure: go.Figure, pairs: PairMap, faint: float) -> None:
    """Writes signs into cells, and dots into their corners."""
    n = len(pairs.labels)

    def color(cell: Cell) -> str:
        return "white" if abs(pairs.values[cell[0]][cell[1]] or 0) > 0.6 * pairs.bound else "black"

    cells = [(i, j) for i in range(n) for j in range(n)]
    signed = [cell for cell in cells if (pairs.values[cell[0]][cell[1]] or 0) < faint]
    sign_size = max(9, min(18, round(0.9 * _PLOT / n)))
    dot_size = max(3, min(7, round(_PLOT / n / 6)))
    figure.add_scatter(
        x=[j for _, j in signed],
        y=[i for i, _ in signed],
        text=["\u2212"] * len(signed),
        mode="text",
        textfont={"size": sign_size, "color": list(map(color, signed))},
        **style.QUIET,
    )
    for cells, symbol in ((list(pairs.dotted), "circle"), (list(pairs.ringed), "circle-open")):
        if cells:
            figure.add_scatter(
                x=[j + 0.32 for _, j in cells],
                y=[i - 0.32 for i, _ in cells],
                mode="markers",
                marker={"symbol": symbol, "size": dot_size, "color": list(map(color, cells))},
                **style.QUIET,
            )


def _label(figure: go.Figure, pairs: PairMap) -> None:
    n, noun, groups = len(pairs.labels), pairs.noun, pairs.groups
    ticks, names = list(range(n)), list(map(style.plain, pairs.labels))
    is_upright = not groups and (n > 4 or max(map(len, names)) > 8)
    ends = list(accumulate(size for _, _, size in groups))
    if len(groups) > _MOST_GROUPS:
        # Groups alone have room.
        ticks = [end - (size + 1) / 2 for end, (_, _, size) in zip(ends, groups, strict=True)]
        names, noun = [short for _, short, _ in groups], "layer"
    figure.update_xaxes(tickvals=ticks, ticktext=names, tickangle=-90 if is_upright else 0)
    figure.update_yaxes(tickvals=ticks, ticktext=names)
    font = {"showarrow": False, "font": {"size": style.TICK_SIZE}}
    line = {"color": "black", "width": 1}
    for end, (long, short, size) in zip(ends, groups, strict=True):
        middle, text = end - (size + 1) / 2, long if size * _PLOT / n > 80 else short
        text = text if len(groups) <= _MOST_GROUPS else ""
        below = {"x": middle, "xref": "x", "y": 0, "yref": "y domain", "yshift": -24}
        figure.add_annotation(**below, yanchor="top", text=text, **font)
        beside = {"y": middle, "yref": "y", "x": 0, "xref": "x domain", "xshift": -28}
        figure.add_annotation(**beside, xanchor="right", textangle=-90, text=text, **font)
        if end < n:
            figure.add_vline(x=end - 0.5, line=line)
            figure.add_hline(y=end - 0.5, line=line)
    standoff = 22 if groups and len(groups) <= _MOST_GROUPS else 8
    figure.update_xaxes(title_text=noun, title_standoff=standoff)
