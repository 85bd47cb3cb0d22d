"""Cells: panels with a row or a column for each layer, and a square map of pairs.

A panel is of one kind of component. In a map, colour says how far two components are from additive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray
from plotly.colors import sample_colorscale

from tracekit.figures import style
from tracekit.figures.layout import CELL

BLUES = sample_colorscale("Blues_r", [0.8 * step / 20 for step in range(21)])
"""From dark to light, without the lightest, which would look like no component."""
_FAINT = 0.1
"""Share of the darkest colour below which the sign of a value is not written."""

_SKIPPED = {"color": "black", "width": 1, "dash": "dash"}
_FOLDED = {"color": style.CONTROL[0], "width": 1}
"""Lines for layers that are not studied, and for those that are folded."""

LayersOn = Literal["x", "y"]
_FLATTEST, _TALLEST, _BAR_ROWS = 16.0, 640.0, 6
"""With layers on x, pixels: rows at least, all rows unless these are more; rows that bars take."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionPanel:
    """The components of one kind as cells, or as one bar a layer."""

    title: str
    """Above the panel: the method, where several are compared."""
    kind: str
    noun: str
    """Noun for one component, as the title of the axis."""
    has_numbers: bool
    """Whether components of a layer have numbers; without, a layer has one."""
    layers: tuple[int, ...]
    """Layer of each row."""
    indices: tuple[int, ...]
    """Index of the component in each column, or number of its span; empty for shares."""
    span_names: tuple[str, ...]
    """Name of the span in each column, where columns are spans."""
    selected: tuple[tuple[bool | None, ...], ...]
    """Whether the component of each cell is selected, by row; None where it is not studied."""
    values: tuple[tuple[float | None, ...], ...]
    """Value shown by the colour of each cell; None where the component is not studied."""
    shares: tuple[float, ...]
    """Share of each layer's studied components that is selected, in [0, 1]."""
    overall_share: float
    """Share of all studied components that is selected, in [0, 1]."""
    hover: tuple[tuple[str, ...], ...]
    """Text at the pointer, by cell; one per row where a row is a share."""

    @property
    def is_share(self) -> bool:
        """Whether a row is a share, since its components are too many to show."""
        return not self.indices


@dataclass(frozen=True)
class ColorScale:
    """How values become colours."""

    colors: Any
    """Colours or the name of a scale, as plotly takes it."""
    low: float
    high: float
    title: str
    """Above the colour bar."""
    ticks: tuple[float, ...] = ()
    """Values that the bar names; those that fit by default."""


def draw_panels(
    panels: Sequence[SelectionPanel],
    *,
    scale: ColorScale | None,
    width: int = style.WIDTH,
    outlines: bool,
    title: str,
    subtitle: str,
    layers_on: LayersOn = "y",
    fold: bool = False,
    marks: str = "selected",
    blank: str = "no value",
) -> go.Figure:
    """Panels side by side, with square cells of one size and rows that line up.

    `scale` gives the colours of all values; without one, cells are white, and coloured where they
    are selected. `width` is the largest, in pixels. `outlines` frames selected cells. With layers
    on x, panels stand below each other. With `fold`, a run of layers is one row if nothing is
    selected in them and, without frames, nothing has a colour. In the legend, `marks` says what
    frames and bars are, `blank` what a cell without a value is.
    """
    rows = _rows(panels, has_colors=not outlines, fold=fold)
    figure = go.Figure()
    lines = [line for panel in panels for line in zip(panel.selected, panel.values, strict=True)]
    cells = [cell for line in lines for cell in zip(*line, strict=True)]
    if scale is None and any(value for _, value in cells):
        style.add_key(figure, "selected", **style.shape(style.SELECTED))
    if any(value is None and is_selected is not None for is_selected, value in cells):
        style.add_key(figure, blank, **style.shape("white"))
    panels = [_aligned(panel, rows) for panel in panels]
    counts = [len(panel.indices) for panel in panels]
    names = ["\u2013".join(map(str, dict.fromkeys((run[0], run[-1])))) for run in rows]
    for number, panel in enumerate(panels, start=1):
        axes = {"xaxis": _axis("x", number), "yaxis": _axis("y", number)}
        if panel.is_share:
            _add_bars(figure, panel, axes, marks)
        else:
            _add_cells(figure, panel, axes, scale)
            if outlines:
                _add_outlines(figure, panel, axes, marks)
        ticks, texts, noun = _x_ticks(panel)
        figure.update_layout(
            {
                _axis("xaxis", number): {
                    **style.BOX,
                    "anchor": _axis("y", number),
                    "range": None if panel.is_share else [-0.5, len(panel.indices) - 0.5],
                    "rangemode": "tozero",
                    "tickvals": ticks,
                    "ticktext": texts,
                    "tickangle": -90 if panel.span_names else 0,
                    "title": {"text": noun},
                    "showgrid": False,
                },
                _axis("yaxis", number): {
                    **style.axis_with_labels(names, is_down=True),
                    "anchor": _axis("x", number),
                    "matches": "y" if number > 1 else None,
                    "showticklabels": number == 1,
                    "ticks": "outside" if number == 1 else "",
                    "title": {"text": "layer" if number == 1 else ""},
                },
            }
        )
        if panel.title and (number == 1 or panels[number - 2].title != panel.title):
            figure.add_annotation(text=panel.title, **_above(number))
    _mark_missing_layers(figure, rows, len(panels))
    if any(None in row for panel in panels for row in panel.selected):
        style.add_key(figure, "not studied", **style.shape(style.UNSTUDIED))
    has_keys = any(figure.select_traces(lambda each: each.name and each.showlegend is not False))
    figure.update_layout(plot_bgcolor=style.UNSTUDIED, showlegend=has_keys)
    if layers_on == "x":
        figure, size = _swap_axes(figure, panels, len(rows), width)
        return style.finish(figure, title, subtitle, plot=size, grows="rows")
    size = (float(width), float(len(rows)))
    sizes = {"plot": size, "grows": "cells", "columns": counts, "widest": width}
    return style.finish(figure, title, subtitle, **sizes)


