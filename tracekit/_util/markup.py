"""Texts from outside, made safe for a terminal and for HTML.

Names of models, data sets and components come from files and may hold anything: markup, quotes,
codes that steer a terminal. Whatever is shown goes through here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Any

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that steer a terminal, but for tabs and line breaks."""


def printable(text: str) -> str:
    """A text with a mark in place of each control character."""
    return _CONTROL.sub("\ufffd", text)


def html_text(value: object) -> str:
    """A value as HTML shows it letter by letter, in texts and in quoted attributes."""
    return escape(printable(str(value)), quote=True)


def script_json(value: Any) -> str:
    """A value as JSON that may stand within a script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # An HTML parser looks for tags in scripts too.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def html_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    bold: Collection[tuple[int, int]] = (),
) -> str:
    """A table of escaped cells; `bold` has the row and column of cells in bold."""
    body = []
    for number, row in enumerate(rows):
        cells = [
            _cell("b" if (number, column) in bold else "", html_text(value), column)
            for column, value in enumerate(row)
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(
        f'<th style="text-align:{_side(column)}">{html_text(name)}</th>'
        for column, name in enumerate(columns)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _cell(tag: str, text: str, column: int) -> str:
    inner = f"<{tag}>{text}</{tag}>" if tag else text
    return f'<td style="text-align:{_side(column)}">{inner}</td>'


def _side(column: int) -> str:
    return "right" if column else "left"
