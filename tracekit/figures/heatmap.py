"""Selection heatmaps: which components, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from tracekit.components import ComponentRegistry, Site, kind_of
from tracekit.figures.style import finish, tick_positions
from tracekit.results.result import TraceResult

_MAX_COLUMNS = 64
"""Columns beyond which a cell stands for several components."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionPanel:
    """One kind's part of a selection heatmap."""

    kind: str
    layers: tuple[int, ...]
    """Layer of each row."""
    columns: tuple[str, ...]
    """Name of each column: an index, or a range of indices where there are too many to show."""
    soft: tuple[tuple[float | None, ...], ...]
    """Mean soft mask of each cell, by row; None where the registry has no component."""
    share: tuple[tuple[float | None, ...], ...]
    """Share of the cell's components that are selected; 0 or 1 for single components."""
    hover: tuple[tuple[str, ...], ...]
    """Text at the pointer, by cell."""

    @property
    def binned(self) -> bool:
        """Whether a cell stands for several components."""
        return any("-" in column for column in self.columns)


def selection_data(result: TraceResult) -> list[SelectionPanel]:
    """The data behind a selection heatmap: one panel per kind, a row per layer."""
    return [_panel(result, kind) for kind in result.registry.kinds]


def heatmap(result: TraceResult) -> go.Figure:
    """Heatmap of a selection, a row per layer.

    Colour is the soft mask, and a dot marks a selected component. Where a cell stands for several
    components, colour is the share of them that is selected.
    """
    panels = selection_data(result)
    widths = [max(2.0, float(len(panel.columns))) for panel in panels]
    figure = make_subplots(cols=len(panels), column_widths=widths, horizontal_spacing=0.13)
    binned = any(panel.binned for panel in panels)
    for column, panel in enumerate(panels, start=1):
        values = panel.share if binned else panel.soft
        top = max((v for row in values for v in row if v is not None), default=1.0) or 1.0
        figure.add_heatmap(
            z=values,
            x=list(range(len(panel.columns))),
            y=[str(layer) for layer in panel.layers],
            text=panel.hover,
            hovertemplate="%{text}<extra></extra>",
            colorscale="Blues",
            zmin=0,
            zmax=top if binned else 1,
            xgap=1,
            ygap=1,
            showscale=column == len(panels),
            colorbar={
                "title": {
                    "text": "share<br>selected<br> " if binned else "soft<br>mask<br> ",
                    "side": "top",
                },
                "thickness": 14,
            },
            row=1,
            col=column,
        )
        if not panel.binned:
            _add_dots(figure, panel, column)
        ticks = tick_positions(len(panel.columns), most=8 if panel.binned else 16)
        figure.update_xaxes(
            title_text=kind_of(panel.kind).noun,
            showticklabels=kind_of(panel.kind).component_dim is not None,
            tickvals=ticks,
            ticktext=[panel.columns[i].split("-")[0] for i in ticks],
            showgrid=False,
            row=1,
            col=column,
        )
        figure.update_yaxes(type="category", showgrid=False, row=1, col=column)
    figure.update_yaxes(title_text="layer", row=1, col=1)
    layers = max(len(panel.layers) for panel in panels)
    return finish(
        figure,
        f"{result.method_title or result.method} on {result.dataset}, {result.model}",
        f"{result.n_selected} of {result.n_components} selected, effect {result.effect:.3g} "
        f"(all: {result.full_effect:.3g})",
        height=max(300, min(900, 150 + 26 * layers)),
    )


def _panel(result: TraceResult, kind: str) -> SelectionPanel:
    registry = result.registry
    sites = [site for site in registry.sites if site.kind.name == kind]
    width = max(site.width for site in sites)
    size = -(-width // _MAX_COLUMNS)
    bins = [range(first, min(first + size, width)) for first in range(0, width, size)]
    cells = [[_cell(result, registry, site, bin_) for bin_ in bins] for site in sites]
    return SelectionPanel(
        kind=kind,
        layers=tuple(site.layer for site in sites),
        columns=tuple(str(b[0]) if len(b) == 1 else f"{b[0]}-{b[-1]}" for b in bins),
        soft=tuple(tuple(cell[0] for cell in row) for row in cells),
        share=tuple(tuple(cell[1] for cell in row) for row in cells),
        hover=tuple(tuple(cell[2] for cell in row) for row in cells),
    )


def _cell(
    result: TraceResult, registry: ComponentRegistry, site: Site, bin_: range
) -> tuple[float | None, float | None, str]:
    """Soft mask, share selected and hover text of the components of a site in a bin."""
    flat = [site.start + k for k, index in enumerate(site.indices) if index in bin_]
    if not flat:
        return None, None, f"layer {site.layer}: not studied"
    indices = torch.tensor(flat)
    soft = result.soft_mask[indices].mean().item()
    share = result.binary_mask[indices].float().mean().item()
    if len(flat) == 1:
        state = "selected" if share else "not selected"
        text = f"{registry.label(flat[0])}: {state}<br>soft mask {soft:.3f}"
        if result.component_scores is not None:
            text += f"<br>alone: {result.component_scores[flat[0]]:.4g}"
        return soft, share, text
    ends = f"{registry.label(flat[0])} to {registry.label(flat[-1])}"
    count = int(result.binary_mask[indices].sum())
    return soft, share, f"{ends}<br>{count} of {len(flat)} selected<br>mean soft mask {soft:.3f}"


def _add_dots(figure: go.Figure, panel: SelectionPanel, column: int) -> None:
    dots = [
        (column_index, str(layer))
        for layer, row in zip(panel.layers, panel.share, strict=True)
        for column_index, share in enumerate(row)
        if share
    ]
    figure.add_scatter(
        x=[dot[0] for dot in dots],
        y=[dot[1] for dot in dots],
        mode="markers",
        marker={"color": "#E69F00", "size": 9, "line": {"color": "black", "width": 1}},
        hoverinfo="skip",
        showlegend=False,
        row=1,
        col=column,
    )
