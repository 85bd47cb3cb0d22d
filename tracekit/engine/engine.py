"""The engine: a data set on a model, ready for any number of interventional runs.

The package's `__init__` says what is computed when. This file holds what one mask, or a stack of
masks, does to the data set: effects, and their gradient. `component_sets.py` measures many binary
sets together, `look_ahead.py` predicts what changing a set would bring.

There is no loop over examples, tokens or components in a pass; only over batches and layers. On an
accelerator nothing in a pass waits for the device: results are read when a caller asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util import progress as _progress
from tracekit._util.files import digest_of
from tracekit._util.options import is_whole, shortened
from tracekit._util.ranks import Ranks
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components import masks as masks_module
from tracekit.components.masks import Mask
from tracekit.data.counterfactual_sources import NoCounterfactual
from tracekit.data.prompts import PromptPairs
from tracekit.engine.batch import Batch
from tracekit.engine.block_skipping import ResidualStream
from tracekit.engine.capabilities import Capabilities, capabilities_of
from tracekit.engine.clean_run import CleanRun, assemble, repeated
from tracekit.engine.component_sets import set_effects
from tracekit.engine.cost import Cost
from tracekit.engine.counterfactual_cache import CounterfactualCache
from tracekit.engine.forward import ForwardPass
from tracekit.engine.layout import Layout, Positions
from tracekit.engine.look_ahead import (
    BatchPrediction,
    Expansion,
    FirstOrderPrediction,
    changes_by_batch,
    expand,
    predict_changes,
)
from tracekit.engine.patching import Activations, MaskedPatch
from tracekit.engine.precision import Precision, autocast, check_precision, products_in
from tracekit.errors import (
    ConfigError,
    MissingContinuationError,
    NonFiniteMetricError,
    NotDifferentiableError,
    PairsError,
    WorkerError,
)
from tracekit.metrics import (
    ContinuationLogProbs,
    ContinuationMean,
    Effects,
    Metric,
    Reading,
    check_finite,
)
from tracekit.models.hooked import (
    Hook,
    HookedModel,
    frozen,
    long_rope_limit,
    model_name,
    sample_of,
    to_device,
)

_COUNTERS = ("_n_forward", "_n_backward")
"""What changes while an engine works."""

GradientWeight = Callable[[Effects], Effects]
"""Effects of some examples (detached, in any order) -> the weight of each one's gradient."""


class BatchEffects(NamedTuple):
    """What a mask does to the examples of a batch."""

    examples: Int[Tensor, " example"]
    """Their numbers."""
    effects: Effects
    """Effect on each; times its weight if examples have weights."""
    x: Float[Tensor, " example"]
    """Log-probability of its x under the mask."""
    y: Float[Tensor, " example"] | None
    """Log-probability of its y."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of an engine; none of them can be changed once it is built."""

    positions: Positions = "prompt"
    """Where to intervene."""
    continuation_mean: ContinuationMean = "geometric"
    """Probability of a continuation of several tokens: `geometric` or `arithmetic` mean of its
    token probabilities."""
    max_batch_size: int = 64
    """Examples per pass through the model; bounds memory, changes no result."""
    max_memory: int | None = None
    """Bytes that counterfactual activations may take on the model's device; beyond, they are kept
    in host memory, or computed again for every batch if the model is on the CPU. As many may be
    taken by clean distributions, for metrics that read them. Changes no result. None: no bound."""
    progress: bool = False
    """Whether to show progress bars."""
    capabilities: Capabilities | None = None
    """Optimisations to use. None: those that the model supports, found out by trying;
    `Capabilities.none()`: the plain way, with equal results."""

    def __post_init__(self) -> None:
        if not is_whole(self.max_batch_size) or self.max_batch_size < 1:
            raise ConfigError(
                f"max_batch_size is {self.max_batch_size!r}. It must be a whole number, at least 1."
            )
        bound = self.max_memory
        is_number = isinstance(bound, (int, float)) and not isinstance(bound, bool)
        if bound is not None and not (is_number and bound >= 0):
            shown = bound if is_number else shortened(bound)
            raise ConfigError(f"max_memory is {shown} bytes. It must be a number of at least 0.")


