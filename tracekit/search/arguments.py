"""The arguments of `Tracer.run` by search method, for editors and type checkers.

They repeat the fields of the searches; a test holds both against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from tracekit.engine.precision import Precision
from tracekit.search.keeping import Keep
from tracekit.search.learned.reward import Reward
from tracekit.search.learned.schedules import Schedule
from tracekit.search.local.soft_topk import BudgetSampling
from tracekit.search.objectives import Objective, ObjectiveName


class _Every(TypedDict, total=False):
    objective: ObjectiveName | Objective
    keep: Keep | None
    observe: Callable[[Any], object] | None
    seed: int


class OneSet(_Every, total=False):
    """Arguments of a run with one result."""

    budget: int | float | None
    target_effect: float | None


class _Budgets(TypedDict):
    budgets: Sequence[int | float]


class Curve(_Budgets, _Every):
    """Arguments of a run with a result for each budget."""


class _Racing(TypedDict, total=False):
    race: bool


class _Draws(TypedDict, total=False):
    draws: int
    race: bool


class _Sets(TypedDict, total=False):
    max_sets: int


class _Steps(TypedDict, total=False):
    steps: int


class _Shrunken(TypedDict, total=False):
    by_gradients: bool | None
    steps: int


class _Training(TypedDict, total=False):
    lambda1: float | None
    learning_rate: float | None
    epochs: int
    batch_size: int
    init: float
    threshold: float
    betas: tuple[float, float]
    precision: Precision
    example_order: Sequence[Sequence[int]] | None
    trials: int | None


class _Penalised(_Training, total=False):
    lambda2: float | None
    inclusive: bool
    reward: Reward
    penalty_schedule: str | Schedule
    penalty_reduction: Literal["sum", "mean"]
    refine: bool
    start_from_examples: bool | None


class LocalOptions(TypedDict, total=False):
    """Fields of `LocalSearch`."""

    refine: bool
    soft_steps: int | None
    budget_sampling: BudgetSampling
    temperature: float
    learning_rate: float
    reward: Reward
    additions: int | None
    start_from_examples: bool | None
    race: bool
    max_passes: int | None
    max_seconds: float | None
    checkpoint: Path | None


class PGBCTSet(OneSet, _Penalised, total=False):
    """Of `pgb-ct`, for one result."""


class PGBCTCurve(Curve, _Penalised):
    """Of `pgb-ct`, for a result for each budget."""


class LocalSearchSet(OneSet, LocalOptions, total=False):
    """Of `local-search`, for one result."""


class LocalSearchCurve(Curve, LocalOptions):
    """Of `local-search`, for a result for each budget."""


class DCMSet(OneSet, _Training, total=False):
    """Of `dcm`, for one result."""


class DCMCurve(Curve, _Training):
    """Of `dcm`, for a result for each budget."""


class TopKSet(OneSet, _Racing, total=False):
    """Of `top-k`, for one result."""


class TopKCurve(Curve, _Racing):
    """Of `top-k`, for a result for each budget."""


class ShrunkenTopKSet(OneSet, _Shrunken, total=False):
    """Of `shrunken-top-k`, for one result."""


class ShrunkenTopKCurve(Curve, _Shrunken):
    """Of `shrunken-top-k`, for a result for each budget."""


class GreedySet(OneSet, _Racing, total=False):
    """Of `greedy`, for one result."""


class GreedyCurve(Curve, _Racing):
    """Of `greedy`, for a result for each budget."""


class RandomSet(OneSet, _Draws, total=False):
    """Of `random`, for one result."""


class RandomCurve(Curve, _Draws):
    """Of `random`, for a result for each budget."""


class ExhaustiveSet(OneSet, _Sets, total=False):
    """Of `exhaustive`, for one result."""


class ExhaustiveCurve(Curve, _Sets):
    """Of `exhaustive`, for a result for each budget."""


class MaskIGSet(OneSet, _Steps, total=False):
    """Of `mask-ig`, for one result."""


class MaskIGCurve(Curve, _Steps):
    """Of `mask-ig`, for a result for each budget."""