def _rows(
    panels: Sequence[SelectionPanel], *, has_colors: bool, fold: bool
) -> list[tuple[int, ...]]:
    """The layers of each row: one, or a run that is folded."""
    layers = sorted({layer for panel in panels for layer in panel.layers})
    used = {
        layer
        for panel in panels
        for layer, share, values in zip(panel.layers, panel.shares, panel.values, strict=True)
        if share > 0 or (has_colors and any(values)) or not fold
    }
    rows: list[tuple[int, ...]] = []
    for is_used, run in groupby(layers, used.__contains__):
        run = tuple(run)
        rows += [(layer,) for layer in run] if is_used or len(run) == 1 else [run]
    return rows


def _aligned(panel: SelectionPanel, rows: Sequence[tuple[int, ...]]) -> SelectionPanel:
    """A panel with every row, blank where it has no such layer or layers are folded."""
    n, names = len(panel.indices), ("selected", "values", "shares", "hover")
    lines = zip(panel.layers, *(getattr(panel, name) for name in names), strict=True)
    by_layer = {layer: parts for layer, *parts in lines}
    drawn = []
    for first, *rest in rows:
        # Cells of folded layers are white, those of layers that are not studied have no colour.
        blank = [(False if rest else None,) * n, (None,) * n, 0.0, ("",) * max(1, n)]
        drawn.append(blank if rest else by_layer.get(first, blank))
    parts = dict(zip(names, zip(*drawn, strict=True), strict=True))
    return replace(panel, layers=tuple(row[0] for row in rows), **parts)


def _swap_axes(
    figure: go.Figure, panels: Sequence[SelectionPanel], n_layers: int, width: int
) -> tuple[go.Figure, tuple[float, float]]:
    """The panels below each other, with layers from left to right, and the size of all."""
    drawn, swapped = figure.to_dict(), str.maketrans("xy", "yx")
    layout, n_rows = drawn["layout"], [len(panel.indices) or _BAR_ROWS for panel in panels]
    for trace in drawn["data"]:
        trace["x"], trace["y"] = trace["y"], trace["x"]
        if trace["type"] == "heatmap":
            arrays = {"z", "text"} & trace.keys()
            trace |= {name: list(zip(*trace[name], strict=True)) for name in arrays}
        elif trace["type"] == "bar":
            trace["orientation"] = "v"
    for shape in layout.get("shapes", ()):
        turned = {name.translate(swapped): shape[name] for name in shape if name[0] in "xy"}
        shape |= turned | {f"{a}ref": turned[f"{a}ref"].translate(swapped) for a in "xy"}
    cell = max(_FLATTEST, min(CELL, _TALLEST / sum(n_rows)))
    layout["annotations"] = []
    for number, (panel, rows) in enumerate(zip(panels, n_rows, strict=True), start=1):
        x, y, is_last = _axis("xaxis", number), _axis("yaxis", number), number == len(panels)
        layers, indices = layout[y], layout[x]
        kind = ", ".join(filter(None, (indices["title"]["text"], panel.title)))
        layout["annotations"].append({"text": kind, **_above(number)})
        layers |= {"anchor": _axis("y", number), "range": layers["range"][::-1]}
        layers["tickangle"] = -90 if max(map(len, layers["ticktext"])) > 3 else 0
        layers |= {"showticklabels": is_last, "ticks": "outside" if is_last else ""}
        layers |= {"matches": None if number == 1 else "x", "title": {"text": "layer" * is_last}}
        indices |= {"anchor": _axis("x", number), "tickangle": 0, "title": {"text": ""}}
        indices |= {"range": indices["range"][::-1]} if panel.indices else {}
        layout[x], layout[y] = layers, indices | {"domain": [0, rows / sum(n_rows)]}
    return go.Figure(drawn), (min(width - 90.0, max(200.0, CELL * n_layers)), cell * sum(n_rows))


