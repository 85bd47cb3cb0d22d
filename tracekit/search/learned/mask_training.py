"""Training a soft mask by gradient descent with a penalty, for one lambda1 or a searched one; DCM.

Every step follows the gradient of an objective (`reward.py`) and of a penalty with Adam and clamps
the mask to [0, 1]. With a fixed lambda1 there is one training run, as in the papers; without,
lambda1 is searched, and sets are taken from all epochs (`lambda_search.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from tracekit._util import progress as _progress
from tracekit._util.options import Share, ValidatedFields
from tracekit.components import kind_of, masks
from tracekit.components.masks import BinaryMask, Mask
from tracekit.engine.cost import Cost
from tracekit.errors import ConfigError
from tracekit.search.base import Goal, PlannedPasses, Selection
from tracekit.search.learned.lambda_search import (
    TrainingRun,
    best_within_budgets,
    bracketing_runs,
    measured_sets,
    runs_for_budgets,
    smallest_set_reaching,
)
from tracekit.search.learned.reward import LossGradient, LossName, make_loss
from tracekit.search.prefix import most_prefixes
from tracekit.search.targets import Target, require_gradient

_JOINT_LEARNING_RATE, _OFFSET = 0.01, 1e-3
"""Adam's step where kinds are combined; what DCM adds to an entry, whose root has a slope at 0."""
DEFAULT_TRIALS = 8
"""Training runs at most per budget when lambda1 is searched."""


