"""The best sets of every size among those measured, and the ways from them to others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.components.masks import ranking
from tracekit.engine.example_curves import ExampleCurves
from tracekit.engine.gradients import Expansion
from tracekit.metrics import Effects
from tracekit.search.local.measurements import LimitReachedError, MeasurementCache
from tracekit.search.local.moves import Moves, Surroundings, promising_neighbours
from tracekit.search.local.older_face import are_independent
from tracekit.search.local.single_examples import (
    OwnSets,
    can_one_example_matter,
    is_small_enough,
    promised_shares,
)
from tracekit.search.racing import Heat
from tracekit.search.targets import Target

_CARRIED = 1 / 3
"""Share of the mean effect of a set beyond which one example carries it."""
_KEPT = 8
"""Sets kept of each size."""


class BestSets:
    """Measured sets of up to a size."""

    def __init__(self, measurements: MeasurementCache, largest: int) -> None:
        """Starts with the empty set.

        Args:
            measurements: Measures.
            largest: Sets of more components are not measured.
        """
        self.measurements = measurements
        self.largest = largest
        self._means: dict[ComponentSet, float] = {(): 0.0}
        self._best: dict[int, list[ComponentSet]] = {0: [()]}
        self._efforts: dict[ComponentSet, int] = {}
        self._most_reserved = 0

    @property
    def engine(self) -> Target:
        """What measures."""
        return self.measurements.engine

    @property
    def sizes(self) -> list[int]:
        """Sizes of which a set was measured, ascending."""
        return sorted(size for size in self._best if size)

    @property
    def improving(self) -> list[int]:
        """Those of the sizes whose best set does better than every smaller one."""
        return [size for size in self.sizes if len(self.best_within(size)) == size]

    def effect(self, size: int) -> float:
        """Mean effect of the best set of exactly a size; minus infinity if there is none."""
        return self._means[self._best[size][0]] if size in self._best else -float("inf")

    def effects_at(self, sizes: Sequence[int]) -> list[float]:
        """These effects at some sizes."""
        return [self.effect(size) for size in sizes]

    def best(self, size: int) -> ComponentSet:
        """The best set of exactly a size."""
        return self._best[size][0]

    def best_within(self, budget: int) -> ComponentSet:
        """The best set of 1 to `budget` components; of equals the smallest."""
        size = max((s for s in self.sizes if s <= budget), key=lambda s: (self.effect(s), -s))
        return self.best(size)

    def reaching(self, target: float) -> int | None:
        """The smallest size whose best set reaches an effect."""
        return next((size for size in self.sizes if self.effect(size) >= target), None)

    def stop_beyond(self, target: float | None) -> None:
        """Measures no sets larger than the smallest that reaches a target from here on."""
        reached = None if target is None else self.reaching(target)
        if reached is not None:
            self.largest = min(self.largest, reached)

    @property
    def does_one_example_carry(self) -> bool:
        """Whether one example makes up a good part of the mean effect of the best set of a size."""
        dropped = self.measurements.is_dropped
        best = [self.best(size) for size in self.sizes if not dropped(self.best(size))]
        return any(_largest_share(self.effects(members)) > _CARRIED for members in best)

    def might_one_example_carry(self) -> bool:
        """Whether one example promises a good part of the best mean effect, by its own slopes.

        Asked where sets race: what was seen of them on a part of the examples says little of those
        that one of the others carries.

        Raises:
            LimitReachedError: There is no room for the gradient of every example.
        """
        curves = self._curves_of_single_examples() if self.measurements.has_races else None
        if curves is None:
            return False
        at_empty, _ = self.measurements.expand_at_empty()
        promised = promised_shares(curves, at_empty, self.largest).max().item()
        return promised > _CARRIED * self._best_effect

    def effects(self, members: ComponentSet) -> Effects:
        """Effects of a measured set on every example."""
        return self.measurements.effects(members)

    # ---- measuring ------------------------------------------------------------------------

    def measure(self, sets: Iterable[Iterable[int]], label: str) -> None:
        """Measures the sets that are new, of 1 to `largest` components.

        Args:
            sets: The sets.
            label: Names the progress bar.

        Raises:
            LimitReachedError: Not all could be; those that could are kept.
        """
        ascending = [tuple(sorted(members)) for members in sets]
        by_size: dict[int, list[ComponentSet]] = {}
        for members in ascending:
            if 0 < len(members) <= self.largest:
                by_size.setdefault(len(members), []).append(members)
        heats = [
            Heat(sets=of_size, rival=self.best(size) if size in self._best else None)
            for size, of_size in by_size.items()
        ]
        self._measure(heats, label)

    @contextmanager
    def confirming(self, passes: int) -> Iterator[None]:
        """At its end, the best sets that only a gradient has measured are measured by themselves.

        Also where a limit is its end. With Ctrl-C, or without time, they stay as they are.

        Args:
            passes: Passes that are kept free for that at most: one for each.
        """
        self._most_reserved = passes
        try:
            yield
        except LimitReachedError:
            with suppress(LimitReachedError):
                self._confirm()
            raise
        self._confirm()

    def _confirm(self) -> None:
        self._most_reserved = 0
        self._reserve()
        best = [self.best(size) for size in self.sizes]
        for members in self.measurements.confirm(best, "best sets"):
            self._means[members] = self.measurements.mean(members)

    def _reserve(self) -> None:
        is_confirmed = self.measurements.is_confirmed
        unconfirmed = [size for size in self.sizes if not is_confirmed(self.best(size))]
        self.measurements.reserve(min(len(unconfirmed), self._most_reserved))

    def group_testing(self, n_groups: int, halved: int) -> None:
        """Looks for components that do much alone, though no gradient says so.

        All components are dealt into groups; the best groups are halved, and the best halves
        again, down to single components. All of them are measured.

        Args:
            n_groups: Number of groups.
            halved: How many of a round are halved.

        Raises:
            LimitReachedError: Not all could be measured; those that could are kept.
        """
        n = self.engine.n_components
        groups = [tuple(range(first, n, n_groups)) for first in range(n_groups)]
        while groups:
            self._measure([Heat(sets=groups, n_winners=halved)], "groups")
            ranked = self.measurements.ranked(groups)
            divisible = [group for group in ranked[:halved] if len(group) > 1]
            groups = [half for group in divisible for half in (group[::2], group[1::2])]

    def import_measured(self, measured: Mapping[ComponentSet, Effects]) -> None:
        """Takes over sets that were measured elsewhere."""
        self.measurements.import_measured(measured)
        self._record(measured)

    def expand(self, members: ComponentSet, examples: Int[Tensor, " some"]) -> Expansion:
        """The expansion of some examples at a set; if these are all, that measures it.

        Args:
            members: The set.
            examples: Their numbers.

        Raises:
            LimitReachedError: There is no room for it.
        """
        is_new = members not in self.measurements
        expansion = self.measurements.expand_set(members, examples)
        if is_new and members in self.measurements:
            self._record([members])
        return expansion

    def _measure(self, heats: Sequence[Heat], label: str) -> None:
        self._record(self.measurements.measure(heats, label))
        if any(members not in self.measurements for heat in heats for members in heat.sets):
            raise self.measurements.limit_reached()

    def _record(self, measured: Iterable[ComponentSet]) -> None:
        is_dropped = self.measurements.is_dropped
        # Those that were measured on all examples first: the others are held against them.
        for members in sorted(measured, key=is_dropped):
            size = len(members)
            if not 0 < size <= self.largest or (is_dropped(members) and size not in self._best):
                continue
            rival = self.best(size) if is_dropped(members) else None
            self._means[members] = self.measurements.mean(members, rival)
            best = self._best.setdefault(size, [])
            best.append(members)
            best.sort(key=lambda s: (-self._means[s], is_dropped(s)))
            del best[_KEPT:]
        self._reserve()

    def start_from_examples(self, sizes: Sequence[int], passes: float) -> None:
        """Measures sets that were made for single examples, where such sets can matter.

        Args:
            sizes: Of these sets, ascending.
            passes: Passes that may go into making them, about.

        Raises:
            LimitReachedError: Not all could be measured; those that could are kept.
        """
        curves = self._curves_of_single_examples()
        sizes = [size for size in sizes if size <= self.largest]
        if curves is None or not sizes:
            return
        own_sets = OwnSets(self.measurements, curves, sizes, passes)
        own_sets.walk()
        # Small sets do not tell whether one example carries large ones.
        large = own_sets.best()[len(sizes) // 2 :]
        self._measure_starts(large)
        is_carried = own_sets.carry([self.measurements.mean(members) for members in large])
        if is_carried:
            own_sets.improve()
        best = own_sets.best()
        self._measure_starts(best)
        if is_carried:
            means = [self.measurements.mean(members) for members in best]
            self._measure_starts(own_sets.rivals(means))

    def _curves_of_single_examples(self) -> ExampleCurves | None:
        """Curves of the examples; None where no sets for single ones are worth making."""
        engine = self.engine
        # Where the score of an example hangs on the others it has no best set.
        if not are_independent(engine):
            return None
        if not is_small_enough(engine.n_examples, engine.n_components):
            return None
        curves = ExampleCurves.of(engine.data)
        if curves is None or not can_one_example_matter(curves, self._best_effect):
            return None
        return curves

    @property
    def _best_effect(self) -> float:
        """Of all sizes."""
        return max(map(self.effect, self.sizes))

    def _measure_starts(self, sets: Sequence[ComponentSet]) -> None:
        """Measures sets that were made for single examples, each on all examples.

        They do not race: on a part of the examples the one that a set was made for may be missing.
        """
        self._measure([Heat(sets=sets, n_winners=len(sets))], "starts")

    # ---- neighbours -----------------------------------------------------------------------

    def unexplored(
        self, size: int, *, depth: int, within: float, effort: int = 0
    ) -> ComponentSet | None:
        """The best set of a size whose neighbours were not measured, or with less effort only.

        Args:
            size: The size.
            depth: How many of the best sets to look at.
            within: How far behind the best one, as a share of its effect, a set may be.
            effort: What `explore` will be told.
        """
        least = self.effect(size) - within * abs(self.effect(size))
        for members in self._best.get(size, [])[:depth]:
            if self._means[members] < least:
                return None
            if self._efforts.get(members, -1) < effort:
                return members
        return None

    def singles(self) -> list[int]:
        """Components that were measured alone, the best first."""
        measured = [members for members in self._means if len(members) == 1]
        return [single for (single,) in sorted(measured, key=lambda each: -self._means[each])]

    def orders_from_empty(self) -> list[list[int]]:
        """Components from the best to the worst, as both predictions at the empty set rank them."""
        prediction = self.measurements.predict_changes(())
        return [ranking(prediction.gains), ranking(prediction.gradient)]

    def explore(
        self,
        members: ComponentSet,
        moves: Moves,
        *,
        up: int | None,
        down: int | None,
        orders: Sequence[Sequence[int]] = (),
        effort: int = 0,
    ) -> None:
        """Measures the most promising neighbours of a set.

        Args:
            members: The set.
            moves: How many of each sort.
            up: The next larger size of interest.
            down: The next smaller one.
            orders: Rankings of all components to fill up from.
            effort: Recorded, so that the set is taken up again only with more.
        """
        self._efforts[members] = effort
        around = Surroundings(
            members=members,
            up=up,
            down=down,
            orders=orders,
            singles=self.singles(),
        )
        prediction = self.measurements.predict_changes(members)
        proposed = promising_neighbours(around, moves, prediction)
        self.measure(proposed, f"neighbours of {len(members)}")


def relative_gains(before: Sequence[float], after: Sequence[float]) -> Float[Tensor, " size"]:
    """By what share of their size effects have grown; infinite where there was none."""
    old, new = torch.tensor(before), torch.tensor(after)
    gains = (new - old) / old.abs().clamp(min=torch.finfo().tiny)
    return torch.where(old.isinf() & new.isfinite(), torch.inf, gains.nan_to_num(0.0))


def _largest_share(effects: Effects) -> float:
    """Share of the sum of effects that the largest one makes up; 0 where they add up to none."""
    total = effects.sum()
    return (effects.max() / total).item() if total > 0 else 0.0
