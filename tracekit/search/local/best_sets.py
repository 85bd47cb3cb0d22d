"""The best sets of every size among those that a search has measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tracekit.components import ComponentSet
from tracekit.components.masks import from_indices, ranking
from tracekit.metrics import Effects
from tracekit.search.base import Selection, Stop
from tracekit.search.measurements import Measurements


class BestSets:
    """Measured sets of up to a size."""

    def __init__(self, measurements: Measurements, largest: int) -> None:
        """Starts with none. Sets of more than `largest` components are not measured."""
        self.measurements, self.largest = measurements, largest
        self._best: dict[int, tuple[float, ComponentSet]] = {}
        self._single_effects: dict[int, float] = {}
        self.stopped: Stop | None = None
        """The limit that cut the search short."""

    @property
    def sizes(self) -> list[int]:
        """Sizes of which a set was measured, ascending."""
        return sorted(self._best)

    @property
    def improving_sizes(self) -> list[int]:
        """The sizes whose best set does better than that of every smaller size."""
        return [size for size in self.sizes if len(self.best_within(size)) == size]

    @property
    def singles_by_effect(self) -> list[int]:
        """Components that were measured alone, the best first."""
        return sorted(self._single_effects, key=lambda index: -self._single_effects[index])

    @property
    def rankings_at_empty_set(self) -> list[list[int]]:
        """All components as either prediction from the gradient at the empty set ranks them."""
        prediction = self.measurements.predict_changes(())
        return [ranking(prediction.predicted_effects), ranking(prediction.gradient)]

    def effect(self, size: int) -> float:
        """Mean effect of the best set of exactly a size; minus infinity if there is none."""
        return self._best[size][0] if size in self._best else -float("inf")

    def best(self, size: int) -> ComponentSet:
        """The best set of exactly a size."""
        return self._best[size][1]

    def best_within(self, budget: int) -> ComponentSet:
        """The best set of 1 to `budget` components; of equals the smallest."""
        size = max((s for s in self.sizes if s <= budget), key=lambda s: (self.effect(s), -s))
        return self.best(size)

    def selection(self, size: int, budget: int | None) -> Selection:
        """The best set of at most a size; its history has the best effect at every size."""
        members = self.best_within(size)
        return Selection(
            mask=from_indices(members, self.measurements.target.n_components),
            effects=self.measurements.effects(members),
            history=tuple({"n_selected": s, "effect": self.effect(s)} for s in self.sizes),
            budget=budget,
            saved=self.measurements.saved,
            stopped=self.stopped,
        )

    def smallest_reaching(self, target: float) -> int | None:
        """The smallest size whose best set reaches an effect."""
        return next((size for size in self.sizes if self.effect(size) >= target), None)

    def add_measured(self, effects: Mapping[ComponentSet, Effects]) -> None:
        """Adds sets that were measured elsewhere, but no edges that form no paths."""
        self.measurements.add_measured(effects)
        self._record(each for each in effects if each == self._on_paths(each))

    def measure(self, sets: Iterable[Iterable[int]], label: str) -> None:
        """Measures new sets of 1 to `largest` members, without idle edges; keeps what it can."""
        ascending = [self._on_paths(tuple(sorted(set(members)))) for members in sets]
        fitting = [members for members in ascending if 0 < len(members) <= self.largest]
        try:
            self.measurements.measure(fitting, label)
        finally:
            self._record(filter(self.measurements.is_known, fitting))

    def _on_paths(self, members: ComponentSet) -> ComponentSet:
        paths = self.measurements.target.paths
        return members if paths is None else paths.on_paths(members)

    def _record(self, measured: Iterable[ComponentSet]) -> None:
        for members in measured:
            size, mean = len(members), self.measurements.effects(members).mean().item()
            if size == 1:
                self._single_effects[members[0]] = mean
            if 0 < size <= self.largest and mean > self.effect(size):
                self._best[size] = (mean, members)
