"""The pairwise interaction map: how far the effects of two components are from additive.

A grid of both directions has its own direction above the diagonal and the other one below it.
"""

from __future__ import annotations

from itertools import groupby

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.components import kind_of
from tracekit.errors import ConfigError
from tracekit.figures.style import BOX, TICK_SIZE, add_margins, plain, set_titles
from tracekit.results.interactions import InteractionGrid, kinds_of_pairs

_PLOT = 360.0
"""Width and height of the map, in pixels."""
_MARKED = 5
"""Largest interactions, whose signs are written into the map."""
_LEAST_MARKED = 0.02
"""Share of the largest colour below which no sign is written."""
_MOST_DOTTED = 24
"""Components up to which significant pairs have a dot."""


def interaction_heatmap(grid: InteractionGrid, *, clip: float = 1.0) -> go.Figure:
    """Pairwise map of l({i, j}) - l({i}) - l({j}): red above additive, blue below.

    The signs of the five largest interactions stand in their cells, for print in grey. With up to
    24 components, a dot in the corner of a cell says that the corrected p value is below 0.05. A
    grid of both directions has its own above the diagonal and the other one below it.

    Args:
        grid: The measured pairs.
        clip: Quantile of the sizes of interactions, in (0, 1], beyond which colours no longer
            change. Below 1 a single strong pair does not make all others pale; the ends of the
            colour bar then say that values lie beyond.

    Raises:
        ConfigError: `clip` is not in (0, 1].
    """
    if not 0 < clip <= 1:
        raise ConfigError(f"clip is {clip}. It is a quantile, above 0 and at most 1.")
    n = len(grid.labels)
    values = _shown(grid)
    is_pair = ~torch.eye(n, dtype=torch.bool)
    sizes = values[is_pair].abs()
    bound = sizes.quantile(clip).item() or sizes.max().item() or 1.0
    hover = _hover(grid)
    figure = go.Figure(
        go.Heatmap(
            z=[[None if v != v else v for v in row] for row in values.tolist()],
            x=list(range(n)),
            y=list(range(n)),
            text=hover,
            hovertemplate="%{text}<extra></extra>",
            colorscale="RdBu_r",
            zmid=0,
            zmin=-bound,
            zmax=bound,
            xgap=0.5 if n > 40 else 1,
            ygap=0.5 if n > 40 else 1,
            colorbar=color_bar(
                bound,
                beyond=sizes.max().item() > bound * (1 + 1e-6),
                note="dot: p &lt; .05" if _has_dots(grid) else "",
            ),
        )
    )
    figure.update_layout(plot_bgcolor="#d0d0d0")
    _mark_largest(figure, grid, values, bound)
    _mark_significant(figure, grid, values, bound)
    _label_axes(figure, grid)
    figure.update_xaxes(**BOX, range=[-0.5, n - 0.5], constrain="domain", showgrid=False)
    figure.update_yaxes(
        **BOX, range=[n - 0.5, -0.5], scaleanchor="x", constrain="domain", showgrid=False
    )
    add_margins(figure, {"l": 78.0, "r": 92.0, "t": 70.0, "b": 72.0}, _PLOT, _PLOT)
    formula = "l({i, j}) \u2212 l({i}) \u2212 l({j})"
    subtitle = f"{formula}, l: {grid.axis_label}"
    if grid.opposite is not None:
        subtitle = f"above: {grid.direction}; below: {grid.opposite.direction}"
    if grid.given:
        named = ", ".join(map(plain, grid.given[:3])) + (", ..." if len(grid.given) > 3 else "")
        subtitle = f"{formula if grid.opposite is None else subtitle}; given {named}"
    title = f"Interactions: {plain(grid.title)}" if grid.title else "Interactions"
    return set_titles(figure, title, subtitle)


def _shown(grid: InteractionGrid) -> Float[Tensor, "component component"]:
    """Interactions as drawn: below the diagonal those of the other direction, if there are any."""
    values = grid.interaction
    return values if grid.opposite is None else values.triu() + grid.opposite.interaction.tril(-1)


def _hover(grid: InteractionGrid) -> list[list[str]]:
    """What each cell says."""
    labels, n = [plain(label) for label in grid.labels], len(grid.labels)
    texts = [[f"{labels[i]}<br>alone: {grid.singles[i]:.4g}"] * n for i in range(n)]
    below = grid if grid.opposite is None else grid.opposite
    kinds = None if grid.opposite is None else kinds_of_pairs(grid, grid.opposite)
    for drawn, is_below in ((grid, False), (below, True)):
        interaction = drawn.interaction
        for rank, (i, j) in enumerate(grid.index_pairs):
            pair = (i, j)
            first, second = (j, i) if is_below else pair
            text = f"{labels[first]} and {labels[second]}<br>interaction: {interaction[pair]:.4g}"
            if drawn.interaction_interval is not None and drawn.p is not None:
                low, high = drawn.interaction_interval[rank].tolist()
                text += f" ({low:.3g} to {high:.3g}), p = {drawn.p[rank]:.2g}"
            text += (
                f"<br>together: {drawn.pairs[pair]:.4g}"
                f"<br>alone: {drawn.singles[first]:.4g}, {drawn.singles[second]:.4g}"
            )
            text += "" if kinds is None else f"<br>{drawn.direction}; {kinds[rank]}"
            texts[first][second] = text
    return texts


