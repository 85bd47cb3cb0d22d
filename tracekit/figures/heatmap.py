"""Selection heatmaps: which components, layer by layer, of one result or of several side by side.

A panel is a kind of component of one result: a cell per component, a row per layer, layer 0 on top.
Where a layer has too many components to show, a panel holds a bar per layer instead: the share of
the layer's components that is selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import plotly.graph_objects as go
import torch
from plotly.colors import sample_colorscale

from tracekit.components import ComponentGrid, kind_of
from tracekit.components.masks import Mask, ranking
from tracekit.errors import ConfigError
from tracekit.figures.style import (
    BOX,
    TICK_SIZE,
    WIDE,
    WIDTH,
    add_margins,
    data_and_model,
    plain,
    set_titles,
    styles,
    subtitle_size,
)
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult

if TYPE_CHECKING:
    from tracekit.results.comparison import Comparison

Color = Literal["selected", "soft", "score", "rank", "none"]
"""What the colour of a cell says: whether the component is selected, its entry of the soft mask,
its score (what the method ranked it by; its single effect for top-k), its rank by that, nothing."""

_MAX_COLUMNS = 64
"""Components of a layer beyond which a panel shows shares."""
_CELL = 27.0
"""Largest size of a cell, in pixels."""
_BARS = 130.0
"""Width of a panel of bars, in pixels."""
_GAP = 16.0
"""Between panels, in pixels."""
_WIDE_GAP = 48.0
"""Beside a panel of one column, in pixels."""
_TALLEST = 640.0
"""Height of all rows, in pixels."""
_TICKS_OF_SIZES = 3
"""Steps between the sizes that a bar of sizes names, at most."""
_UNSTUDIED = "#d0d0d0"
"""Colour of cell borders, and of cells that are not studied."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionPanel:
    """One kind of component of one result, as a selection heatmap shows it."""

    title: str
    """Above the panel: the method, where several are compared."""
    kind: str
    layers: tuple[int, ...]
    """Layer of each row."""
    indices: tuple[int, ...]
    """Index of the component in each column, or number of its span; empty where a row is a
    share."""
    span_names: tuple[str, ...]
    """Name of the span in each column, where columns are spans."""
    selected: tuple[tuple[bool | None, ...], ...]
    """Whether the component of each cell is selected, by row; None where it is not studied."""
    values: tuple[tuple[float | None, ...], ...]
    """What the colour of each cell says; None where the component is not studied."""
    shares: tuple[float, ...]
    """Share of each layer's studied components that is selected, in [0, 1]."""
    overall_share: float
    """The same over all layers."""
    hover: tuple[tuple[str, ...], ...]
    """Text at the pointer, by cell; one per row where a row is a share."""
    color: str
    """Colour of what is selected."""

    @property
    def is_share(self) -> bool:
        """Whether a row is a share, since its components are too many to show."""
        return not self.indices


@dataclass(frozen=True)
class _Scale:
    """How values become colours."""

    colors: Any
    low: float
    high: float
    title: str
    ticks: tuple[float, ...] = ()
    """Values that the bar names; those that fit by default."""


def selection_data(
    result: TraceResult, color: Color = "selected", *, title: str = ""
) -> list[SelectionPanel]:
    """The data behind a selection heatmap: one panel per kind, a row per layer.

    Args:
        result: The result.
        color: What the colour of a cell says.
        title: Above the panels.

    Raises:
        ConfigError: An unknown `color`, or scores of a result that has none.
    """
    values = _values(result, color)
    return _panels(result, values, color, title)


def heatmap(result: TraceResult, *, color: Color = "selected") -> go.Figure:
    """Which components a result selects, a row per layer.

    Args:
        result: The result.
        color: What the colour of a cell says: `selected` (in the colour of the method), `soft`
            (entry of the soft mask), `score` (what the method ranked by; for top-k the effect of
            the component alone), `rank` (by that), or `none`. Where colour says something else,
            selected components have a dark frame.

    Raises:
        ConfigError: An unknown `color`, or scores of a result that has none.
    """
    panels = selection_data(result, color)
    figure = _draw(panels, _scale([result], color), WIDTH, outlines=color != "selected")
    title = f"{plain(result.title)}: {data_and_model(result)}"
    return set_titles(figure, title, _subtitle(result))


