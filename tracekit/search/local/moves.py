"""Moves from a set to its neighbours: which of them are worth measuring.

What adding or removing a component would bring is predicted to first order, in two ways
(see `engine/gradients.py`): the gains follow the curve of the metric, the gradient does not. Where
the effects of single components are moderate the gains order them almost perfectly; where one
example outgrows all others they exaggerate, and the gradient is the better guide. Proposals are
taken from both in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import TypeVar

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, ranking
from tracekit.engine.gradients import FirstOrderPrediction

T = TypeVar("T")

_SINGLES = 4
"""The components that do most alone, of which a set of fewer gets those that it lacks."""
_SCREENED = 3
"""Components on either side that exchanges are made of, at least."""


@dataclass(frozen=True, kw_only=True)
class Moves:
    """How many neighbours of a set are measured."""

    additions: int
    """Sets with one component more."""
    removals: int
    """Sets with one component fewer."""
    swaps: int
    """Sets with one component exchanged."""
    shares: tuple[float, ...] = ()
    """Shares of the set that are exchanged at once."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """A set and what is known around it."""

    members: ComponentSet
    """The set."""
    up: int | None
    """The next larger size of interest. Where it is more than one component away, one set is made
    for each prediction and for each order."""
    down: int | None
    """The next smaller one."""
    orders: Sequence[Sequence[int]]
    """Rankings of all components to fill up from."""
    singles: Sequence[int]
    """Components that were measured alone, the best first."""

    @property
    def size(self) -> int:
        """Number of components of the set."""
        return len(self.members)

    def with_singles(self) -> list[Iterable[int]]:
        """A small set and one of the components that do most alone; no gradient points to some."""
        outside = [single for single in self.singles if single not in self.members]
        return [(*self.members, single) for single in outside[: max(0, _SINGLES - self.size)]]

    def filled_up(self, size: int, orders: Iterable[Sequence[int]]) -> list[Iterable[int]]:
        """The set and the first of each order that are not in it, to a size."""
        more = [[i for i in order if i not in self.members] for order in orders]
        return [(*self.members, *order[: size - self.size]) for order in more]


def promising_neighbours(
    around: Surroundings, moves: Moves, prediction: FirstOrderPrediction
) -> list[Iterable[int]]:
    """The neighbours that promise most to first order.

    Args:
        around: The set.
        moves: How many of each sort.
        prediction: At the set.
    """
    inside_set, size = set(around.members), around.size
    scores = (prediction.gains, prediction.gradient)
    ranked = [ranking(score) for score in scores]
    # Best additions first; best removals (least loss) first.
    outside = [[i for i in order if i not in inside_set] for order in ranked]
    inside = [[i for i in reversed(order) if i in inside_set] for order in ranked]
    proposed: list[Iterable[int]] = []
    if around.up == size + 1:
        proposed += [inside_set | {new} for new in in_turn(*outside)[: moves.additions]]
        proposed += around.with_singles()
    elif around.up is not None:
        proposed += around.filled_up(around.up, (*outside, *around.orders))
    if around.down is not None and around.down == size - 1:
        proposed += [inside_set - {old} for old in in_turn(*inside)[: moves.removals]]
    elif around.down:
        proposed += [inside_set.difference(order[: size - around.down]) for order in inside]
    screened = max(_SCREENED, moves.swaps)
    swaps = in_turn(
        *(
            _swaps(score, old[:screened], new[:screened])
            for score, old, new in zip(scores, inside, outside, strict=True)
        )
    )
    proposed += [inside_set - {old} | {new} for old, new in swaps[: moves.swaps]]
    for share in moves.shares:
        count = min(round(share * size), len(outside[0]))
        if count > 1:
            proposed += [
                inside_set.difference(old[:count]).union(new[:count])
                for old, new in zip(inside, outside, strict=True)
            ]
    return proposed


def in_turn(*orders: Sequence[T]) -> list[T]:
    """The first of each order, then the second of each, without repetitions."""
    return list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))


def _swaps(score: Mask, inside: list[int], outside: list[int]) -> list[tuple[int, int]]:
    """Pairs of one component to remove and one to add, the most promising first."""
    return sorted(
        product(inside, outside), key=lambda pair: (score[pair[0]] - score[pair[1]]).item()
    )
