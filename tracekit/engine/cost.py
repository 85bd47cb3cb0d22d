"""Cost: the work of a search, counted in passes over the data."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Cost:
    """Work done, counted in passes over the whole data set, whatever they share."""

    forward: float = 0.0
    """Interventional forward passes."""
    backward: float = 0.0
    """Backward passes to the mask."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(_exact(self.forward + other.forward), _exact(self.backward + other.backward))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(_exact(self.forward - other.forward), _exact(self.backward - other.backward))

    @property
    def forward_equivalents(self) -> float:
        """Forward and backward together; with frozen weights a backward costs one forward."""
        return self.forward + self.backward


def _exact(passes: float) -> float:
    # A whole number of examples over the number of examples: the sum or difference of two such
    # floats misses the float it should be by its last bits, and 41 passes become 40.99999999.
    return float(Fraction(passes).limit_denominator(100_000))
