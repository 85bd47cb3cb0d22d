"""Local search: the best set of every size from one run, within a number of passes.

Rankings give sets of each size that is visited, and sweeps up and down through the sizes improve
them; `docs/methods.md` has the steps. Every effect is measured with a binary mask. `refine` is the
same from given sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from pydantic import PositiveFloat, PositiveInt

from tracekit._util import progress as _progress
from tracekit._util.options import ValidatedFields
from tracekit._util.warn import warn
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, ranking
from tracekit.engine.cost import Cost
from tracekit.errors import NothingFoundError, SearchStoppedWarning
from tracekit.metrics import Effects
from tracekit.search.backward import shrink
from tracekit.search.base import (
    Goal,
    PlannedPasses,
    Selection,
    log_spaced_sizes,
    target_not_reached,
)
from tracekit.search.baselines.attribution import MaskIG, weights_along_line
from tracekit.search.checkpoint import SearchCheckpoint
from tracekit.search.measurements import BestSets, LimitReachedError, Measurements
from tracekit.search.prefix import prefix_members
from tracekit.search.targets import Target, require_gradient

_T = TypeVar("_T")
# How a search divides its passes; chosen on the demo tasks.
_PASSES = 300
"""Passes over the data by default: heads of the demo tasks need 110 to 210 of them."""
_MOST_PASSES = 512
"""Passes by default are as many as there are components, up to this many."""
_MANY = 384
"""Components from which on sizes are far apart and backward elimination is worth its passes."""
_PASSES_PER_SIZE = 20
"""Passes for each size that is visited. Of so few components all neighbours are measured, and
all pairs: no gradient points to two of which either is enough."""
_MOST_SIZES = 16
"""Sizes that are visited at most, so that there are passes for several sweeps."""
_SHARE_OF_ALL_SINGLES = 1 / 3
"""Share of the passes that measuring every single component may take."""
_SHARE_OF_SOME_SINGLES = 1 / 8
"""Share of the passes for the single components that gradients choose otherwise."""
_ADDITIONS = 5
"""Sets with one component more that are measured beside a set; fewer miss joint effects."""
_EXCHANGES = 2
"""Sets with one component exchanged, and as many with one fewer."""
_SHARES_EXCHANGED = (1 / 32, 1 / 8)
"""Shares of a set that are exchanged at once where sizes are far apart."""
_LEAST_GAIN = 1e-3
"""Relative gain of a sweep, averaged over sizes, below which the search ends."""


def default_passes(n_components: int) -> int:
    """Passes of a search without a limit of its own."""
    return max(_PASSES, min(n_components, _MOST_PASSES))


@dataclass(frozen=True, kw_only=True)
class LocalSearch(ValidatedFields):
    """The best set of every size, by measured neighbours that gradients propose."""

    name: ClassVar[str] = "local-search"
    title: ClassVar[str] = "local search"
    records_every_size: ClassVar[bool] = True

    max_passes: PositiveInt | None = None
    """Passes of the search at most, forward and backward alike. None: as many as there are
    components, but 300 to 512; below 384 components such a search ends where nothing is gained."""
    max_seconds: PositiveFloat | None = None
    """Wall time after which the best so far is returned."""
    checkpoint: Path | None = None
    """File that holds all measurements; a search that finds it goes on where the last stopped."""

    def planned_passes(self, n_components: int, goal: Goal) -> PlannedPasses:
        """Passes at most, half of them forward and half backward."""
        half = (self.max_passes or default_passes(n_components)) / 2
        return PlannedPasses(cost=Cost(half, half))

    def search(self, target: Target, goal: Goal, seed: int) -> list[Selection]:
        """Answers the goal from one run."""
        goal.require(self.name)
        best_sets = self.run(target, goal, seed)
        if goal.target is None:
            return [best_sets.selection(budget, budget) for budget in goal.budgets]
        size = best_sets.smallest_reaching(goal.target)
        if size is None and best_sets.stopped == "interrupted":
            raise KeyboardInterrupt
        if size is None:
            raise target_not_reached(goal.target, max(map(best_sets.effect, best_sets.sizes)))
        return [best_sets.selection(size, None)]

    def run(self, target: Target, goal: Goal, seed: int) -> BestSets:
        """Searches up to the largest budget; Ctrl-C, or a limit, ends it with the best so far.

        Nothing is drawn: `seed` only names the search in its checkpoint.

        Raises:
            NothingFoundError: It ended before any set was measured.
            ResultFormatError: The checkpoint cannot be used, or another search uses it.
        """
        require_gradient(target.metric, self.name)
        n, context = target.n_components, nullcontext()
        if self.checkpoint is not None:
            config = {"budgets": goal.budgets, "target": goal.target, "seed": seed}
            context = SearchCheckpoint(self.checkpoint, target, config).in_use()
        with context as checkpoint:
            measurements = Measurements(
                target,
                passes=self.max_passes or default_passes(n),
                seconds=self.max_seconds or float("inf"),
                is_for_mean=self.max_passes is None,
                checkpoint=checkpoint,
            )
            best_sets = BestSets(measurements, goal.budgets[-1] if goal.budgets else n)
            try:
                _search(best_sets, goal, self)
            except LimitReachedError as reached:
                best_sets.stopped = reached.limit
            except KeyboardInterrupt:
                best_sets.stopped = "interrupted"
            finally:
                measurements.save()
            measurements.confirm(best_sets.best(size) for size in best_sets.improving_sizes)
        if not best_sets.sizes:
            if best_sets.stopped == "interrupted":
                raise KeyboardInterrupt
            reason = f"The search was stopped ({best_sets.stopped}) before it measured anything."
            raise NothingFoundError(f"{reason} Allow it more.")
        if best_sets.stopped == "max_passes" and self.max_passes is None:
            best_sets.stopped = None  # The method's own number of passes, not the user's limit.
        points = weights_along_line(MaskIG().steps)
        if best_sets.stopped is not None and not measurements.has_soft_gradients(points):
            warn(
                f"The search ended ({best_sets.stopped}) before it tried integrated gradients "
                f"({2 * len(points)} passes). mask-ig may find better sets: run it as well.",
                SearchStoppedWarning,
            )
        return best_sets


def refine(
    target: Target, measured: Mapping[ComponentSet, Effects], budgets: Sequence[int], passes: float
) -> BestSets:
    """Improves measured sets by sweeps that start from them, in at most so many passes."""
    best_sets = BestSets(Measurements(target, passes=passes), budgets[-1])
    best_sets.add_measured(measured)
    with suppress(LimitReachedError):
        _search(best_sets, Goal(budgets=tuple(budgets)), LocalSearch())
    return best_sets


def _search(best_sets: BestSets, goal: Goal, search: LocalSearch) -> None:
    measurements = best_sets.measurements
    rankings = best_sets.rankings_at_empty_set
    n, passes = measurements.target.n_components, measurements.n_affordable()
    takes_all = n <= _SHARE_OF_ALL_SINGLES * passes
    is_limited = search.max_passes is not None or search.max_seconds is not None
    budgets = goal.budgets if len(goal.budgets) <= _MOST_SIZES else ()
    line_weights = weights_along_line(MaskIG().steps)

    def prefix(order: Sequence[int], size: int) -> ComponentSet:
        return prefix_members(measurements.target, order, size)

    starts = [prefix(order, size) for size in budgets for order in rankings]
    # Of few components all are measured alone, which ranks them too and costs less than a line.
    has_line = is_limited and 2 * len(line_weights) <= _SHARE_OF_ALL_SINGLES * passes
    has_line = (has_line or not takes_all) and measurements.affords(len(line_weights), len(budgets))
    # Where passes are for one of both, prefixes by the line come first.
    if is_limited and measurements.affords(len(line_weights), len(budgets) + len(starts)):
        best_sets.measure(starts, "prefixes of rankings")
    if has_line:
        parts = [weight * measurements.soft_gradient(at) for at, weight in line_weights.items()]
        rankings.insert(0, ranking(torch.stack(parts).sum(0)))
    if is_limited:
        starts = [prefix(rankings[0], size) for size in budgets] + starts
        best_sets.measure(starts, "prefixes of rankings")
    n_singles = n if takes_all else max(1, int(_SHARE_OF_SOME_SINGLES * passes))
    best_sets.measure([[index] for index in interleave(*rankings[-2:])[:n_singles]], "singles")
    if takes_all:
        rankings.append(best_sets.singles_by_effect)
    n_sizes = min(max(passes // _PASSES_PER_SIZE, _MOST_SIZES // 2), _MOST_SIZES)
    sweeps = Sweeps(best_sets, goal, n_sizes)
    prefixes = [prefix(order, size) for size in sweeps.sizes for order in rankings]
    best_sets.measure(prefixes, "prefixes of rankings")
    has_many, has_few = n >= _MANY, n <= _PASSES_PER_SIZE
    if has_many:
        backward_sets = [tuple(range(n))]
        for size in reversed(sweeps.sizes):
            backward_sets.append(shrink(backward_sets[-1], size, measurements.predict_changes))
        best_sets.measure(backward_sets[1:], "backward elimination")
    if has_few and n * n <= measurements.n_affordable():
        best_sets.measure(combinations(range(n), 2), "pairs")
    sweeps.run(with_effort=search.max_passes is not None or has_many or has_few)
    sweeps.measure_sizes_between()


def sizes_to_visit(largest: int, budgets: Sequence[int], n_sizes: int) -> list[int]:
    """The sizes asked for, if they are few, and others that fill the widest gaps between them."""
    asked = [budget for budget in budgets if budget <= largest]
    sizes = sorted({1, largest, *(asked if len(asked) <= _MOST_SIZES else ())})
    while len(sizes) < n_sizes:
        gaps = [(b / a, a, b) for a, b in pairwise(sizes) if b - a > 1]
        if not gaps:
            break
        _, below, above = max(gaps)
        sizes = sorted({*sizes, round((below * above) ** 0.5)})
    return sizes


class Sweeps:
    """Goes up and down through sizes until nothing is gained."""

    def __init__(self, best_sets: BestSets, goal: Goal, n_sizes: int) -> None:
        """Starts before the first sweep, which goes up."""
        self._best_sets, self._goal, self._n_sizes = best_sets, goal, n_sizes
        self._n_components = best_sets.measurements.target.n_components
        self._running_mean: Mask | None = None

    @property
    def sizes(self) -> list[int]:
        """Sizes to visit: those that are asked for, if they are few, and others between them."""
        return sizes_to_visit(self._best_sets.largest, self._goal.budgets, self._n_sizes)

    def run(self, *, with_effort: bool) -> None:
        """Sweeps each way while something is gained; with effort, with more neighbours too."""
        effort, upwards, n_done = 1, True, 0
        measurements = self._best_sets.measurements
        while True:
            before = {size: self._best_sets.effect(size) for size in self.sizes}
            spent = measurements.spent
            self._sweep(upwards, effort)
            upwards, n_done = not upwards, n_done + 1
            if n_done < 2 or self._has_gained(before):
                continue
            is_over = effort > self._n_components and measurements.spent == spent
            if is_over or not with_effort:
                return
            effort *= 2

    def measure_sizes_between(self) -> None:
        """Measures a set of further sizes, where the sizes asked for are not visited anyway."""
        best_sets, budgets = self._best_sets, self._goal.budgets
        if 1 < len(budgets) <= _MOST_SIZES:
            return
        between = {*log_spaced_sizes(1, best_sets.largest, 3 * self._n_sizes), *budgets}
        for size in sorted(between.difference(best_sets.sizes)):
            below = max((s for s in self.sizes if s < size and s in best_sets.sizes), default=0)
            if below and size <= best_sets.largest:
                members = best_sets.best(below)
                predicted = best_sets.measurements.predict_changes(members).predicted_effects
                joining = [index for index in ranking(predicted) if index not in set(members)]
                best_sets.measure([(*members, *joining[: size - below])], "sizes between")

    def _sweep(self, upwards: bool, effort: int) -> None:
        best_sets, sizes = self._best_sets, self.sizes
        for step in range(len(sizes)) if upwards else reversed(range(len(sizes))):
            size = sizes[step]
            target = self._goal.target
            if target is not None and (reached := best_sets.smallest_reaching(target)) is not None:
                best_sets.largest = min(best_sets.largest, reached)
            is_visited = size in best_sets.sizes and size <= best_sets.largest
            if not is_visited or size == self._n_components:
                continue
            members = best_sets.best(size)
            neighbours = promising_neighbours(
                members,
                self._scores(members),
                up=sizes[step + 1] if step + 1 < len(sizes) else size,
                down=sizes[step - 1] if step else size,
                effort=effort,
            )
            best_sets.measure(neighbours, f"neighbours of {size}")
            _progress.current_run().report_values(size=size, effect=best_sets.effect(size))

    def _scores(self, members: tuple[int, ...]) -> list[Mask]:
        """Predicted effects at a set, and the gradient.

        With many components a running mean of the predicted effects at the sets visited so far
        takes the place of the gradient, since it holds for larger changes.
        """
        prediction = self._best_sets.measurements.predict_changes(members)
        if self._n_components < _MANY:
            return [prediction.predicted_effects, prediction.gradient]
        predicted = prediction.predicted_effects
        normalised = predicted / predicted.abs().sum().clamp(min=1e-30)
        before = self._running_mean
        self._running_mean = normalised if before is None else (before + normalised) / 2
        return [prediction.predicted_effects, self._running_mean]

    def _has_gained(self, before: dict[int, float]) -> bool:
        after = self._best_sets.effect
        gains = [
            (after(size) - effect) / max(abs(effect), 1e-12)
            for size, effect in before.items()
            if effect > -float("inf")
        ]
        return sum(gains) > _LEAST_GAIN * len(gains)


def promising_neighbours(
    members: ComponentSet, scores: Sequence[Mask], up: int, down: int, effort: int
) -> list[Iterable[int]]:
    """Sets with components added, removed and exchanged, as each of the scores proposes.

    `up` and `down` are the next sizes of interest. If these are one more or one less, several
    components are tried; else each score fills or empties the set up to them. `effort` multiplies
    the numbers of neighbours with one change.
    """
    inside, size = set(members), len(members)
    orders = [ranking(score) for score in scores]
    joining = [[i for i in order if i not in inside] for order in orders]
    leaving = [[i for i in reversed(order) if i in inside] for order in orders]
    n_additions, n_exchanges = _ADDITIONS * effort, _EXCHANGES * effort
    proposed: list[Iterable[int]] = []
    if up == size + 1:
        proposed += [inside | {joins} for joins in interleave(*joining)[:n_additions]]
    else:
        proposed += [inside.union(order[: up - size]) for order in joining]
    if down == size - 1:
        proposed += [inside - {leaves} for leaves in interleave(*leaving)[:n_exchanges]]
    else:
        proposed += [inside.difference(order[: size - down]) for order in leaving]
    pairs = [
        _exchanges(score, out, new, n_exchanges)
        for score, out, new in zip(scores, leaving, joining, strict=True)
    ]
    proposed += [inside - {leaves} | {joins} for leaves, joins in interleave(*pairs)[:n_exchanges]]
    if up != size + 1 and down != size - 1:
        counts = {round(share * size) for share in _SHARES_EXCHANGED} - {0, 1}
        proposed += [
            inside.difference(out[:count]).union(new[:count])
            for count in sorted(counts)
            for out, new in zip(leaving, joining, strict=True)
            if count <= len(new)
        ]
    return proposed


def interleave(*orders: Sequence[_T]) -> list[_T]:
    """The first of each order, then the second of each, without repetitions."""
    return list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))


def _exchanges(
    score: Mask, leaving: Sequence[int], joining: Sequence[int], count: int
) -> list[tuple[int, int]]:
    """Pairs of a component that leaves and one that joins, the most promising first."""
    gains = score[list(joining)] - score[list(leaving)][:, None]
    best = gains.flatten().argsort(descending=True, stable=True)[:count].tolist()
    return [(leaving[pair // len(joining)], joining[pair % len(joining)]) for pair in best]
