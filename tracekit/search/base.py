"""What all searches share: the goal, what they find, and prefix search for a target effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar, Protocol, runtime_checkable

from tracekit.engine.engine import Cost, Engine
from tracekit.errors import BudgetError, NotDifferentiableError, TargetNotReachedError
from tracekit.masks import BinaryMask, Mask, from_indices, ranking
from tracekit.metrics import Effects, Metric

_SCANNED = 512

Record = Mapping[str, float | int | str]
"""One line of a history, e.g. one epoch or one greedy step."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is asked for: the best set of at most each budget, or the smallest reaching a target.

    With neither, only a search that decides its own size (PGB-CT with given lambdas) can answer.
    """

    budgets: tuple[int, ...] = ()
    """Largest numbers of components, ascending."""
    target: float | None = None
    """Mean effect to reach with as few components as possible."""

    @classmethod
    def make(
        cls,
        n_components: int,
        *,
        budget: int | float | None = None,
        budgets: Sequence[int | float] | None = None,
        target_effect: float | None = None,
    ) -> Goal:
        """Checks a request.

        Args:
            n_components: Number of components in all.
            budget: A count (int) or a share of all components (float in (0, 1]), rounded down.
            budgets: Several of them.
            target_effect: A mean effect.

        Raises:
            BudgetError: Below one component, above all of them, or more than one kind of goal.
        """
        given = [v for v in (budget, budgets, target_effect) if v is not None]
        if len(given) > 1:
            raise BudgetError(
                "More than one goal was given. Use one of budget, budgets and target_effect."
            )
        asked = [budget] if budget is not None else list(budgets or ())
        if budgets is not None and not asked:
            raise BudgetError("The list of budgets is empty. Give at least one budget.")
        counts = sorted({as_count(value, n_components) for value in asked})
        return cls(budgets=tuple(counts), target=target_effect)

    def require(self, method: str) -> None:
        """Refuses a goal without budget or target.

        Raises:
            BudgetError: Neither was given.
        """
        if not self.budgets and self.target is None:
            raise BudgetError(
                f"The method {method!r} needs to know how many components to select. "
                "Give budget, budgets or target_effect."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """One set of components that a search chose."""

    mask: BinaryMask
    effects: Effects
    """Measured with the binary mask, one per example of the data set."""
    history: tuple[Record, ...] = ()
    soft_mask: Mask | None = None
    """The relaxed mask that the set was cut from, or that refinement started from, where there is
    one."""
    scores: Mask | None = None
    """What the components were ranked by, where the search ranks them."""
    budget: int | None = None
    saved: Cost = field(default_factory=Cost)
    """Work that a checkpoint saved."""
    stopped: str | None = None
    """What cut the search short: `max_forwards`, `max_seconds` or `interrupted`."""


@runtime_checkable
class Search(Protocol):
    """A search method: an immutable value that holds its options."""

    name: ClassVar[str]

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Found]:
        """Answers the goal: one set per budget, ascending, or one for a target."""
        ...


def require_gradient(metric: Metric, method: str) -> None:
    """Refuses a metric without a gradient.

    Raises:
        NotDifferentiableError: It has none.
    """
    if not metric.differentiable:
        raise NotDifferentiableError(
            f"The metric {metric.name!r} has no gradient for {method} to follow. "
            "Search with logit-difference or odds-ratio and evaluate the set it finds, "
            "or use another method."
        )


def as_count(budget: int | float, n_components: int) -> int:
    """A budget as a number of components.

    Raises:
        BudgetError: Below one component or above all of them.
    """
    if not isinstance(budget, (int, float)) or not isfinite(budget):
        raise BudgetError(
            f"A budget of {budget!r} is no number of components. "
            f"Give a count from 1 to {n_components}, or a share of at most 1."
        )
    is_share = isinstance(budget, float) and not (budget > 1 and budget.is_integer())
    # The tolerance keeps 0.3 of 10 at 3.
    count = int(budget * n_components + 1e-9) if is_share else int(budget)
    if not 1 <= count <= n_components or (is_share and not 0 < budget <= 1):
        raise BudgetError(
            f"A budget of {budget!r} means {count} of {n_components} components. "
            f"Give a count from 1 to {n_components}, or a share (float) that is at most 1 and "
            "amounts to at least one component."
        )
    return count


def found_prefix(engine: Engine, order: Sequence[int], size: int) -> tuple[BinaryMask, Effects]:
    """The first `size` components of a ranking, measured."""
    mask = from_indices(order[:size], engine.n_components)
    return mask, engine.effects(mask)


def ranked(engine: Engine, goal: Goal, scores: Mask) -> list[Found]:
    """Answers a goal with the first components of a ranking.

    Raises:
        TargetNotReachedError: No size that was tried reaches the target.
    """
    order = ranking(scores)
    if goal.target is not None:
        mask, effects, size = smallest_prefix(engine, order, goal.target)
        record: Record = {"n_selected": size, "effect": effects.mean().item()}
        return [Found(mask=mask, effects=effects, scores=scores, history=(record,))]
    found: list[Found] = []
    history: tuple[Record, ...] = ()
    for budget in goal.budgets:
        mask, effects = found_prefix(engine, order, budget)
        history += ({"n_selected": budget, "effect": effects.mean().item()},)
        found.append(
            Found(mask=mask, effects=effects, scores=scores, history=history, budget=budget)
        )
    return found


def smallest_prefix(
    engine: Engine, order: Sequence[int], target: float
) -> tuple[BinaryMask, Effects, int]:
    """The smallest prefix of a ranking whose mean effect reaches a target.

    Sizes are doubled until one reaches the target, then halved in between: about 2 log2(N)
    passes. Effects need not grow with the size, so if no such size reaches it and there are few
    components, every prefix is measured; and a smaller prefix than the one found may exist.

    Raises:
        TargetNotReachedError: No size that was tried reaches it.
    """
    n = len(order)
    sizes = sorted({min(2**k, n) for k in range(n.bit_length() + 1)})
    means = {size: found_prefix(engine, order, size)[1].mean().item() for size in sizes[:1]}
    for size in sizes[1:]:
        if max(means.values()) >= target:
            break
        means[size] = found_prefix(engine, order, size)[1].mean().item()
    if max(means.values()) < target and n <= _SCANNED:
        rest = [size for size in range(1, n + 1) if size not in means]
        found = engine.mean_effects([order[:size] for size in rest], "prefixes")
        means.update(zip(rest, found.tolist(), strict=True))
    reaching = [size for size, mean in means.items() if mean >= target]
    if not reaching:
        raise not_reached(target, max(means.values()))
    size = min(reaching)
    below = max((other for other in means if other < size), default=0)
    while size - below > 1:
        middle = (below + size) // 2
        if found_prefix(engine, order, middle)[1].mean().item() >= target:
            size = middle
        else:
            below = middle
    mask, effects = found_prefix(engine, order, size)
    return mask, effects, size


def not_reached(target: float, best: float) -> TargetNotReachedError:
    """The error for a target that no set that was tried reaches."""
    return TargetNotReachedError(
        f"No set that was tried reaches an effect of {target:g}; the largest seen is {best:.4g}. "
        "Ask for a smaller target_effect."
    )
