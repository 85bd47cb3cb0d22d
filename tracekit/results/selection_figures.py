"""Selection heatmaps of several results: side by side, or all sets of a front in one."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import torch

from tracekit.figures.cells import BLUES, ColorScale, draw_panels
from tracekit.figures.style import WIDE, WIDTH, data_and_model, plain
from tracekit.results.panels import CellColor, panels_of, scale_of
from tracekit.results.result import TraceResult
from tracekit.results.tables import data_and_models, interventions

_TICKS_OF_SIZES = 3
"""Steps between the sizes that a bar of sizes names, at most."""


def comparison_heatmap(
    results: Sequence[TraceResult], labels: Sequence[str], *, color: CellColor
) -> go.Figure:
    """Which components each of several results selects: panels side by side."""
    panels = [
        panel
        for result, label in zip(results, labels, strict=True)
        for panel in result.panels(color, title=plain(label))
    ]
    first = results[0]
    *sizes, last = dict.fromkeys(str(result.n_selected) for result in results)
    selected = f"{', '.join(sizes)} and {last}" if sizes else last
    n = " and ".join(dict.fromkeys(each.searched.n_text for each in results))
    score, *others = {each.score_title for each in results}
    largest = max(each.largest_score for each in results)
    metrics = dict.fromkeys(each.searched.metric for each in results)
    return draw_panels(
        panels,
        scale=scale_of(color, first.n_components, largest, "score" if others else score),
        width=WIDE,
        outlines=color != "selected",
        title=data_and_model(*data_and_models(results)),
        subtitle=f"{selected} of {first.n_components} selected, {plain(interventions(results))}; "
        f"{plain(' / '.join(metrics))} on {n} searched examples",
    )


def front_heatmap(results: Sequence[TraceResult], largest_budget: int) -> go.Figure:
    """From which size on each component is in the best sets of a front, ascending by size."""
    largest, first = results[-1], results[0].n_selected
    members = torch.stack([result.binary_mask for result in results])
    sizes = torch.tensor([result.n_selected for result in results])
    enters = torch.where(members, sizes[:, None], torch.iinfo(torch.long).max).amin(0)
    values = [
        float(size) if held else None for size, held in zip(enters, members.any(0), strict=True)
    ]
    texts = [
        f"in the best sets of {held} of {len(sizes)} sizes" + (f", from {size} on" if held else "")
        for held, size in zip(members.sum(0).tolist(), enters.tolist(), strict=True)
    ]
    span = largest.n_selected - first
    steps = min(_TICKS_OF_SIZES, span)
    ticks = {round(first + span * step / max(1, steps)) for step in range(steps + 1)}
    scale = ColorScale(
        BLUES, first, first + max(span, 1), "enters<br>at size", ticks=tuple(sorted(ticks))
    )
    return draw_panels(
        panels_of(largest.registry, largest.binary_mask, values=values, texts=texts),
        scale=scale,
        width=WIDTH,
        outlines=False,
        title=f"Pareto front: {data_and_model(largest.dataset, largest.model)}",
        subtitle=f"sets of up to {largest_budget} of {largest.n_components} components; "
        f"white: in none; {plain(largest.setup.intervention)}; {plain(largest.searched.metric)}, "
        f"{largest.searched.n_text} searched examples",
    )
