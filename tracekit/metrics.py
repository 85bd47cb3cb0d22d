"""Metrics: the log-probabilities of two runs -> one effect per example.

The *effect* is the change of a metric when components take their counterfactual values, against
the clean run. With P the probability of a continuation in the clean run and P_int under the
intervention:

    odds-ratio         (P_int(y) / P_int(x)) / (P(y) / P(x)) - 1
    probability-drop   P(x) - P_int(x)
    probability-ratio  P(x) / P_int(x) - 1
    logit-difference   log P_int(y) - log P_int(x) - (log P(y) - log P(x))
    accuracy           [y is the model's choice] under the intervention, less the same when clean

All are oriented alike: a larger effect is a move away from x, towards y. The probability of a
continuation of several tokens is the geometric mean of its token probabilities (the published
code) or their arithmetic mean (the paper's formula); for one token they agree, and
`logit-difference` is then the difference of two logits. Everything is computed from logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from tracekit.errors import (
    ConfigError,
    MetricShapeError,
    MetricSideEffectError,
    MissingContinuationError,
    NonFiniteMetricError,
    UnknownMetricError,
)

Effects = Float[Tensor, " example"]
ContinuationMean = Literal["geometric", "arithmetic"]
Direction = Literal["noising", "denoising"]
"""`noising`: counterfactual values into the clean run; `denoising`: clean values into the
counterfactual run."""


@dataclass(frozen=True, eq=False)
class ContinuationLogProbs:
    """Log-probabilities of the continuations of each example in one run, clean or intervened."""

    x: Float[Tensor, " example"]
    """log P(x) of the target continuation, in nats; at most 0."""
    y: Float[Tensor, " example"] | None = None
    """log P(y) of the foil continuation; None unless every example has a y."""
    x_is_argmax: Bool[Tensor, " example"] | None = None
    """Whether every token of x is the model's first choice; None if the metric's `needs_argmax`
    is off."""
    y_is_argmax: Bool[Tensor, " example"] | None = None
    """Whether every token of y is."""

    def require_y(self) -> Float[Tensor, " example"]:
        """The log-probability of y, in nats.

        Raises:
            MissingContinuationError: Some example has no y.
        """
        if self.y is None:
            raise MissingContinuationError(_NO_Y.format(metric="This metric"))
        return self.y


def _versions(log_probs: ContinuationLogProbs) -> list[int]:
    """How often each tensor was changed in place."""
    tensors = [value for value in vars(log_probs).values() if value is not None]
    return [0 if value.is_inference() else value._version for value in tensors]


MetricFunction = Callable[[ContinuationLogProbs, ContinuationLogProbs], Effects]
"""Takes the log-probabilities of the clean and the intervened run, gives one effect per example."""

_NO_Y = (
    "{metric} compares x with y, and not every example has a y. "
    "Give every example a continuation y, or use probability-drop or probability-ratio."
)


@dataclass(frozen=True)
class Linearization:
    """A metric as a known curve over a quantity that changes about linearly with the mask.

    Linearising the metric itself fails where the model is certain (its gradient vanishes) and
    underestimates large changes of the odds. We linearise the log-odds and apply the exact map to
    the effect.
    """

    to_linear: Callable[[ContinuationLogProbs], Float[Tensor, " example"]]
    """The quantity, from the log-probabilities of the intervened run."""
    to_effect: Callable[[ContinuationLogProbs, Tensor], Tensor]
    """Effects from the log-probabilities of the clean run and values of the quantity, whose first
    axis is the example."""
    to_restored: Callable[[ContinuationLogProbs, Tensor], Tensor] | None = None
    """The same when clean values are put back: `to_effect` with the two runs exchanged. None: not
    known, and the effect itself is taken to be linear."""


@dataclass(frozen=True)
class Metric:
    """A named metric. Any callable of the form `MetricFunction` can be made one with `resolve`."""

    name: str
    function: MetricFunction
    needs_y: bool = True
    """Whether it reads `y`."""
    differentiable: bool = True
    """Whether gradients reach the intervened log-probabilities."""
    needs_argmax: bool = False
    """Whether it reads `x_is_argmax` or `y_is_argmax`."""
    lower_bound: float | None = None
    """Effect that none can be below; at -1 or above the reward 1/(1 + effect) has no pole. None:
    unbounded."""
    axis_label: str = "effect"
    """Axis title in figures, with the unit."""
    linearization: Linearization | None = None
    """How to look ahead from a gradient; None: the effect itself is taken to be linear."""
    direction: Direction = "noising"
    """Whether effects are of counterfactual values put in, or of clean values put back."""

    def denoising(self) -> Metric:
        """The metric of clean values that are put back into the counterfactual run.

        Its first argument is the run that is started from, the counterfactual one. With m the
        metric, the effect is m(restored, counterfactual): how much of the way back from the
        counterfactual to the clean run one comes. If all of the clean run is restored, it is the
        effect of the whole counterfactual run against the clean one.
        """
        if self.direction == "denoising":
            return self
        function, curve = self.function, self.linearization
        restored = None if curve is None else curve.to_restored
        return replace(
            self,
            function=lambda base, restored: function(restored, base),
            linearization=None
            if curve is None or restored is None
            else Linearization(curve.to_linear, restored, curve.to_effect),
            direction="denoising",
            axis_label=self.axis_label.replace("effect", "restored effect", 1),
        )

    def __call__(self, clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
        """One effect per example.

        Raises:
            MetricShapeError: The function returned something else.
            MetricSideEffectError: It changed what it was given.
        """
        versions = _versions(clean), _versions(intervened)
        effects = self.function(clean, intervened)
        if (_versions(clean), _versions(intervened)) != versions:
            raise MetricSideEffectError(
                f"The metric {self.name!r} changes the log-probabilities that it is given, which "
                "are used again. Compute with new tensors, without operations such as mul_()."
            )
        if not isinstance(effects, Tensor) or effects.shape != clean.x.shape:
            got = tuple(effects.shape) if isinstance(effects, Tensor) else type(effects).__name__
            raise MetricShapeError(
                f"The metric {self.name!r} returned {got}. "
                f"It must return a tensor of shape {tuple(clean.x.shape)}: one effect per example."
            )
        return effects if effects.is_floating_point() else effects.float()


def odds_ratio(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Relative change of the odds of y against x; at least -1."""
    before = clean.require_y() - clean.x
    after = intervened.require_y() - intervened.x
    return torch.expm1(after - before)


