"""Comparisons: results of several methods or sizes on the same data, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch

from tracekit import figures
from tracekit._util.arguments import check_arguments
from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells, clean_text
from tracekit._util.options import check_keywords
from tracekit._util.table import Column, Table, latex_text
from tracekit.errors import ComparisonError, NoResultError
from tracekit.figures.cells import draw_panels
from tracekit.figures.style import WIDE, data_and_model, plain
from tracekit.metrics import bounds_of
from tracekit.results import tables
from tracekit.results.curve import HasCurve, Results, all_results, effect_curve
from tracekit.results.display import html_card, line, table_html
from tracekit.results.intervals import row_intervals
from tracekit.results.panels import CellColor, scale_of
from tracekit.results.result import TraceResult
from tracekit.results.significance import p_values, zero_below_rounding


@check_arguments
@dataclass(frozen=True, eq=False)
class Comparison(Results):
    """Results of the same components, side by side; see `compare`."""

    results: tuple[TraceResult, ...]
    labels: tuple[str, ...]
    """Name of each result in figures and tables."""
    any_dtype: bool = False
    """Whether one model may be loaded in several types."""

    @check_keywords
    def heatmap(self, *, color: CellColor = "selected", fold: bool = False) -> go.Figure:
        """Components of each result, layer by layer; options as of `TraceResult.heatmap`.

        A layer is folded where no result has a component.
        """
        if color == "score" and not self._is_one_question:
            tables.check_comparable(self.results)
        panels = [
            panel
            for result, label in zip(self.results, self.labels, strict=True)
            for panel in result.panels(color, title=plain(label))
        ]
        n_components = self[0].n_components
        *sizes, last = dict.fromkeys(str(result.n_selected) for result in self)
        selected = f"{', '.join(sizes)} and {last}" if sizes else last
        score, *others = {each.score_title for each in self}
        largest = max(each.largest_score for each in self)
        metrics = tables.distinct(self.results, "searched.metric")
        n = tables.distinct(self.results, "searched.n_text", " and ")
        return draw_panels(
            panels,
            scale=scale_of(color, n_components, largest, "score" if others else score),
            width=WIDE,
            outlines=color != "selected",
            title=data_and_model(*tables.data_and_models(self.results)),
            subtitle=f"{selected} of {n_components} {plain('+'.join(self[0].registry.kinds))} "
            f"selected, {plain(tables.interventions(self.results))}; {plain(metrics)} on {n} "
            "searched examples",
            fold=fold,
        )

    def curve(self) -> go.Figure:
        """Effect on the searched examples against number of components, with its spread.

        If some results have held-out examples, with the effects on these and their intervals.
        """
        return effect_curve(self.results, spreads=True)

    def similarities(self) -> go.Figure:
        """The table of `jaccard` as a figure."""
        title = data_and_model(*tables.data_and_models(self.results))
        subtitle = f"Jaccard similarity; {plain(tables.interventions(self.results))}"
        return figures.similarities(self.jaccard, title=title, subtitle=subtitle)

    @property
    def jaccard(self) -> Any:
        """Jaccard similarities of the selected sets, in [0, 1], as a square pandas DataFrame."""
        sets = [result.binary_mask.nonzero()[:, 0].tolist() for result in self.results]
        rows = [[jaccard(first, second) for second in sets] for first in sets]
        return pd.DataFrame(rows, index=list(self.labels), columns=list(self.labels))

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per result.

        Columns: `result` (its label), `method`, `budget`, `n_selected` and `n_components`, the
        numbers of `docs/statistics.md`, further metrics, the cost, the members and the question.
        """
        return self.table().frame()

    def table(self, *, most_labels: int = 6) -> Table:
        """A row per result, which begins with its label; see `result_table`."""
        label = Column("result", "result", self.labels)
        return Table([label, *tables.result_table(self.results, most_labels=most_labels).columns])

    def to_latex(self, *, caption: str | None = None, label: str = "tab:tracekit") -> str:
        r"""A LaTeX table (booktabs): of each size the best is bold, the second underlined.

        That is by the effect on held-out examples where every result has one, else by the effect.
        Random sets are a control, which is never marked. By default the caption says data, model
        and metric, and how many differences between held-out effects of one size are significant.

        Raises:
            ComparisonError: The results are of different examples.
        """
        tables.check_comparable(self.results, any_dtype=self.any_dtype)
        best = "held_out" if self._has_held_out else "effect"
        table, among = self._shown("passes").aligned(), tables.rows_that_may_be_best(self.results)
        table = table.ranked(best, ["n_selected"], second=True, among=among)
        return table.latex(self._caption() if caption is None else caption, label)

    @property
    def _has_held_out(self) -> bool:
        return all(result.held_out is not None for result in self.results)

    def differences(self) -> Any:
        """Held-out effects of all pairs of results, compared example by example.

        Returns:
            A pandas DataFrame with the columns `first` and `second` (labels), `difference` (of the
            mean held-out effects) with its 95 % interval `difference_low` and `difference_high`;
            `p`, `q` and `p_family`, corrected for all pairs (`tracekit.results.significance`);
            `significant`, whether the last is below 0.05; `metric`; and `n_held_out` and
            `n_held_out_independent`, the examples.

        Raises:
            NoResultError: There is one result, or one without held-out effects.
            ComparisonError: The results are of different examples.
        """
        tables.check_comparable(self.results, any_dtype=self.any_dtype)
        if not self._has_held_out or len(self) < 2:
            raise NoResultError(
                "Differences are between held-out effects of two results or more. Trace each with "
                "Tracer(..., held_out=...)."
            )
        return self._differences(list(combinations(range(len(self)), 2)))

    def _differences(self, pairs: Sequence[tuple[int, int]]) -> Any:
        """The rows of `differences` of some pairs of results, corrected for these."""
        held_out = [result.held_out for result in self.results if result.held_out is not None]
        effects = [each.effects for each in held_out]
        rows = torch.stack([effects[i].double() - effects[j].double() for i, j in pairs])
        over, metric = held_out[0].statistics_options, held_out[0].metric
        ends = row_intervals(rows, bounds=bounds_of(metric).of_sum(1, 1), **over)
        scale = torch.stack([effects[i].abs() + effects[j].abs() for i, j in pairs]).double()
        return pd.DataFrame(
            {
                "first": [self.labels[i] for i, _ in pairs],
                "second": [self.labels[j] for _, j in pairs],
                **as_cells("difference", rows.mean(1).tolist(), ends.T.tolist()),
                **p_values(zero_below_rounding(rows, scale), **over).columns("family"),
                "metric": metric,
                "n_held_out": held_out[0].n_examples,
                "n_held_out_independent": held_out[0].n_independent,
            }
        )

    def to_markdown(self) -> str:
        """The same columns as a Markdown table, and below it what they are."""
        return f"{self._shown('passes').markdown()}\n{self._legend}\n"

    def _shown(self, last: str) -> Table:
        # One column would mix effects that mean different things.
        effects = (*tables.effect_columns(self.results), last)
        shown = effects if self._is_one_question else ("n_selected", "components")
        return self.table().only("result", *shown)

    @property
    def _legend(self) -> str:
        how = f"The sets were found by {tables.interventions(self.results)}."
        return f"{self._summary}. {tables.legend(self.results) if self._is_one_question else how}"

    @property
    def _is_one_question(self) -> bool:
        """Whether effects of all results mean the same, so that a column may hold them."""
        setups = [result.setup for result in self.results]
        return len({(s.intervention, s.metric, s.continuation_mean) for s in setups}) == 1

    def _caption(self) -> str:
        masks = [result.binary_mask for result in self.results]
        where = "held-out" if self._has_held_out else "searched"
        tested = f" Bold and underlined: best and second of a size on the {where} examples."
        # Larger sets do more, and a set is no other than itself.
        pairs = [
            (i, j)
            for i, j in combinations(range(len(self)), 2)
            if masks[i].sum() == masks[j].sum() and not torch.equal(masks[i], masks[j])
        ]
        if self._has_held_out and pairs:
            significant = self._differences(pairs)["significant"]
            tested += (
                f" Of {len(pairs)} differences between sets of one size there, {significant.sum()} "
                "are significant (p < .05, corrected)."
            )
        return latex_text(tables.latex_caption(self.results) + tested)

    def _repr_html_(self) -> str:
        data, models = tables.data_and_models(self.results)
        metrics = tables.distinct(self.results, "searched.metric")
        title = f"{data} data, {models} model, {metrics}"
        return html_card(title, table_html(self._shown("components")), line(self._legend))

    def __repr__(self) -> str:
        form = "{0.effect:.4g}" if self._is_one_question else "{0.n_selected} components"
        values = map(form.format, self.results)
        named = ", ".join(map(" ".join, zip(self.labels, values, strict=True)))
        are_named = all(r.setup.intervention in s for r, s in zip(self, self.labels, strict=True))
        how = "" if are_named else f", {tables.interventions(self.results)}"
        return clean_text(f"Comparison({self._summary}{how}: {named})")

    @property
    def _summary(self) -> str:
        n = tables.distinct(self.results, "searched.n_text", " and ")
        of = self[0].axis_label if self._is_one_question else "sets"
        return f"{of} on {n} searched examples"


