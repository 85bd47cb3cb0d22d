"""One ranking of components that is learned for all sizes at once.

Every component has a score s_i, and the answer for a budget k are the k largest. Each step draws a
size k, uniformly on a logarithmic scale, and a minibatch of examples. The soft mask of that size,

    m_i = sigmoid((s_i - tau) / T)   with tau such that sum_i m_i = k,

stands for the k largest scores, and Adam raises the mean score of the target under it. tau depends
on all scores; its derivative follows from the sum, which stays k. Matryoshka attribution (arXiv
2609.25518) trains rankings in this way, with another loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Int
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from tracekit._util.options import ValidatedFields
from tracekit.components.masks import Mask, ranking
from tracekit.data.pair import split_disjoint
from tracekit.engine.cost import Cost
from tracekit.search.base import Goal, PlannedPasses, Selection, Stop, log_spaced_sizes
from tracekit.search.baselines.attribution import line_gradient
from tracekit.search.prefix import best_prefixes, planned_prefixes, prefix_members
from tracekit.search.targets import Target, require_finite_gradient, require_gradient

_SMALLEST, _LARGEST = 0.001, 0.5
"""Sizes that are trained, as shares of the components."""
_CHECKED = 0.25
"""Share of the examples that are not trained on, and decide which ranking is the answer. Of fewer
than four examples, all are trained on, and the last ranking is the answer."""
_CHECKS, _SIZES_CHECKED = 6, 5
"""Checks during training, and sizes that each of them measures."""
_BISECTIONS = 40
_EPS = 0.01
"""Adam's epsilon relative to the largest entry of a gradient: near zero, steps are small too."""


@dataclass(frozen=True, kw_only=True)
class LearnedRanking(ValidatedFields):
    """Scores whose k largest are trained to be a good set for every k (Matryoshka attribution)."""

    name: ClassVar[str] = "learned-ranking"
    title: ClassVar[str] = "learned ranking"
    records_every_size: ClassVar[bool] = True

    epochs: PositiveInt = 40
    """Passes over the three quarters of the examples that are trained on. The others decide at
    which of seven points of the training the ranking was best."""
    batch_size: PositiveInt = 8
    """Examples per step. Changes the result."""
    learning_rate: PositiveFloat = 0.05
    """Adam's step. At first the scores are normally distributed with a variance of 1."""
    temperature: PositiveFloat = 0.5
    """T: differences of scores that are small against it are not told apart."""
    steps: NonNegativeInt = 10
    """Intervals of `mask-ig`, whose order training starts with; 0: with equal scores."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """Two passes an epoch and for each point of the line, those of the checks and prefixes."""
        gradients = self.epochs + self.steps + 1
        checks = _CHECKED * (_CHECKS + 1) * _SIZES_CHECKED
        training = Cost(gradients + checks, gradients)
        planned = planned_prefixes(n_components, goal, training, is_exact=False)
        # Learned scores say nothing of components that push back, so prefixes need no halving.
        return replace(planned, if_faithful=Cost())

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Trains one ranking, and measures its first components at each budget."""
        goal.require(self.name)
        require_gradient(target.metric, self.name)
        scores, stopped = self._train(target, seed)
        return [
            replace(each, soft_mask=self._soft_mask(scores, each.size), stopped=stopped)
            for each in best_prefixes(target, goal, scores, is_learned=True)
        ]

    def _train(self, target: Target, seed: int) -> tuple[Mask, Stop | None]:
        """The scores that were best on the examples set aside; after Ctrl-C, of those so far."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(target.n_examples, generator=generator).tolist()
        set_aside, rest = split_disjoint(target.pairs, order, int(_CHECKED * len(order)))
        trained, checked = torch.tensor(rest), torch.tensor(set_aside)
        smallest, largest = map(round, _trained_sizes(target))
        sizes = log_spaced_sizes(smallest, largest, _SIZES_CHECKED)

        def check(scores: Mask) -> float:
            if not set_aside:
                return 0.0
            sets = [prefix_members(target, ranking(scores.cpu()), size) for size in sizes]
            return target.set_effects(sets, "examples set aside", examples=checked).mean().item()

        best = self._first_scores(target, trained)
        best_check, stopped = check(best), None
        try:
            for scores in self._descend(target, best.clone(), trained, generator):
                if (value := check(scores)) >= best_check:
                    best, best_check = scores, value
        except KeyboardInterrupt:
            stopped = "interrupted"
        return best.cpu(), stopped

    def _first_scores(self, target: Target, examples: Int[Tensor, " some"]) -> Mask:
        """Normal scores in the order of the line, for faithful sets by size; or zeros."""
        n, device = target.n_components, target.engine.device
        if not self.steps:
            return torch.zeros(n, device=device)
        line = line_gradient(target, self.steps, self.name, examples)
        order = ranking(line if target.faithful is None else line.abs())
        scores = torch.empty(n)
        scores[order] = -torch.special.ndtri((torch.arange(n) + 0.5) / n)
        return scores.to(device)

    def _descend(
        self,
        target: Target,
        scores: Mask,
        trained: Int[Tensor, " some"],
        generator: torch.Generator,
    ) -> Iterator[Mask]:
        """Trains the scores in place; at each check, their mean since the last one."""
        smallest, largest = _trained_sizes(target)
        optimizer = torch.optim.Adam([scores], lr=self.learning_rate, betas=(0.9, 0.99))
        for epochs in torch.arange(self.epochs).tensor_split(min(_CHECKS, self.epochs)):
            total, n_steps = torch.zeros_like(scores), 0
            for _ in epochs:
                order = torch.randperm(len(trained), generator=generator)
                for examples in trained[order].split(self.batch_size):
                    share = torch.rand((), generator=generator).item()
                    size = smallest * (largest / smallest) ** share
                    scores.grad = self._gradient(target, scores, size, examples)
                    largest_entry = scores.grad.abs().max().item()
                    optimizer.param_groups[0]["eps"] = _EPS * max(largest_entry, 1e-12)
                    optimizer.step()
                    total, n_steps = total + scores, n_steps + 1
            yield total / n_steps

    def _gradient(
        self, target: Target, scores: Mask, size: float, examples: Int[Tensor, " some"]
    ) -> Mask:
        """Gradient of the negative mean score of examples, under the soft mask of a size."""
        mask = self._soft_mask(scores, size)
        _, gradient = target.gradient(mask, lambda each: -torch.ones_like(each), examples)
        require_finite_gradient(gradient, target.metric)
        slope = mask * (1 - mask) / self.temperature
        # tau moves with each score so that the sum of the mask stays.
        mean = (slope * gradient).sum() / slope.sum().clamp(min=1e-12)
        return slope * (gradient - mean)

    def _soft_mask(self, scores: Mask, size: float) -> Mask:
        """The soft mask whose sum is `size`, by bisection of tau."""
        reach = 20 * self.temperature
        low, high = scores.min() - reach, scores.max() + reach
        for _ in range(_BISECTIONS):
            tau = (low + high) / 2
            is_low = torch.sigmoid((scores - tau) / self.temperature).sum() > size
            low, high = torch.where(is_low, tau, low), torch.where(is_low, high, tau)
        return torch.sigmoid((scores - (low + high) / 2) / self.temperature)


def _trained_sizes(target: Target) -> tuple[float, float]:
    smallest = max(1.0, _SMALLEST * target.n_components)
    return smallest, max(smallest, _LARGEST * target.n_components)
