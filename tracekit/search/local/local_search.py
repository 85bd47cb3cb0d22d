"""Path: the best set of every size from one run, at a cost that does not grow with the model.

1. The gradient at the empty set proposes single components, which are measured: the best one
   opens the path. Where there are too many to measure a good part of them, groups of components
   are measured and the best ones halved, down to single ones: that finds those that no gradient
   points to.
2. The sizes to visit are spread on a logarithmic scale. Where they are less than half of all,
   soft top-k ranks all components for all budgets (see `soft_topk.py`), and prefixes of the
   rankings are measured at each size.
3. The sizes are gone through upwards. At each, the gradient at the best set seen proposes a few
   components to add, to remove and to exchange; measured effects decide. A set found at one size
   seeds its neighbours.
4. Then downwards and upwards again: at each size the best set is taken up whose neighbours were
   not measured yet. That goes on until nothing promising is left or the passes are spent.

Every effect is measured with a binary mask. `refined` is the same search started from given
rankings; PGB-CT polishes its mask with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

from tqdm.auto import tqdm

from tracekit.engine.engine import Cost, Engine
from tracekit.engine.prefix_tree import Set
from tracekit.errors import ConfigError, NothingMeasuredError
from tracekit.masks import Mask, from_indices, ranking
from tracekit.metrics import Effects
from tracekit.search.base import Found, Goal, Record, not_reached, require_gradient
from tracekit.search.learned.reward import Reward
from tracekit.search.local.best_sets import Frontier, Moves, in_turn, spread
from tracekit.search.local.measurements import Ledger, LimitReachedError, Limits, Stop
from tracekit.search.local.soft_topk import BudgetSchedule, soft_topk_scores

_FEW = 16
"""Up to this many components, passes are cheap enough to search almost exhaustively."""
_MANY = 384
"""From this many on, a path takes no more passes than top-k."""
_CAPS = (600, 800)
"""Passes at most, below and above."""
_OF_GREEDY = 0.4
_EFFORTS = ((4, 0.3, 1), (8, 2.0, 1), (8, 2.0, 6))
"""Where a walk finds nothing left to try it tries harder: how many of the best sets of a size are
taken up, how far behind the best they may be, and how many times as many moves are tried."""
_FOR_SOFT_TOPK = 100
"""Passes below which soft top-k learns nothing worth its steps."""
_GROUPS = 16
_HALVED = 4
"""Groups that all components are dealt into, and how many of them are halved in each round."""
_PER_DENSE_SIZE = 6
_PER_SPREAD_SIZE = 18


@dataclass(frozen=True, kw_only=True)
class PathSearch:
    """The best set of every size; the options' defaults adapt to the number of components."""

    name: ClassVar[str] = "path"

    refine: bool = True
    """Whether gradients at binary masks propose neighbours. Without, the path is the best
    prefixes of the rankings."""
    soft_steps: int | None = None
    """Steps of soft top-k, at most a quarter of the passes. None: an eighth of the passes where
    not even half the sizes can be visited, else none."""
    schedule: BudgetSchedule = "log"
    """How soft top-k draws budgets: `log` or `uniform`."""
    temperature: float = 0.25
    """Of its masks."""
    learning_rate: float = 0.3
    """Of its scores."""
    reward: Reward = "dataset"
    """What it follows: the mean effect (`dataset`) or the mean of 1/(1 + effect) over examples
    (`per-example`)."""
    additions: int = 3
    """Sets with one component more that are measured on the first way up, at each size."""
    max_forwards: int | None = None
    """Passes at most, forward and backward alike. None: 0.4 of greedy's (or N + 2k for k of N
    components, if that is more) and at most 600; always 600 for up to 16 components; from 384 on,
    as many as there are components and at most 800."""
    max_seconds: float | None = None
    """Wall time after which the best so far is returned."""
    checkpoint: Path | None = None
    """File that holds all measurements; a search that finds it goes on where the last stopped."""

    def __post_init__(self) -> None:
        for name in ("max_forwards", "max_seconds", "temperature", "learning_rate", "additions"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}. It must be positive.")
        if self.soft_steps is not None and self.soft_steps < 0:
            raise ConfigError(f"soft_steps is {self.soft_steps}. It must be at least 0.")
        for name, known in (
            ("schedule", ("log", "uniform")),
            ("reward", ("dataset", "per-example")),
        ):
            if getattr(self, name) not in known:
                shown = " or ".join(map(repr, known))
                raise ConfigError(f"Unknown {name} {getattr(self, name)!r}. Use {shown}.")
        if not self.refine and self.soft_steps == 0:
            raise ConfigError(
                "Neither refinement nor soft top-k is left. Leave refine on, or give soft_steps."
            )

    def search(self, engine: Engine, goal: Goal, seed: int) -> list[Found]:
        """Answers the goal from one path.

        Raises:
            NotDifferentiableError: The metric has no gradient.
            TargetNotReachedError: No set that was tried reaches the target.
        """
        goal.require(self.name)
        path = self.walk(engine, goal, seed)
        if goal.target is None:
            return [path.found(budget, budget) for budget in goal.budgets]
        size = path.frontier.reaching(goal.target)
        if size is None and path.stopped == "interrupted":
            raise KeyboardInterrupt
        if size is None:
            best = max(map(path.frontier.effect, path.frontier.sizes))
            raise not_reached(goal.target, best)
        return [path.found(size, None)]

    def walk(self, engine: Engine, goal: Goal, seed: int) -> Walk:
        """Searches up to the largest budget; Ctrl-C, or a limit, ends it with the best so far.

        Ctrl-C before anything was measured is handed on.

        Raises:
            NotDifferentiableError: The metric has no gradient.
            NothingMeasuredError: It ended before any set was measured.
        """
        require_gradient(engine.metric, self.name)
        last = goal.budgets[-1] if goal.budgets else engine.n_components
        plan = self._plan(engine.n_components, last, goal.budgets)
        config = {**asdict(self), "budgets": goal.budgets, "target": goal.target, "seed": seed}
        for name in ("max_forwards", "max_seconds", "checkpoint"):
            del config[name]
        limits = Limits(max_forwards=plan.passes, max_seconds=self.max_seconds or float("inf"))
        ledger = Ledger(engine, limits, self.checkpoint, config)
        frontier = Frontier(ledger, last)
        walk = Walk(frontier)
        try:
            self._walk(walk, plan, goal.target, seed)
        except LimitReachedError as reached:
            walk.stopped = reached.limit
        except KeyboardInterrupt:
            walk.stopped = "interrupted"
        finally:
            ledger.save()
        if not frontier.sizes:
            if walk.stopped == "interrupted":
                raise KeyboardInterrupt
            raise NothingMeasuredError(
                f"The search was stopped ({walk.stopped}) before it measured anything. "
                "Allow it more."
            )
        if walk.stopped == "max_forwards" and self.max_forwards is None:
            walk.stopped = None  # The passes that the method takes of itself.
        return walk

    def _plan(self, n: int, last: int, budgets: Sequence[int]) -> Plan:
        passes = default_passes(n, last) if self.max_forwards is None else self.max_forwards
        plan = Plan.make(n, last, budgets, passes, every=self.refine)
        steps = plan.soft_steps if self.soft_steps is None else self.soft_steps
        # Half of the passes are left for measuring.
        return replace(plan, soft_steps=min(steps, passes // 4))

    def _walk(self, walk: Walk, plan: Plan, target: float | None, seed: int) -> None:
        frontier = walk.frontier
        looks = frontier.orders()
        frontier.measure([[i] for i in in_turn(*looks)[: plan.singles]], "single components")
        if plan.groups:
            frontier.halve(plan.groups, _HALVED)
        orders = looks
        if plan.soft_steps:
            walk.scores, total = soft_topk_scores(
                frontier.ledger,
                largest=frontier.largest,
                steps=plan.soft_steps,
                seed=seed,
                schedule=self.schedule,
                temperature=self.temperature,
                learning_rate=self.learning_rate,
                reward=self.reward,
            )
            orders = [ranking(walk.scores), ranking(total), *looks]
        if not plan.dense:
            frontier.measure(plan.prefixes(orders), "rankings")
        if self.refine:
            first = Moves(additions=self.additions, removals=0, swaps=1)
            _waves(frontier, plan, first, orders, target)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a walk will do."""

    passes: int
    """Forward and backward passes at most."""
    singles: int
    """Single components that are measured."""
    sizes: tuple[int, ...]
    """Sizes to visit."""
    dense: bool
    """Whether these are most sizes, so that few neighbours of each are enough."""
    soft_steps: int
    groups: int = 0
    """Groups of components that are halved, to find single ones that no gradient points to."""

    def prefixes(self, orders: Sequence[Sequence[int]]) -> list[Sequence[int]]:
        """What is measured of rankings: the sizes to visit, and with few passes more of them."""
        few = spread(1, self.sizes[-1], max(2, min(16, self.passes // 8)))
        sizes = sorted({*self.sizes, *few})
        return [order[:size] for size in sizes for order in orders]

    @classmethod
    def make(
        cls,
        n_components: int,
        last: int,
        budgets: Sequence[int],
        passes: int,
        *,
        every: bool = True,
    ) -> Plan:
        """Most sizes if there are passes enough, else some; spread on a logarithmic scale.

        Args:
            n_components: Number of components.
            last: Largest size.
            budgets: Sizes to visit in any case.
            passes: Passes at most.
            every: Whether to visit most sizes if possible.
        """
        singles = min(n_components, max(min(16, passes // 3), passes // 8))
        affordable = int((passes - singles) / _PER_DENSE_SIZE)
        dense = every and last <= 2 * affordable
        count = affordable if dense else passes // _PER_SPREAD_SIZE
        # A path of every budget asks for none in particular.
        asked = budgets if len(budgets) < last else ()
        sizes = tuple(sorted({*spread(1, last, max(2, count)), *asked}))
        steps = 0 if dense or passes < _FOR_SOFT_TOPK else passes // 8
        rounds = max(1, n_components // _GROUPS).bit_length()
        halving = singles < n_components and _GROUPS + 2 * _HALVED * rounds <= passes // 6
        return cls(
            passes=passes,
            singles=singles,
            sizes=sizes,
            dense=dense,
            soft_steps=steps,
            groups=_GROUPS if halving else 0,
        )


@dataclass(eq=False)
class Walk:
    """What a search left behind."""

    frontier: Frontier
    stopped: Stop | None = None
    """What cut it short."""
    scores: Mask | None = None
    """Of soft top-k."""

    @property
    def order(self) -> list[int]:
        """All components by these scores, or as they look from the empty set."""
        return self.frontier.orders()[0] if self.scores is None else ranking(self.scores)

    @property
    def saved(self) -> Cost:
        """Work that a checkpoint saved."""
        return self.frontier.ledger.saved

    def history(self) -> tuple[Record, ...]:
        """The best effect at every size that was measured."""
        return tuple(
            {"n_selected": size, "effect": self.frontier.effect(size)}
            for size in self.frontier.sizes
        )

    def found(self, size: int, budget: int | None) -> Found:
        """The best set of at most a size."""
        one = self.frontier.best_within(size)
        return Found(
            mask=from_indices(one, self.frontier.ledger.engine.n_components),
            effects=self.frontier.effects(one),
            history=self.history(),
            scores=self.scores,
            budget=budget,
            saved=self.saved,
            stopped=self.stopped,
        )


def default_passes(n_components: int, last: int) -> int:
    """Passes that a path up to a size takes at most."""
    if n_components >= _MANY:
        return min(n_components, _CAPS[1])
    if n_components <= _FEW:
        return _CAPS[0]
    greedy = sum(n_components - size for size in range(last))
    return min(max(int(_OF_GREEDY * greedy), n_components + 2 * last), _CAPS[0])


def refined(
    engine: Engine, known: Mapping[Set, Effects], budgets: Sequence[int], passes: int
) -> Frontier:
    """Improves measured sets by their neighbours.

    Args:
        engine: Measures.
        known: Measured sets, the starts.
        budgets: Sizes of interest, ascending.
        passes: Passes at most.
    """
    last = budgets[-1]
    plan = Plan.make(engine.n_components, last, budgets, passes)
    frontier = Frontier(Ledger(engine, Limits(max_forwards=passes)), last)
    frontier.adopt(known)
    with suppress(LimitReachedError):
        looks = frontier.orders()
        frontier.measure([[i] for i in in_turn(*looks)[: plan.singles]], "single components")
        if not plan.dense:
            frontier.measure(plan.prefixes(looks), "rankings")
        _waves(frontier, plan, Moves(additions=3, removals=0, swaps=1), looks, None)
    return frontier


def _waves(
    frontier: Frontier,
    plan: Plan,
    first: Moves,
    orders: Sequence[Sequence[int]],
    target: float | None,
) -> None:
    """Goes up and down the sizes until there is nothing left to try."""
    upwards, wave, sizes, effort = True, 0, list(plan.sizes), 0
    bar = tqdm(desc="path", leave=False, disable=not frontier.ledger.engine.progress)
    with bar:
        while True:
            tried = False
            for size in list(sizes if upwards else reversed(sizes)):
                reached = None if target is None else frontier.reaching(target)
                if reached is not None:
                    # Larger sets are of no interest any more.
                    sizes = [other for other in sizes if other <= reached]
                    frontier.largest = reached
                if size > frontier.largest:
                    continue
                if wave == 0 and plan.dense:
                    one, moves = frontier.unexplored(size, depth=1, within=0), first
                else:
                    depth, within, times = _EFFORTS[effort]
                    one = frontier.unexplored(size, depth=depth, within=within, effort=effort)
                    moves = _later(plan.dense, first, upwards, times)
                if one is None or size == frontier.ledger.engine.n_components:
                    continue
                place = plan.sizes.index(size)
                up = next(iter(plan.sizes[place + 1 :]), None)
                down = plan.sizes[place - 1] if place else None
                frontier.explore(one, moves, up=up, down=down, orders=orders, effort=effort)
                tried = True
                bar.update()
                bar.set_postfix(size=size, effect=f"{frontier.effect(size):.3g}")
            upwards, wave = not upwards, wave + 1
            if not tried:
                effort += 1
            if effort == len(_EFFORTS):
                return


def _later(dense: bool, first: Moves, upwards: bool, times: int) -> Moves:
    if dense:
        removals = 1 if upwards else 2
        return Moves(additions=2 * times, removals=removals * times, swaps=2 * times)
    return replace(first, removals=2 * times, swaps=2 * times, shares=(1 / 16, 1 / 4))
