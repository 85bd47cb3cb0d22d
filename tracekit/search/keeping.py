"""Keeping: a search for a large effect on one data set while another metric stays within bounds.

The searches know nothing of it. They are given an engine whose effects are those of the traced
metric less a penalty for leaving the bounds, with k the mean effect of the kept metric, b the bound
and F the effect of all components:

    measured sets    a set with |k| > b has an effect of -10^9 (1 + (|k| - b) / b), so that none
                     within the bounds is worse; one within them has its own numbers
    soft masks       lose |F| (|k| - b) / b beyond the bounds, with its gradient

Sets are still proposed by predictions, and chosen by what is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import isfinite
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.options import shortened
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask
from tracekit.data.prompts import PromptPairs
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine, GradientWeight
from tracekit.engine.look_ahead import Expansion, FirstOrderPrediction
from tracekit.engine.precision import Precision
from tracekit.errors import ConfigError, NothingFoundError
from tracekit.metrics import Effects, Metric, MetricFunction, resolve

Record = Mapping[str, Any]
"""What a search recorded of one step."""
_OUTSIDE = -1e9
"""Effect of a measured set that lies just outside the bounds: below that of any other."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Keep:
    """What a search is to leave as it is."""

    pairs: PromptPairs | None = None
    """Examples on which it is measured, e.g. neutral text; None: those that are traced."""
    metric: str | Metric | MetricFunction = "kl"
    """What is measured on them."""
    at_most: float
    """Bound on the absolute value of its mean effect, in units of the metric."""

    def __post_init__(self) -> None:
        is_number = isinstance(self.at_most, (int, float)) and isfinite(self.at_most)
        if not is_number or self.at_most <= 0:
            raise ConfigError(f"at_most is {self.at_most!r}. It must be positive.")
        if self.pairs is not None and not isinstance(self.pairs, PromptPairs):
            raise ConfigError(f"The pairs to keep are {shortened(self.pairs)}. Give PromptPairs.")
        resolve(self.metric)

    def describe(self, traced: PromptPairs) -> str:
        """What is kept, in a phrase."""
        pairs = traced if self.pairs is None else self.pairs
        return f"{resolve(self.metric).name} on {pairs.name} at most {self.at_most!r}"


