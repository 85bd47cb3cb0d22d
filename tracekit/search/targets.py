"""The target of a search: what it maximises.

A search measures sets and takes gradients through a `Target`, and knows nothing else of what is
asked. A target measures effects, of a set and, where it is asked to, of its complement (all other
components), and combines them into a score for each example by a differentiable function:

    mean         the effects themselves (the paper); of the metric `log_odds_of`, its log-odds
    an objective the examples together make scores of their effects (`objectives.py`)
    faithful     effects of a set and its complement beside that of all components

The gradient of scores is, by the chain rule, that of effects weighted by what an effect weighs in
the scores. Where a score depends on its own example only, both are taken in one pass; where it
depends on all of them, effects are measured first. A set with its complement takes two passes
instead of one; complements of sets that differ little differ little, so they share blocks as sets
do (`engine/prefix_tree.py`).

A constraint keeps another metric within bounds, with k its mean effect, b the bound and F the
score of all components:

    measured sets    a set with |k| > b has a score of -10^9 (1 + (|k| - b) / b), so that none
                     within the bounds is worse; one within them has its own numbers
    soft masks       lose |F| (|k| - b) / b beyond the bounds, with its gradient

Sets are still proposed by predictions, and chosen by what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.devices import to_device
from tracekit._util.options import guided, shortened
from tracekit.components import ComponentSet
from tracekit.components.masks import BinaryMask, Mask, complement_of, from_indices, members_of_mask
from tracekit.components.members import ComponentsLike
from tracekit.data.prompts import PromptPairs
from tracekit.engine import gradients
from tracekit.engine.cost import Cost
from tracekit.engine.engine import DataView, Engine
from tracekit.engine.gradients import FirstOrderPrediction, GradientWeight
from tracekit.engine.prepared import PreparedData
from tracekit.engine.set_effects import Recorder
from tracekit.errors import ConfigError, MetricError, NothingFoundError
from tracekit.metrics import Effects, Metric, MetricFunction, resolve
from tracekit.search.objectives import (
    Faithful,
    LogOdds,
    Objective,
    check_number,
    describe,
    log_odds_of,
    named_metric,
    opposite_of,
)

Record = Mapping[str, float | int | str]
"""One line of a history, e.g. one epoch or one greedy step."""
_OUTSIDE = -1e9
"""Score of a measured set that lies just outside the bounds: below that of any other."""


@guided
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
        check_number("at_most", self.at_most, 0.0, float("inf"))
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


class EffectAndComplement(NamedTuple):
    """Mean effects of a set and of all other components."""

    own: float
    others: float


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
    return tuple(record for record in history if float(record.get("effect", 0.0)) > _OUTSIDE / 2)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of examples, as a differentiable function of effects."""

    combine: Callable[..., Tensor]
    """From the effects of sets on some examples, those of their complements `if_complement`, and
    the numbers of the examples (None: all)."""
    of_complement: bool = False
    """Whether complements are measured, too; then a score depends on its own example only."""

    def slopes(
        self, effects: Sequence[Effects], weights: GradientWeight, numbers: Int[Tensor, " some"]
    ) -> tuple[Effects, tuple[Effects, ...]]:
        """Scores, and what each of the effects weighs in their weighted sum."""
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_(True) for each in effects]
            scores = self.combine(*leaves, numbers)
            slopes = torch.autograd.grad((scores * weights(scores.detach())).sum(), leaves)
        return scores.detach(), slopes


