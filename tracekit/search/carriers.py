"""Carriers: the few examples that make up most of the effect of a set.

Where effects grow like odds, a random part of the examples says little of the mean. The carriers
say most of it: after the first round of its walk local search takes gradients of these only (see
`local/model_walk.py`), and it measures a set no further that is hopelessly behind on them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_REST = 0.1
"""Share of the effects, whatever their signs, that the other examples may make up."""
_MOST = 0.5
"""Share of the examples that carriers are few below."""


def few_carriers(effects: Float[Tensor, "set example"]) -> Int[Tensor, " some"] | None:
    """Numbers of the fewest examples that make up most of the effects of each of some sets.

    Args:
        effects: Of the sets.

    Returns:
        Ascending. None if these are so many that looking at them alone saves little.
    """
    sizes = effects.abs().nan_to_num()
    shares = sizes / sizes.sum(1, keepdim=True).clamp(min=torch.finfo().tiny)
    order = shares.amax(0).argsort(descending=True, stable=True)
    left = 1 - shares[:, order].cumsum(1)
    count = int((left.amax(0) > _REST).sum()) + 1
    return order[:count].sort().values if count <= _MOST * len(order) else None
