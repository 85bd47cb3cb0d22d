"""Soft top-k: one score per component, learned so that its best k do well for every k.

Each step draws a budget k, finds by bisection the threshold t at which the masks
m_i = sigmoid((s_i - t) / T) sum to k, and follows the gradient of the mean effect at m back to the
scores, t held to its condition: with p_i = m_i (1 - m_i) and g the gradient at m,

    dl/ds_i = p_i / T (g_i - sum_j g_j p_j / sum_j p_j).

One short run ranks the components for all budgets, whatever their number; after "Matryoshka"
attribution (arXiv 2609.25518), with three differences. Budgets are not drawn at random but spread
evenly (a golden-ratio sequence, which the seed shifts). The gradient is clipped to length 1, so
that budgets with large effects do not drown the others. And the gradient is of the mean effect of
the whole data set, which has the direction of the paper's reward 1/(1 + mean effect).
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.masks import Mask
from tracekit.metrics import Effects
from tracekit.search.learned.reward import Reward, refuse_weights, slope
from tracekit.search.local.measurements import Ledger

BudgetSchedule = Literal["log", "uniform"]

_GOLDEN = 0.6180339887498949
_BISECTIONS = 60
_REACH = 40.0
"""Temperatures from the highest score within which the threshold lies."""


def soft_mask(scores: Float[Tensor, " component"], budget: float, temperature: float) -> Mask:
    """The sigmoid mask that sums to a budget.

    Args:
        scores: One per component.
        budget: In (0, number of components).
        temperature: Width of the transition, in units of the scores.
    """
    scores = scores.double()
    low = scores.min() - _REACH * temperature
    high = scores.max() + _REACH * temperature
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = torch.sigmoid((scores - middle) / temperature).sum() > budget
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return torch.sigmoid((scores - (low + high) / 2) / temperature).float()


def through_threshold(mask: Mask, gradient: Mask, temperature: float) -> Mask:
    """A gradient with respect to the scores from one with respect to the mask."""
    p = mask * (1 - mask)
    mean = (gradient * p).sum() / p.sum().clamp(min=torch.finfo(p.dtype).tiny)
    return p / temperature * (gradient - mean)


def soft_topk_scores(
    ledger: Ledger,
    *,
    largest: int,
    steps: int,
    seed: int,
    schedule: BudgetSchedule = "log",
    temperature: float = 0.25,
    learning_rate: float = 0.3,
    reward: Reward = "dataset",
) -> tuple[Mask, Mask]:
    """Scores of all components, and the sum of the gradients met on the way.

    The latter is an integrated gradient over soft masks: a second ranking that costs nothing.

    Args:
        ledger: Computes the gradients.
        largest: Largest budget drawn.
        steps: Number of steps, each over the whole data set.
        seed: Shifts the sequence of budgets.
        schedule: `log` draws as many budgets from 1 to 10 as from 10 to 100; `uniform` does not.
        temperature: T.
        learning_rate: Of Adam.
        reward: `dataset`, or `per-example` for the gradient of the mean of 1/(1 + effect).

    Raises:
        LimitReachedError: As in `Ledger.soft_gradient`.
    """
    engine = ledger.engine
    if reward == "per-example":
        refuse_weights(engine)
    scores = torch.zeros(engine.n_components)
    total = torch.zeros(engine.n_components)
    optimizer = torch.optim.Adam([scores], lr=learning_rate)

    def weigh(effects: Effects) -> Effects:
        if reward == "per-example":
            return -slope(effects, engine.metric.above_minus_one)
        return torch.ones_like(effects)

    for step in range(steps):
        share = (seed * _GOLDEN**2 + step * _GOLDEN) % 1
        budget = largest**share if schedule == "log" else 1 + (largest - 1) * share
        mask = soft_mask(scores, min(budget, engine.n_components - 0.5), temperature)

        def compute(mask: Mask = mask) -> Mask:
            return engine.gradient(mask, weigh)[1] / engine.n_examples

        gradient = ledger.soft_gradient(step, compute).nan_to_num()
        total += gradient
        pull = through_threshold(mask, gradient, temperature)
        scores.grad = -pull / pull.norm().clamp(min=1.0)
        optimizer.step()
    return scores, total
