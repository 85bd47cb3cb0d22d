"""PGB-CT: penalised gradient-based causal tracing (the paper's method), alone or refined.

One soft mask m over all components, started at 0.5. Every step follows the gradient of

    1 / (1 + effect under m)  +  lambda1(epoch) |m|_1  +  lambda2(epoch) m^T(1 - m)

with Adam and clamps m to [0, 1]. The penalties grow with the epoch, so that entries leave for 0
one after the other while the rest is driven to 1; {i : m_i > 0.5} is the selection.

Where the paper and its published code differ, both are available: `reward` and `inclusive` here,
the mean over continuation tokens in the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat

from tracekit._util.options import ValidatedFields
from tracekit.components import masks
from tracekit.components.masks import Mask, from_indices
from tracekit.engine.cost import Cost
from tracekit.errors import ConfigError
from tracekit.search.base import Goal, PlannedPasses, Selection
from tracekit.search.learned.lambda_search import TrainingRun, best_within_budgets, measured_sets
from tracekit.search.learned.mask_training import MaskTraining
from tracekit.search.learned.reward import LossName, Reward
from tracekit.search.local_search import refine
from tracekit.search.targets import Target

_LARGEST_WEIGHT = 1e16
"""Of a penalty: Adam squares gradients, in float32."""
_PASSES = 250
_PASSES_MORE = 50
"""Passes at most, training included, for one budget, and for each further one."""


@dataclass(frozen=True, kw_only=True)
class PGBCT(MaskTraining):
    """Penalised gradient-based causal tracing (the paper); lambda1 is searched if not given."""

    name: ClassVar[str] = "pgb-ct"
    title: ClassVar[str] = "PGB-CT"

    lambda2: NonNegativeFloat | None = None
    """Weight of m^T(1 - m). None: the value of `lambda1`, also while that is searched."""
    inclusive: bool = False
    """Whether entries equal to the threshold are selected, as in the published code."""
    reward: Reward = "dataset"
    """`dataset`: 1/(1 + mean effect), the paper's equation. `per-example`: the mean of
    1/(1 + effect), the published code, which saturates on the examples that matter most."""
    penalty_schedule: str | Schedule = "linear"
    """Growth of both penalties over the epochs: `constant`, `linear`, `exponential`,
    `polynomial`, or a callable from the epoch (from 0) to a factor."""
    penalty_reduction: Literal["sum", "mean"] = "sum"
    """`sum` over components as in the paper; `mean` makes lambdas comparable between models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve_schedule(self.penalty_schedule)

    @property
    def loss(self) -> LossName:
        """The reward."""
        return self.reward

    def penalty_gradient(self, lambda1: float, mask: Mask, epoch: int) -> Mask:
        """Gradient of both penalties."""
        # The derivative of |m| at 0 is taken as 0, as torch and the published code do.
        lambda2, _, scale = self._growth(lambda1, mask, epoch)
        return lambda1 * scale * mask.sign() + lambda2 * scale * (1 - 2 * mask)

    def penalty_terms(self, lambda1: float, mask: Mask, epoch: int) -> dict[str, float]:
        """Both penalties, and their weights in the epoch."""
        lambda2, factor, scale = self._growth(lambda1, mask, epoch)
        return {
            "lambda1": lambda1 * factor,
            "lambda2": lambda2 * factor,
            "size_penalty": lambda1 * scale * masks.l1(mask).item(),
            "binary_penalty": lambda2 * scale * masks.binary_violation(mask).item(),
        }

    def penalty_slope(self, lambda1: float, mask: Mask, epoch: int) -> float:
        """Derivative of the size penalty by an entry above 0."""
        return lambda1 * max(self._growth(lambda1, mask, epoch)[2], 1e-12)

    def _growth(self, lambda1: float, mask: Mask, epoch: int) -> tuple[float, float, float]:
        """lambda2; the factor on both weights in an epoch; and this factor on the two sums."""
        lambda2 = lambda1 if self.lambda2 is None else self.lambda2
        try:
            factor = float(resolve_schedule(self.penalty_schedule)(epoch))
        except OverflowError:
            factor = inf
        # Its square must be a finite number.
        if not abs(factor) * max(lambda1, lambda2, 1.0) <= _LARGEST_WEIGHT:
            raise ConfigError(
                f"The penalty_schedule gives {factor:g} in epoch {epoch}. Give one that grows "
                "less, fewer epochs, or a smaller lambda1."
            )
        return lambda2, factor, factor / (len(mask) if self.penalty_reduction == "mean" else 1)

    def selected(self, mask: Mask) -> masks.BinaryMask:
        """Entries above the threshold; if `inclusive`, those equal to it too."""
        return masks.truncate(mask, self.threshold, inclusive=self.inclusive)


