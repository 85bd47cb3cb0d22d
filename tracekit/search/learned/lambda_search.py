"""What one descent of PGB-CT leaves behind, and how the best set is picked from several.

Every selection reported was measured with its binary mask; a soft mask only proposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

import torch

from tracekit.engine.engine import Engine
from tracekit.engine.prefix_tree import Set
from tracekit.masks import BinaryMask, Mask, from_indices, ranking
from tracekit.metrics import Effects
from tracekit.search.base import Found, Record, smallest_prefix


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The selection after one epoch."""

    soft_mask: Mask
    push: Mask
    """Negative gradient of the reward, summed over the epoch: ranks entries that tie."""
    selected: BinaryMask
    effects: Effects

    @property
    def n_selected(self) -> int:
        """Number of components selected."""
        return int(self.selected.sum())

    @property
    def effect(self) -> float:
        """Mean effect of the selection."""
        return self.effects.mean().item()

    def order(self) -> list[int]:
        """Components by their soft mask, ties by how hard the reward pushes them up."""
        return ranking(self.soft_mask, self.push)


@dataclass(eq=False)
class Trial:
    """One descent, epoch by epoch."""

    lambda1: float
    snapshots: list[Snapshot] = field(default_factory=list)
    history: list[Record] = field(default_factory=list)

    @property
    def last(self) -> Snapshot:
        """The selection at the end."""
        return self.snapshots[-1]

    def add(self, engine: Engine, soft_mask: Mask, push: Mask, selected: BinaryMask) -> Snapshot:
        """Measures the selection, unless it is the previous one or empty."""
        if self.snapshots and torch.equal(self.last.selected, selected):
            effects = self.last.effects
        elif not selected.any():
            effects = torch.zeros(engine.n_examples)
        else:
            effects = engine.effects(selected)
        self.snapshots.append(Snapshot(soft_mask.detach().clone(), push, selected, effects))
        return self.last


class Bracket:
    """Halves an interval of lambda, on a logarithmic scale, around the wanted behaviour."""

    _STEP = 4.0
    _CLOSE = 1.05

    def __init__(self, start: float) -> None:
        """Begins at `start`."""
        self._start = start
        self._low = 0.0
        self._high = float("inf")

    def note(self, value: float, too_weak: bool) -> None:
        """Records whether `value` penalised too weakly."""
        if too_weak:
            self._low = max(self._low, value)
        else:
            self._high = min(self._high, value)

    def guess(self) -> float | None:
        """Next value to try; None once the ends meet."""
        if self._low == 0 and self._high == float("inf"):
            return self._start
        if self._high == float("inf"):
            return self._low * self._STEP
        if self._low == 0:
            return self._high / self._STEP
        return sqrt(self._low * self._high) if self._high / self._low > self._CLOSE else None


def measured_by(trials: Sequence[Trial]) -> dict[Set, Effects]:
    """The selections that the trials measured."""
    return {
        tuple(shot.selected.nonzero()[:, 0].tolist()): shot.effects
        for trial in trials
        for shot in trial.snapshots
    }


def best_within(
    trials: Sequence[Trial],
    engine: Engine,
    budgets: Sequence[int],
    measured: dict[Set, Effects],
) -> list[Found]:
    """The best set for each budget; what gets measured is added to `measured`."""
    return [_best_within(trials, engine, budget, measured) for budget in budgets]


def _best_within(
    trials: Sequence[Trial], engine: Engine, budget: int, measured: dict[Set, Effects]
) -> Found:
    """The best set of at most `budget` components that the trials propose.

    Candidates are, for every epoch of every trial, its truncated mask if that is small enough,
    and the `budget` largest entries of its soft mask. The latter may pass through a better set
    than the trial ends with, since rewards of strongly interacting components vary by orders of
    magnitude while lambda does not.
    """
    best: tuple[Trial, Snapshot] | None = None
    for trial in trials:
        for shot in trial.snapshots:
            largest = tuple(sorted(shot.order()[:budget]))
            mask = from_indices(largest, engine.n_components)
            if largest not in measured:
                measured[largest] = engine.effects(mask)
            projected = replace(shot, selected=mask, effects=measured[largest])
            for candidate in (shot, projected):
                fits = 0 < candidate.n_selected <= budget
                # Of equals the later one wins: its soft mask has decided.
                if fits and (best is None or candidate.effect >= best[1].effect):
                    best = (trial, candidate)
    assert best is not None
    return _found(*best, budget)


def smallest_reaching(trials: Sequence[Trial], engine: Engine, target: float) -> Found:
    """The smallest set that reaches a mean effect, among all the trials propose.

    Raises:
        TargetNotReachedError: None does, and neither does a prefix of the best trial's order.
    """
    reaching = [
        (shot.n_selected, -shot.effect, place, shot, trial)
        for place, trial in enumerate(trials)
        for shot in trial.snapshots
        if shot.effect >= target and shot.n_selected > 0
    ]
    best = min(reaching, key=lambda entry: entry[:3]) if reaching else None
    trial = best[4] if best else max(trials, key=lambda one: one.last.effect)
    # The order of the soft mask may reach the target earlier than the threshold does.
    mask, effects, size = smallest_prefix(engine, trial.last.order(), target)
    if best is not None and best[0] <= size:
        return _found(trial, best[3], None)
    return _found(trial, replace(trial.last, selected=mask, effects=effects), None)


def _found(trial: Trial, shot: Snapshot, budget: int | None) -> Found:
    return Found(
        mask=shot.selected,
        effects=shot.effects,
        soft_mask=shot.soft_mask,
        history=tuple(trial.history),
        budget=budget,
    )


def found_last(trial: Trial) -> Found:
    """The selection at the end of a trial: the paper's single run."""
    return _found(trial, trial.last, None)
