"""Random: the best of many random sets of the given size. The control of every table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveInt

from tracekit._util import progress as _progress
from tracekit._util.options import ValidatedFields
from tracekit.engine.cost import Cost
from tracekit.search.base import Goal, PlannedPasses, Selection, target_not_reached
from tracekit.search.prefix import most_sizes_tried, prefix_members, smallest_size
from tracekit.search.targets import Record, Target


@dataclass(frozen=True, kw_only=True)
class Random(ValidatedFields):
    """The best of `draws` uniform sets per budget; the history has their mean and spread."""

    name: ClassVar[str] = "random"
    draws: PositiveInt = 1000
    """Sets drawn per budget."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """A pass for each draw, and one for each answer."""
        if goal.target is not None:
            return PlannedPasses(cost=Cost(most_sizes_tried(n_components) * (self.draws + 1)))
        draws = sum(1 if size == n_components else self.draws for size in goal.budgets)
        return PlannedPasses(cost=Cost(draws + len(goal.budgets)), is_exact=True)

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """The best draw of each budget, or for a target of the smallest size that reaches it."""
        goal.require(self.name)
        if goal.target is None:
            return [self._best(target, budget, seed, budget) for budget in goal.budgets]
        wanted = goal.target
        selection, tried = smallest_size(
            target.n_components,
            lambda size: self._best(target, size, seed, None),
            lambda best: best.effect >= wanted,
        )
        if selection is None:
            raise target_not_reached(wanted, max(best.effect for best in tried.values()))
        return [selection]

    def _best(self, target: Target, size: int, seed: int, budget: int | None) -> Selection:
        generator = torch.Generator().manual_seed((seed * 1_000_003 + size) % 2**63)
        # All components make one set only.
        n = target.n_components
        draws = 1 if size == n else self.draws
        sets = [
            prefix_members(target, torch.randperm(n, generator=generator).tolist(), size)
            for _ in range(draws)
        ]
        means = target.set_effects(sets, f"random, {size}").mean(1)
        best = int(means.argmax())
        _progress.current_run().report_values(size=size, effect=means[best].item())
        record: Record = {
            "n_selected": size,
            "effect": means[best].item(),
            "draws": draws,
            "mean": means.mean().item(),
            "std": means.std(correction=0).item(),
        }
        return Selection.measured(target, sets[best], history=(record,), budget=budget)
