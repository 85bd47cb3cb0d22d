"""The engine: a data set on a model, ready for any number of interventional runs.

What is computed when, and shared between what:

1. once per model: which shortcuts serve (`abilities.py`);
2. once per data set: the layout of rows and sources (`batches.py`), the clean scores, and the
   counterfactual activations at the hook points and positions in use (`sources.py`);
3. once for many sets of components: the layers below the first in which they differ
   (`prefix_tree.py`), so that a candidate costs only the layers above its own;
4. per mask: a forward pass over the rows with the mixed activations, the logits only where a
   token is scored; and, for a gradient, a backward pass to the mask. Parameters are frozen.

There is no loop over examples, tokens or components in a pass; only over batches and layers. On an
accelerator nothing in a pass waits for the device: results are read when a caller asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from tracekit import masks as masks_module
from tracekit.components import ComponentRegistry
from tracekit.data.prompts import PromptPairs
from tracekit.engine import prefix_tree
from tracekit.engine.batch import Batch, Layout, Positions
from tracekit.engine.block_skipping import States
from tracekit.engine.counterfactual_cache import Sources
from tracekit.engine.forward import Passes, Precision, autocast, check_precision, products_in
from tracekit.engine.patching import Activations, Hook, MaskedPatch
from tracekit.errors import (
    ConfigError,
    EngineFixedError,
    MissingContinuationError,
    NonFiniteMetricError,
    NotDifferentiableError,
    PairsError,
)
from tracekit.masks import Mask
from tracekit.metrics import Effects, Mean, Metric, Scores, check_finite
from tracekit.models.loading import HookedModel, frozen, model_name, sent

Weigh = Callable[[Effects], Effects]
"""Effects of some examples (detached, in any order) -> the weight of each one's gradient."""


@dataclass(frozen=True)
class Cost:
    """Work done, counted in passes over the whole data set, whatever they share."""

    forward: float = 0.0
    """Interventional forward passes."""
    backward: float = 0.0
    """Backward passes to the mask."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.forward + other.forward, self.backward + other.backward)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.forward - other.forward, self.backward - other.backward)

    @property
    def forward_equivalents(self) -> float:
        """Forward and backward together; with frozen weights a backward costs one forward."""
        return self.forward + self.backward


@dataclass(frozen=True, eq=False)
class FirstOrder:
    """What changing single components of a set would bring, to first order."""

    gains: Mask
    """Predicted value of having a component in the set: for those outside what adding one would
    bring, for those inside what removing one would cost. First order in the quantity of the
    metric's link, example by example; the link itself is exact."""
    gradient: Mask
    """Gradient of the mean effect: first order in the effect itself."""


