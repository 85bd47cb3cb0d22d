"""Figures of the anatomy of a set: who brings what, who interacts with whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from tracekit.anatomy.explanation import CONTEXTS, Explanation
from tracekit.figures.interactions import color_bar
from tracekit.figures.style import (
    BOX,
    FONT,
    TICK_SIZE,
    add_margins,
    plain,
    set_titles,
)

_MORE, _LESS = "#D55E00", "#0072B2"
"""Colours of what raises the effect and of what lowers it."""
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


def waterfall(why: Explanation) -> go.Figure:
    """Shapley values from the clean run to the effect of the set, one bar after the other.

    Lines are 95 % intervals over examples. The numbers are those of `why.table`.
    """
    table = why.table
    names = [plain(name) for name in table["component"]]
    values = table["value"].tolist()
    total = why.effect.mean().item()
    starts = [sum(values[:rank]) for rank in range(len(values))]
    figure = go.Figure()
    figure.add_bar(
        x=[*values, total],
        y=[*names, "all"],
        base=[*starts, 0],
        orientation="h",
        marker={
            "color": [*(_MORE if value >= 0 else _LESS for value in values), _TOTAL],
            "line": {"color": "black", "width": 1},
        },
        customdata=[
            *(
                f"{name}: {row['value']:.4g} ({row['value_low']:.4g} to {row['value_high']:.4g})"
                f"<br>alone: {row['alone']:.4g}<br>last: {row['last']:.4g}<br>{row['verdict']}"
                for name, row in zip(names, table.to_dict("records"), strict=True)
            ),
            f"all members: {total:.4g}",
        ],
        hovertemplate="%{customdata}<extra></extra>",
        width=0.72,
        showlegend=False,
    )
    ends = [start + value for start, value in zip(starts, values, strict=True)]
    figure.add_scatter(
        x=ends,
        y=names,
        mode="markers",
        marker={"size": 1, "color": "black"},
        error_x={
            "array": (table["value_high"] - table["value"]).tolist(),
            "arrayminus": (table["value"] - table["value_low"]).tolist(),
            "color": "black",
            "thickness": 1.4,
            "width": 4,
        },
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_vline(x=0, line={"color": "black", "width": 1})
    figure.update_xaxes(**BOX, title=plain(why.axis_label), gridcolor="#d9d9d9")
    figure.update_yaxes(**BOX, autorange="reversed", showgrid=False)
    longest = max(len(name) for name in [*names, "all"])
    margins = {"l": 22.0 + 8.2 * longest, "r": 24.0, "t": 70.0, "b": 62.0}
    add_margins(figure, margins, _PLOT, _BAR * (len(names) + 1))
    return set_titles(figure, _title(why), "Shapley values, with 95 % intervals over examples")


def member_heatmap(why: Explanation) -> go.Figure:
    """Interactions of all pairs: alone above the diagonal, in the tested context below it.

    Below is the average over subsets, or with more than 12 members the interaction within the set.
    The sign of a pair that interacts significantly stands in its cell. The numbers are those of
    `why.interactions`.
    """
    tested, context = why.tested_context, CONTEXTS[why.tested_context]
    labels = why.labels
    n, rank_of = len(labels), {label: rank for rank, label in enumerate(labels)}
    cells: list[list[float | None]] = [[None] * n for _ in labels]
    hover = [[plain(label)] * n for label in labels]
    signs: dict[tuple[int, int], str] = {}
    for row in why.interactions.to_dict("records"):
        first, second = sorted((rank_of[row["first"]], rank_of[row["second"]]))
        cells[first][second], cells[second][first] = row["alone"], row[tested]
        pair = f"{plain(row['first'])} and {plain(row['second'])}"
        for (i, j), name in (((first, second), "alone"), ((second, first), tested)):
            where = "alone" if name == "alone" else context
            hover[i][j] = (
                f"{pair}<br>{where}: {row[name]:.4g} "
                f"({row[f'{name}_low']:.4g} to {row[f'{name}_high']:.4g})"
            )
        hover[second][first] += f"<br>p = {row['p']:.2g} (Holm)"
        if row["significant"]:
            signs[second, first] = "+" if row[tested] > 0 else "\u2212"
    bound = max((abs(value) for row in cells for value in row if value is not None), default=1.0)
    bound = bound or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=cells,
            x=list(range(n)),
            y=list(range(n)),
            text=hover,
            hovertemplate="%{text}<extra></extra>",
            colorscale="RdBu_r",
            zmid=0,
            zmin=-bound,
            zmax=bound,
            xgap=1,
            ygap=1,
            colorbar=color_bar(bound),
        )
    )
    figure.add_scatter(
        x=[j for _, j in signs],
        y=[i for i, _ in signs],
        text=list(signs.values()),
        mode="text",
        textfont={
            "size": max(12, min(26, round(_PLOT / n / 1.6))),
            "color": [
                "white" if abs(cells[i][j] or 0) > 0.6 * bound else "black" for i, j in signs
            ],
        },
        hoverinfo="skip",
        showlegend=False,
    )
    ticks: dict[str, Any] = {
        "tickmode": "array",
        "tickvals": list(range(n)),
        "ticktext": [plain(label) for label in labels],
        "showgrid": False,
    }
    figure.update_xaxes(**BOX, **ticks, range=[-0.5, n - 0.5], tickangle=-90 if n > 4 else 0)
    figure.update_yaxes(**BOX, **ticks, range=[n - 0.5, -0.5])
    figure.update_layout(plot_bgcolor="#d0d0d0")
    longest = max(map(len, labels))
    margins = {"l": 22.0 + 8.2 * longest, "r": 92.0, "t": 70.0}
    margins["b"] = 22.0 + (8.2 * longest if n > 4 else 20)
    add_margins(figure, margins, _PLOT, _PLOT)
    return set_titles(
        figure, _title(why), f"above: alone; below: {context} (+, \u2212: p &lt; .05)"
    )


def member_network(why: Explanation) -> go.Figure:
    """Members by layer, joined where they interact significantly.

    The area of a node is its Shapley value, the width of a line the interaction, on average over
    subsets or, with more than 12 members, within the set: orange if the two
    do more together, blue if less. Nodes whose value is negative are blue.
    """
    components, labels = why.components, why.labels
    layers = sorted({component.layer for component in components})
    rows = [[n for n, each in enumerate(components) if each.layer == layer] for layer in layers]
    widest = max(map(len, rows))
    spots = {
        n: (column + (widest - len(row)) / 2, rank)
        for rank, row in enumerate(rows)
        for column, n in enumerate(row)
    }
    figure = go.Figure()
    joined = [row for row in why.interactions.to_dict("records") if row["significant"]]
    strongest = max((abs(row[why.tested_context]) for row in joined), default=1.0)
    for row in joined:
        _draw_edge(figure, why, row, spots, strongest)
    by_label = why.table.set_index("component")
    values = [by_label.loc[label, "value"] for label in labels]
    largest = max(map(abs, values)) or 1.0
    figure.add_scatter(
        x=[spots[n][0] for n in range(len(labels))],
        y=[spots[n][1] for n in range(len(labels))],
        mode="markers+text",
        text=[plain(label) for label in labels],
        textposition="bottom center",
        textfont={"size": TICK_SIZE, "color": "black"},
        marker={
            # The area is proportional to the value.
            "size": [max(4.0, _LARGEST_NODE * (abs(v) / largest) ** 0.5) for v in values],
            "color": [_MORE if value >= 0 else _LESS for value in values],
            "line": {"color": "black", "width": 1},
            "opacity": 1,
        },
        customdata=[
            f"{plain(label)}: {by_label.loc[label, 'value']:.4g} "
            f"({by_label.loc[label, 'value_low']:.4g} to {by_label.loc[label, 'value_high']:.4g})"
            f"<br>{by_label.loc[label, 'verdict']}"
            for label in labels
        ],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )
    figure.update_xaxes(visible=False, range=[-0.7, widest - 0.3])
    figure.update_yaxes(
        title="layer",
        ticks="",
        zeroline=False,
        tickmode="array",
        tickvals=list(range(len(layers))),
        ticktext=list(map(str, layers)),
        range=[len(layers) - 0.35, -0.85],
        gridcolor="#e8e8e8",
    )
    margins = {"l": 62.0, "r": 24.0, "t": 70.0, "b": 24.0}
    width = max(_PLOT, _COLUMN * widest)
    add_margins(figure, margins, width, max(150.0, _ROW * len(layers)))
    figure.update_layout(font=FONT)
    subtitle = "area: Shapley value; lines: interaction, p &lt; .05"
    return set_titles(figure, _title(why), subtitle)


def _draw_edge(
    figure: go.Figure,
    why: Explanation,
    row: dict[Any, Any],
    spots: Mapping[int, tuple[float, float]],
    strongest: float,
) -> None:
    labels, tested = why.labels, why.tested_context
    (x0, y0), (x1, y1) = (spots[labels.index(row[name])] for name in ("first", "second"))
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
            "color": _MORE if row[tested] > 0 else _LESS,
            "width": max(1.0, _WIDEST_EDGE * abs(row[tested]) / strongest),
            "dash": "solid" if row[tested] > 0 else "dot",
        },
        hoverinfo="text",
        text=(
            f"{plain(row['first'])} and {plain(row['second'])}: {row[tested]:+.4g} "
            f"({row[f'{tested}_low']:.4g} to {row[f'{tested}_high']:.4g}), p = {row['p']:.2g}"
        ),
        showlegend=False,
    )


def _title(why: Explanation) -> str:
    return f"{plain(why.dataset)} data, {plain(why.model)} model"
