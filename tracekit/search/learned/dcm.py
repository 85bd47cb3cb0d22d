"""DCM: desiderata-based component masking (Davies et al. 2023), as the paper compares with it.

One soft mask, as in PGB-CT, but the raw mean effect is raised instead of 1/(1 + effect) lowered,
the size penalty is concave and does not grow,

    - effect under m  +  lambda1 sum_i (m_i + 0.001)^(1/2),

nothing drives entries to 0 or 1, and the mask is rounded at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracekit import masks
from tracekit.masks import Mask
from tracekit.search.learned.mask_training import Descent, check_positive
from tracekit.search.learned.reward import Objective

_OFFSET = 1e-3
_TRIALS = 8


@dataclass(frozen=True, kw_only=True)
class DCM(Descent):
    """Desiderata-based component masking; 1 takes the counterfactual value here too."""

    name: ClassVar[str] = "dcm"

    trials: int | None = None
    """Trials at most per budget when lambda is searched. None: 8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "trials")

    @property
    def objective(self) -> Objective:
        """The raw effect."""
        return "effect"

    @property
    def most_trials(self) -> int:
        """Trials at most for the first budget."""
        return _TRIALS if self.trials is None else self.trials

    def selected(self, mask: Mask) -> masks.BinaryMask:
        """Entries that are rounded to 1 (at the default threshold)."""
        return masks.truncate(mask, self.threshold)

    def growth(self, epoch: int) -> float:
        """The penalty does not grow."""
        return 1.0

    def marginal(self, mask: Mask) -> float:
        """Derivative of the penalty at lambda1 = 1, at the start."""
        return 0.5 * (self.init + _OFFSET) ** -0.5

    def penalty_gradient(self, mask: Mask, lambda1: float, epoch: int) -> Mask:
        """Gradient of the penalty."""
        return 0.5 * lambda1 * (mask + _OFFSET).rsqrt()

    def penalties(self, mask: Mask, lambda1: float, epoch: int) -> dict[str, float]:
        """The penalty, and its weight."""
        return {"lambda1": lambda1, "size_penalty": lambda1 * (mask + _OFFSET).sqrt().sum().item()}
