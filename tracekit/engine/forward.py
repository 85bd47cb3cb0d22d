"""The forward pass: the only place where the model is run for log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.engine.batch import Batch
from tracekit.engine.block_skipping import ResidualStream, StopPassError
from tracekit.engine.capabilities import Capabilities
from tracekit.metrics import ContinuationLogProbs, ContinuationMean, Reading
from tracekit.models.architectures import residual_hook, stream_hook
from tracekit.models.hooked import Hook, HookedModel, device_of, dtype_of, freeze, scored_hook


class ForwardPass:
    """Runs batches through a model."""

    def __init__(
        self, model: HookedModel, capabilities: Capabilities, mean: ContinuationMean
    ) -> None:
        """Runs nothing yet."""
        self.device: torch.device = device_of(model)
        self._model = model
        self._dtype = dtype_of(model)
        self.scored_hook: str = scored_hook(model)
        """Hook point of what the unembedding reads."""
        self._block_skipper = capabilities.block_skipper
        self._mean: ContinuationMean = mean

    def log_probs(
        self,
        batch: Batch,
        hooks: Sequence[Hook],
        *,
        reads: Sequence[Reading] = (),
        start: int = 0,
        residual: ResidualStream | None = None,
    ) -> ContinuationLogProbs:
        """Log-probabilities of the continuations of a batch; with `residual`, from `start` on."""
        gather = partial(_gather_readouts, batch=batch)
        logits = self._run_model(batch, [*hooks, (self.scored_hook, gather)], start, None, residual)
        return batch.read_log_probs(logits[0].to(self.device), self._mean, reads)

    def residual_at(
        self,
        batch: Batch,
        hooks: Sequence[Hook],
        stop: int,
        *,
        start: int = 0,
        residual: ResidualStream | None = None,
    ) -> ResidualStream:
        """Input of block `stop` under hooks; runs blocks `start` to `stop - 1`."""
        try:
            self._run_model(batch, hooks, start, stop, residual)
        except StopPassError as stopped:
            return stopped.residual
        raise AssertionError(f"The pass did not stop at block {stop}.")

    def activations(
        self,
        batch: Batch,
        hooks: Sequence[Hook],
        names: Collection[str],
        *,
        start: int = 0,
        residual: ResidualStream | None = None,
    ) -> dict[str, Tensor]:
        """Activations at hook points before hooks change them; the pass ends with the last."""
        fired: dict[str, Tensor] = {}

        def keep(activation: Tensor, hook: Any = None, *, name: str) -> Tensor:
            fired[name] = activation.detach().clone()
            if len(fired) == len(names):
                raise StopPassError(activation)
            return activation

        keeping = [(name, partial(keep, name=name)) for name in names]
        try:
            self._run_model(batch, [*keeping, *hooks], start, None, residual)
        except StopPassError:
            return fired
        raise AssertionError(f"Of the hook points {', '.join(names)} only {list(fired)} fired.")

    def unembedding_gradient(self, batch: Batch) -> Float[Tensor, "example d_model"]:
        """Gradient of logit(x) - logit(y), or without a y of logit(x), by the unembedding's input.

        It reads their first tokens that differ, at an input of 0, where a soft cap does nothing.
        """
        n, width = len(batch.examples), int(self._model.cfg.d_model)
        read = torch.zeros(1, n, width, dtype=self._dtype, device=self.device, requires_grad=True)
        with torch.enable_grad():
            logits = self._run_model(batch, [(self.scored_hook, replace_by(read))])[0].float()
            each = torch.arange(n, device=logits.device)
            of_x, of_y = batch.single_tokens.unbind(1)
            grown = logits[each, of_x]
            if batch.all_have_y:
                grown = grown - logits[each, of_y]
            return torch.autograd.grad(grown.sum(), read)[0][0].float()

    def measure_row_bytes(self, batch: Batch) -> float:
        """Measures the GPU memory of one example in a pass with its gradient."""
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        shift = torch.zeros((), dtype=self._dtype, device=self.device, requires_grad=True)
        hook = (residual_hook(0), lambda stream, hook=None: stream + shift)
        with freeze(self._model), torch.enable_grad():
            torch.autograd.grad(self.log_probs(batch, [hook]).x.sum(), shift)
        return (torch.cuda.max_memory_allocated(self.device) - before) / len(batch.examples)

    def _run_model(
        self,
        batch: Batch,
        hooks: Sequence[Hook],
        start: int = 0,
        stop: int | None = None,
        residual: ResidualStream | None = None,
    ) -> Tensor:
        """Runs a batch, and only blocks `start` to `stop - 1` if the model allows it."""
        first, blocks = [] if start else noise_hooks(batch.noise), nullcontext()
        if self._block_skipper is not None and (start or stop is not None):
            blocks = self._block_skipper.run_blocks(start, stop, residual)
        elif residual is not None:
            first.append((stream_hook(start), replace_by(residual)))
        inputs = batch.sequences.model_inputs(self._dtype)
        with blocks:
            return self._model.run_with_hooks(
                batch.sequences.tokens, fwd_hooks=[*first, *hooks], **inputs
            )


def _gather_readouts(activation: Tensor, hook: Any = None, *, batch: Batch) -> Tensor:
    row, pos = (index.to(activation.device) for index in batch.readout_positions)
    return activation[row, pos][None]


def replace_by(value: Tensor) -> Callable[..., Tensor]:
    """Makes a hook that replaces an activation by a value."""

    def replace(activation: Tensor, hook: Any = None) -> Tensor:
        return value.to(activation.device, activation.dtype)

    return replace


def noise_hooks(noise: Tensor | None) -> list[Hook]:
    """A hook that adds noise to the input of the first block, if there is any."""
    if noise is None:
        return []

    def add(activation: Tensor, hook: Any = None) -> Tensor:
        return activation + noise.to(activation.device, activation.dtype)

    return [(residual_hook(0), add)]
