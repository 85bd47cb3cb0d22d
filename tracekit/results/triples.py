"""Third-order interactions: what three components do together beyond their pairs.

The third-order interaction of i, j and k is

    l({i, j, k}) - l({i, j}) - l({i, k}) - l({j, k}) + l({i}) + l({j}) + l({k}),

with l the mean effect, or what a set adds to components that are patched besides: 0 if the three do
what their single effects and their pairs say (the Moebius transform of the effect; Grabisch and
Roubens, 1999, call it the dividend).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.markup import printable
from tracekit.components import ComponentSet
from tracekit.engine.engine import Engine
from tracekit.results.interactions import LEVEL, added_effects, check_size
from tracekit.results.intervals import row_intervals
from tracekit.results.significance import max_t_p_values, without_rounding
from tracekit.results.storage import damaged, read_document, write_numbers

if TYPE_CHECKING:
    import pandas as pd

MOST_IN_TRIPLES = 24
"""Components up to which all triples are measured: 2024 of them."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TripleInteractions:
    """Effects and third-order interactions of all triples of some components."""

    labels: tuple[str, ...]
    """Printed names of the components."""
    effects: Float[Tensor, " triple"]
    """l of each triple, in the order of `itertools.combinations`."""
    interactions: Float[Tensor, " triple"]
    """Third-order interaction of each."""
    intervals: Float[Tensor, "triple 2"]
    """Low and high end of its 95 % studentised bootstrap interval over examples."""
    p: Float[Tensor, " triple"]
    """Two-sided p values, corrected for all triples as in `InteractionGrid.p`."""
    given: tuple[str, ...] = ()
    """Printed names of what is patched besides."""
    axis_label: str = "effect"
    title: str = ""

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame with a row per triple, largest interaction first.

        Columns: `first`, `second`, `third`, `effect` (of all three), `interaction` (third order),
        its interval `low` and `high`, `p`, `significant` (below 0.05).
        """
        import pandas as pd

        names = list(combinations(self.labels, 3))
        columns = {
            name: [triple[rank] for triple in names]
            for rank, name in enumerate(("first", "second", "third"))
        }
        frame = pd.DataFrame(
            {
                **columns,
                "effect": self.effects.tolist(),
                "interaction": self.interactions.tolist(),
                "low": self.intervals[:, 0].tolist(),
                "high": self.intervals[:, 1].tolist(),
                "p": self.p.tolist(),
                "significant": (self.p < LEVEL).tolist(),
            }
        )
        return frame.sort_values("interaction", key=abs, ascending=False, ignore_index=True)

    def __repr__(self) -> str:
        row = self.to_frame().iloc[0]
        text = f"{self.title + ': ' if self.title else ''}{len(self.effects)} triples; strongest "
        text += f"{row['first']}, {row['second']}, {row['third']}: {row['interaction']:+.4g}"
        return printable(f"TripleInteractions({text})")

    def save(self, path: str | Path) -> Path:
        """Writes all numbers and returns the path.

        Args:
            path: `.json`, which `load` reads, or `.csv`, a row per triple.
        """
        return write_numbers(path, self)

    @classmethod
    def load(cls, path: str | Path) -> TripleInteractions:
        """Reads the `.json` file that `save` wrote.

        Raises:
            ResultNotFoundError: There is no such file.
            ResultFormatError: It is damaged, or of another version.
        """
        path = Path(path)
        document = read_document(path.parent, path.name)
        try:
            for name in ("labels", "given"):
                document[name] = tuple(document[name])
            for name in ("effects", "interactions", "intervals", "p"):
                document[name] = torch.tensor(document[name])
            loaded = cls(**document)
            n = len(loaded.labels)
            shape = (n * (n - 1) * (n - 2) // 6,)
            values = (loaded.effects, loaded.interactions, loaded.p)
            if any(value.shape != shape or not torch.isfinite(value).all() for value in values):
                raise ValueError("The numbers are not those of all triples.")
            if loaded.intervals.shape != (*shape, 2):
                raise ValueError("The intervals are not those of all triples.")
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise damaged(path.parent) from error
        return loaded


def measure_triples(
    engine: Engine,
    components: Sequence[int],
    *,
    title: str = "",
    given: ComponentSet = (),
) -> TripleInteractions:
    """Measures every set of one, two or three of some components.

    Args:
        engine: The data set.
        components: Flat indices, in the order wanted.
        title: What the text calls them.
        given: Flat indices of what is patched besides, in every set.

    Raises:
        ComponentError: So many sets and examples that their effects would take over 2 GiB.
    """
    order = list(components)
    players = range(len(order))
    sets = [each for size in (1, 2, 3) for each in combinations(players, size)]
    check_size(len(sets), engine.n_examples)
    row_of = {each: row for row, each in enumerate(sets)}
    measured = [tuple(sorted(order[player] for player in each)) for each in sets]
    effects, _ = added_effects(engine, measured, given, "triples")
    triples = list(combinations(players, 3))
    total, scale = torch.zeros(2, len(triples), effects.shape[1], dtype=torch.float64)
    for size in (1, 2, 3):
        # Subsets of each size come with alternating signs.
        rows = [[row_of[part] for part in combinations(triple, size)] for triple in triples]
        parts = effects[torch.tensor(rows)].double()
        total += (-1) ** (3 - size) * parts.sum(1)
        scale += parts.abs().sum(1)
    return TripleInteractions(
        labels=tuple(engine.registry.label(i) for i in order),
        effects=effects[[row_of[triple] for triple in triples]].mean(1),
        interactions=total.mean(1).float(),
        intervals=row_intervals(total, weights=engine.pairs.weights).float(),
        p=max_t_p_values(without_rounding(total, scale)).float(),
        given=tuple(engine.registry.label(i) for i in given),
        axis_label=engine.metric.axis_label,
        title=title,
    )