def comparison_heatmap(comparison: Comparison, *, color: Color = "selected") -> go.Figure:
    """Which components each of several results selects: panels side by side.

    Args:
        comparison: The results.
        color: As in `heatmap`.

    Raises:
        ConfigError: As in `heatmap`.
    """
    panels = [
        panel
        for result, label in zip(comparison, comparison.labels, strict=True)
        for panel in selection_data(result, color, title=plain(label))
    ]
    first = comparison[0]
    figure = _draw(panels, _scale(list(comparison), color), WIDE, outlines=color != "selected")
    sizes = dict.fromkeys(str(result.n_selected) for result in comparison)
    subtitle = f"{' / '.join(sizes)} of {first.n_components} selected"
    return set_titles(figure, data_and_model(first), subtitle)


def front_heatmap(front: ParetoFront) -> go.Figure:
    """From which size on each component is in the best sets of a Pareto front.

    Colour is the smallest size whose best set holds the component; best sets are not nested, so it
    may be missing again from larger ones, which the hover text says. Kinds with many components a
    layer show the share of them in the largest set.
    """
    largest, n = front[-1], front[0].n_components
    members = torch.stack([result.binary_mask for result in front])
    sizes = torch.tensor(front.sizes)
    enters = torch.where(members, sizes[:, None], torch.iinfo(torch.long).max).amin(0)
    values = [
        float(size) if held else None for size, held in zip(enters, members.any(0), strict=True)
    ]
    texts = [
        f"in the best sets of {held} of {len(sizes)} sizes" + (f", from {first} on" if held else "")
        for held, first in zip(members.sum(0).tolist(), enters.tolist(), strict=True)
    ]
    panels = _panels(largest, values, "soft", "", texts)
    first, last = front.sizes[0], front.sizes[-1]
    # The lightest blues would look like no component.
    blues = sample_colorscale("Blues_r", [0.8 * step / 20 for step in range(21)])
    steps = min(_TICKS_OF_SIZES, last - first)
    ticks = {round(first + (last - first) * step / max(1, steps)) for step in range(steps + 1)}
    scale = _Scale(
        blues, first, max(last, first + 1), "enters<br>at size", ticks=tuple(sorted(ticks))
    )
    figure = _draw(panels, scale, WIDTH, outlines=False)
    return set_titles(
        figure,
        f"Pareto front: {data_and_model(largest)}",
        f"sets of up to {front.largest} of {n} components; white: in none",
    )


# ---- data -----------------------------------------------------------------------------------


def _values(result: TraceResult, color: str) -> list[float | None]:
    """What the colour of each component says."""
    if color not in get_args(Color):
        raise ConfigError(f"Unknown color {color!r}. Use one of {', '.join(get_args(Color))}.")
    if color == "score" and result.component_scores is None:
        raise ConfigError(
            f"This result of {result.method} has no scores of components. Use color='selected', or "
            "a result of top-k."
        )
    if color == "none":
        return [0.0] * result.n_components
    if color == "rank":
        order = ranking(_ranked_by(result))
        ranks = torch.empty(len(order))
        ranks[order] = torch.arange(1.0, len(order) + 1)
        return ranks.tolist()
    scores = {
        "selected": result.binary_mask.float(),
        "soft": result.soft_mask,
        "score": result.component_scores,
    }[color]
    assert scores is not None
    return scores.tolist()


def _ranked_by(result: TraceResult) -> Mask:
    return result.soft_mask if result.component_scores is None else result.component_scores


def _panels(
    result: TraceResult,
    values: Sequence[float | None],
    color: str,
    title: str,
    texts: Sequence[str] | None = None,
) -> list[SelectionPanel]:
    """A panel per kind; of spans of several components a layer, a panel per span.

    `texts` are said of each component instead of what the result says.
    """
    panels = []
    for grid in result.registry.grids:
        of_span = f"{title}, {grid.span}" if title else plain(grid.span)
        panels.append(_panel(result, grid, values, color, of_span if grid.span else title, texts))
    return panels


