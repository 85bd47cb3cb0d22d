"""Paths: the best set found of every size, with what it takes to believe them.

A set that was chosen for its effect on some examples does better on those than on others, and a
search may find another set next time. So at some sizes a path is measured against

- sets chosen from one half of the examples, measured on the other (the *held-out* effect), for
  both halves, so that every example counts once;
- random sets with as many components of every kind in every layer (the *control*);
- the sets that the two halves chose: their Jaccard similarity is the *stability*. The seed draws
  the halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.engine.engine import Cost, Engine
from tracekit.engine.prefix_tree import Set
from tracekit.errors import BudgetError
from tracekit.results.result import (
    TraceCurve,
    TraceResult,
    effect_interval,
    read_document,
    write_document,
)
from tracekit.search import Goal, PathSearch
from tracekit.search.base import as_count, not_reached
from tracekit.search.local.best_sets import spread
from tracekit.search.local.local_search import Walk

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PATH = "path.json"
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
    """Mean effect on examples that had no part in the choice of the set; None with fewer than 4
    examples."""
    held_out_low: float | None
    held_out_high: float | None
    """Its 95 % bootstrap interval over examples."""
    control: float | None
    """Mean effect of random sets with as many components of every kind in every layer; None if
    there is only one such set."""
    control_low: float | None
    control_high: float | None
    """Least and greatest of them."""
    stability: float | None
    """Jaccard similarity, in [0, 1], of the sets that the two halves chose."""


@dataclass(frozen=True, eq=False)
class TracePath(TraceCurve):
    """The best set found for every budget.

    As a sequence it holds a `TraceResult` for every size at which a set does better than all
    smaller ones, ascending; `at` and `smallest` answer questions.
    """

    largest: int = 0
    """Largest budget asked for."""
    ranking: tuple[int, ...] = ()
    """All components, as flat indices: those that are in the best sets of most sizes first."""
    statistics: tuple[SizeStatistics, ...] = ()
    """At some of the sizes, ascending; empty if they were not asked for."""
    statistics_cost: Cost = field(default_factory=Cost)
    """Passes that the statistics took, in passes over the whole data set."""

    def at(self, n_components: int | float) -> TraceResult:
        """The best set of at most so many components.

        Args:
            n_components: A count (int) or a share of all components (float), rounded down.

        Raises:
            BudgetError: Below one component, or beyond the path.
        """
        count = as_count(n_components, self.results[0].n_components)
        if count > self.largest:
            raise BudgetError(
                f"The path goes up to {self.largest} components, and {count} were asked for. "
                "Search it with a larger max_budget."
            )
        best = max(r for r in range(len(self)) if self.results[r].n_selected <= count)
        return replace(self.results[best], budget=count)

    def smallest(self, *, effect: float) -> TraceResult:
        """The smallest set that reaches a mean effect.

        Raises:
            TargetNotReachedError: None does.
        """
        for result in self.results:
            if result.effect >= effect:
                return replace(result, budget=None, target_effect=effect)
        raise not_reached(effect, max(result.effect for result in self.results))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes at which a set does better than all smaller ones, ascending."""
        return tuple(result.n_selected for result in self.results)

    @property
    def effects(self) -> Float[Tensor, " budget"]:
        """Mean effect of the best set of at most 1, 2, ... components; never falls."""
        found = torch.full((self.largest,), -torch.inf)
        for result in self.results:
            found[result.n_selected - 1] = result.effect
        return found.cummax(0).values

    @property
    def stopped(self) -> str | None:
        """What cut the search short, if anything."""
        return self.results[0].stopped

    def curve(self) -> go.Figure:
        """Effect against size, its bootstrap band, held-out effect, control and full effect."""
        from tracekit import figures

        return figures.path_curve(self.to_frame(), self.results[0])

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row per size; statistics where they were taken."""
        import pandas as pd

        intervals = [effect_interval(result.per_example) for result in self.results]
        frame = pd.DataFrame(
            {
                "size": self.sizes,
                "effect": [result.effect for result in self.results],
                "effect_low": [low for low, _ in intervals],
                "effect_high": [high for _, high in intervals],
            }
        )
        columns = list(SizeStatistics.__annotations__)
        taken = pd.DataFrame([asdict(one) for one in self.statistics], columns=columns)
        return frame.merge(taken.astype(float), on="size", how="left")

    def __repr__(self) -> str:
        last = self.results[-1]
        cut = f", stopped by {self.stopped}" if self.stopped else ""
        return (
            f"TracePath({last.dataset}, {last.model}: budgets up to {self.largest} of "
            f"{last.n_components} components, effect {self.results[0].effect:.4g} to "
            f"{last.effect:.4g} (all: {last.full_effect:.4g}){cut})"
        )

    def save(self, folder: str | Path) -> Path:
        """Writes one run folder per size, and what belongs to the path; returns the folder."""
        folder = super().save(folder)
        write_document(
            folder / _PATH,
            {
                "largest": self.largest,
                "ranking": self.ranking,
                "statistics": [asdict(one) for one in self.statistics],
                "statistics_cost": asdict(self.statistics_cost),
            },
        )
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> TracePath:
        """Reads what `save` wrote.

        Raises:
            ResultNotFoundError, FormatVersionError: As in `TraceResult.load`.
        """
        document = read_document(Path(folder), _PATH)
        return cls(
            TraceCurve.load(folder).results,
            largest=document["largest"],
            ranking=tuple(document["ranking"]),
            statistics=tuple(SizeStatistics(**one) for one in document["statistics"]),
            statistics_cost=Cost(**document["statistics_cost"]),
        )


def ranking_of(walk: Walk) -> tuple[int, ...]:
    """Components by the share of budgets, up to the largest, whose best set holds them.

    Ties, and components in no set, are ordered by the scores of soft top-k, else by the effect
    that the gradient at the empty set predicts of them.
    """
    frontier = walk.frontier
    sizes = frontier.sizes
    held = torch.zeros(frontier.ledger.engine.n_components)
    for size, following in zip(sizes, [*sizes[1:], frontier.largest + 1], strict=True):
        held[list(frontier.best_within(size))] += following - size
    return tuple(sorted(walk.order, key=lambda i: -held[i].item()))


def statistics_of(
    engine: Engine, search: PathSearch, walk: Walk, seed: int
) -> tuple[tuple[SizeStatistics, ...], Cost]:
    """Statistics of a path at up to 12 sizes, and the passes they took.

    Args:
        engine: The data set that the path was searched on.
        search: The search, which is repeated on each half of the examples.
        walk: What it found.
        seed: Draws the halves and the controls.
    """
    before = engine.cost
    found = walk.frontier.improving
    sizes = sorted(
        {min(found, key=lambda s: abs(s - at)) for at in spread(found[0], found[-1], _AT_MOST)}
    )
    held_out, stability, elsewhere = _halves(engine, search, sizes, seed)
    generator = torch.Generator().manual_seed(seed)
    taken = []
    for place, size in enumerate(sizes):
        chosen = walk.frontier.best_within(size)
        controls = torch.zeros(0)
        if _has_others(engine, chosen):
            draws = [_control(engine, chosen, generator) for _ in range(_DRAWS)]
            controls = engine.mean_effects(draws, f"controls of {size}")
        drawn = len(controls) > 0
        outside = None if held_out is None else held_out[place]
        low, high = (None, None) if outside is None else effect_interval(outside)
        taken.append(
            SizeStatistics(
                size=size,
                held_out=None if outside is None else outside.mean().item(),
                held_out_low=low,
                held_out_high=high,
                control=controls.mean().item() if drawn else None,
                control_low=controls.min().item() if drawn else None,
                control_high=controls.max().item() if drawn else None,
                stability=None if stability is None else stability[place],
            )
        )
    return tuple(taken), engine.cost - before + elsewhere


def _halves(
    engine: Engine, search: PathSearch, sizes: Sequence[int], seed: int
) -> tuple[Float[Tensor, "size example"] | None, list[float] | None, Cost]:
    """Held-out effect of every example, and similarity of what the halves choose, at each size."""
    n = engine.n_examples
    if n < _FEWEST:
        return None, None, Cost()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [sorted(order[: n // 2]), sorted(order[n // 2 :])]
    goal = Goal(budgets=tuple(sizes))
    again = replace(search, checkpoint=None)
    effects, cost = torch.zeros(len(sizes), n), Cost()
    chosen: list[list[Set]] = []
    for here, there in (parts, reversed(parts)):
        half = engine.restricted(engine.pairs.subset(here))
        walk = again.walk(half, goal, seed)
        if walk.stopped == "interrupted":
            raise KeyboardInterrupt
        chosen.append([walk.frontier.best_within(size) for size in sizes])
        effects[:, there] = engine.effects_of_sets(chosen[-1], "held-out effects")[:, there]
        share = len(here) / n
        cost += Cost(half.cost.forward * share, half.cost.backward * share)
    return effects, [jaccard(*pair) for pair in zip(*chosen, strict=True)], cost


def jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """Size of the intersection of two sets over that of their union, in [0, 1]."""
    return len({*one} & {*other}) / len({*one} | {*other})


def _has_others(engine: Engine, chosen: Set) -> bool:
    """Whether another set has as many components of every kind in every layer."""
    sites = [range(site.start, site.stop) for site in engine.registry.sites]
    return any(0 < sum(i in there for i in chosen) < len(there) for there in sites)


def _control(engine: Engine, chosen: Set, generator: torch.Generator) -> Set:
    """A random set with as many components of every kind in every layer."""
    members = set(chosen)
    drawn: list[int] = []
    for site in engine.registry.sites:
        there = range(site.start, site.stop)
        wanted = sum(i in members for i in there)
        picks = torch.randperm(len(there), generator=generator)[:wanted]
        drawn += (picks + site.start).tolist()
    return tuple(sorted(drawn))
