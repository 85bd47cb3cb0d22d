"""Texts from outside, such as names in files, made safe for a terminal and for HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from math import isinf, isnan
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal, except tabs and line breaks, and lone surrogates."""
MAX_ROWS = 12
"""Rows that a table in a notebook shows."""


def clean_text(text: str) -> str:
    """Replaces control characters, and characters that UTF-8 cannot encode, by a mark."""
    return _CONTROL.sub("\ufffd", text)


def html_text(value: object) -> str:
    """Escapes a value for the text and the quoted attributes of HTML."""
    return escape(clean_text(str(value)), quote=True)


def html_card(title: str, *parts: str) -> str:
    """HTML of a title with further HTML below it."""
    return f'<div style="overflow-x:auto"><p><b>{html_text(title)}</b></p>{"".join(parts)}</div>'


def render_html(template: Path, **values: Any) -> str:
    """A Jinja template with values, which are cleaned and escaped unless marked as `safe`."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        finalize=lambda value: value if hasattr(value, "__html__") else clean_text(str(value)),
    )
    return environment.get_template(template.name).render(values)


def script_json(value: Any) -> str:
    """JSON of a value that is safe within a script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # An HTML parser looks for tags in scripts too.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def interval_text(low: float, high: float) -> str:
    """The ends of an interval as text, or why there is no interval."""
    if isnan(low):
        return "too few independent examples for an interval"
    return "unbounded" if isinf(low) and isinf(high) else f"{low:.3g} to {high:.3g}"


def number_text(row: Any, name: str, form: str = ".3g") -> str:
    """A number of a row with its interval, as `0.31 (0.2 to 0.4)`."""
    return f"{row[name]:{form}} ({interval_text(row[f'{name}_low'], row[f'{name}_high'])})"


def as_cells(name: str, value: Any, ends: Iterable[Any]) -> dict[str, Any]:
    """Entries `NAME`, `NAME_low` and `NAME_high`: a value and the ends of its interval."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), (value, *ends), strict=True))
