"""Maps of pairs: interactions of components, similarities of selections."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import plotly.graph_objects as go
from jaxtyping import Float
from torch import Tensor

from tracekit.figures.style import WIDTH, finish, tick_places


@runtime_checkable
class PairEffects(Protocol):
    """What a pairwise map shows; `tracekit.results.interactions.InteractionGrid` is one."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the components."""
        ...

    @property
    def singles(self) -> Float[Tensor, " component"]:
        """Effect of each alone."""
        ...

    @property
    def pairs(self) -> Float[Tensor, "component component"]:
        """Effect of each two together."""
        ...

    @property
    def interaction(self) -> Float[Tensor, "component component"]:
        """What they do together less what each does alone."""
        ...

    @property
    def metric_axis(self) -> str:
        """Name and unit of the effect."""
        ...

    @property
    def title(self) -> str:
        """Shown above the map."""
        ...


def interaction_heatmap(grid: PairEffects) -> go.Figure:
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
    ticks = tick_places(n, most=18)
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
        f"together less each alone; {grid.metric_axis}",
        height=WIDTH - 20,
    )
    return finished.update_layout(font_size=15 if n <= 18 else 12)
