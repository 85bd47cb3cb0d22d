"""Gradient baselines: rank all components by a few gradients, without a penalty to tune.

*Attribution patching* takes the gradient of the mean effect at the empty mask. By the chain rule
its entry for a component is (counterfactual - clean activation) . d effect / d activation, summed
over positions and averaged over examples: first-order attribution patching, for every kind of
component at once. *Integrated gradients* over masks take the mean gradient along the line from
the empty to the full mask instead, which sees some of what components do together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from tracekit._util.options import check_at_least, check_types
from tracekit.components.masks import Mask
from tracekit.engine.cost import Cost
from tracekit.errors import NotDifferentiableError
from tracekit.search.base import Goal, Planned, Selection, require_finite_gradient, require_gradient
from tracekit.search.prefix import best_prefixes, planned_prefixes
from tracekit.search.targets import Target


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Attribution patching: the gradient at the empty mask ranks; two passes in all."""

    name: ClassVar[str] = "attribution"
    title: ClassVar[str] = "attribution patching"
    records_every_size: ClassVar[bool] = True

    def planned(self, n_components: int, goal: Goal) -> Planned:
        """Two passes, and one for each budget."""
        return planned_prefixes(n_components, goal, Cost(1, 1), is_exact=True)

    def search(self, engine: Target, goal: Goal, seed: int) -> list[Selection]:
        """Ranks once and measures the best at each budget."""
        goal.require(self.name)
        if engine.metric.is_flat_at_clean:
            raise NotDifferentiableError(
                f"The gradient of the metric {engine.metric.name!r} vanishes at the empty mask, "
                "where it is least, and ranks nothing. Use mask-ig, or another metric."
            )
        return best_prefixes(engine, goal, _mean_gradient(engine, 0, self.name))


@dataclass(frozen=True, kw_only=True)
class MaskIG:
    """Integrated gradients over masks: the mean gradient from the empty to the full mask ranks."""

    name: ClassVar[str] = "mask-ig"
    title: ClassVar[str] = "mask IG"
    records_every_size: ClassVar[bool] = True
    steps: int = 10
    """Intervals of the line; the trapezoid rule takes steps + 1 gradients."""

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "steps")

    def planned(self, n_components: int, goal: Goal) -> Planned:
        """Two passes for each point of the line, and one for each budget."""
        points = self.steps + 1
        return planned_prefixes(n_components, goal, Cost(points, points), is_exact=True)

    def search(self, engine: Target, goal: Goal, seed: int) -> list[Selection]:
        """Ranks once and measures the best at each budget."""
        goal.require(self.name)
        return best_prefixes(engine, goal, _mean_gradient(engine, self.steps, self.name))


def weights_along_line(steps: int) -> dict[float, float]:
    """Weights of the trapezoid rule from the empty (0) to the full mask (1), by place.

    The line has `steps` intervals; 0 is its first end alone.
    """
    if steps == 0:
        return {0.0: 1.0}
    ends = (0, steps)
    return {step / steps: (0.5 if step in ends else 1.0) / steps for step in range(steps + 1)}


def _mean_gradient(engine: Target, steps: int, method: str) -> Mask:
    """Mean over the line of the gradient of the mean effect."""
    require_gradient(engine.metric, method)
    total = torch.zeros(engine.n_components)
    for level, weight in weights_along_line(steps).items():
        mask = torch.full((engine.n_components,), level)
        total += weight * engine.gradient(mask, torch.ones_like)[1] / engine.n_examples
    require_finite_gradient(total, engine.metric)
    return total