def _panel(
    result: TraceResult,
    grid: ComponentGrid,
    values: Sequence[float | None],
    color: str,
    title: str,
    texts: Sequence[str] | None,
) -> SelectionPanel:
    """A panel of a grid; a row is a share where there are too many columns."""
    rows, is_share = grid.cells, len(grid.indices) > _MAX_COLUMNS
    studied = [[flat for flat in row if flat is not None] for row in rows]
    shares = [result.binary_mask[flat].float().mean().item() for flat in studied]
    everywhere = [flat for row in studied for flat in row]
    if is_share:
        hover = [
            [
                f"layer {layer}: {round(share * len(flat))} of {len(flat)} "
                f"selected ({100 * share:.3g} %)"
            ]
            for layer, flat, share in zip(grid.layers, studied, shares, strict=True)
        ]
        rows = tuple(() for _ in rows)
    else:
        hover = [
            [_hover(result, flat, layer, texts) for flat in row]
            for row, layer in zip(rows, grid.layers, strict=True)
        ]
    selected = result.binary_mask.tolist()
    return SelectionPanel(
        title=title,
        kind=grid.kind,
        layers=grid.layers,
        indices=() if is_share else grid.indices,
        span_names=() if is_share else grid.span_names,
        selected=tuple(tuple(None if i is None else selected[i] for i in row) for row in rows),
        values=tuple(tuple(None if i is None else values[i] for i in row) for row in rows),
        shares=tuple(shares),
        overall_share=result.binary_mask[everywhere].float().mean().item(),
        hover=tuple(map(tuple, hover)),
        color=styles([result.method])[result.method][0] if color == "selected" else "#0072B2",
    )


def _hover(result: TraceResult, flat: int | None, layer: int, texts: Sequence[str] | None) -> str:
    if flat is None:
        return f"layer {layer}: not studied"
    label = result.registry.label(flat)
    if texts is not None:
        return f"{label}: {texts[flat]}"
    text = f"{label}: {'selected' if result.binary_mask[flat] else 'not selected'}"
    soft = result.soft_mask[flat].item()
    if soft != result.binary_mask[flat].item():
        text += f"<br>soft mask {soft:.3f}"
    if result.component_scores is not None:
        text += f"<br>score {result.component_scores[flat]:.4g}"
    return text


def _scale(results: Sequence[TraceResult], color: str) -> _Scale | None:
    """The colours of values, the same for all results; None if each has a colour of its own."""
    if color in ("selected", "none"):
        return None
    if color == "soft":
        return _Scale("Blues", 0.0, 1.0, "soft<br>mask")
    if color == "rank":
        return _Scale("Blues_r", 1.0, 1.1 * results[0].n_components, "rank")
    scores = [result.component_scores for result in results]
    bound = max(s.abs().max().item() for s in scores if s is not None) or 1.0
    return _Scale("RdBu_r", -bound, bound, "score")


def _subtitle(result: TraceResult) -> str:
    text = f"{result.n_selected} of {result.n_components} selected, effect {result.effect:.3g}"
    return f"{text} (all: {result.full_effect:.3g})"


# ---- drawing --------------------------------------------------------------------------------


