"""Figures: results -> data object -> plotly Figure.

Every figure is returned, never shown, and drawn from a data object that holds all it shows, so
tests and readers can compare numbers instead of pixels. Sizes and fonts are chosen to be read at
the width of a column of text (85 mm); colours are distinct under the common colour-vision
deficiencies and in grey, and lines differ in marker and dash as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from tracekit.components import KINDS, ComponentRegistry, Site
from tracekit.errors import FigureExportError
from tracekit.results import TraceResult

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 520
HEIGHT = 400

_FONT = {"family": "Arial, Helvetica, sans-serif", "size": 15, "color": "black"}
_GRID = "#d9d9d9"
_MAX_COLUMNS = 64
# Okabe and Ito's palette, in an order that also differs in lightness.
_CONTROL = ("#7F7F7F", "x", "dashdot")
_STYLES = {
    "random": _CONTROL,
    "pgb-ct": ("#D55E00", "circle", "solid"),
    "greedy": ("#0072B2", "square", "dash"),
    "top-k": ("#009E73", "diamond", "dot"),
    "exhaustive": ("#000000", "star", "longdash"),
    "path": ("#CC79A7", "triangle-up", "solid"),
}
_SPARE_STYLES = (
    ("#E69F00", "triangle-down", "dash"),
    ("#56B4E9", "cross", "dot"),
)
_AT_EVERY_SIZE = ("greedy", "path", "top-k")
"""Methods whose history is an effect for each of several sizes."""
_NAMES = {"pgb-ct": "PGB-CT", "top-k": "top-k"}


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
    """What is shown when the pointer rests on a cell."""

    @property
    def binned(self) -> bool:
        """Whether a cell stands for several components."""
        return any("-" in column for column in self.columns)


def selection_data(result: TraceResult) -> list[SelectionPanel]:
    """What a selection heatmap shows: one panel per kind, a row per layer."""
    return [_panel(result, kind) for kind in result.registry.kinds]


def heatmap(result: TraceResult) -> go.Figure:
    """Per-layer selection heatmap.

    Colour is the soft mask (for many components the share selected in a range); a dot marks a
    selected component.
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
        ticks = _ticks(len(panel.columns), most=8 if panel.binned else 16)
        figure.update_xaxes(
            title_text=_axis_title(panel),
            showticklabels=KINDS[panel.kind].axis is not None,
            tickvals=ticks,
            ticktext=[panel.columns[i].split("-")[0] for i in ticks],
            showgrid=False,
            row=1,
            col=column,
        )
        figure.update_yaxes(type="category", showgrid=False, row=1, col=column)
    figure.update_yaxes(title_text="layer", row=1, col=1)
    layers = max(len(panel.layers) for panel in panels)
    return _finish(
        figure,
        f"{_name(result.method)} on {result.dataset}, {result.model}",
        f"{result.n_selected} of {result.n_components} selected, effect {result.effect:.3g} "
        f"(all: {result.full_effect:.3g})",
        height=max(300, min(900, 150 + 26 * layers)),
    )


def curve_data(results: Sequence[TraceResult]) -> pd.DataFrame:
    """What an effect curve shows: a row per method and number of components.

    Methods that record an effect at several sizes on their way (greedy, path, top-k) contribute
    each of them; where two runs of a method measured the same size, the larger effect counts.
    """
    import pandas as pd

    rows = []
    for result in results:
        rows.append((result.method, result.n_selected, result.effect))
        if result.method in _AT_EVERY_SIZE:
            rows += [
                (result.method, int(record["n_selected"]), float(record["effect"]))
                for record in result.history
            ]
    frame = pd.DataFrame(rows, columns=["method", "n_selected", "effect"])
    frame["method"] = pd.Categorical(frame["method"], categories=frame["method"].unique())
    groups = frame.groupby(["method", "n_selected"], observed=True, as_index=False)
    return groups.agg({"effect": "max"}).astype({"method": str})


