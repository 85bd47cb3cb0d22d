"""A page: texts, tables and figures in one HTML file that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from tracekit._util.files import write_atomically
from tracekit._util.markup import html_text
from tracekit._util.table import Table

_CSS = Path(__file__).with_name("page.css")
_BUTTONS = ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "pan2d"]
"""Of plotly's bar, which lies over the titles of narrow figures."""


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
    body = "\n".join(_section(section, number) for number, section in enumerate(sections))
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(title)}</title><style>{_CSS.read_text(encoding='utf-8')}</style>"
        f"<script>{get_plotlyjs()}</script></head>\n"
        f"<body><main><h1>{html_text(title)}</h1>\n{body}\n</main></body></html>\n"
    )
    write_atomically(path, page)
    return path


def _section(section: Section, number: int) -> str:
    """Its HTML; `number` keeps the ids of its figures apart from those of other sections."""
    parts = []
    if section.heading:
        parts.append(f"<h2>{html_text(section.heading)}</h2>")
    if section.lead:
        parts.append(f'<p class="lead">{html_text(section.lead)}</p>')
    parts += [f"<p>{html_text(paragraph)}</p>" for paragraph in section.paragraphs]
    if section.table is not None:
        parts.append(f'<div class="table">{section.table.html()}</div>')
    if section.figures:
        drawn = [
            figure.to_html(
                full_html=False,
                include_plotlyjs=False,
                config={"displaylogo": False, "modeBarButtonsToRemove": _BUTTONS},
                div_id=f"figure-{number}-{column}",
            )
            for column, figure in enumerate(section.figures)
        ]
        parts.append(f'<div class="figures">{"".join(drawn)}</div>')
    if section.note:
        parts.append(f'<p class="note">{html_text(section.note)}</p>')
    if section.code:
        parts.append(f"<pre>{html_text(section.code)}</pre>")
    return f"<section>{''.join(parts)}</section>"
