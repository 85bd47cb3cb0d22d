"""Objectives: what a search maximises over the examples, where that is not the mean effect.

The mean of an unbounded effect may be that of a few examples, and a set that was chosen for them
does little on fresh ones. `auto` is the mean, by the search or by single effects alone, whichever
holds better on other examples (`auto.py`); each other objective has a class here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isinf
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from tracekit._util.names import ObjectiveName, choices_text
from tracekit._util.options import Share, ValidatedFields, short_repr
from tracekit.errors import ConfigError
from tracekit.metrics import ContinuationLogProbs, Effects, Metric

PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A finite number above 0."""


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(ValidatedFields):
    """The mean without the least and the greatest effects."""

    title: ClassVar[str] = "trimmed-mean"
    share: Annotated[float, Field(gt=0, lt=0.5)] = 0.1
    """Share of the examples that is left out at either end; below 0.5."""

    def scores(self, effects: Float[Tensor, "*set example"]) -> Float[Tensor, "*set example"]:
        """Scores of examples, whose mean is the trimmed mean."""
        n = effects.shape[-1]
        left_out = int(self.share * n)
        order = effects.argsort(-1).argsort(-1)
        is_kept = (order >= left_out) & (order < n - left_out)
        return torch.where(is_kept, effects, 0.0) * (n / (n - 2 * left_out))


@dataclass(frozen=True, kw_only=True)
class LowerBound(ValidatedFields):
    """The mean less standard errors of the mean."""

    title: ClassVar[str] = "lower-bound"
    errors: PositiveNumber = 1.0
    """How many standard errors."""

    def scores(self, effects: Float[Tensor, "*set example"]) -> Float[Tensor, "*set example"]:
        """Scores of examples, whose mean is the lower bound."""
        n = effects.shape[-1]
        centred = effects - effects.mean(-1, keepdim=True)
        # Where all are equal, the root has no gradient.
        variance = centred.square().mean(-1, keepdim=True).clamp(min=1e-12)
        return effects - self.errors * (variance / max(1, n - 1)).sqrt()


@dataclass(frozen=True, kw_only=True)
class Quantile(ValidatedFields):
    """The effect that a share of the examples does not exceed."""

    title: ClassVar[str] = "quantile"
    level: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """This share, in (0, 1); 0.5 is the median."""

    def scores(self, effects: Float[Tensor, "*set example"]) -> Float[Tensor, "*set example"]:
        """The quantile, for every example."""
        return effects.quantile(self.level, dim=-1, keepdim=True).expand_as(effects)


@dataclass(frozen=True, kw_only=True)
class LogOdds:
    """The mean change of the quantity that changes about linearly with the mask."""

    title: ClassVar[str] = "log-odds"


@dataclass(frozen=True, kw_only=True)
class Faithful(ValidatedFields):
    """How close a set comes to doing what all components do, and its complement to doing nothing.

    With f the effect of the set on an example, g that of its complement (all other components), F
    that of all components, and w the weight of the complement, the score of the example is

        |F| - (1 - w) |F - f| - w |g|

    0 for no component and |F| for all of them. In noising, the mean of g decides the faithfulness
    of the MIB benchmark, and that of f the completeness (`results/faithfulness.py`); in denoising
    it is the other way round. F needs the sign that is sought, but where w = 0.
    """

    title: ClassVar[str] = "faithful"
    complement: Share = 0.5
    """Weight w of the complement, in [0, 1]."""

    def scores(
        self,
        own: Float[Tensor, "*some"],
        others: Float[Tensor, "*some"],
        full: Float[Tensor, "*all"],
    ) -> Float[Tensor, "*some"]:
        """Scores from the effects of sets, of their complements and of all components."""
        w = self.complement
        return full.abs() - (1 - w) * (full - own).abs() - w * others.abs()


ExampleScores = TrimmedMean | LowerBound | Quantile
"""Objectives that make scores of effects, example by example."""
Objective = LogOdds | ExampleScores | Faithful
_BY_NAME: dict[str, Objective | None] = {
    "mean": None,
    "log-odds": LogOdds(),
    "trimmed-mean": TrimmedMean(),
    "lower-bound": LowerBound(),
    "median": Quantile(),
    "faithful": Faithful(),
    "auto": None,
}


def resolve_objective(objective: object) -> Objective | None:
    """An objective by name or as given; None is the mean effect."""
    if isinstance(objective, Objective):
        return objective
    if not isinstance(objective, str) or objective not in _BY_NAME:
        raise ConfigError(
            f"Unknown objective {short_repr(objective)}. Use one of {choices_text(ObjectiveName)}, "
            "or a TrimmedMean, LowerBound, Quantile or Faithful."
        )
    return _BY_NAME[objective]


def describe_objective(objective: Objective | None) -> str:
    """Name of an objective in results."""
    if objective is None:
        return "mean"
    named = next((name for name, each in _BY_NAME.items() if each == objective), None)
    settings = ", ".join(f"{name} {value:g}" for name, value in vars(objective).items())
    return named or f"{objective.title}, {settings}"


def log_odds_of(metric: Metric) -> Metric:
    """A metric whose effects are changes of the quantity that another one is a curve over."""
    curve = metric.linearization
    if curve is None:
        raise ConfigError(
            f"The metric {metric.name!r} has no log-odds. Search by them with "
            f"{'odds-ratio' if metric.needs_y else 'probability-drop'}, or use another objective, "
            "e.g. 'median'."
        )
    sign = 1 if metric.direction == "noising" else -1

    def change(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
        return sign * (curve.to_linear(intervened) - curve.to_linear(clean))

    return replace(metric, function=change, linearization=None)


def opposite_of(metric: Metric) -> Metric:
    """The metric whose effects have the other sign."""

    def opposite(effects: Any) -> Any:
        return None if effects is None else lambda *given: -effects(*given)

    curve, (low, high, _) = metric.linearization, metric.bounds
    if curve is not None:
        to_effect, to_restored = opposite(curve.to_effect), opposite(curve.to_restored)
        curve = replace(curve, to_effect=to_effect, to_restored=to_restored)
    return replace(
        metric,
        name=f"{metric.name}, negative",
        function=opposite(metric.function),
        lower_bound=None if isinf(high) else -high,
        upper_bound=None if isinf(low) else -low,
        linearization=curve,
    )


def score_metric(metric: Metric, objective: Objective | None, sign: int) -> Metric:
    """The metric that scores are made of, with their name: the given one, or made from it."""
    scored = log_odds_of(metric) if isinstance(objective, LogOdds) else metric
    scored = opposite_of(scored) if sign < 0 else scored
    if objective is None:
        return scored
    name = metric.name + (", negative" if sign < 0 else "")
    return named_metric(scored, f"{name}, {describe_objective(objective)}")


def named_metric(metric: Metric, name: str) -> Metric:
    """A metric with a name of its own, for checkpoints. Scores may be beyond its bounds."""
    return replace(metric, name=name, lower_bound=None, upper_bound=None, counts=False)