def _add_cells(
    figure: go.Figure, panel: SelectionPanel, axes: dict[str, str], scale: ColorScale | None
) -> None:
    """Cells of a panel, and at the first one a colour bar."""
    gap = 1.0 if max(len(panel.layers), len(panel.indices)) < 70 else 0.5
    drawn: list[Any] = list(figure.data)
    is_first = all(trace.type != "heatmap" for trace in drawn)
    x, y = list(range(len(panel.indices))), list(range(len(panel.layers)))
    spread = {"x": x, "y": y, "xgap": gap, "ygap": gap}
    # White under the cells of studied components that have no value.
    blank = [[None if cell is None else 0 for cell in row] for row in panel.selected]
    white = {"colorscale": [[0, "white"], [1, "white"]], "showscale": False}
    figure.add_heatmap(z=blank, hoverinfo="skip", **white, **spread, **axes)
    figure.add_heatmap(
        z=panel.values,
        text=panel.hover,
        hovertemplate="%{text}<extra></extra>",
        colorscale=[[0, "white"], [1, style.SELECTED]] if scale is None else scale.colors,
        zmin=0 if scale is None else scale.low,
        zmax=1 if scale is None else scale.high,
        showscale=scale is not None and is_first,
        colorbar=None if scale is None else style.color_bar(scale.title, **_bar_ticks(scale)),
        **spread,
        **axes,
    )
    if scale is not None and scale.low < 0:
        shares = np.array(panel.values, dtype=float) / -scale.low
        _add_signs(figure, shares, _FAINT, 20, **axes)


def _add_signs(
    figure: go.Figure, shares: Float[ndarray, "row column"], faint: float, size: int, **axes: str
) -> None:
    """A minus in cells whose share of the darkest colour is below -`faint`: grey has no sign."""
    y, x = np.nonzero(shares < -faint)
    font = {"size": size, "color": _mark_colors(shares[y, x])}
    signs = {"x": x.tolist(), "y": y.tolist(), "text": ["\u2212"] * len(x), "textfont": font}
    figure.add_scatter(**signs, mode="text", name="below 0", **style.QUIET, **axes)


def _mark_colors(shares: Float[ndarray, " cell"]) -> list[str]:
    """Colours of marks that are seen in cells with these shares of the darkest colour."""
    return np.where(np.abs(shares) > 0.6, "white", "black").tolist()


def _bar_ticks(scale: ColorScale) -> dict[str, Any]:
    if scale.low < 0:
        ticks = [scale.low, 0, scale.high]
        texts = list(map(style.two_digits, ticks))
        note = f"\u2212: below {style.two_digits(_FAINT * scale.low)}"
        return {"tickvals": ticks, "ticktext": texts, "note": note}
    return {"tickvals": scale.ticks} if scale.ticks else {"nticks": 4}


