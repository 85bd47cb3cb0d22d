"""A table: a pandas DataFrame that is written as CSV and as LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A DataFrame and the layout of its LaTeX table."""

    frame: Any
    """The pandas DataFrame; the CSV file holds all of it."""
    caption: str
    """In LaTeX."""
    columns: Sequence[str] = ()
    """Columns of the LaTeX table. Empty: all."""
    best: Sequence[str] = ()
    """Columns in which, within each group, the largest value is bold and the second underlined."""
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
        frame = self.visible_frame
        marks = self._marks(frame)
        styler = frame.style.format(_format, na_rep="--", escape="latex").hide(axis="index")
        styler = styler.apply(lambda _: marks, axis=None)
        styler = styler.format_index(escape="latex", axis="columns")
        text = styler.to_latex(
            hrules=True,
            caption=self.caption,
            position="t",
            position_float="centering",
            column_format="".join("l" if frame[c].dtype.kind in "OUT" else "r" for c in frame),
        )
        return str(text)

    def _marks(self, frame: Any) -> Any:
        """LaTeX commands for each cell, as a DataFrame of the same shape."""
        import pandas as pd

        marks = pd.DataFrame("", index=frame.index, columns=frame.columns)
        one_group = [(None, frame)]
        groups = frame.groupby(list(self.groups), sort=False) if self.groups else one_group
        for _, part in groups:
            if len(part) < 2:
                continue
            for column in self.best:
                ranked = sorted(part[column].dropna().unique(), reverse=True)
                for value, command in zip(ranked, ("textbf", "underline"), strict=False):
                    rows = part.index[part[column] == value]
                    marks.loc[rows, column] = f"{command}:--rwrap;"
        return marks

    def save(self, folder: Path, name: str) -> list[Path]:
        """Writes `name.csv` and `name.tex`; returns both paths."""
        paths = [folder / f"{name}.csv", folder / f"{name}.tex"]
        folder.mkdir(parents=True, exist_ok=True)
        self.frame.to_csv(paths[0], index=False)
        paths[1].write_text(self.latex(), encoding="utf-8")
        return paths


def _format(value: Any) -> str:
    """Three significant digits of a number, else the text."""
    if not isinstance(value, float):
        return str(value)
    if isnan(value):
        return "--"
    return f"{value:.3g}"
