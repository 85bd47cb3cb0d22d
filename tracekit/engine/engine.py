"""The engine: a data set on a model, ready for any number of interventional runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentSet, masks
from tracekit.components.connected import EdgePaths, paths_of
from tracekit.components.masks import Mask
from tracekit.components.members import ComponentsLike
from tracekit.data.prompts import PromptPairs
from tracekit.engine import gradients
from tracekit.engine.batch import to_device
from tracekit.engine.cost import Account, Cost
from tracekit.engine.gradients import FirstOrderPrediction, GradientWeight
from tracekit.engine.prepared import PreparedData
from tracekit.engine.set_effects import SetRecorder, set_effects
from tracekit.metrics import Effects, Metric


@dataclass(frozen=True, kw_only=True, eq=False)
class Engine(PreparedData):
    """Runs masks over a data set that is laid out on a model; `Engine.build` makes one."""

    record: SetRecorder | None = field(default=None, repr=False)
    """Gets the binary sets measured on all examples and their effects; after Ctrl-C too."""
    _full_effects: list[Effects] = field(default_factory=list, repr=False)
    """One entry, once `full_effects` are measured; copies with the same metric share the list."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data set as the user gave it: the same for every source."""
        return self.pairs_given.fingerprint

    def with_pairs(self, pairs: PromptPairs) -> Engine:
        """An engine with the same model, components, metric and settings on other pairs."""
        return Engine.build(self.model, pairs, self.registry, self.metric, self.config)

    def with_metric(self, metric: Metric) -> Engine:
        """The same data, and all that was run once, under another metric that they suit."""
        return replace(self, metric=metric, account=Account(), record=None, _full_effects=[])

    @property
    def edge_paths(self) -> EdgePaths | None:
        """Paths through the studied edges, if they are patched at every token; else None."""
        has_spans = self.layout.span_numbers is not None
        if self.registry.edges is None or has_spans or not self.patches_all_tokens:
            return None
        return paths_of(self.registry)

    @property
    def cost(self) -> Cost:
        """Interventional work so far; clean and counterfactual runs are not counted."""
        return self.account.cost(self.n_examples)

    @property
    def known_full_effects(self) -> Effects | None:
        """`full_effects` if they were measured before, else None; runs nothing."""
        return self._full_effects[0] if self._full_effects else None

    @property
    def full_effects(self) -> Effects:
        """Effects of all components together: the reference line of every figure."""
        self.prepare_full_effects()
        return self._full_effects[0]

    def prepare_full_effects(self) -> None:
        """Measures the effects of all components, unless that was done before."""
        if not self._full_effects:
            self._full_effects.append(self.effects(torch.ones(self.n_components)))

    def effects(
        self, mask: ComponentsLike, examples: Int[Tensor, " some"] | None = None
    ) -> Float[Tensor, "*set some"]:
        """Effects of a mask, or of each of a stack of masks, on every example.

        Every layer runs, with a hook at every site. Where examples have weights, effects are
        multiplied by them, scaled to a mean of 1, so that a plain mean is the weighted one.

        Args:
            mask: Shape `component` or `set component`, entries in [0, 1].
            examples: Numbers of examples, in the order of the effects; all by default.

        Raises:
            MaskError: As in `masks.check`.
            NonFiniteMetricError: Names the examples.
        """
        checked = masks.check(mask, self.n_components)
        stack = to_device(checked[None] if checked.ndim == 1 else checked, self.device)
        effects = torch.zeros(len(stack), self.n_examples, device=self.device)
        batches = self.batches if examples is None else self.batches_of(examples)
        with self.measuring():
            for batch, some, log_probs in self.passes(stack, batches):
                effects[some, batch.examples] = self.effects_from(batch, log_probs)
        n_examples = self.n_examples if examples is None else len(examples)
        self.account.add_examples(len(stack) * n_examples)
        (effects,) = self.ranks.sum_ranks(effects.cpu())
        for row in effects:
            self.check_finite(row)
        is_binary = bool(((checked == 0) | (checked == 1)).all())
        if self.record is not None and examples is None and checked.ndim == 1 and is_binary:
            self.record([tuple(checked.nonzero()[:, 0].tolist())], effects)
        picked = effects if examples is None else effects[:, examples]
        return picked[0] if checked.ndim == 1 else picked

    def set_effects(
        self,
        sets: Iterable[Sequence[int]],
        label: str = "effects",
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "set some"]:
        """Effects of each of many sets of components; equal to `effects` of each, but faster.

        Sets share the layers below the first one in which they differ, hooks are only where a set
        has components, and several sets go through the model together where a batch leaves room.

        Args:
            sets: Sets of flat indices.
            label: Names the progress bar.
            examples: As in `effects`.

        Raises:
            NonFiniteMetricError: Names the examples.
        """
        listed = [tuple(members) for members in sets]
        return set_effects(self, listed, label, examples, self.record)

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
    ) -> tuple[Effects, Mask]:
        """Effects, and the gradient of their weighted sum with respect to the mask.

        Numbers that are not finite are handed on; the searches refuse them at the end of an epoch.

        Args:
            mask: Soft mask.
            example_weights: Gives the weight w of each of a few examples from its effect l; w is
                held fixed, so the gradient is sum_i w_i dl_i/dm.
            examples: Numbers of the examples to use; all by default.

        Returns:
            The effects in the order of `examples`, and the gradient; both where the mask is.
        """
        return gradients.gradient(self, mask, example_weights, examples)

    def predict_changes(
        self, members: ComponentSet, *, examples: Int[Tensor, " some"] | None = None
    ) -> FirstOrderPrediction:
        """Predicts, on the CPU, the change from adding or removing each component, by one gradient.

        Raises:
            NotDifferentiableError: The metric has no gradient.
        """
        return gradients.predict_changes(self, members, examples=examples)
