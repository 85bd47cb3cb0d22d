"""How results show themselves in a notebook: HTML without scripts, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit._util.markup import html_table, html_text

MOST_ROWS = 12
"""Rows that a table shows."""
COLUMNS = ["selected", "effect", "95 % spread", "of all", "faithful", "complete", "components"]
"""Of a table of results; `TraceResult.cells` has the cells."""


def card(title: str, *parts: str) -> str:
    """A title and parts of HTML below it."""
    return f'<div style="overflow-x:auto"><p><b>{html_text(title)}</b></p>{"".join(parts)}</div>'


def line(text: str) -> str:
    """A line of text."""
    return f"<p>{html_text(text)}</p>"


def text_html(self: Any) -> str:
    """A card for notebooks that shows what `print` does."""
    first, *rest = str(self).splitlines()
    return card(first, *map(line, rest))


def frame_html(title: str, frame: Any) -> str:
    """A card of a pandas DataFrame, its numbers to four digits."""
    rows = [[f"{c:.4g}" if isinstance(c, float) else c for c in row] for row in frame.to_numpy()]
    return card(title, table(list(frame), rows))


def named(labels: Sequence[str], most: int = 24) -> str:
    """Labels as one text, of which so many are named."""
    names = ", ".join(labels[:most])
    return names + (f", and {len(labels) - most} more" if len(labels) > most else "")


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table of at most a dozen rows, from the first to the last."""
    n = len(rows)
    if n <= MOST_ROWS:
        return html_table(columns, rows)
    shown = [rows[round(step * (n - 1) / (MOST_ROWS - 1))] for step in range(MOST_ROWS)]
    return html_table(columns, shown) + line(f"{MOST_ROWS} of {n} rows; to_frame() has all")


def tracer_html(facts: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> str:
    """A tracer: facts of what it traces by name, and the cells of its last dozen results."""
    shown = rows[-MOST_ROWS:]
    results = html_table(["method", *COLUMNS], shown) if rows else line("No results yet: run().")
    n_earlier = len(rows) - len(shown)
    earlier = line(f"and {n_earlier} earlier results") if n_earlier else ""
    return card("Tracer", html_table(["traced", ""], facts), results, earlier)
