"""Random: the best of many random sets of the given size. The control of every table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError
from tracekit.masks import from_indices
from tracekit.search.base import Found, Goal, Record, not_reached


@dataclass(frozen=True, kw_only=True)
class Random:
    """The best of `draws` uniform sets per budget; the history has their mean and spread."""

    name: ClassVar[str] = "random"
    draws: int = 1000
    """Sets drawn per budget."""

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ConfigError(f"draws is {self.draws}. It must be at least 1.")

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Found]:
        """Draws and measures; for a target, looks for the smallest size at which a draw does.

        The draws of a size depend on the seed and that size alone.
        """
        goal.require(self.name)
        if goal.target is None:
            return [self._best(engine, budget, seed, budget) for budget in goal.budgets]
        return [self._smallest(engine, goal.target, seed)]

    def _smallest(self, engine: Engine, target: float, seed: int) -> Found:
        n, below, best = engine.n_components, 0, -float("inf")
        for size in sorted({min(2**k, n) for k in range(n.bit_length() + 1)}):
            found = self._best(engine, size, seed, None)
            best = max(best, found.effects.mean().item())
            if best >= target:
                break
            below = size
        else:
            raise not_reached(target, best)
        while size - below > 1:
            middle = (below + size) // 2
            tried = self._best(engine, middle, seed, None)
            if tried.effects.mean().item() >= target:
                size, found = middle, tried
            else:
                below = middle
        return found

    def _best(self, engine: Engine, size: int, seed: int, budget: int | None) -> Found:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + size)
        draws = 1 if size == engine.n_components else self.draws
        sets = [
            torch.randperm(engine.n_components, generator=generator)[:size].tolist()
            for _ in range(draws)
        ]
        effects = engine.mean_effects(sets, f"random, {size}")
        best = int(effects.argmax())
        record: Record = {
            "n_selected": size,
            "effect": effects[best].item(),
            "draws": draws,
            "mean": effects.mean().item(),
            "std": effects.std(correction=0).item(),
        }
        mask = from_indices(sets[best], engine.n_components)
        return Found(mask=mask, effects=engine.effects(mask), history=(record,), budget=budget)