def curve(results: Sequence[TraceResult]) -> go.Figure:
    """Effect against number of components, a line per method, and the all-components line."""
    frame = curve_data(results)
    first = results[0]
    n = first.n_components
    figure = go.Figure()
    spare = iter(_SPARE_STYLES * (1 + len(frame)))
    for method in dict.fromkeys(frame["method"]):
        points = frame[frame["method"] == method]
        color, symbol, dash = _STYLES.get(method) or next(spare)
        figure.add_scatter(
            x=points["n_selected"],
            y=points["effect"],
            name=_name(method),
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(points) < 12 else 5},
            customdata=[[f"{100 * size / n:.1f} %"] for size in points["n_selected"]],
            hovertemplate=(
                f"{_name(method)}<br>%{{x}} of {n} components (%{{customdata[0]}})"
                f"<br>{first.metric_axis}: %{{y:.4g}}<extra></extra>"
            ),
        )
    _add_all_components_line(figure, first)
    figure.update_layout(legend={"orientation": "h", "y": -0.28, "x": 0.5, "xanchor": "center"})
    return _finish(figure, f"{first.dataset}, {first.model}", first.registry.describe())


def _add_all_components_line(figure: go.Figure, first: TraceResult) -> None:
    """The axes of an effect curve, and the effect of all components."""
    figure.add_hline(
        y=first.full_effect,
        line={"color": "black", "width": 1.5, "dash": "dot"},
        annotation_text=f"all {first.n_components} components",
        annotation_position="top left",
        annotation_font_size=13,
    )
    figure.update_xaxes(title_text="number of components", rangemode="tozero")
    figure.update_yaxes(title_text=first.metric_axis, exponentformat="power", rangemode="tozero")


def path_curve(frame: pd.DataFrame, first: TraceResult) -> go.Figure:
    """Effect of the best sets against their size, with what it takes to believe them.

    The band and the bars of held-out effects are 95 % bootstrap intervals over examples, the bars
    of the control the range of its draws.

    Args:
        frame: A row per size, as `TracePath.to_frame` gives it.
        first: Any result of the path, for titles and the effect of all components.
    """
    figure = go.Figure()
    for name, columns, (color, symbol, dash) in (
        ("best set", ("effect", "effect_low", "effect_high"), _STYLES["path"]),
        ("held out", ("held_out", "held_out_low", "held_out_high"), _STYLES["greedy"]),
        ("random, same layers", ("control", "control_low", "control_high"), _CONTROL),
    ):
        middle, low, high = columns
        rows = frame.dropna(subset=[middle])
        if rows.empty:
            continue
        spread = {
            "array": rows[high] - rows[middle],
            "arrayminus": rows[middle] - rows[low],
            "color": color,
            "thickness": 1,
            "width": 3,
        }
        if middle == "effect":
            figure.add_scatter(
                x=[*rows["size"], *rows["size"][::-1]],
                y=[*rows[high], *rows[low][::-1]],
                fill="toself",
                fillcolor=color,
                opacity=0.2,
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                showlegend=False,
            )
        stable = rows["stability"] if middle == "held_out" else [None] * len(rows)
        figure.add_scatter(
            x=rows["size"],
            y=rows[middle],
            name=name,
            mode="lines+markers",
            line={"color": color, "dash": dash, "width": 2},
            marker={"color": color, "symbol": symbol, "size": 8 if len(rows) < 14 else 5},
            error_y=None if middle == "effect" else spread,
            customdata=[
                (
                    f"{100 * size / first.n_components:.1f} %",
                    f"{bottom:.4g} to {top:.4g}",
                    "" if same is None else f"<br>Jaccard similarity of the halves: {same:.2f}",
                )
                for size, bottom, top, same in zip(
                    rows["size"], rows[low], rows[high], stable, strict=True
                )
            ],
            hovertemplate=(
                f"{name}<br>%{{x}} of {first.n_components} components (%{{customdata[0]}})"
                f"<br>{first.metric_axis}: %{{y:.4g}} (%{{customdata[1]}})"
                "%{customdata[2]}<extra></extra>"
            ),
        )
    _add_all_components_line(figure, first)
    figure.update_layout(legend={"orientation": "h", "y": -0.28, "x": 0.5, "xanchor": "center"})
    return _finish(figure, f"{first.dataset}, {first.model}", first.registry.describe())