class Engine:
    """Runs masks over a data set."""

    def __init__(
        self,
        model: HookedModel,
        pairs: PromptPairs,
        registry: ComponentRegistry,
        metric: Metric,
        *,
        positions: Positions = "prompt",
        mean: Mean = "geometric",
        batch_size: int = 64,
        max_memory: int | None = None,
        progress: bool = False,
    ) -> None:
        """Lays the data set out; runs none of it yet.

        Args:
            model: The model.
            pairs: The data set.
            registry: The components that masks stand for.
            metric: Gives the effects.
            positions: Where to intervene.
            mean: Probability of a continuation of several tokens.
            batch_size: Examples per pass through the model; bounds memory, changes no result.
            max_memory: Bytes that counterfactual activations may take on the model's device;
                beyond, they are kept in host memory, or computed again for every batch if the
                model is on the CPU. Changes no result. None: no bound.
            progress: Whether to show progress bars.

        Raises:
            MissingContinuationError: The metric needs a y that an example lacks.
            PairsError: A token id outside the vocabulary, noise of another width, or a sequence
                longer than the model's context.
            ConfigError: A batch size below 1, or a negative bound.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}. It must be at least 1.")
        if max_memory is not None and max_memory < 0:
            raise ConfigError(f"max_memory is {max_memory} bytes. It must be at least 0.")
        _check_pairs_fit(pairs, model, metric)
        self.model = model
        self.pairs = pairs
        self.registry = registry
        self.metric = metric
        self.mean: Mean = mean
        self.positions: Positions = positions
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.progress = progress
        self._forwards = self._backwards = 0
        self.passes = Passes(model, mean, choices=metric.reads_choices)
        self._weights = None if pairs.weights is None else pairs.weights.to(self.passes.device)
        self.layout = self._lay_out()
        self.sources = Sources(
            model,
            self.layout,
            registry,
            batch_size=batch_size,
            max_memory=max_memory,
            bar=self._bar,
        )
        self._fixed = True

    def __setattr__(self, name: str, value: Any) -> None:
        # What was computed once would silently belong to the old setting.
        if getattr(self, "_fixed", False) and name not in ("_forwards", "_backwards", "progress"):
            raise EngineFixedError(
                f"The {name} of an engine cannot be changed once it is built. Build another Tracer."
            )
        super().__setattr__(name, value)

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
        return self.passes.device

    @property
    def cost(self) -> Cost:
        """Interventional work so far; clean and counterfactual runs are not counted."""
        return Cost(self._forwards / self.n_examples, self._backwards / self.n_examples)

    def restricted(self, pairs: PromptPairs) -> Engine:
        """The same engine on other pairs."""
        return Engine(
            self.model,
            pairs,
            self.registry,
            self.metric,
            positions=self.positions,
            mean=self.mean,
            batch_size=self.batch_size,
            max_memory=self.max_memory,
            progress=self.progress,
        )

    def _lay_out(self) -> Layout:
        """X and y in one row where the model heeds it at the length needed, else in two."""
        layout = Layout.build(self.pairs, self.positions, packed=True)
        abilities, longest = self.passes.abilities, layout.longest
        if abilities.pack(self.model, longest):
            return layout
        if layout.sequences.forks:
            abilities.warn_of_packing(self.model, longest)
        return Layout.build(self.pairs, self.positions)

    # ---- computed once --------------------------------------------------------------------

    @cached_property
    def clean(self) -> Scores:
        """Scores of the clean run, one per example."""
        with frozen(self.model), torch.no_grad():
            parts = [
                (batch.examples, self.passes.scores(batch, []))
                for batch in self._bar(self._batches, "clean run")
            ]
        return _assemble(parts, self.n_examples)

    @property
    def first_batch(self) -> Batch:
        """The first of the fixed batches."""
        return self._batches[0]

    @cached_property
    def _batches(self) -> list[Batch]:
        return list(self._split(None))

    def _split(self, examples: Int[Tensor, " example"] | None) -> Any:
        return self.layout.batches(self.batch_size, device=self.device, examples=examples)

    @cached_property
    def _own_rows(self) -> Layout:
        """A layout in which no row serves two examples, so that gradients tell them apart."""
        alone = Layout.build(
            self.pairs, self.positions, packed=self.layout.sequences.told, shared=False
        )
        return self.layout if len(alone.sequences) == len(self.layout.sequences) else alone

    @cached_property
    def _layer_of(self) -> list[int]:
        return [site.layer for site in self.registry.sites for _ in site.indices]

    # ---- per mask -------------------------------------------------------------------------

    def effects(self, mask: Any) -> Float[Tensor, "*set example"]:
        """Effects of a mask, or of each of a stack of masks, on every example.

        The plain way: every hook acts, every layer runs. Where examples have weights, effects are
        multiplied by them, scaled to a mean of 1, so that a plain mean is the weighted one.

        Args:
            mask: Shape `component` or `set component`, entries in [0, 1].

        Returns:
            The effects, on the CPU.

        Raises:
            MaskShapeError, MaskRangeError: As in `masks.check`.
            NonFiniteMetricError: Names the examples.
        """
        checked = masks_module.check(mask, self.n_components)
        stack = (checked[None] if checked.ndim == 1 else checked).to(self.device)
        result = torch.zeros(len(stack), self.n_examples, device=self.device)
        with frozen(self.model), torch.no_grad():
            for batch in self._batches:
                source = self.sources.of(batch)
                per_pass = max(1, self.batch_size // len(batch.examples))
                for first in range(0, len(stack), per_pass):
                    some = stack[first : first + per_pass]
                    values = self._effects_of_batch(batch, source, some)
                    result[first : first + len(some), batch.examples] = values
        self._forwards += len(stack) * self.n_examples
        result = result.cpu()
        for row in result:
            check_finite(row, self.metric, lambda i: self.pairs[i].describe())
        return result[0] if checked.ndim == 1 else result

    def mean_effect(self, mask: Any) -> float:
        """Mean effect of one mask."""
        return float(self.effects(mask).mean())

    @cached_property
    def full_effects(self) -> Effects:
        """Effects of all components together: the reference line of every figure."""
        return self.effects(torch.ones(self.n_components))

    def effects_of(self, batch: Batch, mask: Mask) -> Effects:
        """Effects on the examples of one batch, not counted as work."""
        with frozen(self.model), torch.no_grad():
            source = self.sources.of(batch)
            return self._effects_of_batch(batch, source, mask.to(self.device)[None])[0].cpu()

    def intervened(self, mask: Any) -> Scores:
        """Scores of every example under a mask."""
        entries = masks_module.check(mask, self.n_components).to(self.device)
        with frozen(self.model), torch.no_grad():
            parts = [
                (
                    batch.examples,
                    self.passes.scores(batch, self._hooks(batch, self.sources.of(batch), entries)),
                )
                for batch in self._batches
            ]
        return _assemble(parts, self.n_examples)

    def gradient(
        self,
        mask: Mask,
        weigh: Weigh,
        examples: Int[Tensor, " example"] | None = None,
        *,
        precision: Precision = "float32",
    ) -> tuple[Effects, Mask]:
        """Effects, and the gradient of their weighted sum with respect to the mask.

        Nothing here waits for an accelerator, so numbers that are not finite are handed on; the
        searches refuse them at the end of an epoch.

        Args:
            mask: Soft mask.
            weigh: Gives the weight w of each example in the sum from its effect l, for a few
                examples at a time; w is held fixed, so the gradient is sum_i w_i dl_i/dm.
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
        total = torch.zeros_like(leaf)
        effects = torch.zeros(self.n_examples, device=self.device)
        with frozen(self.model), torch.enable_grad(), products_in(precision, self.device):
            for batch in self._split(examples):
                source = self.sources.of(batch)
                with autocast(precision, self.device):
                    values = self._effects_of_batch(batch, source, leaf[None])[0]
                if not values.requires_grad:
                    raise self._no_gradient()
                weights = weigh(values.detach())
                total += torch.autograd.grad((weights * values).sum(), leaf)[0]
                effects[batch.examples] = values.detach()
        self._forwards += len(examples)
        self._backwards += len(examples)
        picked = effects[sent(examples, self.device)]
        return picked.to(mask.device), total.to(mask.device)

    def first_order(self, members: prefix_tree.Set) -> FirstOrder:
        """What adding or removing single components would bring, from one gradient.

        The gradient is taken at the binary mask of a set, of the quantity u of the metric's link,
        for every example by itself: with J its rows, the mean over examples of
        `effect(u +- J_i) - effect(u)` predicts the change when component i joins or leaves. It
        only proposes; sets are compared by measured effects.

        Returns:
            The predictions, on the CPU. They may not be finite.

        Raises:
            NotDifferentiableError: The metric has no gradient.
        """
        _ = self.clean
        mask = masks_module.from_indices(members, self.n_components).to(self.device).float()
        gains, gradient = torch.zeros_like(mask), torch.zeros_like(mask)
        joins = 1 - 2 * mask
        with frozen(self.model), torch.enable_grad():
            for batch in self._own_rows.batches(self.batch_size, device=self.device):
                leaf = mask.repeat(1, len(batch.sequences), 1).requires_grad_(True)
                scores = self.passes.scores(batch, self._hooks(batch, self.sources.of(batch), leaf))
                gain, slope = self._look_ahead(batch, scores, leaf, joins)
                gains += gain
                gradient += slope
        self._forwards += self.n_examples
        self._backwards += self.n_examples
        return FirstOrder(
            (gains * joins / self.n_examples).cpu(), (gradient / self.n_examples).cpu()
        )

    def _look_ahead(
        self, batch: Batch, scores: Scores, leaf: Tensor, joins: Mask
    ) -> tuple[Mask, Mask]:
        """Summed changes of the effects of a batch, predicted with and without the link."""
        clean = _take(self.clean, batch.examples)
        link = self.metric.link
        if link is None:
            values = self._weighted(batch, self.metric(clean, scores))
        else:
            values = link.read(scores)
        if not values.requires_grad:
            raise self._no_gradient()
        slopes = torch.autograd.grad(values.sum(), leaf)[0][0]
        slopes = batch.readers.to(slopes.dtype) @ slopes
        if link is None:
            return slopes.sum(0) * joins, slopes.sum(0)
        values = values.detach().requires_grad_(True)
        now = link.effect(clean, values)
        (weights,) = torch.autograd.grad(now.sum(), values)
        with torch.no_grad():
            ahead = link.effect(clean, values[:, None] + slopes * joins) - now[:, None]
        ahead = self._weighted(batch, ahead.T).T
        return ahead.sum(0), self._weighted(batch, weights) @ slopes

    def _no_gradient(self) -> NotDifferentiableError:
        return NotDifferentiableError(
            f"No gradient reaches the mask through the metric {self.metric.name!r}. "
            "Compute it with differentiable torch operations, or use a search that "
            "needs no gradient, such as top-k."
        )

    # ---- many sets ------------------------------------------------------------------------

    def mean_effects(
        self, sets: Sequence[Sequence[int]], label: str = "effects"
    ) -> Float[Tensor, " set"]:
        """Mean effect of each of many sets of components; see `effects_of_sets`."""
        return self.effects_of_sets(sets, label).mean(1)

    def effects_of_sets(
        self, sets: Sequence[Sequence[int]], label: str = "effects"
    ) -> Float[Tensor, "set example"]:
        """Effects of each of many sets of components, with a progress bar.

        What sets share is computed once, hooks are only where a set has components, and several
        sets go through the model together where a batch leaves room. Equal to `effects` of each.

        Returns:
            The effects, on the CPU.

        Raises:
            NonFiniteMetricError: Names the examples.
        """
        sets = [tuple(one) for one in sets]
        if self.passes.abilities.blocks is None:
            tree = prefix_tree.Node(0, leaves=list(range(len(sets))))
        else:
            tree = prefix_tree.plan(sets, self._layer_of, int(self.model.cfg.n_layers))
        found = torch.zeros(len(sets), self.n_examples, device=self.device)
        bar = tqdm(
            total=len(sets) * len(self._batches),
            desc=label,
            leave=False,
            disable=not self.progress or len(sets) < 3,
        )
        with frozen(self.model), torch.no_grad(), bar:
            for batch in self._batches:
                self._walk(tree, None, sets, batch, self.sources.of(batch), found, bar)
        self._forwards += len(sets) * self.n_examples
        effects = found.cpu()
        for row in effects[~torch.isfinite(effects.mean(1))]:
            check_finite(row, self.metric, lambda i: self.pairs[i].describe())
            raise NonFiniteMetricError(
                f"The mean of the metric {self.metric.name!r} is not finite although its effects "
                "are. Use a bounded metric such as probability-drop."
            )
        return effects

    def _walk(
        self,
        node: prefix_tree.Node,
        states: States | None,
        sets: Sequence[prefix_tree.Set],
        batch: Batch,
        source: Activations,
        found: Float[Tensor, "set example"],
        bar: Any,
    ) -> None:
        """Puts down the effects on a batch of all sets below a node; `states` enter there."""
        per_pass = max(1, self.batch_size // len(batch.examples))
        for first in range(0, len(node.leaves), per_pass):
            some = node.leaves[first : first + per_pass]
            stack = self._stack([sets[number] for number in some])
            layers = {self._layer_of[i] for number in some for i in sets[number]}
            layers = {layer for layer in layers if layer >= node.layer}
            effects = self._effects_of_batch(
                batch, source, stack, layers=layers, start=node.layer, states=states
            )
            found[sent(torch.tensor(some), self.device)[:, None], batch.examples] = effects
            bar.update(len(some))
        for child in node.children:
            layers = {self._layer_of[i] for i in child.prefix}
            hooks = self._hooks(batch, source, self._stack([child.prefix]), layers)
            carried = self.passes.states(batch, hooks, child.layer, start=node.layer, states=states)
            self._walk(child, carried, sets, batch, source, found, bar)

    def _stack(self, sets: Sequence[prefix_tree.Set]) -> Float[Tensor, "set component"]:
        masks = [masks_module.from_indices(one, self.n_components) for one in sets]
        return sent(torch.stack(masks), self.device).float()

    # ---- inside a pass --------------------------------------------------------------------

    def _effects_of_batch(
        self,
        batch: Batch,
        source: Activations,
        stack: Float[Tensor, "set component"],
        *,
        layers: Container[int] | None = None,
        start: int = 0,
        states: States | None = None,
    ) -> Float[Tensor, "set example"]:
        """Effects of a few masks on a batch, all in one pass.

        Args:
            batch: The batch.
            source: Its counterfactual activations.
            stack: The masks.
            layers: Layers that get hooks; all by default.
            start: First block to run.
            states: What it reads, for the rows of the batch.
        """
        hooks = self._hooks(batch, source, stack, layers)
        repeated = batch.repeat(len(stack))
        if states is not None:
            states = states.repeat(len(stack), 1, 1)
        scores = self.passes.scores(repeated, hooks, start=start, states=states)
        effects = self.metric(_take(self.clean, repeated.examples), scores)
        return self._weighted(batch, effects.reshape(len(stack), -1))

    def _weighted(self, batch: Batch, effects: Tensor) -> Tensor:
        """Effects (examples last) times the weights of their examples, whose mean is 1."""
        return effects if self._weights is None else effects * self._weights[batch.examples]

    def _hooks(
        self,
        batch: Batch,
        source: Activations,
        mask: Float[Tensor, "*set component"] | Float[Tensor, "set row component"],
        layers: Container[int] | None = None,
    ) -> list[Hook]:
        sites = [s for s in self.registry.sites if layers is None or s.layer in layers]
        patch = MaskedPatch(
            registry=self.registry,
            counterfactual={site.hook_name: source[site.hook_name] for site in sites},
            positions=batch.positions,
        )
        return patch.hooks(mask)

    def _bar(self, items: Any, label: str) -> Any:
        return tqdm(items, desc=label, leave=False, disable=not self.progress or len(items) < 3)


def _check_pairs_fit(pairs: PromptPairs, model: HookedModel, metric: Metric) -> None:
    vocabulary = int(model.cfg.d_vocab)
    context = int(getattr(model.cfg, "n_ctx", 0) or 0)
    for number, pair in enumerate(pairs):
        if metric.needs_y and pair.y_ids is None:
            raise MissingContinuationError(
                f"The metric {metric.name!r} compares x with y, and example {number} "
                f"({pair.describe()}) has no y. Give every example a continuation y, or use "
                "probability-drop or probability-ratio."
            )
        ids = pair.prompt_ids + pair.source_ids + pair.x_ids + (pair.y_ids or ())
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise PairsError(
                f"Example {number} ({pair.describe()}) has a token id outside the vocabulary. "
                f"Ids must be 0 to {vocabulary - 1}; encode with the model's own tokenizer."
            )
        longest = len(pair.prompt_ids) + max(len(pair.x_ids), len(pair.y_ids or ())) - 1
        if context and longest > context:
            raise PairsError(
                f"Example {number} ({pair.describe()}) needs {longest} positions. "
                f"The model has {context}; shorten it."
            )
        if pair.noise is not None and pair.noise.shape[1] != model.cfg.d_model:
            raise PairsError(
                f"The noise of example {number} is {pair.noise.shape[1]} wide. "
                f"{model_name(model)} needs {model.cfg.d_model}."
            )


def _take(scores: Scores, examples: Tensor) -> Scores:
    """The scores of some examples."""
    return replace(
        scores,
        **{
            name: value[examples.to(value.device)]
            for name, value in vars(scores).items()
            if value is not None
        },
    )


def _assemble(parts: list[tuple[Tensor, Scores]], n_examples: int) -> Scores:
    """Scores of batches, put in the order of the data set."""
    order = torch.cat([examples for examples, _ in parts]).argsort()
    assert len(order) == n_examples
    return Scores(
        **{
            name: torch.cat([getattr(scores, name) for _, scores in parts])[order]
            for name, value in vars(parts[0][1]).items()
            if value is not None
        }
    )
