"""Descent of a penalised soft mask, and the search for the weight of its penalty.

Every step follows the gradient of an objective (see `reward.py`) and of a penalty with Adam and
clamps the mask to [0, 1]. One such descent is a *trial*. With a given lambda1 there is one trial,
as in the papers. Without, lambda1 is searched: the size of the selection falls as it grows, so
every budget is bracketed and the bracket halved on a logarithmic scale, all trials serving all
budgets. Every truncated mask of every epoch, and the largest entries of its soft mask, are
measured exactly, and the best set within each budget is returned.

Methods differ in objective, penalty and truncation: `pgbct.py`, `dcm.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from tqdm.auto import tqdm

from tracekit import masks
from tracekit.engine.engine import Cost, Engine
from tracekit.engine.forward import Precision, check_precision
from tracekit.errors import ConfigError
from tracekit.masks import BinaryMask, Mask
from tracekit.search.base import Found, Goal, require_gradient
from tracekit.search.learned.lambda_search import (
    Bracket,
    Trial,
    best_within,
    found_last,
    measured_by,
    smallest_reaching,
)
from tracekit.search.learned.reward import Objective, RewardGradient

_LEARNING_RATES = {"heads": 0.1, "head-outputs": 0.1, "neurons": 0.5, "mlp-hidden": 0.5}
_JOINT_LEARNING_RATE = 0.01
_TRIALS = 8


@dataclass(frozen=True, kw_only=True)
class Descent(ABC):
    """What methods that learn a soft mask share."""

    name: ClassVar[str]

    lambda1: float | None = None
    """Weight of the size penalty. None: searched."""
    learning_rate: float | None = None
    """Adam's step. None: 0.1 for heads, 0.5 for neurons, 0.01 where kinds are combined or whole
    MLP blocks take part."""
    epochs: int = 15
    """Passes over the data; the paper uses 30 on Professions."""
    batch_size: int = 32
    """Examples per step."""
    init: float = 0.5
    """Starting value of every entry."""
    threshold: float = 0.5
    """tau: entries above it are selected."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates."""
    precision: Precision = "float32"
    """Of the matrix products while the mask is learned: `float32`, `tf32` or `bfloat16`. Selected
    sets are always measured in the model's own precision."""
    example_order: Sequence[Sequence[int]] | None = None
    """Order of the examples in each epoch, to repeat a run exactly. None: shuffled by the seed."""

    def __post_init__(self) -> None:
        if self.lambda1 is not None and not self.lambda1 >= 0:
            raise ConfigError(f"lambda1 is {self.lambda1}. It must be at least 0.")
        check_positive(self, "epochs", "batch_size")
        for name in ("init", "threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}. It must lie in [0, 1].")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ConfigError(f"learning_rate is {self.learning_rate}. It must be positive.")
        check_precision(self.precision)

    # ---- what a method is -----------------------------------------------------------------

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """What is descended, beside the penalty."""

    @property
    @abstractmethod
    def most_trials(self) -> int:
        """Trials at most for the first budget when lambda1 is searched."""

    @abstractmethod
    def selected(self, mask: Mask) -> BinaryMask:
        """The selection that a soft mask stands for."""

    @abstractmethod
    def growth(self, epoch: int) -> float:
        """Factor of the penalty in an epoch."""

    @abstractmethod
    def marginal(self, mask: Mask) -> float:
        """What the size penalty at lambda1 = 1 charges for an entry of the mask, about."""

    @abstractmethod
    def penalty_gradient(self, mask: Mask, lambda1: float, epoch: int) -> Mask:
        """Gradient of the penalty."""

    @abstractmethod
    def penalties(self, mask: Mask, lambda1: float, epoch: int) -> dict[str, float]:
        """What the history says about the penalty."""

    def best(
        self, engine: Engine, trials: Sequence[Trial], budgets: Sequence[int], before: Cost
    ) -> list[Found]:
        """The best set within each budget."""
        return best_within(trials, engine, budgets, measured_by(trials))

    # ---- the search -----------------------------------------------------------------------

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Found]:
        """Runs one trial with the given lambda1, or searches it.

        Raises:
            NotDifferentiableError: The metric has no gradient.
            BudgetError: lambda1 is to be searched, and there is neither a budget nor a target.
        """
        require_gradient(engine.metric, self.name)
        before = engine.cost
        if self.lambda1 is None:
            goal.require(self.name)
            if goal.target is not None:
                return [self._reach(engine, goal.target, seed)]
            return self.best(engine, self._fill(engine, goal.budgets, seed), goal.budgets, before)
        trial = self._descend(engine, self.lambda1, seed, stop_at=min(goal.budgets, default=0))
        if goal.target is not None:
            return [smallest_reaching([trial], engine, goal.target)]
        if goal.budgets:
            return self.best(engine, [trial], goal.budgets, before)
        return [found_last(trial)]

    # ---- lambda searched ------------------------------------------------------------------

    def _fill(self, engine: Engine, budgets: Sequence[int], seed: int) -> list[Trial]:
        """Trials for several budgets; every one serves all of them."""
        trials: list[Trial] = []
        for budget in budgets:
            bracket = Bracket(self._first_lambda(engine, budget) if not trials else 0.0)
            for trial in trials:
                bracket.note(trial.lambda1, trial.last.n_selected > budget)
            # Later budgets start from the brackets that earlier ones left.
            for _ in range(self.most_trials if not trials else (self.most_trials + 1) // 2):
                guess = bracket.guess()
                if guess is None:
                    break
                trials.append(self._descend(engine, guess, seed, stop_at=budgets[0]))
                bracket.note(guess, trials[-1].last.n_selected > budget)
        return trials

    def _reach(self, engine: Engine, target: float, seed: int) -> Found:
        """Smallest set with at least the target effect: the strongest penalty that allows it."""
        trials: list[Trial] = []
        bracket = Bracket(self._first_lambda(engine, max(1, engine.n_components // 10)))
        for _ in range(max(self.most_trials, _TRIALS)):
            guess = bracket.guess()
            if guess is None:
                break
            trials.append(self._descend(engine, guess, seed, stop_at=0))
            bracket.note(guess, trials[-1].last.effect >= target)
        return smallest_reaching(trials, engine, target)

    def _first_lambda(self, engine: Engine, budget: int) -> float:
        """A lambda at which about `budget` components outweigh the penalty half-way through."""
        start = torch.full((engine.n_components,), self.init, device=engine.device)
        kind: Objective = "effect" if self.objective == "effect" else "dataset"
        reward = RewardGradient(engine, kind, self.precision)
        gradient = reward.step(start, torch.arange(engine.n_examples)).cpu()
        reward.check()
        marginal = gradient.neg().sort(descending=True).values[budget - 1].abs().item()
        charged = self.marginal(start) * max(self.growth(self.epochs // 2), 1e-12)
        return max(marginal, 1e-12) / charged

    # ---- one trial ------------------------------------------------------------------------

    def _descend(self, engine: Engine, lambda1: float, seed: int, *, stop_at: int) -> Trial:
        """One descent; ends early once at most `stop_at` components are selected."""
        mask = torch.full((engine.n_components,), self.init, device=engine.device)
        optimizer = torch.optim.Adam([mask], lr=self._rate(engine), betas=self.betas)
        reward = RewardGradient(engine, self.objective, self.precision)
        trial = Trial(lambda1)
        bar = tqdm(
            range(self.epochs),
            desc=f"{self.name}, lambda {lambda1:.2g}",
            leave=False,
            disable=not engine.progress,
        )
        for epoch in bar:
            push = torch.zeros_like(mask)
            for examples in self._order(engine, epoch, seed).split(self.batch_size):
                gradient = reward.step(mask, examples)
                push -= gradient
                mask.grad = gradient + self.penalty_gradient(mask, lambda1, epoch)
                optimizer.step()
                mask.clamp_(0, 1)
            # Here, once an epoch, an accelerator is waited for.
            reward.check()
            soft_mask = mask.cpu()
            shot = trial.add(engine, soft_mask, push.cpu(), self.selected(soft_mask))
            line: dict[str, Any] = {"epoch": epoch, **self.penalties(soft_mask, lambda1, epoch)}
            line |= {
                "reward": reward.value(),
                "binary_violation": masks.binary_violation(soft_mask).item(),
                "n_selected": shot.n_selected,
                "effect": shot.effect,
            }
            trial.history.append(line)
            bar.set_postfix(selected=shot.n_selected, effect=f"{shot.effect:.3g}")
            if shot.n_selected <= stop_at:
                break
        return trial

    def _order(self, engine: Engine, epoch: int, seed: int) -> Tensor:
        if self.example_order is not None:
            return torch.tensor(list(self.example_order[epoch]))
        generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
        return torch.randperm(engine.n_examples, generator=generator)

    def _rate(self, engine: Engine) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        kinds = engine.registry.kinds
        return _LEARNING_RATES.get("+".join(kinds), _JOINT_LEARNING_RATE)


def check_positive(search: Descent, *names: str) -> None:
    """Refuses counts below 1.

    Raises:
        ConfigError: Names the option.
    """
    for name in names:
        value = getattr(search, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}. It must be at least 1.")
