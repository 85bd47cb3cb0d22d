"""What it takes to believe a Pareto front: held-out effects, random controls, stability.

A set that was selected for its effect on some examples does better on those than on others, and a
search may find another set next time. So at some sizes a front is measured against

- sets selected on one half of the examples, measured on the other (the *held-out* effect), for
  both halves, so that every example counts once;
- random sets with as many components of every kind in every layer (the *control*);
- the sets that the two halves selected: their Jaccard similarity is the *stability*. The seed draws
  the halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.results.intervals import effect_interval, standard_error
from tracekit.search import Goal, LocalSearch
from tracekit.search.local.local_search import SearchState
from tracekit.search.local.plan import log_spaced_sizes

_AT_MOST = 12
"""Sizes at which statistics are taken."""
_DRAWS = 5
_FEWEST = 4
"""Examples needed to make halves of."""


@dataclass(frozen=True, kw_only=True)
class SizeStatistics:
    """What is known of the sets of one size."""

    size: int
    """Largest number of components."""
    held_out: float | None
    """Mean effect on examples that had no part in the selection; None with fewer than 4
    examples."""
    held_out_low: float | None
    held_out_high: float | None
    """Its 95 % confidence interval, by a studentised bootstrap over examples."""
    held_out_error: float | None
    """Its standard error over examples."""
    control: float | None
    """Mean effect of random sets with as many components of every kind in every layer; None if
    there is only one such set."""
    control_low: float | None
    control_high: float | None
    """Least and greatest of them."""
    stability: float | None
    """Jaccard similarity, in [0, 1], of the sets that the two halves selected."""


def measure_statistics(
    engine: Engine,
    search: LocalSearch,
    state: SearchState,
    seed: int,
    *,
    searched: Engine | None = None,
    sizes: Sequence[int] | None = None,
) -> tuple[tuple[SizeStatistics, ...], Cost]:
    """Statistics of a front at up to 12 sizes, and the passes they took.

    Args:
        engine: The data set that was searched on.
        search: The search, which is repeated on each half of the examples.
        state: What it found.
        seed: Draws the halves and the controls.
        searched: The engine that was searched, where that is another one (see `keeping.py`).
        sizes: Sizes of the front; by default all at which a set does better than smaller ones.
    """
    before = engine.cost
    improving = list(state.best_sets.improving if sizes is None else sizes)
    wanted = log_spaced_sizes(improving[0], improving[-1], _AT_MOST)
    sizes = sorted({min(improving, key=lambda s: abs(s - at)) for at in wanted})
    held_out, stability, cost_of_halves = _search_halves(
        engine, searched or engine, search, sizes, seed
    )
    generator = torch.Generator().manual_seed(seed)
    statistics = []
    for rank, size in enumerate(sizes):
        members = state.best_sets.best_within(size)
        controls = _control_effects(engine, members, generator, f"controls of {size}")
        has_controls = len(controls) > 0
        per_example = None if held_out is None else held_out[rank]
        weights = engine.pairs.weights
        low, high = (
            (None, None) if per_example is None else effect_interval(per_example, weights=weights)
        )
        statistics.append(
            SizeStatistics(
                size=size,
                held_out=None if per_example is None else per_example.mean().item(),
                held_out_low=low,
                held_out_high=high,
                held_out_error=None
                if per_example is None
                else standard_error(per_example, weights),
                control=controls.mean().item() if has_controls else None,
                control_low=controls.min().item() if has_controls else None,
                control_high=controls.max().item() if has_controls else None,
                stability=None if stability is None else stability[rank],
            )
        )
    return tuple(statistics), engine.cost - before + cost_of_halves


def _search_halves(
    engine: Engine, searched: Engine, search: LocalSearch, sizes: Sequence[int], seed: int
) -> tuple[Float[Tensor, "size example"] | None, list[float] | None, Cost]:
    """Held-out effect of every example, and similarity of the halves' sets, at each size."""
    n = engine.n_examples
    if n < _FEWEST:
        return None, None, Cost()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [sorted(order[: n // 2]), sorted(order[n // 2 :])]
    goal = Goal(budgets=tuple(sizes))
    without_checkpoint = replace(search, checkpoint=None)
    effects, cost = torch.zeros(len(sizes), n), Cost()
    selected: list[list[ComponentSet]] = []
    for own, held_out in (parts, reversed(parts)):
        half = searched.with_pairs(engine.pairs.subset(own))
        state = without_checkpoint.run(half, goal, seed)
        if state.stopped == "interrupted":
            raise KeyboardInterrupt
        sets = [state.best_sets.best_within(size) for size in sizes]
        selected.append(sets)
        effects[:, held_out] = engine.set_effects(sets, "held-out effects")[:, held_out]
        share = len(own) / n
        cost += Cost(half.cost.forward * share, half.cost.backward * share)
    return effects, [jaccard(*pair) for pair in zip(*selected, strict=True)], cost


def jaccard(first: Sequence[int], second: Sequence[int]) -> float:
    """Size of the intersection of two sets over that of their union; 1 if both are empty."""
    union = {*first} | {*second}
    return len({*first} & {*second}) / len(union) if union else 1.0


def _control_effects(
    engine: Engine, members: ComponentSet, generator: torch.Generator, label: str
) -> Float[Tensor, " draw"]:
    """Mean effects of random controls of a set; none if there is no other such set."""
    if not _has_others(engine, members):
        return torch.zeros(0)
    controls = [_control(engine, members, generator) for _ in range(_DRAWS)]
    return engine.set_effects(controls, label).mean(1)


def _has_others(engine: Engine, members: ComponentSet) -> bool:
    """Whether another set has as many components of every kind in every layer."""
    sites = [range(site.start, site.stop) for site in engine.registry.sites]
    return any(0 < sum(i in site for i in members) < len(site) for site in sites)


def _control(engine: Engine, members: ComponentSet, generator: torch.Generator) -> ComponentSet:
    """A random set with as many components of every kind in every layer."""
    control: list[int] = []
    for site in engine.registry.sites:
        components = range(site.start, site.stop)
        count = sum(i in components for i in members)
        picks = torch.randperm(len(components), generator=generator)[:count]
        control += (picks + site.start).tolist()
    return tuple(sorted(control))
