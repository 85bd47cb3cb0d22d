"""Cross-fitting: searches select on each half of the examples, and are judged on the other half.

A set that was selected for its effect on some examples has less on others, and a search that tries
more sets loses more. Where components truly act together, sets of a joint search hold on fresh
examples; where they only seem to, the components with the largest single effects hold better. The
halves say which it is: every example is measured once, with sets that it had no part in selecting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.search.base import Goal, Search, Selection
from tracekit.search.baselines.attribution import MaskIG
from tracekit.search.baselines.topk import TopK
from tracekit.search.local.local_search import LocalSearch

FEWEST_EXAMPLES = 4
"""Examples needed to make halves of."""
MANY = 384
"""Beyond this many components gradients rank them, not their single effects."""


def ranking_alone(n_components: int) -> Search:
    """The search that a joint search is judged against: it ranks components one by one."""
    return TopK() if n_components <= MANY else MaskIG()


def as_judged(search: Search) -> Search:
    """The same search; a local search makes no sets for single examples unless told to.

    Such sets have a larger mean on the examples at hand, and less on fresh ones.
    """
    if isinstance(search, LocalSearch) and search.start_from_examples is None:
        return replace(search, start_from_examples=False)
    return search


@dataclass(frozen=True, kw_only=True)
class CrossFit:
    """What searches select on each half of the examples, and what that does on the other."""

    sizes: tuple[int, ...]
    """Largest numbers of components, ascending."""
    halves: tuple[tuple[int, ...], tuple[int, ...]]
    """Numbers of the examples of each half."""
    sets: tuple[tuple[tuple[ComponentSet, ...], ...], ...]
    """Selected sets, by search, half and size."""
    effects: Float[Tensor, "search size example"]
    """Effect on each example of the set that was selected on the other half."""
    cost: Cost
    """Passes of the searches, in passes over the whole data set."""

    def choice(self) -> list[int]:
        """The search that each size takes: the first one, unless a later one holds better.

        The first is kept where its mean effect is at least as large, unless few examples make it
        so: where most of those on which the two differ speak against it, its mean has to be ahead
        by a standard error. Of heavy-tailed effects a few examples make up the difference.

        Near sizes have their say: means of few examples are uncertain, and searches differ by size
        only slowly. A size of half or twice as many components counts half.
        """
        means = self.effects.mean(-1)
        largest = means.abs().amax(0).clamp(min=torch.finfo(means.dtype).tiny)
        numbers = torch.tensor(self.sizes, dtype=means.dtype)
        smaller = torch.minimum(numbers[:, None], numbers)
        nearness = smaller / torch.maximum(numbers[:, None], numbers)
        shares = torch.einsum("nse,st->nte", self.effects / largest[:, None], nearness)
        chosen = [0] * len(self.sizes)
        for number, rank in product(range(1, len(shares)), range(len(self.sizes))):
            ahead = shares[chosen[rank], rank] - shares[number, rank]
            if not _is_ahead(ahead):
                chosen[rank] = number
        return chosen

    def choice_near(self, size: int) -> int:
        """The choice at the nearest size."""
        distances = [max(size, own) / min(size, own) for own in self.sizes]
        return self.choice()[distances.index(min(distances))]


def cross_fit(
    engine: Engine,
    searches: Sequence[Search],
    sizes: Sequence[int],
    seed: int,
    *,
    searched: Engine | None = None,
) -> CrossFit:
    """Selects on each half of the examples and measures on the other.

    Args:
        engine: The data set, with at least `FEWEST_EXAMPLES` examples.
        searches: What selects.
        sizes: Largest numbers of components, ascending.
        seed: Draws the halves; the seed of the searches.
        searched: The engine that is searched, where that is another one (see `objectives.py` and
            `keeping.py`).

    Raises:
        NothingMeasuredError: A limit was reached before any set was measured.
    """
    n = engine.n_examples
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    halves = (tuple(sorted(order[: n // 2])), tuple(sorted(order[n // 2 :])))
    goal = Goal(budgets=tuple(sizes))
    effects, cost, before = torch.empty(len(searches), len(sizes), n), Cost(), engine.cost
    sets: list[list[tuple[ComponentSet, ...]]] = [[] for _ in searches]
    for own, other in (halves, reversed(halves)):
        half = (searched or engine).with_pairs(engine.pairs.subset(list(own)))
        for rank, search in enumerate(map(_without_checkpoint, searches)):
            selected = tuple(map(_members, search.search(half, goal, seed)))
            sets[rank].append(selected)
            measured = engine.set_effects(selected, "held-out effects")
            effects[rank][:, list(other)] = measured[:, list(other)]
        share = len(own) / n
        cost += Cost(half.cost.forward * share, half.cost.backward * share)
    return CrossFit(
        sizes=tuple(sizes),
        halves=halves,
        sets=tuple(map(tuple, sets)),
        effects=effects,
        cost=cost + (engine.cost - before),
    )


def _is_ahead(differences: Float[Tensor, " example"]) -> bool:
    """Whether differences are positive on average, and not by a few examples alone."""
    mean, error = differences.mean(), differences.std() / len(differences) ** 0.5
    most = (differences > 0).sum() >= (differences < 0).sum()
    return bool(mean >= 0 and (most or mean >= error))


def _without_checkpoint(search: Search) -> Search:
    """The same search; a checkpoint is of the search on all examples."""
    if getattr(search, "checkpoint", None) is None:
        return search
    return replace(cast(Any, search), checkpoint=None)


def _members(selection: Selection) -> ComponentSet:
    if selection.stopped == "interrupted":
        raise KeyboardInterrupt
    return tuple(selection.mask.nonzero()[:, 0].tolist())
