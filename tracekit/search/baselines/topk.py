"""Top-k: the components with the largest effects on their own, whatever they do together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracekit.engine.cost import Cost
from tracekit.search.base import Goal, PlannedPasses, Selection
from tracekit.search.prefix import best_prefixes, planned_prefixes
from tracekit.search.targets import Target


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The k components with the largest single effects."""

    name: ClassVar[str] = "top-k"
    records_every_size: ClassVar[bool] = True

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """A pass for each component, and one for each budget."""
        return planned_prefixes(n_components, goal, Cost(n_components), is_exact=True)

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Measures every component alone, then the union of the best at each budget."""
        goal.require(self.name)
        sets = [(i,) for i in range(target.n_components)]
        return best_prefixes(target, goal, target.set_effects(sets, self.name).mean(1))
