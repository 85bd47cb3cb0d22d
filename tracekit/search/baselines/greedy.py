"""Greedy: add the component that raises the mean effect most, again and again.

The strongest of the simple baselines and the slowest: about N k forward passes for k components.
Every prefix of its path is an answer, so all budgets share one path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tqdm.auto import tqdm

from tracekit.engine.engine import Engine
from tracekit.masks import from_indices
from tracekit.search.base import Found, Goal, Record, not_reached


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """Forward selection by exact effects; ties go to the lowest index."""

    name: ClassVar[str] = "greedy"

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Found]:
        """Follows the path until the largest budget, or until the target is reached."""
        goal.require(self.name)
        last = goal.budgets[-1] if goal.budgets else engine.n_components
        chosen: list[int] = []
        history: list[Record] = []
        found = []
        for _ in tqdm(range(last), desc="greedy", leave=False, disable=not engine.progress):
            left = sorted(set(range(engine.n_components)) - set(chosen))
            effects = engine.mean_effects([[*chosen, i] for i in left], "candidates")
            best = int(effects.argmax())
            chosen.append(left[best])
            effect = effects[best].item()
            history.append(
                {
                    "n_selected": len(chosen),
                    "effect": effect,
                    "component": engine.registry.label(left[best]),
                }
            )
            reached = goal.target is not None and effect >= goal.target
            if reached or len(chosen) in goal.budgets:
                found.append(_found(engine, chosen, history, goal))
            if reached:
                return found
        if goal.target is not None:
            raise not_reached(goal.target, max(float(record["effect"]) for record in history))
        return found


def _found(engine: Engine, chosen: list[int], history: list[Record], goal: Goal) -> Found:
    mask = from_indices(chosen, engine.n_components)
    return Found(
        mask=mask,
        effects=engine.effects(mask),
        history=tuple(history),
        budget=len(chosen) if goal.target is None else None,
    )
