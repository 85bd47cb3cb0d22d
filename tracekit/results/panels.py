"""Panels of selection heatmaps: the components of one result, kind by kind, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from tracekit._util.options import check_choice
from tracekit.components import ComponentRegistry, kind_of
from tracekit.components.masks import BinaryMask, ranking
from tracekit.components.registry import MOST_COLUMNS
from tracekit.errors import ConfigError
from tracekit.figures.cells import BLUES, ColorScale, SelectionPanel
from tracekit.figures.style import plain

CellColor = Literal["selected", "soft", "score", "rank", "none"]
"""Meaning of a cell's colour: whether the component is selected, its entry of the soft mask,
its score (what the method ranked it by; its single effect for top-k), its rank by that, nothing."""


def has_cells(registry: ComponentRegistry) -> bool:
    """Whether a panel shows single components, and not the shares of layers only."""
    return any(len(grid.indices) <= MOST_COLUMNS for grid in registry.grids)


def check_cells(registry: ComponentRegistry, advice: str) -> None:
    """Refuses components of which single ones cannot be drawn."""
    if not has_cells(registry):
        raise ConfigError(
            f"Layers of so many components have no cells. Take the table, or {advice}."
        )


def result_panels(result: Any, color: str, title: str, framed: BinaryMask) -> list[SelectionPanel]:
    """The panels of a result; see `TraceResult.panels`. Without scores the soft mask ranks.

    Raises:
        ConfigError: An unknown `color`, or scores of a result that has none.
    """
    selected, soft, scores = result.binary_mask, result.soft_mask, result.component_scores
    if color == "score" and scores is None:
        raise ConfigError(
            f"This result of {result.method} has no scores of components. Use color='selected', "
            "or a result of top-k."
        )
    check_choice("color", color, get_args(CellColor))
    ranked = soft if scores is None else scores
    ranks = torch.empty(len(ranked))
    ranks[ranking(ranked)] = torch.arange(1.0, len(ranked) + 1)
    values = {
        "selected": selected.float(),
        "soft": soft,
        "score": ranked,
        "rank": ranks,
        "none": torch.zeros(len(ranked)),
    }[color].tolist()
    texts = []
    for flat, is_selected in enumerate(selected.tolist()):
        text = "selected" if is_selected else "not selected"
        text += f"<br>soft mask {soft[flat]:.3f}" if soft[flat] != selected[flat] else ""
        texts.append(text + ("" if scores is None else f"<br>score {scores[flat]:.4g}"))
    return panels_of(result.registry, framed, values=values, texts=texts, title=title)


def panels_of(
    registry: ComponentRegistry,
    selected: BinaryMask,
    *,
    values: Sequence[float | None],
    texts: Sequence[str],
    title: str = "",
) -> list[SelectionPanel]:
    """A panel per kind; of spans of several components a layer, a panel per span.

    `values` colour the components (None: white); `texts` stand at the pointer below the name.
    """
    panels, is_selected = [], selected.tolist()
    hover = [f"{plain(registry.label(i))}: {text}" for i, text in enumerate(texts)]
    for grid in registry.grids:
        of_span = f"{title}, {plain(grid.span)}" if title else plain(grid.span)
        rows, is_share = grid.cells, len(grid.indices) > MOST_COLUMNS
        studied = [[flat for flat in row if flat is not None] for row in rows]
        shares = [selected[flat].float().mean().item() for flat in studied]
        shown = [
            [f"layer {layer}: not studied" if flat is None else hover[flat] for flat in row]
            for row, layer in zip(rows, grid.layers, strict=True)
        ]
        if is_share:
            shown = [
                [f"layer {layer}: {round(share * len(flat))} of {len(flat)} ({100 * share:.3g} %)"]
                for layer, flat, share in zip(grid.layers, studied, shares, strict=True)
            ]
            rows = tuple(() for _ in rows)
        panel = SelectionPanel(
            title=of_span if grid.span else title,
            kind=grid.kind + registry.windows,
            noun=plain(kind_of(grid.kind).noun) + registry.windows,
            has_numbers=kind_of(grid.kind).component_dim is not None,
            layers=grid.layers,
            indices=() if is_share else grid.indices,
            span_names=() if is_share else grid.span_names,
            selected=tuple(
                tuple(None if i is None else is_selected[i] for i in row) for row in rows
            ),
            values=tuple(tuple(None if i is None else values[i] for i in row) for row in rows),
            shares=tuple(shares),
            overall_share=selected[[flat for row in studied for flat in row]].float().mean().item(),
            hover=tuple(map(tuple, shown)),
        )
        panels.append(panel)
    return panels


def scale_of(
    color: str, n_components: int, largest: float, score: str = "score"
) -> ColorScale | None:
    """Colours of values up to the size `largest`, for all results; None if each has its own."""
    if color == "soft":
        return ColorScale("Blues", 0.0, 1.0, "soft<br>mask")
    if color == "rank":
        return ColorScale(BLUES, 1.0, float(max(2, n_components)), "rank")
    if color == "score":
        return ColorScale("RdBu_r", -largest, largest, plain(score).replace(" (", "<br>("))
    if color in ("selected", "none"):
        return None
    raise ConfigError(f"Nothing says how {color!r} is coloured.")
