"""The engine: a data set on a model, ready for any number of interventional runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util.ranks import Ranks
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.masks import Mask
from tracekit.components.members import ComponentsLike
from tracekit.data.prompts import PromptPairs
from tracekit.engine import gradients
from tracekit.engine.cost import Cost
from tracekit.engine.effects import mask_effects
from tracekit.engine.gradients import FirstOrderPrediction, GradientWeight
from tracekit.engine.prepared import EngineConfig, PreparedData
from tracekit.engine.set_effects import Recorder, set_effects
from tracekit.metrics import Effects, Metric
from tracekit.models.hooked import HookedModel


class DataView:
    """A prepared data set, as searches see it."""

    data: PreparedData
    """The data set laid out on the model, for the functions of this package."""

    @property
    def pairs(self) -> PromptPairs:
        """The data set with the values of the source, in the direction of the setup."""
        return self.data.pairs

    @property
    def pairs_given(self) -> PromptPairs:
        """The data set as the user gave it."""
        return self.data.pairs_given

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data set as the user gave it: the same for every source."""
        return self.pairs_given.fingerprint

    @property
    def registry(self) -> ComponentRegistry:
        """The components that masks stand for."""
        return self.data.registry

    @property
    def metric(self) -> Metric:
        """Gives the effects."""
        return self.data.metric

    @property
    def ranks(self) -> Ranks:
        """The processes that share the examples out among themselves."""
        return self.data.ranks

    @property
    def n_components(self) -> int:
        """Number of components: the length of every mask."""
        return self.data.n_components

    @property
    def n_examples(self) -> int:
        """Number of examples."""
        return self.data.n_examples

    @property
    def device(self) -> torch.device:
        """Where the model reads its tokens."""
        return self.data.device

    @property
    def cost(self) -> Cost:
        """Interventional work so far; clean and counterfactual runs are not counted."""
        return self.data.account.cost(self.n_examples)


class Engine(DataView):
    """Runs masks over a data set."""

    _record: Recorder | None

    def __init__(
        self,
        model: HookedModel,
        pairs: PromptPairs,
        registry: ComponentRegistry,
        metric: Metric,
        config: EngineConfig | None = None,
        pairs_given: PromptPairs | None = None,
    ) -> None:
        """Lays the data set out; runs none of it yet.

        Args:
            model: The model.
            pairs: The data set.
            registry: The components that masks stand for.
            metric: Gives the effects.
            config: Settings; the defaults of `EngineConfig` if left out.
            pairs_given: The data set before a source, a direction or a split changed it; `pairs` if
                left out.

        Raises:
            MissingContinuationError: The metric needs a y that an example lacks.
            PairsError: A token id outside the vocabulary, noise of another width, or a sequence
                longer than the model's context.
        """
        config = config or EngineConfig()
        data = PreparedData.build(model, pairs, registry, metric, config, pairs_given)
        vars(self)["data"], vars(self)["_record"] = data, None

    def __setattr__(self, name: str, value: Any) -> None:
        # What was computed once would silently belong to the old setting.
        raise AttributeError(
            f"{name} of an engine cannot be set once it is built. Build another Tracer."
        )

    def with_pairs(self, pairs: PromptPairs) -> Engine:
        """An engine with the same model, components, metric and settings on other pairs."""
        return Engine(self.model, pairs, self.registry, self.metric, self.config)

    def sharing(self, *, metric: Metric | None = None, record: Recorder | None = None) -> Engine:
        """An engine on the same data, with which it shares all that was run once.

        Args:
            metric: Another metric, with an account of work of its own; None: the same.
            record: Is called with the binary sets that are measured on all examples, and their
                effects; after Ctrl-C too, with what is done.
        """
        engine = Engine.__new__(Engine)
        data = self.data if metric is None else self.data.with_metric(metric)
        vars(engine)["data"], vars(engine)["_record"] = data, record
        if metric is None and "full_effects" in vars(self):
            vars(engine)["full_effects"] = self.full_effects
        return engine

    @property
    def model(self) -> HookedModel:
        """The model."""
        return self.data.model

    @property
    def config(self) -> EngineConfig:
        """Settings."""
        return self.data.config

    @cached_property
    def full_effects(self) -> Effects:
        """Effects of all components together: the reference line of every figure."""
        return self.effects(torch.ones(self.n_components))

    def effects(
        self, mask: ComponentsLike, examples: Int[Tensor, " some"] | None = None
    ) -> Float[Tensor, "*set some"]:
        """Effects of a mask, or of each of a stack of masks, on every example.

        Every layer runs, with a hook at every site. Where examples have weights, effects are
        multiplied by them, scaled to a mean of 1, so that a plain mean is the weighted one.

        Args:
            mask: Shape `component` or `set component`, entries in [0, 1].
            examples: Numbers of the examples to measure on, whose order the effects have; all by
                default.

        Raises:
            MaskError: As in `masks.check`.
            NonFiniteMetricError: Names the examples.
        """
        effects = mask_effects(self.data, mask, examples)
        if self._record is not None and examples is None and effects.ndim == 1:
            entries = torch.as_tensor(mask)
            if ((entries == 0) | (entries == 1)).all():
                self._record([tuple(entries.nonzero()[:, 0].tolist())], effects[None])
        return effects

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
            examples: Numbers of the examples to measure on, whose order the effects have; all by
                default.

        Raises:
            NonFiniteMetricError: Names the examples.
        """
        listed = [tuple(members) for members in sets]
        return set_effects(self.data, listed, label, examples, self._record)

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
    ) -> tuple[Effects, Mask]:
        """Effects, and the gradient of their weighted sum with respect to the mask.

        Nothing here waits for an accelerator, so numbers that are not finite are handed on; the
        searches refuse them at the end of an epoch.

        Args:
            mask: Soft mask.
            example_weights: Gives the weight w of each example in the sum from its effect l, for
                a few examples at a time; w is held fixed, so the gradient is sum_i w_i dl_i/dm.
            examples: Numbers of the examples to use; all by default.

        Returns:
            The effects in the order of `examples`, and the gradient; both where the mask is.
        """
        return gradients.gradient(self.data, mask, example_weights, examples)

    def predict_changes(
        self, members: ComponentSet, *, examples: Int[Tensor, " some"] | None = None
    ) -> FirstOrderPrediction:
        """Predicts the change from adding or removing each component, from one gradient.

        The predictions are on the CPU, and may not be finite; by default of all examples.

        Raises:
            NotDifferentiableError: The metric has no gradient.
        """
        return gradients.predict_changes(self.data, members, examples=examples)
