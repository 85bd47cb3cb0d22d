"""PGB-CT: penalised gradient-based causal tracing (the paper's method).

One soft mask m over all components, started at 0.5. Every step follows the gradient of

    1 / (1 + effect under m)  +  lambda1(epoch) |m|_1  +  lambda2(epoch) m^T(1 - m)

with Adam and clamps m to [0, 1]. The penalties grow with the epoch, so that entries leave for 0
one after the other while the rest is driven to 1; {i : m_i > 0.5} is the selection.

`mask_training.py` holds the descent, `lambda_search.py` the search for lambda where it is not
given. `refine=False` with a fixed lambda1 is the paper's method. By default one training run is
enough: local search (see `search/local/`) improves what it measured, 250 passes in all for one
budget.

Where the paper and its published code differ, both are available: `reward` and `inclusive` here,
the mean over continuation tokens in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal

from tracekit._util.options import check_at_least, check_choice
from tracekit.components import masks
from tracekit.components.masks import Mask
from tracekit.engine.cost import Cost
from tracekit.errors import ConfigError
from tracekit.search.base import Goal, Planned, Selection
from tracekit.search.learned import schedules
from tracekit.search.learned.lambda_search import TrainingRun, best_within_budgets, measured_sets
from tracekit.search.learned.mask_training import DEFAULT_TRIALS, MaskTraining
from tracekit.search.learned.reward import ObjectiveName, Reward
from tracekit.search.local.best_sets import BestSets
from tracekit.search.local.local_search import refine_sets
from tracekit.search.targets import Target

_PASSES = 250
_PASSES_MORE = 50
"""Passes at most with refinement for one budget, and for each further one."""
_LARGEST_WEIGHT = 1e16
"""Of a penalty: Adam squares gradients, in float32."""


@dataclass(frozen=True, kw_only=True)
class PGBCTPenalty:
    """lambda1 |m|_1 + lambda2 m^T(1 - m), both growing with the epoch."""

    lambda1: float
    lambda2: float
    schedule: schedules.Schedule
    per_component: bool
    """Whether sums over components are divided by their number."""

    def _factor(self, epoch: int) -> float:
        """What both weights are multiplied by in an epoch.

        Raises:
            ConfigError: It is no number, or too large for the squares of gradients.
        """
        try:
            factor = float(self.schedule(epoch))
        except OverflowError:
            factor = inf
        if not abs(factor) * max(self.lambda1, self.lambda2, 1.0) <= _LARGEST_WEIGHT:
            raise ConfigError(
                f"The penalty_schedule gives {factor:g} in epoch {epoch}. Give one that grows "
                "less, fewer epochs, or a smaller lambda1."
            )
        return factor

    def _scale(self, mask: Mask, epoch: int) -> float:
        return self._factor(epoch) / (len(mask) if self.per_component else 1)

    def gradient(self, mask: Mask, epoch: int) -> Mask:
        """Gradient of both penalties."""
        # The derivative of |m| at 0 is taken as 0, as torch and the published code do.
        scale = self._scale(mask, epoch)
        return self.lambda1 * scale * mask.sign() + self.lambda2 * scale * (1 - 2 * mask)

    def terms(self, mask: Mask, epoch: int) -> dict[str, float]:
        """Both penalties, and their weights in the epoch."""
        scale, factor = self._scale(mask, epoch), self._factor(epoch)
        return {
            "lambda1": self.lambda1 * factor,
            "lambda2": self.lambda2 * factor,
            "size_penalty": self.lambda1 * scale * masks.l1(mask).item(),
            "binary_penalty": self.lambda2 * scale * masks.binary_violation(mask).item(),
        }

    def slope(self, mask: Mask, epoch: int) -> float:
        """Derivative of the size penalty by an entry above 0."""
        return self.lambda1 * max(self._scale(mask, epoch), 1e-12)


@dataclass(frozen=True, kw_only=True)
class PGBCT(MaskTraining):
    """Penalised gradient-based causal tracing.

    Objective, penalties and optimiser are the paper's by default. The search for lambda and
    `refine` are additions: `PGBCT(lambda1=1e-3, refine=False)` is the paper's method.
    """

    name: ClassVar[str] = "pgb-ct"
    title: ClassVar[str] = "PGB-CT"

    lambda2: float | None = None
    """Weight of m^T(1 - m). None: the value of `lambda1`, also while that is searched."""
    inclusive: bool = False
    """Whether entries equal to the threshold are selected, as in the published code."""
    reward: Reward = "dataset"
    """`dataset`: 1/(1 + mean effect), the paper's equation. `per-example`: the mean of
    1/(1 + effect), the published code, which saturates on the examples that matter most."""
    penalty_schedule: str | schedules.Schedule = "linear"
    """Growth of both penalties over the epochs: `constant`, `linear`, `exponential`,
    `polynomial`, or a callable from the epoch (from 0) to a factor."""
    penalty_reduction: Literal["sum", "mean"] = "sum"
    """`sum` over components as in the paper; `mean` makes lambdas comparable between models."""
    trials: int | None = None
    """Training runs at most per budget when lambda is searched. None: 1 with refinement, 8
    without."""
    refine: bool = True
    """Whether sets within a budget are improved by local search."""
    start_from_examples: bool | None = None
    """Whether that makes sets for single examples, where one example carries more than a third of
    the effect of a set. None: with every objective but `auto`, as such sets hold less on fresh
    examples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 0, "lambda2")
        check_at_least(self, 1, "trials")
        check_choice(self, "reward", "dataset", "per-example")
        check_choice(self, "penalty_reduction", "sum", "mean")
        schedules.resolve(self.penalty_schedule)

    @property
    def objective(self) -> ObjectiveName:
        """The reward."""
        return self.reward

    @property
    def max_trials(self) -> int:
        """Training runs at most for the first budget."""
        if self.trials is not None:
            return self.trials
        return 1 if self.refine else DEFAULT_TRIALS

    def penalty(self, lambda1: float) -> PGBCTPenalty:
        """Both penalties."""
        return PGBCTPenalty(
            lambda1=lambda1,
            lambda2=lambda1 if self.lambda2 is None else self.lambda2,
            schedule=schedules.resolve(self.penalty_schedule),
            per_component=self.penalty_reduction == "mean",
        )

    def selected(self, mask: Mask) -> masks.BinaryMask:
        """Entries above the threshold."""
        return masks.truncate(mask, self.threshold, inclusive=self.inclusive)

    def planned(self, n_components: int, goal: Goal) -> Planned:
        """What training takes, or all passes that refinement may come to."""
        trained = super().planned(n_components, goal)
        refines = self.refine and bool(goal.budgets)
        passes = _PASSES + _PASSES_MORE * (len(goal.budgets) - 1) if refines else 0
        left = max(0.0, passes - trained.cost.forward_equivalents)
        return Planned(cost=trained.cost + Cost(left))

    def best_sets(
        self, engine: Target, runs: Sequence[TrainingRun], budgets: Sequence[int], before: Cost
    ) -> list[Selection]:
        """The best set within each budget, improved by local search if `refine` is on."""
        measured = measured_sets(runs)
        selections = best_within_budgets(runs, engine, budgets, measured)
        passes = _PASSES + _PASSES_MORE * (len(budgets) - 1)
        passes_left = int(passes - (engine.cost - before).forward_equivalents)
        if not self.refine or passes_left < 1:
            return selections
        best_sets = refine_sets(
            engine,
            measured,
            budgets,
            passes_left,
            start_from_examples=self.start_from_examples is not False,
        )
        return [_improved(selection, best_sets) for selection in selections]


def _improved(selection: Selection, best_sets: BestSets) -> Selection:
    """The selection, or a better set within its budget."""
    assert selection.budget is not None
    best = best_sets.best_within(selection.budget)
    if best_sets.effects(best).mean() <= selection.effects.mean():
        return selection
    mask = masks.from_indices(best, len(selection.mask))
    return replace(selection, mask=mask, effects=best_sets.effects(best))
