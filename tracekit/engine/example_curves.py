"""The curve of every example from the quantity that is about linear in the mask to the effect.

For `odds-ratio` the quantity is the log-odds of y against x, and the curve is exact. Shapley values
and empirical-Bayes shrinkage are computed in this quantity.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.metrics import ContinuationLogProbs, Linearization, Metric

_HALVINGS = 60
WIDEST = 30.0
"""How far the quantity may lie from its values without intervention, in nats."""


@dataclass(frozen=True, eq=False)
class ExampleCurves:
    """The curve from the quantity to the effect, of every example."""

    linearization: Linearization
    clean: ContinuationLogProbs
    """Log-probabilities of the run without patches."""
    weights: Float[Tensor, " example"]

    @classmethod
    def for_metric(
        cls, metric: Metric, clean: ContinuationLogProbs, weights: Float[Tensor, " example"] | None
    ) -> ExampleCurves | None:
        """Curves of a metric on the examples of a clean run; None where it has no linearization."""
        if metric.linearization is None:
            return None
        clean = clean.map(Tensor.cpu)
        weights = torch.ones(len(clean.x)) if weights is None else weights
        return cls(metric.linearization, clean, weights.cpu().double())

    def select(self, examples: slice | Int[Tensor, " select"]) -> ExampleCurves:
        """The curves of some examples."""
        clean = self.clean.map(lambda values: values[examples])
        return ExampleCurves(self.linearization, clean, self.weights[examples])

    def effects(self, quantity: Float[Tensor, "example ..."]) -> Float[Tensor, "example ..."]:
        """Effects of values of the quantity."""
        weights = self.weights.reshape(-1, *[1] * (quantity.ndim - 1))
        return weights * self.linearization.to_effect(self.clean, quantity)

    def quantity(
        self, effects: Float[Tensor, "example coalition"]
    ) -> Float[Tensor, "example coalition"]:
        """Values of the quantity at which the curve has these effects, by bisection."""
        start = self.linearization.to_linear(self.clean).double()[:, None]
        low, high = (start.expand_as(effects) + side for side in (-WIDEST, WIDEST))
        rises = (self.effects(high) >= self.effects(low)).any(1, keepdim=True)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_above = (self.effects(middle) > effects) == rises
            low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
        return (low + high) / 2

    def changes(self, effects: Float[Tensor, "set example"]) -> Float[Tensor, "set example"]:
        """Changes of the quantity behind effects, with their signs and times the weights."""
        start = self.linearization.to_linear(self.clean).double()
        sizes = (self.quantity(effects.T).T - start).abs()
        return torch.where(effects == 0, 0.0, sizes * effects.sign() * self.weights)

    def steepness(
        self, quantity: Float[Tensor, "example coalition"]
    ) -> Float[Tensor, "example coalition"]:
        """Derivative of the effect by the quantity."""
        with torch.enable_grad():
            leaf = quantity.detach().requires_grad_(True)
            return torch.autograd.grad(self.effects(leaf).sum(), leaf)[0].nan_to_num()
