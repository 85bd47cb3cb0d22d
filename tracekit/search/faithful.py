"""The target of a faithful search: a set and its complement are measured side by side.

A set with the largest effect may move a metric further than all components do, since it leaves out
those that push back. With the objective `Faithful` a search scores how close the effect of a set is
to that of all components, and that of the complement to 0, example by example.

Every set takes two passes instead of one. Complements of sets that differ little differ little, so
they share blocks as sets do (`engine/prefix_tree.py`); in gradients both run in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.devices import to_device
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, complement_of, from_indices
from tracekit.data.prompts import PromptPairs
from tracekit.engine.cost import Cost
from tracekit.engine.engine import DataView, Engine
from tracekit.engine.gradients import (
    BatchPrediction,
    FirstOrderPrediction,
    GradientWeight,
    Precision,
    changes_of,
    gradient,
)
from tracekit.engine.prepared import PreparedData
from tracekit.engine.set_effects import Recorder
from tracekit.errors import MetricError
from tracekit.metrics import Effects
from tracekit.search.objectives import Faithful, describe, named_metric


class EffectAndComplement(NamedTuple):
    """Mean effects of a set and of all other components."""

    own: float
    others: float


class FaithfulTarget(DataView):
    """Scores of sets and their complements in place of effects. It has an account of its own."""

    def __init__(
        self,
        engine: Engine,
        objective: Faithful,
        record: Recorder | None = None,
        record_effects: Recorder | None = None,
    ) -> None:
        """Measures all components.

        `record` is told of the scores of measured sets, `record_effects` of their effects and those
        of their complements.
        """
        name = f"{engine.metric.name}, {describe(objective)}"
        metric = named_metric(engine.metric, name)
        self._rows: dict[ComponentSet, Effects] = {}
        self._given, self._objective, self._record = engine, objective, record
        self._record_effects = record_effects
        self._engine = engine.sharing(metric=metric, record=self._note)
        self._full = engine.full_effects
        self.data: PreparedData = self._engine.data
        self.measured: dict[ComponentSet, EffectAndComplement] = {}
        """Every set that was measured on all examples, complements too."""

    def with_pairs(self, pairs: PromptPairs) -> FaithfulTarget:
        """The same objective on other pairs."""
        return FaithfulTarget(self._given.with_pairs(pairs), self._objective)

    @cached_property
    def full_effects(self) -> Effects:
        """Scores of all components together."""
        return self._full.abs()

    def cost_of(self, cost: Cost) -> Cost:
        """A set is measured with its complement."""
        return cost + cost

    def effects(self, mask: Any) -> Float[Tensor, "*set example"]:
        """Scores of masks."""
        entries = torch.as_tensor(mask).float()
        stack = entries.reshape(-1, entries.shape[-1])
        own, others = self._engine.effects(torch.cat([stack, 1 - stack])).chunk(2)
        scores = self._objective.scores(own, others, self._full)
        if (
            entries.ndim == 1
            and self._record is not None
            and ((entries == 0) | (entries == 1)).all()
        ):
            self._record([tuple(entries.nonzero()[:, 0].tolist())], scores)
        return scores.reshape(*entries.shape[:-1], -1)

    def set_effects(
        self,
        sets: Iterable[Sequence[int]],
        label: str = "effects",
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "set some"]:
        """Scores of sets."""
        listed = [tuple(members) for members in sets]
        complements = [complement_of(members, self.n_components) for members in listed]
        try:
            rows = self._engine.set_effects([*listed, *complements], label, examples=examples)
        finally:
            self._tell(listed, complements)
        full, n = self._full if examples is None else self._full[examples], len(listed)
        return self._objective.scores(rows[:n], rows[n:], full)

    def _note(self, sets: Sequence[ComponentSet], effects: Tensor) -> None:
        self._rows.update(zip(sets, effects, strict=True))
        if self._record_effects is not None:
            self._record_effects(sets, effects)

    def _tell(self, sets: Sequence[ComponentSet], complements: Sequence[ComponentSet]) -> None:
        """Takes note of sets that were measured whole, with their complements; clears the rest."""
        rows, self._rows = self._rows, {}
        both = [pair for pair in zip(sets, complements, strict=True) if rows.keys() >= set(pair)]
        for members, rest in both:
            own, others = rows[members].mean().item(), rows[rest].mean().item()
            self.measured[members] = EffectAndComplement(own, others)
            self.measured[rest] = EffectAndComplement(others, own)
        if both and self._record is not None:
            own, others = (torch.stack([rows[pair[side]] for pair in both]) for side in (0, 1))
            scores = self._objective.scores(own, others, self._full)
            self._record([members for members, _ in both], scores)

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
        *,
        precision: Precision = "float32",
    ) -> tuple[Effects, Mask]:
        """Scores, and the gradient of their weighted sum."""
        full = to_device(self._full, self.device)

        def scores(own: Effects, others: Effects, numbers: Int[Tensor, " example"]) -> Effects:
            return self._objective.scores(own, others, full[numbers])

        return gradient(
            self.data, mask, example_weights, examples, precision=precision, scores=scores
        )

    def predict_changes(
        self, members: ComponentSet, *, examples: Int[Tensor, " some"] | None = None
    ) -> FirstOrderPrediction:
        """Change of the mean score from changing a component: from both predicted effects."""
        part, total = self.data.own(examples), torch.zeros(2, self.n_components, device=self.device)
        is_inside = to_device(from_indices(members, self.n_components), self.device)
        predictions = zip(
            changes_of(self.data, members, part),
            changes_of(self.data, complement_of(members, self.n_components), part),
            strict=True,
        )
        for own, others in predictions:
            total += self._predicted(own, others, 1 - 2 * is_inside.float())
        n_examples = self.n_examples if examples is None else len(examples)
        self.data.account.count(2 * n_examples, backward=True)
        (total,) = self.ranks.add(total)
        return FirstOrderPrediction(*(total / n_examples).cpu())

    def _predicted(
        self, own: BatchPrediction, others: BatchPrediction, direction: Float[Tensor, " component"]
    ) -> Float[Tensor, "2 component"]:
        """Gains and gradient, summed over a batch; direction is 1 for those that would join."""
        full = to_device(self._full, self.device)[own.examples]
        with torch.enable_grad():
            effect = own.effects.detach().requires_grad_(True)
            of_others = others.effects.detach().requires_grad_(True)
            scores = self._objective.scores(effect, of_others, full)
            slope, slope_of_others = torch.autograd.grad(scores.sum(), [effect, of_others])
        # A component that joins the set leaves the complement.
        changed = self._objective.scores(
            own.effects[:, None] + direction * own.gains,
            others.effects[:, None] - direction * others.gains,
            full[:, None],
        )
        gains = direction * (changed - scores.detach()[:, None])
        slopes = slope[:, None] * own.slopes - slope_of_others[:, None] * others.slopes
        return torch.stack([gains.sum(0), slopes.sum(0)])


def require_full_effect(engine: Engine) -> None:
    """Refuses data on which there is nothing that a set could be faithful to.

    Raises:
        MetricError: All components have no effect together, or one of the wrong sign.
    """
    mean = engine.full_effects.mean().item()
    if abs(mean) < 1e-9:
        raise MetricError(
            "All components together have no effect, so no set can be faithful to it. Trace "
            "components, positions or examples that have one, or search by the effect."
        )
    if mean < 0:
        raise MetricError(
            f"All components together have an effect of {mean:.4g}, and faithfulness needs a "
            "positive one: the patched run has to lower the metric. Exchange x and y, or the "
            "prompts, or search by the effect."
        )