def _add_outlines(
    figure: go.Figure, panel: SelectionPanel, axes: dict[str, str], marks: str
) -> None:
    """A dark frame around every selected cell; it grows with the cells, unlike a marker."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row, column in np.argwhere(np.array(panel.selected, dtype=float) == 1).tolist():
        x += [column - 0.5, column + 0.5, column + 0.5, column - 0.5, column - 0.5, None]
        y += [row - 0.5, row - 0.5, row + 0.5, row + 0.5, row - 0.5, None]
    line = {"color": "black", "width": 2}
    figure.add_scatter(x=x, y=y, mode="lines", line=line, name="frame", **style.QUIET, **axes)
    style.add_key(figure, marks, **style.shape("white", 2))


def _add_bars(figure: go.Figure, panel: SelectionPanel, axes: dict[str, str], marks: str) -> None:
    """The share of each layer, and a line at the share of all layers."""
    area = {"xref": f"{axes['xaxis']} domain", "yref": f"{axes['yaxis']} domain"}
    ground = {"fillcolor": "white", "line_width": 0, "layer": "below"}
    figure.add_shape(type="rect", x0=0, x1=1, y0=0, y1=1, **area, **ground)
    figure.add_bar(
        x=[100 * share for share in panel.shares],
        y=list(range(len(panel.layers))),
        orientation="h",
        width=0.8,
        marker={"color": style.SELECTED, "line": {"color": "black", "width": 0.5}},
        text=[row[0] for row in panel.hover],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
        **axes,
    )
    style.add_key(figure, f"bar: {marks}", **style.shape(style.SELECTED))
    if len(panel.layers) == 1:
        return
    uniform = 100 * panel.overall_share
    x, y = [uniform, uniform], [-0.5, len(panel.layers) - 0.5]
    line = {"color": "black", "width": 1.2, "dash": "dot"}
    hover = f"all layers: {uniform:.3g} % of {panel.kind}<extra></extra>"
    shown = {"mode": "lines", "line": line}
    figure.add_scatter(x=x, y=y, hovertemplate=hover, showlegend=False, **shown, **axes)
    style.add_key(figure, "share of all layers", **shown)


def _mark_missing_layers(figure: go.Figure, rows: Sequence[tuple[int, ...]], n_panels: int) -> None:
    """A dashed line between rows whose layers are no neighbours, a grey one in a folded row."""
    lines = [
        (row + 0.5, _SKIPPED)
        for row, (upper, lower) in enumerate(pairwise(rows))
        if lower[0] != upper[-1] + 1
    ]
    lines += [(float(row), _FOLDED) for row, run in enumerate(rows) if len(run) > 1]
    for number in range(1, n_panels + 1):
        axes = {"xref": f"{_axis('x', number)} domain", "yref": _axis("y", number)}
        for y, line in lines:
            figure.add_shape(type="line", x0=0, x1=1, y0=y, y1=y, line=line, **axes)
    for name, line in (("layers not studied", _SKIPPED), ("folded layers", _FOLDED)):
        if any(each is line for _, each in lines):
            style.add_key(figure, name, mode="lines", line=line)


def _above(number: int) -> dict[str, Any]:
    """Where the title of a panel stands."""
    at = {"x": 0, "y": 1, "yshift": 3, "xanchor": "left", "yanchor": "bottom", "align": "left"}
    at |= {f"{each}ref": f"{_axis(each, number)} domain" for each in "xy"}
    return {"name": "panel", "showarrow": False, "font": {"size": style.SUBTITLE_SIZE}, **at}


def _x_ticks(panel: SelectionPanel) -> tuple[list[int] | None, list[str] | None, str]:
    """Positions and texts of ticks, and the title of the axis."""
    if panel.is_share:
        return None, None, f"% of {panel.kind}"
    if panel.span_names:
        names = list(map(style.plain, panel.span_names))
        return list(range(len(names))), names, panel.kind
    if not panel.has_numbers:
        return [], [], panel.noun
    return list(range(len(panel.indices))), list(map(str, panel.indices)), panel.noun


def _axis(name: str, number: int) -> str:
    """Plotly's name of an axis; the first has no number."""
    return name if number == 1 else f"{name}{number}"


