"""Engines of resampled examples, which share what is measured on the examples they are drawn from.

A search on a resample decides as it would alone, so its passes count in full, also those that an
earlier resample has run. `SharedMeasurements.saved` is the difference to those that were run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components.masks import Mask, from_indices
from tracekit.engine.cost import Account, Cost
from tracekit.engine.engine import Engine
from tracekit.engine.gradients import Expansion, GradientWeight, expand
from tracekit.metrics import Effects, Metric

_MOST_GRADIENTS = 2**25
"""Entries of the gradients of all examples at one mask (128 MiB) up to which they are kept."""


class SharedMeasurements:
    """Effects of sets, and gradients at masks of equal entries, on all examples of an engine."""

    def __init__(self, engine: Engine) -> None:
        """Starts with nothing measured."""
        self.engine: Engine = replace(engine, account=Account(), record=None)
        self.counted = Account()
        """Work that resamples counted, whether it was run for them or before."""
        self._effects: dict[bytes, Effects] = {}
        self._gradients: dict[float, Expansion] = {}
        self._of_metrics: dict[str, SharedMeasurements] = {}

    @property
    def saved(self) -> Cost:
        """Passes that resamples counted less those that were run for them."""
        own = self.counted.cost(self.engine.n_examples) - self.engine.cost
        return sum((other.saved for other in self._of_metrics.values()), own)

    def with_metric(self, metric: Metric) -> SharedMeasurements:
        """The measurements by another metric, the same ones for all resamples."""
        if metric.name not in self._of_metrics:
            self._of_metrics[metric.name] = SharedMeasurements(self.engine.with_metric(metric))
        return self._of_metrics[metric.name]

    def set_effects(
        self, sets: Sequence[Sequence[int]], label: str
    ) -> Float[Tensor, "set example"]:
        """Effects of sets on all examples; only new ones are measured."""
        keys = [from_indices(each, self.engine.n_components).numpy().tobytes() for each in sets]
        new = {
            key: members
            for key, members in zip(keys, sets, strict=True)
            if key not in self._effects
        }
        rows = self.engine.set_effects(new.values(), label)
        self._effects.update(zip(new, rows, strict=True))
        return torch.stack([self._effects[key] for key in keys])

    def gradients_at(self, level: float) -> Expansion:
        """Effects and gradients of all examples at the mask whose entries all have a value."""
        if level not in self._gradients:
            engine = self.engine
            masks = torch.full((engine.n_examples, engine.n_components), level)
            examples = torch.arange(engine.n_examples)
            self._gradients[level] = expand(engine, masks, examples, is_linear=False)
        return self._gradients[level]


@dataclass(frozen=True, kw_only=True, eq=False)
class ResampledEngine(Engine):
    """An engine of examples that were drawn, with repetitions, from those of another one."""

    numbers: Int[Tensor, " example"]
    """The examples that were drawn."""
    shared: SharedMeasurements

    @classmethod
    def draw(cls, shared: SharedMeasurements, numbers: Sequence[int]) -> ResampledEngine:
        """The engine of the examples of these numbers."""
        engine = shared.engine.with_pairs(shared.engine.pairs.subset(numbers))
        values = {each.name: getattr(engine, each.name) for each in fields(engine)}
        return cls(**values, numbers=torch.tensor(numbers), shared=shared)

    def with_metric(self, metric: Metric) -> Engine:
        """As in `Engine`; what is measured by this metric is shared as well."""
        return replace(super().with_metric(metric), shared=self.shared.with_metric(metric))

    def prepare_full_effects(self) -> None:
        """As in `Engine`."""
        if not self._full_effects:
            self._full_effects.append(self._drawn(self.shared.engine.full_effects))
            self._count(self.n_examples)

    def set_effects(
        self,
        sets: Iterable[Sequence[int]],
        label: str = "effects",
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "set some"]:
        """As in `Engine`; sets that no resample had are measured on all examples."""
        listed = [tuple(members) for members in sets]
        effects = self._drawn(self.shared.set_effects(listed, label))
        self._count(len(listed) * (self.n_examples if examples is None else len(examples)))
        if examples is not None:
            return effects[:, examples]
        if self.record is not None:
            self.record(listed, effects)
        return effects

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
    ) -> tuple[Effects, Mask]:
        """As in `Engine`; at masks whose entries are equal, of all examples at once."""
        is_kept = self.shared.engine.n_examples * self.n_components <= _MOST_GRADIENTS
        if not is_kept or (mask != mask[0]).any():
            return super().gradient(mask, example_weights, examples)
        at_level = self.shared.gradients_at(float(mask[0]))
        some = torch.arange(self.n_examples) if examples is None else examples.cpu()
        effects = self._drawn(at_level.quantity)[some]
        weights = example_weights(effects) * self._scale[some]
        self._count(len(some), backward=True)
        gradient = weights @ at_level.gradients[self.numbers[some]]
        return effects.to(mask.device), gradient.to(mask.device)

    @cached_property
    def _scale(self) -> Float[Tensor, " example"]:
        """Weights of the examples, whose mean is 1 among those drawn, by their weights there."""
        own, of_all = self.pairs.weights, self.shared.engine.pairs.weights
        own = torch.ones(self.n_examples) if own is None else own
        return own if of_all is None else own / of_all[self.numbers]

    def _drawn(self, effects: Float[Tensor, "*set all"]) -> Float[Tensor, "*set example"]:
        return effects[..., self.numbers] * self._scale

    def _count(self, n_examples: int, *, backward: bool = False) -> None:
        for account in (self.account, self.shared.counted):
            # The progress bar shows what is run.
            account.add_examples(
                n_examples, backward=backward, reported=n_examples * (1 + backward)
            )