@dataclass(frozen=True, eq=False)
class _Bound:
    """A constraint, and the engine that measures it for the components of a target."""

    constraint: Constraint
    measures: Engine
    scale: float
    """What soft masks lose where they are beyond the bound by as much as the bound."""
    _steps: count[int] = field(default_factory=count)

    def effect(self, members: Sequence[int]) -> float:
        """Mean effect of a set by the constrained metric."""
        return self.measures.set_effects([tuple(members)]).mean().item()

    def beyond(self, constrained: Tensor) -> Tensor:
        """How far mean effects lie outside the bounds, in units of the bound."""
        return (constrained.abs() / self.constraint.at_most - 1).clamp(min=0)

    def ranked(
        self,
        scores: Float[Tensor, "*set example"],
        constrained: Float[Tensor, "*set constrained_example"],
    ) -> Float[Tensor, "*set example"]:
        """Scores of sets, below all others where a set leaves the bounds."""
        beyond = self.beyond(constrained.mean(-1, keepdim=True))
        return torch.where(beyond > 0, _OUTSIDE * (1 + beyond), scores)

    def penalty(self, mask: Mask, size: int) -> tuple[Float[Tensor, ""], Mask]:
        """What a soft mask loses, and its gradient, on so many of the examples, in turn."""
        n = self.measures.n_examples
        size = min(size, n)
        read = (torch.arange(size) + next(self._steps) * size) % n
        constrained, slope = self.measures.gradient(mask, torch.ones_like, read)
        penalty = self.scale * self.beyond(constrained.mean())
        is_beyond = (penalty > 0).to(slope.dtype)
        per_unit = self.scale / self.constraint.at_most
        return penalty, is_beyond * per_unit * constrained.mean().sign() * slope / size

    def less_penalty(
        self, prediction: FirstOrderPrediction, members: ComponentSet
    ) -> FirstOrderPrediction:
        """Predictions less the penalty that they bring, predicted on all constrained examples."""
        constrained, now = self.measures.predict_changes(members), self.effect(members)
        is_inside = from_indices(members, len(prediction.gains)).bool()

        def less(gains: Mask, of_constrained: Mask) -> Mask:
            # A gain is the value of having a component: what joining brings, or leaving costs.
            after = now + torch.where(is_inside, -of_constrained, of_constrained)
            change = self.scale * (self.beyond(after) - self.beyond(torch.tensor(now)))
            return gains - torch.where(is_inside, -change, change)

        return FirstOrderPrediction(
            less(prediction.gains, constrained.gains),
            less(prediction.gradient, constrained.gradient),
        )


