"""Cost: the work of a search, counted in passes over the data."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tracekit._util import progress as _progress


@dataclass(frozen=True)
class Cost:
    """Work in passes over the whole data set; passes that share computation count in full."""

    forward: float = 0.0
    """Interventional forward passes."""
    backward: float = 0.0
    """Backward passes to the mask."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(_round(self.forward + other.forward), _round(self.backward + other.backward))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(_round(self.forward - other.forward), _round(self.backward - other.backward))

    def __mul__(self, factor: float) -> Cost:
        return Cost(_round(self.forward * factor), _round(self.backward * factor))

    @property
    def forward_equivalents(self) -> float:
        """Forward and backward together; with frozen weights a backward costs one forward."""
        return self.forward + self.backward


@dataclass
class Account:
    """Work on a data set so far."""

    n_forward: int = 0
    """Examples that were run under a mask; whole numbers, as sums of shares would round."""
    n_backward: int = 0
    """Examples of which a gradient was taken."""

    def add_examples(self, n_examples: int, *, backward: bool = False, reported: int = 0) -> None:
        """Counts examples that all ranks ran; `reported` of them are on the bar already."""
        self.n_forward += n_examples
        self.n_backward += n_examples if backward else 0
        _progress.current_run().advance((2 * n_examples if backward else n_examples) - reported)

    def cost(self, n_examples: int) -> Cost:
        """The work in passes over a data set of so many examples."""
        return Cost(self.n_forward / n_examples, self.n_backward / n_examples)


def _round(passes: float) -> float:
    # A whole number of examples over the number of examples: the sum or difference of two such
    # floats misses the float it should be by its last bits, and 41 passes become 40.99999999.
    return float(Fraction(passes).limit_denominator(100_000))