def _draw(
    panels: Sequence[SelectionPanel],
    scale: _Scale | None,
    width: int,
    *,
    outlines: bool,
) -> go.Figure:
    """Panels side by side, with square cells of one size and rows that line up."""
    layers = sorted({layer for panel in panels for layer in panel.layers})
    has_titles = any(panel.title for panel in panels)
    margins = {"l": 58.0, "r": 14.0, "t": 92.0 if has_titles else 70.0, "b": 56.0}
    if scale is not None and any(not panel.is_share for panel in panels):
        margins["r"] += 84.0
    # Names of spans stand upright below their columns.
    longest = max((len(name) for panel in panels for name in panel.span_names), default=0)
    margins["b"] += 0.62 * TICK_SIZE * max(0, longest - 1)
    n_columns = sum(len(panel.indices) for panel in panels)
    n_bars = sum(panel.is_share for panel in panels)
    # The title of a single column is wider than the column.
    is_single = [len(panel.indices) == 1 for panel in panels]
    gaps = [_WIDE_GAP if any(pair) else _GAP for pair in pairwise(is_single)]
    margins["r"] += _WIDE_GAP - _GAP if is_single[-1] else 0
    fixed = margins["l"] + margins["r"] + sum(gaps) + _BARS * n_bars
    cell = min(_CELL, (width - fixed) / n_columns) if n_columns else _CELL
    cell = max(min(cell, _TALLEST / len(layers)), 4.0)
    sizes = [_BARS if panel.is_share else cell * len(panel.indices) for panel in panels]
    plot_width = sum(sizes) + sum(gaps)
    plot_height = cell * len(layers)
    figure = go.Figure()
    left = 0.0
    for number, (panel, size) in enumerate(zip(panels, sizes, strict=True), start=1):
        axes = {"xaxis": _axis("x", number), "yaxis": _axis("y", number)}
        rows = [layers.index(layer) for layer in panel.layers]
        domain = [left / plot_width, min((left + size) / plot_width, 1.0)]
        left += size + (gaps[number - 1] if number <= len(gaps) else 0)
        if panel.is_share:
            _add_bars(figure, panel, rows, axes)
        else:
            _add_cells(figure, panel, rows, axes, scale, cell, max(2, int(plot_height / 28)))
            if outlines:
                _add_outlines(figure, panel, rows, axes)
        ticks, texts, noun = _x_ticks(panel, cell)
        figure.update_layout(
            {
                _axis("xaxis", number): {
                    **BOX,
                    "domain": domain,
                    "anchor": _axis("y", number),
                    "range": None if panel.is_share else [-0.5, len(panel.indices) - 0.5],
                    "rangemode": "tozero",
                    "tickvals": ticks,
                    "ticktext": texts,
                    "tickangle": -90 if panel.span_names else 0,
                    "title": {"text": noun, "standoff": 6},
                    "showgrid": False,
                    **({} if panel.is_share else {"scaleanchor": "y", "constrain": "domain"}),
                },
                _axis("yaxis", number): {
                    **BOX,
                    "anchor": _axis("x", number),
                    "range": [len(layers) - 0.5, -0.5],
                    "matches": "y" if number > 1 else None,
                    "tickvals": list(range(0, len(layers), _step(cell, 15.0))),
                    "ticktext": [str(n) for n in layers[:: _step(cell, 15.0)]],
                    "showticklabels": number == 1,
                    "ticks": "outside" if number == 1 else "",
                    "title": {"text": "layer" if number == 1 else "", "standoff": 6},
                    "showgrid": False,
                },
            }
        )
        if panel.title and (number == 1 or panels[number - 2].title != panel.title):
            _add_panel_title(figure, panel, number)
    _mark_skipped_layers(figure, layers, len(panels))
    figure.update_layout(plot_bgcolor=_UNSTUDIED, showlegend=False)
    add_margins(figure, margins, plot_width, plot_height)
    return figure


def _add_cells(
    figure: go.Figure,
    panel: SelectionPanel,
    rows: Sequence[int],
    axes: dict[str, str],
    scale: _Scale | None,
    cell: float,
    n_ticks: int,
) -> None:
    """Cells of a panel, each `cell` pixels wide, and at the first one a colour bar."""
    gap = 1.0 if cell >= 7 else 0.5
    is_first_with_bar = scale is not None and not any(
        trace.type == "heatmap" and trace.showscale for trace in figure.data
    )
    # White under the cells of studied components that have no value.
    figure.add_heatmap(
        z=[[None if cell is None else 0 for cell in row] for row in panel.selected],
        x=list(range(len(panel.indices))),
        y=list(rows),
        colorscale=[[0, "white"], [1, "white"]],
        showscale=False,
        xgap=gap,
        ygap=gap,
        hoverinfo="skip",
        **axes,
    )
    figure.add_heatmap(
        z=panel.values,
        x=list(range(len(panel.indices))),
        y=list(rows),
        text=panel.hover,
        hovertemplate="%{text}<extra></extra>",
        colorscale=[[0, "white"], [1, panel.color]] if scale is None else scale.colors,
        zmin=0 if scale is None else scale.low,
        zmax=1 if scale is None else scale.high,
        xgap=gap,
        ygap=gap,
        showscale=is_first_with_bar,
        colorbar=None
        if scale is None
        else {
            "title": {"text": f"{scale.title}<br> ", "side": "top", "font": {"size": TICK_SIZE}},
            "tickfont": {"size": TICK_SIZE},
            "thickness": 13,
            "outlinewidth": 1,
            **(
                {"tickvals": [scale.low, 0, scale.high], "tickformat": ".2~g"}
                if scale.low < 0
                else ({"tickvals": scale.ticks} if scale.ticks else {"nticks": n_ticks})
            ),
        },
        **axes,
    )


