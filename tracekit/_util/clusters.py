"""Sums over examples that are not independent, and standard errors computed from them."""

from __future__ import annotations

from typing import TypedDict

from jaxtyping import Float, Int
from torch import Tensor

FEWEST = 3
"""Independent examples that an interval needs."""


class EvidenceOptions(TypedDict):
    """Weights of examples and the cluster of each; None where all are equal or independent."""

    weights: Float[Tensor, " example"] | None
    clusters: Int[Tensor, " example"] | None


def count_text(n_examples: int, clusters: Int[Tensor, " example"] | None) -> str:
    """The number of examples, followed by the number of independent ones if that is smaller."""
    n_independent = count_independent(n_examples, clusters)
    return f"{n_examples}" + (f" ({n_independent} independent)" * (n_independent < n_examples))


def count_independent(n_examples: int, clusters: Int[Tensor, " example"] | None) -> int:
    """How many examples are independent: equal ones, mirrors and groups count once."""
    return n_examples if clusters is None else int(clusters.max()) + 1


def sum_by_cluster(
    values: Float[Tensor, "*row example"], clusters: Int[Tensor, " example"] | None
) -> Float[Tensor, "*row cluster"]:
    """Sums values over each cluster, in float64 on the CPU; returns all values without clusters."""
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
