"""How results show themselves in a notebook: HTML without scripts, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracekit._util.markup import MOST_ROWS, card, html_text
from tracekit._util.table import Column, Table, latex_text


class Tabular:
    """What has a `table`: as a frame, in a notebook, and in LaTeX."""

    table: Any

    def to_frame(self) -> Any:
        """A copy of the table; see there."""
        return self.table.copy()

    def to_latex(self, *, caption: str | None = None, label: str = "tab:tracekit") -> str:
        """The table in LaTeX (booktabs), a column with its 95 % interval in one."""
        text = latex_text(str(self).splitlines()[0].rstrip(":")) if caption is None else caption
        return Table.of_rows(self.table, joined=True).latex(text, label)

    def _repr_html_(self) -> str:
        n, shown = len(self.table), Table.of_rows(self.table.head(MOST_ROWS), joined=True)
        rest = [line(f"{MOST_ROWS} of {n} rows; to_frame() has all")] if n > MOST_ROWS else []
        return card(str(self).splitlines()[0], shown.html(), *rest)


def line(text: str) -> str:
    """A line of text."""
    return f"<p>{html_text(text)}</p>"


def text_html(self: Any) -> str:
    """A card for notebooks that shows what `print` does."""
    first, *rest = str(self).splitlines()
    return card(first, *map(line, rest))


def table_html(table: Table) -> str:
    """A table of at most a dozen rows, from the first to the last."""
    n = len(table)
    if n <= MOST_ROWS:
        return table.html()
    shown = [round(step * (n - 1) / (MOST_ROWS - 1)) for step in range(MOST_ROWS)]
    return table.rows(shown).html() + line(f"{MOST_ROWS} of {n} rows; to_frame() has all")


def model_text(name: str, dtype: str) -> str:
    """The name of a model, and the type of its weights where that is not float32."""
    return name if dtype in ("", "float32") else f"{name} ({dtype})"


def facts_table(facts: Iterable[tuple[str, object]], title: str = "", of: str = "") -> Table:
    """A table of names and values, under two titles."""
    names, values = zip(*facts, strict=True)
    return Table([Column("fact", title, names), Column("value", of, list(map(str, values)))])
