"""The style that all figures share: size, fonts, colours, frame.

Sizes and fonts are readable at the width of a column of text (85 mm). Colours are distinct under
the common colour-vision deficiencies and in grey; lines differ in marker and dash as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle

import plotly.graph_objects as go

WIDTH = 520
"""Pixels."""
HEIGHT = 400
"""Pixels, where the content asks for no other height."""

FONT = {"family": "Arial, Helvetica, sans-serif", "size": 15, "color": "black"}
GRID = "#d9d9d9"
BELOW = {"orientation": "h", "y": -0.28, "x": 0.5, "xanchor": "center"}
"""Position of a legend."""
# Okabe and Ito's palette, in an order that also differs in lightness.
CONTROL = ("#7F7F7F", "x", "dashdot")
"""Colour, marker and dash of random controls."""
STYLES = {
    "random": CONTROL,
    "pgb-ct": ("#D55E00", "circle", "solid"),
    "greedy": ("#0072B2", "square", "dash"),
    "top-k": ("#009E73", "diamond", "dot"),
    "exhaustive": ("#000000", "star", "longdash"),
    "local-search": ("#CC79A7", "triangle-up", "solid"),
    "dcm": ("#E69F00", "triangle-down", "dash"),
}
"""Colour, marker and dash by method."""
SPARE_STYLES = (
    ("#56B4E9", "cross", "dot"),
    ("#D55E00", "circle", "solid"),
    ("#0072B2", "square", "dash"),
    ("#009E73", "diamond", "dashdot"),
    ("#CC79A7", "triangle-up", "longdash"),
    ("#E69F00", "triangle-down", "dash"),
    ("#000000", "star", "dot"),
)


def styles(labels: Iterable[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, marker and dash of each line.

    Methods have those of `STYLES`. Other lines get spare ones, which differ from those in use in
    colour or marker as far as possible.

    Args:
        labels: Names of the lines; repetitions count once.
    """
    labels = list(dict.fromkeys(labels))
    taken = {STYLES[label][:2] for label in labels if label in STYLES}
    free = [style for style in SPARE_STYLES if style[:2] not in taken]
    spare = cycle(free or SPARE_STYLES)
    return {label: STYLES.get(label) or next(spare) for label in labels}


def tick_positions(count: int, most: int = 16) -> list[int]:
    """Evenly spaced positions from 0 to `count` - 1, at most `most`."""
    return list(range(0, count, -(-count // most)))


def finish(figure: go.Figure, title: str, subtitle: str, *, height: int = HEIGHT) -> go.Figure:
    """Sets frame, title and size of a figure, and returns it.

    Args:
        figure: Changed in place.
        title: Above the figure.
        subtitle: Below the title.
        height: In pixels.
    """
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
