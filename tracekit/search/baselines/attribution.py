"""Gradient baselines: rank all components by a few gradients, without a penalty to tune.

By the chain rule, the gradient of the mean effect at the empty mask has the entry (counterfactual -
clean activation) . d effect / d activation, summed over positions and averaged over examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveInt

from tracekit._util.options import ValidatedFields
from tracekit._util.warn import warn
from tracekit.components.masks import Mask
from tracekit.engine.cost import Cost
from tracekit.errors import NotDifferentiableError, UnreliableResultWarning
from tracekit.search.base import Goal, PlannedPasses, Selection
from tracekit.search.prefix import best_prefixes, planned_prefixes
from tracekit.search.targets import SomeExamples, Target, require_finite_gradient, require_gradient

_LARGEST_GAP = 0.02
"""How far scores may be from adding up, as a share of the mean size of the full effect."""


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """Attribution patching: the gradient at the empty mask ranks; two passes in all."""

    name: ClassVar[str] = "attribution"
    title: ClassVar[str] = "attribution patching"
    records_every_size: ClassVar[bool] = True

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """Two passes, and one for each budget."""
        return planned_prefixes(n_components, goal, Cost(1, 1))

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Ranks once and measures the best at each budget."""
        goal.require(self.name)
        if target.metric.is_flat_at_clean:
            raise NotDifferentiableError(
                f"The gradient of the metric {target.metric.name!r} vanishes at the empty mask, "
                "where it is least, and ranks nothing. Use mask-ig, or another metric."
            )
        return best_prefixes(target, goal, line_gradient(target, 0, self.name), by_gradient=True)


@dataclass(frozen=True, kw_only=True)
class MaskIG(ValidatedFields):
    """Integrated gradients over masks: the mean gradient from the empty to the full mask ranks."""

    name: ClassVar[str] = "mask-ig"
    title: ClassVar[str] = "mask IG"
    records_every_size: ClassVar[bool] = True
    steps: PositiveInt = 10
    """Intervals of the line; the trapezoid rule takes steps + 1 gradients. Scores whose sum differs
    from the effect of all by more than 2 % of its mean size on an example are a warning."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """Two passes for each point of the line, and one for each budget."""
        points = self.steps + 1
        return planned_prefixes(n_components, goal, Cost(points, points))

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Ranks once and measures the best at each budget."""
        goal.require(self.name)
        scores = line_gradient(target, self.steps, self.name)
        # Not on the halves of `auto`, whose passes nobody planned.
        if (full := target.line_integral) is not None:
            total = scores.sum().item()
            size = full.abs().mean().clamp(min=1e-9).item()
            gap = abs(total - full.mean().item()) / size
            text = (
                f"The scores of {self.name} sum to {total:.3g}, and all components together have "
                f"an effect of {full.mean():.3g}. The difference is {100 * gap:.0f} % of the mean "
                f"size of their effect on an example, {size:.3g}: {self.steps} steps are too few "
                f"to rank components of similar scores. Give steps={2 * self.steps} or more."
            )
            if gap > _LARGEST_GAP:
                warn(text, UnreliableResultWarning)
        return best_prefixes(target, goal, scores, by_gradient=True)


@dataclass(frozen=True, kw_only=True)
class EAPIG(ValidatedFields):
    """EAP-IG (Hanna et al., 2024): gradients of what receivers read rank edges, along the input.

    A step moves the input of the clean run by as much towards the counterfactual one, up to it.
    The field ranks by size: `tracer.faithfulness(result, ranking="absolute")`.
    """

    name: ClassVar[str] = "eap-ig"
    title: ClassVar[str] = "EAP-IG"
    records_every_size: ClassVar[bool] = True
    steps: PositiveInt = 10
    """Gradients."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """Two passes a step, and one for each budget."""
        return planned_prefixes(n_components, goal, Cost(self.steps, self.steps))

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Ranks once and measures the best at each budget."""
        goal.require(self.name)
        require_gradient(target.metric, self.name)
        levels = {step / self.steps: 1 / self.steps for step in range(1, self.steps + 1)}
        scores = target.gradient_along_inputs(levels)
        require_finite_gradient(scores, target.metric)
        return best_prefixes(target, goal, scores, by_gradient=True)


def weights_along_line(steps: int) -> dict[float, float]:
    """Trapezoid weights by place from the empty mask (0) to the full one (1), in equal steps."""
    if steps == 0:
        return {0.0: 1.0}
    ends = (0, steps)
    return {step / steps: (0.5 if step in ends else 1.0) / steps for step in range(steps + 1)}


def line_gradient(target: Target, steps: int, method: str, examples: SomeExamples = None) -> Mask:
    """Mean over the line of the gradient of the mean effect, on some examples or on all."""
    require_gradient(target.metric, method)
    total = torch.zeros(target.n_components)
    for level, weight in weights_along_line(steps).items():
        total += weight * target.mean_gradient(torch.full((target.n_components,), level), examples)
    require_finite_gradient(total, target.metric)
    return total
