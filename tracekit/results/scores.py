"""Two sets of scores of the same components, e.g. attribution and exact effects, as a scatter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text
from tracekit._util.options import check_int, check_keywords, short_repr
from tracekit.components import ComponentRegistry
from tracekit.errors import ComparisonError, ConfigError
from tracekit.figures.charts import Chart, scatter
from tracekit.figures.style import data_and_model, plain
from tracekit.results.display import Tabular
from tracekit.search.methods import METHODS

_FEWEST = 3
"""Components below which there is no correlation: two points are always on a line."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """A score for each of some components, and what it means."""

    registry: ComponentRegistry
    values: Float[Tensor, " component"]
    """By flat index; NaN for a component without a score."""
    axis_title: str = "your score"
    """What the scores are, with metric and unit."""
    effect: str = ""
    """Title of the effects that they are or estimate; empty if they are something else."""
    setting: str = "your own"
    """What was ablated, and on how many examples."""
    figure_title: str = ""
    """Data and model."""


def scores_of_result(result: Any) -> Scores:
    """What the components of a result were ranked by; errors as of `TraceResult.ranked_by`."""
    title, effect = f"{result.run.title} soft mask", ""
    if result.component_scores is not None:
        name = "single effect" if result.method == "top-k" else f"{result.run.title} score"
        # Scores of other methods than those of tracekit may have any unit.
        title, effect = name, result.axis_label if result.method in METHODS else ""
        title = effect.replace("effect", name, 1) or name
    return Scores(
        registry=result.registry,
        values=result.ranked_by,
        axis_title=title,
        effect=effect,
        setting=f"{result.setup.intervention}, n = {result.searched.n_text}",
        figure_title=data_and_model(result.dataset, result.model),
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScoreComparison(Tabular):
    """Two scores of each component; see `compare_scores`."""

    table: pd.DataFrame
    """A row per component that has both, with the columns `component`, `first`, `second` and
    `residual`, how far `second` is above `line`; the largest residual first."""
    line: tuple[float, float]
    """Slope and start of the line on which scores agree. That is y = x for effects by one metric.
    Other scores agree where both are as many standard deviations from their means, with opposite
    signs if their correlation is negative."""
    pearson: float
    """Correlation of the scores; NaN if all of one are equal."""
    spearman: float
    """Correlation of the ranks, where equal scores share their mean rank."""
    axis_titles: tuple[str, str]
    """What each score is, with metric and unit."""
    setting: str
    """What was ablated for each score, once if it is the same."""
    title: str

    @check_keywords
    def scatter(self, *, n: int = 8) -> go.Figure:
        """One point per component; the `n` largest residuals are marked and labelled.

        Of many thousand components one point is drawn at each place, and every outlier.
        """
        check_int("n", n, 0)
        chart = Chart(
            frame=self.table,
            x="first",
            y="second",
            series="component",
            axis_titles=(plain(self.axis_titles[0]), plain(self.axis_titles[1])),
            title=self.title,
            subtitle=f"{plain(self.setting)}; Pearson {self.pearson:.2f}, "
            f"Spearman {self.spearman:.2f}",
        )
        return scatter(chart, self.line, n)

    def __repr__(self) -> str:
        x, y = self.axis_titles
        rows = self.table.head(8).to_dict("records")
        outliers = [f"  {r['component']}: {r['first']:+.4g}, {r['second']:+.4g}" for r in rows]
        first = (
            f"{x} and {y} of {len(self.table)} components, {self.setting}: Pearson "
            f"{self.pearson:.3f}, Spearman {self.spearman:.3f}. Largest residuals:"
        )
        return clean_text("\n".join([first, *outliers]))


def compare_scores(
    first: Any, second: Any, labels: tuple[str, str] | None = None
) -> ScoreComparison:
    """Scores of components (x) beside other scores of the same components (y).

    Args:
        first: A result of a method that ranks, or single effects.
        second: The same, or a number of your own for each label.
        labels: Names of both, which begin the titles of the axes.

    Raises:
        ComparisonError: They are of different components, or share fewer than three.
        ConfigError: One of them has no scores.
    """
    x, registry = first.scores, first.scores.registry
    if isinstance(second, Mapping):
        values = torch.full((len(registry),), torch.nan)
        values[list(map(registry.index, second))] = torch.tensor(list(second.values())).float()
        y = Scores(registry=registry, values=values)
    elif hasattr(second, "scores"):
        y = second.scores
    else:
        raise ConfigError(
            f"{short_repr(second)} has no scores of components. Give a result, single effects, or "
            'numbers by label, e.g. {"L5H3": 0.2}.'
        )
    if registry != y.registry:
        same = repr("+".join(registry.kinds))
        if registry.edges is None and registry.layers != y.registry.layers:
            same += f", layers={list(registry.layers)}"
        raise ComparisonError(
            f"The scores are of different components: {registry.describe()}; and "
            f"{y.registry.describe()}. Trace the same components for both, e.g. "
            f"tk.Tracer(model, pairs, {same})."
        )
    both = {"first": x.values.double().numpy(), "second": y.values.double().numpy()}
    scores = pd.DataFrame(both).dropna()
    if len(scores) < _FEWEST:
        raise ComparisonError(
            f"Only {len(scores)} components have both scores, and a correlation needs {_FEWEST}. "
            "Measure more of them, e.g. tracer.single_effects()."
        )
    pearson, slope, start = float(scores.corr().iloc[0, 1]), 1.0, 0.0
    if not x.effect or x.effect != y.effect:
        (x_mean, y_mean), (x_spread, y_spread) = scores.mean(), scores.std()
        slope = (-1 if pearson < 0 else 1) * float(y_spread / x_spread) if x_spread else 0.0
        start = float(y_mean - slope * x_mean)
    residual = scores["second"] - slope * scores["first"] - start
    table = scores.assign(component=list(map(registry.label, scores.index)), residual=residual)
    table = table.sort_values("residual", key=abs, ascending=False, ignore_index=True)
    x_name, y_name = ("", "") if labels is None else (f"{label}: " for label in labels)
    is_same = x.setting == y.setting
    return ScoreComparison(
        table=table[["component", "first", "second", "residual"]],
        line=(slope, start),
        pearson=pearson,
        spearman=float(scores.rank().corr().iloc[0, 1]),
        axis_titles=(x_name + x.axis_title, y_name + y.axis_title),
        setting=x.setting if is_same else f"x: {x.setting}; y: {y.setting}",
        title=" / ".join(dict.fromkeys(filter(None, [x.figure_title, y.figure_title]))),
    )
