"""Prints tables without breaking words; with `--json`, adds them to the document."""

from __future__ import annotations

from collections.abc import Sequence

from rich.measure import Measurement, measure_renderables
from rich.table import Table as RichTable
from rich.text import Text

from tracekit._util.table import Column, Table
from tracekit.cli.console import console

_LIST_WIDTH = 12
"""Width below which a column of components is not narrowed."""
_FRAME = 3
"""Characters that the frame takes for each column: two spaces and a line."""


def record_table(name: str, table: Table) -> bool:
    """Puts a table into the document under a name; returns whether there is a document."""
    if console.document is None:
        return False
    console.document["tables"].setdefault(name, []).extend(table.records())
    return True


def print_facts(name: str, table: Table) -> None:
    """Prints a table of one row as a line for each column."""
    if not record_table(name, table):
        drawn = RichTable(show_header=False, box=None)
        for column in table.columns:
            drawn.add_row(column.title, *column.texts)
        console.print(drawn)


def print_table(
    name: str,
    table: Table,
    shown: Table | None = None,
    *,
    heading: str | None = None,
    n_names: int = 1,
) -> None:
    """Prints a table without breaking words; with `--json`, records it under a name.

    A table that is too wide for the terminal is printed in parts, one below the other, each with
    the first `n_names` columns, which name a row. Only a word that is wider than the terminal is
    folded. `shown` has the columns and rows that a terminal has room for; None: all.
    """
    if record_table(name, table):
        if heading is not None:
            console.print(heading)
        return
    columns = (table if shown is None else shown).columns
    widths = [_width_range(column) for column in columns]
    for part in _split([each.minimum for each in widths], n_names):
        console.print(_draw_table([columns[n] for n in part], [widths[n] for n in part], heading))


def _width_range(column: Column) -> Measurement:
    """Widths of a column from its longest word to its longest line; intervals are not broken."""
    title, *cells = (
        measure_renderables(console, console.options, [Text(text)])
        for text in (column.title, *column.texts)
    )
    longest_line = max([each.maximum for each in cells], default=0)
    longest_word = max([each.minimum for each in cells], default=0)
    kinds = {type(value) for value in column.values}
    if tuple in kinds:
        longest_word = longest_line
    elif list in kinds:
        longest_word = max(longest_word, min(longest_line, _LIST_WIDTH))
    return Measurement(max(title.minimum, longest_word), max(title.maximum, longest_line))


def _split(widths: Sequence[int], n_names: int) -> list[list[int]]:
    """Numbers of the columns of each part that the terminal has room for."""
    names = list(range(n_names))
    parts = [names]
    for number in range(n_names, len(widths)):
        width = sum(widths[each] + _FRAME for each in (*parts[-1], number)) + 1
        if width > console.width and len(parts[-1]) > n_names:
            parts.append(names)
        parts[-1] = [*parts[-1], number]
    return parts


def _draw_table(
    columns: Sequence[Column], ranges: Sequence[Measurement], heading: str | None
) -> RichTable:
    drawn = RichTable(title=heading, title_justify="left")
    room = console.width - sum(each.minimum + _FRAME for each in ranges) - 1
    # rich would narrow the widest columns first, and break their words.
    widths = _widen(ranges, room)
    for number, column in enumerate(columns):
        drawn.add_column(
            column.title,
            justify="left" if number == 0 or column.is_text else "right",
            overflow="fold",
            width=widths[number] if room >= 0 else None,
        )
    for row, texts in enumerate(zip(*(column.texts for column in columns), strict=True)):
        styles = [column.styles.get(row, "") for column in columns]
        drawn.add_row(*map(Text, texts, styles))
    return drawn


def _widen(ranges: Sequence[Measurement], room: int) -> list[int]:
    """Widens columns within their ranges: first the first one, then whichever lacks most."""
    widths = [each.minimum for each in ranges]
    for _ in range(room):
        missing = [each.maximum - width for each, width in zip(ranges, widths, strict=True)]
        if max(missing) <= 0:
            break
        widths[0 if missing[0] > 0 else missing.index(max(missing))] += 1
    return widths