_PLOT = 360.0
"""Width and height of the map, in pixels."""
_MOST_GROUPS = 12
"""Groups beyond which only these are named, and not their rows."""
Cell = tuple[int, int]
"""Row and column."""
RING = "ring: interval<br>(95 %) without 0"
"""Note of maps that ring what is not significant but has an interval without 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PairMap:
    """A value for each ordered pair; those above and below the diagonal may mean two things."""

    labels: Sequence[str]
    """Of rows and columns."""
    groups: Sequence[tuple[str, str, int]] = ()
    """Long name, short name and number of neighbouring rows that belong together."""
    noun: str = ""
    """Title of the horizontal axis."""
    values: Sequence[Sequence[float | None]]
    """By row; None where there is no pair."""
    hover: Sequence[Sequence[str]]
    """Text at the pointer, by row."""
    bound: float
    """Size of the values with the darkest colours."""
    dotted: Iterable[Cell] = ()
    """Cells with a dot in the corner."""
    ringed: Iterable[Cell] = ()
    """Cells with a ring in the corner."""
    note: str = ""
    """Below the title of the colour bar."""


def pair_map(pairs: PairMap, *, title: str, subtitle: str) -> go.Figure:
    """Draws a map: red above 0, blue below, with signs where colours are lost in grey."""
    n, bound = len(pairs.labels), pairs.bound
    shares = np.array(pairs.values, dtype=float) / bound
    ticks = {}
    if (np.abs(shares) > 1 + 1e-6).any():
        ends = [-bound, -bound / 2, 0, bound / 2, bound]
        least, *inner, most = map(style.two_digits, ends)
        ticks = {"tickvals": ends, "ticktext": [f"\u25bc {least}", *inner, f"\u25b2 {most}"]}
    # Of many rows, only the strongest have a sign: it would be too small to read.
    faint = _FAINT if n <= 24 else 0.5
    note = f"\u2212: below {style.two_digits(-faint * bound)}"
    note += f"<br>{pairs.note}" if pairs.note else ""
    figure = go.Figure(
        go.Heatmap(
            z=pairs.values,
            x=list(range(n)),
            y=list(range(n)),
            text=pairs.hover,
            hovertemplate="%{text}<extra></extra>",
            colorscale="RdBu_r",
            zmid=0,
            zmin=-bound,
            zmax=bound,
            xgap=0.5 if n > 40 else 1,
            ygap=0.5 if n > 40 else 1,
            colorbar=style.color_bar("interaction", note, exponentformat="power", **ticks),
        )
    )
    _add_signs(figure, shares, faint, 18)
    for cells, symbol in ((list(pairs.dotted), "circle"), (list(pairs.ringed), "circle-open")):
        if cells:
            rows, columns = np.array(cells).T
            at = {"x": (columns + 0.32).tolist(), "y": (rows - 0.32).tolist()}
            look = {"symbol": symbol, "color": _mark_colors(shares[rows, columns])}
            look["size"] = max(3, min(7, round(_PLOT / n / 6)))
            figure.add_scatter(**at, mode="markers", marker=look, **style.QUIET)
    _label(figure, pairs)
    figure.update_xaxes(**style.BOX, range=[-0.5, n - 0.5], showgrid=False)
    figure.update_yaxes(**style.BOX, range=[n - 0.5, -0.5], showgrid=False)
    figure.update_layout(plot_bgcolor=style.UNSTUDIED)
    return style.finish(figure, title, subtitle, plot=(_PLOT, _PLOT))


def _label(figure: go.Figure, pairs: PairMap) -> None:
    n, noun, groups = len(pairs.labels), pairs.noun, pairs.groups
    ticks, names = list(range(n)), list(map(style.plain, pairs.labels))
    is_upright = not groups and (n > 4 or max(map(len, names)) > 8)
    ends = list(accumulate(size for _, _, size in groups))
    if len(groups) > _MOST_GROUPS:
        # Groups alone have room.
        ticks = [end - (size + 1) / 2 for end, (_, _, size) in zip(ends, groups, strict=True)]
        names, noun = [short for _, short, _ in groups], "layer"
    figure.update_xaxes(tickvals=ticks, ticktext=names, tickangle=-90 if is_upright else 0)
    figure.update_yaxes(tickvals=ticks, ticktext=names)
    font = {"showarrow": False, "font": {"size": style.TICK_SIZE}}
    line = {"color": "black", "width": 1}
    is_long = all(size * _PLOT / n > 80 for _, _, size in groups)
    for end, (long, short, size) in zip(ends, groups, strict=True):
        middle, text = end - (size + 1) / 2, long if is_long else short
        text = text if len(groups) <= _MOST_GROUPS else ""
        below = {"x": middle, "xref": "x", "y": 0, "yref": "y domain", "yshift": -24}
        figure.add_annotation(**below, yanchor="top", text=text, **font)
        beside = {"y": middle, "yref": "y", "x": 0, "xref": "x domain", "xshift": -28}
        figure.add_annotation(**beside, xanchor="right", textangle=-90, text=text, **font)
        if end < n:
            figure.add_vline(x=end - 0.5, line=line)
            figure.add_hline(y=end - 0.5, line=line)
    standoff = 22 if groups and len(groups) <= _MOST_GROUPS else 8
    figure.update_xaxes(title_text=noun, title_standoff=standoff)
