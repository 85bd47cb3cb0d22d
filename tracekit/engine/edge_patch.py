"""Interventions on edges, as hooks: a receiver reads what some senders would have written.

Sender s writes o_s to the residual stream in the current run, and c_s in the counterfactual run. A
receiver that would read the stream x reads x + sum_s m_s (c_s - o_s) instead, where m_s is the mask
entry of its edge from s. The stream itself, and what others read of it, do not change. With all
edges patched, every part computes what it computes in the counterfactual run.

In each block, hooks read the stream at its start, compute a separate input for each query, key,
value and the MLP, normalise and project it by the block's own modules, and put in the results. If a
norm follows the attention, a receiver reads the norm of what all heads together would have written.
The inputs of all receivers of a layer are one product of the mask and the changes of the senders.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit.components import ComponentRegistry
from tracekit.components.edges import EdgeGraph, Receivers
from tracekit.engine.patching import Activations, AnyMask, mask_entries
from tracekit.errors import HookPointError
from tracekit.models.architectures import (
    INPUT_HOOKS,
    BlockParts,
    block_parts,
    residual_multiplier,
    stream_hook,
)
from tracekit.models.hooked import Hook, HookedModel, device_of, dtype_of, model_name

_MEMORY = 2**29
"""Bytes for the changes of all senders if no bound is given; more would not be faster."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgePatch:
    """Makes hooks that patch edges, as `MaskedPatch` makes hooks that patch activations."""

    model: HookedModel
    registry: ComponentRegistry
    counterfactual: Activations
    """Counterfactual activations at the hook points of the senders, as in `MaskedPatch`."""
    positions: Bool[Tensor, "row pos"]
    span_numbers: Int[Tensor, "row pos"] | None = None
    first_position: int = 0
    origin: Activations | None = None
    """Activations at all positions from which changes are counted; None: of the current run."""

    def hooks(self, mask: AnyMask, layers: Container[int] | None = None) -> list[Hook]:
        """Hooks that apply a mask, or several, to the receivers of `layers`; as `MaskedPatch`."""
        mask = mask.to(device_of(self.model))
        rows = mask if mask.ndim == 3 else mask.reshape(-1, 1, mask.shape[-1])
        rows = rows.expand(-1, len(self.positions), -1).flatten(0, 1)
        weights: dict[int, Tensor] = {}
        for site in self.registry.sites:
            if layers is None or site.layer in layers:
                weights[site.layer] = mask_entries(site, rows)
        return _EdgeRun(self, weights).hooks() if weights else []

    def make_input_hook(self, level: float) -> Hook:
        """Makes a hook that moves the first block's input towards its counterfactual values."""

        def move(stream: Tensor, hook: Any = None) -> Tensor:
            source = self.counterfactual[stream_hook(0)].to(stream)
            moved, is_patched = stream.clone(), self.patch_mask(1).any(-1)[:, :, None]
            change = source - stream[:, self.covered_positions]
            moved[:, self.covered_positions] += level * is_patched * change
            return moved

        return stream_hook(0), move

    @cached_property
    def covered_positions(self) -> slice:
        """Positions that the counterfactual run covers."""
        source = self.counterfactual[stream_hook(0)]
        return slice(self.first_position, self.first_position + source.shape[1])

    def patch_mask(self, copies: int) -> Bool[Tensor, "row pos span"]:
        """Where each span is patched, of the positions that the counterfactual run covers."""
        patched = self.positions[:, self.covered_positions, None]
        if self.span_numbers is not None and self.registry.spans:
            names = torch.arange(len(self.registry.spans), device=self.span_numbers.device)
            patched = patched & (self.span_numbers[:, self.covered_positions, None] == names)
        return patched.repeat(copies, 1, 1)


@dataclass(eq=False)
class _Bank:
    """Changes that senders make to the stream, in one tensor, and the gradient of this tensor.

    Automatic differentiation would keep a tensor for each receiver; here all add to one gradient.
    """

    values: Float[Tensor, "row pos sender_span d"]
    own: Float[Tensor, "row pos d"] | None = None
    """What all heads of the layer write together in this run, if a norm follows the attention."""
    norm: Callable[[Tensor], Tensor] | None = None
    numbers: list[int] = field(default_factory=list)
    """Numbers of the senders whose changes are filled in."""
    gradient: Tensor | None = None


