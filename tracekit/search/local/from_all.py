"""Sets from the other end: of all components, those leave that are missed least.

Local search walks up from small sets. This walk goes down, knows nothing of the other, and takes
few passes. Where it ends in a set that is as good and has other components, the examples do not
single out one set.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tracekit.components import ComponentSet
from tracekit.search.targets import Target

_KEPT = 0.8
"""Share of the components that stay in a step."""
_CANDIDATES = 2
"""Members that may leave in an exchange, and outsiders that may join."""
_ROUNDS = 2
"""Exchanges at each size."""


def sets_from_all(engine: Target, sizes: Sequence[int]) -> dict[int, ComponentSet]:
    """A set of each size, found from all components downwards by gradients.

    Args:
        engine: What is maximised.
        sizes: Numbers of components wanted, of 1 to all.

    Raises:
        NotDifferentiableError: The metric has no gradient.
    """
    members = tuple(range(engine.n_components))
    by_size = {}
    for size in sorted(set(sizes), reverse=True):
        while len(members) > size:
            n_kept = max(size, int(_KEPT * len(members)))
            cost = engine.predict_changes(members).gains.nan_to_num()
            missed = sorted(members, key=lambda index: -cost[index].item())
            members = tuple(sorted(missed[:n_kept]))
        members = by_size[size] = _exchanged(engine, members)
    return by_size


def most_passes(n_components: int, sizes: Sequence[int]) -> float:
    """Passes over the data that `sets_from_all` takes at most."""
    n, passes = n_components, 0
    for size in sorted(set(sizes), reverse=True):
        while n > size:
            n, passes = max(size, int(_KEPT * n)), passes + 2
        passes += _ROUNDS * (2 + _CANDIDATES**2) + 1 if size < n_components else 0
    return passes


def _exchanged(engine: Target, members: ComponentSet) -> ComponentSet:
    """A set after the best of some exchanges of one member, as long as they are improvements."""
    outside = [index for index in range(engine.n_components) if index not in set(members)]
    if not outside:
        return members
    best = engine.set_effects([members], "from all").mean().item()
    for _ in range(_ROUNDS):
        gains = engine.predict_changes(members).gains.nan_to_num()
        leaving = sorted(members, key=lambda index: gains[index].item())[:_CANDIDATES]
        joining = sorted(outside, key=lambda index: -gains[index].item())[:_CANDIDATES]
        exchanged = [
            tuple(sorted({*members, joins} - {leaves}))
            for leaves, joins in product(leaving, joining)
        ]
        means = engine.set_effects(exchanged, "from all").mean(1)
        if not means.max() > best:
            break
        members, best = exchanged[int(means.argmax())], means.max().item()
        outside = [index for index in range(engine.n_components) if index not in set(members)]
    return members
