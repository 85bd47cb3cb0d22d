"""Soft top-k: one logit per component, learned so that its best k do well for every k.

Each step draws a budget k, finds by bisection the threshold t at which the masks
m_i = sigmoid((s_i - t) / T) sum to k, and follows the gradient of the mean effect at m back to the
logits s, t held to its condition: with p_i = m_i (1 - m_i) and g the gradient at m,

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
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components.masks import Mask
from tracekit.metrics import Effects
from tracekit.search.learned.reward import Reward, may_have_pole, refuse_weights, reward_slope
from tracekit.search.local.measurements import MeasurementCache

BudgetSampling = Literal["log", "uniform"]

_GOLDEN = 0.6180339887498949
_BISECTIONS = 60
_REACH = 40.0
"""Temperatures from the highest logit within which the threshold lies."""


def soft_mask(logits: Float[Tensor, " component"], budget: float, temperature: float) -> Mask:
    """The sigmoid mask that sums to a budget.

    Args:
        logits: One per component.
        budget: In (0, number of components).
        temperature: Width of the transition, in units of the logits.
    """
    logits = logits.double()
    low = logits.min() - _REACH * temperature
    high = logits.max() + _REACH * temperature
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_too_large = torch.sigmoid((logits - middle) / temperature).sum() > budget
        low = torch.where(is_too_large, middle, low)
        high = torch.where(is_too_large, high, middle)
    return torch.sigmoid((logits - (low + high) / 2) / temperature).float()


def through_threshold(mask: Mask, gradient: Mask, temperature: float) -> Mask:
    """A gradient with respect to the logits from one with respect to the mask."""
    p = mask * (1 - mask)
    mean = (gradient * p).sum() / p.sum().clamp(min=torch.finfo(p.dtype).tiny)
    return p / temperature * (gradient - mean)


def soft_topk_logits(
    measurements: MeasurementCache,
    *,
    largest: int,
    steps: int,
    seed: int,
    budget_sampling: BudgetSampling = "log",
    temperature: float = 0.25,
    learning_rate: float = 0.3,
    reward: Reward = "dataset",
) -> tuple[Mask, Mask]:
    """Logits of all components, and the sum of the gradients on the way.

    The latter is an integrated gradient over soft masks: a second ranking that costs nothing.

    Args:
        measurements: Computes the gradients.
        largest: Largest budget drawn.
        steps: Number of steps, each over the whole data set.
        seed: Shifts the sequence of budgets.
        budget_sampling: `log` draws as many budgets from 1 to 10 as from 10 to 100; `uniform`
            does not.
        temperature: T.
        learning_rate: Of Adam.
        reward: `dataset`, or `per-example` for the gradient of the mean of 1/(1 + effect).

    Raises:
        LimitReachedError: As in `MeasurementCache.soft_gradient`.
    """
    engine = measurements.engine
    if reward == "per-example":
        refuse_weights(engine)
    logits = torch.zeros(engine.n_components)
    gradient_sum = torch.zeros(engine.n_components)
    optimizer = torch.optim.Adam([logits], lr=learning_rate)

    def example_weights(effects: Effects) -> Effects:
        if reward == "per-example":
            return -reward_slope(effects, may_have_pole(engine.metric))
        return torch.ones_like(effects)

    for step in range(steps):
        # Multiples of the golden ratio, modulo 1, spread evenly however many there are.
        share = (seed * _GOLDEN**2 + step * _GOLDEN) % 1
        budget = largest**share if budget_sampling == "log" else 1 + (largest - 1) * share
        mask = soft_mask(logits, min(budget, engine.n_components - 0.5), temperature)

        def compute(examples: Int[Tensor, " example"] | None, mask: Mask = mask) -> Mask:
            n_examples = engine.n_examples if examples is None else len(examples)
            return engine.gradient(mask, example_weights, examples)[1] / n_examples

        gradient = measurements.soft_gradient(step, compute).nan_to_num()
        gradient_sum += gradient
        pull = through_threshold(mask, gradient, temperature)
        logits.grad = -pull / pull.norm().clamp(min=1.0)
        optimizer.step()
    return logits, gradient_sum
