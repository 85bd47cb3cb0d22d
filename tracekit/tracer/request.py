"""A request: what a search is asked for, and the passes that it will take.

`resolve_request` decides what a request leaves open; a plan is known before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from tracekit._util import progress
from tracekit._util.names import ObjectiveName, SignName
from tracekit._util.options import check_choice, check_seed, short_repr
from tracekit.data.pair import SeenPrompts
from tracekit.data.prompts import PromptPairs
from tracekit.engine.cost import Cost
from tracekit.engine.effects import check_metric
from tracekit.engine.engine import Engine
from tracekit.engine.sources import OtherModel
from tracekit.errors import BudgetError, ConfigError
from tracekit.measure.controls import MOST_CONTROLS, sizes_of_statistics
from tracekit.measure.question import KnownSets, Question
from tracekit.measure.training_pairs import TrainingSource
from tracekit.results.faithfulness import check_level
from tracekit.search import Goal, Search
from tracekit.search.auto import FEWEST_EXAMPLES, Auto
from tracekit.search.backward import most_backward_passes
from tracekit.search.base import PlannedPasses, log_spaced_sizes, planned_passes_of
from tracekit.search.baselines.empirical_bayes_topk import sizes_ranked_alone
from tracekit.search.constraint import Constraint, make_target
from tracekit.search.objectives import Faithful, Objective, describe_objective, resolve_objective
from tracekit.search.targets import Target, require_full_effect

_SIZES_TRIED = 24
"""Sizes at most among which the smallest faithful set is looked for, on a logarithmic scale."""
_LITTLE = 1.5
"""Times the passes of a search up to which no warning says what else is measured."""


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
        if self.sign is not None:
            check_choice("sign", self.sign, get_args(SignName))
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

    @property
    def seen_prompts(self) -> SeenPrompts:
        """The pairs that the search has seen."""
        seen = SeenPrompts(self.question.pairs)
        seen.digests |= set() if self.training is None else self.training.seen_prompts.digests
        seen.add(() if self.constraint is None else self.constraint[1].pairs_given)
        return seen

    def target(self, recorder: KnownSets | None = None) -> Target:
        """The target of the search; `recorder` notes sets within the bounds, and their scores."""
        engine = self.question.search_engine
        self.question.seen_prompts.digests |= self.seen_prompts.digests
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


@dataclass(frozen=True, kw_only=True)
class Plan(PlannedPasses):
    """How many passes a search, as a result's `cost` has them, and measuring its results take."""

    search: Search
    extra_passes: float
    """Passes that no `cost` counts, at most: what results are measured by, and statistics."""
    limited: tuple[Cost, ...]
    """Passes of each search that has limits of its own: on all examples, and on either half."""

    @property
    def passes(self) -> float:
        """All passes, at most."""
        return self.cost.forward_equivalents + self.extra_passes

    @property
    def limit_warning(self) -> str | None:
        """What the limits of the search do not bound; None if that is little."""
        limits = [
            (getattr(self.search, f"max_{unit}", None), unit) for unit in ("passes", "seconds")
        ]
        given = " and ".join(f"{limit:g} {unit}" for limit, unit in limits if limit is not None)
        if not given or self.passes < _LITTLE * self.limited[0].forward_equivalents:
            return None
        bounded = "the search"
        if len(self.limited) > 1:
            bounded = "each of three searches (on all examples, and on either half)"
        return (
            f"A limit of {given} applies to {bounded}. Measuring the results takes further "
            f"passes: at most {self.passes:.0f} in all. Ask for fewer sizes to take fewer."
        )


def plan(request: ResolvedRequest) -> Plan | None:
    """The passes of a search for budgets or a target; None if the search does not say."""
    planned = _planned(request, request.target(), request.search, request.goal_of_search)
    if planned is None:
        return None
    return Plan(
        search=request.searches[0],
        cost=planned.cost,
        is_exact=planned.is_exact,
        extra_passes=_passes_of_results(request, max(1, len(request.goal.budgets))),
        limited=_costs_of_limited_searches(request, has_halves=isinstance(request.search, Auto)),
    )