@dataclass(frozen=True, kw_only=True)
class PGBCTLocal(PGBCT):
    """PGB-CT, whose sets within a budget local search improves.

    With a target, or with neither a budget nor a target, there is nothing to refine: it is PGB-CT.
    """

    name: ClassVar[str] = "pgb-ct+local"
    title: ClassVar[str] = "PGB-CT + local"
    default_trials: ClassVar[int] = 1

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """All passes that training and refinement may come to."""
        trained = super().planned_passes(n_components, goal).cost
        left = max(0.0, _passes(goal.budgets) - trained.forward_equivalents)
        return PlannedPasses(cost=trained + Cost(left / 2, left / 2))

    def best_sets(
        self, target: Target, runs: Sequence[TrainingRun], budgets: Sequence[int], before: Cost
    ) -> list[Selection]:
        """The best set within each budget, improved by local search."""
        measured = measured_sets(runs)
        selections = best_within_budgets(runs, target, budgets, measured)
        passes_left = _passes(budgets) - (target.cost - before).forward_equivalents
        if passes_left < 1:
            return selections
        refined = refine(target, measured, budgets, passes_left)
        for number, budget in enumerate(budgets):
            best = refined.best_within(budget)
            effects = refined.measurements.effects(best)
            if effects.mean() > selections[number].effects.mean():
                mask = from_indices(best, target.n_components)
                selections[number] = replace(selections[number], mask=mask, effects=effects)
        return selections


def _passes(budgets: Sequence[int]) -> int:
    return _PASSES + _PASSES_MORE * (len(budgets) - 1) if budgets else 0


@dataclass(frozen=True)
class Exponential(ValidatedFields):
    """1, g, g^2, ..."""

    name: ClassVar[str] = "exponential"
    growth: PositiveFloat = 1.3

    def __call__(self, epoch: int) -> float:
        """Factor in `epoch` (from 0)."""
        return self.growth**epoch


@dataclass(frozen=True)
class Polynomial:
    """1, 2^p, 3^p, ...: with p = 0 the same in every epoch, with p = 1 the paper's."""

    name: ClassVar[str] = "polynomial"
    power: float = 2.0

    def __call__(self, epoch: int) -> float:
        """Factor in `epoch` (from 0)."""
        return float(epoch + 1) ** self.power


Schedule = Callable[[int], float]
"""Anything from an epoch (counted from 0) to a factor of at least 0."""

SCHEDULES: Mapping[str, Schedule] = {
    "constant": Polynomial(power=0.0),
    "linear": Polynomial(power=1.0),
    "exponential": Exponential(),
    "polynomial": Polynomial(),
}


def resolve_schedule(schedule: str | Schedule) -> Schedule:
    """A schedule by name or as given."""
    if not isinstance(schedule, str):
        return schedule
    if schedule not in SCHEDULES:
        raise ConfigError(
            f"Unknown schedule {schedule!r}. Use one of {', '.join(SCHEDULES)}, or a callable."
        )
    return SCHEDULES[schedule]
