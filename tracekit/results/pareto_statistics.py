"""Statistics of the sets of a Pareto front, as `tracekit/measure/front_statistics.py` measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STATISTICS = (
    "Cross-fitted: sets that one half of the searched examples selects, measured on the other. "
    "Random: as many components of every kind in every layer, on the searched examples. Stability: "
    "Jaccard similarity of the sets that the halves select."
)
"""What the words mean."""


@dataclass(frozen=True, kw_only=True)
class SizeStatistics:
    """Statistics of the sets of one size."""

    size: int
    """Largest number of components."""
    cross_fitted: float | None = None
    """Mean effect of the sets that each half of the searched examples selects, on the other half;
    None with fewer than 4 examples."""
    cross_fitted_low: float | None = None
    cross_fitted_high: float | None = None
    """Its 95 % confidence interval, by a studentised bootstrap over examples; None with fewer than
    three independent ones."""
    cross_fitted_error: float | None = None
    """Its standard error over examples."""
    cross_fitted_by: Mapping[str, float] | None = None
    """Mean cross-fitted effect of each search that the front chose from, by name."""
    control: float | None = None
    """Mean effect of random sets with as many components of every kind in every layer; None if
    there is only one such set."""
    control_low: float | None = None
    control_high: float | None = None
    """Least and greatest of them."""
    controls: int = 0
    """Other sets of this form, of which up to five were drawn."""
    control_overlap: float | None = None
    """Share of the components of the front's set that such a set has too, on average."""
    stability: float | None = None
    """Jaccard similarity, in [0, 1], of the sets that the two halves selected."""
    from_all: float | None = None
    """Mean effect of the set found from all components downwards."""
    from_all_similarity: float | None = None
    """Jaccard similarity, in [0, 1], of this set and the front's."""
    from_all_gain: float | None = None
    """How much better this set is than the front's by what was maximised, as a share of the
    latter; below 0 where it is worse."""


def jaccard(first: Sequence[int], second: Sequence[int]) -> float:
    """Size of the intersection of two sets over that of their union; 1 if both are empty."""
    union = {*first} | {*second}
    return len({*first} & {*second}) / len(union) if union else 1.0
