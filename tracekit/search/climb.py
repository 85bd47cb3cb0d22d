"""Climb: grow a set one component at a time; gradients propose, measured effects decide.

At every size the best set seen so far is taken up. The gradient at its binary mask proposes a few
components to add, to remove and to exchange; those sets are measured, and the best of every size is
kept. So a step up may also improve the size it came from and the one below. After the largest
budget the sizes are gone through once more, downwards, which carries what was found late to the
smaller sizes. Every budget is answered from the same sets.

Greedy measures every addition at every size; this measures a few, and also takes steps back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tqdm.auto import tqdm

from tracekit.errors import ConfigError
from tracekit.masks import from_indices
from tracekit.runs import Engine
from tracekit.search.base import Found, Goal, Record, not_reached, require_gradient
from tracekit.search.frontier import Frontier


@dataclass(frozen=True, kw_only=True)
class Climb:
    """Gradient-screened growth with removals and exchanges, each measured exactly."""

    name: ClassVar[str] = "climb"
    additions: int = 6
    """Sets with one component more that are measured at each size."""
    removals: int = 2
    """Sets with one component fewer."""
    swaps: int = 5
    """Sets with one component exchanged."""

    def __post_init__(self) -> None:
        if self.additions < 1:
            raise ConfigError(f"additions is {self.additions}. It must be at least 1.")
        for name in ("removals", "swaps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}. It must be at least 0.")

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Found]:
        """Climbs to the largest budget, or to the target, and down again.

        Raises:
            NotDifferentiableError: The metric has no gradient.
        """
        goal.require(self.name)
        require_gradient(engine.metric, self.name)
        last = goal.budgets[-1] if goal.budgets else engine.n_components
        frontier = Frontier(engine, last)
        top = self._up(frontier, last, goal, engine.progress)
        for size in range(top, 1, -1):
            swaps = min(2, self.swaps)
            frontier.explore(size, additions=1, removals=self.removals + 1, swaps=swaps)
        if goal.target is None:
            return [_found(engine, frontier, budget, top, budget) for budget in goal.budgets]
        reaching = [size for size in range(1, top + 1) if frontier.effect(size) >= goal.target]
        if not reaching:
            raise not_reached(goal.target, max(map(frontier.effect, range(1, top + 1))))
        return [_found(engine, frontier, reaching[0], top, None)]

    def _up(self, frontier: Frontier, last: int, goal: Goal, progress: bool) -> int:
        """Goes up to `last`, or to the first size that reaches the target; returns that size."""
        frontier.explore(0, additions=2 * self.additions, removals=0, swaps=0)
        for size in tqdm(range(1, last), desc=self.name, leave=False, disable=not progress):
            if goal.target is not None and frontier.effect(size) >= goal.target:
                return size
            frontier.explore(
                size, additions=self.additions, removals=self.removals, swaps=self.swaps
            )
        return last


def _found(engine: Engine, frontier: Frontier, size: int, top: int, budget: int | None) -> Found:
    mask = from_indices(frontier.best_within(size), engine.n_components)
    history: list[Record] = [
        {"n_selected": size, "effect": frontier.effect(size)} for size in range(1, top + 1)
    ]
    return Found(mask=mask, effects=engine.effects(mask), history=tuple(history), budget=budget)
