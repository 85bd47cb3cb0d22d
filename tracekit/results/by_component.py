"""What is said of each component: its effect alone, and how often a search selects it.

Effects are with intervals, p and q; frequencies are of searches on resampled examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import as_cells, clean_text, number_text
from tracekit._util.options import check_choice, check_keywords
from tracekit._util.table import join_labels
from tracekit.components.masks import from_indices, members_of_mask
from tracekit.errors import MetricError
from tracekit.figures.cells import ColorScale, LayersOn, draw_panels
from tracekit.figures.style import data_and_model, plain
from tracekit.metrics import Effects
from tracekit.results.circuits import circuit_figure
from tracekit.results.on_examples import OfMembers
from tracekit.results.panels import check_cells, panels_of
from tracekit.results.scores import Scores, compare_scores
from tracekit.results.significance import Mark, PValues, few_examples_note
from tracekit.results.storage import SavedTable


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SingleEffects(SavedTable, OfMembers):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The effect of every component alone; `members` are those that were measured."""

    effects: Float[Tensor, " member"]
    """Mean effect of each."""
    intervals: Float[Tensor, "member 2"]
    """95 % studentised bootstrap intervals over examples; NaN below three independent ones."""
    tests: PValues
    """P values of means of 0, on the scale `tested`."""
    tested: str = "effect"
    """What is tested: the effect, or the change of the `log-odds` behind that of an odds ratio or a
    probability, which is less skewed and has the same sign on every example."""
    same_sign: Float[Tensor, " member"]
    """Share of the examples whose effect has the sign of the mean; it describes and does not test,
    as without any effect it is above one half more often than below."""
    full_effect: float
    """Mean effect of all components of the tracer together."""
    n_measured_on: int
    """Examples that all of this is over."""

    @property
    def n_examples(self) -> int:
        """How many examples the effects are means over."""
        return self.n_measured_on

    compare_scores = compare_scores

    @property
    def scores(self) -> Scores:
        """The effects, for `compare_scores`."""
        values = torch.full((len(self.registry),), torch.nan)
        values[list(self.members)] = self.effects.to(values.dtype)
        title, setting = f"single {self.axis_label}", f"{self.intervention}, n = {self.n_text}"
        of = data_and_model(self.dataset, self.model)
        return Scores(self.registry, values, title, self.axis_label, setting, of)

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per component, the largest effects first.

        Columns: `component`; its mean `effect`, with its 95 % interval `effect_low` and
        `effect_high`; `share` of the effect of all components; `same_sign`, the share of the
        examples whose effect has the sign of the mean; `p`, `q`, `p_family` and `significant`,
        whether q is below 0.05 (`tracekit.results.significance`).
        """
        frame = self._frame()
        return frame.sort_values("effect", key=abs, ascending=False, ignore_index=True)

    def _frame(self, mark: Mark = "q") -> pd.DataFrame:
        """The same rows in the order of `members`."""
        columns = {
            "component": self.labels,
            **as_cells("effect", self.effects.tolist(), self.intervals.T.tolist()),
            "share": (self.effects / (self.full_effect or float("nan"))).tolist(),
            "same_sign": self.same_sign.tolist(),
            **self.tests.columns(mark),
        }
        return pd.DataFrame(columns)

    @check_keywords
    def heatmap(
        self,
        *,
        normalised: bool = False,
        mark: Mark | None = "q",
        layers_on: LayersOn = "y",
        fold: bool = False,
    ) -> go.Figure:
        """The effects as cells, by layer and component; those with q below 0.05 are framed.

        Args:
            normalised: Colours are shares of the effect of all components: 0 does nothing, 1 does
                what all do.
            mark: `family` frames those with a family-wise p value below 0.05, None none.
            layers_on: `x` has layers from left to right and kinds below each other; `y` has layers
                from top to bottom and kinds side by side.
            fold: Whether a run of layers without a frame is one row.

        Raises:
            ConfigError: `mark` or `layers_on` is another, or more components in a layer than can
                be cells.
            MetricError: All components together have no effect to take shares of.
        """
        check_choice("mark", mark, (*get_args(Mark), None))
        check_choice("layers_on", layers_on, get_args(LayersOn))
        check_cells(self.registry, "trace fewer: layers=..., components={layer: [...]}")
        if normalised and abs(self.full_effect) < 1e-9:
            raise MetricError(
                "All components together have no effect, so there are no shares of it. Draw the "
                "effects: normalised=False."
            )
        effects = self.effects / self.full_effect if normalised else self.effects
        marked = torch.zeros(len(self.registry), dtype=torch.bool)
        values: list[float | None] = [None] * len(self.registry)
        texts = ["not measured"] * len(self.registry)
        rows = self._frame(mark or "q").to_dict("records")
        for member, effect, row in zip(self.members, effects.tolist(), rows, strict=True):
            marked[member], values[member] = row["significant"], effect
            number = number_text(row, "effect", "+.4g")
            texts[member] = f"{number}<br>p = {row['p']:.2g}, q = {row['q']:.2g}"
        share = "share<br>restored" if self.direction == "denoising" else "share of<br>full effect"
        unit = share if normalised else plain(self.axis_label).replace(" (", "<br>(")
        largest = effects.abs().max().item() or 1.0
        panels = panels_of(self.registry, marked, values=values, texts=texts)
        return draw_panels(
            panels,
            scale=ColorScale("RdBu_r", -largest, largest, unit),
            outlines=mark is not None,
            title=f"Single effects: {data_and_model(self.dataset, self.model)}",
            subtitle=f"{plain(self.intervention)}, n = {self.n_text} searched; "
            f"all: {self.full_effect:.3g}",
            layers_on=layers_on,
            fold=fold,
            marks=f"{'family-wise p' if mark == 'family' else 'q'} &lt; .05",
            blank="not measured",
        )

    def __repr__(self) -> str:
        n_significant, n = sum(self.tests.significant()), len(self.members)
        few = self.tests.caution if n_significant else few_examples_note(self.n_independent, n)
        lines = [
            f"Single effects of {n} components of {self.model} on {self.dataset}, {self.axis_label}"
            f", {self.intervention}, n = {self.n_text} searched: {n_significant} with q < .05."
            f"{' (tested on log-odds)' if self.tested == 'log-odds' else ''}"
            f"{f' {few}' if few else ''} Brackets: 95 % intervals."
        ]
        for row in self.table.head(8).to_dict("records"):
            effect = number_text(row, "effect", "+.4g")
            lines.append(f"  {row['component']}: {effect}, q = {row['q']:.2g}")
        return "\n".join(lines)


_SHARES = [[0.0, "#FFFFFF"], [1.0, "#56B4E9"]]
"""Colours from never to always; a black frame shows on each."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Stability(SavedTable, OfMembers):  # pyright: ignore[reportIncompatibleMethodOverride]
    """How often each component is selected; `members` are those that nearly always are."""

    frequencies: Float[Tensor, " component"]
    """Share of the resamples in which the component was selected, in [0, 1]."""
    threshold: float
    """Share of the resamples from which on a component is one of `members`."""
    method: str
    """Title of the search."""
    n_resamples: int
    n_selected: float
    """Mean number of components that were selected."""
    effects: Effects
    """Effect of `members` together on each example: held-out ones, if the tracer has some."""
    mean_effect: float
    """Mean effect of the sets of the resamples, on the same examples."""

    @cached_property
    def table(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per component that was selected, the most frequent first.

        Columns: `component`, its `frequency`, and whether it is `stable`, one of `members`.
        """
        order = self.frequencies.argsort(descending=True, stable=True)
        order = order[self.frequencies[order] > 0]
        columns = {
            "component": [self.registry.label(index) for index in order.tolist()],
            "frequency": self.frequencies[order].tolist(),
            "stable": [index in self.members for index in order.tolist()],
        }
        return pd.DataFrame(columns)

    @check_keywords
    def heatmap(self, *, fold: bool = False) -> go.Figure:
        """The frequencies as cells, by layer and component; stable components are framed.

        With `fold`, a run of layers without a frame is one row.

        Raises:
            ConfigError: More components in a layer than can be cells.
        """
        check_cells(self.registry, "the circuit of edges")
        is_stable = from_indices(self.members, len(self.registry))
        values = self.frequencies.tolist()
        texts = [f"selected in {100 * value:.0f} % of the resamples" for value in values]
        return draw_panels(
            panels_of(self.registry, is_stable, values=values, texts=texts),
            scale=ColorScale(_SHARES, 0.0, 1.0, "share of<br>resamples"),
            outlines=True,
            title=self._title,
            subtitle=f"{plain(self.intervention)}, {self.n_resamples} resamples",
            fold=fold,
            marks=f"in at least {100 * self.threshold:.0f} %",
        )

    def circuit(self, n: int = 30) -> go.Figure:
        """The `n` edges that were selected most often; an arrow is as wide as its frequency.

        Raises:
            ComponentError: The components are no edges.
        """
        return circuit_figure(
            self.registry,
            members_of_mask(self.frequencies > 0),
            self.frequencies,
            n,
            title=self._title,
            subtitle=f"{plain(self.intervention)}, {self.n_resamples} resamples",
            quantity="share of resamples",
        )

    @property
    def _title(self) -> str:
        return f"Stability of {plain(self.method)}: {data_and_model(self.dataset, self.model)}"

    def __repr__(self) -> str:
        n, n_ever = len(self.members), int((self.frequencies > 0).sum())
        named = f": {join_labels(self.labels, 12)}" if n else ""
        return clean_text(
            f"{self.method} on {self.n_resamples} resamples of the searched examples of "
            f"{self.dataset}, {self.model}, {self.intervention}: sets of {self.n_selected:.3g} "
            f"components on average, with {n_ever} different ones. {n} are in at least "
            f"{100 * self.threshold:.0f} % of the sets{named}.\n"
            f"Mean {self.axis_label} {self.examples}: {self.effects.mean():.4g} for these {n}, "
            f"{self.mean_effect:.4g} for the sets of the resamples."
        )
