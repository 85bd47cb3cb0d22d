"""PGB-CT: penalised gradient-based causal tracing (the paper's method).

One soft mask m over all components, started at 0.5. Every step follows the gradient of

    1 / (1 + effect under m)  +  lambda1(epoch) |m|_1  +  lambda2(epoch) m^T(1 - m)

with Adam and clamps m to [0, 1]. The penalties grow with the epoch, so that entries leave for 0
one after the other while the rest is driven to 1; {i : m_i > 0.5} is the selection.

The descent, and how lambda is searched where it is not given, are in `descent.py`. Unless
`refine` is off, one trial is enough: what it measured is then improved by exact passes (see
`path.py`), 250 passes in all for one budget. The paper's method is the one without.

Where the paper and its published code differ, both can be had: `reward` and `inclusive` here,
the mean over continuation tokens in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from tracekit import masks
from tracekit.engine.engine import Cost, Engine
from tracekit.errors import ConfigError
from tracekit.masks import Mask
from tracekit.search.base import Found
from tracekit.search.learned import schedules
from tracekit.search.learned.lambda_search import Trial, best_within, measured_by
from tracekit.search.learned.mask_training import Descent, check_positive
from tracekit.search.learned.reward import Objective, Reward
from tracekit.search.local.best_sets import Frontier
from tracekit.search.local.local_search import refined

_TRIALS = 8
_PASSES = 250
_PASSES_MORE = 50
"""Passes at most with refinement for one budget, and for each further one."""


@dataclass(frozen=True, kw_only=True)
class PGBCT(Descent):
    """Penalised gradient-based causal tracing; the defaults are the paper's."""

    name: ClassVar[str] = "pgb-ct"

    lambda2: float | None = None
    """Weight of m^T(1 - m). None: the value of `lambda1`, also while that is searched."""
    inclusive: bool = False
    """Whether entries equal to the threshold are selected, as in the published code."""
    reward: Reward = "dataset"
    """`dataset`: 1/(1 + mean effect), the paper's equation. `per-example`: the mean of
    1/(1 + effect), the published code, which saturates on the examples that matter most."""
    schedule: str | schedules.Schedule = "linear"
    """Growth of both penalties over the epochs: `constant`, `linear`, `exponential`,
    `polynomial`, or a callable from the epoch (from 0) to a factor."""
    penalty_reduction: Literal["sum", "mean"] = "sum"
    """`sum` over components as in the paper; `mean` makes lambdas comparable between models."""
    trials: int | None = None
    """Trials at most per budget when lambda is searched. None: 1 with refinement, 8 without."""
    refine: bool = True
    """Whether sets within a budget are improved by measuring their neighbours."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lambda2 is not None and not self.lambda2 >= 0:
            raise ConfigError(f"lambda2 is {self.lambda2}. It must be at least 0.")
        check_positive(self, "trials")
        if self.reward not in ("dataset", "per-example"):
            raise ConfigError(f"Unknown reward {self.reward!r}. Use 'dataset' or 'per-example'.")
        if self.penalty_reduction not in ("sum", "mean"):
            raise ConfigError(
                f"Unknown penalty_reduction {self.penalty_reduction!r}. Use 'sum' or 'mean'."
            )
        schedules.resolve(self.schedule)

    # ---- what descends --------------------------------------------------------------------

    @property
    def objective(self) -> Objective:
        """The reward."""
        return self.reward

    @property
    def most_trials(self) -> int:
        """Trials at most for the first budget."""
        if self.trials is not None:
            return self.trials
        return 1 if self.refine else _TRIALS

    def selected(self, mask: Mask) -> masks.BinaryMask:
        """Entries above the threshold."""
        return masks.truncate(mask, self.threshold, inclusive=self.inclusive)

    def growth(self, epoch: int) -> float:
        """Factor of the penalties in an epoch."""
        return schedules.resolve(self.schedule)(epoch)

    def marginal(self, mask: Mask) -> float:
        """Derivative of the penalty at lambda1 = 1 and lambda2 = 0, for an entry of the mask."""
        return 1 / len(mask) if self.penalty_reduction == "mean" else 1.0

    def penalty_gradient(self, mask: Mask, lambda1: float, epoch: int) -> Mask:
        """Gradient of both penalties."""
        one, two = self._weights(mask, lambda1, epoch)
        # The derivative of |m| at 0 is taken as 0, as torch and the published code do.
        return one * mask.sign() + two * (1 - 2 * mask)

    def penalties(self, mask: Mask, lambda1: float, epoch: int) -> dict[str, float]:
        """Both penalties, and their weights."""
        one, two = self._weights(mask, lambda1, epoch)
        return {
            "lambda1": one / self.marginal(mask),
            "lambda2": two / self.marginal(mask),
            "size_penalty": one * masks.l1(mask).item(),
            "binary_penalty": two * masks.binary_violation(mask).item(),
        }

    def _weights(self, mask: Mask, lambda1: float, epoch: int) -> tuple[float, float]:
        scale = self.marginal(mask) * self.growth(epoch)
        lambda2 = lambda1 if self.lambda2 is None else self.lambda2
        return lambda1 * scale, lambda2 * scale

    # ---- after the descent ----------------------------------------------------------------

    def best(
        self, engine: Engine, trials: Sequence[Trial], budgets: Sequence[int], before: Cost
    ) -> list[Found]:
        """The best set within each budget, improved if that is wanted."""
        measured = measured_by(trials)
        found = best_within(trials, engine, budgets, measured)
        passes = _PASSES + _PASSES_MORE * (len(budgets) - 1)
        left = int(passes - (engine.cost - before).forward_equivalents)
        if not self.refine or left < 1:
            return found
        frontier = refined(engine, measured, budgets, left)
        return [_improved(one, frontier) for one in found]


def _improved(found: Found, frontier: Frontier) -> Found:
    """What was found, or a better set within its budget."""
    assert found.budget is not None
    best = frontier.best_within(found.budget)
    if frontier.effects(best).mean() <= found.effects.mean():
        return found
    mask = masks.from_indices(best, len(found.mask))
    return replace(found, mask=mask, effects=frontier.effects(best))
