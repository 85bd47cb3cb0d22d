"""Comparisons: results of several methods or sizes on the same data, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracekit._util.markup import printable
from tracekit.errors import ComparisonError, NoResultError
from tracekit.results.display import COLUMNS, card, table
from tracekit.results.latex_table import Table, latex_text
from tracekit.results.pareto_statistics import jaccard
from tracekit.results.result import TraceResult, tracer_of
from tracekit.results.tables import check_comparable

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from tracekit.results.panels import Color


@dataclass(frozen=True, eq=False)
class Comparison(Sequence[TraceResult]):
    """Results that answer the same question, on the same examples or others; see `compare`."""

    results: tuple[TraceResult, ...]
    labels: tuple[str, ...]
    """Name of each result in figures and tables."""

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, item: Any) -> Any:
        return self.results[item]

    def heatmap(self, *, color: Color = "selected") -> go.Figure:
        """Components of each result, layer by layer; `color` as in `TraceResult.heatmap`."""
        from tracekit.results.selection_figures import comparison_heatmap

        return comparison_heatmap(self.results, self.labels, color=color)

    def curve(self) -> go.Figure:
        """Effect against number of components, with the spread of every result."""
        from tracekit.results.curve_figures import effect_curve

        return effect_curve(self.results, spreads=True)

    def similarities(self) -> go.Figure:
        """The table of `jaccard` as a figure."""
        from tracekit import figures

        title = figures.data_and_model(_data_of(self.results), self.results[0].model)
        return figures.similarities(self.jaccard, title=title, subtitle="Jaccard similarity")

    def cross_effects(self) -> Any:
        """Mean effect of every set on the examples of every result, as a pandas DataFrame.

        A row per set, a column per result whose tracer measures it. The diagonal is of the examples
        that a set was selected on.

        Raises:
            NoResultError: A result was loaded, or its tracer is gone.
        """
        import pandas as pd

        tracers = [tracer_of(result) for result in self.results]
        rows = [[tracer.evaluate(result) for tracer in tracers] for result in self.results]
        return pd.DataFrame(rows, index=list(self.labels), columns=list(self.labels))

    @property
    def jaccard(self) -> Any:
        """Jaccard similarities of the selected sets, in [0, 1], as a square pandas DataFrame."""
        import pandas as pd

        sets = [result.binary_mask.nonzero()[:, 0].tolist() for result in self.results]
        rows = [[jaccard(first, second) for second in sets] for first in sets]
        return pd.DataFrame(rows, index=list(self.labels), columns=list(self.labels))

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per result.

        Columns: `result` (its label), `method`, `budget`, `selected` (number of components),
        `effect`, `low` and `high` (its 95 % spread), `share` (of the effect of all components;
        may exceed 1), `held_out`, `passes`, `components`.
        """
        import pandas as pd

        return pd.DataFrame(
            {
                "result": list(self.labels),
                "method": [result.method for result in self.results],
                "budget": [result.budget for result in self.results],
                "selected": [result.n_selected for result in self.results],
                "effect": [result.effect for result in self.results],
                "low": [result.spread[0] for result in self.results],
                "high": [result.spread[1] for result in self.results],
                "share": [result.share_of_full_effect for result in self.results],
                "held_out": [result.held_out_effect for result in self.results],
                "passes": [result.cost.forward_equivalents for result in self.results],
                "components": [" ".join(result.labels) for result in self.results],
            }
        )

    def to_latex(self, *, caption: str | None = None, label: str = "tab:tracekit") -> str:
        r"""A LaTeX table (booktabs): the best effect of each size is bold, the second underlined.

        By default the caption says data, model and metric.

        Raises:
            ComparisonError: The results are of different examples.
        """
        check_comparable(self.results)
        return Table(
            frame=self._printable_frame(),
            caption=self._caption() if caption is None else caption,
            label=label,
            best=["effect"],
            groups=["selected"],
        ).latex()

    def to_markdown(self) -> str:
        """The same columns as a Markdown table."""
        frame = self._printable_frame()
        rows = [list(frame.columns), ["---"] * len(frame.columns)]
        rows += [[_text(value) for value in row] for row in frame.itertuples(index=False)]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"

    def _printable_frame(self) -> Any:
        frame = self.to_frame()
        frame["95 % spread"] = [
            f"{low:.3g} to {high:.3g}"
            for low, high in zip(frame["low"], frame["high"], strict=True)
        ]
        frame["result"] = frame["result"].map(printable)
        columns = ["result", "selected", "effect", "95 % spread", "share", "held_out", "passes"]
        frame = frame[columns].dropna(axis="columns", how="all")
        return frame.astype({"passes": int}).rename(columns={"held_out": "held out"})

    def _caption(self) -> str:
        first = self.results[0]
        return latex_text(
            f"{first.axis_label[:1].upper()}{first.axis_label[1:]} on {first.dataset}, "
            f"{first.model}: {first.registry.describe()}. Spread is over resamples of the "
            f"{len(first.per_example)} examples that sets were selected on; share is of the "
            "effect of all components."
        )

    def _repr_html_(self) -> str:
        """A table for notebooks: a row per result."""
        first = self.results[0]
        rows = [
            [label, *result.cells()]
            for label, result in zip(self.labels, self.results, strict=True)
        ]
        title = f"{_data_of(self.results)} data, {first.model} model, {first.setup.metric}"
        return card(title, table(["result", *COLUMNS], rows))

    def __repr__(self) -> str:
        named = ", ".join(
            f"{label} {result.effect:.4g}"
            for label, result in zip(self.labels, self.results, strict=True)
        )
        return printable(f"Comparison({named})")


def compare(
    results: Iterable[TraceResult | Sequence[TraceResult]], labels: Sequence[str] | None = None
) -> Comparison:
    """Puts results side by side: figures, similarities and tables of several methods or sizes.

    Of different examples, `jaccard`, `heatmap` and `cross_effects` compare the sets; curves and
    LaTeX tables, which have one scale, refuse them.

    Args:
        results: Results, curves or fronts of searches of the same model, components and metric.
        labels: What to call each result. None: its method, and its size where methods repeat.

    Raises:
        NoResultError: There are none.
        ComparisonError: They answer different questions, or there are not as many labels.
    """
    flat: list[TraceResult] = []
    for result in results:
        flat += [result] if isinstance(result, TraceResult) else result
    if not flat:
        raise NoResultError("There is no result to compare. Give at least one.")
    check_comparable(flat, across_data=True)
    if labels is not None and len(labels) != len(flat):
        raise ComparisonError(
            f"There are {len(flat)} results and {len(labels)} labels. Give a label for each."
        )
    return Comparison(tuple(flat), tuple(labels or _labels(flat)))


def _data_of(results: Sequence[TraceResult]) -> str:
    return " / ".join(dict.fromkeys(result.dataset for result in results))


def _labels(results: Sequence[TraceResult]) -> list[str]:
    """Methods; with sizes where a method repeats, and numbers where these repeat too."""
    titles = [result.title for result in results]
    if len({result.dataset for result in results}) > 1:
        titles = [f"{result.dataset}, {result.title}" for result in results]
    if len(set(titles)) < len(titles):
        titles = [f"{t}, {r.n_selected}" for t, r in zip(titles, results, strict=True)]
    counts = {title: titles.count(title) for title in titles}
    seen: dict[str, int] = {}
    labels = []
    for title in titles:
        seen[title] = seen.get(title, 0) + 1
        labels.append(title if counts[title] == 1 else f"{title} ({seen[title]})")
    return labels


def _text(value: Any) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")
