"""The pairwise interaction map: how far the effects of two components are from additive."""

from __future__ import annotations

import plotly.graph_objects as go

from tracekit.figures.style import WIDTH, finish, tick_positions
from tracekit.results.interactions import InteractionGrid


def interaction_heatmap(grid: InteractionGrid) -> go.Figure:
    """Pairwise map of l({i, j}) - l({i}) - l({j}): red above additive, blue below."""
    values = grid.interaction
    bound = values.nan_to_num().abs().max().item() or 1.0
    n = len(grid.labels)
    hover = [
        [
            f"{grid.labels[i]}<br>alone: {grid.singles[i]:.4g}"
            if i == j
            else f"{grid.labels[i]} and {grid.labels[j]}<br>interaction: {values[i, j]:.4g}"
            f"<br>together: {grid.pairs[i, j]:.4g}"
            f"<br>alone: {grid.singles[i]:.4g}, {grid.singles[j]:.4g}"
            for j in range(n)
        ]
        for i in range(n)
    ]
    figure = go.Figure(
        go.Heatmap(
            z=[[None if v != v else v for v in row] for row in values.tolist()],
            text=hover,
            hovertemplate="%{text}<extra></extra>",
            colorscale="RdBu_r",
            zmid=0,
            zmin=-bound,
            zmax=bound,
            colorbar={
                "title": {"text": "interaction", "side": "top", "font": {"size": 13}},
                "thickness": 14,
                "exponentformat": "power",
            },
        )
    )
    ticks = tick_positions(n, most=18)
    names = [grid.labels[i] for i in ticks]
    figure.update_xaxes(
        tickvals=ticks, ticktext=names, tickangle=-90, showgrid=False, constrain="domain"
    )
    figure.update_yaxes(
        tickvals=ticks,
        ticktext=names,
        autorange="reversed",
        scaleanchor="x",
        constrain="domain",
        showgrid=False,
    )
    figure.update_layout(plot_bgcolor="#eeeeee")
    finished = finish(
        figure,
        grid.title or "Interactions",
        f"together less each alone; {grid.axis_label}",
        height=WIDTH - 20,
    )
    return finished.update_layout(font_size=15 if n <= 18 else 12)
