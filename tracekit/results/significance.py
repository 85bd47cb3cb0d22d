"""Whether mean effects differ from 0: sign flips over examples, corrected for many of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

RESOLUTION = 1e-4
"""Share of the effects that an interaction is a difference of, below which it may be rounding."""
_FLOOR = 1e-5
"""The same share of the largest effect of any set."""
_DRAWS = 10_000
_AT_ONCE = 20_000_000
"""Signs that are drawn together; bounds memory."""


def without_rounding(
    interactions: Float[Tensor, "*row example"], scale: Float[Tensor, "*row example"]
) -> Float[Tensor, "*row example"]:
    """Interactions, with 0 where they are too small to be told from rounding.

    Effects are float32 numbers. Rounding often has the same sign on all examples, and a test of
    signs would call a difference of 1e-7 significant. `scale` is the size of the effects that they
    are differences of.
    """
    least = RESOLUTION * scale + _FLOOR * scale.flatten(0, -2).max(0).values
    return torch.where(interactions.abs() > least, interactions, 0.0)


def sign_flip_p_values(effects: Float[Tensor, "row example"]) -> Float[Tensor, " row"]:
    """Two-sided p values of the hypothesis that effects are symmetric around 0, row by row.

    Effects are times the weights of their examples. Signs of the examples are flipped at random;
    the p value is the share of draws whose mean is as far from 0 as the mean measured, which counts
    as one of them. TransformerLens has such a test from version 4 on.
    """
    values = effects.double().cpu()
    n = values.shape[1]
    measured = values.sum(1).abs()
    # Sums in another order may differ in the last digits.
    least = measured - 1e-9 * values.abs().sum(1)
    hits = torch.ones(len(values), dtype=torch.float64)
    for signs in _signs(n, max(1, _AT_ONCE // n)):
        hits += (values @ signs.T).abs().ge(least[:, None]).sum(1)
    return hits / (_DRAWS + 1)


def max_t_p_values(effects: Float[Tensor, "row example"]) -> Float[Tensor, " row"]:
    """Two-sided p values of such effects, corrected for any number of rows, from sign flips.

    Step-down maxT of Westfall and Young (Resampling-based multiple testing, 1993). Each row is
    divided by its root sum of squares, which no flip changes, so that its sum grows with its t
    statistic. The p value of the row with the largest one is the share of draws in which the
    largest of all rows reaches it; that of the next row leaves the first one out, and so on.

    With m rows, Holm's correction cannot go below m / 10,001, the least p value of 10,000 draws
    times m; this one goes down to 1 / 10,001 whatever m is. Rows that depend on each other cost
    little. With n examples there are 2^n flips, so that no p value lies below 2 / 2^n.
    """
    values = effects.double().cpu()
    n_rows, n = values.shape
    scale = values.square().sum(1, keepdim=True).sqrt()
    # A row without any effect is as far from 0 as every flip of it.
    values = torch.where(scale > 0, values / scale, 0.0)
    measured, order = values.sum(1).abs().sort(descending=True)
    values, least = values[order], measured - 1e-9
    hits = torch.ones(n_rows, dtype=torch.float64)
    for signs in _signs(n, max(1, _AT_ONCE // (n + 2 * n_rows))):
        # For each row the largest among itself and all rows below it.
        largest = (values @ signs.T).abs().flip(0).cummax(0).values.flip(0)
        hits += largest.ge(least[:, None]).sum(1)
    p_values = (hits / (_DRAWS + 1)).cummax(0).values
    return torch.empty_like(p_values).scatter(0, order, p_values)


def _signs(n_examples: int, at_once: int) -> Iterator[Float[Tensor, "draw example"]]:
    """Random signs of all draws, in portions; the same for all rows, and in every call."""
    generator = torch.Generator().manual_seed(0)
    for first in range(0, _DRAWS, at_once):
        shape = (min(at_once, _DRAWS - first), n_examples)
        yield torch.randint(2, shape, generator=generator).double() * 2 - 1


def holm(p_values: Float[Tensor, " row"]) -> Float[Tensor, " row"]:
    """P values corrected for their number (Holm, 1979)."""
    n = len(p_values)
    order = p_values.argsort()
    factors = torch.arange(n, 0, -1, dtype=p_values.dtype)
    corrected = (p_values[order] * factors).cummax(0).values.clamp(max=1)
    return torch.empty_like(p_values).scatter(0, order, corrected)
