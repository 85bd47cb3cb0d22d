"""The measurements of a search: a cache within limits, kept in a checkpoint if asked.

Nothing is measured twice. A search that is run again with the checkpoint of one that was cut short
takes the same decisions and reads the checkpoint instead of measuring, so it goes on where the
first one stopped. Measurements restored from a checkpoint count towards the limits, so that a
resumed search takes the same decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from tracekit.components import ComponentSet
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.engine.look_ahead import FirstOrderPrediction
from tracekit.errors import ConfigError, NonFiniteMetricError
from tracekit.masks import Mask
from tracekit.metrics import Effects
from tracekit.search.local.checkpoint import Checkpoint, Measured

Stop = Literal["max_passes", "max_seconds", "interrupted"]

_SAVED_EVERY = 60.0
_TOGETHER = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a search may do."""

    max_passes: float = float("inf")
    """Passes over the data, forward and backward alike."""
    max_seconds: float = float("inf")
    """Wall time."""

    def __post_init__(self) -> None:
        for name in ("max_passes", "max_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}. It must be positive.")


class LimitReachedError(Exception):
    """A limit was reached; the search ends with the best so far."""

    def __init__(self, limit: Stop) -> None:
        """Says which."""
        super().__init__(limit)
        self.limit: Stop = limit


class MeasurementCache:
    """Measures for a search and keeps what was measured."""

    def __init__(
        self, engine: Engine, limits: Limits, checkpoint: Checkpoint | None = None
    ) -> None:
        """Starts empty, or with what the checkpoint holds.

        Args:
            engine: Measures.
            limits: Reaching one raises `LimitReachedError`.
            checkpoint: Written to now and then, and at the end.

        Raises:
            CheckpointError: The checkpoint belongs to another search, model or data set.
        """
        self.engine = engine
        self.spent = 0.0
        """Passes so far, those that the checkpoint held included."""
        self.saved = Cost()
        """The part of it that the checkpoint saved."""
        self._limits = limits
        self._measured = Measured(effects={(): torch.zeros(engine.n_examples)})
        # Held by the checkpoint, not asked for yet.
        self._unread_effects: set[ComponentSet] = set()
        self._unread_predictions: set[ComponentSet] = set()
        self._checkpoint = checkpoint
        self._start = self._written = time.monotonic()
        if checkpoint is not None and checkpoint.exists:
            self._restore(checkpoint.load())

    def _restore(self, measured: Measured) -> None:
        self._measured.effects.update(measured.effects)
        self._measured.predictions.update(measured.predictions)
        self._measured.soft_gradients = measured.soft_gradients
        self._unread_effects = set(measured.effects) - {()}
        self._unread_predictions = set(measured.predictions)

    # ---- measuring ------------------------------------------------------------------------

    def effects(self, members: ComponentSet) -> Effects:
        """Effects of a set that was measured, on every example."""
        return self._measured.effects[members]

    def __contains__(self, members: object) -> bool:
        return members in self._measured.effects and members not in self._unread_effects

    def import_measured(self, measured: Mapping[ComponentSet, Effects]) -> None:
        """Takes over what was measured elsewhere."""
        self._measured.effects.update(measured)

    def measure(self, sets: Iterable[ComponentSet], label: str) -> list[ComponentSet]:
        """Measures the sets that are new, as many as the limits allow, and returns those.

        Raises:
            LimitReachedError: Before the first one, if there is no room for any.
        """
        new = [members for members in dict.fromkeys(sets) if members not in self]
        if not new:
            return []
        self._require_room(1)
        new = new[: int(self._limits.max_passes - self.spent)] if self._is_bounded else new
        # Measured together, sets share more; but the clock and the checkpoint want their turn.
        is_timed = self._limits.max_seconds < float("inf") or self._checkpoint is not None
        chunk = _TOGETHER if is_timed else len(new)
        done: list[ComponentSet] = []
        for first in range(0, len(new), chunk):
            if first and self._is_late:
                break
            sets_now = new[first : first + chunk]
            missing = [members for members in sets_now if members not in self._measured.effects]
            if missing:
                rows = self.engine.set_effects(missing, label)
                self._measured.effects.update(zip(missing, rows, strict=True))
            self._unread_effects -= set(sets_now)
            self._count(Cost(len(missing), 0), Cost(len(sets_now) - len(missing), 0))
            done += sets_now
        return done

    def predict_changes(self, members: ComponentSet) -> FirstOrderPrediction:
        """What changing a component of a set would bring, to first order.

        Raises:
            LimitReachedError: There is no room for it.
            NonFiniteMetricError: The gradient is not finite.
        """
        predictions = self._measured.predictions
        if members in predictions and members not in self._unread_predictions:
            return predictions[members]
        self._require_room(2)
        is_restored = members in predictions
        if not is_restored:
            prediction = self.engine.predict_changes(members)
            if not torch.isfinite(prediction.gradient).all():
                raise NonFiniteMetricError(
                    f"The gradient of the metric {self.engine.metric.name!r} is not finite at "
                    f"{len(members)} components. Use a bounded metric such as probability-drop."
                )
            # A prediction beyond the range of numbers is still the best one.
            gains = prediction.gains.nan_to_num()
            predictions[members] = FirstOrderPrediction(gains, prediction.gradient)
        self._unread_predictions.discard(members)
        self._count_gradient(is_restored)
        return predictions[members]

    def soft_gradient(self, step: int, compute: Callable[[], Mask]) -> Mask:
        """The gradient of a step on a soft mask; steps come in order.

        Raises:
            LimitReachedError: There is no room for it.
        """
        self._require_room(2)
        gradients = self._measured.soft_gradients
        is_restored = step < len(gradients)
        if not is_restored:
            gradients.append(compute())
        self._count_gradient(is_restored)
        return gradients[step]

    # ---- limits ---------------------------------------------------------------------------

    @property
    def room(self) -> float:
        """Passes left."""
        return self._limits.max_passes - self.spent

    @property
    def _is_bounded(self) -> bool:
        return self._limits.max_passes < float("inf")

    def _require_room(self, passes: int) -> None:
        if self.room < passes:
            raise LimitReachedError("max_passes")
        if self._is_late:
            raise LimitReachedError("max_seconds")

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._start > self._limits.max_seconds

    def limit_reached(self) -> LimitReachedError:
        """The error that names the limit which keeps sets from being measured."""
        return LimitReachedError("max_seconds" if self._is_late else "max_passes")

    def _count_gradient(self, is_restored: bool) -> None:
        self._count(*(Cost(), Cost(1, 1)) if is_restored else (Cost(1, 1), Cost()))

    def _count(self, done: Cost, restored: Cost) -> None:
        self.spent += done.forward_equivalents + restored.forward_equivalents
        self.saved += restored
        if time.monotonic() - self._written > _SAVED_EVERY:
            self.save()

    def save(self) -> None:
        """Writes the checkpoint, if there is one."""
        self._written = time.monotonic()
        if self._checkpoint is not None:
            self._checkpoint.save(self._measured)
