"""An exploration: a set of components that changes, and all that is known of the sets it was.

Every measurement and prediction is looked up by the set that it belongs to, so no effect can stand
beside another set. Work is done in steps of one batch (`steps`), between which the set may change.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.options import is_int, short_repr
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, complement_of, from_indices
from tracekit.components.registry import ranges
from tracekit.engine import checks
from tracekit.engine.effects import stream_effects
from tracekit.engine.engine import Engine
from tracekit.engine.gradients import stream_predictions
from tracekit.errors import ComponentError, TracekitError
from tracekit.measure.question import on_examples
from tracekit.metrics import Bounds, Effects
from tracekit.results.faithfulness import Faithfulness
from tracekit.results.intervals import UNBOUNDED, effect_interval
from tracekit.results.on_examples import OnExamples, OverExamples

Pin = Literal["A", "B"]
"""Name of a pinned set."""
_MOST_UNDONE = 100
"""Sets that the history keeps."""
_MOST_ALONE = 16
"""Components of a set beyond which they are not measured one by one unasked."""


@dataclass(frozen=True, eq=False)
class Measurement(OverExamples):
    """Measured effects of a set on every example."""

    members: ComponentSet
    effects: Effects
    """Effect on each example; times its weight if examples have weights."""
    x: Float[Tensor, " example"] | None = None
    """Log-probability of each x under the intervention; None if it was not recorded."""
    y: Float[Tensor, " example"] | None = None
    """Log-probability of each y, if every example has one."""
    seconds: float | None = None
    """Its cost; None if it was measured elsewhere."""
    bounds: Bounds = UNBOUNDED
    """What an effect can be."""

    @property
    def effect(self) -> float:
        """Mean effect."""
        return self.effects.mean().item()

    @cached_property
    def spread(self) -> tuple[float, float]:
        """How far it moves when the examples are resampled (95 %, studentised bootstrap).

        No confidence interval of a set that was chosen by its effect on these examples.
        """
        return effect_interval(self.effects, bounds=self.bounds, **self.statistics_options)


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predicted changes from adding or removing single components, to first order."""

    members: ComponentSet
    gains: Mask
    """Gain from having each component in the set: from joining it, or from being there."""
    per_example: Float[Tensor, "example component"] | None = None
    """Gain on each example, where it is known."""
    is_rough: bool = False
    """Whether it comes from a gradient elsewhere than at the set."""


@dataclass(frozen=True)
class Progress:
    """A measurement that is not complete."""

    members: ComponentSet
    n_done: int
    """Batches that were measured."""
    n_batches: int
    effect: float | None
    """Mean effect on the examples measured so far."""


@dataclass(frozen=True)
class Unpredicted:
    """A set at which nothing can be predicted."""

    members: ComponentSet
    reason: str


@dataclass(frozen=True, eq=False)
class Circuit:
    """What a set does of the whole, and what is left without it."""

    members: ComponentSet
    scores: Faithfulness


Event = Measurement | Prediction | Progress | Unpredicted | Circuit
"""Outcome of a step of work."""


