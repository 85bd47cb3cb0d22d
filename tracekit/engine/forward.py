"""The forward pass: the only place where the model is run for log-probabilities.

Those of the clean run are worked out once, for everything that metrics read of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.ranks import Ranks
from tracekit.engine.batch import Batch
from tracekit.engine.capabilities import Capabilities
from tracekit.engine.skipping import ResidualStream, StopPassError
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


@dataclass(eq=False)
class CleanRun:
    """Log-probabilities of the continuations of all examples, without any intervention."""

    model: HookedModel
    forward_pass: ForwardPass
    max_memory: int | None
    """Bytes that distributions may take; beyond, they are computed again for every batch."""
    progress_bar: Callable[[Any, str], Any]
    ranks: Ranks
    _kept: ContinuationLogProbs | None = None
    _was_read: set[Reading] = field(default_factory=set)
    _latest: tuple[Batch, ContinuationLogProbs] | None = None

    def log_probs_of_all(
        self, batches: Sequence[Batch], reads: Sequence[Reading], n_examples: int
    ) -> ContinuationLogProbs:
        """Log-probabilities of every example, in the order of the data set.

        Leaves a `distribution` out if it does not fit; does not repeat earlier readings.
        """
        lacking: list[Reading] = [r for r in dict.fromkeys(reads) if r not in self._was_read]
        n_bytes = n_examples * int(self.model.cfg.d_vocab) * torch.float32.itemsize
        fits = self.max_memory is None or n_bytes <= self.max_memory
        # Sending it to all ranks would take longer than running it again.
        if "distribution" in lacking and (self.ranks.count > 1 or not fits):
            lacking.remove("distribution")
        if self._kept is None or lacking:
            with freeze(self.model), torch.no_grad():
                parts = [
                    (batch.examples, self.forward_pass.log_probs(batch, [], reads=lacking))
                    for batch in self.progress_bar(batches, "clean run")
                ]
            added = join_batches(parts, n_examples, self.ranks)
            earlier = {k: v for k, v in vars(self._kept or added).items() if v is not None}
            self._kept = replace(added, **earlier)
            self._was_read.update(lacking)
        return self._kept

    def log_probs_of(
        self, batch: Batch, of_all: ContinuationLogProbs, reads: Sequence[Reading]
    ) -> ContinuationLogProbs:
        """The log-probabilities of the examples of a batch, from those of all (`of_all`)."""
        kept = {
            name: value[batch.examples.to(value.device)]
            for name, value in vars(of_all).items()
            # The distribution is large, and most metrics do not read it.
            if value is not None and (name != "distribution" or "distribution" in reads)
        }
        if "distribution" in reads and of_all.distribution is None:
            if self._latest is None or self._latest[0] is not batch:
                with torch.no_grad(), torch.autocast(batch.positions.device.type, enabled=False):
                    run = self.forward_pass.log_probs(batch, [], reads=("distribution",))
                self._latest = (batch, run)
            kept["distribution"] = self._latest[1].require("distribution")
        return ContinuationLogProbs(**kept)


def repeat_log_probs(log_probs: ContinuationLogProbs, copies: int) -> ContinuationLogProbs:
    """Repeats the log-probabilities of some examples `copies` times."""
    if copies == 1:
        return log_probs
    return log_probs.map(lambda value: value.repeat(copies, *[1] * (value.ndim - 1)))


def join_batches(
    parts: Sequence[tuple[Tensor, ContinuationLogProbs]], n_examples: int, ranks: Ranks
) -> ContinuationLogProbs:
    """Log-probabilities of all ranks' batches, in the order of the data set."""
    numbers = torch.cat([examples for examples, _ in parts])
    assembled: dict[str, Tensor] = {}
    for name, value in vars(parts[0][1]).items():
        if value is not None:
            values = torch.cat([getattr(log_probs, name) for _, log_probs in parts])
            empty = values.new_zeros(n_examples, *values.shape[1:])
            assembled[name] = empty.index_put((numbers,), values)
    summed = ranks.sum_ranks(*assembled.values())
    return ContinuationLogProbs(**dict(zip(assembled, summed, strict=True)))
