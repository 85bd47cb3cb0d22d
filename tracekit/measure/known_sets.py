"""The sets of components that a tracer has measured or selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.metrics import Effects


class MeasuredSet(NamedTuple):
    """A set that was measured on all searched examples."""

    mean: float
    members: ComponentSet
    effects: Effects


class KnownSets:
    """What is known of sets: of every size the best that were measured, and those selected.

    The best ones are what is left of a search that is interrupted, and what no front leaves out.
    """

    def __init__(self) -> None:
        """Knows none yet."""
        self._best: dict[int, dict[int, MeasuredSet]] = {1: {}, -1: {}}
        self.selected: set[ComponentSet] = set()
        """Sets that were chosen by their effects on the searched examples."""

    def by_size(self, sign: int = 1) -> dict[int, MeasuredSet]:
        """The measured set of every size with the largest mean effect, or the least (sign -1)."""
        return self._best[sign]

    def record(self, sets: Sequence[ComponentSet], effects: Float[Tensor, "set example"]) -> None:
        """Takes note of sets and their effects, a row for each."""
        for members, row in zip(sets, effects, strict=True):
            mean, size = float(row.mean()), len(members)
            for sign, best in self._best.items():
                if size and (size not in best or sign * mean > sign * best[size].mean):
                    best[size] = MeasuredSet(mean, members, row.clone())
