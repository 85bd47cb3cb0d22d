"""DCM: desiderata-based component masking (Davies et al. 2023), as the paper compares with it.

One soft mask, as in PGB-CT, but the raw mean effect is raised instead of 1/(1 + effect) lowered,
the size penalty is concave and does not grow, nothing drives entries to 0 or 1, and the mask is
rounded at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tracekit.components.masks import Mask
from tracekit.search.learned.mask_training import MaskTraining
from tracekit.search.learned.reward import LossName

_OFFSET = 1e-3


@dataclass(frozen=True, kw_only=True)
class DCM(MaskTraining):
    """Desiderata-based component masking; 1 takes the counterfactual value here too.

    The penalty is lambda1 sum_i (m_i + 0.001)^(1/2), the same in every epoch.
    """

    name: ClassVar[str] = "dcm"
    title: ClassVar[str] = "DCM"

    @property
    def loss(self) -> LossName:
        """The raw effect."""
        return "effect"

    def penalty_gradient(self, lambda1: float, mask: Mask, epoch: int) -> Mask:
        """Gradient of the penalty."""
        return 0.5 * lambda1 * (mask + _OFFSET).rsqrt()

    def penalty_terms(self, lambda1: float, mask: Mask, epoch: int) -> dict[str, float]:
        """The penalty, and its weight."""
        penalty = lambda1 * (mask + _OFFSET).sqrt().sum().item()
        return {"lambda1": lambda1, "size_penalty": penalty}

    def penalty_slope(self, lambda1: float, mask: Mask, epoch: int) -> float:
        """Derivative of the penalty by the first entry."""
        return 0.5 * lambda1 * (mask[0].item() + _OFFSET) ** -0.5