class Engine:
    """Runs masks over a data set."""

    def __setattr__(self, name: str, value: Any) -> None:
        # A misspelt or earlier setting would otherwise become an attribute that nothing reads.
        if "counterfactual_cache" in vars(self) and name not in _COUNTERS:
            raise AttributeError(
                f"{name} of an engine cannot be set once it is built. Build another Tracer."
            )
        super().__setattr__(name, value)

    def __init__(
        self,
        model: HookedModel,
        pairs: PromptPairs,
        registry: ComponentRegistry,
        metric: Metric,
        config: EngineConfig | None = None,
    ) -> None:
        """Lays the data set out; runs none of it yet.

        Args:
            model: The model.
            pairs: The data set.
            registry: The components that masks stand for.
            metric: Gives the effects.
            config: Settings; the defaults of `EngineConfig` if left out.

        Raises:
            MissingContinuationError: The metric needs a y that an example lacks.
            PairsError: A token id outside the vocabulary, noise of another width, or a sequence
                longer than the model's context.
        """
        _check_pairs_fit(pairs, model, metric)
        _check_exchange(pairs, registry)
        self._model, self._pairs, self._registry, self._metric = model, pairs, registry, metric
        self._ranks = Ranks.joined()
        self._config = config = config or EngineConfig()
        self._n_forward = self._n_backward = 0
        self.capabilities = config.capabilities or capabilities_of(model)
        """Optimisations in use."""
        self.forward_pass = ForwardPass(model, self.capabilities, config.continuation_mean)
        self._clean_run = CleanRun(
            model,
            self.forward_pass,
            max_memory=config.max_memory,
            progress_bar=self._progress_bar,
            ranks=self._ranks,
        )
        self._weights = None if pairs.weights is None else pairs.weights.to(self.device)
        self.layout = self._lay_out()
        """Rows and sources of the data set."""
        self.counterfactual_cache = CounterfactualCache(
            model,
            self.layout,
            registry,
            max_batch_size=config.max_batch_size,
            max_memory=config.max_memory,
            progress_bar=self._progress_bar,
            first=None if self.ranks.count == 1 else self.layout.sources_of(self.own(None)),
        )
        self._require_same_question()

    # Read-only: what was computed once would silently belong to the old setting.

    @property
    def model(self) -> HookedModel:
        """The model."""
        return self._model

    @property
    def pairs(self) -> PromptPairs:
        """The data set."""
        return self._pairs

    @property
    def registry(self) -> ComponentRegistry:
        """The components that masks stand for."""
        return self._registry

    @property
    def metric(self) -> Metric:
        """Gives the effects."""
        return self._metric

    @property
    def config(self) -> EngineConfig:
        """Settings."""
        return self._config

    @property
    def ranks(self) -> Ranks:
        """The processes that share the examples out among themselves."""
        return self._ranks

    @property
    def examples_are_independent(self) -> bool:
        """Whether the effect on an example is the same whatever other examples there are."""
        return True

    @property
    def n_components(self) -> int:
        """Number of components: the length of every mask."""
        return len(self.registry)

    @property
    def n_examples(self) -> int:
        """Number of examples."""
        return self.layout.n_examples

    @property
    def device(self) -> torch.device:
        """Where the model reads its tokens."""
        return self.forward_pass.device

    @property
    def cost(self) -> Cost:
        """Interventional work so far; clean and counterfactual runs are not counted."""
        return Cost(self._n_forward / self.n_examples, self._n_backward / self.n_examples)

    def with_pairs(self, pairs: PromptPairs) -> Engine:
        """An engine with the same model, components, metric and settings on other pairs."""
        return Engine(self.model, pairs, self.registry, self.metric, self.config)

    def _lay_out(self) -> Layout:
        """X and y in one row where the model supports that at the length needed, else in two."""
        layout = self._build_layout(packed=True)
        if self.capabilities.supports_packing(self.model, layout.longest):
            return layout
        if layout.sequences.has_branches:
            self.capabilities.warn_of_packing(self.model, layout.longest)
        return self._build_layout()

    def _build_layout(self, **options: bool) -> Layout:
        return Layout.build(
            self.pairs,
            self.config.positions,
            spans=self.registry.spans,
            long_rope_limit=long_rope_limit(self.model),
            **options,
        )

    # ---- computed once --------------------------------------------------------------------

    @property
    def clean(self) -> ContinuationLogProbs:
        """Log-probabilities in the clean run, one per example."""
        return self.clean_reading(self.metric.reads)

    def clean_reading(self, reads: Sequence[Reading]) -> ContinuationLogProbs:
        """Log-probabilities in the clean run, with what some metric reads."""
        return self._clean_run.of_all(self.batches, reads, self.n_examples)

    def own(self, examples: Int[Tensor, " example"] | None) -> Int[Tensor, " own"]:
        """This rank's part of some examples, or of all; similar lengths go to different ranks."""
        if examples is None:
            examples = torch.arange(self.n_examples)
        if self.ranks.count == 1:
            return examples
        if self.config.max_memory is not None and len(examples) < self.n_examples:
            # Only the counterfactual activations of its own examples are kept by each rank.
            return examples[torch.isin(examples, self.own(None))]
        return self.ranks.share(examples[self.layout.lengths_of(examples).argsort(stable=True)])

    def _require_same_question(self) -> None:
        """Refuses ranks that would add up parts of different things, or have no part."""
        if self.ranks.count == 1:
            return
        self.ranks.require_same(
            version_of_tracekit=version("tracekit"),
            data_set=f"{self.pairs.name} ({self.pairs.fingerprint[:12]})",
            components=digest_of({"spec": self.registry.spec()})[:12],
            metric=self.metric.name,
            model=f"{model_name(self.model)} ({sample_of(self.model)[:12]})",
            settings=repr(replace(self.config, capabilities=None, progress=False)),
        )
        if self.n_examples < self.ranks.count:
            raise WorkerError(
                f"{self.ranks.count} processes share {self.n_examples} examples. Start at most as "
                "many processes as there are examples, or half as many for a front with statistics."
            )

    @cached_property
    def full_effects(self) -> Effects:
        """Effects of all components together: the reference line of every figure."""
        return self.effects(torch.ones(self.n_components))

    @cached_property
    def batches(self) -> list[Batch]:
        """The data set in batches, which are the same in every pass over all of it.

        Of several ranks, each has its own part.
        """
        return list(self.batches_of(None))

    def batches_of(self, examples: Int[Tensor, " example"] | None) -> Iterable[Batch]:
        """Some examples, or all, in batches; this rank's part of them."""
        return self.layout.batches(
            self.config.max_batch_size, device=self.device, examples=self.own(examples)
        )

    def all_batches_of(self, examples: Int[Tensor, " example"] | None) -> Iterable[Batch]:
        """Some examples, or all, in batches; whatever other ranks do."""
        return self.layout.batches(
            self.config.max_batch_size, device=self.device, examples=examples
        )

    @cached_property
    def unshared_layout(self) -> Layout:
        """A layout in which no row serves two examples, so that gradients tell them apart.

        Its sources are those of `layout`, so the counterfactual cache serves both.
        """
        packed = self.layout.sequences.needs_attention_mask
        unshared = self._build_layout(packed=packed, shared=False)
        is_same = len(unshared.sequences) == len(self.layout.sequences)
        return self.layout if is_same else unshared

    @cached_property
    def layers_of_components(self) -> list[int]:
        """Layer of each component."""
        return [site.layer for site in self.registry.sites for _ in range(site.start, site.stop)]

    # ---- effects --------------------------------------------------------------------------

    def effects(self, mask: Any) -> Float[Tensor, "*set example"]:
        """Effects of a mask, or of each of a stack of masks, on every example.

        Every layer runs, with a hook at every site. Where examples have weights, effects are
        multiplied by them, scaled to a mean of 1, so that a plain mean is the weighted one.

        Args:
            mask: Shape `component` or `set component`, entries in [0, 1].

        Returns:
            The effects, on the CPU.

        Raises:
            MaskError: As in `masks.check`.
            NonFiniteMetricError: Names the examples.
        """
        checked = masks_module.check(mask, self.n_components)
        stack = (checked[None] if checked.ndim == 1 else checked).to(self.device)
        effects = torch.zeros(len(stack), self.n_examples, device=self.device)
        with frozen(self.model), torch.no_grad():
            for batch in self.batches:
                source = self.counterfactual_cache.activations_for(batch)
                masks_per_pass = max(1, self.config.max_batch_size // len(batch.examples))
                for first in range(0, len(stack), masks_per_pass):
                    masks = stack[first : first + masks_per_pass]
                    values = self.batch_effects(batch, source, masks)
                    effects[first : first + len(masks), batch.examples] = values
        self.count_forward(len(stack))
        (effects,) = self.ranks.add(effects.cpu())
        for row in effects:
            self.check_finite(row)
        if checked.ndim == 1 and ((checked == 0) | (checked == 1)).all():
            members = tuple(checked.nonzero()[:, 0].tolist())
            self.report_measured([members], effects)
        return effects[0] if checked.ndim == 1 else effects

    def effects_by_batch(self, mask: Any) -> Iterator[BatchEffects]:
        """Effects of one mask, a batch at a time; together they are those of `effects`.

        Between two batches the model is as it was and may be used otherwise, and the rest need
        not be asked for.

        Args:
            mask: Shape `component`, entries in [0, 1].

        Yields:
            What was measured of each batch.

        Raises:
            MaskError: As in `masks.check`.
            NonFiniteMetricError: Names the examples.
        """
        stack = masks_module.check(mask, self.n_components)[None].to(self.device)
        for batch in self.all_batches_of(None):
            with frozen(self.model), torch.no_grad():
                source = self.counterfactual_cache.activations_for(batch)
                log_probs = self._batch_log_probs(batch, source, stack)
                clean = self.clean_of(batch)
                effects = self.weighted(batch, self.metric(clean, log_probs))
            self.count_forward(len(batch.examples) / self.n_examples)
            measured = BatchEffects(
                batch.examples.cpu(),
                effects.float().cpu(),
                log_probs.x.float().cpu(),
                None if log_probs.y is None else log_probs.y.float().cpu(),
            )
            # By their numbers in the data set, which a message names.
            so_far = torch.zeros(self.n_examples).index_put((measured.examples,), measured.effects)
            self.check_finite(so_far)
            yield measured

    def effects_of(self, examples: Int[Tensor, " example"], mask: Mask) -> Effects:
        """Effects of a mask on some examples only, in their order.

        Args:
            examples: Their numbers.
            mask: As in `effects`.

        Returns:
            The effects, where the model is.
        """
        effects = torch.zeros(self.n_examples, device=self.device)
        stack = masks_module.check(mask, self.n_components)[None].to(self.device)
        with frozen(self.model), torch.no_grad():
            for batch in self.batches_of(examples):
                source = self.counterfactual_cache.activations_for(batch)
                effects[batch.examples] = self.batch_effects(batch, source, stack)[0]
        self.count_forward(len(examples) / self.n_examples)
        (effects,) = self.ranks.add(effects)
        return effects[to_device(examples, self.device)]

    def set_effects(
        self,
        sets: Iterable[Sequence[int]],
        label: str = "effects",
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> Float[Tensor, "set example"]:
        """Effects of each of many sets of components; equal to `effects` of each, but faster.

        Sets share the layers below the first one in which they differ, hooks are only where a set
        has components, and several sets go through the model together where a batch leaves room.

        Args:
            sets: Sets of flat indices.
            label: Names the progress bar.
            examples: Numbers of the examples to measure on; all by default.

        Returns:
            The effects in the order of `examples`, on the CPU.

        Raises:
            NonFiniteMetricError: Names the examples.
        """
        return set_effects(self, [tuple(members) for members in sets], label, examples)

    def empty_mask_effect(self) -> float:
        """Largest effect of the empty mask on the first batch; 0 unless the model has changed.

        Not counted as work.
        """
        if not self.batches:
            return 0.0  # More ranks than examples: another one looks.
        batch = self.batches[0]
        with frozen(self.model), torch.no_grad():
            source = self.counterfactual_cache.activations_for(batch)
            empty = torch.zeros(1, self.n_components, device=self.device)
            hooks = self.hooks(batch, source, empty)
            now = self.forward_pass.log_probs(batch, hooks, reads=self.metric.reads)
            clean = self.clean_of(batch)
            effect = self.metric(clean, now).abs().max()
            # A metric may hide a change, or read a distribution that is computed again.
            return torch.maximum(effect, (now.x - clean.x).abs().max()).item()

    def log_probs(self, mask: Any) -> ContinuationLogProbs:
        """Log-probabilities of every example's continuations under a mask."""
        entries = masks_module.check(mask, self.n_components).to(self.device)
        parts = []
        with frozen(self.model), torch.no_grad():
            for batch in self.batches:
                source = self.counterfactual_cache.activations_for(batch)
                hooks = self.hooks(batch, source, entries)
                log_probs = self.forward_pass.log_probs(batch, hooks, reads=self.metric.reads)
                parts.append((batch.examples, log_probs))
        return assemble(parts, self.n_examples, self.ranks)

    def effects_by(self, mask: Any, metrics: Sequence[Metric]) -> dict[str, Effects]:
        """Effects of one mask by each of several metrics, from one pass.

        Args:
            mask: Shape `component`, entries in [0, 1].
            metrics: The metrics, in the direction of this engine.

        Returns:
            Effects by name of metric, on the CPU; weighted as in `effects`.

        Raises:
            MaskError: As in `masks.check`.
            MissingContinuationError: A metric needs a y that an example lacks.
            NonFiniteMetricError: Names the examples.
        """
        for metric in metrics:
            _check_continuations(self.pairs, metric)
        entries = masks_module.check(mask, self.n_components).to(self.device)
        reads: list[Reading] = [reading for metric in metrics for reading in metric.reads]
        effects = {m.name: torch.zeros(self.n_examples, device=self.device) for m in metrics}
        with frozen(self.model), torch.no_grad():
            for batch in self.batches:
                source = self.counterfactual_cache.activations_for(batch)
                hooks = self.hooks(batch, source, entries)
                log_probs = self.forward_pass.log_probs(batch, hooks, reads=reads)
                clean = self.clean_of(batch, reads)
                for metric in metrics:
                    values = self.weighted(batch, metric(clean, log_probs))
                    effects[metric.name][batch.examples] = values
        self.count_forward(1)
        sums = self.ranks.add(*(effects[metric.name].cpu() for metric in metrics))
        for metric, measured in zip(metrics, sums, strict=True):
            self.check_finite(measured, metric)
        return {metric.name: measured for metric, measured in zip(metrics, sums, strict=True)}

    # ---- gradients ------------------------------------------------------------------------

    def gradient(
        self,
        mask: Mask,
        example_weights: GradientWeight,
        examples: Int[Tensor, " some"] | None = None,
        *,
        precision: Precision = "float32",
    ) -> tuple[Effects, Mask]:
        """Effects, and the gradient of their weighted sum with respect to the mask.

        Nothing here waits for an accelerator, so numbers that are not finite are handed on; the
        searches refuse them at the end of an epoch.

        Args:
            mask: Soft mask.
            example_weights: Gives the weight w of each example in the sum from its effect l, for
                a few examples at a time; w is held fixed, so the gradient is sum_i w_i dl_i/dm.
            examples: Numbers of the examples to use; all by default.
            precision: Of the matrix products.

        Returns:
            The effects in the order of `examples`, and the gradient; both where the mask is.
        """
        if examples is None:
            examples = torch.arange(self.n_examples)
        _ = self.clean  # Not inside, where it would be computed in another precision.
        check_precision(precision)
        leaf = mask.detach().float().to(self.device).requires_grad_(True)
        gradient = torch.zeros_like(leaf)
        effects = torch.zeros(self.n_examples, device=self.device)
        with frozen(self.model), torch.enable_grad():
            for batch in self.batches_of(examples):
                source = self.counterfactual_cache.activations_for(batch)
                clean = self.clean_of(batch)
                with products_in(precision, self.device):
                    with autocast(precision, self.device):
                        values = self.batch_effects(batch, source, leaf[None], clean=clean)[0]
                    if not values.requires_grad:
                        raise self.no_gradient()
                    weights = example_weights(values.detach())
                    gradient += torch.autograd.grad((weights * values).sum(), leaf)[0]
                effects[batch.examples] = values.detach()
        self.count_forward(len(examples) / self.n_examples, backward=True)
        effects, gradient = self.ranks.add(effects, gradient)
        picked = effects[to_device(examples, self.device)]
        return picked.to(mask.device), gradient.to(mask.device)

    def predict_changes(
        self,
        members: ComponentSet,
        *,
        examples: Int[Tensor, " some"] | None = None,
    ) -> FirstOrderPrediction:
        """What adding or removing single components would bring, from one gradient at a set.

        Args:
            members: The set.
            examples: Numbers of the examples to predict on; all by default.

        Returns:
            The predictions, on the CPU. They may not be finite.

        Raises:
            NotDifferentiableError: The metric has no gradient.
        """
        return predict_changes(self, members, examples=examples)

    def expand(
        self, masks: Float[Tensor, "some component"], examples: Int[Tensor, " some"]
    ) -> Expansion:
        """The quantity that is about linear in the mask, and its slopes, one mask per example.

        Args:
            masks: The mask of each of the examples.
            examples: Their numbers, each once.

        Returns:
            Both on the CPU, in the order of `examples`.

        Raises:
            NotDifferentiableError: The metric has no gradient.
        """
        return expand(self, masks, examples)

    @property
    def effects_tell_all(self) -> bool:
        """Whether what a search maximises is a function of the effects alone."""
        return True

    def scores_of(self, effects: Float[Tensor, "*set example"]) -> Float[Tensor, "*set example"]:
        """What a search maximises the mean of, for sets with these effects: the effects."""
        return effects

    def predict_changes_by_batch(self, members: ComponentSet) -> Iterator[BatchPrediction]:
        """The prediction of `predict_changes` on every example, a batch at a time.

        Between two batches the model is as it was, and the rest need not be asked for. A metric
        that is flat at the clean run has no gradient of single examples at the empty set.

        Args:
            members: The set.

        Raises:
            NotDifferentiableError: The metric has no gradient.
        """
        return changes_by_batch(self, members)

    # ---- inside a pass --------------------------------------------------------------------

    def batch_effects(
        self,
        batch: Batch,
        source: Activations,
        masks: Float[Tensor, "set component"],
        *,
        layers: Container[int] | None = None,
        start: int = 0,
        residual: ResidualStream | None = None,
        clean: ContinuationLogProbs | None = None,
    ) -> Float[Tensor, "set example"]:
        """Effects of a few masks on a batch, all in one pass.

        Args:
            batch: The batch.
            source: Its counterfactual activations.
            masks: The masks, on the model's device.
            layers: Layers that get hooks; all by default.
            start: First block to run.
            residual: What it reads: the rows of the batch for each mask in turn.
            clean: The clean log-probabilities of the batch, if they are at hand.
        """
        log_probs = self._batch_log_probs(
            batch, source, masks, layers=layers, start=start, residual=residual
        )
        clean = self.clean_of(batch) if clean is None else clean
        effects = self.metric(repeated(clean, len(masks)), log_probs)
        return self.weighted(batch, effects.reshape(len(masks), -1))

    def _batch_log_probs(
        self,
        batch: Batch,
        source: Activations,
        masks: Float[Tensor, "set component"],
        *,
        layers: Container[int] | None = None,
        start: int = 0,
        residual: ResidualStream | None = None,
    ) -> ContinuationLogProbs:
        """Log-probabilities of a batch under each of a few masks, one after the other."""
        hooks = self.hooks(batch, source, masks, layers)
        return self.forward_pass.log_probs(
            batch.repeat(len(masks)),
            hooks,
            reads=self.metric.reads,
            start=start,
            residual=residual,
        )

    def hooks(
        self,
        batch: Batch,
        source: Activations,
        mask: Float[Tensor, "*set component"] | Float[Tensor, "set row component"],
        layers: Container[int] | None = None,
    ) -> list[Hook]:
        """Hooks that apply masks to a batch; see `MaskedPatch.hooks`.

        Args:
            batch: The batch.
            source: Its counterfactual activations.
            mask: As in `MaskedPatch.hooks`.
            layers: Layers that get hooks; all by default.
        """
        sites = [s for s in self.registry.sites if layers is None or s.layer in layers]
        names = dict.fromkeys(name for site in sites for name in site.hook_names)
        patch = MaskedPatch(
            registry=self.registry,
            counterfactual={name: source[name] for name in names},
            positions=batch.positions,
            span_numbers=batch.span_numbers,
            first_position=batch.first_position,
        )
        return patch.hooks(mask)

    def examples_of_set(self, n_examples: int) -> int:
        """Examples that are run to measure a set on so many of them."""
        return n_examples

    def examples_of_gradient(self, n_examples: int, *, is_soft: bool) -> int:
        """Examples that are run for a gradient on so many, there and back.

        Args:
            n_examples: How many of the traced examples are read.
            is_soft: Whether it is of a soft mask, not of what changing a set would bring.
        """
        del is_soft
        return 2 * n_examples

    def report_measured(
        self, sets: Sequence[ComponentSet], effects: Float[Tensor, "set example"]
    ) -> None:
        """Says what was measured on all examples, for a search that may be interrupted."""
        _progress.current().keep(self, sets, effects)

    def clean_of(
        self, batch: Batch, reads: Sequence[Reading] | None = None
    ) -> ContinuationLogProbs:
        """The clean log-probabilities of the examples of a batch.

        Args:
            batch: The batch.
            reads: What is read of them; by default what the metric reads.
        """
        reads = self.metric.reads if reads is None else reads
        return self._clean_run.of(batch, self.clean_reading(reads), reads)

    def weighted(self, batch: Batch, effects: Tensor) -> Tensor:
        """Effects (examples last) times the weights of their examples, whose mean is 1."""
        return effects if self._weights is None else effects * self._weights[batch.examples]

    # ---- accounts and refusals ------------------------------------------------------------

    def count_forward(
        self, passes: float, *, backward: bool = False, reported: bool = False
    ) -> None:
        """Counts passes over the data set as work.

        Args:
            passes: How many.
            backward: Whether each has a backward pass too.
            reported: Whether the progress bar was told already.
        """
        # In examples, which are whole numbers: sums of shares would round.
        n_examples = round(passes * self.n_examples)
        self._n_forward += n_examples
        self._n_backward += n_examples if backward else 0
        if not reported:
            self.advance(2 * n_examples if backward else n_examples)

    def advance(self, n_examples: float) -> None:
        """Reports to the progress bar that so many examples were run, by this rank for all."""
        _progress.current().advance(n_examples)

    def check_metric(self, metric: Metric) -> None:
        """Refuses a metric that these examples have no continuations for.

        Raises:
            MissingContinuationError: An example lacks a y.
            PairsError: A token counts as x and as y.
        """
        _check_continuations(self.pairs, metric)

    def check_finite(self, effects: Effects, metric: Metric | None = None) -> None:
        """Refuses effects that are not finite, or whose mean is not.

        Args:
            effects: One per example.
            metric: What they are of; by default the engine's metric.

        Raises:
            NonFiniteMetricError: Names the examples.
        """
        named = metric or self.metric
        check_finite(effects, named, lambda number: self.pairs[number].describe())
        if not torch.isfinite(effects.mean()):
            raise self.mean_not_finite()

    def mean_not_finite(self) -> NonFiniteMetricError:
        """The error for finite effects whose mean is not."""
        return NonFiniteMetricError(
            f"The mean of the metric {self.metric.name!r} is not finite although its effects "
            "are. Use a bounded metric such as probability-drop."
        )

    def no_gradient(self) -> NotDifferentiableError:
        """The error for a metric through which no gradient reaches the mask."""
        return NotDifferentiableError(
            f"No gradient reaches the mask through the metric {self.metric.name!r}. "
            "Compute it with differentiable torch operations, or use a search that "
            "needs no gradient, such as top-k."
        )

    def _progress_bar(self, items: Any, label: str) -> Any:
        return _progress.steps(items, label, shown=self.config.progress)


def _check_continuations(pairs: PromptPairs, metric: Metric) -> None:
    for number, pair in enumerate(pairs):
        if metric.needs_y and pair.y_ids is None:
            raise MissingContinuationError(
                f"The metric {metric.name!r} compares x with y, and example {number} "
                f"({pair.describe()}) has no y. Give every example a continuation y, or use "
                "probability-drop or probability-ratio."
            )
        if "token-sets" in metric.reads:
            of_x = pair.x_set_ids or pair.x_ids[:1]
            of_y = pair.y_set_ids or (pair.y_ids or ())[:1]
            both = sorted(set(of_x) & set(of_y))
            if both:
                raise PairsError(
                    f"Token {both[0]} counts as x and as y in example {number} "
                    f"({pair.describe()}), whose x and y begin alike. Give it token sets (x_set, "
                    "y_set), or use logit-difference."
                )


def _check_exchange(pairs: PromptPairs, registry: ComponentRegistry) -> None:
    by_key = [kind.name for kind in registry.kinds_by_hook.values() if kind.key_dim is not None]
    for number, pair in enumerate(pairs):
        if by_key and pair.counterfactual_spans is not None:
            raise PairsError(
                f"Example {number} ({pair.describe()}) exchanges spans at different positions, and "
                f"{by_key[0]} are over the keys of one prompt. Use head-outputs."
            )


def _check_pairs_fit(pairs: PromptPairs, model: HookedModel, metric: Metric) -> None:
    _check_continuations(pairs, metric)
    vocabulary = int(model.cfg.d_vocab)
    context = int(getattr(model.cfg, "n_ctx", 0) or 0)
    for number, pair in enumerate(pairs):
        ids = pair.prompt_ids + pair.source_ids + pair.x_ids + (pair.y_ids or ())
        ids += (pair.x_set_ids or ()) + (pair.y_set_ids or ())
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise PairsError(
                f"Example {number} ({pair.describe()}) has a token id outside the vocabulary. "
                f"Ids must be 0 to {vocabulary - 1}; encode with the model's own tokenizer."
            )
        read = max(len(pair.prompt_ids), len(pair.source_ids))
        longest = read + max(len(pair.x_ids), len(pair.y_ids or ())) - 1
        if context and longest > context:
            raise PairsError(
                f"Example {number} ({pair.describe()}) needs {longest} positions. "
                f"The model has {context}; shorten it."
            )
        if isinstance(pair.counterfactual, NoCounterfactual):
            raise PairsError(
                f"Example {number} ({pair.describe()}) has no counterfactual. Give it one "
                "(counterfactual, counterfactual_ids or noise), or trace with source='zero', "
                "'mean', 'resample' or 'noise'."
            )
        refusal = pair.counterfactual.refusal(int(model.cfg.d_model))
        if refusal is not None:
            raise PairsError(
                f"{model_name(model)} cannot run the counterfactual of example {number}: "
                f"its {refusal}. Make it for this model."
            )
