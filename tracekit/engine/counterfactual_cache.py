"""The counterfactual run: its activations at the hook points and positions in use, kept once.

Equal counterfactual prompts are run and kept once (Professions has 34 for 2703 examples), in
chunks of similar length, and of a source only the positions that are intervened on. Beyond
`max_memory` bytes, activations are kept in host memory (model on an accelerator) or computed again
for every batch (model on the CPU, where there is no other memory to go to).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from tracekit.components import ComponentRegistry
from tracekit.engine.batch import Batch, Layout
from tracekit.engine.patching import Hook, position_axis
from tracekit.models.loading import HookedModel, device_of, dtype_of, frozen, residual_hook, sent

Kept = Literal["device", "host", "recomputed"]
Bar = Callable[[Any, str], Any]


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Sources that were run together."""

    numbers: Int[Tensor, " source"]
    """Which, ascending."""
    values: dict[str, Tensor]
    """By hook point: the first axis is the source; where the activation has positions, there are
    slots: the positions in use, one after the other."""


class Sources:
    """Counterfactual activations for the rows of any batch."""

    def __init__(
        self,
        model: HookedModel,
        layout: Layout,
        registry: ComponentRegistry,
        *,
        batch_size: int,
        max_memory: int | None = None,
        bar: Bar = lambda items, label: items,
    ) -> None:
        """Runs nothing yet.

        Args:
            model: The model.
            layout: Holds the sources.
            registry: Says which hook points are in use.
            batch_size: Sources per pass.
            max_memory: Bytes that kept activations may take on the model's device.
            bar: Wraps a loop in a progress bar.
        """
        self._model = model
        self._layout = layout
        self._axes = {site.hook_name: position_axis(site) for site in registry.sites}
        self._batch_size = batch_size
        self._max_memory = max_memory
        self._bar = bar
        used = layout.source_positions
        # Slot k of a source is its k-th position in use; unused slots point behind the last one.
        width = used.shape[1]
        self._counts = used.sum(1)
        self._slots = torch.where(used, torch.arange(width), width).sort(1).values
        self._slots = self._slots[:, : int(self._counts.max())]
        self._contiguous = bool((used.sort(1, descending=True).values == used).all())
        self._chunks: list[_Chunk] | None = None
        self.kept: Kept | None = None
        """Where the activations are; known once a batch has asked for them."""

    def of(self, batch: Batch) -> dict[str, Tensor]:
        """Activations for the rows of a batch, by hook point.

        They cover positions 0 to `batch.span - 1`; where nothing is intervened on, they hold
        nothing of meaning.
        """
        if self.kept is None:
            self._keep()
        chunks = self._chunks or [self._run(batch.sources.unique())]
        parts = []
        for chunk in chunks:
            rows = torch.isin(batch.sources, chunk.numbers).nonzero()[:, 0]
            if len(rows):
                parts.append((chunk, rows, torch.searchsorted(chunk.numbers, batch.sources[rows])))
        return {name: self._assemble(name, parts, batch) for name in self._axes}

    def _assemble(
        self, name: str, parts: Sequence[tuple[_Chunk, Tensor, Tensor]], batch: Batch
    ) -> Tensor:
        """Activations of one hook point for every row of a batch, from the chunks they lie in."""
        like = parts[0][0].values[name]
        # Where their layer lies, unless they were sent away.
        device = device_of(self._model) if self.kept == "host" else like.device
        axis, span = self._axes[name], batch.span
        shape = list(like.shape)
        shape[0], shape[axis] = len(batch.sources), span
        if axis == 2:
            shape[3] = span
        whole = like.new_zeros(shape, device=device)
        for chunk, rows, picked in parts:
            values = chunk.values[name]
            values = values[sent(picked, values.device)]
            values = sent(values[..., :span] if axis == 2 else values, device)
            into = whole.narrow(3, 0, values.shape[3]) if axis == 2 else whole
            slots = self._slots[chunk.numbers[picked], : values.shape[axis]]
            if self._contiguous:
                width = min(span, values.shape[axis])
                into = into.narrow(axis, 0, width)
                into[sent(rows, device)] = values.narrow(axis, 0, width)
            else:
                row, slot = (slots < span).nonzero(as_tuple=True)
                to = (sent(rows[row], device), sent(slots[row, slot], device))
                at = (sent(row, device), sent(slot, device))
                into.movedim(axis, 1)[to] = values.movedim(axis, 1)[at]
        return whole

    def _keep(self) -> None:
        """Runs all sources and keeps what is in use, where there is room for it."""
        device = device_of(self._model)
        order = [
            numbers.sort().values
            for numbers in self._layout.source_batches(self._batch_size, device)
        ]
        # The longest chunk first: it shows whether a pass fits at all.
        chunks: list[_Chunk] = []
        kept: Kept | None = None
        for numbers in self._bar(order[::-1], "counterfactual run"):
            chunk = self._run(numbers)
            kept = kept or self._where(chunk, order, device)
            if kept == "recomputed":
                break
            if kept == "host":
                values = {name: value.cpu() for name, value in chunk.values.items()}
                chunk = _Chunk(numbers, values)
            chunks.append(chunk)
        # Together and last: a run that was interrupted begins again.
        self._chunks, self.kept = chunks, kept

    def _where(self, chunk: _Chunk, order: Sequence[Tensor], device: torch.device) -> Kept:
        needed = sum(
            self._bytes(numbers, value, self._axes[name])
            for numbers in order
            for name, value in chunk.values.items()
        )
        if self._max_memory is None or needed <= self._max_memory:
            return "device"
        return "recomputed" if device.type == "cpu" else "host"

    def _bytes(self, numbers: Tensor, like: Tensor, axis: int) -> int:
        shape = list(like.shape)
        shape[0], shape[axis] = len(numbers), int(self._counts[numbers].max())
        if axis == 2:
            shape[3] = self._span(numbers)
        return like.element_size() * torch.Size(shape).numel()

    def _span(self, numbers: Tensor) -> int:
        """One past the last position in use."""
        return int(self._layout.source_positions[numbers].any(0).nonzero().max()) + 1

    def _run(self, numbers: Int[Tensor, " source"]) -> _Chunk:
        layout, device = self._layout, device_of(self._model)
        width = int(layout.source_lengths[numbers].max())
        sequences = layout.sources.rows(numbers, width).to(device)
        span = self._span(numbers)
        count = int(self._counts[numbers].max())
        slots = self._slots[numbers, :count].clamp(max=span - 1)
        row = torch.arange(len(numbers))[:, None]
        caught: dict[str, Tensor] = {}

        def catch(activation: Tensor, hook: Any = None, *, name: str) -> Tensor:
            axis, value = self._axes[name], activation.detach()
            value = value[..., :span] if axis == 2 else value
            at = (sent(row, value.device), sent(slots, value.device))
            caught[name] = value.movedim(axis, 1)[at].movedim(1, axis).contiguous()
            return activation

        hooks = (
            []
            if layout.source_noise is None
            else [_add_noise(layout.source_noise[numbers, :width])]
        )
        hooks += [(name, _named(catch, name)) for name in self._axes]
        inputs = sequences.inputs(dtype_of(self._model))
        with frozen(self._model), torch.no_grad():
            self._model.run_with_hooks(sequences.tokens, fwd_hooks=hooks, **inputs)
        return _Chunk(numbers, caught)


def _named(catch: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    return lambda activation, hook=None: catch(activation, hook, name=name)


def _add_noise(noise: Tensor) -> Hook:
    def disturb(activation: Tensor, hook: Any = None) -> Tensor:
        return activation + noise.to(activation.device, activation.dtype)

    return residual_hook(0), disturb