def color_bar(bound: float, *, beyond: bool = False, note: str = "") -> dict[str, object]:
    """The colour bar of a map of interactions.

    Args:
        bound: Largest interaction that has a colour of its own.
        beyond: Whether there are larger ones.
        note: Below its title.
    """
    title = f"interaction<br>{note or ' '}"
    bar: dict[str, object] = {
        "title": {"text": title, "side": "top", "font": {"size": TICK_SIZE}},
        "tickfont": {"size": TICK_SIZE},
        "thickness": 13,
        "outlinewidth": 1,
        "exponentformat": "power",
    }
    if beyond:
        ticks = [-bound, -bound / 2, 0, bound / 2, bound]
        texts = [f"{tick:.2g}".replace("-", "\u2212") for tick in ticks]
        bar |= {
            "tickvals": ticks,
            "ticktext": [f"\u25bc {texts[0]}", *texts[1:4], f"\u25b2 {texts[4]}"],
        }
    return bar


def _mark_largest(figure: go.Figure, grid: InteractionGrid, values: Tensor, bound: float) -> None:
    """Writes + or a minus sign into the cells of the largest interactions of each direction."""
    pairs = grid.index_pairs
    cells = []
    for transposed in (False, True):
        half = [(j, i) if transposed else (i, j) for i, j in pairs]
        largest = sorted(half, key=lambda cell: -abs(values[cell].item()))[:_MARKED]
        # A sign in a cell that looks white would claim what is hardly there.
        cells += [cell for cell in largest if abs(values[cell].item()) > _LEAST_MARKED * bound]
    figure.add_scatter(
        x=[j for _, j in cells],
        y=[i for i, _ in cells],
        text=["+" if values[cell] > 0 else "\u2212" for cell in cells],
        mode="text",
        textfont={
            "size": max(9, min(18, round(0.9 * _PLOT / len(grid.labels)))),
            "color": ["white" if abs(values[cell]) > 0.6 * bound else "black" for cell in cells],
        },
        hoverinfo="skip",
        showlegend=False,
    )


def _has_dots(grid: InteractionGrid) -> bool:
    return grid.p is not None and len(grid.labels) <= _MOST_DOTTED


def _mark_significant(
    figure: go.Figure, grid: InteractionGrid, values: Tensor, bound: float
) -> None:
    """Puts a dot into a corner of the cells of significant pairs, where cells have room for it."""
    n = len(grid.labels)
    if grid.p is None or not _has_dots(grid):
        return
    below = grid if grid.opposite is None else grid.opposite
    cells = []
    for rank, (i, j) in enumerate(grid.index_pairs):
        cells += [(i, j)] if (grid.significant or [])[rank] else []
        cells += [(j, i)] if (below.significant or [False] * len(grid.p))[rank] else []
    figure.add_scatter(
        x=[j + 0.32 for _, j in cells],
        y=[i - 0.32 for i, _ in cells],
        mode="markers",
        marker={
            "symbol": "circle",
            "size": max(3, min(7, round(_PLOT / n / 6))),
            "color": ["white" if abs(values[cell]) > 0.6 * bound else "black" for cell in cells],
        },
        hoverinfo="skip",
        showlegend=False,
    )


def _label_axes(figure: go.Figure, grid: InteractionGrid) -> None:
    """Two levels of labels, index and layer, and lines between layers; or plain names."""
    n = len(grid.labels)
    step = max(1, round(17 * n / _PLOT + 0.5)) if n > 18 else 1
    kinds = {component.kind for component in grid.components}
    if len(kinds) != 1 or kind_of(grid.components[0].kind).component_dim is None:
        ticks = list(range(0, n, step))
        names = [grid.labels[i] for i in ticks]
        figure.update_xaxes(tickvals=ticks, ticktext=names, tickangle=-90)
        figure.update_yaxes(tickvals=ticks, ticktext=names)
        return
    indices = [str(component.index) for component in grid.components]
    ticks = list(range(0, n, step))
    figure.update_xaxes(tickvals=ticks, ticktext=[indices[i] for i in ticks], tickangle=0)
    figure.update_yaxes(tickvals=ticks, ticktext=[indices[i] for i in ticks])
    first = 0
    for layer, members in groupby(component.layer for component in grid.components):
        size = len(list(members))
        middle = first + (size - 1) / 2
        text = f"layer {layer}" if size * _PLOT / n > 50 else str(layer)
        plain = {"showarrow": False, "font": {"size": TICK_SIZE}}
        figure.add_annotation(
            x=middle, xref="x", y=0, yref="y domain", yshift=-24, yanchor="top", text=text, **plain
        )
        figure.add_annotation(
            y=middle,
            yref="y",
            x=0,
            xref="x domain",
            xshift=-28,
            xanchor="right",
            textangle=-90,
            text=text,
            **plain,
        )
        first += size
        if first < n:
            line = {"type": "line", "line": {"color": "black", "width": 1}}
            figure.add_shape(
                x0=first - 0.5, x1=first - 0.5, y0=0, y1=1, yref="y domain", xref="x", **line
            )
            figure.add_shape(
                y0=first - 0.5, y1=first - 0.5, x0=0, x1=1, xref="x domain", yref="y", **line
            )
    noun = kind_of(grid.components[0].kind).noun
    figure.update_xaxes(title_text=noun, title_standoff=22)
