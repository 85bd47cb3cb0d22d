"""The best sets of every size among those measured, and moves from them to their neighbours.

What adding or removing a component would bring is predicted to first order, in two ways (see
`Engine.first_order`): the gains follow the curve of the metric, the gradient does not. Where the
effects of single components are moderate the gains order them almost perfectly; where one example
outgrows all others they exaggerate, and the gradient is the better guide. Proposals are taken from
both in turn, and compared by measured effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import TypeVar

from tracekit.engine.prefix_tree import Set
from tracekit.masks import Mask, ranking
from tracekit.metrics import Effects
from tracekit.search.local.measurements import Ledger

T = TypeVar("T")

_KEPT = 8
"""Sets kept of each size."""
_BISECTIONS = 40
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


class Frontier:
    """Measured sets of up to a size."""

    def __init__(self, ledger: Ledger, largest: int) -> None:
        """Starts with the empty set.

        Args:
            ledger: Measures.
            largest: Sets of more components are not measured.
        """
        self.ledger = ledger
        self.largest = largest
        self._means: dict[Set, float] = {(): 0.0}
        self._best: dict[int, list[Set]] = {0: [()]}
        self._explored: dict[Set, int] = {}

    @property
    def sizes(self) -> list[int]:
        """Sizes of which a set was measured, ascending."""
        return sorted(size for size in self._best if size)

    @property
    def improving(self) -> list[int]:
        """Those of the sizes whose best set does better than every smaller one."""
        return [size for size in self.sizes if len(self.best_within(size)) == size]

    def effect(self, size: int) -> float:
        """Mean effect of the best set of exactly a size; minus infinity if there is none."""
        return self._means[self._best[size][0]] if size in self._best else -float("inf")

    def best(self, size: int) -> Set:
        """The best set of exactly a size."""
        return self._best[size][0]

    def best_within(self, budget: int) -> Set:
        """The best set of 1 to `budget` components; of equals the smallest."""
        size = max((s for s in self.sizes if s <= budget), key=lambda s: (self.effect(s), -s))
        return self.best(size)

    def reaching(self, target: float) -> int | None:
        """The smallest size whose best set reaches an effect."""
        return next((size for size in self.sizes if self.effect(size) >= target), None)

    def effects(self, one: Set) -> Effects:
        """Effects of a measured set on every example."""
        return self.ledger.effects(one)

    def measure(self, sets: Iterable[Iterable[int]], label: str) -> None:
        """Measures the sets that are new, of 1 to `largest` components.

        Raises:
            LimitReachedError: Not all could be; those that could are kept.
        """
        asked = [tuple(sorted(one)) for one in sets]
        fitting = [one for one in asked if 0 < len(one) <= self.largest]
        self._note(self.ledger.measure(fitting, label))
        if any(one not in self.ledger for one in fitting):
            raise self.ledger.cut_short()

    def halve(self, n_groups: int, kept: int) -> None:
        """Looks for components that do much alone, though no gradient says so.

        All components are dealt into groups; the best groups are halved, and the best halves
        again, down to single components. All of them are measured.

        Args:
            n_groups: Number of groups.
            kept: How many of a round are halved.

        Raises:
            LimitReachedError: Not all could be measured; those that could are kept.
        """
        n = self.ledger.engine.n_components
        groups = [tuple(range(first, n, n_groups)) for first in range(n_groups)]
        while groups:
            done = self.ledger.measure(groups, "groups")
            self._note([one for one in done if len(one) <= self.largest])
            if any(one not in self.ledger for one in groups):
                raise self.ledger.cut_short()
            groups.sort(key=lambda one: -self.ledger.effects(one).mean().item())
            parts = [one for one in groups[:kept] if len(one) > 1]
            groups = [half for one in parts for half in (one[::2], one[1::2])]

    def adopt(self, known: Mapping[Set, Effects]) -> None:
        """Takes over sets that were measured elsewhere."""
        self.ledger.adopt(known)
        self._note([one for one in known if 0 < len(one) <= self.largest])

    def _note(self, measured: Iterable[Set]) -> None:
        for one in measured:
            self._means[one] = self.ledger.effects(one).mean().item()
            kept = self._best.setdefault(len(one), [])
            kept.append(one)
            kept.sort(key=lambda s: -self._means[s])
            del kept[_KEPT:]

    def unexplored(self, size: int, *, depth: int, within: float, effort: int = 0) -> Set | None:
        """The best set of a size whose neighbours were not measured, or with less effort only.

        Args:
            size: The size.
            depth: How many of the best sets to look at.
            within: How far behind the best one, as a share of its effect, a set may be.
            effort: What `explore` will be told.
        """
        for one in self._best.get(size, [])[:depth]:
            if self._means[one] < self.effect(size) - within * abs(self.effect(size)):
                return None
            if self._explored.get(one, -1) < effort:
                return one
        return None

    def orders(self) -> list[list[int]]:
        """Components from the best to the worst as they look from the empty set."""
        ahead = self.ledger.first_order(())
        return [ranking(ahead.gains), ranking(ahead.gradient)]

    def explore(
        self,
        one: Set,
        moves: Moves,
        *,
        up: int | None,
        down: int | None,
        orders: Sequence[Sequence[int]] = (),
        effort: int = 0,
    ) -> None:
        """Measures the most promising neighbours of a set.

        Args:
            one: The set.
            moves: How many of each sort.
            up: The next larger size of interest. Where it is more than one component away, one
                set is made for each prediction and for each order.
            down: The next smaller one.
            orders: Rankings of all components to fill up from.
            effort: Noted, so that the set is taken up again only with more.
        """
        self._explored[one] = effort
        ahead = self.ledger.first_order(one)
        held, size = set(one), len(one)
        scores = (ahead.gains, ahead.gradient)
        ranked = [ranking(score) for score in scores]
        outside = [[i for i in order if i not in held] for order in ranked]
        inside = [[i for i in reversed(order) if i in held] for order in ranked]
        proposed: list[Iterable[int]] = []
        if up == size + 1:
            proposed += [held | {new} for new in in_turn(*outside)[: moves.additions]]
        elif up is not None:
            more = [[i for i in order if i not in held] for order in orders]
            proposed += [held.union(order[: up - size]) for order in (*outside, *more)]
        if down is not None and down == size - 1:
            proposed += [held - {old} for old in in_turn(*inside)[: moves.removals]]
        elif down:
            proposed += [held.difference(order[: size - down]) for order in inside]
        screened = max(_SCREENED, moves.swaps)
        swaps = in_turn(
            *(
                _exchanges(score, old[:screened], new[:screened])
                for score, old, new in zip(scores, inside, outside, strict=True)
            )
        )
        proposed += [held - {old} | {new} for old, new in swaps[: moves.swaps]]
        for share in moves.shares:
            count = min(round(share * size), len(outside[0]))
            if count > 1:
                proposed += [
                    held.difference(old[:count]).union(new[:count])
                    for old, new in zip(inside, outside, strict=True)
                ]
        self.measure(proposed, f"neighbours of {size}")


def _exchanges(score: Mask, inside: list[int], outside: list[int]) -> list[tuple[int, int]]:
    """Pairs of one component to remove and one to add, the most promising first."""
    return sorted(
        product(inside, outside), key=lambda pair: (score[pair[0]] - score[pair[1]]).item()
    )


def in_turn(*orders: Sequence[T]) -> list[T]:
    """The first of each order, then the second of each, without repetitions."""
    return list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))


def spread(first: int, last: int, count: int) -> tuple[int, ...]:
    """At most `count` whole numbers (at least two) from `first` to `last`.

    They are spread on a logarithmic scale, as far as whole numbers can be.
    """
    close, wide = 1.0, float(max(2, last))
    for _ in range(_BISECTIONS):
        factor = (close * wide) ** 0.5
        close, wide = (
            (factor, wide) if len(_steps(first, last, factor)) > count else (close, factor)
        )
    return _steps(first, last, wide)


def _steps(first: int, last: int, factor: float) -> tuple[int, ...]:
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(min(last, max(sizes[-1] + 1, round(sizes[-1] * factor))))
    return tuple(sizes)
