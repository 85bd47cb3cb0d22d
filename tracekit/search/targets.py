"""Targets: what a search maximises.

A search measures sets and takes gradients through a target, and knows nothing else of what is
asked. Targets are, by composition,

    an engine             the mean effect (the paper); with the metric `log_odds_of`, its log-odds
    a `ScoredTarget`      scores in place of effects, whose mean is an objective (`objectives.py`)
    a `FaithfulTarget`    scores of a set and its complement (`faithful.py`)
    a `ConstrainedTarget` effects or scores within the bounds of a `Constraint`

A constraint keeps another metric within bounds, with k its mean effect, b the bound and F the
effect of all components:

    measured sets    a set with |k| > b has an effect of -10^9 (1 + (|k| - b) / b), so that none
                     within the bounds is worse; one within them has its own numbers
    soft masks       lose |F| (|k| - b) / b beyond the bounds, with its gradient

Sets are still proposed by predictions, and chosen by what is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import isfinite
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.options import shortened
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices
from tracekit.data.prompts import PromptPairs
from tracekit.engine.cost import Cost
from tracekit.engine.engine import DataView, Engine
from tracekit.engine.gradients import (
    FirstOrderPrediction,
    GradientWeight,
    Precision,
    predict_changes,
)
from tracekit.engine.prepared import PreparedData
from tracekit.engine.set_effects import Recorder
from tracekit.errors import ConfigError, NothingFoundError
from tracekit.metrics import Effects, Metric, MetricFunction, resolve
from tracekit.search.faithful import FaithfulTarget, require_full_effect
from tracekit.search.objectives import (
    Decrease,
    ExampleScores,
    Faithful,
    LogOdds,
    Objective,
    decrease_of,
    describe,
    log_odds_of,
    named_metric,
)

Record = Mapping[str, Any]
"""Record of one step of a search."""
_OUTSIDE = -1e9
"""Effect of a measured set that lies just outside the bounds: below that of any other."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Constraint:
    """A metric that a search has to leave within bounds."""

    pairs: PromptPairs | None = None
    """Examples on which it is measured, e.g. neutral text; None: those that are traced."""
    metric: str | Metric | MetricFunction = "kl"
    """Metric that is measured on them."""
    at_most: float
    """Bound on the absolute value of its mean effect, in units of the metric."""

    def __post_init__(self) -> None:
        is_number = isinstance(self.at_most, (int, float)) and isfinite(self.at_most)
        if not is_number or self.at_most <= 0:
            raise ConfigError(f"at_most is {self.at_most!r}. It must be positive.")
        if self.pairs is not None and not isinstance(self.pairs, PromptPairs):
            raise ConfigError(
                f"The pairs of the constraint are {shortened(self.pairs)}. Give PromptPairs."
            )
        resolve(self.metric)

    def describe(self, traced: PromptPairs) -> str:
        """The constraint in a phrase."""
        pairs = traced if self.pairs is None else self.pairs
        return f"{resolve(self.metric).name} on {pairs.name} at most {self.at_most!r}"


@dataclass(frozen=True, kw_only=True)
class ConstraintEffect:
    """A constraint, and the effect of a set on its metric."""

    metric: str
    dataset: str
    dataset_fingerprint: str
    at_most: float
    """Bound on the absolute value of the effect."""
    effect: float

    @property
    def is_within(self) -> bool:
        """Whether the set stays within the bound."""
        return abs(self.effect) <= self.at_most


def nothing_within(constraint: Constraint, effect: float | None = None) -> NothingFoundError:
    """The error for a search that found no set within the bounds.

    `effect` is that of the least bad set on the constrained metric, if that was measured.
    """
    best = "" if effect is None else f" The least bad one changes it by {effect:.3g}."
    return NothingFoundError(
        f"No set that was tried keeps {resolve(constraint.metric).name} within "
        f"{constraint.at_most:g}.{best} Allow more, or ask for fewer components."
    )


def measured_history(history: tuple[Record, ...]) -> tuple[Record, ...]:
    """Records of a search, without sets outside the bounds: these have no effects."""
    return tuple(record for record in history if record.get("effect", 0.0) > _OUTSIDE / 2)


