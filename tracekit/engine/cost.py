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
        return Cost(self.forward - other.forward, self.backward - other.backward)

    @property
    def forward_equivalents(self) -> float:
        """Forward and backward together; with frozen weights a backward costs one forward."""
        return self.forward + self.backward
