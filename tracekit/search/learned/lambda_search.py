"""Training runs of a mask, the search for the weight lambda1 of its penalty, and the best set.

The size of the selection falls as lambda1 grows. So every budget is bracketed between a lambda1
that penalises too weakly and one that does so too strongly, and is halved on a logarithmic scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt

import torch

from tracekit.components import ComponentSet
from tracekit.components.masks import BinaryMask, Mask, from_indices, members_of_mask, ranking
from tracekit.errors import TargetNotReachedError
from tracekit.metrics import Effects
from tracekit.search.base import Record, Selection
from tracekit.search.prefix import smallest_prefix
from tracekit.search.targets import Target

_STEP, _CLOSE = 4.0, 1.05
"""Factor between values while a bracket has one end; ratio of its ends at which they meet."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Snapshot(Selection):
    """The selection after one epoch."""

    reward_gradient_sum: Mask
    """Negative gradient of the objective, summed over the epoch: ranks entries that tie."""

    def order(self) -> list[int]:
        """Components by their soft mask; ties by how strongly the reward favours them."""
        assert self.soft_mask is not None
        return ranking(self.soft_mask, self.reward_gradient_sum)


@dataclass(eq=False)
class TrainingRun:
    """One training of a mask, epoch by epoch."""

    lambda1: float
    snapshots: list[Snapshot] = field(default_factory=list)
    history: list[Record] = field(default_factory=list)

    @property
    def last(self) -> Snapshot:
        """The selection at the end."""
        return self.snapshots[-1]

    def add(
        self, target: Target, soft_mask: Mask, reward_gradient_sum: Mask, selected: BinaryMask
    ) -> Snapshot:
        """Measures the selection, unless it is the previous one or empty."""
        if self.snapshots and torch.equal(self.last.mask, selected):
            effects = self.last.effects
        elif not selected.any():
            effects = torch.zeros(target.n_examples)
        else:
            effects = target.effects(selected)
        snapshot = Snapshot(
            mask=selected,
            effects=effects,
            soft_mask=soft_mask.detach().clone(),
            reward_gradient_sum=reward_gradient_sum,
        )
        self.snapshots.append(snapshot)
        return snapshot

    def selection(self, snapshot: Snapshot, budget: int | None) -> Selection:
        """Selection of a snapshot of this run."""
        return replace(snapshot, history=tuple(self.history), budget=budget)


def next_lambda(start: float, tried: Sequence[tuple[float, bool]]) -> float | None:
    """The next lambda1 to try, `start` at first; None once the ends of the bracket meet.

    `tried` are the values so far, and whether each of them penalised too weakly.
    """
    low = max((value for value, is_too_weak in tried if is_too_weak), default=0.0)
    high = min((value for value, is_too_weak in tried if not is_too_weak), default=inf)
    if low == 0 and high == inf:
        return start
    if high == inf:
        return low * _STEP
    if low == 0:
        return high / _STEP
    return sqrt(low * high) if high / low > _CLOSE else None


def bracketing_runs(
    train: Callable[[float], TrainingRun],
    is_too_weak: Callable[[Snapshot], bool],
    start: float,
    most: int,
    earlier: Sequence[TrainingRun] = (),
) -> list[TrainingRun]:
    """At most so many further training runs, which halve the bracket by where each run ends."""
    runs: list[TrainingRun] = []
    while len(runs) < most:
        tried = [(run.lambda1, is_too_weak(run.last)) for run in (*earlier, *runs)]
        lambda1 = next_lambda(start, tried)
        if lambda1 is None:
            break
        runs.append(train(lambda1))
    return runs


def runs_for_budgets(
    train: Callable[[float], TrainingRun], start: float, budgets: Sequence[int], max_trials: int
) -> list[TrainingRun]:
    """Training runs that bracket every budget, ascending; each of them serves all budgets.

    The first budget gets at most `max_trials` runs, from lambda1 = `start` on. Each further budget
    gets half as many: it starts from the brackets that earlier ones left.
    """
    runs: list[TrainingRun] = []
    for budget in budgets:
        most = max_trials if not runs else (max_trials + 1) // 2
        runs += bracketing_runs(
            train, lambda last, budget=budget: last.size > budget, start, most, runs
        )
    return runs


def measured_sets(runs: Sequence[TrainingRun]) -> dict[ComponentSet, Effects]:
    """The selections that the training runs measured."""
    snapshots = [snapshot for run in runs for snapshot in run.snapshots]
    return {members_of_mask(snapshot.mask): snapshot.effects for snapshot in snapshots}


def best_within_budgets(
    runs: Sequence[TrainingRun],
    target: Target,
    budgets: Sequence[int],
    measured: dict[ComponentSet, Effects],
) -> list[Selection]:
    """The best set for each budget that the training runs propose.

    Candidates are, for every epoch of every run, its truncated mask if that is small enough, and
    the `budget` largest entries of its soft mask. What gets measured is added to `measured`.
    """
    snapshots = [(run, snapshot) for run in runs for snapshot in run.snapshots]
    selections = []
    for budget in budgets:
        best: tuple[TrainingRun, Snapshot] | None = None
        for run, snapshot in snapshots:
            largest = tuple(sorted(snapshot.order()[:budget]))
            mask = from_indices(largest, target.n_components)
            if largest not in measured:
                measured[largest] = target.effects(mask)
            for candidate in (snapshot, replace(snapshot, mask=mask, effects=measured[largest])):
                fits = 0 < candidate.size <= budget
                # Ties go to the later epoch, whose soft mask is closer to binary.
                if fits and (best is None or candidate.effect >= best[1].effect):
                    best = (run, candidate)
        assert best is not None
        selections.append(best[0].selection(best[1], budget))
    return selections


def smallest_set_reaching(runs: Sequence[TrainingRun], target: Target, wanted: float) -> Selection:
    """The smallest set that reaches a mean effect, among those of the runs and their rankings."""
    tried = [(snapshot, run) for run in runs for snapshot in run.snapshots]
    reaching = [(each, run) for each, run in tried if each.effect >= wanted and each.size > 0]
    strongest = max(runs, key=lambda run: run.last.effect)
    best, run = min(
        reaching, key=lambda each: (each[0].size, -each[0].effect), default=(None, strongest)
    )
    # The order of the soft mask may reach it earlier than the threshold does.
    largest = max(snapshot.effect for snapshot, _ in tried)
    try:
        prefix = smallest_prefix(target, run.last.order(), wanted, largest_seen=largest)
    except TargetNotReachedError:
        if best is None:
            raise
        return run.selection(best, None)
    if best is not None and best.size <= prefix.size:
        return run.selection(best, None)
    return run.selection(replace(run.last, mask=prefix.mask, effects=prefix.effects), None)
