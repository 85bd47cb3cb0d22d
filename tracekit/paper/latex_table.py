"""Tables: a pandas DataFrame, written as CSV and as LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Numbers, and how they are set."""

    frame: Any
    """A row per entry: the CSV file."""
    caption: str
    columns: Sequence[str] = ()
    """Columns of the LaTeX table; all of them if empty."""
    best: Sequence[str] = ()
    """Columns in which, within each group, the best is bold and the second underlined."""
    groups: Sequence[str] = ()
    """Columns that make a group."""
    brief: bool = True
    """Whether it is short enough to be shown in a terminal."""

    def latex(self) -> str:
        """The LaTeX table, for a document that loads booktabs."""
        shown = self.frame[list(self.columns)] if self.columns else self.frame
        marked = self._marks(shown)
        styler = shown.style.format(_number, na_rep="--", escape="latex").hide(axis="index")
        styler = styler.apply(lambda _: marked, axis=None)
        styler = styler.format_index(escape="latex", axis="columns")
        text = styler.to_latex(
            hrules=True,
            caption=self.caption,
            position="t",
            position_float="centering",
            column_format="".join("l" if shown[c].dtype.kind in "OUT" else "r" for c in shown),
        )
        return str(text)

    def _marks(self, shown: Any) -> Any:
        """Commands for each cell."""
        import pandas as pd

        marks = pd.DataFrame("", index=shown.index, columns=shown.columns)
        if not self.best:
            return marks
        whole = [(None, shown)]
        groups = shown.groupby(list(self.groups), sort=False) if self.groups else whole
        for _, part in groups:
            for column in self.best:
                ranked = sorted(part[column].dropna().unique(), reverse=True)
                if len(part) < 2:
                    continue
                for place, command in zip(ranked, ("textbf", "underline"), strict=False):
                    chosen = part.index[part[column] == place]
                    marks.loc[chosen, column] = f"{command}:--rwrap;"
        return marks

    def save(self, folder: Path, name: str) -> list[Path]:
        """Writes `name.csv` and `name.tex`."""
        paths = [folder / f"{name}.csv", folder / f"{name}.tex"]
        folder.mkdir(parents=True, exist_ok=True)
        self.frame.to_csv(paths[0], index=False)
        paths[1].write_text(self.latex(), encoding="utf-8")
        return paths


def _number(value: Any) -> str:
    """Three digits that count; text as it is."""
    if not isinstance(value, float):
        return str(value)
    if isnan(value):
        return "--"
    return f"{value:.3g}"