class Exploration:
    """A set of components that changes, and what is known of every set that it was."""

    def __init__(
        self,
        engine: Engine,
        members: Iterable[int] = (),
        *,
        front: Sequence[ComponentSet] = (),
        measured: Iterable[Measurement] = (),
    ) -> None:
        """Begins with a set of flat indices; measures nothing yet.

        `front` are sets of ascending size to move along, `measured` what this engine measured.

        Raises:
            ComponentError: A set that is none of this engine's components.
        """
        self.engine = engine
        self.n_components: int = engine.n_components
        self.front: tuple[ComponentSet, ...] = tuple(self._checked(each) for each in front)
        self.measurements: dict[ComponentSet, Measurement] = {m.members: m for m in measured}
        """Every measurement, by its set."""
        self.predictions: dict[ComponentSet, Prediction] = {}
        """Every prediction, by its set; single examples are kept for the latest only."""
        self.unpredicted: dict[ComponentSet, Unpredicted] = {}
        """Sets at which nothing can be predicted."""
        self.circuits: dict[ComponentSet, Circuit] = {}
        """Faithfulness and completeness, by the set."""
        self.held_out: dict[ComponentSet, OnExamples] = {}
        """Effects on held-out examples, by the set, where a search measured them."""
        self.pins: dict[Pin, ComponentSet] = {}
        self.example: int | None = None
        """The example whose predictions are shown; None: their mean."""
        self.history: tuple[ComponentSet, ...] = (self._checked(members),)
        """Sets that the set was, and those that `redo` leads to."""
        self.position = 0
        """Where in the history the set is."""

    @property
    def members(self) -> ComponentSet:
        """The set, as ascending flat indices."""
        return self.history[self.position]

    def select(self, members: Iterable[int]) -> None:
        """Makes it another set; what was undone is forgotten.

        Raises:
            ComponentError: Something else than components.
        """
        chosen = self._checked(members)
        if chosen == self.members:
            return
        self.history = (*self.history[: self.position + 1], chosen)[-_MOST_UNDONE:]
        self.position = len(self.history) - 1

    def complement(self) -> None:
        """Makes it the set of all other components."""
        self.select(complement_of(self.members, self.n_components))

    def undo(self) -> None:
        """Goes back to the set before, if there is one."""
        self.position = max(0, self.position - 1)

    def redo(self) -> None:
        """Goes forward to the set that was undone, if there is one."""
        self.position = min(len(self.history) - 1, self.position + 1)

    def pin(self, name: Pin) -> None:
        """Keeps the set as `A` or `B`, to compare others with."""
        if name not in get_args(Pin):
            raise ComponentError(f"Unknown pin {short_repr(name)}. Use 'A' or 'B'.")
        self.pins[name] = self.members

    def _checked(self, members: Iterable[int]) -> ComponentSet:
        indices = list(members)
        for index in indices:
            if not is_int(index) or not 0 <= index < self.n_components:
                raise ComponentError(
                    f"{short_repr(index)} is no component. Give flat indices, 0 to "
                    f"{self.n_components - 1}."
                )
        return tuple(sorted({int(index) for index in indices}))

    @property
    def measurement(self) -> Measurement | None:
        """Measurement of the set; None before there is one."""
        return self.measurements.get(self.members)

    @property
    def prediction(self) -> Prediction | None:
        """Prediction at the set; None before there is one."""
        return self.predictions.get(self.members)

    def alone(self, index: int) -> float | None:
        """Measured effect of one component alone; None if it was not measured."""
        single = self.measurements.get((index,))
        return None if single is None else single.effect

    def measure(self, *, complete: bool = False) -> Measurement:
        """Measurement of the set, which is made if there is none yet.

        With `complete`, also if it lacks probabilities, as results of searches do.
        """
        members = self.members
        measurement = self.measurements.get(members)
        if measurement is None or (complete and measurement.x is None):
            list(self._measure(members))
        return self.measurements[members]

    def predict(self) -> Prediction | None:
        """The prediction at the set, made if need be; None if the metric has none."""
        members = self.members
        if members not in self.predictions:
            list(self._predict(members))
        return self.predictions.get(members)

    def measure_singles(self) -> None:
        """Measures every component alone, unless it was."""
        missing = [i for i in range(self.n_components) if (i,) not in self.measurements]
        if not missing:
            return
        checks.check_model_unchanged(self.engine)
        start = time.perf_counter()
        effects = self.engine.set_effects([(i,) for i in missing], "single components")
        seconds = (time.perf_counter() - start) / len(missing)
        for index, of_examples in zip(missing, effects, strict=True):
            self._record(Measurement((index,), of_examples, seconds=seconds))

    def steps(self) -> Iterator[Event]:
        """Works on the present set, a batch a step; leave it when the set has changed.

        The set is measured first. Then come its complement, the predictions for every component,
        and the components of a small set alone.
        """
        members = self.members
        measurement = self.measurements.get(members)
        # One from elsewhere lacks the probabilities of continuations.
        if measurement is None or measurement.x is None:
            yield from self._measure(members)
        yield from self.circuit_steps(members)
        prediction = self.predictions.get(members)
        is_enough = prediction is not None and (
            self.example is None or prediction.is_rough or prediction.per_example is not None
        )
        if not is_enough and members not in self.unpredicted:
            yield from self._predict(members)
        if len(members) <= _MOST_ALONE:
            for index in members:
                if (index,) not in self.measurements:
                    yield from self._measure((index,))

    def circuit_steps(self, members: ComponentSet) -> Iterator[Event]:
        """Measures set and complement for the faithfulness, if a share of the whole is defined."""
        engine, full = self.engine, self.engine.full_effects
        if members in self.circuits or not members or not full.mean().abs() > 0:
            return
        both = members, complement_of(members, self.n_components)
        for each in both:
            if each not in self.measurements:
                yield from self._measure(each)
        measured = on_examples(engine, *(self.measurements[each].effects for each in both))
        scores = measured.faithfulness(sizes=[len(members)], n_components=self.n_components)
        self.circuits[members] = Circuit(members, scores)
        yield self.circuits[members]

    def _measure(self, members: ComponentSet) -> Iterator[Event]:
        engine = self.engine
        checks.check_model_unchanged(engine)
        start = time.perf_counter()
        n = engine.n_examples
        effects, x = torch.zeros(2, n)
        y = torch.zeros(n) if engine.layout.all_have_y else None
        n_batches, n_seen, total, seconds = len(engine.batches), 0, 0.0, 0.0
        mask = from_indices(members, self.n_components)
        for number, batch in enumerate(stream_effects(engine, mask), start=1):
            effects[batch.examples], x[batch.examples] = batch.effects, batch.x
            if y is not None and batch.y is not None:
                y[batch.examples] = batch.y
            n_seen += len(batch.examples)
            total += batch.effects.sum().item()
            seconds += time.perf_counter() - start
            if number < n_batches:
                yield Progress(members, number, n_batches, total / n_seen)
            start = time.perf_counter()
        engine.check_finite(effects)
        if n_batches > 1:
            # Others may have used the model between two batches.
            checks.check_model_unchanged(engine)
        yield self._record(Measurement(members, effects, x, y, seconds))

    def _record(self, measurement: Measurement) -> Measurement:
        weighted = replace(
            measurement, bounds=self.engine.metric.bounds, **self.engine.pairs.statistics_options
        )
        self.measurements[measurement.members] = weighted
        return weighted

    def _predict(self, members: ComponentSet) -> Iterator[Event]:
        engine = self.engine
        try:
            if engine.metric.is_flat_at_clean and not members:
                gains = engine.predict_changes(members).predicted_effects
                prediction = Prediction(members, gains, is_rough=True)
            else:
                per_example = torch.zeros(engine.n_examples, self.n_components)
                n_done = 0
                for batch in stream_predictions(engine, members):
                    per_example[batch.examples] = batch.predicted_effects.float()
                    n_done += len(batch.examples)
                    if n_done < engine.n_examples:
                        yield Progress(members, 0, 0, None)
                prediction = Prediction(members, per_example.mean(0), per_example)
        except (TracekitError, RuntimeError) as error:
            # Predictions are a help: without them the set is measured all the same.
            reason = str(error).strip() or type(error).__name__
            self.unpredicted[members] = Unpredicted(members, reason)
            yield self.unpredicted[members]
            return
        for other, earlier in self.predictions.items():
            self.predictions[other] = replace(earlier, per_example=None)
        self.predictions[members] = prediction
        yield prediction

    def state(self) -> dict[str, Any]:
        """Set, history, pins and pinned example as plain values, which `restore` reads."""
        return {
            "history": [set_key(members) for members in self.history],
            "position": self.position,
            "pins": {name: set_key(members) for name, members in self.pins.items()},
            "example": self.example,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state` gave, also from elsewhere; refuses all if a part is wrong."""
        try:
            history = tuple(self._checked(members_of_key(key)) for key in state["history"])
            position, example = state["position"], state.get("example")
            pins: dict[Pin, ComponentSet] = {
                name: self._checked(members_of_key(key)) for name, key in state["pins"].items()
            }
            n_examples = self.engine.n_examples
            is_example = example is None or (is_int(example) and 0 <= int(example) < n_examples)
            is_position = is_int(position) and 0 <= position < len(history)
            if not is_position or set(pins) - set(get_args(Pin)) or not is_example:
                raise ValueError(position, pins, example)
        except ComponentError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ComponentError(
                f"The state {short_repr(state)} of an exploration cannot be read, or has a "
                "position, a pin or an example that there is not. Give what state() gave."
            ) from error
        self.history, self.position = history[-_MOST_UNDONE:], position
        self.position -= len(history) - len(self.history)
        self.pins, self.example = pins, example


def set_key(members: ComponentSet) -> str:
    """A set as a short text, e.g. `0-3,7`; empty for the empty set."""
    return ranges(members, separator=",")


def members_of_key(key: str) -> ComponentSet:
    """The set of a key that `set_key` made; raises ValueError for any other key."""
    members: list[int] = []
    for run in filter(None, key.split(",")):
        low, _, high = run.partition("-")
        first, last = int(low), int(high or low)
        if not 0 <= last - first < _LONGEST_RUN:
            raise ValueError(run)
        members += range(first, last + 1)
    return tuple(members)


_LONGEST_RUN = 10**6
"""Components in a row beyond which a key is refused, and not written out."""
