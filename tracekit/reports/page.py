"""A page: texts, tables and figures in one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tracekit._util.files import write_atomically
from tracekit._util.markup import render_html
from tracekit._util.table import Table

_BUTTONS = ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "pan2d"]
"""Of plotly's bar, which lies over the titles of narrow figures."""
_FIGURE_OPTIONS = {
    "full_html": False,
    "include_plotlyjs": False,
    "config": {"displaylogo": False, "modeBarButtonsToRemove": _BUTTONS},
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Section:
    """A part of a page; empty parts are left out."""

    heading: str = ""
    lead: str = ""
    """A sentence in large type."""
    paragraphs: Sequence[str] = ()
    figures: Sequence[go.Figure] = ()
    """Side by side, where there is room."""
    table: Table | None = None
    note: str = ""
    """In small type, below the table and the figures."""
    code: str = ""
    """Commands or code, line by line."""


def write_page(path: Path, title: str, sections: Sequence[Section]) -> Path:
    """Writes an HTML page that holds all it needs, all texts escaped; returns its path."""
    page = render_html(
        Path(__file__).with_name("page.html"),
        title=title,
        sections=sections,
        plotly=get_plotlyjs(),
        figure_options=_FIGURE_OPTIONS,
    )
    write_atomically(path, page)
    return path