class KeepingEngine(Engine):
    """What a search is given in place of an engine: sets outside the bounds come last.

    `effects`, `set_effects`, `gradient` and `predict_changes` are those of the traced engine,
    changed as this file says; everything else is the traced engine's own.
    """

    _traced: Engine
    _keeping: Engine
    _keep: Keep
    _scale: float
    _before: Cost
    _steps: Iterator[int]

    def __init__(self, traced: Engine, keeping: Engine, keep: Keep) -> None:
        """Shares everything with an engine but effects, gradients and accounts.

        Args:
            traced: Gives the effects of the traced metric.
            keeping: Gives those of the kept metric, for the same components.
            keep: The bound.
        """
        _ = traced.full_effects, traced.clean
        kept = f"keeping {keep.describe(traced.pairs)} ({keeping.pairs.fingerprint[:12]})"
        # A name of its own, for checkpoints; and effects below any bound are possible now.
        metric = replace(
            traced.metric,
            name=f"{traced.metric.name}, {kept}",
            lower_bound=None,
            differentiable=traced.metric.differentiable and keeping.metric.differentiable,
        )
        vars(self).update(vars(traced))
        vars(self).update(
            _metric=metric,
            _traced=traced,
            _keeping=keeping,
            _keep=keep,
            _scale=traced.full_effects.mean().abs().item() or 1.0,
            _before=self._work(traced, keeping),
            _steps=count(),
        )

    @staticmethod
    def _work(traced: Engine, keeping: Engine) -> Cost:
        """Interventional work on both data sets so far, in passes over the traced one."""
        kept, share = keeping.cost, keeping.n_examples / traced.n_examples
        return traced.cost + Cost(kept.forward * share, kept.backward * share)

    @property
    def cost(self) -> Cost:
        """Interventional work since this engine was made, in passes over the traced data set."""
        return self._work(self._traced, self._keeping) - self._before

    def with_pairs(self, pairs: PromptPairs) -> Engine:
        """An engine on other traced pairs that keeps the same."""
        keeping = self._keeping
        if self._keep.pairs is None:
            keeping = keeping.with_pairs(pairs)
        return KeepingEngine(self._traced.with_pairs(pairs), keeping, self._keep)

    @property
    def keep(self) -> Keep:
        """What is kept."""
        return self._keep

    def report(self, members: Sequence[int]) -> dict[str, Any]:
        """What a set does to what is kept, ready to be saved."""
        return {
            "metric": self._keeping.metric.name,
            "dataset": self._keeping.pairs.name,
            "dataset_fingerprint": self._keeping.pairs.fingerprint,
            "at_most": self._keep.at_most,
            "effect": self.kept_effect(members),
        }

    def kept_effect(self, members: Sequence[int]) -> float:
        """Mean effect of a set by the kept metric."""
        return self._keeping.set_effects([tuple(members)]).mean().item()

    def effects(self, mask: Any) -> Float[Tensor, "*set example"]:
        """Effects of measured sets, those outside the bounds last; see `Engine.effects`."""
        return self._ranked(self._traced.effects(mask), self._keeping.effects(mask))

    @property
    def examples_are_independent(self) -> bool:
        """They are not: what is kept is a mean."""
        return False

    @property
    def effects_tell_all(self) -> bool:
        """They do not: what is kept counts, too."""
        return False

    def set_effects(
        self,
        sets: Iterable[Sequence[int]],
        label: str = "effects",
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "set example"]:
        """Effects of measured sets, those outside the bounds last; see `Engine.set_effects`.

        What is kept is measured on all of its examples.
        """
        listed = [tuple(members) for members in sets]
        kept = self._keeping.set_effects(listed, f"{label}, kept")
        effects = self._traced.set_effects(listed, label, examples=examples)
        if examples is None:
            inside = (self._beyond(kept.mean(1)) == 0).nonzero()[:, 0].tolist()
            self.report_measured([listed[number] for number in inside], effects[inside])
        return self._ranked(effects, kept)

    def examples_of_set(self, n_examples: int) -> int:
        """Examples that are run to measure a set; see `Engine.examples_of_set`."""
        return self._traced.examples_of_set(n_examples) + self._keeping.n_examples

    def examples_of_gradient(self, n_examples: int, *, is_soft: bool) -> int:
        """Examples that are run for a gradient; see `Engine.examples_of_gradient`."""
        n_kept = self._keeping.n_examples
        # A prediction also needs what the set itself does to what is kept.
        kept = 2 * min(n_examples, n_kept) if is_soft else 3 * n_kept
        return self._traced.examples_of_gradient(n_examples, is_soft=is_soft) + kept

    def _ranked(
        self, effects: Float[Tensor, "*set example"], kept: Float[Tensor, "*set kept_example"]
    ) -> Float[Tensor, "*set example"]:
        """Effects of sets, below all others where a set leaves the bounds."""
        beyond = self._beyond(kept.mean(-1, keepdim=True))
        return torch.where(beyond > 0, _OUTSIDE * (1 + beyond), effects)

    def _beyond(self, kept: Tensor) -> Tensor:
        """How far mean effects lie outside the bounds, in units of the bound."""
        return (kept.abs() / self._keep.at_most - 1).clamp(min=0)

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
        *,
        precision: Precision = "float32",
    ) -> tuple[Effects, Mask]:
        """Effects less the penalty for soft masks, and their gradient; see `Engine.gradient`.

        With a part of the examples, as many of the kept ones are read, in turn.
        """
        n_kept = self._keeping.n_examples
        size = n_kept if examples is None else min(len(examples), n_kept)
        read = (torch.arange(size) + next(self._steps) * size) % n_kept
        kept, slope = self._keeping.gradient(mask, torch.ones_like, read, precision=precision)
        penalty = self._scale * self._beyond(kept.mean())
        total = torch.zeros((), device=self.device)

        def weights(effects: Effects) -> Effects:
            nonlocal total
            of_examples = example_weights(effects - penalty.to(effects.device))
            total = total + of_examples.sum()
            return of_examples

        effects, gradient = self._traced.gradient(mask, weights, examples, precision=precision)
        (total,) = self.ranks.add(total)
        is_beyond = (penalty > 0).to(gradient.dtype)
        push = is_beyond * self._scale / self._keep.at_most * kept.mean().sign() * slope / size
        return effects - penalty.to(effects.device), gradient - total.to(gradient.device) * push

    def predict_changes(
        self,
        members: ComponentSet,
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> FirstOrderPrediction:
        """Predictions less the penalty that they bring; see `Engine.predict_changes`.

        What is kept is predicted on all of its examples.
        """
        traced = self._traced.predict_changes(members, examples=examples)
        kept = self._keeping.predict_changes(members)
        now = self.kept_effect(members)
        inside = torch.zeros(self.n_components, dtype=torch.bool)
        inside[list(members)] = True

        def less_penalty(gains: Mask, kept_gains: Mask) -> Mask:
            # A gain is the value of having a component: what joining brings, or leaving costs.
            after = now + torch.where(inside, -kept_gains, kept_gains)
            change = self._scale * (self._beyond(after) - self._beyond(torch.tensor(now)))
            return gains - torch.where(inside, -change, change)

        return FirstOrderPrediction(
            less_penalty(traced.gains, kept.gains), less_penalty(traced.gradient, kept.gradient)
        )

    def expand(
        self, masks: Float[Tensor, "some component"], examples: Int[Tensor, " some"]
    ) -> Expansion:
        """That of the traced metric alone; see `Engine.expand`."""
        return self._traced.expand(masks, examples)


def nothing_kept(keep: Keep, effect: float | None = None) -> NothingFoundError:
    """The error for a search that found no set within the bounds.

    Args:
        keep: The bounds.
        effect: What the least bad set does to the kept metric, if that was measured.
    """
    best = "" if effect is None else f" The least bad one changes it by {effect:.3g}."
    return NothingFoundError(
        f"No set that was tried keeps {resolve(keep.metric).name} within {keep.at_most:g}.{best} "
        "Allow more, or ask for fewer components."
    )


def measured_history(history: tuple[Record, ...]) -> tuple[Record, ...]:
    """What a search recorded, without sets outside the bounds, whose effects are none."""
    return tuple(record for record in history if record.get("effect", 0.0) > _OUTSIDE / 2)
