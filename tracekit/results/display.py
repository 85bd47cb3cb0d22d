"""How results show themselves in a notebook: HTML and SVG without scripts, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tracekit._util.markup import MAX_ROWS, html_card, html_text, interval_text
from tracekit._util.table import Column, Table, join_labels, latex_text, value_text
from tracekit.components import ComponentGrid, ComponentRegistry
from tracekit.components.masks import members_of_mask
from tracekit.components.registry import MOST_COLUMNS
from tracekit.figures.style import SELECTED, UNSTUDIED


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
        n, shown = len(self.table), Table.of_rows(self.table.head(MAX_ROWS), joined=True)
        rest = [line(f"{MAX_ROWS} of {n} rows; to_frame() has all")] if n > MAX_ROWS else []
        return html_card(str(self).splitlines()[0], shown.html(), *rest)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InWords:
    """What says in words how its numbers were made."""

    intervention: str = ""
    """What was patched (`tracekit.engine.setup.intervention_text`)."""
    examples: str = ""
    """Which examples the numbers are of, whether a search selected the set on them, how many."""

    @property
    def setting(self) -> str:
        """Both, as far as they are known."""
        return ", ".join(filter(None, [self.intervention, self.examples]))


def line(text: str) -> str:
    """A line of text."""
    return f"<p>{html_text(text)}</p>"


def text_html(self: Any) -> str:
    """A card for notebooks that shows what `print` does."""
    first, *rest = str(self).splitlines()
    return html_card(first, *map(line, rest))


def effects_text(result: Any) -> str:
    """What was patched, and the effect beside that of all components, searched and held out."""
    text = (
        f"{result.setup.intervention}: {result.axis_label} {result.effect:.4g} "
        f"(all: {result.full_effect:.4g}) on {result.searched.n_text} searched"
    )
    if result.held_out is not None:
        text += f", {result.held_out.mean:.4g} (all: {result.held_out.full_mean:.4g})"
        text += f" on {result.held_out.n_text} held-out"
    return f"{text} examples"


def result_html(result: Any) -> str:
    """A card for notebooks that shows a `TraceResult`: its numbers, its components, a picture."""
    members = members_of_mask(result.binary_mask)
    facts = [effects_text(result), f"spread {interval_text(*result.spread)}"]
    if result.held_out_interval is not None:
        facts.append(f"95 % interval held out {interval_text(*result.held_out_interval)}")
    where = "searched" if result.held_out is None else "held out"
    for name, score in zip(("faithfulness", "completeness"), result.circuit_scores, strict=True):
        facts.append(f"{name}, {where}, {value_text(score, '.2f')}")
    facts += [f"{name} {effect:.4g}" for name, effect in result.extra_effects.items()]
    choices = (result.held_out or result.searched).choices_text
    if choices:
        facts.append(f"{where}: {choices}")
    facts.append(f"{result.cost.forward_equivalents:.0f} passes, {result.run.seconds:.1f} s")
    if result.noise_floor:
        facts.append(f"noise floor {result.noise_floor:.2g}")
    if result.stopped:
        facts.append(f"stopped by {result.stopped}")
    return html_card(
        f"{result.title}: {result.n_selected} of {result.n_components} components",
        line(f"{result.dataset} data, {result.model_text} model, {result.setup.metric}"),
        line(" \u00b7 ".join(facts)),
        line(join_labels(result.labels)),
        *(line(each.summary) for each in result.certificates[-1:]),
        selection_svg(result.registry, members),
    )


def table_html(table: Table) -> str:
    """A table of at most a dozen rows, from the first to the last."""
    n = len(table)
    if n <= MAX_ROWS:
        return table.html()
    shown = [round(step * (n - 1) / (MAX_ROWS - 1)) for step in range(MAX_ROWS)]
    return table.rows(shown).html() + line(f"{MAX_ROWS} of {n} rows; to_frame() has all")


def model_text(name: str, dtype: str) -> str:
    """The name of a model, and the type of its weights where that is not float32."""
    return name if dtype in ("", "float32") else f"{name} ({dtype})"


def facts_table(facts: Iterable[tuple[str, object]], title: str = "", of: str = "") -> Table:
    """A table of names and values, under two titles."""
    names, values = zip(*facts, strict=True)
    return Table([Column("fact", title, names), Column("value", of, list(map(str, values)))])


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
    names = [8 * len(_grid_name(grid)) - _TICKS for grid in registry.grids]
    widths = [max(both) + _TICKS + _GAP for both in zip(cells, names, strict=True)]
    lefts = [0, *accumulate(widths)]
    height = max(len(grid.layers) for grid in registry.grids) * _CELL + _TOP
    parts = [
        _grid_svg(grid, inside, left) for grid, left in zip(registry.grids, lefts[:-1], strict=True)
    ]
    width = max(lefts[-1], 7 * len(caption) + 8, 200)
    if caption:
        parts.append(_text_svg(4, height + 18, caption, size=12))
    total = height + (26 if caption else 4)
    label = html_text(caption or "The set, layer by layer")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" '
        f'viewBox="0 0 {width} {total}" role="img" aria-label="{label}" '
        'font-family="Arial, Helvetica, sans-serif">'
        f'<rect width="{width}" height="{total}" fill="white"/>{"".join(parts)}</svg>'
    )


def _grid_name(grid: ComponentGrid) -> str:
    return f"{grid.kind}, {grid.span}" if grid.span else grid.kind


def _grid_svg(grid: ComponentGrid, inside: set[int], left: int) -> str:
    parts = [_text_svg(left + 4, 12, _grid_name(grid), size=12)]
    is_share = len(grid.indices) > MOST_COLUMNS
    if not is_share:
        step = 1 if len(grid.indices) < 20 else 4
        names = grid.span_names or tuple(map(str, grid.indices))
        for column in range(0, len(names), 1 if grid.span_names else step):
            x = left + _TICKS + column * _CELL + _CELL // 2
            parts.append(_text_svg(x, 28, names[column][:2], size=9, anchor="middle"))
    for row, (layer, cells) in enumerate(zip(grid.layers, grid.cells, strict=True)):
        y = _TOP + row * _CELL
        parts.append(_text_svg(left + _TICKS - 5, y + 11, str(layer), size=10, anchor="end"))
        studied = [flat for flat in cells if flat is not None]
        if is_share:
            share = sum(flat in inside for flat in studied) / len(studied)
            parts.append(_rect_svg(left + _TICKS, y + 2, _BARS, _CELL - 4, "white"))
            parts.append(_rect_svg(left + _TICKS, y + 2, share * _BARS, _CELL - 4, SELECTED))
            continue
        for column, flat in enumerate(cells):
            color = UNSTUDIED if flat is None else SELECTED if flat in inside else "white"
            parts.append(_rect_svg(left + _TICKS + column * _CELL, y, _CELL, _CELL, color))
    return "".join(parts)


def _rect_svg(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
        'stroke="#999" stroke-width="1"/>'
    )


def _text_svg(x: float, y: float, text: str, *, size: int, anchor: str = "start") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="#111">'
        f"{html_text(text)}</text>"
    )
