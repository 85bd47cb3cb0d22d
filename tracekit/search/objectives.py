"""Objectives: what a search maximises over the examples, where that is not the mean effect.

The mean of an unbounded effect may be that of a few examples, and a set that was chosen for them
does little on fresh ones. A search is then given an engine that has scores in place of effects.
Their mean over the examples is the objective:

    mean            the effects themselves (the paper)
    log-odds        the change of the quantity that changes about linearly with the mask, such as
                    the log-odds of y against x for `odds-ratio` (see `metrics.Linearization`)
    trimmed-mean    the mean without the least and the greatest effects
    lower-bound     the mean less standard errors of the mean
    median          half of the examples have at least this effect; `Quantile` for other shares
    auto            the mean, by the search or by single effects alone: whichever holds better on
                    examples that had no part in the selection (see `search/cross_fit.py`)

Results report effects of the metric, whatever was maximised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.options import shortened
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices
from tracekit.data.prompts import PromptPairs
from tracekit.engine.engine import Engine, GradientWeight
from tracekit.engine.look_ahead import FirstOrderPrediction, predict_changes
from tracekit.engine.precision import Precision
from tracekit.errors import ConfigError
from tracekit.metrics import ContinuationLogProbs, Effects, Metric

ObjectiveName = Literal["mean", "log-odds", "trimmed-mean", "lower-bound", "median", "auto"]


def _check_number(name: str, value: object, low: float, high: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    if not is_number or not low < float(value) < high:  # type: ignore[arg-type]
        limits = "positive" if high == float("inf") else f"between {low:g} and {high:g}"
        raise ConfigError(f"{name} is {value!r}. It must be {limits}.")


@dataclass(frozen=True, kw_only=True)
class TrimmedMean:
    """The mean without the least and the greatest effects."""

    title: ClassVar[str] = "trimmed-mean"

    share: float = 0.1
    """Share of the examples that is left out at either end; below 0.5."""

    def __post_init__(self) -> None:
        _check_number("The share of a trimmed mean", self.share, 0.0, 0.5)

    def scores(self, effects: Float[Tensor, "*set example"]) -> Float[Tensor, "*set example"]:
        """Scores of examples, whose mean is the trimmed mean."""
        n = effects.shape[-1]
        left_out = int(self.share * n)
        order = effects.argsort(-1).argsort(-1)
        is_kept = (order >= left_out) & (order < n - left_out)
        return torch.where(is_kept, effects, 0.0) * (n / (n - 2 * left_out))


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """The mean less standard errors of the mean."""

    title: ClassVar[str] = "lower-bound"

    errors: float = 1.0
    """How many standard errors."""

    def __post_init__(self) -> None:
        _check_number("The standard errors of a lower bound", self.errors, 0.0, float("inf"))

    def scores(self, effects: Float[Tensor, "*set example"]) -> Float[Tensor, "*set example"]:
        """Scores of examples, whose mean is the lower bound."""
        n = effects.shape[-1]
        centred = effects - effects.mean(-1, keepdim=True)
        # Where all are equal, the root has no gradient.
        variance = centred.square().mean(-1, keepdim=True).clamp(min=1e-12)
        return effects - self.errors * (variance / max(1, n - 1)).sqrt()


@dataclass(frozen=True, kw_only=True)
class Quantile:
    """The effect that a share of the examples does not exceed."""

    title: ClassVar[str] = "quantile"

    level: float = 0.5
    """This share, in (0, 1); 0.5 is the median."""

    def __post_init__(self) -> None:
        _check_number("The level of a quantile", self.level, 0.0, 1.0)

    def scores(self, effects: Float[Tensor, "*set example"]) -> Float[Tensor, "*set example"]:
        """The quantile, for every example."""
        return effects.quantile(self.level, dim=-1, keepdim=True).expand_as(effects)


@dataclass(frozen=True, kw_only=True)
class LogOdds:
    """The mean change of the quantity that changes about linearly with the mask."""

    title: ClassVar[str] = "log-odds"

    def scores(self, effects: Float[Tensor, "*set example"]) -> Float[Tensor, "*set example"]:
        """As given: the metric itself is another one."""
        return effects


Objective = LogOdds | TrimmedMean | LowerBound | Quantile
_BY_NAME: dict[str, Objective | None] = {
    "mean": None,
    "log-odds": LogOdds(),
    "trimmed-mean": TrimmedMean(),
    "lower-bound": LowerBound(),
    "median": Quantile(),
    "auto": None,
}


def resolve_objective(objective: object) -> Objective | None:
    """An objective by name or as given; None is the mean effect.

    Raises:
        ConfigError: There is none of that name.
    """
    if isinstance(objective, Objective):
        return objective
    if not isinstance(objective, str) or objective not in _BY_NAME:
        raise ConfigError(
            f"Unknown objective {shortened(objective)}. Use one of "
            f"{', '.join(get_args(ObjectiveName))}, or a TrimmedMean, LowerBound or Quantile."
        )
    return _BY_NAME[objective]


def describe(objective: Objective | None) -> str:
    """What results call an objective."""
    if objective is None:
        return "mean"
    named = next((name for name, each in _BY_NAME.items() if each == objective), None)
    settings = ", ".join(f"{name} {value:g}" for name, value in vars(objective).items())
    return named or f"{objective.title}, {settings}"


class ScoringEngine(Engine):
    """What a search is given in place of an engine: scores, whose mean is the objective.

    It shares all that the traced engine has computed, and has accounts of its own.
    """

    _traced: Engine
    _objective: Objective

    def __init__(self, traced: Engine, objective: Objective) -> None:
        """Shares everything with an engine but effects and what follows from them.

        Args:
            traced: Gives the effects.
            objective: Makes scores of them.

        Raises:
            ConfigError: The metric has no log-odds.
        """
        metric = traced.metric
        if isinstance(objective, LogOdds):
            metric = log_odds_of(metric)
        vars(self).update(vars(traced))
        vars(self).pop("full_effects", None)
        # A name of its own, for checkpoints. Scores may be below the bound of effects.
        name = f"{traced.metric.name}, {describe(objective)}"
        vars(self).update(
            _metric=replace(metric, name=name, lower_bound=None),
            _traced=traced,
            _objective=objective,
            _n_forward=0,
            _n_backward=0,
        )

    def with_pairs(self, pairs: PromptPairs) -> Engine:
        """An engine on other pairs with the same objective."""
        return ScoringEngine(self._traced.with_pairs(pairs), self._objective)

    def effects(self, mask: Any) -> Float[Tensor, "*set example"]:
        """Scores of masks; see `Engine.effects`."""
        return self._objective.scores(super().effects(mask))

    def report_measured(
        self, sets: Sequence[ComponentSet], effects: Float[Tensor, "set example"]
    ) -> None:
        """Says what scores were measured; see `Engine.report_measured`."""
        super().report_measured(sets, self._objective.scores(effects))

    @property
    def examples_are_independent(self) -> bool:
        """Whether the score of an example is the same whatever other examples there are."""
        return isinstance(self._objective, LogOdds)

    def scores_of(self, effects: Float[Tensor, "*set example"]) -> Float[Tensor, "*set example"]:
        """Scores of sets with these effects."""
        return self._objective.scores(effects)

    def set_effects(
        self,
        sets: Iterable[Sequence[int]],
        label: str = "effects",
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "set example"]:
        """Scores of sets; see `Engine.set_effects`.

        Of a part of the examples, the objective is that of the part.
        """
        return self._objective.scores(super().set_effects(sets, label, examples=examples))

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
        *,
        precision: Precision = "float32",
    ) -> tuple[Effects, Mask]:
        """Scores, and the gradient of their weighted sum; see `Engine.gradient`.

        Of a part of the examples, the objective is that of the part.
        """
        if isinstance(self._objective, LogOdds):
            return super().gradient(mask, example_weights, examples, precision=precision)
        # The score of an example depends on all others, and these come a few at a time: so one
        # pass for the scores, and one for the gradient.
        numbers = torch.arange(self.n_examples) if examples is None else examples
        scores, slopes = self._scored(self.effects_of(numbers, mask), example_weights)
        weights = torch.zeros(self.n_examples, device=self.device)
        weights[numbers.to(self.device)] = slopes.to(self.device)
        batches = iter(self.batches_of(numbers))
        _, gradient = super().gradient(
            mask, lambda effects: weights[next(batches).examples], numbers, precision=precision
        )
        return scores.to(mask.device), gradient

    def examples_of_gradient(self, n_examples: int, *, is_soft: bool) -> int:
        """Examples that are run for a gradient; see `Engine.examples_of_gradient`."""
        own = super().examples_of_gradient(n_examples, is_soft=is_soft)
        return own if isinstance(self._objective, LogOdds) else own + n_examples

    def _scored(self, effects: Effects, example_weights: GradientWeight) -> tuple[Effects, Effects]:
        """Scores, and what an effect weighs in their weighted sum."""
        with torch.enable_grad():
            leaf = effects.detach().requires_grad_(True)
            scores = self._objective.scores(leaf)
            weights = example_weights(scores.detach())
            (slopes,) = torch.autograd.grad((scores * weights).sum(), leaf)
        return scores.detach(), slopes

    def predict_changes(
        self,
        members: ComponentSet,
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> FirstOrderPrediction:
        """What changing a component would bring; see `Engine.predict_changes`.

        Of a part of the examples, the objective is that of the part.
        """
        if isinstance(self._objective, LogOdds):
            return super().predict_changes(members, examples=examples)
        mask = from_indices(members, self.n_components).float()
        numbers = torch.arange(self.n_examples) if examples is None else examples
        _, slopes = self._scored(self.effects_of(numbers, mask).cpu(), torch.ones_like)
        weights = torch.zeros(self.n_examples).index_put((numbers,), slopes)
        return predict_changes(self, members, example_weights=weights, examples=examples)


def log_odds_of(metric: Metric) -> Metric:
    """A metric whose effects are changes of the quantity that another one is a curve over.

    Raises:
        ConfigError: It is no such curve.
    """
    curve = metric.linearization
    if curve is None:
        raise ConfigError(
            f"The metric {metric.name!r} has no log-odds. Search by them with odds-ratio, "
            "probability-drop or probability-ratio, or use another objective."
        )
    sign = 1 if metric.direction == "noising" else -1

    def change(clean: ContinuationLogProbs, intervened: ContinuationLogProbs) -> Effects:
        return sign * (curve.to_linear(intervened) - curve.to_linear(clean))

    return replace(metric, function=change, linearization=None)
