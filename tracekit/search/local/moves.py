"""Moves from a set to its neighbours: which of them are worth measuring.

Where the slopes of every example are kept, a model of all gradients taken so far chooses (see
`slope_model.py`).

Elsewhere, what adding or removing a component would bring is predicted to first order, in two ways
(see `engine/look_ahead.py`): the gains follow the curve of the metric, the gradient does not. Where
the effects of single components are moderate the gains order them almost perfectly; where one
example outgrows all others they exaggerate, and the gradient is the better guide. Proposals are
taken from both in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import TypeVar

from tracekit.components import ComponentSet
from tracekit.engine.look_ahead import FirstOrderPrediction
from tracekit.masks import Mask, from_indices, ranking
from tracekit.search.local.slope_model import SlopeModel, additions, exchanges, removals

T = TypeVar("T")

_SINGLES = 4
"""Components that do most alone, among which all pairs are measured."""
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
    """Shares of the set that are exchanged at once; only to first order."""
    climb: int = 0
    """Sets with more and more components exchanged, one at a time; only by a model."""


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
    is_known: Callable[[ComponentSet], bool]
    """Whether a set was measured."""

    @property
    def size(self) -> int:
        """Number of components of the set."""
        return len(self.members)

    def with_singles(self, proposed: Iterable[Iterable[int]]) -> list[ComponentSet]:
        """The set and one of the components that do most alone, of those that make a new set.

        No gradient points to some that do much alone. The smaller the set, the more of them.

        Args:
            proposed: Sets that are proposed already.
        """
        listed = {tuple(sorted(each)) for each in proposed}
        outside = (single for single in self.singles if single not in self.members)
        joined = (tuple(sorted((*self.members, single))) for single in outside)
        new = (each for each in joined if each not in listed and not self.is_known(each))
        return list(islice(new, max(1, _SINGLES - self.size)))

    def filled_up(self, size: int, orders: Iterable[Sequence[int]]) -> list[Iterable[int]]:
        """The set and the first of each order that are not in it, to a size."""
        more = [[i for i in order if i not in self.members] for order in orders]
        return [(*self.members, *order[: size - self.size]) for order in more]


def moves_to_first_order(
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


def moves_by_model(around: Surroundings, moves: Moves, model: SlopeModel) -> list[Iterable[int]]:
    """The neighbours that promise most by a model.

    Args:
        around: The set.
        moves: How many of each sort.
        model: It has learned from the gradient at the set.
    """
    members, size, is_known = around.members, around.size, around.is_known
    row = from_indices(members, model.n_components).float()
    proposed: list[Iterable[int]] = []
    if around.up == size + 1:
        proposed += model.best(members, additions(row), moves.additions, is_known)
        proposed += around.with_singles(proposed)
    elif around.up is not None:
        proposed.append(model.resized(members, around.up))
        proposed += around.filled_up(around.up, around.orders)
    if around.down is not None and around.down == size - 1:
        proposed += model.best(members, removals(row), moves.removals, is_known)
    elif around.down:
        proposed.append(model.resized(members, around.down))
    swapped = model.best(members, exchanges(row), moves.swaps, is_known)
    proposed += swapped
    if swapped:
        proposed += model.climb(members, swapped[0], moves.climb)
    return proposed


def in_turn(*orders: Sequence[T]) -> list[T]:
    """The first of each order, then the second of each, without repetitions."""
    return list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))


def _swaps(score: Mask, inside: list[int], outside: list[int]) -> list[tuple[int, int]]:
    """Pairs of one component to remove and one to add, the most promising first."""
    return sorted(
        product(inside, outside), key=lambda pair: (score[pair[0]] - score[pair[1]]).item()
    )
