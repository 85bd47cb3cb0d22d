"""The clean run: its log-probabilities, worked out once for everything that metrics read of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tracekit._util.ranks import Ranks
from tracekit.engine.batch import Batch
from tracekit.engine.forward import ForwardPass
from tracekit.metrics import ContinuationLogProbs, Reading
from tracekit.models.hooked import HookedModel, freeze

_FLOAT_BYTES = 4


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
        n_bytes = n_examples * int(self.model.cfg.d_vocab) * _FLOAT_BYTES
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
