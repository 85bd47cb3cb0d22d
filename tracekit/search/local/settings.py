"""The numbers of local search, all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a search divides its passes; chosen on the demo tasks."""

    passes: int = 300
    """Passes over the data by default: heads of the demo tasks need 110 to 210 of them."""
    most_passes: int = 512
    """Passes by default are as many as there are components, up to this many: less than top-k
    takes on large models."""
    many: int = 384
    """Components from which on single ones are too many to be measured, sizes far apart, and sets
    from all components downwards worth their passes."""
    passes_per_size: int = 20
    """Passes for each size that is visited: two gradients and their neighbours. Of so few
    components all neighbours are measured, and all pairs: no gradient points to two of which either
    is enough."""
    most_sizes: int = 16
    """Sizes that are visited at most, so that there are passes for several sweeps."""
    share_of_all_singles: float = 1 / 3
    """Share of the passes that measuring every single component may take. Where it would take
    more, gradients choose the ones that are measured."""
    share_of_some_singles: float = 1 / 8
    """Share of the passes that measuring these takes."""
    additions: int = 5
    """Sets with one component more that are measured beside a set. Fewer miss heads that only act
    together."""
    exchanges: int = 2
    """Sets with one component exchanged, and as many with one fewer."""
    shares_exchanged: tuple[float, float] = (1 / 32, 1 / 8)
    """Shares of a set that are exchanged at once where sizes are far apart. In sets of a hundred
    components one exchange changes little, and a quarter at once overshoots."""
    least_gain: float = 1e-3
    """Relative gain of a sweep, averaged over sizes, below which the search ends."""


SETTINGS = Settings()
"""Those of every search."""
