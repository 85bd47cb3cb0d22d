"""Backward elimination: removes components that a gradient predicts to matter least, from all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from tracekit.components import ComponentSet
from tracekit.components.masks import complement_of
from tracekit.engine.gradients import FirstOrderPrediction
from tracekit.search.targets import Target

_SHARE_KEPT = 0.8
"""Share of the components that stay in a step."""
_CANDIDATES = 2
"""Members that may leave in an exchange, and non-members that may join."""
_ROUNDS = 2
"""Exchanges at each size."""


def backward_elimination(target: Target, sizes: Sequence[int]) -> dict[int, ComponentSet]:
    """A set of each size, found from all components downwards by gradients and exchanges."""
    members = tuple(range(target.n_components))
    by_size = {}
    for size in sorted(set(sizes), reverse=True):
        members = shrink(members, size, target.predict_changes)
        members = by_size[size] = _improve_by_exchanges(target, members)
    return by_size


def shrink(
    members: ComponentSet, size: int, predict: Callable[[ComponentSet], FirstOrderPrediction]
) -> ComponentSet:
    """`size` members of a set: a fifth leaves at a time, then effects are predicted anew."""
    while len(members) > size:
        values = predict(members).predicted_effects.nan_to_num()
        n_kept = max(size, int(_SHARE_KEPT * len(members)))
        members = tuple(sorted(sorted(members, key=lambda i: -values[i].item())[:n_kept]))
    return members


def most_backward_passes(n_components: int, sizes: Sequence[int]) -> float:
    """Passes over the data that `backward_elimination` takes at most."""
    n, passes = n_components, 0
    for size in sorted(set(sizes), reverse=True):
        while n > size:
            n, passes = max(size, int(_SHARE_KEPT * n)), passes + 2
        passes += _ROUNDS * (2 + _CANDIDATES**2) + 1 if size < n_components else 0
    return passes


def _improve_by_exchanges(target: Target, members: ComponentSet) -> ComponentSet:
    if len(members) == target.n_components:
        return members
    best = target.set_effects([members], "backward elimination").mean().item()
    for _ in range(_ROUNDS):
        predicted = target.predict_changes(members).predicted_effects.nan_to_num()
        others = complement_of(members, target.n_components)
        leaving = sorted(members, key=lambda index: predicted[index].item())[:_CANDIDATES]
        joining = sorted(others, key=lambda index: -predicted[index].item())[:_CANDIDATES]
        candidates = [
            tuple(sorted({*members, joins} - {leaves}))
            for leaves, joins in product(leaving, joining)
        ]
        means = target.set_effects(candidates, "backward elimination").mean(1)
        if not means.max() > best:
            break
        members, best = candidates[int(means.argmax())], means.max().item()
    return members
