"""Values against the number of components: lines with intervals, and a second axis of shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from types import MappingProxyType

import plotly.graph_objects as go

from tracekit.figures.style import QUIET, TICK_SIZE, add_key, error_bars, finish, frame, plain

_UNSEEN = {"mode": "markers", "marker_opacity": 0, **QUIET}
"""Of points that only make room."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """One line, or the points of one, with the text of every point."""

    name: str
    """In the legend."""
    sizes: Sequence[int]
    """Number of components of each point."""
    values: Sequence[float]
    style: tuple[str, str, str]
    """Colour, marker and dash, as from `styles`."""
    hover: Sequence[str]
    """Text of each point at the pointer, below the name and the size."""
    low: Sequence[float] | None = None
    """Low end of the interval of each point; None: there are none."""
    high: Sequence[float] | None = None
    """High end of each."""
    is_band: bool = False
    """Whether intervals are a band around the line instead of bars."""
    is_hollow: bool = False
    """Whether markers are hollow, so that those below can be seen, and the line starts at 0, 0.

    A single point has no line."""
    mode: str = "lines+markers"
    """Marks that are drawn, as plotly calls them."""
    rank: int = 0
    """Place in the legend."""
    in_legend: bool = True


def size_lines(
    lines: Sequence[Line],
    *,
    n_components: int,
    largest: int,
    value_title: str,
    title: str,
    subtitle: str,
    full: float | None = None,
    log_y: bool = False,
    keys: Mapping[str, str] = MappingProxyType({}),
) -> go.Figure:
    """Lines over the number of components, the last one on top.

    The axis of shares ends at `largest` components. At the value of all components, `full`, there
    is a horizontal line; without it, at 0 and 1. With `log_y`, values that are not positive are
    missing. `keys` are further entries of the legend, each with its marker.
    """
    figure = go.Figure()
    for each in lines:
        _add(figure, each, n_components, has_origin=not log_y)
    for name, symbol in keys.items():
        add_key(figure, name, marker={"symbol": symbol, "size": 9, "color": "black"})
    figure.update_xaxes(title_text="number of components", rangemode="tozero")
    figure.update_yaxes(title_text=value_title, rangemode="tozero", exponentformat="power")
    if full is None:
        for height in (0, 1):
            figure.add_hline(y=height, line={"color": "black", "width": 1, "dash": "dot"})
    else:
        line = {"color": "black", "width": 1.5, "dash": "dot"}
        note = {"text": f"all {n_components} components", "font_size": TICK_SIZE}
        # Beyond the line, on the left, where the curves begin at 0.
        corner = "top left" if full > 0 else "bottom left"
        figure.add_hline(full, annotation=note, annotation_position=corner, line=line)
        # A point without colour beyond the line leaves room for its name.
        figure.add_scatter(x=[0], y=[1.12 * full], **_UNSEEN)
    figure.update_layout(showlegend=True)
    _add_share_axis(frame(figure), n_components, largest)
    if log_y:
        figure.update_yaxes(type="log", rangemode="normal")
        # Annotations of logarithmic axes are positioned by the logarithm.
        figure.update_annotations(y=log10(full) if full and full > 0 else 0)
    return finish(figure, title, subtitle)


def _add(figure: go.Figure, line: Line, n: int, *, has_origin: bool) -> None:
    color, symbol, dash = line.style
    stroke, bars = {"color": color, "dash": dash, "width": 2}, None
    if line.low is not None and line.high is not None:
        bars = error_bars(line.values, line.low, line.high, color=color, thickness=1, width=3)
        if line.is_band:
            x, y = [*line.sizes, *line.sizes[::-1]], [*line.high, *line.low[::-1]]
            band = {"fill": "toself", "fillcolor": color, "opacity": 0.2, "line": {"width": 0}}
            figure.add_scatter(x=x, y=y, mode="lines", **band, **QUIET)
    if line.is_hollow and len(line.sizes) > 1 and has_origin:
        start = {"x": [0, line.sizes[0]], "y": [0, line.values[0]]}
        figure.add_scatter(**start, mode="lines", line=stroke, **QUIET)
    few, many = (9, 6) if line.is_hollow else (8, 5)
    marker = {"color": color, "symbol": symbol, "size": few if len(line.sizes) < 14 else many}
    if line.is_hollow:
        marker |= {"color": "white", "line": {"color": color, "width": 2}}
    figure.add_scatter(
        x=line.sizes,
        y=line.values,
        name=plain(line.name),
        legendrank=1000 + line.rank,
        showlegend=line.in_legend,
        mode=line.mode,
        line=stroke,
        marker=marker,
        error_y=None if line.is_band else bars,
        customdata=[
            f"{plain(line.name)}<br>{size} of {n} components ({100 * size / n:.1f} %)<br>{text}"
            for size, text in zip(line.sizes, line.hover, strict=True)
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _add_share_axis(figure: go.Figure, n: int, largest: int) -> None:
    """A second axis on top, with the share of all components."""
    step = next((s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 25) if 100 * largest / n <= 6 * s), 20)
    shares = [step * k for k in range(1, int(100 * largest / n / step + 1e-9) + 1)]
    # An axis without a trace is not drawn.
    figure.add_scatter(x=[0], y=[0], xaxis="x2", **_UNSEEN)
    places, texts = [share * n / 100 for share in shares], [f"{share:g} %" for share in shares]
    ticks = {"tickvals": places, "ticktext": texts, "ticks": "outside"}
    line = {"linecolor": "black", "showgrid": False, "zeroline": False}
    figure.update_layout(xaxis2={"overlaying": "x", "matches": "x", "side": "top", **ticks, **line})
