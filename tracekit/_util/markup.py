"""Texts from outside, such as names in files, made safe for a terminal and for HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from math import isinf, isnan
from typing import Any

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal, but for tabs and line breaks; and halves of characters."""
MAX_ROWS = 12
"""Rows that a table in a notebook shows."""


def make_printable(text: str) -> str:
    """A text with a mark in place of each control character, and of what UTF-8 cannot write."""
    return _CONTROL.sub("\ufffd", text)


def html_text(value: object) -> str:
    """A value as HTML shows it letter by letter, in texts and in quoted attributes."""
    return escape(make_printable(str(value)), quote=True)


def html_card(title: str, *parts: str) -> str:
    """A title and parts of HTML below it."""
    return f'<div style="overflow-x:auto"><p><b>{html_text(title)}</b></p>{"".join(parts)}</div>'


def script_json(value: Any) -> str:
    """A value as JSON that may stand within a script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # An HTML parser looks for tags in scripts too.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def interval_text(low: float, high: float) -> str:
    """Both ends for a text; says where there are none."""
    if isnan(low):
        return "too few independent examples for an interval"
    return "unbounded" if isinf(low) and isinf(high) else f"{low:.3g} to {high:.3g}"


def number_text(row: Any, name: str, form: str = ".3g") -> str:
    """A number of a row with its interval, as `0.31 (0.2 to 0.4)`."""
    return f"{row[name]:{form}} ({interval_text(row[f'{name}_low'], row[f'{name}_high'])})"


def interval_entries(name: str, value: Any, ends: Iterable[Any]) -> dict[str, Any]:
    """A number of a row, or a column, and the ends of its interval: `NAME_low`, `NAME_high`."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), (value, *ends), strict=True))