def probability_drop(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Drop of the probability of x; in [-1, 1]."""
    return clean.x.exp() - intervened.x.exp()


def probability_ratio(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Factor by which x became less probable, less 1; at least -1."""
    return torch.expm1(clean.x - intervened.x)


def logit_difference(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Change of log P(y) - log P(x), in nats; unbounded."""
    return (intervened.require_y() - intervened.x) - (clean.require_y() - clean.x)


def accuracy(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
    """Change of the indicator that the model's first choice is y; -1, 0 or 1, no gradient."""
    if clean.y_is_argmax is None or intervened.y_is_argmax is None:
        raise MissingContinuationError(_NO_Y.format(metric="The metric 'accuracy'"))
    return intervened.y_is_argmax.float() - clean.y_is_argmax.float()


def _log_odds(log_probs: ContinuationLogProbs) -> Tensor:
    return log_probs.require_y() - log_probs.x


def _log_odds_against_x(log_probs: ContinuationLogProbs) -> Tensor:
    """Log-odds against x: log (1 - P(x)) - log P(x)."""
    # At P(x) = 1 the logarithm would be infinite, and its gradient not a number.
    return torch.log(-torch.expm1(log_probs.x.clamp(max=_CERTAIN))) - log_probs.x


def _like(clean: Tensor, values: Tensor) -> Tensor:
    """One value per example, shaped to broadcast against several."""
    return clean.reshape(-1, *[1] * (values.ndim - 1))


_CERTAIN = -1e-7
_ODDS = Linearization(
    _log_odds,
    lambda clean, u: torch.expm1(u - _like(_log_odds(clean), u)),
    lambda base, u: torch.expm1(_like(_log_odds(base), u) - u),
)
_DROP = Linearization(
    _log_odds_against_x,
    lambda clean, u: _like(clean.x.exp(), u) - torch.sigmoid(-u),
    lambda base, u: torch.sigmoid(-u) - _like(base.x.exp(), u),
)
_RATIO = Linearization(
    _log_odds_against_x,
    lambda clean, u: torch.expm1(_like(clean.x, u) + functional.softplus(u)),
    lambda base, u: torch.expm1(-functional.softplus(u) - _like(base.x, u)),
)

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "odds-ratio",
            odds_ratio,
            lower_bound=-1.0,
            axis_label="effect (odds ratio \u2212 1)",
            linearization=_ODDS,
        ),
        Metric(
            "probability-drop",
            probability_drop,
            needs_y=False,
            lower_bound=-1.0,
            axis_label="effect (drop of P(x))",
            linearization=_DROP,
        ),
        Metric(
            "probability-ratio",
            probability_ratio,
            needs_y=False,
            lower_bound=-1.0,
            axis_label="effect (probability ratio \u2212 1)",
            linearization=_RATIO,
        ),
        Metric("logit-difference", logit_difference, axis_label="effect (logit difference, nats)"),
        Metric(
            "accuracy",
            accuracy,
            differentiable=False,
            needs_argmax=True,
            axis_label="effect (change of accuracy)",
        ),
    )
}


