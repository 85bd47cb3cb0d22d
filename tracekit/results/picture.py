"""A picture of a set that needs nothing to be drawn: SVG, for where no script runs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from tracekit._util.markup import html_text
from tracekit.components import ComponentGrid, ComponentRegistry
from tracekit.components.registry import MOST_COLUMNS
from tracekit.figures.style import SELECTED, UNSTUDIED

_CELL = 15
_TICKS = 30
"""Pixels for the numbers of layers."""
_TOP = 34
_GAP = 22
_BARS = 110
"""Width of a grid that has too many columns to be drawn, whose layers are bars."""


def selection_svg(registry: ComponentRegistry, members: Iterable[int], caption: str = "") -> str:
    """Which components are in a set, layer by layer, as an SVG image on white.

    A layer with more than 64 components is a bar: the share of them that is in the set.
    """
    inside = set(members)
    columns = [len(grid.indices) for grid in registry.grids]
    cells = [_BARS if n > MOST_COLUMNS else n * _CELL for n in columns]
    names = [8 * len(_name(grid)) - _TICKS for grid in registry.grids]
    widths = [max(both) + _TICKS + _GAP for both in zip(cells, names, strict=True)]
    lefts = [0, *accumulate(widths)]
    height = max(len(grid.layers) for grid in registry.grids) * _CELL + _TOP
    parts = [
        _grid(grid, inside, left) for grid, left in zip(registry.grids, lefts[:-1], strict=True)
    ]
    width = max(lefts[-1], 7 * len(caption) + 8, 200)
    if caption:
        parts.append(_text(4, height + 18, caption, size=12))
    total = height + (26 if caption else 4)
    label = html_text(caption or "The set, layer by layer")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" '
        f'viewBox="0 0 {width} {total}" role="img" aria-label="{label}" '
        'font-family="Arial, Helvetica, sans-serif">'
        f'<rect width="{width}" height="{total}" fill="white"/>{"".join(parts)}</svg>'
    )


def _name(grid: ComponentGrid) -> str:
    return f"{grid.kind}, {grid.span}" if grid.span else grid.kind


def _grid(grid: ComponentGrid, inside: set[int], left: int) -> str:
    parts = [_text(left + 4, 12, _name(grid), size=12)]
    is_share = len(grid.indices) > MOST_COLUMNS
    if not is_share:
        step = 1 if len(grid.indices) < 20 else 4
        names = grid.span_names or tuple(map(str, grid.indices))
        for column in range(0, len(names), 1 if grid.span_names else step):
            x = left + _TICKS + column * _CELL + _CELL // 2
            parts.append(_text(x, 28, names[column][:2], size=9, anchor="middle"))
    for row, (layer, cells) in enumerate(zip(grid.layers, grid.cells, strict=True)):
        y = _TOP + row * _CELL
        parts.append(_text(left + _TICKS - 5, y + 11, str(layer), size=10, anchor="end"))
        studied = [flat for flat in cells if flat is not None]
        if is_share:
            share = sum(flat in inside for flat in studied) / len(studied)
            parts.append(_rect(left + _TICKS, y + 2, _BARS, _CELL - 4, "white"))
            parts.append(_rect(left + _TICKS, y + 2, share * _BARS, _CELL - 4, SELECTED))
            continue
        for column, flat in enumerate(cells):
            color = UNSTUDIED if flat is None else SELECTED if flat in inside else "white"
            parts.append(_rect(left + _TICKS + column * _CELL, y, _CELL, _CELL, color))
    return "".join(parts)


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
        'stroke="#999" stroke-width="1"/>'
    )


def _text(x: float, y: float, text: str, *, size: int, anchor: str = "start") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="#111">'
        f"{html_text(text)}</text>"
    )
