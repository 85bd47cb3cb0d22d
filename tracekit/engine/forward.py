"""One pass of the model over a batch: the only place where the model is run for scores.

A pass reads rows of tokens, mixes counterfactual activations in through hooks, and computes logits
only at the places where a continuation's token is predicted. It may begin and end at any block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from tracekit.engine.batch import Batch
from tracekit.engine.block_skipping import States, StopPassError
from tracekit.engine.capabilities import abilities_of
from tracekit.engine.patching import Hook
from tracekit.errors import ConfigError
from tracekit.metrics import Mean, Scores
from tracekit.models.loading import HookedModel, device_of, dtype_of, scored_hook

Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS = ("float32", "tf32", "bfloat16")


class Passes:
    """Runs batches through a model."""

    def __init__(self, model: HookedModel, mean: Mean, *, choices: bool) -> None:
        """Finds out what the model can do; see `tracekit.engine.capabilities`.

        Args:
            model: The model.
            mean: Probability of a continuation of several tokens.
            choices: Whether scores tell which continuations are the model's choice.
        """
        self.model = model
        self.device = device_of(model)
        self.dtype = dtype_of(model)
        self._scored_hook = scored_hook(model)
        self.abilities = abilities_of(model)
        self._mean: Mean = mean
        self._choices = choices

    def scores(
        self, batch: Batch, hooks: Sequence[Hook], *, start: int = 0, states: States | None = None
    ) -> Scores:
        """Scores of a batch under hooks.

        Args:
            batch: The batch.
            hooks: Forward hooks.
            start: First block to run.
            states: What that block reads, one row per row of the batch; needed if `start` > 0.
        """

        def gather(activation: Tensor, hook: Any = None) -> Tensor:
            row, pos = (index.to(activation.device) for index in batch.place)
            return activation[row, pos][None]

        with self._cut(start, None, states):
            logits = self._run(batch, [*hooks, (self._scored_hook, gather)])
        return batch.read(logits[0].to(self.device), self._mean, choices=self._choices)

    def states(
        self,
        batch: Batch,
        hooks: Sequence[Hook],
        stop: int,
        *,
        start: int = 0,
        states: States | None = None,
    ) -> States:
        """What block `stop` reads under hooks; runs blocks `start` to `stop - 1`."""
        try:
            with self._cut(start, stop, states):
                self._run(batch, hooks)
        except StopPassError as stopped:
            return stopped.states
        raise AssertionError(f"The pass did not stop at block {stop}.")

    @contextmanager
    def _cut(self, start: int, stop: int | None, states: States | None) -> Iterator[None]:
        if start == 0 and stop is None:
            yield
            return
        assert self.abilities.blocks is not None
        with self.abilities.blocks.leaving_out(start, stop, states):
            yield

    def _run(self, batch: Batch, hooks: Sequence[Hook]) -> Tensor:
        inputs = batch.sequences.inputs(self.dtype)
        return self.model.run_with_hooks(batch.sequences.tokens, fwd_hooks=list(hooks), **inputs)


def check_precision(precision: str) -> None:
    """Refuses an unknown precision.

    Raises:
        ConfigError: It is none of `PRECISIONS`.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"Unknown precision {precision!r}. Use one of {', '.join(PRECISIONS)}.")


@contextmanager
def products_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Within, float32 matrix products on CUDA are TensorFloat-32 if `precision` is `tf32`.

    A setting of the whole process, read when a product is computed: it must span the backward
    pass too, and is put back afterwards.
    """
    if precision != "tf32" or device.type != "cuda":
        yield
        return
    products = torch.backends.cuda.matmul
    # Reading the older of the two settings fails where the newer one was used.
    name, value = (
        ("fp32_precision", "tf32") if hasattr(products, "fp32_precision") else ("allow_tf32", True)
    )
    before = getattr(products, name)
    setattr(products, name, value)
    try:
        yield
    finally:
        setattr(products, name, before)


def autocast(precision: Precision, device: torch.device) -> Any:
    """Context for a forward pass: matrix products in bfloat16 if `precision` says so."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
