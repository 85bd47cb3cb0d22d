"""What a first look shows (`Tracer.look`, measured by `tracekit/tracer/look.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tracekit._util.markup import clean_text, html_card, html_text
from tracekit._util.table import Table, join_labels
from tracekit.results.by_component import SingleEffects
from tracekit.results.on_examples import InFolder
from tracekit.results.result import TraceResult

LookRow = dict[str, str | int | float | list[str] | None]


@dataclass(frozen=True, kw_only=True)
class LookPart:
    """A part of a look: lines of text, and a table below them."""

    name: str
    """`pairs`, `task`, `where`, `who`, `sets` or `next`."""
    lines: tuple[str, ...]
    rows: tuple[LookRow, ...] = ()

    @property
    def table(self) -> Table:
        """The rows."""
        forms = {"components": partial(join_labels, most=8)}
        return Table.of_rows([*self.rows], forms=forms, joined=True).aligned()

    def __str__(self) -> str:
        cells = [self.table.titles, *self.table.cells] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        rows = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
        return clean_text("\n".join([*self.lines, *rows]))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Look(InFolder):
    """What a first look at some pairs shows. Printed, it is a page of text."""

    FILE: ClassVar[str] = "look.json"

    parts: tuple[LookPart, ...]
    """All that is shown, in its order."""
    where: SingleEffects | None
    """Single effects of the residual stream by layer and span, or position, if they have a map."""
    sets: tuple[TraceResult, ...]
    """Sets of heads and MLP blocks by `mask-ig`, ascending, with the scores of all; none where the
    metric has no gradient."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self.parts))

    def _repr_html_(self) -> str:
        title, *lines = str(self).splitlines()
        return html_card(title, f"<pre>{html_text(chr(10).join(lines))}</pre>")
