"""A cheap model of a set: on every example, members add up in the quantity that is about linear.

A metric such as the drop of a probability saturates: once some members have done it, others bring
nothing. In the quantity of its linearization (the log-odds; see `metrics.Linearization`) members
about add up. The model has one slope per member and example, fitted to measured effects, and the
exact curve from the quantity to the effect. It costs no pass, so that its Shapley values can be
averaged over thousands of orders. Drawn orders then only have to tell what it gets wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit.engine.example_curves import ExampleCurves

_PENALTY = 1e-2
"""On squared slopes, for members that hardly ever decide an effect."""
_STEEP_ENOUGH = 1e-4
"""Least weight of a measured effect, where the curve is flat."""
_TOGETHER = 4_000_000
"""Values of prefixes of orders that are computed at a time."""


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """The quantity of every example, as a sum over members; and its curve to the effect."""

    start: Float[Tensor, " example"]
    """The quantity with no member patched."""
    slopes: Float[Tensor, "member example"]
    """Contribution of each member to it."""
    curves: ExampleCurves

    def effects(
        self, coalitions: Bool[Tensor, "coalition member"]
    ) -> Float[Tensor, "coalition example"]:
        """Effects that the model expects, of coalitions of patched members."""
        return self.curves.effects((self.start + coalitions.double() @ self.slopes).T).T

    def gains_in_orders(
        self, orders: Int[Tensor, "order member"]
    ) -> Iterator[tuple[slice, Float[Tensor, "order member example"]]]:
        """Contribution of each member as it joins in each order, some examples at a time."""
        n_examples, at = len(self.start), orders[..., None]
        together = max(1, _TOGETHER // orders.numel())
        for first in range(0, n_examples, together):
            some = slice(first, min(first + together, n_examples))
            joined = self.slopes[:, some][orders].cumsum(1)
            quantity = torch.cat([torch.zeros_like(joined[:, :1]), joined], 1) + self.start[some]
            effects = self.curves.some(some).effects(quantity.movedim(-1, 0)).movedim(0, -1)
            gains = effects.diff(dim=1)
            yield some, torch.zeros_like(gains).scatter(1, at.expand_as(gains), gains)


def fitted(
    curves: ExampleCurves,
    coalitions: Bool[Tensor, "coalition member"],
    effects: Float[Tensor, "coalition example"],
) -> AdditiveModel:
    """The model that fits measured effects: least squares in the effect, to first order."""
    quantity = curves.quantity(effects.T)
    # A difference of the quantity counts for what it changes in the effect.
    importance = curves.steepness(quantity).square()
    importance = importance / importance.amax(1, keepdim=True).clamp(min=1e-30) + _STEEP_ENOUGH
    inputs = torch.cat([torch.ones(len(coalitions), 1), coalitions], 1).double()
    penalty = torch.full((inputs.shape[1],), _PENALTY, dtype=torch.float64)
    penalty[0] = 1e-12
    rows = []
    for values, counts in zip(quantity, importance, strict=True):
        weighted = inputs * counts[:, None]
        rows.append(torch.linalg.solve(weighted.T @ inputs + penalty.diag(), weighted.T @ values))
    solution = torch.stack(rows, 1)
    return AdditiveModel(solution[0], solution[1:], curves)
