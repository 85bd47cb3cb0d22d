"""Docstrings of the package are Google style with Markdown inside; autodoc reads reStructuredText.

Of Markdown, the docstrings use code in backticks, fenced and indented code, and lists.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_FENCE = re.compile(r"^(\s*)```(\w*)$")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
# What reStructuredText lets stand before and after inline markup.
_BEFORE = re.compile(r"[\s'\"(\[{<\-/:]$|^$")
_AFTER = re.compile(r"^[\s'\")\]}>\-/\\:.,;!?]|^$")


def to_rst(lines: list[str]) -> list[str]:
    """The same docstring in reStructuredText."""
    converted: list[str] = []
    fence: str | None = None
    indented: int | None = None
    item: int | None = None
    for number, line in enumerate(lines):
        opening = _FENCE.match(line)
        if fence is not None:
            if opening:
                fence = None
                converted.append("")
            else:
                converted.append(f"    {line}" if line.strip() else "")
            continue
        if opening:
            fence = opening[1]
            converted += ["", f"{fence}.. code-block:: {opening[2] or 'text'}", ""]
            continue
        if not line.strip():
            item = None
            converted.append(line)
            continue
        if indented is not None and _indent(line) >= indented:
            converted.append(line)
            continue
        indented = None
        has_previous = bool(converted and converted[-1].strip())
        if _ITEM.match(line):
            if has_previous and item is None:
                converted.append("")
            item = _indent(line)
        elif item is not None and _indent(line) <= item:
            # The text after a list, which Markdown lets follow at once.
            item = None
            converted.append("")
        text = _with_literals(line)
        code = _indented_code(lines, number)
        if code is not None:
            indented = code
            text = text.rstrip()
            text += ":" if text.endswith(":") else " ::"
        converted.append(text)
    return converted


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _indented_code(lines: list[str], number: int) -> int | None:
    """The indent of the code that follows this line after a blank one; None if none does."""
    following = lines[number + 1 : number + 3]
    if len(following) < 2 or following[0].strip() or not following[1].strip():
        return None
    indent = _indent(following[1])
    is_code = indent >= _indent(lines[number]) + 4 and not _ITEM.match(following[1])
    return indent if is_code and lines[number].rstrip().endswith(":") else None


def _with_literals(line: str) -> str:
    def literal(match: re.Match[str]) -> str:
        before = "" if _BEFORE.search(line[: match.start()][-1:]) else "\\ "
        after = "" if _AFTER.search(line[match.end() :][:1]) else "\\ "
        return f"{before}``{match[1]}``{after}"

    # A bar begins a substitution.
    pieces = re.split(r"(`[^`\n]+`)", line)
    line = "".join(each if each.startswith("`") else each.replace("|", "\\|") for each in pieces)
    return _CODE.sub(literal, line)


def _convert(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = to_rst(lines)


_ALIAS = re.compile(r"TypeAliasForwardRef\('[\w.]*?(\w+)'\)")


def _name_types(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """In unions, Sphinx leaves the names of `autodoc_type_aliases` wrapped."""
    if not signature:
        return None
    return _ALIAS.sub(r"\1", signature), _ALIAS.sub(r"\1", returns) if returns else returns


def setup(app: Sphinx) -> dict[str, Any]:
    """Before napoleon, which has 500, reads the sections."""
    app.connect("autodoc-process-docstring", _convert, priority=400)
    app.connect("autodoc-process-signature", _name_types)
    return {"parallel_read_safe": True}