class Target(DataView):
    """Scores of sets and masks on the examples of an engine, and what changes them.

    A plain target gives the effects of its engine; with a sign of -1 they are taken times -1,
    before anything else is made of them. It has what an `Engine` has: `data`, `pairs`, `registry`,
    `metric`, `ranks`, `device`, `cost`, `n_components`, `n_examples`.

    The engine of a constraint gives the effects by its metric, for the same components. `record` is
    told of every set that was measured on all examples and is within the bounds, and of its scores,
    after Ctrl-C too; `record_effects` of all measured effects, within them or not.
    """

    def __init__(
        self,
        engine: Engine,
        objective: Objective | None = None,
        constraint: tuple[Constraint, Engine] | None = None,
        record: Recorder | None = None,
        record_effects: Recorder | None = None,
        sign: int = 1,
    ) -> None:
        """Measures all components if they are needed."""
        # How faithful a set is does not depend on the sign.
        self.sign: int = 1 if isinstance(objective, Faithful) else sign
        """Factor of the measured effects: -1 where sets with effects below 0 are sought."""
        self._given, self._objective, self._constraint = engine, objective, constraint
        self._record, self._record_effects = record, record_effects
        self._scores = scores_of(engine, objective)
        metric = engine.metric
        if isinstance(objective, LogOdds):
            metric = log_odds_of(metric)
        if self.sign < 0:
            metric = opposite_of(metric)
        if objective is not None:
            name = engine.metric.name + (", negative" if self.sign < 0 else "")
            metric = named_metric(metric, f"{name}, {describe(objective)}")
        self._engine = engine.sharing(
            metric=None if metric is engine.metric else metric, record=self._tell
        )
        self.data: PreparedData = self._engine.data
        self.measured: dict[ComponentSet, EffectAndComplement] = {}
        """Every set that was measured on all examples with its complement, and these."""
        self._bound: _Bound | None = None
        if constraint is not None:
            bound, measures = constraint
            self._bound = _Bound(bound, measures, self.full_effects.mean().abs().item() or 1.0)
            # Of the pairs as they are run: a checkpoint of another source is of another search.
            keeping = f"keeping {bound.describe(self.pairs)} ({measures.pairs.fingerprint[:12]})"
            is_smooth = metric.differentiable and measures.metric.differentiable
            metric = named_metric(metric, f"{metric.name}, {keeping}")
            metric = replace(metric, differentiable=is_smooth)
        self._metric, self._before = metric, self._work()

    # ---- what it is -----------------------------------------------------------------------

    @property
    def metric(self) -> Metric:
        """The maximised score, named with objective and bounds."""
        return self._metric

    @property
    def is_plain(self) -> bool:
        """Whether its scores are effects, each of its own example."""
        return self._scores is None and self._bound is None

    @property
    def has_complement(self) -> bool:
        """Whether sets are measured with their complements."""
        return self._scores is not None and self._scores.of_complement

    def with_pairs(self, pairs: PromptPairs) -> Target:
        """The same on other traced pairs."""
        constraint = self._constraint
        if constraint is not None and constraint[0].pairs is None:
            constraint = (constraint[0], constraint[1].with_pairs(pairs))
        return Target(self._given.with_pairs(pairs), self._objective, constraint, sign=self.sign)

    @cached_property
    def full_effects(self) -> Effects:
        """Scores of all components together."""
        if isinstance(self._objective, LogOdds):
            return self._engine.full_effects
        full = self.sign * self._given.full_effects
        return self._combined([full, torch.zeros_like(full)] if self.has_complement else [full])

    @property
    def cost(self) -> Cost:
        """Work since this target was made, in passes over the traced data set."""
        return self._work() - self._before

    def _work(self) -> Cost:
        work = self._engine.cost
        return work if self._bound is None else work + self._bound.measures.cost * self._share

    @property
    def _share(self) -> float:
        """Examples of the constraint for each traced one."""
        return 0 if self._bound is None else self._bound.measures.n_examples / self.n_examples

    def cost_of(self, cost: Cost) -> Cost:
        """Approximate cost, through this target, of work that costs so much by the mean effect.

        A complement doubles it; slopes of scores of all examples need effects before each
        gradient. With a constraint a set is measured on both data sets, and a gradient taken.
        """
        if self._scores is not None:
            cost += cost if self.has_complement else Cost(cost.backward)
        if self._bound is not None:
            cost += Cost(cost.forward_equivalents * (0.5 + 1.5 * self._share))
        return cost

    def report(self, members: Sequence[int]) -> ConstraintEffect | None:
        """Effect of a set on the constrained metric; None without a constraint."""
        if self._bound is None:
            return None
        measures = self._bound.measures
        return ConstraintEffect(
            metric=measures.metric.name,
            dataset=measures.pairs.name,
            dataset_fingerprint=measures.fingerprint,
            at_most=self._bound.constraint.at_most,
            effect=self._bound.effect(members),
        )

    # ---- measuring ------------------------------------------------------------------------

    def effects(self, mask: ComponentsLike) -> Float[Tensor, "*set example"]:
        """Scores of a mask or a stack of masks, those outside the bounds last."""
        if self.has_complement:
            entries = torch.as_tensor(mask).float()
            stack = entries.reshape(-1, entries.shape[-1])
            rows = self._engine.effects(torch.cat([stack, 1 - stack]))
            if entries.ndim == 1 and ((entries == 0) | (entries == 1)).all():
                members = members_of_mask(entries.bool())
                self._tell([members, complement_of(members, self.n_components)], rows)
            effects = [side.reshape(*entries.shape[:-1], -1) for side in rows.chunk(2)]
        else:
            effects = [self._engine.effects(mask)]
        scores = self._combined(effects)
        bound = self._bound
        return scores if bound is None else bound.ranked(scores, bound.measures.effects(mask))

    def set_effects(
        self,
        sets: Iterable[Sequence[int]],
        label: str = "effects",
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "set some"]:
        """Scores of sets, those last that are outside the bounds on all constrained examples."""
        listed, bound, constrained = [tuple(members) for members in sets], self._bound, None
        if bound is not None:
            constrained = bound.measures.set_effects(listed, f"{label}, constraint")
        sides = [listed]
        if self.has_complement:
            sides.append([complement_of(members, self.n_components) for members in listed])
        rows = self._engine.set_effects([*chain(*sides)], label, examples=examples)
        scores = self._combined(rows.split([len(listed)] * len(sides)), examples)
        if bound is None or constrained is None:
            return scores
        if examples is None and self._record is not None:
            inside = members_of_mask(bound.beyond(constrained.mean(1)) == 0)
            self._record([listed[number] for number in inside], scores[list(inside)])
        return bound.ranked(scores, constrained)

    def _combined(
        self, effects: Sequence[Tensor], numbers: Int[Tensor, " some"] | None = None
    ) -> Tensor:
        """Scores from effects, of complements too if these are measured."""
        return effects[0] if self._scores is None else self._scores.combine(*effects, numbers)

    def _tell(self, sets: Sequence[ComponentSet], effects: Float[Tensor, "set example"]) -> None:
        """Hands on what the engine has measured on all examples, after Ctrl-C too."""
        if self._record_effects is not None and not isinstance(self._objective, LogOdds):
            self._record_effects(sets, self.sign * effects)
        sides = [effects]
        if self.has_complement:
            rows, n = {members: number for number, members in enumerate(sets)}, self.n_components
            others = {members: rows.get(complement_of(members, n)) for members in rows}
            sets = [members for members in rows if others[members] is not None]
            sides = [effects[[of[members] for members in sets]] for of in (rows, others)]
            means = zip(*(side.mean(1).tolist() for side in sides), strict=True)
            self.measured.update(zip(sets, map(EffectAndComplement._make, means), strict=True))
        # Of sets with a constraint only those within the bounds are told.
        if self._record is not None and self._constraint is None and sets:
            self._record(sets, self._combined(sides))

    @property
    def is_faithful(self) -> bool:
        """Whether sets are sought that do what all components do."""
        return isinstance(self._objective, Faithful)

    def overshoots(self, mask: BinaryMask) -> bool:
        """Whether the faithfulness of a measured set, which is to be faithful, is above 1."""
        assert isinstance(self._objective, Faithful)
        own, others = self.measured[members_of_mask(mask)]
        w, full = self._objective.complement, self._given.full_effects.mean().item()
        # A weight that leaves out the set or its complement decides for the other.
        is_own = w == 0 or (w < 1 and self._given.metric.direction == "denoising")
        return (own - full if is_own else -others) * self.towards > 0

    # ---- gradients ------------------------------------------------------------------------

    @property
    def towards(self) -> int:
        """Sign of the measured effects that bring faithful sets near all components; else 1."""
        return -1 if self.has_complement and self._given.full_effects.mean() < 0 else 1

    @property
    def along_line(self) -> Effects | None:
        """What `slopes` from no component to all sum to; None if it is not known without a pass."""
        if "full_effects" not in vars(self._given) or self._bound is not None:
            return None
        if self.has_complement:
            return self.towards * self._given.full_effects
        return self.full_effects if self.is_plain else None

    def slopes(self, mask: Mask) -> Mask:
        """Gradient of the mean score at a mask, to rank by.

        For faithful sets, whose scores turn where a set does enough, it is that of the mean effect.
        """
        if not self.has_complement or self._bound is not None:
            return self.gradient(mask, torch.ones_like)[1] / self.n_examples
        gradient = gradients.gradient(self.data, mask, torch.ones_like)[1]
        return self.towards * gradient / self.n_examples

    def slopes_along_inputs(self, levels: Mapping[float, float]) -> Mask:
        """Sum of gradients of the mean effect at moved inputs, to rank edges by.

        Raises:
            ConfigError: Components are not edges, or the score is not a mean of effects.
        """
        is_mean = (self.is_plain or self.has_complement) and self._bound is None
        if self.registry.edges is None or not is_mean:
            given = f"{self.metric.name} of {self.n_components} components"
            raise ConfigError(
                f"eap-ig ranks edges, by their mean effect, and is asked for {given}. Use mask-ig."
            )
        return self.towards * gradients.slopes_along_inputs(self.data, levels) / self.n_examples

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
    ) -> tuple[Effects, Mask]:
        """Scores, less the penalty for soft masks, and the gradient of their weighted sum.

        With a part of the examples, as many of the constrained ones are read, in turn.
        """
        numbers = torch.arange(self.n_examples) if examples is None else examples
        weights, penalty, push = example_weights, None, None
        if self._bound is not None:
            penalty, push = self._bound.penalty(mask, len(numbers))
            weights = lambda scores: example_weights(scores - to_device(penalty, scores.device))  # noqa: E731
        of_all = None
        if self._scores is not None and not self.has_complement:
            # The score of an example depends on all others, and these come a few at a time: so
            # one pass for the scores, and one for the gradient.
            of_all, slopes = self._slopes(mask, weights, numbers)
            slopes, weights = to_device(slopes, self.device), torch.ones_like
            combine = lambda effects, some: slopes[some] * effects  # noqa: E731
        else:
            combine = None if self._scores is None else self._scores.combine
        scores, gradient = gradients.gradient(
            self.data, mask, weights, numbers, combine=combine, with_complement=self.has_complement
        )
        scores = scores if of_all is None else of_all.to(mask.device)
        if penalty is None or push is None:
            return scores, gradient
        scores = scores - penalty.to(scores.device)
        return scores, gradient - example_weights(scores).sum().to(gradient.device) * push

    def predict_changes(
        self, members: ComponentSet, *, examples: Int[Tensor, " some"] | None = None
    ) -> FirstOrderPrediction:
        """Change of the mean score from changing a component."""
        weights = None
        if self.has_complement:
            prediction = self._predicted_with_complement(members, examples)
        else:
            if self._scores is not None:
                mask = from_indices(members, self.n_components).float()
                numbers = torch.arange(self.n_examples) if examples is None else examples
                _, weights = self._slopes(mask, torch.ones_like, numbers)
            prediction = gradients.predict_changes(
                self.data, members, example_weights=weights, examples=examples
            )
        return prediction if self._bound is None else self._bound.less_penalty(prediction, members)

    def _slopes(
        self, mask: Mask, example_weights: GradientWeight, numbers: Int[Tensor, " some"]
    ) -> tuple[Float[Tensor, " some"], Effects]:
        """Scores of some examples, and what each effect weighs in their weighted sum.

        The weights are of all examples, 0 for the others.
        """
        assert self._scores is not None
        effects = self._engine.effects(mask, numbers)
        scores, (slopes,) = self._scores.slopes([effects], example_weights, numbers)
        return scores, torch.zeros(self.n_examples).index_put((numbers,), slopes)

    def _predicted_with_complement(
        self, members: ComponentSet, examples: Int[Tensor, " some"] | None
    ) -> FirstOrderPrediction:
        """From both predicted effects, example by example."""
        assert self._scores is not None
        part, total = self.data.own(examples), torch.zeros(2, self.n_components, device=self.device)
        inside = to_device(from_indices(members, self.n_components), self.device)
        sides = [members, complement_of(members, self.n_components)]
        predictions = (gradients.changes_of(self.data, side, part) for side in sides)
        # 1 for those that would join.
        direction = 1 - 2 * inside.float()
        for own, others in zip(*predictions, strict=True):
            effects, numbers = [own.effects, others.effects], own.examples
            scores, (slope, opposite) = self._scores.slopes(effects, torch.ones_like, numbers)
            # A component that joins the set leaves the complement.
            changed = self._scores.combine(
                (own.effects[:, None] + direction * own.gains).T,
                (others.effects[:, None] - direction * others.gains).T,
                numbers,
            )
            gains = direction * (changed.T.contiguous() - scores[:, None])
            slopes = slope[:, None] * own.slopes - opposite[:, None] * others.slopes
            total += torch.stack([gains.sum(0), slopes.sum(0)])
        n_examples = self.n_examples if examples is None else len(examples)
        self.data.account.count(2 * n_examples, backward=True)
        (total,) = self.ranks.add(total)
        return FirstOrderPrediction(*(total / n_examples).cpu())


