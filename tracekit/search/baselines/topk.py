"""Top-k: the components with the largest effects on their own.

N forward passes rank them; interactions are invisible to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracekit.engine.engine import Engine
from tracekit.search.base import Found, Goal, ranked


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The k components with the largest single effects."""

    name: ClassVar[str] = "top-k"

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Found]:
        """Measures every component alone, then the union of the best at each budget."""
        goal.require(self.name)
        singles = engine.mean_effects([[i] for i in range(engine.n_components)], "top-k")
        return ranked(engine, goal, singles)
