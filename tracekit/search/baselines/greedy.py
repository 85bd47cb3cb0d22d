"""Greedy: add the component that raises the mean effect most, again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tracekit.engine.cost import Cost
from tracekit.search.base import Goal, PlannedPasses, Selection, answers_by_size
from tracekit.search.targets import Record, Target


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
        return answers_by_size(target, goal, _steps(target, last))


def _steps(target: Target, last: int) -> Iterator[tuple[list[int], Record]]:
    members: list[int] = []
    for size in range(1, last + 1):
        candidates = sorted(set(range(target.n_components)) - set(members))
        means = target.set_effects([(*members, i) for i in candidates], "candidates").mean(1)
        best = int(means.argmax())
        members.append(candidates[best])
        label = target.registry.label(candidates[best])
        yield members, {"n_selected": size, "effect": means[best].item(), "component": label}