class ScoredTarget(DataView):
    """Scores in place of effects; each depends on all examples. It has accounts of its own."""

    def __init__(
        self, engine: Engine, objective: ExampleScores, record: Recorder | None = None
    ) -> None:
        """Measures nothing yet; `record` is told of the scores of measured sets."""
        name = f"{engine.metric.name}, {describe(objective)}"

        def record_scores(sets: Sequence[ComponentSet], effects: Tensor) -> None:
            if record is not None:
                record(sets, objective.scores(effects))

        scored = engine.sharing(metric=named_metric(engine.metric, name), record=record_scores)
        self._given, self._engine, self._objective = engine, scored, objective
        self.data: PreparedData = scored.data

    def with_pairs(self, pairs: PromptPairs) -> ScoredTarget:
        """The same objective on other pairs."""
        return ScoredTarget(self._given.with_pairs(pairs), self._objective)

    @cached_property
    def full_effects(self) -> Effects:
        """Scores of all components together."""
        return self._objective.scores(self._engine.full_effects)

    def cost_of(self, cost: Cost) -> Cost:
        """Slopes of the objective need effects before each gradient."""
        return cost + Cost(cost.backward)

    def effects(self, mask: Any) -> Float[Tensor, "*set example"]:
        """Scores of masks."""
        return self._objective.scores(self._engine.effects(mask))

    def set_effects(
        self,
        sets: Iterable[Sequence[int]],
        label: str = "effects",
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "set some"]:
        """Scores of sets."""
        return self._objective.scores(self._engine.set_effects(sets, label, examples=examples))

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
        *,
        precision: Precision = "float32",
    ) -> tuple[Effects, Mask]:
        """Scores, and the gradient of their weighted sum."""
        # The score of an example depends on all others, and these come a few at a time: so one
        # pass for the scores, and one for the gradient.
        numbers = torch.arange(self.n_examples) if examples is None else examples
        scores, weights = self._slopes(mask, example_weights, numbers)
        weights = weights.to(self.device)
        batches = iter(self.data.batches_of(numbers))
        _, gradient = self._engine.gradient(
            mask, lambda effects: weights[next(batches).examples], numbers, precision=precision
        )
        return scores.to(mask.device), gradient

    def predict_changes(
        self, members: ComponentSet, *, examples: Int[Tensor, " some"] | None = None
    ) -> FirstOrderPrediction:
        """Change of the mean score from changing a component."""
        mask = from_indices(members, self.n_components).float()
        numbers = torch.arange(self.n_examples) if examples is None else examples
        _, weights = self._slopes(mask, torch.ones_like, numbers)
        return predict_changes(self.data, members, example_weights=weights, examples=examples)

    def _slopes(
        self, mask: Mask, example_weights: GradientWeight, numbers: Int[Tensor, " some"]
    ) -> tuple[Float[Tensor, " some"], Effects]:
        """Scores of some examples, and what each effect weighs in their weighted sum.

        The weights are of all examples, 0 for the others.
        """
        effects = self._engine.effects(mask, numbers)
        scores, slopes = slopes_of_scores(self._objective, effects, example_weights)
        return scores, torch.zeros(self.n_examples).index_put((numbers,), slopes)


def slopes_of_scores(
    objective: ExampleScores, effects: Effects, example_weights: GradientWeight
) -> tuple[Effects, Effects]:
    """Scores of examples with these effects, and what an effect weighs in their weighted sum."""
    with torch.enable_grad():
        leaf = effects.detach().requires_grad_(True)
        scores = objective.scores(leaf)
        weights = example_weights(scores.detach())
        (slopes,) = torch.autograd.grad((scores * weights).sum(), leaf)
    return scores.detach(), slopes


