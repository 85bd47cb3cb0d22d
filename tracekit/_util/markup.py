"""Texts from outside, made safe for a terminal and for HTML.

Names of models, data sets and components come from files and may hold anything: markup, quotes,
codes that steer a terminal. Whatever is shown goes through here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from html import escape
from math import isinf, isnan
from typing import Any

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal, but for tabs and line breaks; and halves of characters."""


def printable(text: str) -> str:
    """A text with a mark in place of each control character, and of what UTF-8 cannot write."""
    return _CONTROL.sub("\ufffd", text)


def html_text(value: object) -> str:
    """A value as HTML shows it letter by letter, in texts and in quoted attributes."""
    return escape(printable(str(value)), quote=True)


def script_json(value: Any) -> str:
    """A value as JSON that may stand within a script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # An HTML parser looks for tags in scripts too.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_LONG = 24
"""Characters beyond which a text in a table may be broken."""


def html_table(
    columns: Iterable[object],
    rows: Iterable[Iterable[object]],
    *,
    bold: Collection[tuple[int, int]] = (),
) -> str:
    """A table of escaped cells; `bold` has the row and column of cells in bold."""
    listed = [[str(value) for value in row] for row in rows]
    # Sentences and lists of labels are broken between words; numbers stand under each other.
    broken = {
        column
        for row in listed
        for column, text in enumerate(row)
        if column == 0 or (len(text) > _LONG and " " in text)
    }
    body = [
        _row("td", row, broken, [column for at, column in bold if at == number])
        for number, row in enumerate(listed)
    ]
    head = _row("th", columns, broken)
    return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"


def _row(
    tag: str, values: Iterable[object], broken: Collection[int], bold: Collection[int] = ()
) -> str:
    cells = []
    for column, value in enumerate(values):
        style = f"text-align:{'left' if column in broken else 'right'}"
        if column and column in broken:
            style += f";min-width:{_LONG}ch;white-space:normal"
        style += ";font-weight:bold" if column in bold else ""
        cells.append(f'<{tag} style="{style}">{html_text(value)}</{tag}>')
    return f"<tr>{''.join(cells)}</tr>"


def interval_text(low: float, high: float) -> str:
    """Both ends for a text; says where there are none."""
    if isnan(low):
        return "too few examples for an interval"
    return "unbounded" if isinf(low) and isinf(high) else f"{low:.3g} to {high:.3g}"
