"""PGB-CT with refinement: local search improves the sets that training has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tracekit.components.masks import from_indices
from tracekit.engine.cost import Cost
from tracekit.search.base import Goal, PlannedPasses, Selection
from tracekit.search.learned.lambda_search import TrainingRun, best_within_budgets, measured_sets
from tracekit.search.learned.pgbct import PGBCT
from tracekit.search.local.local_search import refine
from tracekit.search.targets import Target

_PASSES = 250
_PASSES_MORE = 50
"""Passes at most, training included, for one budget, and for each further one."""


@dataclass(frozen=True, kw_only=True)
class PGBCTLocal(PGBCT):
    """PGB-CT, whose sets within a budget local search improves.

    With a target, or with neither a budget nor a target, there is nothing to refine: it is PGB-CT.
    """

    name: ClassVar[str] = "pgb-ct+local"
    title: ClassVar[str] = "PGB-CT + local"
    default_trials: ClassVar[int] = 1

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """All passes that training and refinement may come to."""
        trained = super().planned_passes(n_components, goal).cost
        left = max(0.0, _passes(goal.budgets) - trained.forward_equivalents)
        return PlannedPasses(cost=trained + Cost(left / 2, left / 2))

    def best_sets(
        self, target: Target, runs: Sequence[TrainingRun], budgets: Sequence[int], before: Cost
    ) -> list[Selection]:
        """The best set within each budget, improved by local search."""
        measured = measured_sets(runs)
        selections = best_within_budgets(runs, target, budgets, measured)
        passes_left = _passes(budgets) - (target.cost - before).forward_equivalents
        if passes_left < 1:
            return selections
        refined = refine(target, measured, budgets, passes_left)
        for number, budget in enumerate(budgets):
            best = refined.best_within(budget)
            effects = refined.measurements.effects(best)
            if effects.mean() > selections[number].effects.mean():
                mask = from_indices(best, target.n_components)
                selections[number] = replace(selections[number], mask=mask, effects=effects)
        return selections


def _passes(budgets: Sequence[int]) -> int:
    return _PASSES + _PASSES_MORE * (len(budgets) - 1) if budgets else 0
