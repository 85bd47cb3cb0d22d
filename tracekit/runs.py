"""The engine: a data set on a model, ready for any number of interventional runs.

What is computed when:

1. once per data set: the layout of rows and sources (`batches.py`), the clean scores, the
   counterfactual activations at the hook points and positions in use;
2. per mask: one forward pass over the rows with the mixed activations, the logits only where a
   token is scored; and, for a gradient, one backward pass to the mask. Parameters are frozen.

There is no loop over examples, tokens or components in a pass; only over batches and layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from tracekit import masks as masks_module
from tracekit.batches import Batch, Layout, Positions
from tracekit.components import ComponentRegistry
from tracekit.errors import (
    ConfigError,
    EngineFixedError,
    MissingContinuationError,
    NonFiniteMetricError,
    NotDifferentiableError,
    PairsError,
)
from tracekit.masks import Mask, from_indices
from tracekit.metrics import Effects, Mean, Metric, Scores, check_finite
from tracekit.models import (
    EMBEDDING_HOOK,
    HookedModel,
    device_of,
    frozen,
    model_name,
    scored_hook,
)
from tracekit.patching import Hook, MaskedPatch, crop
from tracekit.prompts import PromptPairs

Weigh = Callable[[Effects], Effects]
"""Effects of some examples (detached) -> the weight of each one's gradient."""


