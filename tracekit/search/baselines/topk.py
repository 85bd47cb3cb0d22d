"""Top-k: the components with the largest effects on their own.

N forward passes rank them, or fewer if they race; interactions are invisible to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracekit.engine.cost import Cost
from tracekit.search.base import Goal, Planned, Selection
from tracekit.search.prefix import best_prefixes, planned_prefixes
from tracekit.search.racing import Portions, means_of_race, raced_effects
from tracekit.search.targets import Target


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The k components with the largest single effects."""

    name: ClassVar[str] = "top-k"
    title: ClassVar[str] = "top-k"
    records_every_size: ClassVar[bool] = True
    race: bool = False
    """Whether components that are clearly behind the k-th are measured on a part of the examples
    only (see `racing.py`). With a target, k is not known and all are measured on all."""

    def planned(self, n_components: int, goal: Goal) -> Planned:
        """A pass for each component, and one for each budget."""
        cost = Cost(n_components)
        return planned_prefixes(n_components, goal, cost, is_exact=not self.race)

    def search(self, engine: Target, goal: Goal, seed: int) -> list[Selection]:
        """Measures every component alone, then the union of the best at each budget."""
        goal.require(self.name)
        sets = [(i,) for i in range(engine.n_components)]
        portions = Portions.make(engine, seed, race=self.race and goal.target is None)
        n_winners = goal.budgets[-1] if goal.budgets else engine.n_components
        effects = raced_effects(engine, sets, portions, "top-k", n_winners=n_winners)
        return best_prefixes(engine, goal, means_of_race(effects))
