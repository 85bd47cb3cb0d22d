"""The reward of PGB-CT: 1/(1 + effect), of the data set or example by example.

`dataset`, 1/(1 + mean l), is the paper's equation. Its gradient is that of the mean effect times
-1/(1 + L)^2 with L the mean over the whole data set; in minibatches L is estimated from the latest
effect seen of every example. `per-example`, the mean of 1/(1 + l_i), is the published code. The
mean of a ratio is carried by few examples with large effects, and it is on those that the
per-example reward is flat, so it finds clearly smaller effects where components interact.

1/(1 + l) has a pole at l = -1. Metrics that never go below -1 use it as it is, held one millionth
away from the pole (in float32 an odds ratio can underflow to exactly -1); for others it goes on
along its tangent below l = -1/2.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.engine.engine import Engine
from tracekit.engine.forward import Precision
from tracekit.errors import ConfigError, NonFiniteMetricError
from tracekit.masks import Mask
from tracekit.metrics import Effects
from tracekit.models.loading import sent

Reward = Literal["dataset", "per-example"]
Objective = Literal["dataset", "per-example", "effect"]
"""What is descended: a reward, or the effect itself with its sign turned."""

_TANGENT_AT = -0.5
_NEAREST = -1 + 1e-6


class RewardGradient:
    """Gradient of the reward, minibatch by minibatch.

    Nothing is read back from the device in a step. `check` is for the end of an epoch.
    """

    def __init__(self, engine: Engine, kind: Objective, precision: Precision = "float32") -> None:
        """Starts without any effect seen."""
        self._engine = engine
        self._kind = kind
        self._precision: Precision = precision
        if kind == "per-example":
            refuse_weights(engine)
        # The mean over a few weighted examples may be below -1.
        self._bounded = engine.metric.above_minus_one and engine.pairs.weights is None
        self._latest = torch.full((engine.n_examples,), torch.nan, device=engine.device)
        self._failed = torch.zeros((), dtype=torch.bool, device=engine.device)
        self._suspect = torch.zeros(engine.n_components, device=engine.device)

    def step(self, mask: Mask, examples: Int[Tensor, " example"]) -> Mask:
        """Gradient of the reward on some examples with respect to the mask."""
        per_example = self._kind == "per-example"
        raw = self._kind == "effect"

        def weigh(effects: Effects) -> Effects:
            slopes = self._slope(effects) if per_example else torch.ones_like(effects)
            return slopes / len(examples)

        effects, gradient = self._engine.gradient(mask, weigh, examples, precision=self._precision)
        # The mask at which a number first failed is kept, to say later what did.
        self._suspect = torch.where(self._failed, self._suspect, mask.detach())
        self._failed |= ~(torch.isfinite(effects).all() & torch.isfinite(gradient).all())
        self._latest[sent(examples, self._latest.device)] = effects
        if raw:
            return -gradient
        return gradient if per_example else gradient * self._slope(self._latest.nanmean())

    def check(self) -> None:
        """Refuses the steps so far if an effect or a gradient was not finite.

        Raises:
            NonFiniteMetricError: Names the examples.
        """
        if not self._failed:
            return
        self._engine.effects(self._suspect)
        also = "" if self._precision == "float32" else ", or precision='float32'"
        raise NonFiniteMetricError(
            f"The gradient of the metric {self._engine.metric.name!r} is not finite although its "
            f"effects are. Use a bounded metric such as probability-drop{also}."
        )

    def value(self) -> float:
        """The reward, or the effect, from the latest effect of every example seen."""
        if self._kind == "effect":
            return self._latest.nanmean().item()
        if self._kind == "dataset":
            return self._reward(self._latest.nanmean()).item()
        return self._reward(self._latest).nanmean().item()

    def _reward(self, effect: Effects | Float[Tensor, ""]) -> Tensor:
        if self._bounded:
            return 1 / (1 + effect.clamp(min=_NEAREST))
        at = torch.tensor(_TANGENT_AT)
        tangent = 1 / (1 + at) - (effect - at) / (1 + at) ** 2
        return torch.where(effect < at, tangent, 1 / (1 + effect.clamp(min=_TANGENT_AT)))

    def _slope(self, effect: Effects | Float[Tensor, ""]) -> Tensor:
        return slope(effect, self._bounded)


def refuse_weights(engine: Engine) -> None:
    """Refuses the per-example reward where examples have weights.

    Raises:
        ConfigError: They have.
    """
    if engine.pairs.weights is not None:
        raise ConfigError(
            "The per-example reward has no meaning for weighted examples. Use reward='dataset'."
        )


def slope(effect: Float[Tensor, "*example"], bounded: bool) -> Float[Tensor, "*example"]:
    """Derivative of the reward, held away from the pole.

    Args:
        effect: Effects.
        bounded: Whether none can be below -1.
    """
    return -1 / (1 + effect.clamp(min=_NEAREST if bounded else _TANGENT_AT)) ** 2