Comparable = TraceResult | Sequence[TraceResult] | HasCurve | str | Path
"""Results in memory, runs, and folders that results were saved to."""


@check_arguments
def compare(
    results: Comparable | Iterable[Comparable],
    labels: Sequence[str] | None = None,
    *,
    any_dtype: bool = False,
) -> Comparison:
    """Puts results side by side: figures, similarities and tables of several methods or sizes.

    Of different examples, sources, directions, positions or metrics, or of models with the same
    components, such as the checkpoints of a training run, `jaccard` and `heatmap` compare the sets,
    `first.against(second.labels)` counts hits and misses, and `tracer.evaluate(result)` measures a
    set on the examples of another tracer; curves and LaTeX tables, which need one scale, refuse.

    Args:
        results: Results, curves or fronts of searches of the same components; what
            `tk.load_runs` returns; and folders, of which every result saved there or below counts.
            One of these, or several in a list.
        labels: What to call each result. None: its method, and its size where methods repeat.
        any_dtype: Whether results of one model may be in several types, e.g. bfloat16 and float32.
            The noise floor of each (`result.noise_floor`) says which differences are rounding.

    Raises:
        NoResultError: There are none.
        ResultNotFoundError: A folder holds no result.
        ConfigError: Something else was given.
        ComparisonError: They answer different questions, are of two models of one name, have
            different held-out examples, or there are not as many labels.
    """
    flat = all_results(results)
    if not flat:
        raise NoResultError("There is no result to compare. Give at least one.")
    tables.check_comparable(flat, of_sets=True, any_dtype=any_dtype)
    pairs = {
        (e.searched.fingerprint, e.held_out.fingerprint) for e in flat if e.held_out is not None
    }
    if len(pairs) > len({searched for searched, _ in pairs}):
        raise ComparisonError(
            f"The results have {len(pairs)} different sets of held-out examples, so one column "
            "would mix effects on them. Trace each with the same held_out."
        )
    if labels is not None and len(labels) != len(flat):
        raise ComparisonError(
            f"There are {len(flat)} results and {len(labels)} labels. Give a label for each."
        )
    return Comparison(tuple(flat), tuple(labels or _labels(flat)), any_dtype)


def jaccard(first: Sequence[int], second: Sequence[int]) -> float:
    """Size of the intersection of two sets over that of their union; 1 if both are empty."""
    union = {*first} | {*second}
    return len({*first} & {*second}) / len(union) if union else 1.0


def _labels(results: Sequence[TraceResult]) -> list[str]:
    """Methods; with sizes where a method repeats, and numbers where these repeat too."""
    titles = [result.title for result in results]
    for fact in ("dataset", "model", "model_facts.dtype", "setup.metric", "setup.intervention"):
        names = [*map(attrgetter(fact), results)]
        if len(set(names)) > 1:
            is_one = len(set(titles)) == 1
            titles = names if is_one else [f"{n}, {t}" for n, t in zip(names, titles, strict=True)]
    if len(set(titles)) < len(titles):
        titles = [f"{t}, {r.n_selected}" for t, r in zip(titles, results, strict=True)]
    counts = Counter(titles)
    return [
        title if counts[title] == 1 else f"{title} ({titles[: n + 1].count(title)})"
        for n, title in enumerate(titles)
    ]
