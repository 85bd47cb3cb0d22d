"""The figure of side effects: a set on its own data and on others, beside random sets."""

from __future__ import annotations

import plotly.graph_objects as go

from tracekit.anatomy.side_effects import SideEffects
from tracekit.figures.style import BOX, CONTROL, GRID, TICK_SIZE, add_margins, plain, set_titles

_SET = "#D55E00"
_ROW = 62.0
"""Height of a data set, in pixels."""
_PLOT = 250.0
_APART = 0.17
"""How far the set stands above the middle of its row, and random sets below it."""


def side_effects(side: SideEffects) -> go.Figure:
    """Strength of a set on all data, with 95 % intervals; crosses are random sets of its layers.

    The column on the right is the selectivity. The numbers are those of `side.table`.
    """
    rows = side.table.to_dict("records")
    n, figure = len(rows), go.Figure()
    measured = (side.target, *side.others)
    color, symbol, _ = CONTROL
    figure.add_scatter(
        x=[x for each in measured for x in each.control_strengths.tolist()],
        y=[
            number + _APART
            for number, each in enumerate(measured)
            for _ in range(len(each.controls))
        ],
        mode="markers",
        name="random sets",
        marker={"symbol": f"{symbol}-thin", "size": 7, "line": {"color": color, "width": 1.2}},
        hovertemplate="random set: %{x:.4g}<extra></extra>",
    )
    figure.add_scatter(
        x=[row["strength"] for row in rows],
        y=[number - _APART for number in range(n)],
        mode="markers",
        name="the set",
        marker={"symbol": "circle", "size": 8, "color": _SET, "line": {"width": 1}},
        error_x={
            "array": [row["strength_high"] - row["strength"] for row in rows],
            "arrayminus": [row["strength"] - row["strength_low"] for row in rows],
            "color": "black",
            "thickness": 1.4,
            "width": 4,
        },
        customdata=[
            f"{plain(row['name'])}: {row['strength']:.4g} ({row['strength_low']:.4g} to "
            f"{row['strength_high']:.4g})<br>mean effect: {row['effect']:.4g}<br>p = {row['p']:.2g}"
            for row in rows
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    beside = {"xref": "x domain", "x": 1, "xshift": 8, "xanchor": "left", "showarrow": False}
    font = {"size": TICK_SIZE}
    figure.add_annotation(
        **beside, yref="y domain", y=1, yanchor="bottom", text="selectivity", font=font
    )
    for number, row in enumerate(rows[1:], start=1):
        text = (
            f"{row['selectivity']:.2f}<br>({row['selectivity_low']:.2f} to "
            f"{row['selectivity_high']:.2f})"
        ).replace("-", "\u2212")
        figure.add_annotation(**beside, yref="y", y=number, align="left", text=text, font=font)
    names = [plain(row["name"]) for row in rows]
    metrics = [plain(row["metric"]) for row in rows]
    figure.update_yaxes(
        **BOX,
        tickmode="array",
        tickvals=list(range(n)),
        ticktext=[f"{name}<br>{metric}" for name, metric in zip(names, metrics, strict=True)],
        range=[n - 0.5, -0.5],
        showgrid=False,
    )
    figure.update_xaxes(**BOX, title="strength (share of all components)", gridcolor=GRID)
    ends = [row["strength_high"] for row in rows]
    ends += [x for each in measured for x in each.control_strengths.tolist()]
    figure.update_xaxes(range=[-0.04 * max(ends), 1.06 * max(ends)], title_standoff=8)
    figure.update_layout(
        legend={
            "orientation": "h",
            "y": -62 / (_ROW * n),
            "yref": "paper",
            "yanchor": "top",
            "x": 0.5,
            "xanchor": "center",
            "font": {"size": TICK_SIZE},
        }
    )
    longest = max(map(len, [*names, *metrics]))
    margins = {"l": 22.0 + 7.4 * longest, "r": 126.0, "t": 88.0, "b": 92.0}
    add_margins(figure, margins, _PLOT, _ROW * n)
    title = f"{len(side.members)} components of {plain(side.model)}"
    return set_titles(figure, title, "mean absolute effect, as a share of all")
