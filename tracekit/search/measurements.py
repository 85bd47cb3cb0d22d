"""The measurements of a search within limits of passes and time, and the best sets among them.

A search that is run again with the checkpoint of one that was cut short takes the same decisions
and goes on where that stopped. What it reads counts towards the limit of passes all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices, members_of_mask, ranking
from tracekit.engine.cost import Cost
from tracekit.engine.gradients import FirstOrderPrediction
from tracekit.metrics import Effects
from tracekit.search.base import Selection, Stop
from tracekit.search.checkpoint import SearchCheckpoint
from tracekit.search.targets import Target, require_finite_gradient

_T = TypeVar("_T")
_K = TypeVar("_K", bound=ComponentSet | float)
_SAVED_EVERY = 60.0
"""Seconds."""
_TOGETHER = 16
"""Sets that are measured between two looks at the clock."""
SET, GRADIENT = "set", "gradient"
"""Kinds of measurements."""


@dataclass(eq=False)
class MeasurementData:
    """The measurements of a search."""

    effects: dict[ComponentSet, Effects] = field(default_factory=dict)
    """Effects of sets on every example."""
    predictions: dict[ComponentSet, FirstOrderPrediction] = field(default_factory=dict)
    soft_gradients: dict[float, Mask] = field(default_factory=dict)
    """Gradients at soft masks whose entries are all equal, by that entry."""
    prices: dict[str, Cost] = field(
        default_factory=lambda: {SET: Cost(1.0, 0.0), GRADIENT: Cost(1.0, 1.0)}
    )
    """Passes for one measurement of a kind, with whatever an objective or a constraint adds."""

    def tensors(self, n_components: int) -> dict[str, Tensor]:
        """The measurements as the tensors of a checkpoint."""
        predictions = self.predictions.values()
        prices = [(price.forward, price.backward) for price in self.prices.values()]
        return {
            "measured": _stack(from_indices(each, n_components) for each in self.effects),
            "effects": _stack(self.effects.values()),
            "predicted": _stack(from_indices(each, n_components) for each in self.predictions),
            "gains": _stack(prediction.predicted_effects for prediction in predictions),
            "gradients": _stack(prediction.gradient for prediction in predictions),
            "soft_shares": torch.tensor(list(self.soft_gradients), dtype=torch.float64),
            "soft_gradients": _stack(self.soft_gradients.values()),
            "prices": torch.tensor(prices, dtype=torch.float64),
        }

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], target: Target) -> MeasurementData:
        """The measurements in the tensors of a checkpoint."""
        n = target.n_components
        measured, predicted = (
            map(members_of_mask, _rows(tensors[name], n, torch.bool))
            for name in ("measured", "predicted")
        )
        effects = _rows(tensors["effects"], target.n_examples)
        gains, gradients, soft_gradients = (
            _rows(tensors[name], n) for name in ("gains", "gradients", "soft_gradients")
        )
        shares = tensors["soft_shares"].tolist()
        of_set, of_gradient = (Cost(*each) for each in tensors["prices"].tolist())
        predictions = zip(predicted, gains, gradients, strict=True)
        return cls(
            effects=dict(zip(measured, effects, strict=True)),
            predictions={each: FirstOrderPrediction(*rows) for each, *rows in predictions},
            soft_gradients=dict(zip(shares, soft_gradients, strict=True)),
            prices={SET: of_set, GRADIENT: of_gradient},
        )


def _stack(rows: Iterable[Tensor]) -> Tensor:
    listed = list(rows)
    return torch.stack(listed) if listed else torch.zeros(0)


def _rows(values: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Sequence[Tensor]:
    if len(values) and (values.shape[1:] != (width,) or values.dtype != dtype):
        raise ValueError(f"The shape is {tuple(values.shape)}.")
    return values.unbind()


@dataclass(eq=False)
class LimitReachedError(Exception):
    """A limit was reached; the search ends with the best so far."""

    limit: Stop


class Measurements:
    """Measures for a search and keeps what was measured."""

    def __init__(
        self,
        target: Target,
        *,
        passes: float,
        seconds: float = float("inf"),
        is_for_mean: bool = False,
        checkpoint: SearchCheckpoint | None = None,
    ) -> None:
        """Starts empty, or with what the checkpoint holds, which is written every minute.

        `passes` counts passes over the data, forward and backward alike. If `is_for_mean`, it is a
        number for the mean effect: there are more where an objective makes gradients dearer.
        """
        self.target = target
        self.spent: Cost = Cost()
        """Passes so far, those that the checkpoint saved included."""
        self.saved: Cost = Cost()
        """Passes that the checkpoint saved."""
        self._passes, self._seconds, self._is_for_mean = passes, seconds, is_for_mean
        self._keys: set[tuple[str, ComponentSet | float]] = set()
        self._checkpoint = checkpoint
        self._start = self._written = time.monotonic()
        self._data = MeasurementData()
        if checkpoint is not None and checkpoint.exists:
            self._data = checkpoint.load(partial(MeasurementData.of_tensors, target=target))
        self._from_file = set(self._data.effects)

    def effects(self, members: ComponentSet) -> Effects:
        """Effects of a set that was measured."""
        return self._data.effects[members]

    def confirm(self, sets: Iterable[ComponentSet]) -> None:
        """Measures sets again that the checkpoint saved; refuses one that holds other effects."""
        if self._checkpoint is None or not self._from_file:
            return
        saved_sets = [members for members in sets if members in self._from_file]
        effects = self.target.set_effects(saved_sets, "checkpoint")
        for members, row in zip(saved_sets, effects, strict=True):
            if not torch.allclose(row, self._data.effects[members], rtol=1e-3, atol=1e-4):
                raise self._checkpoint.error(
                    "holds other effects than the model has. Delete it to start afresh."
                )
        self.saved -= self._data.prices[SET] * len(saved_sets)

    def add_measured(self, effects: Mapping[ComponentSet, Effects]) -> None:
        """Adds sets that were measured elsewhere."""
        self._data.effects.update(effects)
        self._keys.update((SET, members) for members in effects)

    def is_known(self, members: ComponentSet) -> bool:
        """Whether this search has measured a set."""
        return (SET, members) in self._keys

    def measure(self, sets: Iterable[ComponentSet], label: str) -> None:
        """Measures the sets that are new; at a limit keeps those that it could measure."""
        new = [members for members in dict.fromkeys(sets) if not self.is_known(members)]
        # Measured together, sets share more; but the clock and the checkpoint want their turn.
        is_timed = self._seconds < float("inf") or self._checkpoint is not None
        while new:
            count = self._n_allowed(SET)
            part = new[: min(count, _TOGETHER) if is_timed else count]
            missing = [members for members in part if members not in self._data.effects]
            if missing:
                rows = self._measure_with_price(
                    SET, lambda sets=missing: self.target.set_effects(sets, label), len(missing)
                )
                self._data.effects.update(zip(missing, rows, strict=True))
            self._charge(SET, part, len(part) - len(missing))
            new = new[len(part) :]

    def predict_changes(self, members: ComponentSet) -> FirstOrderPrediction:
        """First-order prediction of the change from adding or removing single components."""

        def compute() -> FirstOrderPrediction:
            prediction = self.target.predict_changes(members)
            require_finite_gradient(prediction.gradient, self.target.metric)
            # A prediction beyond the range of numbers is still the best one.
            return replace(prediction, predicted_effects=prediction.predicted_effects.nan_to_num())

        return self._cached_gradient(self._data.predictions, members, compute)

    def soft_gradient(self, share: float) -> Mask:
        """Gradient of the mean effect at the soft mask whose entries all equal a share."""

        def compute() -> Mask:
            mask = torch.full((self.target.n_components,), share)
            gradient = self.target.gradient(mask, torch.ones_like)[1].cpu()
            require_finite_gradient(gradient, self.target.metric)
            return gradient / self.target.n_examples

        return self._cached_gradient(self._data.soft_gradients, share, compute)

    def _cached_gradient(self, values: dict[_K, _T], key: _K, compute: Callable[[], _T]) -> _T:
        if (GRADIENT, key) not in self._keys:
            self._n_allowed(GRADIENT)
            is_saved = key in values
            if not is_saved:
                values[key] = self._measure_with_price(GRADIENT, compute)
            self._charge(GRADIENT, [key], int(is_saved))
        return values[key]

    def save(self) -> None:
        """Writes the checkpoint, if there is one."""
        self._written = time.monotonic()
        if self._checkpoint is not None:
            self._checkpoint.save(self._data.tensors(self.target.n_components))

    def affords(self, n_gradients: int, n_sets: int) -> bool:
        """Whether the limit of passes leaves so many gradients and sets."""
        prices = self._data.prices
        needed = n_gradients * prices[GRADIENT].forward_equivalents
        needed += n_sets * prices[SET].forward_equivalents
        return needed <= self._passes_left + 1e-9

    def has_soft_gradients(self, shares: Iterable[float]) -> bool:
        """Whether the gradients at all of these soft masks were taken."""
        return all((GRADIENT, share) in self._keys for share in shares)

    @property
    def _passes_left(self) -> float:
        gradient = self._data.prices[GRADIENT].forward_equivalents
        scale = gradient / 2 if self._is_for_mean else 1.0
        return scale * self._passes - self.spent.forward_equivalents

    def n_affordable(self, kind: str = SET) -> int:
        """Measurements of a kind that the limit of passes leaves."""
        # The tolerance keeps 40 at 40.
        return int(self._passes_left / self._data.prices[kind].forward_equivalents + 1e-9)

    def _n_allowed(self, kind: str) -> int:
        """How many measurements of a kind the limits allow; raises where there is not even one."""
        is_timed, ranks = self._seconds < float("inf"), self.target.engine.ranks
        if is_timed and ranks.broadcast(lambda: time.monotonic() - self._start > self._seconds):
            raise LimitReachedError("max_seconds")
        count = self.n_affordable(kind)
        if count < 1:
            raise LimitReachedError("max_passes")
        return count

    def _measure_with_price(self, kind: str, compute: Callable[[], _T], count: int = 1) -> _T:
        before = self.target.cost
        result = compute()
        work, prices = self.target.cost - before, self._data.prices
        prices[kind] = Cost(work.forward / count, work.backward / count)
        if kind == GRADIENT and not self._data.effects:
            # As long as no set was measured: one takes half of that at most.
            prices[SET] = Cost(work.forward_equivalents / 2)
        return result

    def _charge(self, kind: str, keys: Sequence[ComponentSet | float], n_saved: int) -> None:
        self._keys.update((kind, key) for key in keys)
        price = self._data.prices[kind]
        self.spent += price * len(keys)
        self.saved += price * n_saved
        if time.monotonic() - self._written > _SAVED_EVERY:
            self.save()


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
        return members if paths is None else paths.edges_on_paths(members)

    def _record(self, measured: Iterable[ComponentSet]) -> None:
        for members in measured:
            size, mean = len(members), self.measurements.effects(members).mean().item()
            if size == 1:
                self._single_effects[members[0]] = mean
            if 0 < size <= self.largest and mean > self.effect(size):
                self._best[size] = (mean, members)
