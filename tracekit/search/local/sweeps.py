"""Sweeps up and down through sizes: gradients propose neighbours, measured effects decide."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeVar

from tracekit._util import progress as _progress
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, ranking
from tracekit.search.base import Goal, log_spaced_sizes
from tracekit.search.measurements import BestSets


def sizes_to_visit(largest: int, budgets: Sequence[int], n_sizes: int) -> list[int]:
    """The sizes asked for, if they are few, and others that fill the widest gaps between them."""
    asked = [budget for budget in budgets if budget <= largest]
    sizes = sorted({1, largest, *(asked if len(asked) <= SETTINGS.most_sizes else ())})
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
        if 1 < len(budgets) <= SETTINGS.most_sizes:
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
        if self._n_components < SETTINGS.many:
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
        return sum(gains) > SETTINGS.least_gain * len(gains)


T = TypeVar("T")


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
    n_additions, n_exchanges = SETTINGS.additions * effort, SETTINGS.exchanges * effort
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
        counts = {round(share * size) for share in SETTINGS.shares_exchanged} - {0, 1}
        proposed += [
            inside.difference(out[:count]).union(new[:count])
            for count in sorted(counts)
            for out, new in zip(leaving, joining, strict=True)
            if count <= len(new)
        ]
    return proposed


def interleave(*orders: Sequence[T]) -> list[T]:
    """The first of each order, then the second of each, without repetitions."""
    return list(dict.fromkeys(chain.from_iterable(zip(*orders, strict=True))))


def _exchanges(
    score: Mask, leaving: Sequence[int], joining: Sequence[int], count: int
) -> list[tuple[int, int]]:
    """Pairs of a component that leaves and one that joins, the most promising first."""
    gains = score[list(joining)] - score[list(leaving)][:, None]
    best = gains.flatten().argsort(descending=True, stable=True)[:count].tolist()
    return [(leaving[pair // len(joining)], joining[pair % len(joining)]) for pair in best]


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """How a search divides its passes; chosen on the demo tasks."""

    passes: int = 300
    """Passes over the data by default: heads of the demo tasks need 110 to 210 of them."""
    most_passes: int = 512
    """Passes by default are as many as there are components, up to this many."""
    many: int = 384
    """Components from which on sizes are far apart and backward elimination is worth its passes."""
    passes_per_size: int = 20
    """Passes for each size that is visited. Of so few components all neighbours are measured, and
    all pairs: no gradient points to two of which either is enough."""
    most_sizes: int = 16
    """Sizes that are visited at most, so that there are passes for several sweeps."""
    share_of_all_singles: float = 1 / 3
    """Share of the passes that measuring every single component may take."""
    share_of_some_singles: float = 1 / 8
    """Share of the passes for the single components that gradients choose otherwise."""
    additions: int = 5
    """Sets with one component more that are measured beside a set; fewer miss joint effects."""
    exchanges: int = 2
    """Sets with one component exchanged, and as many with one fewer."""
    shares_exchanged: tuple[float, float] = (1 / 32, 1 / 8)
    """Shares of a set that are exchanged at once where sizes are far apart."""
    least_gain: float = 1e-3
    """Relative gain of a sweep, averaged over sizes, below which the search ends."""


SETTINGS = SweepSettings()
"""Those of every search."""
