"""Local search: the best set of every size from one run, within a number of passes.

1. Components are ranked: by two predictions from the gradient at the empty set and, where there
   are many or a limit has room for it, by integrated gradients (as mask-ig). Prefixes of both are
   measured first, if they fit: no set is below what mask-ig and attribution find in as many passes.
2. Single components are measured: all of them where that is cheap, which ranks them too, else those
   that the gradient at the empty set ranks first. Prefixes of all rankings are measured at the
   sizes that are visited. From 384 components on, backward elimination from all components finds
   some that no gradient at the empty set points to. Up to 20 components, all pairs are measured.
3. Sweeps go up and down through these sizes (`sweeps.py`). At each of them the gradient at the best
   set proposes a few components to add, to remove and to exchange; measured effects decide.
4. Once there was a sweep each way, the search ends with a sweep that gains nothing, or when its
   passes are spent. With many components or very few, or if a number of passes was asked for,
   sweeps with more neighbours follow.

Every effect is measured with a binary mask. `refine` is the same from given sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt

from tracekit._util.options import ValidatedFields
from tracekit._util.warn import warn
from tracekit.components import ComponentSet
from tracekit.components.masks import ranking
from tracekit.engine.cost import Cost
from tracekit.errors import NothingFoundError, SearchStoppedWarning
from tracekit.metrics import Effects
from tracekit.search.backward import shrink
from tracekit.search.base import Goal, PlannedPasses, Selection, target_not_reached
from tracekit.search.baselines.attribution import MaskIG, weights_along_line
from tracekit.search.checkpoint import SearchCheckpoint
from tracekit.search.local.sweeps import SETTINGS, Sweeps, interleave
from tracekit.search.measurements import BestSets, LimitReachedError, Measurements
from tracekit.search.prefix import prefix_members
from tracekit.search.targets import Target, require_gradient


def default_passes(n_components: int) -> int:
    """Passes of a search without a limit of its own."""
    return max(SETTINGS.passes, min(n_components, SETTINGS.most_passes))


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
                f"The limit ({best_sets.stopped}) left no room for integrated gradients, "
                f"{2 * len(points)} passes, so mask-ig may find better sets. Allow more.",
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
    takes_all = n <= SETTINGS.share_of_all_singles * passes
    is_limited = search.max_passes is not None or search.max_seconds is not None
    budgets = goal.budgets if len(goal.budgets) <= SETTINGS.most_sizes else ()
    line_weights = weights_along_line(MaskIG().steps)

    def prefix(order: Sequence[int], size: int) -> ComponentSet:
        return prefix_members(measurements.target, order, size)

    starts = [prefix(order, size) for size in budgets for order in rankings]
    # Of few components all are measured alone, which ranks them too and costs less than a line.
    has_line = is_limited and 2 * len(line_weights) <= SETTINGS.share_of_all_singles * passes
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
    n_singles = n if takes_all else max(1, int(SETTINGS.share_of_some_singles * passes))
    best_sets.measure([[index] for index in interleave(*rankings[-2:])[:n_singles]], "singles")
    if takes_all:
        rankings.append(best_sets.singles_by_effect)
    most = SETTINGS.most_sizes
    sweeps = Sweeps(best_sets, goal, min(max(passes // SETTINGS.passes_per_size, most // 2), most))
    prefixes = [prefix(order, size) for size in sweeps.sizes for order in rankings]
    best_sets.measure(prefixes, "prefixes of rankings")
    has_many, has_few = n >= SETTINGS.many, n <= SETTINGS.passes_per_size
    if has_many:
        backward_sets = [tuple(range(n))]
        for size in reversed(sweeps.sizes):
            backward_sets.append(shrink(backward_sets[-1], size, measurements.predict_changes))
        best_sets.measure(backward_sets[1:], "backward elimination")
    if has_few and n * n <= measurements.n_affordable():
        best_sets.measure(combinations(range(n), 2), "pairs")
    sweeps.run(with_effort=search.max_passes is not None or has_many or has_few)
    sweeps.measure_sizes_between()
