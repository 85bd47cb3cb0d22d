"""A table whose columns are defined once: for terminals, notebooks, papers, files and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import floor, isfinite, log10
from typing import Any

from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text, html_text, interval_text

_MISSING = "-"
_LONG = 24
"""Characters beyond which a text in an HTML table may be broken."""


def join_labels(labels: Sequence[str], most: int = 24) -> str:
    """Joins labels with commas; says how many more there are than `most`."""
    names = ", ".join(labels[:most])
    return names + (f", and {len(labels) - most} more" if len(labels) > most else "")


def value_text(value: Any, form: str | Callable[[Any], str] = ".4g") -> str:
    """Formats a value for readers, as a column of this form shows it."""
    if isinstance(value, tuple):
        *first, low, high = value
        ends = _MISSING if low is None else interval_text(low, high)
        if not first or _is_missing(first[0]):
            return _MISSING if first else ends
        return f"{value_text(first[0], form)} ({ends})"
    if _is_missing(value):
        return _MISSING
    if callable(form):
        return form(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:{form}}".replace("%", " %")
    return ", ".join(value) if isinstance(value, list) else str(value)


@dataclass(frozen=True, eq=False)
class Column:
    """Values, and how they are shown."""

    key: str
    """In JSON and data frames; the ends of intervals are `KEY_low` and `KEY_high`."""
    title: str
    """For readers."""
    values: Sequence[Any]
    """Numbers, texts, lists of labels, `(low, high)`, `(value, low, high)` or None."""
    form: str | Callable[[Any], str] = ".4g"
    """Of floats as for `format`, or what makes the text of any value."""
    styles: Mapping[int, str] = field(default_factory=dict)
    """By row: `bold`, `underline`, or the name of a colour, which only terminals show."""

    def text(self, value: Any) -> str:
        """A value for readers."""
        return value_text(value, self.form)

    @property
    def texts(self) -> list[str]:
        """All values for readers."""
        return [clean_text(self.text(value)) for value in self.values]

    @property
    def is_text(self) -> bool:
        """Whether the column has texts, which are aligned to the left."""
        return any(isinstance(value, (str, list)) for value in self.values)

    def html(self, is_first: bool) -> list[str]:
        """Cells of an HTML table, the title first; numbers stand under each other."""
        # Sentences and lists of labels are broken between words.
        is_long = any(len(text) > _LONG and " " in text for text in self.texts)
        style = f"text-align:{'left' if is_first or is_long else 'right'}"
        style += f";min-width:{_LONG}ch;white-space:normal" if is_long and not is_first else ""
        cells = [f'<th style="{style}">{html_text(self.title)}</th>']
        for row, text in enumerate(self.texts):
            bold = ";font-weight:bold" if self.styles.get(row) == "bold" else ""
            shown = "\u2013" if text == _MISSING else html_text(text)
            cells.append(f'<td style="{style}{bold}">{shown}</td>')
        return cells

    def entries(self, row: int) -> dict[str, Any]:
        """The value of a row and the ends of its interval, by their keys."""
        value = self.values[row]
        if not isinstance(value, tuple):
            return {self.key: value}
        names = [self.key, f"{self.key}_low", f"{self.key}_high"]
        return dict(zip(names[-len(value) :], value, strict=True))


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length."""

    columns: Sequence[Column]

    @classmethod
    def of_rows(
        cls,
        rows: Any,
        titles: Mapping[str, str] | None = None,
        forms: Mapping[str, Any] | None = None,
        *,
        joined: bool = False,
    ) -> Table:
        """A column for each key of the rows, with its title and form where these are given.

        The rows are mappings, or a pandas DataFrame. By default a title is the key, with spaces.
        If `joined`, a column with the ends of its interval is one of `(value, low, high)`.
        """
        names = list(dict.fromkeys(map(str, chain(*rows)))) if isinstance(rows, list) else [*rows]
        rows = rows if isinstance(rows, list) else rows.to_dict("records")
        ends = {end for name in names for end in (f"{name}_low", f"{name}_high") if joined}
        columns = []
        for name in names:
            keys = [name, f"{name}_low", f"{name}_high"]
            if name not in ends:
                is_joined = joined and {*keys} <= {*names}
                cells = [tuple(_to_python_number(row.get(key)) for key in keys) for row in rows]
                values = cells if is_joined else [cell[0] for cell in cells]
                title = (titles or {}).get(name, name.replace("_", " "))
                form = (forms or {}).get(name, ".4g")
                columns.append(Column("_".join(name.split()), title, values, form))
        return cls(columns)

    def __len__(self) -> int:
        return len(self.columns[0].values) if self.columns else 0

    def __getitem__(self, name: str) -> Column:
        """The column of this title, or else of this key."""
        return min(
            (column for column in self.columns if name in (column.title, column.key)),
            key=lambda column: column.title != name,
        )

    @property
    def titles(self) -> list[str]:
        """Titles of the columns."""
        return [column.title for column in self.columns]

    @property
    def cells(self) -> list[list[str]]:
        """The texts of every row, as all readers see them."""
        return [list(row) for row in zip(*(each.texts for each in self.columns), strict=True)]

    def only(self, *titles: str, brief: bool = False) -> Table:
        """The columns of these titles, in this order; if `brief`, without intervals of values."""
        columns = [self[title] for title in titles]
        if brief:
            shown = lambda v: v[0] if isinstance(v, tuple) and len(v) == 3 else v  # noqa: E731
            columns = [replace(each, values=[*map(shown, each.values)]) for each in columns]
        return Table(columns)

    def without(self, *titles: str) -> Table:
        """All columns but these."""
        return Table([each for each in self.columns if each.title not in titles])

    def rows(self, numbers: Iterable[int]) -> Table:
        """Some rows, by their numbers."""
        kept = list(numbers)
        columns = []
        for column in self.columns:
            styles = {n: column.styles[row] for n, row in enumerate(kept) if row in column.styles}
            values = [column.values[row] for row in kept]
            columns.append(replace(column, values=values, styles=styles))
        return Table(columns)

    def aligned(self) -> Table:
        """Gives the numbers of a column the same decimals: three digits of the largest."""
        columns = []
        for column in self.columns:
            sizes = [abs(v) for v in column.values if isinstance(v, float) and isfinite(v)]
            largest = max(sizes, default=0.0)
            decimals = min(max(2 - floor(log10(largest)) if largest > 0 else 2, 0), 6)
            is_usual = column.form == ".4g"
            columns.append(replace(column, form=f".{decimals}f") if is_usual else column)
        return Table(columns)

    def ranked(
        self,
        title: str,
        within: Sequence[str] = (),
        *,
        second: bool = False,
        among: Sequence[int] | None = None,
    ) -> Table:
        """Makes the largest value of a column bold, and underlines the second if `second`.

        Compares the rows `among` (None: all), each with the rows equal in the columns `within`.
        """
        column, styles = self[title], dict[int, str]()
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row in range(len(self)) if among is None else among:
            groups.setdefault(tuple(self[name].values[row] for name in within), []).append(row)
        for rows in groups.values():
            values = {row: column.values[row] for row in rows if len(rows) > 1}
            order = sorted((-v, row) for row, v in values.items() if not _is_missing(v))
            texts = list(dict.fromkeys(column.text(values[row]) for _, row in order))
            alike = [[row for _, row in order if column.text(values[row]) == t] for t in texts]
            styles |= dict.fromkeys(alike[0] if alike else (), "bold")
            # If several rows are best, none is the second.
            if second and len(alike) > 1 and len(alike[0]) == 1:
                styles |= dict.fromkeys(alike[1], "underline")
        ranked = replace(column, styles=styles)
        return Table([ranked if each is column else each for each in self.columns])

    def entries(self) -> list[dict[str, Any]]:
        """A mapping from key to value for each row."""
        rows = range(len(self))
        return [{k: v for c in self.columns for k, v in c.entries(row).items()} for row in rows]

    def records(self) -> list[dict[str, Any]]:
        """The rows for JSON; null stands for None, NaN and infinity."""
        return [{key: json_value(value) for key, value in row.items()} for row in self.entries()]

    def frame(self) -> Any:
        """The rows as a pandas DataFrame; lists of labels are texts."""
        keys = None if len(self) else [column.key for column in self.columns]
        frame = pd.DataFrame(self.entries(), columns=keys)
        for column in self.columns:
            if any(isinstance(value, list) for value in column.values):
                frame[column.key] = frame[column.key].map(" ".join)
        return frame

    def html(self) -> str:
        """An HTML table, every text escaped."""
        columns = [column.html(number == 0) for number, column in enumerate(self.columns)]
        rows = ["<tr>" + "".join(row) + "</tr>" for row in zip(*columns, strict=True)]
        head, body = "".join(rows[:1]), rows[1:]
        return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"

    def markdown(self) -> str:
        """A Markdown table."""
        rows = [self.titles, ["---"] * len(self.columns), *self.cells]
        escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        return "".join(f"| {' | '.join(row)} |\n" for row in escaped)

    __str__ = markdown

    def latex(self, caption: str, label: str = "") -> str:
        """A LaTeX table for a document that loads booktabs; empty columns are left out."""
        columns = [each for each in self.columns if any(t != _MISSING for t in each.texts)]
        cells = [
            [_latex_cell(text, column.styles.get(row)) for row, text in enumerate(column.texts)]
            for column in columns
        ]
        head = [latex_text(column.title) for column in columns]
        rows = [" & ".join(row) + r" \\" for row in (head, *zip(*cells, strict=True))]
        layout = "".join("l" if column.is_text else "r" for column in columns)
        lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{caption}}}"]
        lines += [rf"\label{{{label}}}"] if label else []
        lines += [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", rows[0], r"\midrule", *rows[1:]]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def json_value(value: Any) -> Any:
    """Converts a value for JSON; NaN and infinity become None."""
    if isinstance(value, list):
        return [json_value(entry) for entry in value]
    if isinstance(value, (bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    return clean_text(str(value))


_ESCAPES = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\u2212": "$-$",
}


def latex_text(text: str) -> str:
    """Escapes the special characters of LaTeX."""
    return clean_text(text).translate(str.maketrans(_ESCAPES))


def _latex_cell(text: str, style: str | None) -> str:
    escaped = "--" if text == _MISSING else latex_text(text)
    command = {"bold": "textbf", "underline": "underline"}.get(style or "")
    return f"\\{command}{{{escaped}}}" if command else escaped


def _to_python_number(value: Any) -> Any:
    """Converts a number of NumPy to one of Python."""
    return value.item() if hasattr(value, "item") else value


def _is_missing(value: Any) -> bool:
    return value is None or value != value
