"""The measurements of a search: a cache within limits, kept in a checkpoint if asked.

Nothing is measured twice. A search that is run again with the checkpoint of one that was cut short
takes the same decisions and reads the checkpoint instead of measuring, so it goes on where the
first one stopped. Measurements restored from a checkpoint count towards the limits, so that a
resumed search takes the same decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices
from tracekit.engine.cost import Cost
from tracekit.engine.example_curves import ExampleCurves
from tracekit.engine.gradients import Expansion, FirstOrderPrediction, expand, prediction_of
from tracekit.errors import ConfigError, NonFiniteMetricError
from tracekit.metrics import Effects
from tracekit.search.carriers import few_carriers
from tracekit.search.local.checkpoint import Checkpoint, Measured
from tracekit.search.local.older_face import (
    are_independent,
    examples_of_gradient,
    examples_of_set,
    scores_of,
)
from tracekit.search.racing import Heat, Portions, still_in
from tracekit.search.targets import Target

Stop = Literal["max_passes", "max_seconds", "interrupted"]

_SAVED_EVERY = 60.0
_TOGETHER = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a search may do."""

    max_passes: float = float("inf")
    """Passes over the data, forward and backward alike."""
    max_planned: float = float("inf")
    """The same, with whatever is measured on a part of the examples counted as if on all."""
    max_seconds: float = float("inf")
    """Wall time."""

    def __post_init__(self) -> None:
        for name in ("max_passes", "max_planned", "max_seconds"):
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
        self,
        engine: Target,
        limits: Limits,
        checkpoint: Checkpoint | None = None,
        portions: Portions | None = None,
    ) -> None:
        """Starts empty, or with what the checkpoint holds.

        Args:
            engine: Measures.
            limits: Reaching one raises `LimitReachedError`.
            checkpoint: Written to now and then, and at the end.
            portions: What the rounds of a race see; all at once by default.

        Raises:
            ResultFormatError: The checkpoint belongs to another search, model or data set.
        """
        self.engine = engine
        self._limits = limits
        self._portions = portions or Portions.make(engine, 0, race=False)
        # What a checkpoint held is used when it is asked for, so that the search goes the same way.
        self._measured = Measured(effects={(): torch.zeros(engine.n_examples)})
        self._decided: set[ComponentSet] = {()}
        self._dropped: set[ComponentSet] = set()
        self._hopeless: set[ComponentSet] = set()
        self._predicted: set[ComponentSet] = set()
        self._expanded: set[tuple[int, ComponentSet]] = set()
        self._by_gradient: dict[ComponentSet, Effects] = {}
        self._whole_expansions: dict[ComponentSet, Expansion] = {}
        self._n_gradients = 0
        self._planned = 0
        self._reserved = 0
        # In examples, which are whole numbers: sums of shares would round.
        self._n_spent = self._n_saved_forward = self._n_saved_backward = 0
        self._checkpoint = checkpoint
        self._start = self._written = time.monotonic()
        if checkpoint is not None and checkpoint.exists:
            held = engine.ranks.decide(checkpoint.load)
            self._measured.effects.update(held.effects)
            self._measured.predictions.update(held.predictions)
            self._measured.soft_gradients = held.soft_gradients
            self._measured.expansions.update(held.expansions)

    @property
    def spent(self) -> float:
        """Passes so far, those that the checkpoint held included."""
        return self._n_spent / self.engine.n_examples

    @property
    def planned(self) -> float:
        """The same, with whatever was measured on a part of the examples counted as if on all."""
        return self._planned / self.engine.n_examples

    @property
    def room(self) -> float:
        """Passes that the limits leave."""
        return self._room(1, planned=1)

    @property
    def saved(self) -> Cost:
        """The part of it that the checkpoint saved."""
        n = self.engine.n_examples
        return Cost(self._n_saved_forward / n, self._n_saved_backward / n)

    # ---- measuring ------------------------------------------------------------------------

    def effects(self, members: ComponentSet) -> Effects:
        """Effects of a set that was measured; NaN on the examples that a dropped one missed."""
        by_gradient = self._by_gradient.get(members)
        return self._measured.effects[members] if by_gradient is None else by_gradient

    def mean(self, members: ComponentSet, rival: ComponentSet | None = None) -> float:
        """Mean effect of a set; of a dropped one, by the examples it was measured on.

        Args:
            members: The set.
            rival: A set that was measured on all examples and beat it. The mean of a dropped set
                is then this one's, less what it is behind on the examples that both were measured
                on.
        """
        effects = self.effects(members)
        if not self.is_dropped(members):
            return effects.mean().item()
        of_rival = torch.zeros_like(effects) if rival is None else self.effects(rival)
        differences = effects - of_rival
        # A random part stands for all examples; the carriers stand for themselves.
        is_hopeless = members in self._hopeless
        ahead = differences.nansum() / len(effects) if is_hopeless else differences.nanmean()
        return (of_rival.mean() + (ahead if rival is None else ahead.clamp(max=0))).item()

    def ranked(
        self, sets: Iterable[ComponentSet], rival: ComponentSet | None = None
    ) -> list[ComponentSet]:
        """Sets from the best to the worst; those that were dropped come last.

        Args:
            sets: The sets.
            rival: A set that was measured on all examples and beat those that were dropped. They
                are held against it, as each may have been measured on other examples.
        """
        return sorted(sets, key=lambda each: (self.is_dropped(each), -self.mean(each, rival)))

    def is_dropped(self, members: ComponentSet) -> bool:
        """Whether a set lost a race and was not measured on all examples."""
        return members in self._dropped

    def __contains__(self, members: object) -> bool:
        return members in self._decided

    def import_measured(self, measured: Mapping[ComponentSet, Effects]) -> None:
        """Takes over what was measured elsewhere."""
        self._measured.effects.update(measured)
        self._decided.update(measured)

    def reserve(self, passes: int) -> None:
        """Keeps passes free, within the limits; those that were kept before are free again."""
        self._reserved = passes

    def is_confirmed(self, members: ComponentSet) -> bool:
        """Whether a set was measured by itself, not by a gradient only."""
        return members not in self._by_gradient

    def confirm(self, sets: Sequence[ComponentSet], label: str) -> list[ComponentSet]:
        """Measures sets by themselves that only a gradient has measured, as far as limits allow.

        A pass forward and back computes the same with other kernels: up to rounding.

        Args:
            sets: The sets.
            label: Names the progress bar.

        Returns:
            Those that were measured.

        Raises:
            LimitReachedError: There is no room for any.
        """
        unconfirmed = [members for members in sets if not self.is_confirmed(members)]
        if not unconfirmed:
            return []
        some = self._affordable(unconfirmed)
        self._measure_on(some, self._portions.order, label)
        for members in some:
            del self._by_gradient[members]
        return some

    def measure(self, heats: Sequence[Heat], label: str) -> list[ComponentSet]:
        """Measures the sets that are new, as many as the limits allow, and returns those.

        Args:
            heats: The sets, by what they race for.
            label: Names the progress bar.

        Raises:
            LimitReachedError: Before the first one, if there is no room for any.
        """
        listed = dict.fromkeys(members for heat in heats for members in heat.sets)
        new = [members for members in listed if members not in self]
        if not new:
            return []
        new = self._affordable(new)
        running, is_late = self._screened(heats, new, label), False
        if not running:
            return new
        for examples, stop in zip(self._portions.rounds, self._portions.stops, strict=True):
            measured = self._measure_in_time(running, examples, label)
            is_late = len(measured) < len(running)
            if is_late:
                # Of a race that cannot go on, the set that is ahead is measured to the end.
                running = [max(measured or running, key=self.mean)]
                self._measure_on(running, self._portions.order, label)
            if is_late or stop == self.engine.n_examples:
                self._decided.update(measured if stop == self.engine.n_examples else running)
                break
            running = self._still_running(heats, running, stop)
        return [members for members in new if members in self]

    def _screened(
        self, heats: Sequence[Heat], sets: list[ComponentSet], label: str
    ) -> list[ComponentSet]:
        """Measures sets on the examples that carry what they must beat, where these are few.

        A set is dropped that is further behind on them than all others could make up, if they did
        as much again as they do for the rival. The rest are measured on the others, too.

        Returns:
            The sets that still have to race.
        """
        if not self.has_races:
            return sets
        racing = dict.fromkeys(sets)
        for heat in heats:
            own = [members for members in dict.fromkeys(heat.sets) if members in racing]
            if heat.rival is None or not own:
                continue
            of_rival = self.effects(heat.rival)
            seen = few_carriers(of_rival[None])
            if seen is None:
                continue
            self._measure_on(own, seen, label)
            is_other = torch.ones(len(of_rival), dtype=torch.bool).index_fill(0, seen, False)
            behind = {m: (of_rival - self._measured.effects[m])[seen].sum() for m in own}
            going = [m for m in own if behind[m] <= of_rival[is_other].abs().sum()]
            self._measure_on(going, is_other.nonzero()[:, 0], label)
            self._hopeless.update(set(own).difference(going))
            self._dropped |= self._hopeless
            self._decided.update(own)
            for members in own:
                del racing[members]
        return list(racing)

    def _measure_in_time(
        self, sets: Sequence[ComponentSet], examples: Int[Tensor, " example"], label: str
    ) -> list[ComponentSet]:
        """Measures on some examples; without time for all sets, the first of them."""
        # Measured together, sets share more; but the clock and the checkpoint want their turn.
        is_timed = self._limits.max_seconds < float("inf") or self._checkpoint is not None
        chunk = _TOGETHER if is_timed else max(1, len(sets))
        for first in range(0, len(sets), chunk):
            is_first = first == 0 and examples[0] == self._portions.order[0]
            if self._is_late and not is_first:
                return list(sets[:first])
            self._measure_on(sets[first : first + chunk], examples, label)
        return list(sets)

    def _measure_on(
        self, sets: Sequence[ComponentSet], examples: Int[Tensor, " example"], label: str
    ) -> None:
        """Measures on some examples, where the checkpoint does not hold it."""
        effects = self._measured.effects
        missing = [
            members
            for members in sets
            if members not in effects or effects[members][examples].isnan().any()
        ]
        if missing:
            is_whole = len(examples) == self.engine.n_examples
            rows = self.engine.set_effects(missing, label, examples=None if is_whole else examples)
            for members, row in zip(missing, rows, strict=True):
                if is_whole:
                    effects[members] = row
                    continue
                if members not in effects:
                    effects[members] = torch.full((self.engine.n_examples,), torch.nan)
                effects[members][examples] = row
        n_missing, n_held = len(missing), len(sets) - len(missing)
        each = examples_of_set(self.engine, len(examples))
        self._count(n_missing * each, n_held * each)

    def _still_running(
        self, heats: Sequence[Heat], running: Sequence[ComponentSet], stop: int
    ) -> list[ComponentSet]:
        """The sets that go on to the next round; the others are dropped."""
        seen, still = self._portions.order[:stop], set[ComponentSet]()
        for heat in heats:
            sets = [members for members in heat.sets if members in set(running)]
            if sets:
                rows = torch.stack([self._measured.effects[members][seen] for members in sets])
                rival = None if heat.rival is None else self.effects(heat.rival)[seen]
                is_in = still_in(
                    rows, self.engine.n_examples, rival=rival, n_winners=heat.n_winners
                )
                still.update(members for members, yes in zip(sets, is_in, strict=True) if yes)
        dropped = set(running) - still
        self._dropped |= dropped
        self._decided |= dropped
        return [members for members in running if members in still]

    def predict_changes(self, members: ComponentSet) -> FirstOrderPrediction:
        """What changing a component of a set would bring, to first order.

        Raises:
            LimitReachedError: There is no room for it.
            NonFiniteMetricError: The gradient is not finite.
        """
        predictions = self._measured.predictions
        if members in self._predicted:
            return predictions[members]
        prediction = self._expanded_prediction(members)
        if prediction is not None:
            return prediction
        self._require(self._room_of_gradients(is_soft=False))
        # The ranking of all components, which the whole search draws on, is of all examples.
        examples = self._examples_of_gradient() if members else None
        is_held = members in predictions
        if not is_held:
            prediction = self.engine.predict_changes(members, examples=examples)
            if not torch.isfinite(prediction.gradient).all():
                raise self._not_finite(members)
            # A prediction beyond the range of numbers is still the best one.
            predictions[members] = replace(prediction, gains=prediction.gains.nan_to_num())
        self._predicted.add(members)
        self._count_gradient(examples, is_held, is_soft=False)
        return predictions[members]

    def _expanded_prediction(self, members: ComponentSet) -> FirstOrderPrediction | None:
        """What the expansion of a set on all examples predicts, if there is one."""
        engine, expansion = self.engine, self._whole_expansions.get(members)
        is_flat = engine.metric.is_flat_at_clean and not members
        if expansion is None or is_flat or not are_independent(engine):
            return None
        prediction = prediction_of(engine.data, members, expansion)
        return replace(prediction, gains=prediction.gains.nan_to_num())

    def predict_from(self, members: ComponentSet, expansion: Expansion) -> None:
        """Lets predictions at a set follow from an expansion of all examples, without a gradient.

        Args:
            members: The set.
            expansion: Measured on the examples that matter, and estimated on the others.
        """
        self._whole_expansions.setdefault(members, expansion)

    def soft_gradient(
        self, step: int, compute: Callable[[Int[Tensor, " example"] | None], Mask]
    ) -> Mask:
        """The gradient of a step on a soft mask; steps come in order.

        Args:
            step: Its number, from 0.
            compute: Computes it on the examples that it is given, or on all (None).

        Raises:
            LimitReachedError: There is no room for it.
        """
        self._require(self._room_of_gradients(is_soft=True))
        gradients, examples = self._measured.soft_gradients, self._examples_of_gradient()
        is_held = step < len(gradients)
        if not is_held:
            gradients.append(compute(examples))
        self._count_gradient(examples, is_held, is_soft=True)
        return gradients[step]

    def expand(
        self, masks: Float[Tensor, "some component"], examples: Int[Tensor, " some"]
    ) -> tuple[Expansion, int]:
        """The expansion of some examples, each at a set of its own, and how many are new.

        Args:
            masks: The sets, as rows of 0 and 1.
            examples: Numbers of the examples.

        Raises:
            LimitReachedError: There is no room for it.
        """
        expansions, n = self._measured.expansions, self.engine.n_examples
        keys = [
            (example, tuple(mask.nonzero()[:, 0].tolist()))
            for example, mask in zip(examples.tolist(), masks, strict=True)
        ]
        new = [row for row, key in enumerate(keys) if key not in self._expanded]
        if new:
            self._require(self._room(2 * len(new) / n, planned=2 * len(new) / n))
            missing = [row for row in new if keys[row] not in expansions]
            if missing:
                computed = expand(self.engine.data, masks[missing], examples[missing])
                rows = zip(missing, *computed, strict=True)
                expansions.update({keys[row]: (value, slopes) for row, value, slopes in rows})
            self._expanded.update(keys[row] for row in new)
            n_held = len(new) - len(missing)
            self._planned += 2 * len(new)
            self._n_saved_backward += n_held
            self._n_spent += len(new)
            self._count(len(missing), n_held)
        quantity, slopes = zip(*(expansions[key] for key in keys), strict=True)
        return Expansion(torch.stack(quantity), torch.stack(slopes)), len(new)

    def expand_at_empty(self) -> tuple[Expansion, int]:
        """The expansion of every example at the empty set, and how many are new; see `expand`.

        Raises:
            LimitReachedError: There is no room for it.
        """
        examples = torch.arange(self.engine.n_examples)
        return self.expand(torch.zeros(len(examples), self.engine.n_components), examples)

    def expand_set(self, members: ComponentSet, examples: Int[Tensor, " some"]) -> Expansion:
        """The expansion of some examples, all at one set; see `expand`.

        Of all examples, that measures the set: where the metric is a curve, it makes the quantity
        an effect.

        Raises:
            LimitReachedError: There is no room for it.
            NonFiniteMetricError: A slope is not finite.
        """
        is_whole = len(examples) == self.engine.n_examples
        if is_whole and members not in self:
            # Two for the gradient, and one to confirm the set if it is the best of its size.
            self._require(self._room(3, planned=3))
        mask = from_indices(members, self.engine.n_components).float()
        expansion, _ = self.expand(mask.expand(len(examples), -1), examples)
        if not torch.isfinite(expansion.slopes).all():
            raise self._not_finite(members)
        if is_whole and members not in self:
            curves = ExampleCurves.of(self.engine.data)
            effects = expansion.quantity if curves is None else curves.effects(expansion.quantity)
            self._by_gradient[members] = scores_of(self.engine, effects.float())
            self._decided.add(members)
        if is_whole:
            self._whole_expansions[members] = expansion
        return expansion

    @property
    def has_races(self) -> bool:
        """Whether sets may be measured on a part of the examples."""
        return not self._portions.is_whole

    @property
    def may_skip_examples(self) -> bool:
        """Whether a gradient may leave out examples that carry little of the effect."""
        return self._portions.may_skip

    @property
    def examples_of_model(self) -> Int[Tensor, " example"]:
        """The examples that a model of the slopes learns from."""
        return self._portions.of_model(self.engine.n_components)

    def _not_finite(self, members: ComponentSet) -> NonFiniteMetricError:
        return NonFiniteMetricError(
            f"The gradient of the metric {self.engine.metric.name!r} is not finite at "
            f"{len(members)} components. Use a bounded metric such as probability-drop."
        )

    def _examples_of_gradient(self) -> Int[Tensor, " example"] | None:
        self._n_gradients += 1
        return self._portions.of_gradient(self._n_gradients - 1)

    # ---- limits ---------------------------------------------------------------------------

    def _room(self, passes: float, *, planned: float) -> float:
        """How often the limits allow something.

        Args:
            passes: What it takes, with all that is run besides.
            planned: What the method's own plan counts it as.
        """
        return min(
            (self._limits.max_passes - self._reserved - self.spent) / passes,
            (self._limits.max_planned - self._reserved - self.planned) / planned,
        )

    def _room_of_gradients(self, *, is_soft: bool) -> float:
        n = self.engine.n_examples
        passes = examples_of_gradient(self.engine, n, is_soft=is_soft) / n
        return self._room(passes, planned=2)

    def _affordable(self, sets: list[ComponentSet]) -> list[ComponentSet]:
        """As many sets as the limits allow, which count as measured from here on.

        Raises:
            LimitReachedError: There is no room for any.
        """
        n = self.engine.n_examples
        room = self._room(examples_of_set(self.engine, n) / n, planned=1)
        self._require(room)
        some = sets[: int(room)] if self._is_bounded else sets
        self._planned += len(some) * n
        return some

    @property
    def _is_bounded(self) -> bool:
        return min(self._limits.max_passes, self._limits.max_planned) < float("inf")

    def _require(self, room: float) -> None:
        if room < 1:
            raise LimitReachedError("max_passes")
        if self._is_late:
            raise LimitReachedError("max_seconds")

    @property
    def _is_late(self) -> bool:
        if self._limits.max_seconds == float("inf"):
            return False
        ranks = self.engine.ranks
        return ranks.decide(lambda: time.monotonic() - self._start > self._limits.max_seconds)

    def limit_reached(self) -> LimitReachedError:
        """The error that names the limit which keeps sets from being measured."""
        return LimitReachedError("max_seconds" if self._is_late else "max_passes")

    def _count_gradient(
        self, examples: Int[Tensor, " example"] | None, is_held: bool, *, is_soft: bool
    ) -> None:
        n = self.engine.n_examples if examples is None else len(examples)
        self._planned += 2 * self.engine.n_examples
        self._n_saved_backward += n if is_held else 0
        self._n_spent += n
        others = examples_of_gradient(self.engine, n, is_soft=is_soft) - n
        self._count(0 if is_held else others, others if is_held else 0)

    def _count(self, n_done: int, n_held: int) -> None:
        """Counts examples that were read, and those whose effects the checkpoint held."""
        self._n_spent += n_done + n_held
        self._n_saved_forward += n_held
        if time.monotonic() - self._written > _SAVED_EVERY:
            self.save()

    def save(self) -> None:
        """Writes the checkpoint, if there is one."""
        self._written = time.monotonic()
        if self._checkpoint is not None:
            self._checkpoint.save(self._measured)
