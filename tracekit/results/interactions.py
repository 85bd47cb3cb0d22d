"""Two-component interaction grids: how far two components are from additive.

The interaction of components i and j is l({i, j}) - l({i}) - l({j}), with l the mean effect: 0 if
they add up, positive if together they do more than the sum of what each does alone. This is the
quantity of the paper's pairwise non-linearity maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._markup import printable
from tracekit.components import Component
from tracekit.engine.engine import Engine
from tracekit.files import write_csv
from tracekit.results.storage import damaged, read_document, write_document

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InteractionGrid:
    """Effects of all pairs of some components."""

    labels: tuple[str, ...]
    """Printed names, in the order of the axes."""
    components: tuple[Component, ...] = ()
    """The components, in that order; empty if unknown."""
    singles: Float[Tensor, " component"]
    """l({i})."""
    pairs: Float[Tensor, "component component"]
    """l({i, j}), symmetric; the diagonal is l({i})."""
    axis_label: str = "effect"
    title: str = ""

    @property
    def interaction(self) -> Float[Tensor, "component component"]:
        """l({i, j}) - l({i}) - l({j}); NaN on the diagonal, where there is no pair."""
        values = self.pairs - (self.singles[:, None] + self.singles[None, :])
        return values.fill_diagonal_(torch.nan)

    def __repr__(self) -> str:
        n = len(self.labels)
        text = f"{self.title + ': ' if self.title else ''}{n} components"
        for row in self.to_frame().head(1).itertuples():
            text += f"; strongest {row.first}, {row.second}: {row.interaction:+.4g}"
        return printable(f"InteractionGrid({text})")

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from tracekit.results.display import grid_html

        return grid_html(self)

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per unordered pair, largest interaction first."""
        import pandas as pd

        interaction = self.interaction
        rows = [
            (self.labels[i], self.labels[j], self.pairs[i, j].item(), interaction[i, j].item())
            for i, j in combinations(range(len(self.labels)), 2)
        ]
        frame = pd.DataFrame(rows, columns=["first", "second", "effect", "interaction"])
        return frame.sort_values("interaction", key=abs, ascending=False, ignore_index=True)

    def heatmap(self, *, clip: float = 1.0) -> go.Figure:
        """The pairwise map as a plotly figure.

        Args:
            clip: Quantile beyond which colours no longer change, as in
                `figures.interaction_heatmap`.
        """
        from tracekit import figures

        return figures.interaction_heatmap(self, clip=clip)

    def save(self, path: str | Path) -> Path:
        """Writes all effects and returns the path.

        Args:
            path: `.json`, which `load` reads, or `.csv`, a row per pair.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            entries = {
                "labels": self.labels,
                "components": [asdict(component) for component in self.components],
                "singles": self.singles.tolist(),
                "pairs": self.pairs.tolist(),
                "axis_label": self.axis_label,
                "title": self.title,
            }
            write_document(path, entries)
        else:
            write_csv(self.to_frame(), path)
        return path

    @classmethod
    def load(cls, path: str | Path) -> InteractionGrid:
        """Reads the `.json` file that `save` wrote.

        Raises:
            ResultNotFoundError: There is no such file.
            ResultFormatError, FormatVersionError: It is damaged, or of another version.
        """
        path = Path(path)
        document = read_document(path.parent, path.name)
        try:
            grid = cls(
                labels=tuple(document["labels"]),
                components=tuple(Component(**entry) for entry in document["components"]),
                singles=torch.tensor(document["singles"]),
                pairs=torch.tensor(document["pairs"]),
                axis_label=document["axis_label"],
                title=document["title"],
            )
            n = len(grid.labels)
            if (
                len(grid.components) not in (0, n)
                or grid.singles.shape != (n,)
                or grid.pairs.shape != (n, n)
            ):
                raise damaged(path.parent)
            is_symmetric = torch.equal(grid.pairs, grid.pairs.T)
            if not is_symmetric or not torch.equal(grid.pairs.diag(), grid.singles):
                raise damaged(path.parent)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise damaged(path.parent) from error
        return grid


def measure_pairs(engine: Engine, components: Sequence[int], *, title: str = "") -> InteractionGrid:
    """Measures every component and every pair of components.

    Args:
        engine: The engine.
        components: Flat indices, in the order wanted on the axes.
        title: What the figure says above the grid.
    """
    order = list(components)
    sets: list[tuple[int, ...]] = [(i,) for i in order]
    sets += list(combinations(order, 2))
    effects = engine.set_effects(sets, "pairs").mean(1)
    n = len(order)
    grid = torch.diag(effects[:n])
    upper = torch.triu_indices(n, n, offset=1)
    grid[upper[0], upper[1]] = effects[n:]
    grid[upper[1], upper[0]] = effects[n:]
    return InteractionGrid(
        labels=tuple(engine.registry.label(i) for i in order),
        components=tuple(engine.registry[i] for i in order),
        singles=effects[:n],
        pairs=grid,
        axis_label=engine.metric.axis_label,
        title=title,
    )
