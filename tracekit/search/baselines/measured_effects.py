"""Searches by measured effects: top-k, greedy, exhaustive search and random sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import ClassVar

import torch
from pydantic import PositiveInt

from tracekit._util import progress as _progress
from tracekit._util.options import ValidatedFields
from tracekit.components import ComponentSet
from tracekit.engine.cost import Cost
from tracekit.errors import BudgetError
from tracekit.search.base import Goal, PlannedPasses, Selection, target_not_reached
from tracekit.search.prefix import (
    best_prefixes,
    most_sizes_tried,
    planned_prefixes,
    prefix_members,
    smallest_size,
)
from tracekit.search.targets import Record, Target


@dataclass(frozen=True, kw_only=True)
class TopK:
    """The k components with the largest effects alone, whatever they do together."""

    name: ClassVar[str] = "top-k"
    records_every_size: ClassVar[bool] = True

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """A pass for each component, and one for each budget."""
        return planned_prefixes(n_components, goal, Cost(n_components))

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Measures every component alone, then the union of the best at each budget."""
        goal.require(self.name)
        sets = [(i,) for i in range(target.n_components)]
        return best_prefixes(target, goal, target.set_effects(sets, self.name).mean(1))


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """Adds the component that raises the mean effect most, again and again; ties: lowest index."""

    name: ClassVar[str] = "greedy"
    records_every_size: ClassVar[bool] = True

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """A pass for each component that is left, at every size."""
        last = goal.budgets[-1] if goal.budgets else n_components
        candidates = sum(n_components - size for size in range(last))
        n_answers = max(1, len(goal.budgets))
        return PlannedPasses(cost=Cost(candidates + n_answers), is_exact=goal.target is None)

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Adds components until the largest budget, or until the target is reached."""
        goal.require(self.name)
        last = goal.budgets[-1] if goal.budgets else target.n_components
        return answers_by_size(target, goal, _steps(target, last))


def answers_by_size(
    target: Target, goal: Goal, steps: Iterable[tuple[Sequence[int], Record]]
) -> list[Selection]:
    """Answers a goal with sets of growing size; a record has `n_selected` and `effect`."""
    history: list[Record] = []
    selections: list[Selection] = []
    for members, record in steps:
        history.append(record)
        size, effect = int(record["n_selected"]), float(record["effect"])
        _progress.current_run().report_values(size=size, effect=effect)
        is_reached = goal.target is not None and effect >= goal.target
        if is_reached or size in goal.budgets:
            fields = {"history": tuple(history), "budget": None if is_reached else size}
            selections.append(Selection.measured(target, members, **fields))
        if is_reached:
            return selections
    if goal.target is not None:
        raise target_not_reached(goal.target, max(float(each["effect"]) for each in history))
    return selections


def _steps(target: Target, last: int) -> Iterator[tuple[list[int], Record]]:
    members: list[int] = []
    for size in range(1, last + 1):
        candidates = sorted(set(range(target.n_components)) - set(members))
        means = target.set_effects([(*members, i) for i in candidates], "candidates").mean(1)
        best = int(means.argmax())
        members.append(candidates[best])
        label = target.registry.label(candidates[best])
        yield members, {"n_selected": size, "effect": means[best].item(), "component": label}


@dataclass(frozen=True, kw_only=True)
class Exhaustive:
    """Measures all non-empty sets of at most the budget's size: the optimum of few components."""

    name: ClassVar[str] = "exhaustive"
    records_every_size: ClassVar[bool] = True
    max_sets: int = 20_000
    """Refuses larger spaces."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """A pass for each set, and one for each answer."""
        if not goal.budgets:
            return PlannedPasses(cost=Cost(min(2**n_components, self.max_sets) + 1))
        count = sum(comb(n_components, size) for size in range(1, goal.budgets[-1] + 1))
        return PlannedPasses(cost=Cost(count + len(goal.budgets)), is_exact=True)

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """The best set within each budget; for a target, the best of the smallest size."""
        goal.require(self.name)
        largest = goal.budgets[-1] if goal.budgets else target.n_components
        if goal.budgets:
            self._refuse_large(target.n_components, largest)
        return answers_by_size(target, goal, self._steps(target, largest))

    def _steps(self, target: Target, largest: int) -> Iterator[tuple[ComponentSet, Record]]:
        """The best set of at most each size, and a record of the best of exactly this size."""
        best: tuple[float, ComponentSet] = (-float("inf"), ())
        for size in range(1, largest + 1):
            self._refuse_large(target.n_components, size)
            sets = list(combinations(range(target.n_components), size))
            means = target.set_effects(sets, f"exhaustive, {size}").mean(1)
            effect, members = means.max().item(), sets[int(means.argmax())]
            best = max(best, (effect, members), key=lambda pair: pair[0])
            yield best[1], {"n_selected": size, "effect": effect}

    def _refuse_large(self, n: int, size: int) -> None:
        count = sum(comb(n, k) for k in range(1, size + 1))
        if count > self.max_sets:
            raise BudgetError(
                f"There are {count:,} sets of at most {size} of {n} components; exhaustive search "
                f"takes at most {self.max_sets:,}. Choose fewer components or a smaller budget, "
                "or raise max_sets."
            )


@dataclass(frozen=True, kw_only=True)
class Random(ValidatedFields):
    """The best of `draws` uniform sets per budget, the control of every table.

    The history has their mean and spread.
    """

    name: ClassVar[str] = "random"
    draws: PositiveInt = 1000
    """Sets drawn per budget."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """A pass for each draw, and one for each answer."""
        if goal.target is not None:
            return PlannedPasses(cost=Cost(most_sizes_tried(n_components) * (self.draws + 1)))
        draws = sum(1 if size == n_components else self.draws for size in goal.budgets)
        return PlannedPasses(cost=Cost(draws + len(goal.budgets)), is_exact=True)

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """The best draw of each budget, or for a target of the smallest size that reaches it."""
        goal.require(self.name)
        if goal.target is None:
            return [self._best(target, budget, seed, budget) for budget in goal.budgets]
        wanted = goal.target
        selection, tried = smallest_size(
            target.n_components,
            lambda size: self._best(target, size, seed, None),
            lambda best: best.effect >= wanted,
        )
        if selection is None:
            raise target_not_reached(wanted, max(best.effect for best in tried.values()))
        return [selection]

    def _best(self, target: Target, size: int, seed: int, budget: int | None) -> Selection:
        generator = torch.Generator().manual_seed((seed * 1_000_003 + size) % 2**63)
        # All components make one set only.
        n = target.n_components
        draws = 1 if size == n else self.draws
        sets = [
            prefix_members(target, torch.randperm(n, generator=generator).tolist(), size)
            for _ in range(draws)
        ]
        means = target.set_effects(sets, f"random, {size}").mean(1)
        best = int(means.argmax())
        _progress.current_run().report_values(size=size, effect=means[best].item())
        record: Record = {
            "n_selected": size,
            "effect": means[best].item(),
            "draws": draws,
            "mean": means.mean().item(),
            "std": means.std(correction=0).item(),
        }
        return Selection.measured(target, sets[best], history=(record,), budget=budget)