def resolve(metric: str | Metric | MetricFunction) -> Metric:
    """A metric by name, as given, or from a callable of clean and intervened log-probabilities.

    Raises:
        UnknownMetricError: No metric of that name.
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        if metric not in METRICS:
            raise UnknownMetricError(metric, METRICS)
        return METRICS[metric]
    name = getattr(metric, "__name__", type(metric).__name__)
    return Metric(name, metric, needs_y=False, needs_argmax=True, axis_label=f"effect ({name})")


def continuation_log_prob(
    token_log_probs: Float[Tensor, "*batch token"],
    valid: Bool[Tensor, "*batch token"],
    mean: ContinuationMean,
) -> Float[Tensor, "*batch"]:
    """Log-probability of continuations from the log-probabilities of their tokens.

    Args:
        token_log_probs: In nats; entries that are not valid may hold anything finite.
        valid: Which tokens exist; a continuation without any gets 0.
        mean: `geometric` or `arithmetic` mean of the token probabilities.

    Raises:
        ConfigError: Another mean.
    """
    lengths = valid.sum(-1).clamp(min=1)
    if mean == "geometric":
        return torch.where(valid, token_log_probs, 0.0).sum(-1) / lengths
    if mean == "arithmetic":
        missing = ~valid.any(-1, keepdim=True)
        logs = torch.where(valid, token_log_probs, -torch.inf)
        # A row of -inf would have a NaN gradient.
        logs = torch.where(missing, 0.0, logs)
        return torch.where(missing[..., 0], 0.0, logs.logsumexp(-1) - lengths.log())
    raise ConfigError(f"Unknown mean {mean!r}. Use 'geometric' or 'arithmetic'.")


def check_finite(effects: Effects, metric: Metric, describe: Callable[[int], str]) -> None:
    """Refuses NaN and infinity.

    Args:
        effects: One per example.
        metric: For its name.
        describe: Example number -> its prompt.

    Raises:
        NonFiniteMetricError: Names the first offending examples.
    """
    bad = (~torch.isfinite(effects)).nonzero()[:, 0].tolist()
    if bad:
        named = "; ".join(f"example {i} ({describe(i)}): {effects[i].item():g}" for i in bad[:5])
        more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise NonFiniteMetricError(
            f"The metric {metric.name!r} is not finite on {len(bad)} of {len(effects)} examples: "
            f"{named}{more}. Leave them out, or use a bounded metric such as probability-drop."
        )
