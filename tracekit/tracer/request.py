"""A request: what a search is asked for. `resolve_request` decides what a request leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast, get_args

from tracekit._util.names import ObjectiveName, SignName, choices_text
from tracekit._util.options import check_seed, short_repr
from tracekit.data.prompts import PromptPairs
from tracekit.engine.effects import check_metric, prepare_choices
from tracekit.engine.engine import Engine
from tracekit.engine.sources import OtherModel
from tracekit.errors import BudgetError, ConfigError
from tracekit.measure.question import KnownSets, Question
from tracekit.measure.training_pairs import TrainingSource
from tracekit.results.result import check_level
from tracekit.search import Goal, Search
from tracekit.search.auto import FEWEST_EXAMPLES, Auto
from tracekit.search.base import log_spaced_sizes
from tracekit.search.constraint import Constraint, make_target
from tracekit.search.objectives import Faithful, Objective, describe_objective, resolve_objective
from tracekit.search.targets import Target, require_full_effect

_SIZES_TRIED = 24
"""Sizes at most among which the smallest faithful set is looked for, on a logarithmic scale."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a search is asked for: the arguments of `Tracer.run`, with the method as a value.

    `resolve_request` decides the objective and the sign where they are None.
    """

    search: Search
    budget: int | float | None = None
    budgets: Sequence[int | float] | None = None
    target_effect: float | None = None
    faithfulness: float | None = None
    """Level to reach by the fewest components, of the sizes that `resolve_request` chooses."""
    objective: ObjectiveName | Objective | None = None
    sign: SignName | None = None
    constraint: Constraint | None = None
    training_pairs: Iterable[PromptPairs] | None = None
    """Batches of pairs without end that the search trains on, in place of the searched examples."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.objective is not None:
            resolve_objective(self.objective)
        if self.sign is not None and self.sign not in get_args(SignName):
            raise ConfigError(
                f"sign is {short_repr(self.sign)}. Give one of {choices_text(SignName)}."
            )
        if self.constraint is not None and not isinstance(self.constraint, Constraint):
            raise ConfigError(
                f"constraint is {short_repr(self.constraint)}. Give a tk.Constraint, e.g. "
                "tk.Constraint(pairs=..., at_most=0.05)."
            )


@dataclass(frozen=True, kw_only=True)
class ResolvedRequest:
    """A request on a question, with everything decided."""

    question: Question
    search: Search
    """The search; with `objective="auto"` an `Auto`, which chooses between two."""
    goal: Goal
    objective: Objective | None = None
    """What is maximised over the examples; None: the mean effect."""
    sign: int = 1
    """Of the effects that are sought, 1 or -1."""
    constraint: tuple[Constraint, Engine] | None = None
    """The constraint, and the engine that measures it."""
    training: TrainingSource | None = None
    """Draws the pairs that the search trains on, if not the searched examples."""
    seed: int = 0

    @property
    def searches(self) -> list[Search]:
        """The search, or both that it chooses between, the joint one first."""
        return self.search.searches if isinstance(self.search, Auto) else [self.search]

    @property
    def objective_name(self) -> str:
        """Name of the objective: `auto`, or what is maximised."""
        return "auto" if isinstance(self.search, Auto) else describe_objective(self.objective)

    @property
    def by_effect(self) -> bool:
        """Whether scores of the search are the effects themselves."""
        return self.objective is None and self.sign > 0

    @property
    def goal_of_search(self) -> Goal:
        """The goal as the search is given it: by its scores."""
        goal = self.goal
        if goal.target is not None:
            goal = replace(goal, target=self.sign * goal.target)
        if self.constraint is not None and getattr(self.search, "records_every_size", False):
            return goal.with_smaller_sizes()  # Its sets grow until they leave the bounds.
        return goal

    def target(self, recorder: KnownSets | None = None) -> Target:
        """The target of the search; `recorder` notes sets within the bounds, and their scores."""
        engine = self.question.search_engine
        if isinstance(self.objective, Faithful) and self.objective.complement:
            require_full_effect(engine, self.sign)
        return make_target(
            engine,
            self.objective,
            self.constraint,
            sign=self.sign,
            record=None if recorder is None else recorder.record,
            record_effects=self.question.sets.record,
            draw=None if self.training is None else self.training.engines,
        )


