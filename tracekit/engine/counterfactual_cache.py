"""The counterfactual run: its activations at the hook points and positions in use, kept once.

Equal counterfactuals are run and kept once, in chunks of similar length, and only the positions
that are intervened on; `EngineConfig.max_memory` says where they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from tracekit.components import ComponentRegistry, Kind
from tracekit.data.counterfactuals import Constants, constants_of
from tracekit.engine.batch import Batch, length_buckets, pad_noise, to_device
from tracekit.engine.forward import noise_hooks
from tracekit.engine.layout import Layout
from tracekit.engine.skipping import StopPassError
from tracekit.models.hooked import HookedModel, device_of, dtype_of, freeze

Storage = Literal["device", "host", "recomputed"]
"""Where the activations are kept: with the model, in host memory, or nowhere."""
ProgressBar = Callable[[Any, str], Any]


@dataclass(frozen=True, eq=False)
class _Chunk:
    numbers: Int[Tensor, " source"]
    """Which sources, ascending."""
    values: dict[str, Tensor]
    """By hook point: axis 0 is the source; the axis of the position has only positions in use."""


@dataclass(eq=False)
class CounterfactualCache:
    """Counterfactual activations for the rows of any batch, run when a batch first needs them."""

    model: HookedModel
    layout: Layout
    registry: ComponentRegistry
    max_batch_size: int
    max_memory: int | None = None
    """Bytes that kept activations may take on the model's device."""
    progress_bar: ProgressBar = lambda items, label: items
    first: Int[Tensor, " source"] | None = None
    """Sources that are run and kept first; others are run when a batch asks for one of them."""

    def __post_init__(self) -> None:
        self._kinds = self.registry.kinds_by_hook
        is_used = self.layout.source_positions
        # Slot k of a source is its k-th position in use; unused slots point behind the last one.
        width = is_used.shape[1]
        self._counts = is_used.sum(1)
        self._slots = torch.where(is_used, torch.arange(width), width).sort(1).values
        self._slots = self._slots[:, : int(self._counts.max())]
        self._contiguous = bool((is_used.sort(1, descending=True).values == is_used).all())
        self.constants: Constants | None = constants_of(self.layout.counterfactuals)
        """The values, if they are the same everywhere."""
        sources = torch.arange(len(self.layout.source_lengths))
        first = sources if self.first is None else self.first
        self._lacking = [first, sources[~torch.isin(sources, first)]]
        self._chunks: list[_Chunk] = []
        self.storage: Storage | None = None
        """Where the activations are; decided when a batch first asks for them."""

    def activations_for(self, batch: Batch) -> dict[str, Tensor]:
        """Activations for the rows of a batch, by hook point.

        They cover positions `batch.first_position` to `batch.n_positions - 1`, and mean nothing
        where nothing is intervened on.
        """
        if batch.source_index is None:
            return self._source_activations(batch)
        # Activations of other positions of the sources are put where they are used.
        covered = slice(batch.first_position, batch.n_positions)
        index = torch.where(batch.positions[:, covered], batch.source_index[:, covered], 0)
        whole = self._source_activations(
            replace(batch, first_position=0, n_positions=int(index.max()) + 1, source_index=None)
        )
        moved = {}
        for name, values in whole.items():
            at = to_device(index, values.device)
            rows = torch.arange(len(at), device=values.device)[:, None]
            dim = self._kinds[name].position_dim
            moved[name] = values.movedim(dim, 1)[rows, at].movedim(1, dim)
        return moved

    def _source_activations(self, batch: Batch) -> dict[str, Tensor]:
        if self.constants is not None:
            first, stop = batch.first_position, batch.n_positions
            values = {}
            for name, kind in self._kinds.items():
                value = self.constants.activation(name, kind, first, stop)
                values[name] = value.expand(len(batch.sources), *value.shape)
            return values
        while self.storage != "recomputed" and any(
            torch.isin(batch.sources, numbers).any() for numbers in self._lacking
        ):
            self._run_and_keep(self._lacking[0])
        chunks = self._chunks or [self._run_sources(batch.sources.unique())]
        parts = []
        for chunk in chunks:
            rows = torch.isin(batch.sources, chunk.numbers).nonzero()[:, 0]
            if len(rows):
                parts.append((chunk, rows, torch.searchsorted(chunk.numbers, batch.sources[rows])))
        return {name: self._assemble(name, parts, batch) for name in self._kinds}

    def _assemble(
        self, name: str, parts: Sequence[tuple[_Chunk, Tensor, Tensor]], batch: Batch
    ) -> Tensor:
        """Activations of one hook point for every row of a batch, from the chunks they lie in."""
        like = parts[0][0].values[name]
        device = device_of(self.model) if self.storage == "host" else like.device
        kind, first, n_positions = self._kinds[name], batch.first_position, batch.n_positions
        shape = list(like.shape)
        shape[0], shape[kind.position_dim] = len(batch.sources), n_positions - first
        if kind.key_dim is not None:
            shape[kind.key_dim] = n_positions
        assembled = like.new_zeros(shape, device=device)
        for chunk, rows, index in parts:
            values = chunk.values[name]
            values = values[to_device(index, values.device)]
            values = to_device(_narrow_keys(values, kind, n_positions), device)
            slots = self._slots[chunk.numbers[index], : values.shape[kind.position_dim]]
            target = assembled
            if kind.key_dim is not None:
                target = target.narrow(kind.key_dim, 0, values.shape[kind.key_dim])
            target, values = (each.movedim(kind.position_dim, 1) for each in (target, values))
            if self._contiguous and first == 0:
                # Slots are positions: one copy instead of an index for each of them.
                width = min(n_positions, values.shape[1])
                target[to_device(rows, device), :width] = values[:, :width]
            else:
                row, slot = ((slots >= first) & (slots < n_positions)).nonzero(as_tuple=True)
                to = (to_device(rows[row], device), to_device(slots[row, slot] - first, device))
                at = (to_device(row, device), to_device(slot, device))
                target[to] = values[at]
        return assembled

    def _run_and_keep(self, sources: Int[Tensor, " source"]) -> None:
        """Runs the next sources and keeps what is in use, if there is room for it."""
        device = device_of(self.model)
        lengths = self.layout.source_lengths[sources]
        beyond = self.layout.sources_beyond_limit[sources]
        parts = length_buckets(lengths, beyond, self.max_batch_size, device)
        batches = [sources[part].sort().values for part in parts]
        # The longest chunk first: it shows whether a pass fits at all.
        chunks: list[_Chunk] = []
        storage = self.storage
        for numbers in self.progress_bar(batches[::-1], "counterfactual run"):
            chunk = self._run_sources(numbers)
            storage = storage or self._choose_storage(chunk, batches, device)
            if storage == "recomputed":
                chunks = []
                break
            if storage == "host":
                values = {name: value.cpu() for name, value in chunk.values.items()}
                chunk = _Chunk(numbers, values)
            chunks.append(chunk)
        # Stored together and last, so that an interrupted run begins again.
        self._chunks, self.storage = self._chunks + chunks, storage
        del self._lacking[0]

    def _choose_storage(
        self, chunk: _Chunk, batches: Sequence[Tensor], device: torch.device
    ) -> Storage:
        needed = 0
        for numbers in batches:
            for name, value in chunk.values.items():
                kind, shape = self._kinds[name], list(value.shape)
                shape[0], shape[kind.position_dim] = len(numbers), int(self._counts[numbers].max())
                if kind.key_dim is not None:
                    shape[kind.key_dim] = self._count_positions(numbers)
                needed += value.element_size() * torch.Size(shape).numel()
        if self.max_memory is None or needed <= self.max_memory:
            return "device"
        return "recomputed" if device.type == "cpu" else "host"

    def _count_positions(self, numbers: Tensor) -> int:
        return int(self.layout.source_positions[numbers].any(0).nonzero().max()) + 1

    def _run_sources(self, numbers: Int[Tensor, " source"]) -> _Chunk:
        """Runs some sources and keeps their activations at the positions in use."""
        layout = self.layout
        width = int(layout.source_lengths[numbers].max())
        counterfactuals = [layout.counterfactuals[number] for number in numbers.tolist()]
        # All come from one source, so one model runs them.
        model = counterfactuals[0].run_by() or self.model
        sequences = layout.sources.select_rows(numbers, width).to(device_of(model))
        n_positions = self._count_positions(numbers)
        slots = self._slots[numbers, : int(self._counts[numbers].max())].clamp(max=n_positions - 1)
        row = torch.arange(len(numbers))[:, None]
        kept: dict[str, Tensor] = {}

        def keep(activation: Tensor, hook: Any = None, *, name: str) -> Tensor:
            kind = self._kinds[name]
            values = activation.detach()
            rows = list(values)
            changed = [c.values_from(v) for c, v in zip(counterfactuals, rows, strict=True)]
            # Prompts and noise use the activation unchanged, which needs no copy.
            if any(new is not old for new, old in zip(changed, rows, strict=True)):
                values = torch.stack(changed).reshape(values.shape)
            values = _narrow_keys(values, kind, n_positions)
            at = (to_device(row, values.device), to_device(slots, values.device))
            values = values.movedim(kind.position_dim, 1)[at].movedim(1, kind.position_dim)
            kept[name] = values.contiguous()
            if len(kept) == len(self._kinds):
                raise StopPassError(activation)
            return activation

        hooks = noise_hooks(pad_noise([c.added_to_embeddings() for c in counterfactuals], width))
        hooks += [(name, partial(keep, name=name)) for name in self._kinds]
        inputs = sequences.model_inputs(dtype_of(model))
        with freeze(model), torch.no_grad(), suppress(StopPassError):
            model.run_with_hooks(sequences.tokens, fwd_hooks=hooks, **inputs)
        return _Chunk(numbers, kept)


def _narrow_keys(values: Tensor, kind: Kind, n_positions: int) -> Tensor:
    """Drops keys behind the positions in use, which causal models cannot attend to."""
    if kind.key_dim is None:
        return values
    return values.narrow(kind.key_dim, 0, min(n_positions, values.shape[kind.key_dim]))
