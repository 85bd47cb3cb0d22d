"""Whether mean effects differ from 0: sign flips over examples, corrected for many of them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_DRAWS = 10_000
_AT_ONCE = 20_000_000
"""Signs that are drawn together; bounds memory."""


def sign_flip_p_values(
    effects: Float[Tensor, "row example"], *, seed: int = 0
) -> Float[Tensor, " row"]:
    """Two-sided p values of the hypothesis that effects are symmetric around 0, row by row.

    Signs of the examples are flipped at random; the p value is the share of draws whose mean is
    as far from 0 as the mean measured, which counts as one of them. TransformerLens has such a
    test from version 4 on.

    Args:
        effects: Effects on each example, times its weight if examples have weights.
        seed: Draws the signs, the same for all rows.
    """
    values = effects.double().cpu()
    n = values.shape[1]
    measured = values.sum(1).abs()
    # Sums in another order may differ in the last digits.
    least = measured - 1e-9 * values.abs().sum(1)
    generator = torch.Generator().manual_seed(seed)
    count = max(1, _AT_ONCE // n)
    hits = torch.ones(len(values), dtype=torch.float64)
    for first in range(0, _DRAWS, count):
        shape = (min(count, _DRAWS - first), n)
        signs = torch.randint(2, shape, generator=generator).double() * 2 - 1
        hits += (values @ signs.T).abs().ge(least[:, None]).sum(1)
    return hits / (_DRAWS + 1)


def holm(p_values: Float[Tensor, " row"]) -> Float[Tensor, " row"]:
    """P values corrected for their number (Holm, 1979)."""
    n = len(p_values)
    order = p_values.argsort()
    factors = torch.arange(n, 0, -1, dtype=p_values.dtype)
    corrected = (p_values[order] * factors).cummax(0).values.clamp(max=1)
    return torch.empty_like(p_values).scatter(0, order, corrected)
