"""Objectives of mask training: the reward 1/(1 + effect), or the effect itself.

`dataset`, 1/(1 + mean l), is the paper's equation. Its gradient is that of the mean effect times
-1/(1 + L)^2 with L the mean over the whole data set; in minibatches L is estimated from the latest
effect seen of every example. `per-example`, the mean of 1/(1 + l_i), is the published code; it is
flat on examples with large effects. `effect`, the mean effect with its sign turned, is DCM's.

1/(1 + l) has a pole at l = -1. Metrics that never go below -1 use it as it is, one millionth away
from the pole at least; for others it goes on along its tangent below l = -1/2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import assert_never

from tracekit.components.masks import Mask
from tracekit.engine.batch import to_device
from tracekit.errors import ConfigError, NonFiniteMetricError
from tracekit.metrics import Effects
from tracekit.search.targets import Target

Reward = Literal["dataset", "per-example"]
LossName = Literal["dataset", "per-example", "effect"]

_TANGENT_AT = -0.5
_NEAREST = -1 + 1e-6


class TrainingLoss(NamedTuple):
    """Something to be lowered: a function of the effects of all examples."""

    example_weights: Callable[[Effects], Effects]
    """Weight of each example's gradient; the weighted mean of gradients is scaled next."""
    scale: Callable[[Float[Tensor, ""]], Float[Tensor, ""]]
    """Factor of that mean, from the mean effect of the whole data set."""
    value: Callable[[Effects], Float[Tensor, ""]]
    """Value in the history; effects of examples not seen yet are NaN."""


def make_loss(name: LossName, target: Target) -> TrainingLoss:
    """An objective by name."""
    if name == "effect":
        return TrainingLoss(torch.ones_like, lambda mean: -torch.ones_like(mean), torch.nanmean)
    lowest, is_weighted = target.metric.lower_bound, target.pairs.weights is not None
    has_pole = lowest is None or lowest < -1
    if name == "per-example":
        if is_weighted:
            raise ConfigError(
                "The per-example reward has no meaning for weighted examples. Use reward='dataset'."
            )
        return TrainingLoss(
            example_weights=lambda effects: reward_derivative(effects, has_pole),
            scale=torch.ones_like,
            value=lambda effects: _reward(effects, has_pole).nanmean(),
        )
    if name != "dataset":
        assert_never(name)
    # The mean over a few weighted examples may be below -1.
    has_pole = has_pole or is_weighted
    return TrainingLoss(
        example_weights=torch.ones_like,
        scale=lambda mean: reward_derivative(mean, has_pole),
        value=lambda effects: _reward(effects.nanmean(), has_pole),
    )


class LossGradient:
    """Gradient of an objective, minibatch by minibatch; only `check` waits for the device."""

    def __init__(self, target: Target, loss: TrainingLoss) -> None:
        """Starts without any effect seen."""
        self._target, self._loss, device = target, loss, target.engine.device
        self._latest = torch.full((target.n_examples,), torch.nan, device=device)
        self._failed = torch.zeros((), dtype=torch.bool, device=device)
        self._suspect = torch.zeros(target.n_components, device=device)

    def step(self, mask: Mask, examples: Int[Tensor, " example"]) -> Mask:
        """Gradient of the objective on some examples with respect to the mask."""

        def example_weights(effects: Effects) -> Effects:
            return self._loss.example_weights(effects) / len(examples)

        effects, gradient = self._target.gradient(mask, example_weights, examples)
        # The mask at which a number first failed is kept, to name the examples later.
        self._suspect = torch.where(self._failed, self._suspect, mask.detach())
        self._failed |= ~(torch.isfinite(effects).all() & torch.isfinite(gradient).all())
        self._latest[to_device(examples, self._latest.device)] = effects
        return gradient * self._loss.scale(self._latest.nanmean())

    def check(self) -> None:
        """Refuses the steps so far if an effect or a gradient was not finite."""
        if not self._failed:
            return
        self._target.effects(self._suspect)
        raise NonFiniteMetricError(
            f"The gradient of the metric {self._target.metric.name!r} is not finite although its "
            "effects are. Use a bounded metric such as probability-drop."
        )

    def value(self) -> float:
        """The objective, from the latest effect of every example seen."""
        return self._loss.value(self._latest).item()


def reward_derivative(
    effect: Float[Tensor, "*example"], has_pole: bool
) -> Float[Tensor, "*example"]:
    """Derivative of the reward by the effect; that of the tangent if effects reach the pole."""
    return -1 / (1 + effect.clamp(min=_TANGENT_AT if has_pole else _NEAREST)) ** 2


def _reward(effect: Float[Tensor, "*example"], has_pole: bool) -> Float[Tensor, "*example"]:
    if not has_pole:
        return 1 / (1 + effect.clamp(min=_NEAREST))
    at = torch.tensor(_TANGENT_AT)
    tangent = 1 / (1 + at) - (effect - at) / (1 + at) ** 2
    return torch.where(effect < at, tangent, 1 / (1 + effect.clamp(min=_TANGENT_AT)))
