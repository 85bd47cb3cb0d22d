"""A table: a pandas DataFrame that is written as CSV and as LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any

from tracekit._util.files import write_beside, write_csv
from tracekit._util.markup import printable


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A DataFrame and the layout of its LaTeX table."""

    frame: Any
    """The pandas DataFrame; the CSV file holds all of it."""
    caption: str
    """In LaTeX."""
    label: str = ""
    """Name for `\\ref` in LaTeX, e.g. `tab:effects`. Empty: none."""
    columns: Sequence[str] = ()
    """Columns of the LaTeX table. Empty: all."""
    best: Sequence[str] = ()
    """Columns in which, within each group, the largest value is bold and the second underlined.
    Values that print alike are marked alike."""
    groups: Sequence[str] = ()
    """Rows that agree in these columns are a group. Empty: all rows are one group."""
    brief: bool = True
    """Whether it is short enough for a terminal."""

    @property
    def visible_frame(self) -> Any:
        """The columns of the LaTeX table, as a DataFrame."""
        return self.frame[list(self.columns)] if self.columns else self.frame

    def latex(self) -> str:
        """The LaTeX table, for a document that loads booktabs."""
        frame = self.visible_frame.dropna(axis="columns", how="all")
        printed = self._printed(frame)
        marks = self._marks(frame, printed)
        styler = printed.style.format(escape="latex").hide(axis="index")
        styler = styler.apply(lambda _: marks, axis=None)
        styler = styler.format_index(escape="latex", axis="columns")
        text = styler.to_latex(
            hrules=True,
            caption=self.caption,
            label=self.label or None,
            position="t",
            position_float="centering",
            column_format="".join("l" if frame[c].dtype.kind in "OUT" else "r" for c in frame),
        )
        return str(text)

    def _printed(self, frame: Any) -> Any:
        """The texts of all cells: in a column, numbers have the same decimals."""
        import pandas as pd

        columns = {column: _printed(frame[column]) for column in frame}
        return pd.DataFrame(columns, index=frame.index)

    def _marks(self, frame: Any, printed: Any) -> Any:
        """LaTeX commands for each cell, as a DataFrame of the same shape."""
        import pandas as pd

        marks = pd.DataFrame("", index=frame.index, columns=frame.columns)
        one_group = [(None, frame)]
        groups = frame.groupby(list(self.groups), sort=False) if self.groups else one_group
        for _, part in groups:
            if len(part) < 2:
                continue
            for column in set(self.best) & set(frame):
                ranked = part[column].dropna().sort_values(ascending=False)
                texts = printed.loc[ranked.index, column]
                best = texts.index[texts == texts.iloc[0]] if len(texts) else []
                marks.loc[best, column] = "textbf:--rwrap;"
                # After several best ones there is no second.
                if len(best) == 1 and len(texts) > 1:
                    second = texts.index[texts == texts.iloc[1]]
                    marks.loc[second, column] = "underline:--rwrap;"
        return marks

    def save(self, folder: Path, name: str) -> list[Path]:
        """Writes `name.csv` and `name.tex`; returns both paths."""
        paths = [folder / f"{name}.csv", folder / f"{name}.tex"]
        folder.mkdir(parents=True, exist_ok=True)
        write_csv(self.frame, paths[0])
        write_beside(paths[1], self.latex())
        return paths


_ESCAPES = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\u2212": "$-$",
}


def latex_text(text: str) -> str:
    """A text in which LaTeX takes nothing for a command."""
    return printable(text).translate(str.maketrans(_ESCAPES))


def _printed(values: Any) -> list[str]:
    """The cells of a column: three significant digits of the largest number, `--` for none."""
    numbers = [abs(v) for v in values if isinstance(v, float) and isfinite(v)]
    largest = max(numbers, default=0.0)
    decimals = 2 - floor(log10(largest)) if largest > 0 else 2
    return [_cell(value, min(max(decimals, 0), 6)) for value in values]


def _cell(value: Any, decimals: int) -> str:
    if value is None or value != value:
        return "--"
    return f"{value:.{decimals}f}" if isinstance(value, float) else str(value)
