"""What all figures share: size, fonts, colours, frame.

Sizes and fonts are chosen to be read at the width of a column of text (85 mm); colours are
distinct under the common colour-vision deficiencies and in grey, and lines differ in marker and
dash as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import plotly.graph_objects as go

WIDTH = 520
HEIGHT = 400

FONT = {"family": "Arial, Helvetica, sans-serif", "size": 15, "color": "black"}
GRID = "#d9d9d9"
BELOW = {"orientation": "h", "y": -0.28, "x": 0.5, "xanchor": "center"}
"""Place of a legend."""
# Okabe and Ito's palette, in an order that also differs in lightness.
CONTROL = ("#7F7F7F", "x", "dashdot")
STYLES = {
    "random": CONTROL,
    "pgb-ct": ("#D55E00", "circle", "solid"),
    "greedy": ("#0072B2", "square", "dash"),
    "top-k": ("#009E73", "diamond", "dot"),
    "exhaustive": ("#000000", "star", "longdash"),
    "path": ("#CC79A7", "triangle-up", "solid"),
    "dcm": ("#E69F00", "triangle-down", "dash"),
}
SPARE_STYLES = (
    ("#56B4E9", "cross", "dot"),
    ("#D55E00", "circle", "solid"),
    ("#0072B2", "square", "dash"),
    ("#009E73", "diamond", "dashdot"),
    ("#CC79A7", "triangle-up", "longdash"),
    ("#E69F00", "triangle-down", "dash"),
    ("#000000", "star", "dot"),
)
_NAMES = {"pgb-ct": "PGB-CT", "dcm": "DCM", "mask-ig": "mask IG"}


def styles(labels: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and dash of each line; methods always have the same ones."""
    labels = list(dict.fromkeys(labels))
    taken = [STYLES[label] for label in labels if label in STYLES]
    free = [s for s in SPARE_STYLES if not any(s[:2] == other[:2] for other in taken)]
    spare = cycle(free or SPARE_STYLES)
    return {label: STYLES.get(label) or next(spare) for label in labels}


def shown(method: str) -> str:
    """What a method is called in print."""
    return _NAMES.get(method, method)


def tick_places(count: int, most: int = 16) -> list[int]:
    """Evenly spaced places, at most `most`."""
    return list(range(0, count, -(-count // most)))


def finish(figure: go.Figure, title: str, subtitle: str, *, height: int = HEIGHT) -> go.Figure:
    """Frame, title and size."""
    figure.update_xaxes(linecolor="black", ticks="outside", gridcolor=GRID, zeroline=False)
    figure.update_yaxes(linecolor="black", ticks="outside", gridcolor=GRID, zeroline=False)
    # Tick labels of large numbers push the title outwards.
    figure.update_yaxes(automargin=True, title_standoff=12)
    return figure.update_layout(
        template="none",
        title={
            "text": title,
            "subtitle": {"text": subtitle, "font": {"size": 13}},
            "font": {"size": 16},
            "x": 0.02,
            "xanchor": "left",
        },
        font=FONT,
        width=WIDTH,
        height=height,
        margin={"l": 70, "r": 20, "t": 70, "b": 60},
    )