def plan_front(request: ResolvedRequest, *, statistics: bool) -> Plan | None:
    """The passes of a front, with its statistics or without; None if its search does not say."""
    target, last = request.target(), request.goal.budgets[-1]
    n, joint, is_choice = target.n_components, request.searches[0], isinstance(request.search, Auto)
    planned = _planned(request, target, joint, request.goal_of_search)
    if planned is None:
        return None
    cost = planned.cost
    sizes = tuple(sizes_of_statistics(range(1, last + 1)))
    if is_choice:
        goal = Goal(budgets=tuple(sorted({*sizes, *sizes_ranked_alone(n, 1, last)})))
        alone = _planned(request, target, request.searches[1], goal)
        cost += Cost() if alone is None else alone.cost
    extra = _passes_of_results(request, last)
    if statistics or is_choice:
        # Searches on both halves of the examples, whose sets are measured on the other half.
        goal = Goal(budgets=sizes)
        halves = [_planned(request, target, search, goal) for search in request.searches]
        if None not in halves:
            measured = Cost(2 * len(halves) * len(sizes))
            extra += sum((each.cost for each in halves if each), measured).forward_equivalents
    if statistics:
        # The walk from all components downwards, and four measurements of its sets.
        downwards = most_backward_passes(n, sizes) / 2 + 2 * len(sizes)
        extra += MOST_CONTROLS * len(sizes)
        extra += target.cost_of(Cost(downwards, downwards)).forward_equivalents
    limited = _costs_of_limited_searches(request, has_halves=statistics or is_choice)
    return Plan(
        search=joint, cost=cost, is_exact=planned.is_exact, extra_passes=extra, limited=limited
    )


def progress_bar(
    request: ResolvedRequest, planned: Plan | None, on_note: progress.OnNote
) -> AbstractContextManager[Any]:
    """The bar of a run; `on_note` is called with every step."""
    passes, shown = None if planned is None else planned.passes, request.question.config.progress
    n, name = request.question.search_engine.n_examples, request.search.name
    return progress.open_bar(name, passes, n, shown=shown, on_note=on_note)


def _planned(
    request: ResolvedRequest, target: Target, search: Search, goal: Goal
) -> PlannedPasses | None:
    """Passes of a search through a target: of its objective, its constraint and its paths."""
    planned = planned_passes_of(search, target.n_components, goal)
    if planned is None:
        return None
    # A limit is on all that is run.
    is_limited = getattr(search, "max_passes", None) is not None
    more = Cost() if target.faithful is None else planned.if_faithful
    cost = planned.cost if is_limited else target.cost_of(planned.cost + more)
    if target.paths is not None and not planned.is_exact:
        # Sets that lose idle edges are measured again.
        cost += target.cost_of(Cost(max(1, len(goal.budgets))))
    if more.forward and request.constraint is None:
        cost -= Cost(planned.cost.backward, planned.cost.backward)
    if request.training is not None:
        cost += planned.if_drawn
    if request.constraint is not None:
        share = request.constraint[1].n_examples / target.n_examples
        cost += Cost(2 * max(1, len(goal.budgets)) * share)
    follows_scores = not request.by_effect and planned.cost.backward > 0
    is_plain = not (request.constraint or follows_scores or more.forward > 0)
    return PlannedPasses(cost=cost, is_exact=planned.is_exact and is_plain)


def _passes_of_results(request: ResolvedRequest, n_results: int) -> float:
    """Passes by which results are measured: complements, held-out examples, further metrics."""
    question = request.question
    n_held_out = 0 if question.held_out_engine is None else question.held_out_engine.n_examples
    has_extra = len(question.extra_metrics) > 0
    share = n_held_out / question.search_engine.n_examples
    # A set that was chosen by scores takes one more pass, which measures its effects.
    again = 0 if request.by_effect else 1
    return n_results * (again + 2 + has_extra + share * (3 + has_extra))


def _costs_of_limited_searches(request: ResolvedRequest, *, has_halves: bool) -> tuple[Cost, ...]:
    n_components = len(request.question.registry)
    planned = planned_passes_of(request.searches[0], n_components, request.goal_of_search)
    assert planned is not None
    return (planned.cost, *([planned.cost * 0.5] * 2 if has_halves else []))