def resolve_request(
    question: Question, request: Request, *, usual: ObjectiveName = "mean"
) -> ResolvedRequest:
    """Decides what a request leaves open.

    The objective is by default the `usual` one, or faithfulness for edges and where the source is
    another model. The sign is by default that of the target effect, or of all components where sets
    are to be faithful.

    Raises:
        BudgetError: About the budget, or a target effect of another sign, or by an objective.
        ConfigError: About the objective.
    """
    n, target = len(question.registry), request.target_effect
    budgets = request.budgets
    if request.faithfulness is not None:
        check_level(request.faithfulness)
        if (request.budget, budgets, target) != (None, None, None):
            raise BudgetError(
                "More than one goal was given. Use one of budget, budgets, target_effect and "
                "faithfulness."
            )
        budgets, usual = log_spaced_sizes(1, n, _SIZES_TRIED), "faithful"
    goal = Goal.make(n, budget=request.budget, budgets=budgets, target_effect=target)
    search, constraint = request.search, None
    objective, sign = _objective_and_sign(question, request, usual)
    maximised = resolve_objective(objective)
    if maximised is not None and goal.target is not None:
        raise BudgetError(
            "A target_effect is a mean effect, and the search maximises something else. Give a "
            "budget, or leave the objective out."
        )
    if objective == "auto":
        if request.constraint is not None:
            raise ConfigError(
                "objective='auto' chooses between sets that need not stay within a constraint. "
                "Leave one of them out, or use objective='mean'."
            )
        n_examples = question.search_engine.pairs.n_distinct
        if n_examples < FEWEST_EXAMPLES:
            raise ConfigError(
                f"objective='auto' searches halves of the examples, and there are {n_examples}. "
                f"Give at least {FEWEST_EXAMPLES}, or use 'mean'."
            )
        search = cast(Search, Auto(first=search))
    if request.constraint is not None:
        pairs = question.pairs if request.constraint.pairs is None else request.constraint.pairs
        engine = question.engine_of(pairs, metric=request.constraint.metric)
        check_metric(engine)
        constraint = request.constraint, engine
    return ResolvedRequest(
        training=_training_source(question, request),
        question=question,
        search=search,
        goal=goal,
        objective=maximised,
        sign=_sign_of(question, sign, goal.target),
        constraint=constraint,
        seed=request.seed,
    )


def _training_source(question: Question, request: Request) -> TrainingSource | None:
    if request.training_pairs is None:
        return None
    if not getattr(request.search, "trains", False):
        raise ConfigError(
            f"The method {request.search.name!r} does not train on pairs. Leave out "
            "training_pairs, or use learned-ranking, pgb-ct or dcm."
        )
    if request.constraint is not None:
        raise ConfigError(
            "A constraint is measured on the searched examples, and training_pairs are others. "
            "Leave one of them out."
        )
    return TrainingSource(question, request.training_pairs)


def resolve_front(question: Question, request: Request, *, statistics: bool) -> ResolvedRequest:
    """As `resolve_request`, of a front: by default of all sizes, and by `auto` with statistics."""
    if request.budget is None:
        request = replace(request, budget=1.0)
    has_halves = statistics and question.search_engine.pairs.n_distinct >= FEWEST_EXAMPLES
    is_free = has_halves and request.constraint is None
    return resolve_request(question, request, usual="auto" if is_free else "mean")


def _objective_and_sign(
    question: Question, request: Request, usual: ObjectiveName
) -> tuple[ObjectiveName | Objective, SignName | None]:
    """The objective and the sign of a request, where it gives none by what the question is."""
    objective, sign = request.objective, request.sign
    if objective is not None:
        return objective, sign
    if request.target_effect is not None:
        return "mean", sign
    if isinstance(question.setup.source, OtherModel):
        # What two models differ in is what carries the whole effect.
        return (Faithful(complement=0.0) if sign in (None, "full") else "mean"), sign
    if question.registry.edges is not None and sign is None:
        return "faithful", "full"  # Sets of edges that do whatever all edges do.
    return usual, sign or ("full" if usual == "faithful" else None)


def _sign_of(question: Question, sign: SignName | None, target: float | None) -> int:
    """Sign of the effects that are sought, 1 or -1; `target` is the effect to reach, if any."""
    is_between_models = isinstance(question.setup.source, OtherModel)
    if sign is None and target:
        sought = 1 if target > 0 else -1
    elif sign == "full" or (sign is None and is_between_models):
        prepare_choices(question.search_engine)  # Reads more of the clean run that this takes.
        sought = -1 if question.search_engine.full_effects.mean() < 0 else 1
    else:
        sought = -1 if sign == "negative" else 1
    if target and target * sought < 0:
        side = "below" if sought < 0 else "above"
        raise BudgetError(
            f"The target_effect is {target:g}, and sign={sign!r} seeks effects {side} 0. Leave out "
            f"sign, or give a target_effect {side} 0."
        )
    return sought