def scores_of(engine: Engine, objective: Objective | None) -> Scores | None:
    """Scores by an objective; None: the effects themselves."""
    if objective is None or isinstance(objective, LogOdds):
        return None
    if not isinstance(objective, Faithful):
        return Scores(lambda effects, numbers: objective.scores(effects))
    full = engine.full_effects

    def combine(own: Tensor, others: Tensor, numbers: Int[Tensor, " some"] | None) -> Tensor:
        of_all = to_device(full, own.device)
        return objective.scores(own, others, of_all if numbers is None else of_all[numbers])

    return Scores(combine, of_complement=True)


def require_full_effect(engine: Engine, sign: int = 1) -> None:
    """Refuses data on which there is nothing of a sign that a set could be faithful to.

    Raises:
        MetricError: All components have no effect together, or one of the wrong sign.
    """
    mean = engine.full_effects.mean().item()
    if abs(mean) < 1e-9:
        raise MetricError(
            "All components together have no effect, so no set can be faithful to it. Trace "
            "components, positions or examples that have one, or search by the effect."
        )
    if mean * sign < 0:
        needed = "positive" if sign > 0 else "negative"
        raise MetricError(
            f"All components together have an effect of {mean:.4g}, and faithfulness needs a "
            f"{needed} one. Exchange x and y, or the prompts, search by the effect, or seek sets "
            "that do what all do: sign='full'."
        )
