"""The goal of all searches, and the sets they select."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from tracekit._util.options import is_int, short_repr
from tracekit.components.masks import BinaryMask, Mask, from_indices
from tracekit.engine.cost import Cost
from tracekit.errors import BudgetError, TargetNotReachedError
from tracekit.metrics import Effects
from tracekit.search.targets import Record, Target

Stop = Literal["max_passes", "max_seconds", "interrupted"]
"""Limit that ended a search, or Ctrl-C."""

_BISECTIONS = 40


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The best set of at most each budget, or the smallest set that reaches a target.

    With neither, only a search that decides its own size (PGB-CT with fixed lambdas) can answer.
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
        budgets: Iterable[int | float] | None = None,
        target_effect: float | None = None,
    ) -> Goal:
        """Checks a request, whose arguments are as in `Tracer.run`.

        Raises:
            BudgetError: Below one component, above all of them, or more than one kind of goal.
        """
        if len([v for v in (budget, budgets, target_effect) if v is not None]) > 1:
            raise BudgetError(
                "More than one goal was given. Use one of budget, budgets and target_effect."
            )
        if isinstance(budgets, (np.ndarray, Tensor)):
            budgets = budgets.tolist()
        if budgets is not None and (isinstance(budgets, str) or not isinstance(budgets, Iterable)):
            raise BudgetError(f"budgets is {budgets!r}. Give a list, or budget= for a single one.")
        asked = [budget] if budget is not None else list(budgets or ())
        if budgets is not None and not asked:
            raise BudgetError("The list of budgets is empty. Give at least one budget.")
        counts = sorted({as_count(value, n_components) for value in asked})
        if target_effect is not None and not _is_finite(target_effect):
            raise BudgetError(
                f"The target_effect is {short_repr(target_effect)}. Give a finite number, the mean "
                "effect to reach."
            )
        return cls(budgets=tuple(counts), target=target_effect)

    def with_smaller_sizes(self) -> Goal:
        """The same budgets and smaller ones, at most 32 of them, on a logarithmic scale."""
        if not self.budgets:
            return self
        smaller = log_spaced_sizes(1, self.budgets[-1], 32)
        return replace(self, budgets=tuple(sorted({*self.budgets, *smaller})))

    def require(self, method: str) -> None:
        """Refuses a goal without budget or target."""
        if not self.budgets and self.target is None:
            raise BudgetError(
                f"The method {method!r} needs to know how many components to select. "
                "Give budget, budgets or target_effect."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """One set of components that a search selected."""

    mask: BinaryMask
    effects: Effects
    """Measured with the binary mask, one per example of the data set."""
    history: tuple[Record, ...] = ()
    soft_mask: Mask | None = None
    """The relaxed mask that the set was cut from, or that refinement started from, if any."""
    component_scores: Mask | None = None
    """Scores that the components were ranked by, where the search ranks them."""
    budget: int | None = None
    saved: Cost = field(default_factory=Cost)
    """Work that a checkpoint saved, or that was done on parts of the examples."""
    stopped: Stop | None = None
    """Why the search ended early: `max_passes`, `max_seconds` or `interrupted`."""
    by: Search | None = None
    """Of a choice between searches, the one that selected the set."""
    held_out_by: Mapping[str, float] | None = None
    """Of such a choice, the mean effect on examples that had no part in selecting, by search."""
    n_skipped: int = 0
    """Edges that the search ranked as high as its members, and that lie on no path with them."""

    @classmethod
    def measured(cls, target: Target, indices: Sequence[int], **fields: Any) -> Selection:
        """Measures a set of flat indices; `fields` are the other fields."""
        mask = from_indices(indices, target.n_components)
        return cls(mask=mask, effects=target.effects(mask), **fields)

    @property
    def size(self) -> int:
        """Number of components."""
        return int(self.mask.sum())

    @property
    def effect(self) -> float:
        """Mean effect."""
        return self.effects.mean().item()


@dataclass(frozen=True, kw_only=True)
class PlannedPasses:
    """Passes of a search, said before it begins."""

    cost: Cost
    """Passes over the data at most; of gradients, both ways are counted."""
    is_exact: bool = False
    """Whether it takes exactly these."""
    if_faithful: Cost = field(default_factory=Cost)
    """At most so many more for faithful sets, where then all gradients are of the mean effect."""
    if_drawn: Cost = field(default_factory=Cost)
    """At most so many more where pairs are drawn to train on, which take runs of their own."""


@runtime_checkable
class Search(Protocol):
    """A search method: an immutable value that holds its options.

    It may also have the class variables `title`, for figures and tables (default: its name);
    `records_every_size`, whether its history holds an effect (`effect`) for each of several sizes
    (`n_selected`; default: no); and `trains`, whether each epoch trains on the next of
    `target.training_targets()` (default: no). With a method `planned_passes(n_components, goal)`,
    which returns `PlannedPasses`, it can be estimated and has a progress bar with an end.
    """

    name: ClassVar[str]
    """Name of the method, e.g. `top-k`."""

    def search(self, target: Target, goal: Goal, seed: int, /) -> list[Selection]:
        """Answers the goal: one set per budget, ascending, or one for a target."""
        ...


def _is_finite(value: object) -> bool:
    # Whole numbers beyond the largest float are not finite either.
    return (is_int(value) or isinstance(value, float)) and abs(value) <= sys.float_info.max


def as_count(budget: int | float, n_components: int) -> int:
    """A budget as a number of components, from one to all."""
    if not _is_finite(budget):
        raise BudgetError(
            f"A budget of {short_repr(budget)} is no number of components. "
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


def log_spaced_sizes(first: int, last: int, count: int) -> tuple[int, ...]:
    """At most `count` whole numbers from `first` to `last`, with both, even on a log scale."""
    close, wide = 1.0, float(max(2, last))
    # The smallest factor between neighbours that gives few enough sizes.
    for _ in range(_BISECTIONS):
        factor = (close * wide) ** 0.5
        if len(_sizes_by_factor(first, last, factor)) > count:
            close = factor
        else:
            wide = factor
    return _sizes_by_factor(first, last, wide)


def _sizes_by_factor(first: int, last: int, factor: float) -> tuple[int, ...]:
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(min(last, max(sizes[-1] + 1, round(sizes[-1] * factor))))
    return tuple(sizes)


def best_within(selections: Sequence[Selection], budget: int) -> Selection:
    """The selection of at most so many components with the largest effect, as that budget's."""
    fitting = [each for each in selections if each.size <= budget]
    return replace(max(fitting, key=lambda each: each.effect), budget=budget)


def planned_passes_of(search: Search, n_components: int, goal: Goal) -> PlannedPasses | None:
    """Passes that a search will take; None if it does not say."""
    planned = getattr(search, "planned_passes", None)
    return None if planned is None else planned(n_components, goal)


def target_not_reached(target: float, best: float) -> TargetNotReachedError:
    """The error for a target that no set that was tried reaches."""
    return TargetNotReachedError(
        f"No set that was tried reaches an effect of {target:g}; the largest seen is {best:.4g}. "
        "Ask for a smaller target_effect."
    )


def config_of(search: Search) -> dict[str, Any]:
    """Options of a search as JSON-ready values."""
    return {name: _as_json(value) for name, value in vars(search).items()}


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": getattr(value, "name", type(value).__name__), **asdict(value)}
    if callable(value):
        return getattr(value, "__name__", repr(value))
    return [_as_json(item) for item in value] if isinstance(value, (tuple, list)) else value