class ConstrainedTarget(DataView):
    """Another target's effects; sets that leave the bounds of a constraint come last."""

    def __init__(
        self,
        target: Engine | ScoredTarget | FaithfulTarget,
        measures: Engine,
        constraint: Constraint,
        record: Recorder | None = None,
    ) -> None:
        """Measures nothing yet.

        `measures` gives the effects by the constrained metric, for the same components; `record` is
        told of measured sets within the bounds.
        """
        pairs = measures.pairs
        bound = f"keeping {constraint.describe(target.pairs)} ({pairs.fingerprint[:12]})"
        metric = named_metric(target.metric, f"{target.metric.name}, {bound}")
        is_smooth = metric.differentiable and measures.metric.differentiable
        self._metric = replace(metric, differentiable=is_smooth)
        self._inner, self._measures, self._constraint = target, measures, constraint
        self.data: PreparedData = target.data
        self._record = record
        self._scale = target.full_effects.mean().abs().item() or 1.0
        self._before, self._steps = self._work(), count()

    @property
    def metric(self) -> Metric:
        """The maximised score, named with its bounds."""
        return self._metric

    def _work(self) -> Cost:
        """Work on both data sets so far, in passes over the traced one."""
        return self._inner.cost + self._measures.cost * (
            self._measures.n_examples / self._inner.n_examples
        )

    @property
    def cost(self) -> Cost:
        """Work since this target was made, in passes over the traced data set."""
        return self._work() - self._before

    def cost_of(self, cost: Cost) -> Cost:
        """A set is measured on both data sets, and a gradient is taken on both, too."""
        own = cost_of(self._inner, cost)
        share = self._measures.n_examples / self.n_examples
        return own + Cost(own.forward_equivalents * (0.5 + 1.5 * share))

    @cached_property
    def full_effects(self) -> Effects:
        """Effects of all components together."""
        return self._inner.full_effects

    def with_pairs(self, pairs: PromptPairs) -> ConstrainedTarget:
        """This objective on other pairs; the constraint too, if it is on the traced ones."""
        measures = self._measures
        if self._constraint.pairs is None:
            measures = measures.with_pairs(pairs)
        return ConstrainedTarget(self._inner.with_pairs(pairs), measures, self._constraint)

    def report(self, members: Sequence[int]) -> ConstraintEffect:
        """Effect of a set on the constrained metric."""
        return ConstraintEffect(
            metric=self._measures.metric.name,
            dataset=self._measures.pairs.name,
            dataset_fingerprint=self._measures.pairs.fingerprint,
            at_most=self._constraint.at_most,
            effect=self.constrained_effect(members),
        )

    def constrained_effect(self, members: Sequence[int]) -> float:
        """Mean effect of a set by the constrained metric."""
        return self._measures.set_effects([tuple(members)]).mean().item()

    def effects(self, mask: Any) -> Float[Tensor, "*set example"]:
        """Effects of masks, those outside the bounds last."""
        return self._ranked(self._inner.effects(mask), self._measures.effects(mask))

    def set_effects(
        self,
        sets: Iterable[Sequence[int]],
        label: str = "effects",
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "set some"]:
        """Effects of sets, those last that are outside the bounds on all constrained examples."""
        listed = [tuple(members) for members in sets]
        constrained = self._measures.set_effects(listed, f"{label}, constraint")
        effects = self._inner.set_effects(listed, label, examples=examples)
        if examples is None and self._record is not None:
            inside = (self._beyond(constrained.mean(1)) == 0).nonzero()[:, 0].tolist()
            self._record([listed[number] for number in inside], effects[inside])
        return self._ranked(effects, constrained)

    def _ranked(
        self,
        effects: Float[Tensor, "*set example"],
        constrained: Float[Tensor, "*set constrained_example"],
    ) -> Float[Tensor, "*set example"]:
        """Effects of sets, below all others where a set leaves the bounds."""
        beyond = self._beyond(constrained.mean(-1, keepdim=True))
        return torch.where(beyond > 0, _OUTSIDE * (1 + beyond), effects)

    def _beyond(self, constrained: Tensor) -> Tensor:
        """How far mean effects lie outside the bounds, in units of the bound."""
        return (constrained.abs() / self._constraint.at_most - 1).clamp(min=0)

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
        *,
        precision: Precision = "float32",
    ) -> tuple[Effects, Mask]:
        """Effects less the penalty for soft masks, and their gradient.

        With a part of the examples, as many of the constrained ones are read, in turn.
        """
        n = self._measures.n_examples
        size = n if examples is None else min(len(examples), n)
        read = (torch.arange(size) + next(self._steps) * size) % n
        constrained, slope = self._measures.gradient(
            mask, torch.ones_like, read, precision=precision
        )
        penalty = self._scale * self._beyond(constrained.mean())
        total = torch.zeros((), device=self.device)

        def weights(effects: Effects) -> Effects:
            nonlocal total
            of_examples = example_weights(effects - penalty.to(effects.device))
            total = total + of_examples.sum()
            return of_examples

        effects, gradient = self._inner.gradient(mask, weights, examples, precision=precision)
        (total,) = self.ranks.add(total)
        is_beyond = (penalty > 0).to(gradient.dtype)
        per_unit = self._scale / self._constraint.at_most
        push = is_beyond * per_unit * constrained.mean().sign() * slope / size
        return effects - penalty.to(effects.device), gradient - total.to(gradient.device) * push

    def predict_changes(
        self, members: ComponentSet, *, examples: Int[Tensor, " some"] | None = None
    ) -> FirstOrderPrediction:
        """Predictions less the penalty that they bring, predicted on all constrained examples."""
        own = self._inner.predict_changes(members, examples=examples)
        constrained = self._measures.predict_changes(members)
        now = self.constrained_effect(members)
        inside = torch.zeros(self.n_components, dtype=torch.bool)
        inside[list(members)] = True

        def less_penalty(gains: Mask, of_constrained: Mask) -> Mask:
            # A gain is the value of having a component: what joining brings, or leaving costs.
            after = now + torch.where(inside, -of_constrained, of_constrained)
            change = self._scale * (self._beyond(after) - self._beyond(torch.tensor(now)))
            return gains - torch.where(inside, -change, change)

        return FirstOrderPrediction(
            less_penalty(own.gains, constrained.gains),
            less_penalty(own.gradient, constrained.gradient),
        )


