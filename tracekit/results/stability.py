"""Stability: how often a search selects each component on resampled examples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import plotly.graph_objects as go
from jaxtyping import Float
from torch import Tensor

from tracekit._util.deferred import pd
from tracekit._util.markup import clean_text
from tracekit._util.options import check_keywords
from tracekit._util.table import join_labels
from tracekit.components.masks import from_indices, members_of_mask
from tracekit.figures.cells import ColorScale, draw_panels
from tracekit.figures.style import data_and_model, plain
from tracekit.metrics import Effects
from tracekit.results.circuit import circuit_figure
from tracekit.results.on_examples import OfMembers
from tracekit.results.panels import check_cells, panels_of
from tracekit.results.storage import SavedTable

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
