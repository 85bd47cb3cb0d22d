"""Bootstrap intervals of mean effects over examples."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_RESAMPLES = 2000


def ratio_interval(
    numerators: Float[Tensor, " example"],
    denominators: Float[Tensor, " example"],
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a ratio of two means over the same examples.

    Args:
        numerators: Values, times the weights of their examples if these have weights.
        denominators: The same of what they are divided by.
        confidence: Share of resamples within the interval.
        seed: Of the resamples.
    """
    n = len(numerators)
    picks = torch.randint(n, (_RESAMPLES, n), generator=torch.Generator().manual_seed(seed))
    ratios = numerators.double()[picks].sum(1) / denominators.double()[picks].sum(1)
    tail = (1 - confidence) / 2
    low, high = ratios.quantile(torch.tensor([tail, 1 - tail], dtype=ratios.dtype)).tolist()
    return low, high


def effect_interval(
    per_example: Float[Tensor, " example"],
    *,
    weights: Float[Tensor, " example"] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean effect over examples.

    Without weights TransformerLens' own, if it has one. With weights every resample is divided by
    its own sum of weights, so that a constant effect has an interval of no width.

    Args:
        per_example: Effects, times the weights of their examples.
        weights: These weights; None if all examples count alike.
        confidence: Share of resamples within the interval.
        seed: Of the resamples.
    """
    generator = torch.Generator().manual_seed(seed)
    if weights is None:
        try:
            from transformer_lens.utilities.statistics import bootstrap_ci
        except ModuleNotFoundError:  # TransformerLens 3 has none.
            weights = torch.ones_like(per_example)
        else:
            low, high = bootstrap_ci(per_example, confidence=confidence, generator=generator)
            return float(low), float(high)
    n = len(per_example)
    picks = torch.randint(n, (_RESAMPLES, n), generator=generator)
    means = per_example[picks].sum(1) / weights.to(per_example)[picks].sum(1)
    tail = (1 - confidence) / 2
    low, high = means.quantile(torch.tensor([tail, 1 - tail], dtype=means.dtype)).tolist()
    return low, high
