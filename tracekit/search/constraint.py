"""Constraints: sets that change another metric by no more than a bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.options import check_fields, check_keywords, short_repr
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices, members_of_mask
from tracekit.components.members import ComponentsLike
from tracekit.data.prompts import PromptPairs
from tracekit.engine.batch import to_device
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.engine.gradients import FirstOrderPrediction, GradientWeight
from tracekit.engine.set_effects import SetRecorder
from tracekit.errors import ConfigError, NothingFoundError
from tracekit.metrics import Effects, Metric, MetricFunction, resolve_metric
from tracekit.search.objectives import Objective, PositiveNumber, named_metric
from tracekit.search.targets import ConstraintEffect, DrawEngines, Sets, SomeExamples, Target

SCORE_OUTSIDE = -1e9
"""Score of a measured set that lies just outside the bound: below that of any other."""


@check_keywords
@dataclass(frozen=True, kw_only=True, eq=False)
class Constraint:
    """A metric that a search has to leave within bounds."""

    pairs: PromptPairs | None = None
    """Examples on which it is measured, e.g. neutral text; None: those that are traced."""
    metric: str | Metric | MetricFunction = "kl"
    """Metric that is measured on them."""
    at_most: PositiveNumber
    """Bound on the absolute value of its mean effect, in units of the metric."""

    def __post_init__(self) -> None:
        check_fields(self, "at_most")
        if self.pairs is not None and not isinstance(self.pairs, PromptPairs):
            raise ConfigError(
                f"The pairs of the constraint are {short_repr(self.pairs)}. Give PromptPairs."
            )
        resolve_metric(self.metric)

    def describe(self, traced: PromptPairs) -> str:
        """The constraint in a phrase."""
        pairs = traced if self.pairs is None else self.pairs
        return f"{resolve_metric(self.metric).name} on {pairs.name} at most {self.at_most!r}"


class BoundedTarget(Target):
    """Another target, for sets whose mean effect k on a second metric stays within a bound b.

    A measured set within the bound keeps its score. Any other set has -10^9 (1 + (|k| - b) / b),
    which is below all scores of sets within the bound. The scores of a soft mask with |k| > b are
    reduced by |F| (|k| - b) / b, where F is the mean score of all components.
    """

    is_plain = False
    ranks_by_effect = False

    def __init__(
        self,
        target: Target,
        constraint: Constraint,
        measures: Engine,
        record: SetRecorder | None = None,
    ) -> None:
        """Bounds a target, which has no `record` of its own.

        `measures` has the effects on the constrained metric, for the same components. `record` is
        called with the scores of every set within the bound, on all examples.
        """
        self._inner, self._constraint, self._measures = target, constraint, measures
        self._within = record
        self.engine, self.sign = target.engine, target.sign
        self.faithful, self.ranking_sign = target.faithful, target.ranking_sign
        self._scale = target.full_effects.mean().abs().item() or 1.0
        self._steps = count()
        metric = target.metric
        # The fingerprint is that of the pairs with their source, which a checkpoint has to match.
        keeping = f"keeping {constraint.describe(self.pairs)} ({measures.pairs.fingerprint[:12]})"
        self._metric = replace(
            named_metric(metric, f"{metric.name}, {keeping}"),
            differentiable=metric.differentiable and measures.metric.differentiable,
        )
        self._cost_before = self._work

    @property
    def full_effects(self) -> Effects:
        """Scores of all components together, within the bound or not."""
        return self._inner.full_effects

    def with_pairs(self, pairs: PromptPairs) -> BoundedTarget:
        """The same on other traced pairs, without recorders."""
        of_traced = self._constraint.pairs is None
        measures = self._measures.with_pairs(pairs) if of_traced else self._measures
        return BoundedTarget(self._inner.with_pairs(pairs), self._constraint, measures)

    @property
    def _share(self) -> float:
        """Examples of the constraint for each traced one."""
        return self._measures.n_examples / self.n_examples

    @property
    def _work(self) -> Cost:
        return self.engine.cost + self._measures.cost * self._share

    @property
    def cost(self) -> Cost:
        """Work since this target was made, in passes over the traced data set."""
        return self._work - self._cost_before

    def cost_of(self, cost: Cost) -> Cost:
        """Sets and gradients are measured on both data sets."""
        cost = self._inner.cost_of(cost)
        return cost + Cost(cost.forward_equivalents * (0.5 + 1.5 * self._share))

    def effects(self, mask: ComponentsLike) -> Float[Tensor, "*set example"]:
        """Scores of a mask or a stack of masks; those outside the bound come last."""
        return self._penalised(self._inner.effects(mask), self._measures.effects(mask))

    def set_effects(
        self, sets: Sets, label: str = "effects", *, examples: SomeExamples = None
    ) -> Float[Tensor, "set some"]:
        """Scores of sets; those whose mean constrained effect is out of bounds come last."""
        listed = [tuple(members) for members in sets]
        constrained = self._measures.set_effects(listed, f"{label}, constraint")
        scores = self._inner.set_effects(listed, label, examples=examples)
        if examples is None and self._within is not None:
            within = members_of_mask(self._excess(constrained.mean(1)) == 0)
            self._within([listed[number] for number in within], scores[list(within)])
        return self._penalised(scores, constrained)

    def scores_of(
        self, effects: Mapping[ComponentSet, Effects], better_than: Callable[[int], float]
    ) -> dict[ComponentSet, Effects]:
        """Scores of sets whose effects are known and that stay within the bound."""
        scores = self._inner.scores_of(effects, better_than)
        if not scores:
            return {}
        listed = list(scores)
        constrained = self._measures.set_effects(listed, "constraint").mean(1)
        within = members_of_mask(self._excess(constrained) == 0)
        return {listed[number]: scores[listed[number]] for number in within}

    def report(self, members: Sequence[int]) -> ConstraintEffect:
        """Effect of a set on the constrained metric."""
        return ConstraintEffect(
            metric=self._measures.metric.name,
            dataset=self._measures.pairs.name,
            dataset_fingerprint=self._measures.fingerprint,
            at_most=self._constraint.at_most,
            effect=self._constrained_effect(members),
        )

    def _constrained_effect(self, members: Sequence[int]) -> float:
        return self._measures.set_effects([tuple(members)]).mean().item()

    def _excess(self, constrained: Tensor) -> Tensor:
        """How far mean effects lie outside the bound, in units of the bound."""
        return (constrained.abs() / self._constraint.at_most - 1).clamp(min=0)

    def _penalised(
        self,
        scores: Float[Tensor, "*set example"],
        constrained: Float[Tensor, "*set constrained_example"],
    ) -> Float[Tensor, "*set example"]:
        """Scores of sets, below all others where a set leaves the bound."""
        excess = self._excess(constrained.mean(-1, keepdim=True))
        return torch.where(excess > 0, SCORE_OUTSIDE * (1 + excess), scores)

    def gradient(
        self, mask: Mask, example_weights: GradientWeight, examples: SomeExamples = None
    ) -> tuple[Effects, Mask]:
        """Scores less the penalty for soft masks, and the gradient of their weighted sum.

        With a part of the examples, as many of the constrained ones are read, in turn.
        """
        numbers = torch.arange(self.n_examples) if examples is None else examples
        penalty, penalty_gradient = self._penalty(mask, len(numbers))
        scores, gradient = self._inner.gradient(
            mask,
            lambda scores: example_weights(scores - to_device(penalty, scores.device)),
            numbers,
        )
        scores = scores - penalty.to(scores.device)
        weight = example_weights(scores).sum().to(gradient.device)
        return scores, gradient - weight * penalty_gradient

    def _penalty(self, mask: Mask, size: int) -> tuple[Float[Tensor, ""], Mask]:
        """The penalty of a soft mask and its gradient, on the next `size` constrained examples."""
        n = self._measures.n_examples
        size = min(size, n)
        read = (torch.arange(size) + next(self._steps) * size) % n
        constrained, gradient = self._measures.gradient(mask, torch.ones_like, read)
        penalty = self._scale * self._excess(constrained.mean())
        is_beyond = (penalty > 0).to(gradient.dtype)
        per_unit = self._scale / self._constraint.at_most
        return penalty, is_beyond * per_unit * constrained.mean().sign() * gradient / size

    def predict_changes(
        self, members: ComponentSet, *, examples: SomeExamples = None
    ) -> FirstOrderPrediction:
        """Predicted changes less the predicted penalty, on all constrained examples."""
        prediction = self._inner.predict_changes(members, examples=examples)
        constrained = self._measures.predict_changes(members)
        now = self._constrained_effect(members)
        is_member = from_indices(members, len(prediction.predicted_effects)).bool()

        def penalised(predicted: Mask, constrained: Mask) -> Mask:
            # A predicted effect is what a component adds by joining, or takes away by leaving.
            after = now + torch.where(is_member, -constrained, constrained)
            change = self._scale * (self._excess(after) - self._excess(torch.tensor(now)))
            return predicted - torch.where(is_member, -change, change)

        return FirstOrderPrediction(
            penalised(prediction.predicted_effects, constrained.predicted_effects),
            penalised(prediction.gradient, constrained.gradient),
        )


def make_target(
    engine: Engine,
    objective: Objective | None = None,
    constraint: tuple[Constraint, Engine] | None = None,
    *,
    sign: int = 1,
    record: SetRecorder | None = None,
    record_effects: SetRecorder | None = None,
    draw: DrawEngines | None = None,
) -> Target:
    """The target of an objective, within the bound of a constraint.

    Arguments are as in `Target`; the engine of the constraint measures its metric for the same
    components. `record` is called with sets within the bound, `record_effects` with all of them.
    """
    options: dict[str, Any] = {"sign": sign, "record_effects": record_effects, "draw": draw}
    if constraint is None:
        return Target.of(engine, objective, record=record, **options)
    return BoundedTarget(Target.of(engine, objective, **options), *constraint, record)


def nothing_within_error(constraint: Constraint, effect: float | None = None) -> NothingFoundError:
    """The error for a search without a set within the bound; `effect` is that of the nearest."""
    best = "" if effect is None else f" The least bad one changes it by {effect:.3g}."
    return NothingFoundError(
        f"No set that was tried keeps {resolve_metric(constraint.metric).name} within "
        f"{constraint.at_most:g}.{best} Allow more, or ask for fewer components."
    )
