"""The neighbours of a set that are worth measuring.

Two scores of components say which: the predicted gains at the set (see `engine.predict_changes`),
and a second opinion. Where effects are moderate the gains order neighbours almost perfectly; where
one example outgrows all others, or many components change at once, they exaggerate, and the other
score is the better guide. So both propose, in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, ranking
from tracekit.search.local.settings import SETTINGS

T = TypeVar("T")


def promising_neighbours(
    members: ComponentSet, scores: Sequence[Mask], up: int, down: int, effort: int
) -> list[Iterable[int]]:
    """Sets with components added, removed and exchanged, as each of the scores proposes.

    `up` is the next larger size of interest. If that is one more, several components are tried;
    else each score fills the set up to it, and there are no additions up to its own size. `down` is
    likewise. `effort` multiplies the numbers of neighbours with one change.
    """
    inside, size = set(members), len(members)
    orders = [ranking(score) for score in scores]
    joining = [[i for i in order if i not in inside] for order in orders]
    leaving = [[i for i in reversed(order) if i in inside] for order in orders]
    n_additions, n_exchanges = SETTINGS.additions * effort, SETTINGS.exchanges * effort
    proposed: list[Iterable[int]] = []
    if up == size + 1:
        proposed += [inside | {joins} for joins in in_turn(*joining)[:n_additions]]
    else:
        proposed += [inside.union(order[: up - size]) for order in joining]
    if down == size - 1:
        proposed += [inside - {leaves} for leaves in in_turn(*leaving)[:n_exchanges]]
    else:
        proposed += [inside.difference(order[: size - down]) for order in leaving]
    pairs = [
        _exchanges(score, out, new, n_exchanges)
        for score, out, new in zip(scores, leaving, joining, strict=True)
    ]
    proposed += [inside - {leaves} | {joins} for leaves, joins in in_turn(*pairs)[:n_exchanges]]
    if up != size + 1 and down != size - 1:
        counts = {round(share * size) for share in SETTINGS.shares_exchanged} - {0, 1}
        proposed += [
            inside.difference(out[:count]).union(new[:count])
            for count in sorted(counts)
            for out, new in zip(leaving, joining, strict=True)
            if count <= len(new)
        ]
    return proposed


def in_turn(*orders: Sequence[T]) -> list[T]:
    """The first of each order, then the second of each, without repetitions."""
    return list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))


def _exchanges(
    score: Mask, leaving: Sequence[int], joining: Sequence[int], count: int
) -> list[tuple[int, int]]:
    """Pairs of a component that leaves and one that joins, the most promising first."""
    gains = score[list(joining)] - score[list(leaving)][:, None]
    best = gains.flatten().argsort(descending=True, stable=True)[:count].tolist()
    return [(leaving[pair // len(joining)], joining[pair % len(joining)]) for pair in best]