class _WriteChanges(torch.autograd.Function):
    """Writes the changes of senders into a bank, at the patched positions of each span."""

    @staticmethod
    def forward(ctx: Any, changes: Tensor, patched: Tensor, order: Tensor, bank: _Bank) -> Tensor:
        sizes = (changes.shape[2], patched.shape[2])
        first = len(bank.numbers) * sizes[1]
        ctx.bank, ctx.part, ctx.sizes = bank, slice(first, first + sizes[0] * sizes[1]), sizes
        ctx.save_for_backward(patched)
        target = bank.values[:, :, ctx.part].unflatten(2, sizes)
        torch.mul(changes[:, :, :, None], patched[:, :, None, :, None], out=target)
        return order.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (patched,), gradient = ctx.saved_tensors, None
        if ctx.needs_input_grad[0] and ctx.bank.gradient is not None:
            gradient = ctx.bank.gradient[:, :, ctx.part].unflatten(2, ctx.sizes)
            gradient = (gradient * patched[:, :, None, :, None]).sum(3)
        return gradient, None, *grad_outputs, None


class _ReadChanges(torch.autograd.Function):
    """Changes of some senders, weighted by the mask, for each receiver."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, order: Tensor, bank: _Bank, first: int) -> Tensor:
        ctx.bank, ctx.part = bank, slice(first, first + weights.shape[2])
        ctx.save_for_backward(weights)
        return weights[:, None] @ bank.values[:, :, ctx.part]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (weights,), (gradient,), bank = ctx.saved_tensors, grad_outputs, ctx.bank
        if bank.gradient is None:
            bank.gradient = torch.zeros_like(bank.values)
        # In place, so that each sender gets the sum over all receivers.
        mixed = weights.mT[:, None].expand(-1, gradient.shape[1], -1, -1).flatten(0, 1)
        bank.gradient[:, :, ctx.part].flatten(0, 1).baddbmm_(mixed, gradient.flatten(0, 1))
        of_weights = (gradient @ bank.values[:, :, ctx.part].mT).sum(1)
        return of_weights, gradient.new_zeros(1), None, None


@dataclass(eq=False)
class _EdgeRun:
    """State of one pass, which the hooks of all blocks share."""

    patch: EdgePatch
    weights: dict[int, Float[Tensor, "row edge span"]]
    """Mask entries by layer of the receivers; 0 for edges that are not in the registry."""
    banks: list[_Bank] = field(default_factory=list)
    """The first one holds all senders; heads followed by a norm have one bank for each layer."""
    stream: Tensor | None = None
    """The stream that the attention of the current block reads; later the one its MLP reads."""
    normalised: Tensor | None = None
    """What the queries, keys and values of the current block read."""
    into_mlp: Tensor | None = None
    """Changes from earlier layers that the MLP of the current block reads in addition."""
    order: Tensor | None = None
    """A dummy that every step reads and returns, so that the backward pass runs in this order."""

    @cached_property
    def graph(self) -> EdgeGraph:
        assert self.patch.registry.edges is not None
        return self.patch.registry.edges

    def hooks(self) -> list[Hook]:
        """The hooks of all blocks up to the last receiver."""
        model, last = self.patch.model, max(self.weights)
        hooks: list[Hook] = []

        def add(name: str, function: Callable[..., Tensor | None], *given: Any) -> None:
            def hook(activation: Tensor, hook: Any = None) -> Tensor:
                changed = function(activation, *given)
                return activation if changed is None else changed

            if name not in model.hook_dict:
                raise edges_error(model, f"it has no hook point {name}")
            hooks.append((name, hook))

        for layer in range(min(last + 1, self.graph.n_layers)):
            block, is_read = f"blocks.{layer}.", layer in self.weights
            try:
                parts = block_parts(model, layer)
            except (AttributeError, TypeError) as error:
                problem = f"the parts of its block {layer} cannot be found ({error})"
                raise edges_error(model, problem) from error
            add(stream_hook(layer), self._store_stream, layer, parts)
            for number, name in enumerate(INPUT_HOOKS.values() if is_read else ()):
                add(block + name, self._edit_heads, layer, parts, number)
            add(block + "attn.hook_z", self._store_heads, layer, parts)
            if is_read and parts.between is not None:
                add(block + parts.between, self._store_between)
            if is_read:
                add(block + "mlp.hook_in", self._edit_mlp, layer, parts)
            if layer < last:
                add(block + "hook_mlp_out", self._store_mlp, layer)
        if last == self.graph.n_layers:
            add(stream_hook(last), self._edit_logits)
        return hooks

    def _store_stream(self, stream: Tensor, layer: int, parts: BlockParts) -> None:
        """At the start of a block: stores the stream and what receivers read in addition to it."""
        if layer == 0:
            last = self.graph.receivers[max(self.weights)][-1].n_senders
            room = last if parts.out_norm is None else 1 + self.graph.n_layers
            self._store_changes(self._source_change(stream_hook(0), stream)[:, :, None], [0], room)
        self.stream = stream
        if layer in self.weights:
            *into, mlp = self.graph.receivers[layer]
            # The MLP reads the same earlier senders here, and those of its own layer later.
            n_senders = into[0].n_senders
            every = [self._weights(layer, each)[:, :, :n_senders] for each in (*into, mlp)]
            change = self._changes_read(torch.cat(every, 1))
            self.into_mlp = change[:, :, -1]
            read = parts.norm(self._at_covered_positions(stream)[:, :, None] + change[:, :, :-1])
            self.normalised = rearrange(read, "row pos receiver d -> receiver (row pos) d")

    def _store_heads(self, heads: Tensor, layer: int, parts: BlockParts) -> None:
        change = self._source_change(f"blocks.{layer}.attn.hook_z", heads)
        scale = residual_multiplier(self.patch.model)
        weights = parts.out_weights(self.graph.n_heads).to(heads.dtype) * scale
        by_head = rearrange(change, "row pos head e -> head (row pos) e") @ weights
        if self.graph.by == "blocks":
            by_head = by_head.sum(0, keepdim=True)
        by_head = rearrange(by_head, "head (row pos) d -> row pos head d", row=len(heads))
        first = self.graph.first_sender(layer)
        numbers = range(first, first + by_head.shape[2])
        if parts.out_norm is None:
            self._store_changes(by_head, numbers)
        else:
            own = scale * parts.out(self._at_covered_positions(heads).flatten(2))
            self._store_changes(by_head, numbers, len(numbers), own, parts.out_norm)

    def _store_mlp(self, out: Tensor, layer: int) -> None:
        change = self._source_change(f"blocks.{layer}.hook_mlp_out", out)
        self._store_changes(change[:, :, None], [self.graph.first_sender(layer + 1) - 1])

    def _store_changes(
        self,
        changes: Float[Tensor, "row pos sender d"],
        numbers: Sequence[int],
        new_bank_size: int = 0,
        *norm: Any,
    ) -> None:
        """Stores changes of senders in the first bank, or in a new one for so many senders.

        `norm` are the fields `own` and `norm` of a new bank.
        """
        patched = self.patch.patch_mask(len(changes) // len(self.patch.positions)).to(changes)
        if self.order is None:
            self.order = changes.new_zeros(1, requires_grad=torch.is_grad_enabled())
        if new_bank_size:
            rows, positions, _, d_model = changes.shape
            values = changes.new_empty(rows, positions, new_bank_size * patched.shape[2], d_model)
            self.banks.append(_Bank(values, *norm))
        bank = self.banks[-1 if new_bank_size else 0]
        self.order = _WriteChanges.apply(changes, patched, self.order, bank)
        bank.numbers += numbers

    def _edit_heads(self, activation: Tensor, layer: int, parts: BlockParts, number: int) -> Tensor:
        assert self.normalised is not None
        into = self.graph.receivers[layer][:-1]
        use = into[number if len(into) == len(INPUT_HOOKS) else 0]
        at = sum(len(each.labels) for each in into[: into.index(use)])
        n_heads = self.graph.n_key_value_heads if number else self.graph.n_heads
        weight, bias = parts.projection(number, n_heads)
        copies = n_heads // len(use.labels)
        read = self.normalised[at : at + len(use.labels)].repeat_interleave(copies, 0)
        value = read @ weight.to(read.dtype) + (0.0 if bias is None else bias.to(read.dtype))
        value = rearrange(value, "head (row pos) e -> row pos head e", row=len(activation))
        is_read = self._has_changed_input(layer, use).repeat_interleave(copies, 1)[:, None, :, None]
        whole = activation.reshape(*activation.shape[:2], *value.shape[2:])
        return self._replace_where_read(whole, value, is_read).reshape(activation.shape)

    def _store_between(self, stream: Tensor) -> None:
        self.stream = stream

    def _edit_mlp(self, read: Tensor, layer: int, parts: BlockParts) -> Tensor:
        assert self.stream is not None
        assert self.into_mlp is not None
        mlp, first = self.graph.receivers[layer][-1], self.graph.first_sender(layer)
        change = self.into_mlp
        if mlp.n_senders > first:
            weights = self._weights(layer, mlp)[:, :, first:]
            change = change + self._changes_read(weights, first)[:, :, 0]
        stream = self.stream if parts.mlp_norm is not None else read
        value = self._at_covered_positions(stream) + change
        value = value if parts.mlp_norm is None else parts.mlp_norm(value)
        is_read = self._has_changed_input(layer, mlp)[:, :, None]
        return self._replace_where_read(read, value, is_read)

    def _edit_logits(self, stream: Tensor) -> Tensor:
        (logits,) = self.graph.receivers[self.graph.n_layers]
        change = self._changes_read(self._weights(self.graph.n_layers, logits))[:, :, 0]
        is_read = self._has_changed_input(self.graph.n_layers, logits)[:, :, None]
        value = self._at_covered_positions(stream) + change
        return self._replace_where_read(stream, value, is_read)

    def _changes_read(
        self, weights: Float[Tensor, "row receiver sender span"], first: int = 0
    ) -> Float[Tensor, "row pos receiver d"]:
        """Changes that receivers read, of the senders from number `first` on."""
        n_senders, n_spans = weights.shape[2:]
        total: Any = 0
        for bank in self.banks:
            at = [each for each, n in enumerate(bank.numbers) if first <= n < first + n_senders]
            if at:
                numbers = [bank.numbers[each] - first for each in at]
                picked = weights if len(at) == n_senders else weights[:, :, numbers]
                picked = picked.flatten(2).to(bank.values.dtype)
                part = _ReadChanges.apply(picked, self.order, bank, at[0] * n_spans)
                if bank.norm is not None and bank.own is not None:
                    own = bank.own[:, :, None]
                    part = bank.norm(own + part) - bank.norm(own)
                total = part + total
        return total

    def _weights(self, layer: int, into: Receivers) -> Float[Tensor, "row receiver sender span"]:
        part = self.weights[layer][:, into.start : into.stop]
        return part.unflatten(1, (len(into.labels), into.n_senders))

    def _has_changed_input(self, layer: int, into: Receivers) -> Bool[Tensor, "row receiver"]:
        """Which receivers read something in addition to the stream."""
        return (self._weights(layer, into) != 0).flatten(2).any(-1)

    def _at_covered_positions(self, run: Tensor) -> Tensor:
        return run[:, self.patch.covered_positions]

    def _source_change(self, name: str, run: Tensor) -> Tensor:
        """Counterfactual values minus the values of the run, for one mask after the other."""
        source = self.patch.counterfactual[name].to(run.device, run.dtype)
        origin = run if self.patch.origin is None else self.patch.origin[name].to(run.device)
        now = self._at_covered_positions(origin).unflatten(0, (-1, len(source)))
        return (source[:, : now.shape[2]] - now).flatten(0, 1)

    def _replace_where_read(self, activation: Tensor, value: Tensor, is_read: Tensor) -> Tensor:
        """An activation with other values where a receiver reads more than the stream.

        Elsewhere it keeps its exact value, but has the gradient of `value`.
        """
        now = self._at_covered_positions(activation)
        kept = now.detach() + (value - value.detach()) if value.requires_grad else now
        value = torch.where(is_read, value.to(now.dtype), kept)
        if value.shape[1] == activation.shape[1]:
            return value
        covered = self.patch.covered_positions
        return activation.slice_scatter(value, 1, covered.start, covered.stop)


def max_edge_rows(
    registry: ComponentRegistry, model: HookedModel, length: int, max_memory: int | None
) -> int:
    """Number of rows for which the changes of all senders, with gradients, fit into memory."""
    assert registry.edges is not None
    columns = len(registry.edges.senders) * registry.sites[0].n_spans
    of_row = 2 * columns * length * int(model.cfg.d_model) * dtype_of(model).itemsize
    return max(1, int(_MEMORY if max_memory is None else max_memory) // of_row)


def edges_error(model: HookedModel, reason: str) -> HookPointError:
    """The error for a model in which edges cannot be patched, with a way out that fits it."""
    way_out = ""
    original: Any = getattr(model, "original_model", None)
    if original is None:
        way_out = "Load the model with tk.load_model, or trace"
    elif any(hasattr(module, "lora_A") for module in original.modules()):
        way_out = (
            "The model has adapters that are not merged into its weights: merge them before it is "
            "loaded (PeftModel.merge_and_unload), or trace"
        )
    return HookPointError(
        f"Edges cannot be patched in {model_name(model)}: {reason}. {way_out or 'Trace'} "
        "head-outputs and mlp-blocks instead, and then tracer.paths between them."
    )
