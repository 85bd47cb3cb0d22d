"""Top-k: the components with the largest effects on their own.

N forward passes rank them; interactions are invisible to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracekit.engine.engine import Engine
from tracekit.search.base import Goal, Selection
from tracekit.search.prefix import best_prefixes


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The k components with the largest single effects."""

    name: ClassVar[str] = "top-k"
    title: ClassVar[str] = "top-k"
    records_every_size: ClassVar[bool] = True

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Selection]:
        """Measures every component alone, then the union of the best at each budget."""
        goal.require(self.name)
        singles = engine.set_effects([[i] for i in range(engine.n_components)], "top-k").mean(1)
        return best_prefixes(engine, goal, singles)
