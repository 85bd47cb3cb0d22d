"""Targets: what a search maximises.

A search measures sets and takes gradients through a target, which turns the measured effects into a
score for every example. A `BoundedTarget` (`constraint.py`) is one of these targets, for sets that
keep another metric within a bound.

The gradient of scores is, by the chain rule, that of effects weighted by the derivative of the
scores. Where a score depends on all examples, a first pass measures the effects. A set with its
complement takes two passes instead of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.connected import EdgePaths
from tracekit.components.masks import BinaryMask, Mask, complement_of, from_indices, members_of_mask
from tracekit.components.members import ComponentsLike
from tracekit.data.prompts import PromptPairs
from tracekit.engine import gradients
from tracekit.engine.batch import to_device
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.engine.gradients import FirstOrderPrediction, GradientWeight
from tracekit.engine.set_effects import SetRecorder
from tracekit.errors import ConfigError, MetricError, NonFiniteMetricError, NotDifferentiableError
from tracekit.metrics import Effects, Metric
from tracekit.search.objectives import ExampleScores, Faithful, LogOdds, Objective, score_metric

Record = Mapping[str, float | int | str]
"""One line of a history, e.g. one epoch or one greedy step."""
Sets = Iterable[Sequence[int]]
"""Sets of components, by flat index."""
SomeExamples = Int[Tensor, " some"] | None
"""Numbers of the examples that are used; None: all."""
DrawEngines = Callable[[], Iterator[Engine]]
"""Begins to draw pairs, and gives the engine of each batch of them, without end."""


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

    def __str__(self) -> str:
        return f"{self.metric} on {self.dataset} is {self.effect:.2g} (at most {self.at_most:g})"


class EffectAndComplement(NamedTuple):
    """Mean effects of a set and of its complement, all other components."""

    effect: float
    complement: float


class Target:
    """Scores of sets and masks, and their gradients; `tracekit.search.make_target` makes one.

    Here scores are effects, times a sign (the paper); or changes of their log-odds.
    """

    is_plain: bool = True
    """Whether scores are effects, each of its own example."""
    ranks_by_effect: bool = True
    """Whether `mean_gradient` is the gradient of a mean of effects."""
    faithful: FaithfulTarget | None = None
    """The target of faithful sets that this one is or is made of, if it is one."""
    ranking_sign: int = 1
    """Factor of gradients in rankings: -1 where faithful sets have effects below 0, else 1."""
    _draw: DrawEngines | None = None

    def __init__(
        self,
        engine: Engine,
        objective: Objective | None = None,
        *,
        sign: int = 1,
        record: SetRecorder | None = None,
        record_effects: SetRecorder | None = None,
        draw: DrawEngines | None = None,
    ) -> None:
        """Makes a target of an engine's effects.

        Args:
            engine: Measures the effects; it is left as it is.
            objective: What is maximised over the examples; None: the mean effect.
            sign: Factor of the effects in the scores: -1 to look for sets with effects below 0.
            record: Is called with every set that was measured on all examples, and its scores.
            record_effects: Is called with these sets and their effects.
            draw: Draws pairs that searches train on, and gives the engine of each batch.
        """
        self.sign, self._objective, self._draw = sign, objective, draw
        self._engine, self._record, self._record_effects = engine, record, record_effects
        self._metric = metric = score_metric(engine.metric, objective, sign)
        with_metric = engine if metric is engine.metric else engine.with_metric(metric)
        self.engine: Engine = replace(with_metric, record=self._notify)
        """Measures the effects that scores are made of."""
        self._cost_before = self.engine.cost

    @staticmethod
    def of(engine: Engine, objective: Objective | None, **options: Any) -> Target:
        """The target of the class that makes scores of an objective; options as in `Target`."""
        if isinstance(objective, Faithful):
            return FaithfulTarget(engine, objective, **options)
        kind = ExampleTarget if isinstance(objective, ExampleScores) else Target
        return kind(engine, objective, **options)

    @property
    def pairs(self) -> PromptPairs:
        """The data set."""
        return self.engine.pairs

    @property
    def registry(self) -> ComponentRegistry:
        """The components that masks stand for."""
        return self.engine.registry

    @property
    def metric(self) -> Metric:
        """The maximised score, named with objective and bounds."""
        return self._metric

    @property
    def n_components(self) -> int:
        """Number of components: the length of every mask."""
        return self.engine.n_components

    @property
    def n_examples(self) -> int:
        """Number of examples."""
        return self.engine.n_examples

    @property
    def paths(self) -> EdgePaths | None:
        """The paths that faithful sets of edges have to consist of; None for other sets."""
        return None if self.faithful is None else self.engine.edge_paths

    @property
    def full_effects(self) -> Effects:
        """Scores of all components together."""
        scores = self._score_of_effects(self._engine.full_effects)
        return self.engine.full_effects if scores is None else scores

    def with_pairs(self, pairs: PromptPairs) -> Target:
        """The same on other traced pairs, without recorders."""
        return self.with_engine(self._engine.with_pairs(pairs))

    def with_engine(self, engine: Engine) -> Target:
        """The same on the examples of another engine, without recorders."""
        return type(self)(engine, self._objective, sign=self.sign, draw=self._draw)

    @property
    def draws_pairs(self) -> bool:
        """Whether searches train on pairs that are drawn for them, and not on the examples."""
        return self._draw is not None

    def training_targets(self) -> Iterator[Target]:
        """The target of each epoch: this one, or that of pairs drawn for the epoch, without end."""
        if self._draw is None:
            yield from repeat(self)
            return
        for engine in self._draw():
            target = self.with_engine(replace(engine, account=self._engine.account))
            target.engine = replace(target.engine, account=self.engine.account)
            # The clean and the counterfactual run, which are made for this epoch alone.
            self.engine.account.add_examples(2 * engine.n_examples)
            yield target

    @property
    def cost(self) -> Cost:
        """Work since this target was made, in passes over the traced data set."""
        return self.engine.cost - self._cost_before

    def cost_of(self, cost: Cost) -> Cost:
        """Approximate cost through this target of work that has a given cost by the mean effect."""
        return cost

    def effects(self, mask: ComponentsLike) -> Float[Tensor, "*set example"]:
        """Scores of a mask, or of each of a stack of masks."""
        return self._scores([self.engine.effects(mask)])

    def set_effects(
        self, sets: Sets, label: str = "effects", *, examples: SomeExamples = None
    ) -> Float[Tensor, "set some"]:
        """Scores of sets, on all examples or on some; `label` names the progress bar."""
        return self._scores([self.engine.set_effects(sets, label, examples=examples)], examples)

    def mean_scores(
        self, sets: Sets, label: str, *, examples: SomeExamples = None
    ) -> Float[Tensor, " set"]:
        """What a search compares sets by: the mean of their scores over the examples."""
        return self.set_effects(sets, label, examples=examples).mean(1)

    def report(self, members: Sequence[int]) -> ConstraintEffect | None:
        """Effect of a set on the constrained metric; None without a constraint."""
        return None

    def scores_of(
        self, effects: Mapping[ComponentSet, Effects], better_than: Callable[[int], float]
    ) -> dict[ComponentSet, Effects]:
        """Scores of sets whose effects are known, where they beat the best score of their size.

        Sets whose score needs more than their effects are left out. Only a constraint takes passes.
        """
        scores = {members: self._score_of_effects(row) for members, row in effects.items()}
        return {
            members: row
            for members, row in scores.items()
            if row is not None and row.mean() > better_than(len(members))
        }

    def _score_of_effects(self, effects: Effects) -> Effects | None:
        """Scores of the examples from known effects of a set; None if these are not enough."""
        needs_more = isinstance(self._objective, LogOdds | Faithful)
        return None if needs_more else self._scores([self.sign * effects])

    def _scores(self, effects: Sequence[Tensor], numbers: SomeExamples = None) -> Tensor:
        """Scores from effects on the examples of these numbers, or on all."""
        return effects[0]

    def _notify(self, sets: Sequence[ComponentSet], effects: Float[Tensor, "set example"]) -> None:
        """Calls the recorders with what the engine measured on all examples, after Ctrl-C too."""
        if self._record_effects is not None and not isinstance(self._objective, LogOdds):
            self._record_effects(sets, self.sign * effects)
        if self._record is not None:
            self._record(sets, self._scores([effects]))

    @property
    def line_integral(self) -> Effects | None:
        """The integral of `mean_gradient` over masks from empty to full, one value per example.

        None where scores have no such integral, or where it would take a further pass.
        """
        if not self.ranks_by_effect or self._engine.known_full_effects is None:
            return None
        return self.full_effects

    def mean_gradient(self, mask: Mask, examples: SomeExamples = None) -> Mask:
        """Gradient at a mask that components are ranked by: that of the mean score."""
        scores, gradient = self.gradient(mask, torch.ones_like, examples)
        return gradient / len(scores)

    def gradient_along_inputs(self, levels: Mapping[float, float]) -> Mask:
        """Weighted sum of gradients of the mean effect at moved inputs, to rank edges by.

        Raises:
            ConfigError: Components are not edges, or the score is not a mean of effects.
        """
        if self.registry.edges is None or not self.ranks_by_effect:
            raise ConfigError(
                "eap-ig ranks edges by their mean effect, and it was asked to rank "
                f"{self.n_components} components by {self.metric.name}. Use mask-ig instead."
            )
        gradient = gradients.gradients_along_inputs(self.engine, levels)
        return self.ranking_sign * gradient / self.n_examples

    def gradient(
        self, mask: Mask, example_weights: GradientWeight, examples: SomeExamples = None
    ) -> tuple[Effects, Mask]:
        """Scores, and the gradient of their weighted sum, on some examples or on all."""
        return self.engine.gradient(mask, example_weights, examples)

    def sampled_gradient(
        self, mask: Mask, examples: Int[Tensor, " some"], generator: torch.Generator
    ) -> Mask:
        """The gradient of the summed scores, or a cheaper random one whose mean it is."""
        return self.gradient(mask, torch.ones_like, examples)[1]

    def predict_changes(
        self, members: ComponentSet, *, examples: SomeExamples = None
    ) -> FirstOrderPrediction:
        """Predicted change of the mean score from adding or removing each component."""
        return self.engine.predict_changes(members, examples=examples)


class ExampleTarget(Target):
    """Scores that an objective makes of the effects of all examples together."""

    is_plain = False
    ranks_by_effect = False
    _objective: ExampleScores

    def cost_of(self, cost: Cost) -> Cost:
        """Each gradient takes one more pass, which measures the effects."""
        return cost + Cost(cost.backward)

    def _scores(self, effects: Sequence[Tensor], numbers: SomeExamples = None) -> Tensor:
        return self._objective.scores(effects[0])

    def gradient(
        self, mask: Mask, example_weights: GradientWeight, examples: SomeExamples = None
    ) -> tuple[Effects, Mask]:
        """Scores, and the gradient of their weighted sum, on some examples or on all."""
        numbers = torch.arange(self.n_examples) if examples is None else examples
        # Scores depend on all examples: one pass is for the scores, and one for the gradient.
        scores, derivatives = self._derivatives(mask, example_weights, numbers)
        derivatives = to_device(derivatives, self.engine.device)
        _, gradient = gradients.gradient(
            self.engine,
            mask,
            torch.ones_like,
            numbers,
            combine=lambda effects, some: derivatives[some] * effects,
        )
        return scores.to(mask.device), gradient

    def predict_changes(
        self, members: ComponentSet, *, examples: SomeExamples = None
    ) -> FirstOrderPrediction:
        """Predicted change of the mean score from adding or removing each component."""
        mask = from_indices(members, self.n_components).float()
        numbers = torch.arange(self.n_examples) if examples is None else examples
        _, derivatives = self._derivatives(mask, torch.ones_like, numbers)
        return gradients.predict_changes(
            self.engine, members, example_weights=derivatives, examples=examples
        )

    def _derivatives(
        self, mask: Mask, example_weights: GradientWeight, numbers: Int[Tensor, " some"]
    ) -> tuple[Float[Tensor, " some"], Effects]:
        """Scores of some examples, and derivatives of their weighted sum by the effects of all."""
        effects = self.engine.effects(mask, numbers)
        scores, (derivatives,) = differentiate(self._objective.scores, [effects], example_weights)
        return scores, torch.zeros(self.n_examples).index_put((numbers,), derivatives)


class FaithfulTarget(Target):
    """Scores of sets that do what all components do, while their complements do nothing."""

    is_plain = False
    _objective: Faithful

    def __init__(
        self, engine: Engine, objective: Faithful, *, sign: int = 1, **options: Any
    ) -> None:
        """Makes a target, and measures all components first; options as in `Target`."""
        self._full, self.faithful = engine.full_effects, self
        self.ranking_sign = -1 if self._full.mean() < 0 else 1
        self.measured: dict[ComponentSet, EffectAndComplement] = {}
        """Every set that was measured on all examples with its complement, and these."""
        super().__init__(engine, objective, **options)

    @property
    def full_effects(self) -> Effects:
        """Scores of all components together."""
        return self._scores([self._full, torch.zeros_like(self._full)])

    def cost_of(self, cost: Cost) -> Cost:
        """A set is measured with its complement."""
        return cost + cost

    def overshoots(self, mask: BinaryMask) -> bool:
        """Whether the faithfulness of a measured set, which is to be faithful, is above 1."""
        own, others = self.measured[members_of_mask(mask)]
        w, full = self._objective.complement, self._full.mean().item()
        # A weight that leaves out the set or its complement decides for the other.
        is_own = w == 0 or (w < 1 and self._engine.metric.direction == "denoising")
        return (own - full if is_own else -others) * self.ranking_sign > 0

    def effects(self, mask: ComponentsLike) -> Float[Tensor, "*set example"]:
        """Scores of a mask, or of each of a stack of masks."""
        entries = torch.as_tensor(mask).float()
        stack = entries.reshape(-1, entries.shape[-1])
        rows = self.engine.effects(torch.cat([stack, 1 - stack]))
        if entries.ndim == 1 and ((entries == 0) | (entries == 1)).all():
            members = members_of_mask(entries.bool())
            self._notify([members, complement_of(members, self.n_components)], rows)
        return self._scores([side.reshape(*entries.shape[:-1], -1) for side in rows.chunk(2)])

    def set_effects(
        self, sets: Sets, label: str = "effects", *, examples: SomeExamples = None
    ) -> Float[Tensor, "set some"]:
        """Scores of sets, on all examples or on some; `label` names the progress bar."""
        return self._scores(self._both_effects(sets, label, examples), examples)

    def mean_scores(
        self, sets: Sets, label: str, *, examples: SomeExamples = None
    ) -> Float[Tensor, " set"]:
        """What a search compares sets by: the mean score, averaged with `score_of_means`."""
        own, others = self._both_effects(sets, label, examples)
        full = self._full if examples is None else self._full[examples]
        of_means = self._objective.scores(own.mean(1), others.mean(1), full.mean())
        return (self._scores([own, others], examples).mean(1) + of_means) / 2

    def score_of_means(self, mask: BinaryMask) -> float:
        """The score of the mean effects of a measured set, its complement and all components.

        A set with the right effect on average may do too much on some examples and too little on
        others. Its mean score punishes that, and its faithfulness does not.
        """
        own, others = map(torch.tensor, self.measured[members_of_mask(mask)])
        return self._objective.scores(own, others, self._full.mean()).item()

    def _both_effects(
        self, sets: Sets, label: str, examples: SomeExamples
    ) -> Sequence[Float[Tensor, "set some"]]:
        """Effects of sets, and of their complements."""
        listed = [tuple(members) for members in sets]
        others = [complement_of(members, self.n_components) for members in listed]
        rows = self.engine.set_effects([*listed, *others], label, examples=examples)
        return rows.split([len(listed)] * 2)

    def _scores(self, effects: Sequence[Tensor], numbers: SomeExamples = None) -> Tensor:
        own, others = effects
        full = to_device(self._full, own.device)
        return self._objective.scores(own, others, full if numbers is None else full[numbers])

    def _notify(self, sets: Sequence[ComponentSet], effects: Float[Tensor, "set example"]) -> None:
        """Calls the recorders: scores are of the sets whose complement was measured as well."""
        if self._record_effects is not None:
            self._record_effects(sets, effects)
        row_of = {members: number for number, members in enumerate(sets)}
        both = [each for each in sets if complement_of(each, self.n_components) in row_of]
        if not both:
            return
        own = effects[[row_of[each] for each in both]]
        others = effects[[row_of[complement_of(each, self.n_components)] for each in both]]
        for members, effect, complement in zip(both, own.mean(1), others.mean(1), strict=True):
            self.measured[members] = EffectAndComplement(effect.item(), complement.item())
        if self._record is not None:
            self._record(both, self._scores([own, others]))

    @property
    def line_integral(self) -> Effects:
        """The integral of `mean_gradient` over masks from empty to full, one value per example."""
        return self.ranking_sign * self._full

    def mean_gradient(self, mask: Mask, examples: SomeExamples = None) -> Mask:
        """Gradient at a mask that components are ranked by: that of the mean effect.

        Scores fall where a set does more than all components, so their gradient gives no ranking.
        """
        effects, gradient = self.engine.gradient(mask, torch.ones_like, examples)
        return self.ranking_sign * gradient / len(effects)

    def gradient(
        self, mask: Mask, example_weights: GradientWeight, examples: SomeExamples = None
    ) -> tuple[Effects, Mask]:
        """Scores, and the gradient of their weighted sum, on some examples or on all."""
        return gradients.gradient(
            self.engine,
            mask,
            example_weights,
            examples,
            combine=lambda own, others, numbers: self._scores([own, others], numbers),
            with_complement=True,
        )

    def sampled_gradient(
        self, mask: Mask, examples: Int[Tensor, " some"], generator: torch.Generator
    ) -> Mask:
        """The gradient of one of the two terms of the score, for which one mask is run.

        It is that of the complement with a probability of w, its weight; so the mean over many
        draws of `generator` is the gradient of the whole score.
        """
        drawn = torch.rand((), generator=generator).item() < self._objective.complement
        one_term = Faithful(complement=float(drawn))
        full = to_device(self._full, self.engine.device)
        _, gradient = gradients.gradient(
            self.engine,
            1 - mask if drawn else mask,
            torch.ones_like,
            examples,
            combine=lambda each, numbers: one_term.scores(each, each, full[numbers]),
        )
        return -gradient if drawn else gradient

    def predict_changes(
        self, members: ComponentSet, *, examples: SomeExamples = None
    ) -> FirstOrderPrediction:
        """Predicted change of the mean score, from both predicted effects of each example."""
        engine, n = self.engine, self.n_components
        part, total = engine.rank_share(examples), torch.zeros(2, n, device=self.engine.device)
        # 1 for components that would join, -1 for those that would leave.
        direction = 1 - 2 * to_device(from_indices(members, n), self.engine.device).float()
        sides = [members, complement_of(members, n)]
        predictions = (gradients.predictions_by_batch(engine, side, part) for side in sides)
        for own, others in zip(*predictions, strict=True):
            numbers = own.examples
            scores, (by_own, by_others) = differentiate(
                lambda *effects, numbers=numbers: self._scores(effects, numbers),
                [own.effects, others.effects],
                torch.ones_like,
            )
            # A component that joins the set leaves the complement.
            changed = self._scores(
                [
                    (own.effects[:, None] + direction * own.predicted_effects).T,
                    (others.effects[:, None] - direction * others.predicted_effects).T,
                ],
                numbers,
            )
            gains = direction * (changed.T.contiguous() - scores[:, None])
            gradient = by_own[:, None] * own.gradients - by_others[:, None] * others.gradients
            total += torch.stack([gains.sum(0), gradient.sum(0)])
        n_examples = self.n_examples if examples is None else len(examples)
        engine.account.add_examples(2 * n_examples, backward=True)
        (total,) = self.engine.ranks.sum_ranks(total)
        return FirstOrderPrediction(*(total / n_examples).cpu())


def differentiate(
    combine: Callable[..., Tensor], effects: Sequence[Effects], weights: GradientWeight
) -> tuple[Effects, tuple[Effects, ...]]:
    """Scores of effects, and the derivatives of their weighted sum by each of the effects."""
    scores, derivatives_of = torch.func.vjp(combine, *effects)  # type: ignore[misc]
    return scores, derivatives_of(weights(scores))


def require_full_effect(engine: Engine, sign: int = 1) -> None:
    """Raises a `MetricError` if all components together have no effect of the sign."""
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


def require_gradient(metric: Metric, method: str) -> None:
    """Refuses a metric without a gradient."""
    if not metric.differentiable:
        raise NotDifferentiableError(
            f"The metric {metric.name!r} has no gradient for {method} to follow. Search with "
            f"{'logit-difference' if metric.needs_y else 'probability-drop'} and evaluate the set "
            "it finds, or use a method without gradients, e.g. top-k."
        )


def require_finite_gradient(gradient: Tensor, metric: Metric) -> None:
    """Refuses a gradient that is not finite."""
    if not torch.isfinite(gradient).all():
        raise NonFiniteMetricError(
            f"The gradient of the metric {metric.name!r} is not finite. "
            "Use a bounded metric such as probability-drop."
        )
