"""Bootstrap intervals of mean effects over examples."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_RESAMPLES = 2000


def effect_interval(
    per_example: Float[Tensor, " example"], *, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the mean effect over examples (TransformerLens' own, if it has one)."""
    generator = torch.Generator().manual_seed(seed)
    try:
        from transformer_lens.utilities.statistics import bootstrap_ci
    except ModuleNotFoundError:  # TransformerLens 3 has none.
        n = len(per_example)
        picks = torch.randint(n, (_RESAMPLES, n), generator=generator)
        tail = (1 - confidence) / 2
        ends = per_example[picks].mean(1).quantile(torch.tensor([tail, 1 - tail]))
        return ends[0].item(), ends[1].item()
    low, high = bootstrap_ci(per_example, confidence=confidence, generator=generator)
    return float(low), float(high)
