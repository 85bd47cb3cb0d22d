"""PGB-CT: penalised gradient-based causal tracing (the paper's method).

One soft mask m over all components, started at 0.5. Every step follows the gradient of

    1 / (1 + effect under m)  +  lambda1(epoch) |m|_1  +  lambda2(epoch) m^T(1 - m)

with Adam and clamps m to [0, 1]. The penalties grow with the epoch, so that entries leave for 0
one after the other while the rest is driven to 1; {i : m_i > 0.5} is the selection.

One such descent is a *trial*. With given lambdas there is one trial, as in the paper. Without,
lambda1 = lambda2 is searched: the size of the selection falls as lambda grows, so every budget
is bracketed and the bracket halved on a logarithmic scale, all trials serving all budgets. Every
truncated mask of every epoch, and the largest entries of its soft mask, are measured exactly, and
the best set within each budget is returned.

Unless `refine` is off, one trial is enough: what it measured is then improved by exact passes (see
`path.py`), 250 passes in all for one budget. The paper's method is the one without.

Where the paper and its published code differ, both can be had: `reward` and `inclusive` here,
the mean over continuation tokens in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from tqdm.auto import tqdm

from tracekit import masks, schedules
from tracekit.errors import ConfigError
from tracekit.masks import Mask
from tracekit.passes import Precision, check_precision
from tracekit.runs import Cost, Engine
from tracekit.search.base import Found, Goal, require_gradient
from tracekit.search.frontier import Frontier
from tracekit.search.path import refined
from tracekit.search.reward import Reward, RewardGradient
from tracekit.search.trials import (
    Bracket,
    Trial,
    best_within,
    found_last,
    measured_by,
    smallest_reaching,
)

_LEARNING_RATES = {"heads": 0.1, "head-outputs": 0.1, "neurons": 0.5, "mlp-hidden": 0.5}
_JOINT_LEARNING_RATE = 0.01
_TRIALS = 8
_PASSES = 250
_PASSES_MORE = 50
"""Passes at most with refinement for one budget, and for each further one."""


@dataclass(frozen=True, kw_only=True)
class PGBCT:
    """Penalised gradient-based causal tracing; the defaults are the paper's."""

    name: ClassVar[str] = "pgb-ct"

    lambda1: float | None = None
    """Weight of |m|_1. None: searched, together with `lambda2`."""
    lambda2: float | None = None
    """Weight of m^T(1 - m). None: the value of `lambda1`."""
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
    inclusive: bool = False
    """Whether entries equal to the threshold are selected, as in the published code."""
    reward: Reward = "dataset"
    """`dataset`: 1/(1 + mean effect), the paper's equation. `per-example`: the mean of
    1/(1 + effect), the published code, which saturates on the examples that matter most."""
    schedule: str | schedules.Schedule = "linear"
    """Growth of both penalties over the epochs: `constant`, `linear`, `exponential`,
    `polynomial`, or a callable from the epoch (from 0) to a factor."""
    penalty_reduction: Literal["sum", "mean"] = "sum"
    """`sum` over components as in the paper; `mean` makes lambdas comparable between models."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates."""
    trials: int | None = None
    """Trials at most per budget when lambda is searched. None: 1 with refinement, 8 without."""
    refine: bool = True
    """Whether sets within a budget are improved by measuring their neighbours."""
    precision: Precision = "float32"
    """Of the matrix products while the mask is learned: `float32`, `tf32` or `bfloat16`. Selected
    sets are always measured in the model's own precision."""
    example_order: Sequence[Sequence[int]] | None = None
    """Order of the examples in each epoch, to repeat a run exactly. None: shuffled by the seed."""

    def __post_init__(self) -> None:
        for name in ("lambda1", "lambda2"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"{name} is {value}. It must be at least 0.")
        for name in ("epochs", "batch_size", "trials"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}. It must be at least 1.")
        for name in ("init", "threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}. It must lie in [0, 1].")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ConfigError(f"learning_rate is {self.learning_rate}. It must be positive.")
        if self.reward not in ("dataset", "per-example"):
            raise ConfigError(f"Unknown reward {self.reward!r}. Use 'dataset' or 'per-example'.")
        check_precision(self.precision)
        if self.penalty_reduction not in ("sum", "mean"):
            raise ConfigError(
                f"Unknown penalty_reduction {self.penalty_reduction!r}. Use 'sum' or 'mean'."
            )
        if self.lambda1 is None and self.lambda2 is not None:
            raise ConfigError(
                "lambda2 was given without lambda1. Give both, lambda1 alone (lambda2 follows it), "
                "or neither to have them searched."
            )
        schedules.resolve(self.schedule)

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Found]:
        """Runs one trial with the given lambdas, or searches lambda.

        Raises:
            NotDifferentiableError: The metric has no gradient.
            BudgetError: lambda is to be searched, and there is neither a budget nor a target.
        """
        require_gradient(engine.metric, "PGB-CT")
        before = engine.cost
        if self.lambda1 is None:
            goal.require(self.name)
            if goal.target is not None:
                return [self._reach(engine, goal.target, seed)]
            return self._best(engine, self._fill(engine, goal.budgets, seed), goal.budgets, before)
        trial = self._descend(engine, self.lambda1, seed, stop_at=min(goal.budgets, default=0))
        if goal.target is not None:
            return [smallest_reaching([trial], engine, goal.target)]
        if goal.budgets:
            return self._best(engine, [trial], goal.budgets, before)
        return [found_last(trial)]

    def _best(
        self, engine: Engine, trials: Sequence[Trial], budgets: Sequence[int], before: Cost
    ) -> list[Found]:
        """The best set within each budget, improved if that is wanted."""
        measured = measured_by(trials)
        found = best_within(trials, engine, budgets, measured)
        passes = _PASSES + _PASSES_MORE * (len(budgets) - 1)
        left = int(passes - (engine.cost - before).forward_equivalents)
        if not self.refine or left < 1:
            return found
        frontier = refined(engine, measured, budgets, left)
        return [_improved(one, frontier) for one in found]

    # ---- lambda searched ------------------------------------------------------------------

    def _fill(self, engine: Engine, budgets: Sequence[int], seed: int) -> list[Trial]:
        """Trials for several budgets; every one serves all of them."""
        trials: list[Trial] = []
        for budget in budgets:
            bracket = Bracket(self._first_lambda(engine, budget) if not trials else 0.0)
            for trial in trials:
                bracket.note(trial.lambda1, trial.last.n_selected > budget)
            # Later budgets start from the brackets that earlier ones left.
            for _ in range(self._trials if not trials else (self._trials + 1) // 2):
                guess = bracket.guess()
                if guess is None:
                    break
                trials.append(self._descend(engine, guess, seed, stop_at=budgets[0]))
                bracket.note(guess, trials[-1].last.n_selected > budget)
        return trials

    @property
    def _trials(self) -> int:
        if self.trials is not None:
            return self.trials
        return 1 if self.refine else _TRIALS

    def _reach(self, engine: Engine, target: float, seed: int) -> Found:
        """Smallest set with at least the target effect: the strongest penalty that allows it."""
        trials: list[Trial] = []
        bracket = Bracket(self._first_lambda(engine, max(1, engine.n_components // 10)))
        for _ in range(_TRIALS if self.trials is None else self.trials):
            guess = bracket.guess()
            if guess is None:
                break
            trials.append(self._descend(engine, guess, seed, stop_at=0))
            bracket.note(guess, trials[-1].last.effect >= target)
        return smallest_reaching(trials, engine, target)

    def _first_lambda(self, engine: Engine, budget: int) -> float:
        """A lambda at which about `budget` components outweigh the penalty half-way through."""
        start = torch.full((engine.n_components,), self.init, device=engine.device)
        reward = RewardGradient(engine, "dataset", self.precision)
        gradient = reward.step(start, torch.arange(engine.n_examples)).cpu()
        reward.check()
        marginal = gradient.neg().sort(descending=True).values[budget - 1].abs().item()
        middle = schedules.resolve(self.schedule)(self.epochs // 2)
        scale = engine.n_components if self.penalty_reduction == "mean" else 1
        return max(marginal, 1e-12) * scale / max(middle, 1e-12)

    # ---- one trial ------------------------------------------------------------------------

    def _descend(self, engine: Engine, lambda1: float, seed: int, *, stop_at: int) -> Trial:
        """One descent; ends early once at most `stop_at` components are selected."""
        lambda2 = lambda1 if self.lambda2 is None else self.lambda2
        mask = torch.full((engine.n_components,), self.init, device=engine.device)
        optimizer = torch.optim.Adam([mask], lr=self._rate(engine), betas=self.betas)
        reward = RewardGradient(engine, self.reward, self.precision)
        trial = Trial(lambda1)
        bar = tqdm(
            range(self.epochs),
            desc=f"pgb-ct, lambda {lambda1:.2g}",
            leave=False,
            disable=not engine.progress,
        )
        for epoch in bar:
            factor = schedules.resolve(self.schedule)(epoch)
            weights = (lambda1 * factor, lambda2 * factor)
            push = torch.zeros_like(mask)
            for examples in self._order(engine, epoch, seed).split(self.batch_size):
                gradient = reward.step(mask, examples)
                push -= gradient
                mask.grad = gradient + self._penalty_gradient(mask, *weights)
                optimizer.step()
                mask.clamp_(0, 1)
            # Here, once an epoch, an accelerator is waited for.
            reward.check()
            soft_mask = mask.cpu()
            selected = masks.truncate(soft_mask, self.threshold, inclusive=self.inclusive)
            shot = trial.add(engine, soft_mask, push.cpu(), selected)
            size_penalty, binary_penalty = self._penalties(soft_mask, *weights)
            trial.history.append(
                {
                    "epoch": epoch,
                    "lambda1": weights[0],
                    "lambda2": weights[1],
                    "reward": reward.value(),
                    "size_penalty": size_penalty,
                    "binary_penalty": binary_penalty,
                    "binary_violation": masks.binary_violation(soft_mask).item(),
                    "n_selected": shot.n_selected,
                    "effect": shot.effect,
                }
            )
            bar.set_postfix(selected=shot.n_selected, effect=f"{shot.effect:.3g}")
            if shot.n_selected <= stop_at:
                break
        return trial

    def _order(self, engine: Engine, epoch: int, seed: int) -> Tensor:
        if self.example_order is not None:
            return torch.tensor(list(self.example_order[epoch]))
        generator = torch.Generator().manual_seed(seed * 100_003 + epoch)
        return torch.randperm(engine.n_examples, generator=generator)

    def _penalty_gradient(self, mask: Mask, lambda1: float, lambda2: float) -> Mask:
        scale = 1 / len(mask) if self.penalty_reduction == "mean" else 1.0
        # The derivative of |m| at 0 is taken as 0, as torch and the published code do.
        return scale * (lambda1 * mask.sign() + lambda2 * (1 - 2 * mask))

    def _penalties(self, mask: Mask, lambda1: float, lambda2: float) -> tuple[float, float]:
        scale = 1 / len(mask) if self.penalty_reduction == "mean" else 1.0
        return (
            scale * lambda1 * masks.l1(mask).item(),
            scale * lambda2 * masks.binary_violation(mask).item(),
        )

    def _rate(self, engine: Engine) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        kinds = engine.registry.kinds
        return _LEARNING_RATES.get("+".join(kinds), _JOINT_LEARNING_RATE)


def _improved(found: Found, frontier: Frontier) -> Found:
    """What was found, or a better set within its budget."""
    assert found.budget is not None
    best = frontier.best_within(found.budget)
    if frontier.effects(best).mean() <= found.effects.mean():
        return found
    mask = masks.from_indices(best, len(found.mask))
    return replace(found, mask=mask, effects=frontier.effects(best))
