"""Two sets of scores of the same components, e.g. attribution and exact effects, as a scatter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import plotly.graph_objects as go
import torch
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.options import check_int, check_keywords, short_repr
from tracekit.components import ComponentRegistry
from tracekit.errors import ComparisonError, ConfigError
from tracekit.figures.charts import Chart, scatter
from tracekit.figures.style import data_and_model, plain
from tracekit.results.display import Tabular
from tracekit.search.methods import METHODS


class Scores(NamedTuple):
    """A score for each of some components, and what it means."""

    registry: ComponentRegistry
    values: Tensor
    """By flat index; NaN for a component without a score."""
    axis_title: str
    """What the scores are, with metric and unit."""
    effect: str
    """Title of the effects that they are or estimate; empty if they are something else."""
    setting: str
    """What was ablated, and on how many examples."""
    of: str = ""
    """Data and model."""


def _scores_of(given: Any, registry: ComponentRegistry | None = None) -> Scores:
    """Scores of a result, of single effects, or of numbers by labels of a registry."""
    if hasattr(given, "scores"):
        return given.scores
    if isinstance(given, Mapping) and registry is not None:
        values = torch.full((len(registry),), torch.nan)
        values[list(map(registry.index, given))] = torch.tensor([*given.values()]).float()
        return Scores(registry, values, "other score", "", "other scores")
    value: Any = given
    if not hasattr(value, "ranked_by"):
        raise ConfigError(
            f"{short_repr(value)} has no scores of components. Give a result, single effects, or "
            'numbers by label, e.g. {"L5H3": 0.2}.'
        )
    title, effect, run = f"{value.run.title} soft mask", "", value.run
    if value.component_scores is not None:
        name = "single effect" if run.method == "top-k" else f"{run.title} score"
        # Scores of other methods than those of tracekit may have any unit.
        effect = value.axis_label if run.method in METHODS else ""
        title = effect.replace("effect", name, 1) or name
    setting = f"{value.setup.intervention}, n = {value.searched.n_text}"
    of = data_and_model(value.dataset, value.model)
    return Scores(value.registry, value.ranked_by, title, effect, setting, of)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScoreComparison(Tabular):
    """Two scores of each component; see `compare_scores`."""

    chart: Chart
    """The table, the titles of the axes, and what was ablated for each."""
    line: tuple[float, float]
    """Slope and start of the line on which scores agree: y = x for effects by one metric. Others
    agree where both are as many standard deviations from their means, with opposite signs if their
    correlation is negative."""
    pearson: float
    """Correlation of the scores; NaN if all of one are equal."""
    spearman: float
    """Correlation of the ranks, where equal scores share their mean rank."""

    @property
    def table(self) -> pd.DataFrame:
        """A row per component with both scores, the largest residual first.

        Columns: `component`, `first`, `second`, and `residual`, how far `second` is above `line`.
        """
        return self.chart.frame

    @check_keywords
    def scatter(self, *, n: int = 8) -> go.Figure:
        """A point per component, and labels at the `n` farthest from the line, if there is room.

        Of many thousand components one point is drawn at each place, and every labelled one.
        """
        check_int("n", n, 0)
        return scatter(self.chart, self.line, n)

    def __repr__(self) -> str:
        x, y = self.chart.axis_titles
        outliers = ", ".join(self.table["component"].head(8))
        text = f"{x} and {y}, {len(self.table)} components, {self.chart.subtitle}"
        return f"{text}. Farthest from agreement: {outliers}"


def compare_scores(first: Any, second: Any, labels: tuple[str, ...] = ("", "")) -> ScoreComparison:
    """Scores of components (x) beside other scores of the same components (y).

    Args:
        first: A result of a method that ranks, or single effects.
        second: The same, or a number of your own for each label.
        labels: Names of both, which begin the titles of the axes.

    Raises:
        ComparisonError: They are of different components, or share fewer than three.
        ConfigError: One of them has no scores.
    """
    x = _scores_of(first)
    registry = x.registry
    y = _scores_of(second, registry)
    if registry != y.registry:
        same = repr("+".join(registry.kinds))
        if registry.edges is None and registry.layers != y.registry.layers:
            same += f", layers={list(registry.layers)}"
        raise ComparisonError(
            f"The scores are of different components: {registry.describe()}; and "
            f"{y.registry.describe()}. Trace the same components for both, e.g. "
            f"tk.Tracer(model, pairs, {same})."
        )
    columns = {"first": x.values.double().numpy(), "second": y.values.double().numpy()}
    scores = pd.DataFrame(columns).dropna()
    if len(scores) < 3:
        raise ComparisonError(
            f"Only {len(scores)} components have both scores, and a correlation needs 3. Measure "
            "more of them, e.g. tracer.single_effects()."
        )
    pearson, spearman = (float(each.corr().iloc[0, 1]) for each in (scores, scores.rank()))
    slope, start = 1.0, 0.0
    if not x.effect or x.effect != y.effect:
        (x_mean, y_mean), (x_spread, y_spread) = scores.mean(), scores.std()
        slope = (-1 if pearson < 0 else 1) * float(y_spread / x_spread) if x_spread else 0.0
        start = float(y_mean - slope * x_mean)
    names = list(map(registry.label, scores.index))
    residuals = scores["second"] - slope * scores["first"] - start
    table = pd.DataFrame({"component": names, **scores, "residual": residuals})
    x_title, y_title = (
        plain(f"{label}: {each.axis_title}" if label else each.axis_title)
        for label, each in zip(labels, (x, y), strict=True)
    )
    setting = x.setting if x.setting == y.setting else f"x: {x.setting}; y: {y.setting}"
    chart = Chart(
        frame=table.sort_values("residual", key=abs, ascending=False, ignore_index=True),
        x="first",
        y="second",
        series="component",
        axis_titles=(x_title, y_title),
        title=" / ".join(dict.fromkeys(filter(None, (x.of, y.of)))),
        subtitle=f"{plain(setting)}; Pearson {pearson:.2f}, Spearman {spearman:.2f}",
    )
    return ScoreComparison(chart=chart, line=(slope, start), pearson=pearson, spearman=spearman)
