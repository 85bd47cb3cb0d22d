"""Local search: the best set of every size from one run, within a number of passes.

1. The gradient at the empty set proposes single components, which are measured: all of them where
   that is cheap, else the first few. From 384 components on groups of them are measured, too, and
   the best ones halved, down to single ones: that finds those that no gradient points to.
2. A walk up and down through sizes, along a model of the slopes that learns from every gradient
   (see `slope_model.py` and `model_walk.py`). After the first way up, where one example carries a
   set, sets are made for single examples, and the walk goes on from there (see
   `single_examples.py`); also where sets race and the slopes of one example promise that it could.
   From then on gradients read only the examples that carry the effects, where these are few. The
   sizes between have a set each that the model makes.
3. A sweep along first-order predictions looks for what the model does not see: at each size the
   gradient at the best set seen proposes a few components to add and to exchange; measured effects
   decide. Where it finds something the walk goes on from there, and another sweep follows, until
   one finds nothing. A way up like greedy's comes last: at each size the four components are
   measured that promise most to the set before, and the best one joins. It may take an eighth of
   the passes. Where these do not suffice up to the largest size, the search leaves it out, but for
   a number of passes that was asked for, and from 384 components on.
4. With up to 16 components, or if a number of passes was asked for, more sweeps go downwards and
   upwards in turn. At each size they expand the best set whose neighbours were not measured yet.
   That goes on until nothing promising is left or the passes are spent. Else the search ends.

Beyond 1024 components, and where something is kept, there is no walk. Then sets for single examples
are made and prefixes of rankings of all components are measured, from 384 components on of those
that soft top-k learns for all budgets (see `soft_topk.py`), and the sweeps do the rest.

The number of passes is capped; what a pass costs grows with the model. Every effect is measured
with a binary mask. `refine_sets` is a shorter search started from given sets; PGB-CT improves its
mask with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from tracekit._util.options import check_at_least, check_choice, check_positive, check_types
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices, ranking
from tracekit.engine.cost import Cost
from tracekit.errors import ConfigError, NothingFoundError
from tracekit.metrics import Effects
from tracekit.search.base import Goal, Planned, Record, Selection, not_reached, require_gradient
from tracekit.search.learned.reward import Reward
from tracekit.search.local.best_sets import BestSets, relative_gains
from tracekit.search.local.checkpoint import Checkpoint
from tracekit.search.local.measurements import LimitReachedError, Limits, MeasurementCache, Stop
from tracekit.search.local.model_walk import ModelWalk
from tracekit.search.local.moves import in_turn
from tracekit.search.local.older_face import effects_tell_all
from tracekit.search.local.plan import (
    FEW,
    GROUPS_HALVED,
    MOST_OF_WALK,
    SearchPlan,
    SweepPlan,
    WalkPlan,
    default_passes,
    may_start_from_examples,
    prefixes,
    reserved_passes,
    sizes_of_refinement,
)
from tracekit.search.local.soft_topk import BudgetSampling, soft_topk_logits
from tracekit.search.local.sweeps import Sweeps
from tracekit.search.racing import Portions
from tracekit.search.targets import Target

_Plan = TypeVar("_Plan", bound=SweepPlan)
_GAIN, _GAIN_AT_ONE = 1e-3, 1e-2
"""Relative gains of the sweep after the walk, or of greedy's way, beyond which the search goes on:
the mean over sizes, and the largest."""
_OF_REFINEMENT = 0.6
"""Share of the passes of a refinement that its walk begins new rounds within."""
_EXAMPLES_OF_REFINEMENT = 0.2
"""Share for sets for single examples."""


@dataclass(frozen=True, kw_only=True)
class LocalSearch:
    """The best set of every size; the options' defaults adapt to the number of components."""

    name: ClassVar[str] = "local-search"
    title: ClassVar[str] = "local search"
    records_every_size: ClassVar[bool] = True

    refine: bool = True
    """Whether gradients at binary masks propose sets. Without, the result is the best
    prefixes of the rankings."""
    soft_steps: int | None = None
    """Steps of soft top-k, at most a quarter of the passes. None: an eighth of the passes where
    not even half the sizes can be visited and there are 384 components or more, or no refinement;
    else none."""
    budget_sampling: BudgetSampling = "log"
    """How soft top-k draws budgets: `log` or `uniform`."""
    temperature: float = 0.25
    """Of its masks."""
    learning_rate: float = 0.3
    """Of its logits."""
    reward: Reward = "dataset"
    """What it follows: the mean effect (`dataset`) or the mean of 1/(1 + effect) over examples
    (`per-example`)."""
    additions: int | None = None
    """Sets with one component more that the first sweep measures at each size. None: where most
    sizes are visited 8, or 3 with fewer than 15 passes for each size, but after a walk 8 to sets of
    one component or two; 2 where only some sizes are visited."""
    start_from_examples: bool | None = None
    """Whether sets are made for single examples, which takes passes. Where the search walks, 0.075
    of them, at least 40 and at most a fifth, if one example carries more than a third of the effect
    of a set; where sets race, also if the slopes of one at the empty set promise that. Else a
    quarter, from 160 passes on; or 0.4, from 120 on, where only some sizes are visited; or 0.05
    from 384 components on, given 256 examples or more. Only where the metric is a curve over
    log-odds and one example alone can make up a good part of the mean effect. None: with every
    objective but `auto`, as such sets hold less on fresh examples."""
    race: bool = True
    """Whether sets and gradients are measured on a part of the examples where that is enough: on
    those that carry most of the effect, and from 96 examples on in races (see `racing.py`). The
    sets that it selects are measured on all."""
    max_passes: int | None = None
    """Passes at most, forward and backward alike. None: 0.4 of greedy's and at most 600, but
    at least 450, or 1.4 of greedy's where these are fewer, and N + 2k for k of N components; always
    600 for up to 16 components; from 384 on, as many as there are components and at most 800;
    whatever is measured on a part of the examples counted as if on all. Between 16 and 1024
    components a search without this limit ends where nothing more is found after the walk."""
    max_seconds: float | None = None
    """Wall time after which the best so far is returned."""
    checkpoint: Path | None = None
    """File that holds all measurements; a search that finds it goes on where the last stopped."""

    def __post_init__(self) -> None:
        check_types(self)
        check_positive(
            self, "max_passes", "max_seconds", "temperature", "learning_rate", "additions"
        )
        check_at_least(self, 0, "soft_steps")
        check_choice(self, "budget_sampling", "log", "uniform")
        check_choice(self, "reward", "dataset", "per-example")
        if not self.refine and self.soft_steps == 0:
            raise ConfigError(
                "Neither refinement nor soft top-k is left. Leave refine on, or give soft_steps."
            )

    def planned(self, n_components: int, goal: Goal) -> Planned:
        """Passes at most: the limit, or what the method allows itself."""
        last = goal.budgets[-1] if goal.budgets else n_components
        passes = default_passes(n_components, last) if self.max_passes is None else self.max_passes
        return Planned(cost=Cost(passes))

    def search(self, engine: Target, goal: Goal, seed: int) -> list[Selection]:
        """Answers the goal from one run.

        Raises:
            NotDifferentiableError: The metric has no gradient.
            TargetNotReachedError: No set that was tried reaches the target.
        """
        goal.require(self.name)
        state = self.run(engine, goal, seed)
        if goal.target is None:
            return [state.selection(budget, budget) for budget in goal.budgets]
        best_sets = state.best_sets
        size = best_sets.reaching(goal.target)
        if size is None and state.stopped == "interrupted":
            raise KeyboardInterrupt
        if size is None:
            raise not_reached(goal.target, max(map(best_sets.effect, best_sets.sizes)))
        return [state.selection(size, None)]

    def run(self, engine: Target, goal: Goal, seed: int) -> SearchState:
        """Searches up to the largest budget; Ctrl-C, or a limit, ends it with the best so far.

        Ctrl-C before anything was measured is handed on.

        Raises:
            NotDifferentiableError: The metric has no gradient.
            NothingFoundError: It ended before any set was measured.
            ResultFormatError: The checkpoint cannot be used, or another search uses it.
        """
        require_gradient(engine.metric, self.name)
        last = goal.budgets[-1] if goal.budgets else engine.n_components
        passes = self._passes(engine, last)
        limits = Limits(
            max_passes=self.max_passes or float("inf"),
            max_planned=passes if self.max_passes is None else float("inf"),
            max_seconds=self.max_seconds or float("inf"),
        )
        portions = Portions.make(engine, seed, race=self.race)
        with self._checkpoint_for(engine, goal, seed) as checkpoint:
            measurements = MeasurementCache(engine, limits, checkpoint, portions)
            best_sets = BestSets(measurements, last)
            state = SearchState(best_sets)
            try:
                self._search(state, goal, passes, seed)
            except LimitReachedError as reached:
                state.stopped = reached.limit
            except KeyboardInterrupt:
                state.stopped = "interrupted"
            finally:
                measurements.save()
        if not best_sets.sizes:
            if state.stopped == "interrupted":
                raise KeyboardInterrupt
            raise NothingFoundError(
                f"The search was stopped ({state.stopped}) before it measured anything. "
                "Allow it more."
            )
        if state.stopped == "max_passes" and self.max_passes is None:
            state.stopped = None  # The method's own number of passes, not the user's limit.
        return state

    def _checkpoint_for(
        self, engine: Target, goal: Goal, seed: int
    ) -> AbstractContextManager[Checkpoint | None]:
        if self.checkpoint is None:
            return nullcontext()
        config = {**asdict(self), "budgets": goal.budgets, "target": goal.target, "seed": seed}
        # A search may go on with other limits.
        for name in ("max_passes", "max_seconds", "checkpoint"):
            del config[name]
        return Checkpoint(self.checkpoint, engine, config).in_use()

    def _passes(self, engine: Target, last: int) -> int:
        """Passes at most: the limit, or what the method allows itself."""
        return (
            default_passes(engine.n_components, last)
            if self.max_passes is None
            else self.max_passes
        )

    def _plan(self, engine: Target, goal: Goal, passes: int, *, has_walked: bool) -> SearchPlan:
        n_components = engine.n_components
        plan = SearchPlan.make(
            n_components,
            goal.budgets[-1] if goal.budgets else n_components,
            goal.budgets,
            passes,
            every_size=self.refine,
            from_examples=self.start_from_examples is not False
            and not has_walked
            and may_start_from_examples(n_components, engine.n_examples),
        )
        soft_steps = plan.soft_steps if self.soft_steps is None else self.soft_steps
        # Half of the passes are left for measuring.
        plan = replace(plan, soft_steps=min(soft_steps, passes // 4))
        return self._with_own_additions(plan)

    def _with_own_additions(self, plan: _Plan) -> _Plan:
        """The plan, with the number of additions that was asked for."""
        if self.additions is None:
            return plan
        return replace(plan, additions=self.additions, additions_to_small=self.additions)

    def _search(self, state: SearchState, goal: Goal, passes: int, seed: int) -> None:
        best_sets = state.best_sets
        engine = best_sets.engine
        has_walked = self.refine and _can_walk(engine)
        if has_walked:
            if not self._walk(best_sets, goal, passes):
                return
            passes = int(best_sets.measurements.room)
        orders = best_sets.orders_from_empty()
        plan = self._plan(engine, goal, passes, has_walked=has_walked)
        self._sweep(state, plan, goal.target, seed, orders)

    def _walk(self, best_sets: BestSets, goal: Goal, passes: int) -> bool:
        """Walks along a model of the slopes; whether there is more to find."""
        n_components = best_sets.engine.n_components
        plan = WalkPlan.make(n_components, best_sets.largest, goal.budgets, passes)
        takes_all_passes = n_components <= FEW or self.max_passes is not None
        with best_sets.confirming(plan.reserved):
            walk = ModelWalk(best_sets, plan.sizes)
            orders = best_sets.orders_from_empty()
            _measure_singles(best_sets, plan.singles, orders)
            if plan.singles == n_components and len(goal.budgets) <= len(plan.sizes):
                # The sets of top-k are starts, and what is found does at least as much.
                best_sets.measure(prefixes([best_sets.singles()], goal.budgets), "top-k")
            if plan.groups:
                best_sets.group_testing(plan.groups, GROUPS_HALVED)
            walk.go(goal.target, rounds=1)
            if self.start_from_examples is not False and (
                best_sets.does_one_example_carry or best_sets.might_one_example_carry()
            ):
                best_sets.start_from_examples(plan.example_sizes, plan.example_passes)
            walk.go(goal.target, passes=plan.passes)
            walk.fill(plan.filled)
            look = self._with_own_additions(plan.look)
            sweeps = Sweeps(best_sets, look, orders, goal.target)
            while _gains(best_sets, look.sizes, sweeps.go_once):
                walk.go(goal.target, passes=plan.passes)
            like_greedy = partial(walk.go_like_greedy, plan.greedy_passes)
            goes_like_greedy = takes_all_passes or plan.goes_like_greedy(best_sets.largest)
            if goes_like_greedy and _gains(best_sets, plan.sizes, like_greedy):
                walk.go(goal.target, passes=plan.passes)
        return takes_all_passes

    def _sweep(
        self,
        state: SearchState,
        plan: SearchPlan,
        target: float | None,
        seed: int,
        orders: Sequence[Sequence[int]],
    ) -> None:
        """Sweeps along first-order predictions."""
        best_sets = state.best_sets
        _measure_singles(best_sets, plan.singles, orders)
        if plan.groups:
            best_sets.group_testing(plan.groups, GROUPS_HALVED)
        best_sets.start_from_examples(plan.example_sizes, plan.example_passes)
        if plan.soft_steps:
            state.logits, gradient_sum = soft_topk_logits(
                best_sets.measurements,
                largest=best_sets.largest,
                steps=plan.soft_steps,
                seed=seed,
                budget_sampling=self.budget_sampling,
                temperature=self.temperature,
                learning_rate=self.learning_rate,
                reward=self.reward,
            )
            orders = [ranking(state.logits), ranking(gradient_sum), *orders]
        if not plan.dense:
            best_sets.measure(prefixes(orders, plan.prefix_sizes), "rankings")
        if self.refine:
            Sweeps(best_sets, plan, orders, target).go_on()


@dataclass(eq=False)
class SearchState:
    """What a search has found so far."""

    best_sets: BestSets
    stopped: Stop | None = None
    """What cut it short."""
    logits: Mask | None = None
    """Of soft top-k."""

    @property
    def order(self) -> list[int]:
        """All components by these logits, or as the gradient at the empty set ranks them."""
        if self.logits is None:
            return self.best_sets.orders_from_empty()[0]
        return ranking(self.logits)

    @property
    def saved(self) -> Cost:
        """Work that a checkpoint saved."""
        return self.best_sets.measurements.saved

    def history(self) -> tuple[Record, ...]:
        """The best effect at every size that was measured."""
        return tuple(
            {"n_selected": size, "effect": self.best_sets.effect(size)}
            for size in self.best_sets.sizes
        )

    def selection(self, size: int, budget: int | None) -> Selection:
        """The best set of at most a size."""
        members = self.best_sets.best_within(size)
        return Selection(
            mask=from_indices(members, self.best_sets.engine.n_components),
            effects=self.best_sets.effects(members),
            history=self.history(),
            component_scores=self.logits,
            budget=budget,
            saved=self.saved,
            stopped=self.stopped,
        )


def refine_sets(
    engine: Target,
    measured: Mapping[ComponentSet, Effects],
    budgets: Sequence[int],
    passes: int,
    *,
    start_from_examples: bool = True,
) -> BestSets:
    """Improves measured sets by a short local search that starts from them.

    Args:
        engine: Measures.
        measured: Measured sets, the starts.
        budgets: Sizes of interest, ascending.
        passes: Passes at most.
        start_from_examples: Whether sets are made for single examples, where one carries a set.
    """
    last = budgets[-1]
    measurements = MeasurementCache(
        engine, Limits(max_passes=passes), portions=Portions.whole(engine)
    )
    best_sets = BestSets(measurements, last)
    best_sets.import_measured(measured)
    with suppress(LimitReachedError):
        if _can_walk(engine):
            sizes = sizes_of_refinement(last, budgets)
            with best_sets.confirming(reserved_passes(sizes, passes)):
                walk = ModelWalk(best_sets, sizes)
                walk.go(None, rounds=1)
                if start_from_examples and best_sets.does_one_example_carry:
                    best_sets.start_from_examples(sizes, _EXAMPLES_OF_REFINEMENT * passes)
                walk.go(None, passes=_OF_REFINEMENT * passes)
            passes = int(best_sets.measurements.room)
        plan = SearchPlan.make(engine.n_components, last, budgets, passes, from_examples=False)
        orders = best_sets.orders_from_empty()
        _measure_singles(best_sets, plan.singles, orders)
        if not plan.dense:
            best_sets.measure(prefixes(orders, plan.prefix_sizes), "rankings")
        Sweeps(best_sets, plan, orders, None).go_on()
    return best_sets


def _can_walk(engine: Target) -> bool:
    """Whether a model of the slopes tells what the search maximises, and is quick to ask."""
    return effects_tell_all(engine) and engine.n_components <= MOST_OF_WALK


def _gains(best_sets: BestSets, sizes: Sequence[int], look: Callable[[], object]) -> bool:
    """Whether a look elsewhere finds sets of these sizes that are worth going on from."""
    before = best_sets.effects_at(sizes)
    look()
    gains = relative_gains(before, best_sets.effects_at(sizes))
    return bool(gains.mean() > _GAIN or gains.max() > _GAIN_AT_ONE)


def _measure_singles(best_sets: BestSets, count: int, orders: Sequence[Sequence[int]]) -> None:
    best_sets.measure([[i] for i in in_turn(*orders)[:count]], "single components")