Target = Engine | ScoredTarget | FaithfulTarget | ConstrainedTarget
"""The argument of searches. All have `data`, `pairs`, `registry`, `metric`, `ranks`, `device`,
`cost`, `n_components`, `n_examples`, `full_effects`, `with_pairs`, `effects`, `set_effects`,
`gradient` and `predict_changes`, with the meaning that they have in `Engine`."""


def target_of(
    engine: Engine,
    objective: Objective | None = None,
    constraint: tuple[Constraint, Engine] | None = None,
    record: Recorder | None = None,
    record_effects: Recorder | None = None,
) -> Target:
    """The target of a search on an engine: its mean effect where there is no objective.

    `record` is told of every set that was measured on all examples and is within the bounds, after
    Ctrl-C too; `record_effects` of effects that a faithful search measures, within them or not.

    Raises:
        MetricError: `objective` is faithful, and all components have no effect together, or one of
            the wrong sign.
    """
    own_record = record if constraint is None else None
    target: Engine | ScoredTarget | FaithfulTarget
    if objective is None:
        target = engine if own_record is None else engine.sharing(record=own_record)
    elif isinstance(objective, (LogOdds, Decrease)):
        made = log_odds_of if isinstance(objective, LogOdds) else decrease_of
        metric = named_metric(made(engine.metric), f"{engine.metric.name}, {objective.title}")
        target = engine.sharing(metric=metric, record=own_record)
    elif isinstance(objective, Faithful):
        if objective.complement:
            require_full_effect(engine)
        target = FaithfulTarget(engine, objective, own_record, record_effects)
    else:
        target = ScoredTarget(engine, objective, own_record)
    if constraint is None:
        return target
    bound, measures = constraint
    return ConstrainedTarget(target, measures, bound, record)


def cost_of(target: Target, cost: Cost) -> Cost:
    """Approximate cost, through a target, of work that costs so much by the mean effect."""
    return cost if isinstance(target, Engine) else target.cost_of(cost)