@dataclass(frozen=True, kw_only=True)
class MaskTraining(ValidatedFields, ABC):
    """Base of the methods that learn a soft mask."""

    name: ClassVar[str]
    title: ClassVar[str]
    trains: ClassVar[bool] = True
    default_trials: ClassVar[int] = DEFAULT_TRIALS

    lambda1: NonNegativeFloat | None = None
    """Weight of the size penalty. None: searched."""
    learning_rate: PositiveFloat | None = None
    """Adam's step. None: that of the kind of component (0.1 for heads, 0.5 for MLP outputs and
    neurons, 0.01 for MLP blocks), or 0.01 where kinds are combined."""
    epochs: PositiveInt = 15
    """Passes over the data; the paper uses 30 on Professions."""
    batch_size: PositiveInt = 32
    """Examples per step. Changes the result."""
    init: Share = 0.5
    """Starting value of every entry."""
    threshold: Share = 0.5
    """tau: entries above it are selected."""
    example_order: Sequence[Sequence[int]] | None = None
    """Order of the examples in each epoch, to repeat a run exactly. None: shuffled by the seed."""
    trials: PositiveInt | None = None
    """Training runs at most per budget to search lambda1. None: 8, or 1 before local search."""

    @property
    @abstractmethod
    def loss(self) -> LossName:
        """The loss, beside the penalty."""

    @property
    def max_trials(self) -> int:
        """Training runs at most for the first budget when lambda1 is searched."""
        return self.default_trials if self.trials is None else self.trials

    @abstractmethod
    def penalty_gradient(self, lambda1: float, mask: Mask, epoch: int) -> Mask:
        """Gradient of the penalty of a weight by the mask, in an epoch (from 0)."""

    @abstractmethod
    def penalty_terms(self, lambda1: float, mask: Mask, epoch: int) -> dict[str, float]:
        """Entries of the penalty in the history: weights and values."""

    @abstractmethod
    def penalty_slope(self, lambda1: float, mask: Mask, epoch: int) -> float:
        """Approximate derivative of the size penalty by one mask entry, in an epoch."""

    def selected(self, mask: Mask) -> BinaryMask:
        """The selection that a soft mask stands for: entries above the threshold."""
        return masks.truncate(mask, self.threshold)

    def best_sets(
        self, target: Target, runs: Sequence[TrainingRun], budgets: Sequence[int], before: Cost
    ) -> list[Selection]:
        """The best set within each budget, ascending; `before` is the work before the first run."""
        return best_within_budgets(runs, target, budgets, measured_sets(runs))

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """Two passes for each epoch, and what is measured of its mask."""
        n_answers = max(1, len(goal.budgets))
        runs = self._most_runs(goal)
        gradients = runs * self.epochs + (self.lambda1 is None)
        measured = runs * self.epochs * (1 + len(goal.budgets))
        if goal.target is not None:
            measured += most_prefixes(n_components)
        return PlannedPasses(
            cost=Cost(gradients + measured + n_answers, gradients),
            if_drawn=Cost(3 * runs * self.epochs),
        )

    def _most_runs(self, goal: Goal) -> int:
        if self.lambda1 is not None:
            return 1
        if goal.target is not None:
            return max(self.max_trials, DEFAULT_TRIALS)
        return self.max_trials + (len(goal.budgets) - 1) * ((self.max_trials + 1) // 2)

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Trains once with a fixed lambda1, or searches it."""
        require_gradient(target.metric, self.name)
        before = target.cost
        runs = self._runs(target, goal, seed)
        if goal.target is not None:
            return [smallest_set_reaching(runs, target, goal.target)]
        if goal.budgets:
            return self.best_sets(target, runs, goal.budgets, before)
        # Without budget or target: the paper's single run.
        return [runs[0].selection(runs[0].last, None)]

    def _runs(self, target: Target, goal: Goal, seed: int) -> list[TrainingRun]:
        smallest = min(goal.budgets, default=0)

        def train(lambda1: float) -> TrainingRun:
            return self._train(target, lambda1, seed, stop_at=smallest)

        if self.lambda1 is not None:
            return [train(self.lambda1)]
        goal.require(self.name)
        if (wanted := goal.target) is not None:
            start = self._first_lambda(target, max(1, target.n_components // 10))
            most = self._most_runs(goal)
            return bracketing_runs(train, lambda last: last.effect >= wanted, start, most)
        start = self._first_lambda(target, smallest)
        return runs_for_budgets(train, start, goal.budgets, self.max_trials)

    def _first_lambda(self, target: Target, budget: int) -> float:
        """A lambda1 at which about `budget` components outweigh the penalty half-way through."""
        start = torch.full((target.n_components,), self.init, device=target.engine.device)
        name = "effect" if self.loss == "effect" else "dataset"
        reward = LossGradient(target, make_loss(name, target))
        gradient = reward.step(start, torch.arange(target.n_examples)).cpu()
        reward.check()
        last_gain = gradient.neg().sort(descending=True).values[budget - 1].abs().item()
        return max(last_gain, 1e-12) / self.penalty_slope(1.0, start, self.epochs // 2)

    def _train(self, target: Target, lambda1: float, seed: int, *, stop_at: int) -> TrainingRun:
        """One descent; ends early once at most `stop_at` components are selected."""
        mask = torch.full((target.n_components,), self.init, device=target.engine.device)
        optimizer = torch.optim.Adam([mask], lr=self._learning_rate(target))
        reward = LossGradient(target, make_loss(self.loss, target))
        run = TrainingRun(lambda1)
        for epoch, trained in enumerate(islice(target.training_targets(), self.epochs)):
            if trained is not target:
                reward = LossGradient(trained, make_loss(self.loss, trained))
            reward_gradient_sum = torch.zeros_like(mask)
            for examples in self._order(trained, epoch, seed).split(self.batch_size):
                gradient = reward.step(mask, examples)
                reward_gradient_sum -= gradient
                mask.grad = gradient + self.penalty_gradient(lambda1, mask, epoch)
                optimizer.step()
                mask.clamp_(0, 1)
            # Here, once an epoch, an accelerator is waited for.
            reward.check()
            soft_mask = mask.cpu()
            selected = self.selected(soft_mask)
            snapshot = run.add(target, soft_mask, reward_gradient_sum.cpu(), selected)
            record: dict[str, float] = {
                "epoch": epoch,
                **self.penalty_terms(lambda1, soft_mask, epoch),
                "reward": reward.value(),
                "binary_violation": masks.binary_violation(soft_mask).item(),
                "n_selected": snapshot.size,
                "effect": snapshot.effect,
            }
            run.history.append(record)
            _progress.current_run().report_values(size=snapshot.size, effect=snapshot.effect)
            if snapshot.size <= stop_at:
                break
        return run

    def _order(self, target: Target, epoch: int, seed: int) -> Tensor:
        if self.example_order is not None:
            if target.draws_pairs:
                raise ConfigError(
                    "example_order orders the given examples, and the search trains on others. "
                    "Leave out example_order or training_pairs."
                )
            return torch.tensor(list(self.example_order[epoch]))
        generator = torch.Generator().manual_seed((seed * 100_003 + epoch) % 2**63)
        return torch.randperm(target.n_examples, generator=generator)

    def _learning_rate(self, target: Target) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        kinds = target.registry.kinds
        return kind_of(kinds[0]).learning_rate if len(kinds) == 1 else _JOINT_LEARNING_RATE


@dataclass(frozen=True, kw_only=True)
class DCM(MaskTraining):
    """Desiderata-based component masking (Davies et al. 2023), as the paper compares with it.

    As in PGB-CT, 1 takes the counterfactual value. But the raw mean effect is raised instead of
    1/(1 + effect) lowered, nothing drives entries to 0 or 1, and the mask is rounded at the end.
    The penalty is lambda1 sum_i (m_i + 0.001)^(1/2), concave and the same in every epoch.
    """

    name: ClassVar[str] = "dcm"
    title: ClassVar[str] = "DCM"

    @property
    def loss(self) -> LossName:
        """The raw effect."""
        return "effect"

    def penalty_gradient(self, lambda1: float, mask: Mask, epoch: int) -> Mask:
        """Gradient of the penalty."""
        return 0.5 * lambda1 * (mask + _OFFSET).rsqrt()

    def penalty_terms(self, lambda1: float, mask: Mask, epoch: int) -> dict[str, float]:
        """The penalty, and its weight."""
        penalty = lambda1 * (mask + _OFFSET).sqrt().sum().item()
        return {"lambda1": lambda1, "size_penalty": penalty}

    def penalty_slope(self, lambda1: float, mask: Mask, epoch: int) -> float:
        """Derivative of the penalty by the first entry."""
        return 0.5 * lambda1 * (mask[0].item() + _OFFSET) ** -0.5
