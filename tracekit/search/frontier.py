"""The best set of every size among those measured, and moves from it to its neighbours.

The gradient of the mean effect at a binary mask says, to first order, what adding a component, or
removing one, would bring. It only proposes: sets are compared by measured effects.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tracekit.errors import NonFiniteMetricError
from tracekit.masks import Mask, from_indices, ranking
from tracekit.runs import Engine

Set = tuple[int, ...]
"""Flat indices, ascending."""


class Frontier:
    """Measured sets of up to a size; each is measured once."""

    def __init__(self, engine: Engine, largest: int) -> None:
        """Starts with the empty set.

        Args:
            engine: Measures.
            largest: Sets of more components are not measured.
        """
        self._engine = engine
        self._largest = largest
        self._effects: dict[Set, float] = {(): 0.0}
        self._best: dict[int, Set] = {0: ()}
        self._gradients: dict[Set, Mask] = {}

    def effect(self, size: int) -> float:
        """Mean effect of the best set of exactly a size; minus infinity if there is none."""
        return self._effects[self._best[size]] if size in self._best else -float("inf")

    def best_within(self, budget: int) -> Set:
        """The best set of 1 to `budget` components; of equals the smallest."""
        size = max(range(1, budget + 1), key=lambda size: (self.effect(size), -size))
        return self._best[size]

    def measure(self, sets: Iterable[Iterable[int]], label: str) -> None:
        """Measures the sets that are new and not too large."""
        asked = dict.fromkeys(tuple(sorted(one)) for one in sets)
        new = [one for one in asked if one not in self._effects and len(one) <= self._largest]
        if not new:
            return
        for one, effect in zip(new, self._engine.mean_effects(new, label).tolist(), strict=True):
            self._effects[one] = effect
            if effect > self.effect(len(one)):
                self._best[len(one)] = one

    def gradient(self, one: Set) -> Mask:
        """Gradient of the mean effect at the binary mask of a set.

        Raises:
            NonFiniteMetricError: It is not finite.
        """
        if one not in self._gradients:
            mask = from_indices(one, self._engine.n_components).float()
            _, total = self._engine.gradient(mask, torch.ones_like)
            if not torch.isfinite(total).all():
                raise NonFiniteMetricError(
                    f"The gradient of the metric {self._engine.metric.name!r} is not finite at "
                    f"{len(one)} components. Use a bounded metric such as probability-drop."
                )
            self._gradients[one] = total / self._engine.n_examples
        return self._gradients[one]

    def explore(self, size: int, *, additions: int, removals: int, swaps: int) -> None:
        """Measures the most promising neighbours of the best set of a size.

        Args:
            size: Of the set to start from; one of that size must have been measured.
            additions: Sets with one component more.
            removals: Sets with one component fewer.
            swaps: Sets with one component exchanged.
        """
        inside = self._best[size]
        gradient = self.gradient(inside)
        held = set(inside)
        out = [i for i in ranking(gradient) if i not in held]
        weakest = sorted(inside, key=lambda i: gradient[i].item())
        few = max(3, swaps)
        exchanges = sorted(
            ((weak, new) for weak in weakest[:few] for new in out[:few]),
            key=lambda pair: (gradient[pair[0]] - gradient[pair[1]]).item(),
        )
        proposed = [[*inside, new] for new in out[:additions]]
        if size > 1:
            proposed += [held - {weak} for weak in weakest[:removals]]
        proposed += [held - {weak} | {new} for weak, new in exchanges[:swaps]]
        self.measure(proposed, f"neighbours of {size}")
