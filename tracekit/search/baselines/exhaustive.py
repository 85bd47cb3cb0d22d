"""Exhaustive: every set up to the budget. The optimum, for small numbers of components."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import ClassVar

from tracekit._util import progress as _progress
from tracekit.components import ComponentSet
from tracekit.engine.cost import Cost
from tracekit.errors import BudgetError
from tracekit.search.base import Goal, PlannedPasses, Record, Selection, target_not_reached
from tracekit.search.targets import Target


@dataclass(frozen=True, kw_only=True)
class Exhaustive:
    """Measures all non-empty sets of at most the budget's size."""

    name: ClassVar[str] = "exhaustive"
    records_every_size: ClassVar[bool] = True
    max_sets: int = 20_000
    """Refuses larger spaces."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """A pass for each set, and one for each answer."""
        if not goal.budgets:
            return PlannedPasses(cost=Cost(min(2**n_components, self.max_sets) + 1))
        count = sum(comb(n_components, size) for size in range(1, goal.budgets[-1] + 1))
        return PlannedPasses(cost=Cost(count + len(goal.budgets)), is_exact=True)

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """The best set within each budget; for a target, the best of the smallest size."""
        goal.require(self.name)
        n = target.n_components
        largest = goal.budgets[-1] if goal.budgets else n
        if goal.budgets:
            self._refuse_large(n, largest)
        best: tuple[float, ComponentSet] = (-float("inf"), ())
        history: list[Record] = []
        selections = []
        for size in range(1, largest + 1):
            self._refuse_large(n, size)
            sets = list(combinations(range(n), size))
            means = target.set_effects(sets, f"exhaustive, {size}").mean(1)
            rank = int(means.argmax())
            history.append({"n_selected": size, "effect": means[rank].item()})
            _progress.current_run().report_values(size=size, effect=means[rank].item())
            best = max(best, (means[rank].item(), sets[rank]), key=lambda pair: pair[0])
            reached = goal.target is not None and best[0] >= goal.target
            if reached or size in goal.budgets:
                budget = size if goal.target is None else None
                selections.append(
                    Selection.measured(target, best[1], history=tuple(history), budget=budget)
                )
            if reached:
                return selections
        if goal.target is not None:
            raise target_not_reached(goal.target, best[0])
        return selections

    def _refuse_large(self, n: int, size: int) -> None:
        count = sum(comb(n, k) for k in range(1, size + 1))
        if count > self.max_sets:
            raise BudgetError(
                f"There are {count:,} sets of at most {size} of {n} components; exhaustive search "
                f"takes at most {self.max_sets:,}. Choose fewer components or a smaller budget, "
                "or raise max_sets."
            )