@runtime_checkable
class PairEffects(Protocol):
    """What a pairwise map shows; `tracekit.interactions.InteractionGrid` is one."""

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
    ticks = _ticks(n, most=18)
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
    finished = _finish(
        figure,
        grid.title or "Interactions",
        f"together less each alone; {grid.metric_axis}",
        height=WIDTH - 20,
    )
    return finished.update_layout(font_size=15 if n <= 18 else 12)


def write(figure: go.Figure, path: str | Path) -> Path:
    """Writes a figure; the suffix decides the form.

    `.html` needs no network to be opened (plotly.min.js is put beside it); `.png`, `.svg` and
    `.pdf` need kaleido and a Chrome or Chromium.

    Raises:
        FigureExportError: Kaleido or a browser is missing.
    """
    return write_all({path: figure})[0]


def write_all(figures: Mapping[str | Path, go.Figure]) -> list[Path]:
    """Writes figures, each to its path, as `write` does; a browser is started once for all.

    Raises:
        FigureExportError: Kaleido or a browser is missing; `.html` files are written all the same.
    """
    images: dict[Path, go.Figure] = {}
    for name, figure in figures.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".html":
            figure.write_html(path, include_plotlyjs="directory")
        else:
            images[path] = figure
    if images:
        _write_images(images)
    return [Path(name) for name in figures]


def _write_images(images: Mapping[Path, go.Figure]) -> None:
    from plotly.io import write_images

    try:
        write_images(list(images.values()), list(images), scale=2)
    except (ValueError, RuntimeError, ImportError) as error:
        first = str(error).strip().splitlines()[0].rstrip(" .,:;")
        raise FigureExportError(
            f"Could not write {', '.join(path.name for path in images)}: {first}. "
            "Install tracekit[figures] and Chrome or Chromium, or write .html."
        ) from error


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
    place = torch.tensor(flat)
    soft = result.soft_mask[place].mean().item()
    share = result.binary_mask[place].float().mean().item()
    if len(flat) == 1:
        state = "selected" if share else "not selected"
        text = f"{registry.label(flat[0])}: {state}<br>soft mask {soft:.3f}"
        if result.scores is not None:
            text += f"<br>alone: {result.scores[flat[0]]:.4g}"
        return soft, share, text
    ends = f"{registry.label(flat[0])} to {registry.label(flat[-1])}"
    count = int(result.binary_mask[place].sum())
    return soft, share, f"{ends}<br>{count} of {len(flat)} selected<br>mean soft mask {soft:.3f}"


def _add_dots(figure: go.Figure, panel: SelectionPanel, column: int) -> None:
    dots = [
        (place, str(layer))
        for layer, row in zip(panel.layers, panel.share, strict=True)
        for place, share in enumerate(row)
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


def _axis_title(panel: SelectionPanel) -> str:
    if KINDS[panel.kind].axis is None:
        return "MLP"
    return {"neurons": "neuron", "mlp-hidden": "hidden unit"}.get(panel.kind, "head")


def _ticks(count: int, most: int = 16) -> list[int]:
    """Evenly spaced places, at most `most`."""
    return list(range(0, count, -(-count // most)))


def _name(method: str) -> str:
    return _NAMES.get(method, method)


def _finish(figure: go.Figure, title: str, subtitle: str, *, height: int = HEIGHT) -> go.Figure:
    figure.update_xaxes(linecolor="black", ticks="outside", gridcolor=_GRID, zeroline=False)
    figure.update_yaxes(linecolor="black", ticks="outside", gridcolor=_GRID, zeroline=False)
    return figure.update_layout(
        template="none",
        title={
            "text": title,
            "subtitle": {"text": subtitle, "font": {"size": 13}},
            "font": {"size": 16},
            "x": 0.02,
            "xanchor": "left",
        },
        font=_FONT,
        width=WIDTH,
        height=height,
        margin={"l": 70, "r": 20, "t": 70, "b": 60},
    )
