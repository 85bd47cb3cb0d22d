"""One ranking of components that is learned for all sizes at once.

Every component has a score s_i, and the k largest are to be a good set for every k. Each step draws
a size k, uniformly on a logarithmic scale, and a minibatch of examples. The soft mask of that size,

    m_i = sigmoid((s_i - tau) / T)   with tau such that sum_i m_i = k,

stands for the k largest scores, and Adam raises the mean score of the target under it. tau depends
on all scores; its derivative follows from the sum, which stays k. Matryoshka attribution (arXiv
2609.25518) trains rankings in this way, with another loss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from tracekit._util.options import ValidatedFields
from tracekit.components.masks import Mask, ranking
from tracekit.data.pair import split_disjoint
from tracekit.engine.cost import Cost
from tracekit.errors import ConfigError, ResultFormatError
from tracekit.search.base import (
    Goal,
    PlannedPasses,
    Selection,
    Stop,
    config_of,
    log_spaced_sizes,
)
from tracekit.search.baselines.attribution import line_gradient
from tracekit.search.checkpoint import SearchCheckpoint
from tracekit.search.constraint import BoundedTarget
from tracekit.search.prefix import measured_prefix, most_prefixes, prefix_members, smallest_prefix
from tracekit.search.targets import Record, Target, require_finite_gradient, require_gradient

_SMALLEST, _LARGEST = 0.001, 0.5
"""Sizes that are trained, as shares of the components."""
_CHECKED = 0.25
"""Share of the examples that are not trained on, and decide which ranking is best at which size. Of
fewer than four examples, all are trained on, and the last ranking is the answer. Where pairs are
drawn to train on, all examples decide."""
_CHECKS, _SIZES_CHECKED = 4, 7
"""Rankings that training leaves, and sizes that are checked: the budgets, and others if few."""
_WEIGHTS_OF_LAST = 0.1, 0.25, 0.5, 1.0
"""Weights of components that push the metric back, against others, in rankings by the gradient."""
_BISECTIONS = 40
_EPS = 0.01
"""Adam's epsilon relative to the largest entry of a gradient: near zero, steps are small too."""