@dataclass(frozen=True)
class Cost:
    """Work done, counted in passes over the whole data set."""

    forward: float = 0.0
    """Interventional forward passes."""
    backward: float = 0.0
    """Backward passes to the mask."""

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.forward - other.forward, self.backward - other.backward)

    @property
    def forward_equivalents(self) -> float:
        """Forward and backward together; with frozen weights a backward costs one forward."""
        return self.forward + self.backward


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
        progress: bool = False,
    ) -> None:
        """Lays the data set out; runs nothing yet.

        Args:
            model: The model.
            pairs: The data set.
            registry: The components that masks stand for.
            metric: Gives the effects.
            positions: Where to intervene.
            mean: Probability of a continuation of several tokens.
            batch_size: Examples per pass through the model; bounds memory, changes no result.
            progress: Whether to show progress bars.

        Raises:
            MissingContinuationError: The metric needs a y that an example lacks.
            PairsError: A token id outside the vocabulary, noise of another width, or a sequence
                longer than the model's context.
            ConfigError: A batch size below 1.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}. It must be at least 1.")
        _check_pairs_fit(pairs, model, metric)
        self.model = model
        self.pairs = pairs
        self.registry = registry
        self.metric = metric
        self.mean: Mean = mean
        self.positions: Positions = positions
        self.batch_size = batch_size
        self.progress = progress
        self._forwards = self._backwards = 0
        self.layout = Layout.build(pairs, positions, device=device_of(model))
        self._scored_hook = scored_hook(model)
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
            progress=self.progress,
        )

    # ---- computed once --------------------------------------------------------------------

    @cached_property
    def clean(self) -> Scores:
        """Scores of the clean run, one per example."""
        with frozen(self.model), torch.no_grad():
            parts = [
                (batch.examples, self._forward(batch, []))
                for batch in self._bar(self._batches, "clean run")
            ]
        return _assemble(parts, self.n_examples)

    @cached_property
    def counterfactual(self) -> dict[str, Tensor]:
        """Activations of the counterfactual run by hook point; the first axis is the source."""
        layout = self.layout
        order = range(0, len(layout.source_tokens), self.batch_size)
        chunks: dict[str, list[Tensor]] = {name: [] for name in self.registry.hook_names}
        sites = {site.hook_name: site for site in self.registry.sites}
        span = int(layout.positions.any(0).nonzero().max()) + 1
        with frozen(self.model), torch.no_grad():
            for start in self._bar(order, "counterfactual run"):
                stop = start + self.batch_size
                caught: dict[str, Tensor] = {}
                noise = layout.source_noise
                hooks = [] if noise is None else [_add_noise(noise[start:stop])]
                hooks += [_catch(name, caught) for name in chunks]
                self.model.run_with_hooks(layout.source_tokens[start:stop], fwd_hooks=hooks)
                for name, activation in caught.items():
                    chunks[name].append(crop(sites[name], activation, span).clone())
        return {name: torch.cat(parts) for name, parts in chunks.items()}

    @property
    def first_batch(self) -> Batch:
        """The first of the fixed batches."""
        return self._batches[0]

    def effects_of(self, batch: Batch, mask: Mask) -> Effects:
        """Effects on the examples of one batch, not counted as work."""
        with frozen(self.model), torch.no_grad():
            return self._effects_of_batch(batch, mask.to(self.layout.tokens.device)).cpu()

    @cached_property
    def _batches(self) -> list[Batch]:
        return list(self.layout.batches(self.batch_size))

    # ---- per mask -------------------------------------------------------------------------

    def effects(self, mask: Any) -> Float[Tensor, "*set example"]:
        """Effects of a mask, or of each of a stack of masks, on every example.

        Args:
            mask: Shape `component` or `set component`, entries in [0, 1].

        Raises:
            MaskShapeError, MaskRangeError: As in `masks.check`.
            NonFiniteMetricError: Names the examples.
        """
        stack = masks_module.check(mask, self.n_components)
        if stack.ndim == 1:
            return self._effects_of_stack(stack[None])[0]
        return self._effects_of_stack(stack)

    def mean_effects(
        self, sets: Sequence[Sequence[int]], label: str = "effects"
    ) -> Float[Tensor, " set"]:
        """Mean effect of each of many sets of components, with a progress bar.

        Masks are made a few at a time: all single components of a large model would not fit.
        """
        chunk = max(1, self.batch_size // self.n_examples)
        means = torch.zeros(len(sets))
        for first in self._bar(range(0, len(sets), chunk), label):
            some = sets[first : first + chunk]
            stack = torch.stack([from_indices(one, self.n_components) for one in some]).float()
            means[first : first + len(some)] = self._effects_of_stack(stack).mean(-1)
        return means

    def mean_effect(self, mask: Any) -> float:
        """Mean effect of one mask."""
        return float(self.effects(mask).mean())

    @cached_property
    def full_effects(self) -> Effects:
        """Effects of all components together: the reference line of every figure."""
        return self.effects(torch.ones(self.n_components))

    def gradient(
        self, mask: Mask, weigh: Weigh, examples: Int[Tensor, " example"] | None = None
    ) -> tuple[Effects, Mask]:
        """Effects, and the gradient of their weighted sum with respect to the mask.

        Args:
            mask: Soft mask.
            weigh: Gives the weights w of the sum from the effects of a few examples at a time;
                w is held fixed, so the gradient is sum_i w_i dl_i/dm.
            examples: Numbers of the examples to use; all by default.

        Returns:
            The effects in the order of `examples`, and the gradient; both on the CPU.
        """
        if examples is None:
            examples = torch.arange(self.n_examples)
        leaf = mask.detach().float().to(self.layout.tokens.device).requires_grad_(True)
        total = torch.zeros_like(leaf)
        effects = []
        with frozen(self.model), torch.enable_grad():
            for part in examples.split(self.batch_size):
                batch = self.layout.batch(part)
                values = self._effects_of_batch(batch, leaf)
                if not values.requires_grad:
                    raise NotDifferentiableError(
                        f"No gradient reaches the mask through the metric {self.metric.name!r}. "
                        "Compute it with differentiable torch operations, or use a search that "
                        "needs no gradient, such as top-k."
                    )
                weights = weigh(values.detach().cpu()).to(values.device)
                total += torch.autograd.grad((weights * values).sum(), leaf)[0]
                effects.append(values.detach().cpu())
        self._forwards += len(examples)
        self._backwards += len(examples)
        found = torch.cat(effects)
        self._check_finite(found, examples)
        if not torch.isfinite(total).all():
            raise NonFiniteMetricError(
                f"The gradient of the metric {self.metric.name!r} is not finite although its "
                "effects are. Use a bounded metric such as probability-drop."
            )
        return found, total.cpu()

    def intervened(self, mask: Any) -> Scores:
        """Scores of every example under a mask."""
        entries = masks_module.check(mask, self.n_components).to(self.layout.tokens.device)
        with frozen(self.model), torch.no_grad():
            parts = [(b.examples, self._forward(b, self._hooks(b, entries))) for b in self._batches]
        return _assemble(parts, self.n_examples)

    # ---- inside a pass --------------------------------------------------------------------

    def _effects_of_stack(self, stack: Float[Tensor, "set component"]) -> Tensor:
        """Effects of a few masks, several masks to a pass where a batch is small."""
        stack = stack.to(self.layout.tokens.device)
        result = torch.zeros(len(stack), self.n_examples)
        with frozen(self.model), torch.no_grad():
            for batch in self._batches:
                numbers = batch.examples.cpu()
                per_pass = max(1, self.batch_size // len(numbers))
                for first in range(0, len(stack), per_pass):
                    some = stack[first : first + per_pass]
                    values = self._effects_of_batch(batch, some)
                    rows = torch.arange(first, first + len(some))
                    result[rows[:, None], numbers] = values.reshape(len(some), -1).cpu()
        self._forwards += len(stack) * self.n_examples
        for row in result:
            self._check_finite(row, torch.arange(self.n_examples))
        return result

    def _check_finite(self, effects: Effects, examples: Int[Tensor, " example"]) -> None:
        by_number = torch.zeros(self.n_examples)
        by_number[examples] = effects
        check_finite(by_number, self.metric, lambda i: self.pairs[i].describe())

    def _effects_of_batch(self, batch: Batch, mask: Float[Tensor, "*set component"]) -> Effects:
        clean = _take(self.clean, batch.examples)
        if mask.ndim == 2:
            copies = len(mask)
            mask = mask.repeat_interleave(len(batch.tokens), 0) if copies > 1 else mask[0]
            batch = batch.repeat(copies)
            clean = _take(self.clean, batch.examples)
        return self.metric(clean, self._forward(batch, self._hooks(batch, mask)))

    def _hooks(self, batch: Batch, mask: Float[Tensor, "*row component"]) -> list[Hook]:
        sites = {site.hook_name: site for site in self.registry.sites}
        source = {
            name: crop(sites[name], activation, batch.span)[batch.sources.to(activation.device)]
            for name, activation in self.counterfactual.items()
        }
        patch = MaskedPatch(
            registry=self.registry, counterfactual=source, positions=batch.positions
        )
        return patch.hooks(mask)

    def _forward(self, batch: Batch, hooks: list[Hook]) -> Scores:
        def gather(activation: Tensor, hook: Any = None) -> Tensor:
            row, pos = (index.to(activation.device) for index in batch.place)
            return activation[row, pos][None]

        logits = self.model.run_with_hooks(
            batch.tokens, fwd_hooks=[*hooks, (self._scored_hook, gather)]
        )
        return batch.read(
            logits[0].to(batch.tokens.device), self.mean, choices=self.metric.reads_choices
        )

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


def _catch(name: str, into: dict[str, Tensor]) -> Hook:
    def catch(activation: Tensor, hook: Any = None) -> Tensor:
        into[name] = activation.detach()
        return activation

    return name, catch


def _add_noise(noise: Float[Tensor, "source pos d_model"]) -> Hook:
    def disturb(activation: Tensor, hook: Any = None) -> Tensor:
        return activation + noise.to(activation.device, activation.dtype)

    return EMBEDDING_HOOK, disturb


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
