"""Greedy: add the component that raises the mean effect most, again and again.

It takes about N k forward passes for k of N components. Every prefix of its path is an answer, so
all budgets share one run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracekit._util import progress as _progress
from tracekit.engine.cost import Cost
from tracekit.search.base import Goal, PlannedPasses, Record, Selection, target_not_reached
from tracekit.search.targets import Target


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """Forward selection by exact effects; ties go to the lowest index."""

    name: ClassVar[str] = "greedy"
    records_every_size: ClassVar[bool] = True

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """A pass for each component that is left, at every size."""
        last = goal.budgets[-1] if goal.budgets else n_components
        candidates = sum(n_components - size for size in range(last))
        n_answers = max(1, len(goal.budgets))
        return PlannedPasses(cost=Cost(candidates + n_answers), is_exact=goal.target is None)

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Adds components until the largest budget, or until the target is reached."""
        goal.require(self.name)
        last = goal.budgets[-1] if goal.budgets else target.n_components
        members: list[int] = []
        history: list[Record] = []
        selections = []
        for _ in range(last):
            candidates = sorted(set(range(target.n_components)) - set(members))
            means = target.set_effects([(*members, i) for i in candidates], "candidates").mean(1)
            best = int(means.argmax())
            members.append(candidates[best])
            effect = means[best].item()
            _progress.current_run().report_values(size=len(members), effect=effect)
            label = target.registry.label(candidates[best])
            history.append({"n_selected": len(members), "effect": effect, "component": label})
            reached = goal.target is not None and effect >= goal.target
            if reached or len(members) in goal.budgets:
                budget = len(members) if goal.target is None else None
                selections.append(
                    Selection.measured(target, members, history=tuple(history), budget=budget)
                )
            if reached:
                return selections
        if goal.target is not None:
            best_effect = max(float(record["effect"]) for record in history)
            raise target_not_reached(goal.target, best_effect)
        return selections
