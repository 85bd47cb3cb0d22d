"""Cost: the work of a search, counted in passes over the data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Work done, counted in passes over the whole data set, whatever they share."""

    forward: float = 0.0
    """Interventional forward passes."""
    backward: float = 0.0
    """Backward passes to the mask."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forward + other.forward, self.backward + other.backward)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(_without(self.forward, other.forward), _without(self.backward, other.backward))

    @property
    def forward_equivalents(self) -> float:
        """Forward and backward together; with frozen weights a backward costs one forward."""
        return self.forward + self.backward


def _without(passes: float, before: float) -> float:
    # Both are whole numbers of examples over the number of examples. The difference of two such
    # floats can miss the float it should be by their last bits: 41 passes would be 40.99999999.
    return round(passes - before, 9)
