"""Sums over examples that are no independent evidence, and standard errors from these."""

from __future__ import annotations

from typing import TypedDict

from jaxtyping import Float, Int
from torch import Tensor

FEWEST = 3
"""Independent examples that an interval needs."""


class EvidenceOptions(TypedDict):
    """Weights of examples, and which independent one each is part of; None if all are alike."""

    weights: Float[Tensor, " example"] | None
    clusters: Int[Tensor, " example"] | None


def count_text(n_examples: int, clusters: Int[Tensor, " example"] | None) -> str:
    """How many examples there are, and how many of them are independent if not all are."""
    n_independent = count_independent(n_examples, clusters)
    return f"{n_examples}" + (f" ({n_independent} independent)" * (n_independent < n_examples))


def count_independent(n_examples: int, clusters: Int[Tensor, " example"] | None) -> int:
    """How many examples are independent: equal ones, mirrors and groups count once."""
    return n_examples if clusters is None else int(clusters.max()) + 1


def sum_by_cluster(
    values: Float[Tensor, "*row example"], clusters: Int[Tensor, " example"] | None
) -> Float[Tensor, "*row cluster"]:
    """Sums over the pairs of each independent example, in float64 on the CPU; None: all pairs."""
    values = values.double().cpu()
    if clusters is None:
        return values
    sums = values.new_zeros(*values.shape[:-1], int(clusters.max()) + 1)
    return sums.index_add(-1, clusters, values)


def ratio_and_error(
    values: Float[Tensor, "*draw example"], bases: Float[Tensor, "*draw example"]
) -> tuple[Float[Tensor, "*draw"], Float[Tensor, "*draw"]]:
    """Ratios of means, and their standard errors to first order."""
    n = values.shape[-1]
    ratio = values.sum(-1) / bases.sum(-1)
    residuals = values - ratio[..., None] * bases
    return ratio, (residuals.square().sum(-1) / max(1, n - 1) / n).sqrt() / bases.mean(-1).abs()