@dataclass(frozen=True, kw_only=True)
class LearnedRanking(ValidatedFields):
    """Scores whose k largest are trained to be a good set for every k (Matryoshka attribution)."""

    name: ClassVar[str] = "learned-ranking"
    title: ClassVar[str] = "learned ranking"
    trains: ClassVar[bool] = True

    epochs: PositiveInt = 40
    """Passes over the three quarters of the examples that are trained on, or batches of drawn
    pairs. The other examples decide for each budget among the first rankings, those at four points
    of the training, and the sizes."""
    batch_size: PositiveInt = 8
    """Examples per step. Changes the result."""
    learning_rate: PositiveFloat = 0.05
    """Adam's step. At first the scores are normally distributed with a variance of 1."""
    temperature: PositiveFloat = 0.5
    """T: differences of scores that are small against it are not told apart."""
    steps: NonNegativeInt = 10
    """Intervals of `mask-ig`, whose order training starts with; 0: with equal scores."""
    checkpoint: Path | None = None
    """File that holds the training, written at each of the four points; a search that finds it
    goes on from there."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """Two passes an epoch and for each point of the line, those of the checks and prefixes."""
        gradients, share = self.epochs + self.steps + 1, 1 - _CHECKED
        n_sizes, n_lines = len(_checked_sizes(n_components, goal)), len(_WEIGHTS_OF_LAST)
        checks, lines = (_CHECKS + 1) * n_sizes, n_lines * n_sizes
        answers = len(goal.budgets) if goal.target is None else most_prefixes(n_components)
        # Of few or dependent examples fewer are set aside: more are trained on, fewer checked.
        trained, checked = share * gradients, _CHECKED * checks
        ways = [Cost(gradients, gradients), Cost(trained + checked, trained)]
        most = max(ways, key=lambda way: way.forward_equivalents)
        # Faithful sets double the work of checks, so that the other way may take more.
        longer = max(gradients, trained + checked) - most.forward
        return PlannedPasses(
            cost=most + Cost(answers),
            if_faithful=Cost(longer + _CHECKED * lines),
            if_drawn=Cost(3 * self.epochs + 2 * (gradients - trained + share * (checks + lines))),
        )

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Trains rankings, and measures the best set within each budget."""
        goal.require(self.name)
        require_gradient(target.metric, self.name)
        sizes = _checked_sizes(target.n_components, goal)
        context, saved = nullcontext(), Cost()
        if self.checkpoint is not None:
            config = {**config_of(replace(self, checkpoint=None)), "sizes": sizes, "seed": seed}
            config["draws_pairs"] = target.draws_pairs
            if isinstance(target, BoundedTarget):
                raise ConfigError("A checkpoint does not hold a constraint. Give one of both.")
            context = SearchCheckpoint(self.checkpoint, target, config).in_use()
        with context as checkpoint:
            rankings, means, stopped, saved = self._train(target, sizes, seed, checkpoint)
        selections = []
        for budget in goal.budgets or (target.n_components,):
            # Of those that are as good, the last ranking and the largest size.
            _, rank, number = max(
                (means[rank, number].item(), rank, number)
                for rank in range(len(rankings))
                for number, size in enumerate(sizes)
                if size <= budget
            )
            order, size = ranking(rankings[rank]), sizes[number]
            if goal.target is None:
                prefix = replace(measured_prefix(target, order, size), budget=budget)
            else:
                prefix = smallest_prefix(target, order, goal.target)
            soft_mask = self._soft_mask(rankings[rank], prefix.size)
            record: Record = {"n_selected": prefix.size, "effect": prefix.effect}
            fields = {"soft_mask": soft_mask, "history": (record,), "stopped": stopped}
            selections.append(replace(prefix, saved=saved, **fields))
        return selections

    def _train(
        self, target: Target, sizes: Sequence[int], seed: int, checkpoint: SearchCheckpoint | None
    ) -> tuple[list[Mask], Float[Tensor, "ranking size"], Stop | None, Cost]:
        """Scores before and during training, and the mean scores of the first components by them.

        These means are over the examples set aside. Ctrl-C ends training with the scores so far.
        Also returns the work that a checkpoint saved.
        """
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(target.n_examples, generator=generator).tolist()
        set_aside, rest = split_disjoint(target.pairs, order, int(_CHECKED * len(order)))
        if target.draws_pairs:
            set_aside = rest = order
        trained, checked = torch.tensor(rest), torch.tensor(set_aside)
        rankings, means, stopped, saved = list[Mask](), list[Tensor](), None, Cost()
        state: Mapping[str, Tensor] = {}

        def add(scores: Mask) -> None:
            scores, row = scores.cpu(), torch.zeros(len(sizes))
            if set_aside:
                order = ranking(scores)
                sets = [prefix_members(target, order, size) for size in sizes]
                row = target.mean_scores(sets, "examples set aside", examples=checked)
            # Only what was measured: Ctrl-C may come in between.
            rankings.append(scores)
            means.append(row)

        if checkpoint is not None and checkpoint.exists:
            state = checkpoint.load(dict)
            rankings, means = list(state["rankings"]), list(state["means"])
            saved = Cost(*state["cost"].tolist())
        else:
            for scores in self._first_scores(target, trained):
                add(scores)
        first = max(zip(means, rankings, strict=True), key=lambda each: each[0].mean().item())[1]
        try:
            start = first.to(target.engine.device, copy=True)
            for scores, reached in self._descend(target, start, trained, generator, state):
                add(scores)
                if checkpoint is not None:
                    cost = saved + target.cost
                    work = {"rankings": torch.stack(rankings), "means": torch.stack(means)}
                    work["cost"] = torch.tensor([cost.forward, cost.backward]).double()
                    checkpoint.save({**work, **reached})
        except KeyboardInterrupt:
            stopped = "interrupted"
        return rankings, torch.stack(means), stopped, saved

    def _first_scores(self, target: Target, examples: Int[Tensor, " some"]) -> list[Mask]:
        """Scores to start from: quantiles in the order of the integrated gradients, or zeros.

        For a faithful target, also in orders between theirs and that of their absolute values.
        """
        n = target.n_components
        if not self.steps:
            return [torch.zeros(n)]
        line = line_gradient(target, self.steps, self.name, examples)
        normal = -torch.special.ndtri((torch.arange(n) + 0.5) / n)
        lines = [line]
        if target.faithful is not None:
            lines += [torch.where(line > 0, line, -weight * line) for weight in _WEIGHTS_OF_LAST]
        return [torch.empty(n).index_copy(0, torch.tensor(ranking(each)), normal) for each in lines]

    def _descend(
        self,
        target: Target,
        scores: Mask,
        trained: Int[Tensor, " some"],
        generator: torch.Generator,
        state: Mapping[str, Tensor],
    ) -> Iterator[tuple[Mask, dict[str, Tensor]]]:
        """Trains the scores in place; yields their mean over each section, and what goes on.

        Begins with the section after those of `state`, if it is not empty.
        """
        smallest, largest = _trained_sizes(target.n_components)
        optimizer = torch.optim.Adam([scores], lr=self.learning_rate, betas=(0.9, 0.99))
        targets, n_before = target.training_targets(), int(state.get("n_sections", 0))
        trained_on = hashlib.sha256()
        if state:
            scores.copy_(state["scores"])
            generator.set_state(state["generator"])
            adam = {name: state[name] for name in ("step", "exp_avg", "exp_avg_sq")}
            optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: adam}})
        sections = torch.arange(self.epochs).tensor_split(min(_CHECKS, self.epochs))
        for number, epochs in enumerate(sections):
            if number < n_before:
                # Pairs that were drawn are drawn again, and passed by.
                for source in islice(targets, len(epochs)):
                    trained_on.update(source.pairs.fingerprint.encode())
                if number == n_before - 1 and _as_tensor(trained_on).ne(state["trained_on"]).any():
                    raise ResultFormatError(
                        f"The checkpoint {self.checkpoint} is of a training on other pairs. Give "
                        "the same training_pairs, which can be iterated again, and held-out pairs."
                    )
                continue
            total, n_steps = torch.zeros_like(scores), 0
            for source in islice(targets, len(epochs)):
                trained_on.update(source.pairs.fingerprint.encode())
                numbers = trained if source is target else torch.arange(source.n_examples)
                order = torch.randperm(len(numbers), generator=generator)
                for examples in numbers[order].split(self.batch_size):
                    share = torch.rand((), generator=generator).item()
                    size = smallest * (largest / smallest) ** share
                    scores.grad = self._gradient(source, scores, size, examples, generator)
                    largest_entry = scores.grad.abs().max().item()
                    optimizer.param_groups[0]["eps"] = _EPS * max(largest_entry, 1e-12)
                    optimizer.step()
                    total, n_steps = total + scores, n_steps + 1
            adam, n_done = optimizer.state_dict()["state"][0], torch.tensor(number + 1)
            state = {"scores": scores, "generator": generator.get_state(), "n_sections": n_done}
            yield total / n_steps, {**state, **adam, "trained_on": _as_tensor(trained_on)}

    def _gradient(
        self,
        target: Target,
        scores: Mask,
        size: float,
        examples: Int[Tensor, " some"],
        generator: torch.Generator,
    ) -> Mask:
        """Gradient of the negative sum of the scores of examples, under the soft mask of a size."""
        mask = self._soft_mask(scores, size)
        gradient = -target.sampled_gradient(mask, examples, generator)
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


def _as_tensor(digest: Any) -> Int[Tensor, " byte"]:
    return torch.tensor([*digest.digest()])


def _trained_sizes(n_components: int) -> tuple[float, float]:
    """The smallest and the largest size that is trained."""
    smallest = max(1.0, _SMALLEST * n_components)
    return smallest, max(smallest, _LARGEST * n_components)


def _checked_sizes(n_components: int, goal: Goal) -> list[int]:
    """The budgets and smaller sizes, ascending; without budgets, sizes that are trained."""
    smallest, largest = map(round, _trained_sizes(n_components))
    largest = goal.budgets[-1] if goal.budgets else largest
    n_spaced = max(2, _SIZES_CHECKED - len(goal.budgets))
    spaced = log_spaced_sizes(min(smallest, largest), largest, n_spaced)
    return sorted({*spaced, *goal.budgets})
