"""Sweeps up and down through sizes along first-order predictions.

At each size the gradient at the best set proposes a few components to add, to remove and to
exchange (see `moves.py`), and measured effects decide. The first sweep goes up; each further one
expands, at every size, the best set whose neighbours were not measured yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracekit._util import progress as _progress
from tracekit.search.local.best_sets import BestSets
from tracekit.search.local.moves import Moves
from tracekit.search.local.plan import SweepPlan

_ESCALATION = ((4, 0.3, 1), (8, 2.0, 1), (8, 2.0, 6))
"""Escalation levels, used when a sweep finds no new candidate: sets expanded per size, allowed
relative gap to the best, multiplier on the number of moves."""

_SMALL = 2
"""Sets of up to so many components are small."""


@dataclass(eq=False)
class Sweeps:
    """Goes up and down the sizes until there is nothing left to try."""

    best_sets: BestSets
    plan: SweepPlan
    orders: Sequence[Sequence[int]]
    """Rankings of all components to fill up from."""
    target: float | None
    """Effect beyond which larger sets are of no interest."""

    n_done: int = 0
    """Sweeps so far; the first one goes upwards, the second one downwards."""

    def go_once(self, level: int = 0) -> bool:
        """The next sweep; whether there was a set to expand.

        Args:
            level: Its effort.
        """
        self.n_done += 1
        return self._sweep(self.n_done - 1, level)

    def go_on(self) -> None:
        """Sweeps to the end, with more effort whenever one finds no set to expand."""
        level = 0
        while level < len(_ESCALATION):
            level += not self.go_once(level)

    def _sweep(self, sweep: int, level: int) -> bool:
        """Goes up or down once; whether there was a set to expand."""
        upwards = sweep % 2 == 0
        has_expanded = False
        for size in self.plan.sizes if upwards else reversed(self.plan.sizes):
            if self._expand(size, sweep, upwards, level):
                has_expanded = True
                _progress.current().note(size=size, effect=self.best_sets.effect(size))
        return has_expanded

    def _expand(self, size: int, sweep: int, upwards: bool, level: int) -> bool:
        """Measures the neighbours of the next set of a size; whether there was one to expand."""
        best_sets = self.best_sets
        best_sets.stop_beyond(self.target)
        if size > best_sets.largest or size == best_sets.engine.n_components:
            return False
        is_first = sweep == 0
        if is_first:
            members, moves = best_sets.unexplored(size, depth=1, within=0), self._first_moves(size)
        else:
            depth, within, times = _ESCALATION[level]
            members = best_sets.unexplored(size, depth=depth, within=within, effort=level)
            moves = self._later_moves(upwards, times)
        if members is None:
            return False
        sizes = self.plan.sizes
        index = sizes.index(size)
        best_sets.explore(
            members,
            moves,
            up=sizes[index + 1] if index + 1 < len(sizes) else None,
            down=sizes[index - 1] if index and not is_first else None,
            orders=() if is_first else self.orders,
            effort=level,
        )
        return True

    def _first_moves(self, size: int) -> Moves:
        plan = self.plan
        additions = plan.additions_to_small if size <= _SMALL else plan.additions
        return Moves(additions=additions, removals=0, swaps=plan.swaps)

    def _later_moves(self, upwards: bool, times: int) -> Moves:
        if self.plan.dense:
            removals = 1 if upwards else 2
            return Moves(additions=2 * times, removals=removals * times, swaps=2 * times)
        return Moves(
            additions=self.plan.additions,
            removals=2 * times,
            swaps=2 * times,
            shares=(1 / 16, 1 / 4),
        )