def _add_outlines(
    figure: go.Figure, panel: SelectionPanel, rows: Sequence[int], axes: dict[str, str]
) -> None:
    """A dark frame around every selected cell; it grows with the cells, unlike a marker."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row, cells in zip(rows, panel.selected, strict=True):
        for column, is_selected in enumerate(cells):
            if is_selected:
                x += [column - 0.5, column + 0.5, column + 0.5, column - 0.5, column - 0.5, None]
                y += [row - 0.5, row - 0.5, row + 0.5, row + 0.5, row - 0.5, None]
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": "black", "width": 2},
        hoverinfo="skip",
        name="selected",
        **axes,
    )


def _add_bars(
    figure: go.Figure, panel: SelectionPanel, rows: Sequence[int], axes: dict[str, str]
) -> None:
    """The share of each layer, and a line at the share of all layers."""
    figure.add_shape(
        type="rect",
        xref=f"{axes['xaxis']} domain",
        yref=f"{axes['yaxis']} domain",
        x0=0,
        x1=1,
        y0=0,
        y1=1,
        fillcolor="white",
        line={"width": 0},
        layer="below",
    )
    figure.add_bar(
        x=[100 * share for share in panel.shares],
        y=list(rows),
        orientation="h",
        width=0.8,
        marker={"color": panel.color, "line": {"color": "black", "width": 0.5}},
        text=[row[0] for row in panel.hover],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
        **axes,
    )
    uniform = 100 * panel.overall_share
    figure.add_scatter(
        x=[uniform, uniform],
        y=[min(rows) - 0.5, max(rows) + 0.5],
        mode="lines",
        line={"color": "black", "width": 1.2, "dash": "dot"},
        hovertemplate=f"all layers: {uniform:.3g} %<extra></extra>",
        **axes,
    )


def _add_panel_title(figure: go.Figure, panel: SelectionPanel, number: int) -> None:
    figure.add_annotation(
        text=panel.title,
        xref=f"{_axis('x', number)} domain",
        yref=f"{_axis('y', number)} domain",
        x=0,
        y=1,
        yshift=3,
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
        font={"size": subtitle_size()},
    )


def _mark_skipped_layers(figure: go.Figure, layers: Sequence[int], n_panels: int) -> None:
    """A line between neighbouring rows whose layers are no neighbours."""
    for row, (upper, lower) in enumerate(pairwise(layers)):
        if lower != upper + 1:
            for number in range(1, n_panels + 1):
                figure.add_shape(
                    type="line",
                    xref=f"{_axis('x', number)} domain",
                    yref=_axis("y", number),
                    x0=0,
                    x1=1,
                    y0=row + 0.5,
                    y1=row + 0.5,
                    line={"color": "black", "width": 1, "dash": "dash"},
                )


def _x_ticks(panel: SelectionPanel, cell: float) -> tuple[list[int] | None, list[str] | None, str]:
    """Positions and texts of ticks, and the title of the axis."""
    kind = kind_of(panel.kind)
    if panel.is_share:
        return None, None, f"% of {panel.kind}"
    if panel.span_names:
        step = _step(cell, 14.0)
        shown = range(0, len(panel.span_names), step)
        return list(shown), [plain(panel.span_names[i]) for i in shown], f"span of {kind.name}"
    if kind.component_dim is None:
        return [], [], kind.noun
    step = _step(cell, 12.0 + 8.0 * len(str(panel.indices[-1])))
    positions = list(range(0, len(panel.indices), step))
    return positions, [str(panel.indices[i]) for i in positions], kind.noun


def _step(cell: float, wanted: float) -> int:
    """Every how many cells there is room for a label."""
    return next(s for s in (1, 2, 4, 5, 8, 10, 20, 50, 100) if s * cell >= wanted or s == 100)


def _axis(name: str, number: int) -> str:
    """Plotly's name of an axis; the first has no number."""
    return name if number == 1 else f"{name}{number}"
