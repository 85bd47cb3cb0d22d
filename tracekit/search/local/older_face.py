"""What this local search asks of a target beyond its face."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tracekit.engine.engine import Engine
from tracekit.search.targets import ConstrainedTarget, ScoredTarget, Target


def are_independent(target: Target) -> bool:
    """Whether the effect on an example is the same whatever other examples there are."""
    return isinstance(target, Engine)


def effects_tell_all(target: Target) -> bool:
    """Whether what is maximised is a function of the effects alone."""
    return not isinstance(target, ConstrainedTarget)


def scores_of(target: Target, effects: Tensor) -> Tensor:
    """What is maximised the mean of, for sets with these effects."""
    inner: Any = target
    if isinstance(inner, ConstrainedTarget):
        inner = inner._inner
    return inner._objective.scores(effects) if isinstance(inner, ScoredTarget) else effects


def examples_of_set(target: Target, n_examples: int) -> int:
    """Examples that are run to measure a set."""
    is_constrained = isinstance(target, ConstrainedTarget)
    return n_examples + (target._measures.n_examples if is_constrained else 0)


def examples_of_gradient(target: Target, n_examples: int, *, is_soft: bool) -> int:
    """Examples that are run for a gradient."""
    if isinstance(target, ScoredTarget):
        return 3 * n_examples
    if not isinstance(target, ConstrainedTarget):
        return 2 * n_examples
    n_kept = target._measures.n_examples
    kept = 2 * min(n_examples, n_kept) if is_soft else 3 * n_kept
    return examples_of_gradient(target._inner, n_examples, is_soft=is_soft) + kept
