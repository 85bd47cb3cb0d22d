"""Auto: a choice between two searches by what their sets do on other examples.

Where components truly act together, sets of a joint search hold on fresh examples; where they only
seem to, the components with the largest single effects hold better. `CrossFit.choice` says how it
is decided. A lead that few examples make up is chance: the joint search chose among many sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit._util.clusters import ratio_and_error, sum_by_cluster
from tracekit.components import ComponentSet
from tracekit.components.masks import members_of_mask
from tracekit.data.pair import split_disjoint
from tracekit.engine.cost import Cost
from tracekit.errors import BudgetError
from tracekit.search.base import Goal, PlannedPasses, Search, Selection, planned_passes_of
from tracekit.search.baselines.empirical_bayes_topk import EmpiricalBayesTopK, sizes_ranked_alone
from tracekit.search.targets import Target

FEWEST_EXAMPLES = 4
"""Examples needed to make halves of."""
SINGLE_EFFECTS: Search = EmpiricalBayesTopK()
"""The search that a joint search is judged against: it ranks components one by one."""
_AHEAD = 1.25
"""Standard errors that a joint search has to be ahead on the examples that it was given."""
_BEHIND = 0.5
"""Standard errors that it may be behind on others: what halves select is worse than what all do."""


@dataclass(frozen=True, kw_only=True)
class Auto:
    """A joint search, or the components with the largest single effects where these hold better."""

    first: Search
    """The joint search."""
    second: Search = field(default_factory=lambda: SINGLE_EFFECTS)
    """Ranks components one by one."""

    @property
    def name(self) -> str:
        """That of the joint search."""
        return self.first.name

    @property
    def searches(self) -> list[Search]:
        """Both."""
        return [self.first, self.second]

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses | None:
        """Passes of both searches, on all examples and on each half."""
        both = [planned_passes_of(search, n_components, goal) for search in self.searches]
        if None in both:
            return None
        on_halves = Cost(2 * len(both) * len(goal.budgets))
        return PlannedPasses(cost=sum((each.cost * 2 for each in both if each), on_halves))

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """For each budget the set of the search that holds better; after Ctrl-C the joint sets."""
        if not goal.budgets:
            raise BudgetError(
                "objective='auto' compares sets of one size. Give budget or budgets, or use 'mean'."
            )
        joint = [replace(s, by=self.first) for s in self.first.search(target, goal, seed)]
        if joint[0].stopped == "interrupted":
            return joint
        try:
            alone = self.second.search(target, goal, seed)
            fit = cross_fit(target, self.searches, goal.budgets, seed, selected=(joint, alone))
        except KeyboardInterrupt:
            return [replace(selection, stopped="interrupted") for selection in joint]
        selections, saved = [], joint[0].saved + fit.on_halves
        for rank, choice in enumerate(fit.choice()):
            means = (fit.sign * fit.effects[:, rank].mean(-1)).tolist()
            by_search = dict(zip([s.name for s in self.searches], means, strict=True))
            selected, by = (joint, alone)[choice][rank], self.searches[choice]
            selections.append(replace(selected, by=by, saved=saved, held_out_by=by_search))
        return selections

    def front(
        self,
        target: Target,
        joint: Mapping[int, Selection],
        sizes: Sequence[int],
        largest: int,
        seed: int,
    ) -> tuple[dict[int, Selection], CrossFit]:
        """The sets of a front, by size: of the joint search, or ranked alone if these hold better.

        The latter also have sizes at which the joint search found no larger mean: a component that
        does something alone is worth having on fresh examples. The searches are compared at
        `sizes`, ascending; the front ends at `largest`; the seed draws the halves.
        """
        between = sizes_ranked_alone(target.n_components, min(joint), largest)
        goal = Goal(budgets=tuple(sorted({*sizes, *between})))
        alone = dict(zip(goal.budgets, self.second.search(target, goal, seed), strict=True))
        selected = [[sets[size] for size in sizes] for sets in (joint, alone)]
        fit = cross_fit(target, self.searches, sizes, seed, selected=selected)
        holds_better = {size: fit.search_chosen_near(size) == 1 for size in {*joint, *alone}}
        sets = {
            size: each for size, each in joint.items() if not holds_better[size] or size in alone
        }
        # Both searches were run for every set, so a limit that the first one met is reported.
        run = {"stopped": joint[min(joint)].stopped, "saved": joint[min(joint)].saved}
        for size, selection in alone.items():
            if holds_better[size] and _replaces_joint(selection, joint.get(size)):
                sets[size] = replace(selection, by=self.second, **run)
        return dict(sorted(sets.items())), fit


def _replaces_joint(alone: Selection, joint: Selection | None) -> bool:
    """Whether a front has a set of components ranked alone, where these hold better."""
    if joint is not None:
        # Unless only the joint set raises the effect.
        return not bool(joint.effects.mean() > 0 >= alone.effects.mean())
    # Without a joint set of this size, every component has to do something alone.
    scores = alone.component_scores
    does_something = scores is not None and bool((scores[alone.mask.bool()] > 0).all())
    return does_something and bool(alone.effects.mean() > 0)


@dataclass(frozen=True, kw_only=True)
class CrossFit:
    """Sets selected on each half of the examples, and their effects on the other half."""

    sizes: tuple[int, ...]
    """Largest numbers of components, ascending."""
    halves: tuple[tuple[int, ...], tuple[int, ...]]
    """Numbers of the examples of each half."""
    sets: tuple[tuple[tuple[ComponentSet, ...], ...], ...]
    """Selected sets, by search, half and size."""
    effects: Float[Tensor, "search size example"]
    """Effect on each example of the set that was selected on the other half."""
    on_halves: Cost
    """Work of the searches on halves, in passes over the whole data set."""
    on_all_examples: Cost
    """Work of measuring what they selected on the whole data set."""
    clusters: Int[Tensor, " example"] | None = None
    """Number of the independent example that each is part of; None if each stands for itself."""
    on_all: Float[Tensor, "search size example"] | None = None
    """Effect on each example of the set that was selected on all of them; needed to choose."""
    sign: int = 1
    """Factor of all effects here; see `Target`."""

    @property
    def cost(self) -> Cost:
        """All of the work."""
        return self.on_halves + self.on_all_examples

    def choice(self) -> list[int]:
        """The search that each size takes: 0, the joint one, or 1, that of components alone.

        The joint one is taken where its sets do more on the examples that selected them, by 1.25
        standard errors of the difference, and those that either half selects do not do less on the
        other half, by more than half a standard error; or where only its set raises the effect.
        Sizes nearby count too, half or twice the size as a half: means of few are uncertain.
        """
        if len(self.effects) == 1:
            return [0] * len(self.sizes)
        assert self.on_all is not None
        on_searched, on_others = self._leads(self.on_all), self._leads(self.effects)
        is_joint = self._is_ahead(on_searched, _AHEAD) & self._is_ahead(on_others, -_BEHIND)
        joint, alone = self.on_all.mean(-1)
        is_joint |= (joint > 0) & (alone <= 0)
        return [0 if joint else 1 for joint in is_joint.tolist()]

    def _leads(
        self, effects: Float[Tensor, "search size example"]
    ) -> Float[Tensor, "size example"]:
        """How far the joint search is ahead at each size and those near it, on each example."""
        joint, alone = effects
        means = effects.mean(-1)
        largest = means.abs().amax(0).clamp(min=torch.finfo(means.dtype).tiny)
        sizes = torch.tensor(self.sizes, dtype=means.dtype)
        nearness = torch.minimum(sizes[:, None], sizes) / torch.maximum(sizes[:, None], sizes)
        return nearness @ ((joint - alone) / largest[:, None])

    def _is_ahead(
        self, leads: Float[Tensor, "size example"], errors: float
    ) -> Bool[Tensor, " size"]:
        """Whether leads are by as many standard errors on average."""
        sizes = sum_by_cluster(torch.ones(leads.shape[-1]), self.clusters)
        sums = sum_by_cluster(leads, self.clusters)
        mean, error = ratio_and_error(sums, sizes.expand_as(sums))
        return mean >= errors * error

    def search_chosen_near(self, size: int) -> int:
        """The choice at the nearest size."""
        distances = [max(size, own) / min(size, own) for own in self.sizes]
        return self.choice()[distances.index(min(distances))]


def cross_fit(
    target: Target,
    searches: Sequence[Search],
    sizes: Sequence[int],
    seed: int,
    *,
    searched: Target | None = None,
    selected: Sequence[Sequence[Selection]] = (),
) -> CrossFit:
    """Selects on each half of the examples and measures on the other.

    There are at least `FEWEST_EXAMPLES` examples; `sizes` ascend, and the seed draws the halves.
    `searched` is the target of the searches, if that is another one. `selected` are the
    sets that each of them selects on all examples, needed to choose.
    """
    n = target.n_examples
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    first, rest = split_disjoint(target.pairs, order, n // 2)
    halves = (tuple(first), tuple(rest))
    goal = Goal(budgets=tuple(sizes))
    effects, cost, before = torch.empty(len(searches), len(sizes), n), Cost(), target.cost
    sets: list[list[tuple[ComponentSet, ...]]] = [[] for _ in searches]
    for own, other in (halves, reversed(halves)):
        half = (searched or target).with_pairs(target.pairs.subset(list(own)))
        for rank, search in enumerate(searches):
            if getattr(search, "checkpoint", None) is not None:
                # A checkpoint is of the search on all examples.
                search = replace(cast(Any, search), checkpoint=None)
            of_half = tuple(map(_selected_members, search.search(half, goal, seed)))
            sets[rank].append(of_half)
            measured = target.set_effects(of_half, "held-out effects")
            effects[rank][:, list(other)] = measured[:, list(other)]
        cost += half.cost * (len(own) / n)
    on_all = [torch.stack([each.effects for each in selections]) for selections in selected]
    return CrossFit(
        sizes=tuple(sizes),
        halves=halves,
        sets=tuple(map(tuple, sets)),
        effects=effects,
        on_halves=cost,
        on_all_examples=target.cost - before,
        clusters=target.pairs.clusters,
        on_all=torch.stack(on_all) if on_all else None,
        sign=target.sign,
    )


def _selected_members(selection: Selection) -> ComponentSet:
    if selection.stopped == "interrupted":
        raise KeyboardInterrupt
    return members_of_mask(selection.mask)
