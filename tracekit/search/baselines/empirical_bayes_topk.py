"""Empirical-Bayes top-k: the components with the largest single effects, estimated with shrinkage.

Top-k takes the components whose mean effects are largest on the examples, and many of these are
large by chance. Shrunken means rank them better for new examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import PositiveInt
from torch import Tensor

from tracekit._util.clusters import sum_by_cluster
from tracekit._util.options import ValidatedFields
from tracekit.components.masks import Mask
from tracekit.engine.cost import Cost
from tracekit.engine.gradients import WIDEST, ExampleCurves, expand
from tracekit.search.base import Goal, PlannedPasses, Selection, log_spaced_sizes
from tracekit.search.baselines.attribution import weights_along_line
from tracekit.search.prefix import best_prefixes, planned_prefixes
from tracekit.search.targets import Target, require_finite_gradient, require_gradient

MOST_ALONE = 384
"""Beyond this many components gradients rank them, not their single effects."""
_SIZES_OF_MANY = 64
"""Sizes at which a front measures many components ranked alone, at most."""
_ENTRIES = 2**24
"""Gradients that are computed together; bounds memory."""


def sizes_ranked_alone(n_components: int, first: int, last: int) -> Sequence[int]:
    """Sizes at which a front measures components ranked alone: all of them, if they are few."""
    if n_components <= MOST_ALONE:
        return range(first, last + 1)
    return log_spaced_sizes(first, last, _SIZES_OF_MANY)


@dataclass(frozen=True, kw_only=True)
class EmpiricalBayesTopK(ValidatedFields):
    """The k components with the largest single effects, shrunken to what all have in common."""

    name: ClassVar[str] = "empirical-bayes-top-k"
    title: ClassVar[str] = "empirical-Bayes top-k"
    records_every_size: ClassVar[bool] = True
    by_gradients: bool | None = None
    """Whether gradients stand for single effects. None: beyond 384 components."""
    steps: PositiveInt = 10
    """Intervals of the line from the empty to the full mask, where gradients are taken: steps + 1
    of them, the two ends counting half."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """A pass for each component or two for each gradient, and one for each budget."""
        points = self.steps + 1
        cost = Cost(points, points) if self._takes_gradients(n_components) else Cost(n_components)
        return planned_prefixes(n_components, goal, cost)

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Ranks all components, then measures the union of the best at each budget."""
        goal.require(self.name)
        by_gradient = self._takes_gradients(target.n_components)
        if by_gradient:
            gradients = self._mean_gradients(target)
            scores = target.ranking_sign * shrunken_effects_by_gradients(target, gradients)
        else:
            sets = [(i,) for i in range(target.n_components)]
            scores = shrunken_effects(target, target.set_effects(sets, self.title))
        return best_prefixes(target, goal, scores, by_gradient=by_gradient)

    def _takes_gradients(self, n_components: int) -> bool:
        return n_components > MOST_ALONE if self.by_gradients is None else self.by_gradients

    def _mean_gradients(self, target: Target) -> Float[Tensor, "component example"]:
        """Mean gradient of each example along the line."""
        require_gradient(target.metric, self.name)
        n_examples, n_components = target.n_examples, target.n_components
        gradients = torch.zeros(n_examples, n_components)
        for examples in torch.arange(n_examples).split(max(1, _ENTRIES // n_components)):
            for level, weight in weights_along_line(self.steps).items():
                masks = torch.full((len(examples), n_components), level)
                gradients[examples] += weight * expand(target.engine, masks, examples).gradients
        require_finite_gradient(gradients, target.metric)
        return gradients.T


_FEWEST = 3
"""Components from which on they tell something of each other."""
_TOGETHER = 1024
"""Components whose effects are computed together; bounds memory."""


def shrunken_effects(target: Target, effects: Float[Tensor, "component example"]) -> Mask:
    """Mean effects of single components, shrunken to what all have in common.

    They are the mean effects where the effect on an example depends on the other examples: with a
    constraint, and with objectives other than `mean` and `log-odds`.
    """
    if not target.is_plain:
        return effects.mean(1)
    curves = _quantity_to_effect_curves(target)
    if curves is None:
        return shrunken_effects_by_gradients(target, effects)
    start = curves.linearization.to_linear(curves.clean).double()
    parts = effects.split(_TOGETHER)
    changes = torch.cat([curves.quantity(part.double().T).T - start for part in parts])
    return shrunken_effects_by_gradients(target, changes)


def shrunken_effects_by_gradients(
    target: Target, gradients: Float[Tensor, "component example"]
) -> Mask:
    """The same by gradients, for components that are too many to be measured one by one.

    They are of the quantity of the metric's linearization (`gradients.expand`), or without
    one of the effect, times the weight of the example.
    """
    weights, clusters = target.pairs.weights, target.pairs.clusters
    curves = _quantity_to_effect_curves(target)
    weights = torch.ones(target.n_examples).double() if weights is None else weights.double()
    if curves is None:
        return shrunken_means(gradients / weights, weights, clusters).float()
    start = curves.linearization.to_linear(curves.clean).double()
    moved = shrunken_means(gradients, weights, clusters) - _weighted_means(gradients, weights)
    effects = [
        curves.effects((start + part + by[:, None]).clamp(start - WIDEST, start + WIDEST).T).T
        for part, by in zip(gradients.split(_TOGETHER), moved.split(_TOGETHER), strict=True)
    ]
    return torch.cat([part.mean(1) for part in effects]).float()


def _quantity_to_effect_curves(target: Target) -> ExampleCurves | None:
    data = target.engine
    return ExampleCurves.for_metric(data.metric, data.clean, data.pairs.weights)


def shrunken_means(
    changes: Float[Tensor, "component example"],
    weights: Float[Tensor, " example"],
    clusters: Int[Tensor, " example"] | None = None,
) -> Float[Tensor, " component"]:
    """Mean changes, shrunken to the ratio to their root mean square that all have in common.

    Weights are 1 on average; `clusters` are those of `PromptPairs.clusters`.
    """
    means = _weighted_means(changes, weights)
    sizes = _weighted_means(changes.square(), weights).sqrt()
    is_moved = sizes > 0
    # Weights and groups make examples fewer (Kish's effective number).
    n_examples = (weights.sum().square() / sum_by_cluster(weights, clusters).square().sum()).item()
    if n_examples <= 1 or int(is_moved.sum()) < _FEWEST:
        return means
    ratios = means[is_moved] / sizes[is_moved]
    errors = (1 - ratios.square()).clamp(min=0) / (n_examples - 1)
    true_variance = (ratios.var() - errors.mean()).clamp(min=0)
    # Of a component that moves all examples alike the ratio is certain.
    kept = (true_variance / (true_variance + errors)).nan_to_num(nan=1.0)
    common = ratios.mean()
    shrunken = means.clone()
    shrunken[is_moved] = sizes[is_moved] * (common + kept * (ratios - common))
    return shrunken


def _weighted_means(
    values: Float[Tensor, "component example"], weights: Float[Tensor, " example"]
) -> Float[Tensor, " component"]:
    parts = values.split(_TOGETHER)
    return torch.cat([part.to(weights.dtype) @ weights for part in parts]) / len(weights)
