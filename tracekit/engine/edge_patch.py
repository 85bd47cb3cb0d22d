"""Interventions on edges, as hooks: a receiver reads what some senders would have written.

Sender s writes o_s to the residual stream in the current run, and c_s in the counterfactual run. A
receiver that would read the stream x reads x + sum_s m_s (c_s - o_s) instead, where m_s is the mask
entry of its edge from s. The stream itself, and what others read of it, do not change. With all
edges patched, every part computes what it computes in the counterfactual run.

In each block, hooks read the stream at its start, compute a separate input for each query, key,
value and the MLP, normalise and project it by the block's own modules, and put in the results. If a
norm follows the attention, a receiver reads the norm of what all heads together would have written.
The inputs of all receivers of a layer are one product of the mask and the changes of the senders.

Without gradients, only the receivers and senders of patched edges take part. If fewer edges are
kept than patched, the pass starts from the counterfactual stream x' instead: all senders write c_s
to it at the patched tokens, and a receiver reads x' + sum_s (m_s - 1) (c_s - o_s) there. This is
also exact where zeros replace almost all of the stream, of which x + sum_s m_s (c_s - o_s) would
leave rounding, which norms enlarge. `PartSkipper` leaves out the parts that no kept edge leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit.components import ComponentRegistry
from tracekit.components.edges import EdgeGraph
from tracekit.engine.patching import Activations, AnyMask, mask_entries
from tracekit.engine.skipping import KnownOutputs, project_heads, repeat_values
from tracekit.errors import HookPointError
from tracekit.models.architectures import (
    ATTENTION,
    INPUT_HOOKS,
    MLP,
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
        rows = self._by_row(mask)
        weights: dict[int, Tensor] = {}
        for site in self.registry.sites:
            if layers is None or site.layer in layers:
                weights[site.layer] = mask_entries(site, rows)
        if not weights:
            return []
        every = {
            layer: torch.ones(len(ends), dtype=torch.bool)
            for layer, ends in enumerate(self.graph.edge_ends_by_layer)
            if layer in weights
        }
        return _EdgeRun(self, weights, _ActiveEdges.of(self.graph, every)).hooks()

    def sparse_pass(
        self, masks: AnyMask, *, starts_from_counterfactual: bool
    ) -> tuple[list[Hook], KnownOutputs]:
        """Hooks that apply masks to all receivers, without gradients.

        If the pass starts from the counterfactual stream, every edge of the model must be in the
        registry. The second value then has the parts that no kept edge leaves, which may be left
        out if all tokens are patched.
        """
        is_moved = (masks != starts_from_counterfactual).flatten(0, -2).any(0).float().cpu()
        edges = {site.layer: mask_entries(site, is_moved).any(-1) for site in self.registry.sites}
        active = _ActiveEdges.of(self.graph, edges)
        rows = self._by_row(masks - float(starts_from_counterfactual))
        weights = {
            site.layer: mask_entries(site, rows)
            for site in self.registry.sites
            if active.senders_into[site.layer].any()
        }
        run = _EdgeRun(self, weights, active, starts_from_counterfactual)
        return run.hooks(), run.known_outputs() if starts_from_counterfactual else {}

    def _by_row(self, mask: AnyMask) -> Float[Tensor, "row component"]:
        mask = mask.to(device_of(self.model))
        rows = mask if mask.ndim == 3 else mask.reshape(-1, 1, mask.shape[-1])
        return rows.expand(-1, len(self.positions), -1).flatten(0, 1)

    @property
    def graph(self) -> EdgeGraph:
        """Senders and receivers of the model."""
        assert self.registry.edges is not None
        return self.registry.edges

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


@dataclass(frozen=True)
class _ActiveEdges:
    """Receivers that read something in addition to the stream, and the senders of what they read.

    Both are on the CPU.
    """

    receivers: list[list[Bool[Tensor, " _label"]]]
    """By layer, for each of its groups in `EdgeGraph.receivers`."""
    senders_into: Bool[Tensor, "layer sender"]
    """The senders whose changes are read in each layer."""

    @classmethod
    def of(cls, graph: EdgeGraph, edges: Mapping[int, Bool[Tensor, " edge"]]) -> _ActiveEdges:
        """The two ends of edges, which are given by the layer that they enter."""
        receivers: list[list[Tensor]] = []
        senders_into = torch.zeros(len(graph.receivers), len(graph.senders), dtype=torch.bool)
        for layer, groups in enumerate(graph.receivers):
            chosen = edges.get(layer, torch.zeros(groups[-1].stop, dtype=torch.bool))
            by_group = [chosen[g.start : g.stop].view(len(g.labels), g.n_senders) for g in groups]
            receivers.append([each.any(1) for each in by_group])
            for each in by_group:
                senders_into[layer, : each.shape[1]] |= each.any(0)
        return cls(receivers, senders_into)

    @cached_property
    def senders(self) -> Bool[Tensor, " sender"]:
        """The senders whose changes are read in any layer."""
        return self.senders_into.any(0)

    @property
    def n_layers(self) -> int:
        """One more than the last layer with such receivers."""
        return max(self.senders_into.any(1).nonzero()[:, 0].tolist(), default=-1) + 1


@dataclass(eq=False)
class _Bank:
    """Changes that senders make to the stream, in one tensor, and the gradient of this tensor.

    Automatic differentiation would keep a tensor for each receiver; here all add to one gradient.
    """

    values: Float[Tensor, "row sender_span pos d"]
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
        sizes = (changes.shape[1], patched.shape[1])
        first = len(bank.numbers) * sizes[1]
        ctx.bank, ctx.part, ctx.sizes = bank, slice(first, first + sizes[0] * sizes[1]), sizes
        ctx.save_for_backward(patched)
        target = bank.values[:, ctx.part].unflatten(1, sizes)
        torch.mul(changes[:, :, None], patched[:, None, :, :, None], out=target)
        return order.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (patched,), gradient = ctx.saved_tensors, None
        if ctx.needs_input_grad[0] and ctx.bank.gradient is not None:
            gradient = ctx.bank.gradient[:, ctx.part].unflatten(1, ctx.sizes)
            gradient = (gradient * patched[:, None, :, :, None]).sum(2)
        return gradient, None, *grad_outputs, None


class _ReadChanges(torch.autograd.Function):
    """Changes of some senders, weighted by the mask, for each receiver."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, order: Tensor, bank: _Bank, columns: slice | list[int]
    ) -> Tensor:
        ctx.bank, ctx.part = bank, columns
        ctx.save_for_backward(weights)
        values = bank.values[:, columns]
        return (weights @ values.flatten(2)).unflatten(2, values.shape[2:])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (weights,), (gradient,), bank = ctx.saved_tensors, grad_outputs, ctx.bank
        if bank.gradient is None:
            bank.gradient = torch.zeros_like(bank.values)
        gradient, values = gradient.flatten(2), bank.values[:, ctx.part].flatten(2)
        # In place, so that each sender gets the sum over all receivers.
        bank.gradient[:, ctx.part].flatten(2).baddbmm_(weights.mT, gradient)
        of_weights = gradient @ values.mT
        return of_weights, gradient.new_zeros(1), None, None


@dataclass(eq=False)
class _EdgeRun:
    """State of one pass, which the hooks of all blocks share."""

    patch: EdgePatch
    weights: dict[int, Float[Tensor, "row edge span"]]
    """Factors of the changes of senders, by layer of the receivers; 0 where nothing is read."""
    active: _ActiveEdges
    """The receivers that are edited, and the senders whose changes they read."""
    starts_from_counterfactual: bool = False
    bank: _Bank | None = None
    """Holds the active senders, but for heads that a norm follows."""
    banks_of_heads: list[_Bank] = field(default_factory=list)
    """One for each layer whose active heads a norm follows."""
    stream: Tensor | None = None
    """The stream that the attention of the current block reads; later the one its MLP reads."""
    normalised: Tensor | None = None
    """What the active queries, keys and values of the current block read."""
    into_mlp: Tensor | None = None
    """Changes from earlier layers that the MLP of the current block reads in addition."""
    order: Tensor | None = None
    """A dummy that every step reads and returns, so that the backward pass runs in this order."""

    @property
    def graph(self) -> EdgeGraph:
        return self.patch.graph

    @cached_property
    def parts(self) -> list[BlockParts]:
        """The parts of the blocks that have hooks: up to the last receiver, or of all."""
        model, n_blocks = self.patch.model, self.graph.n_layers
        if not self.starts_from_counterfactual:
            n_blocks = min(n_blocks, self.active.n_layers)
        parts: list[BlockParts] = []
        for layer in range(n_blocks):
            try:
                parts.append(block_parts(model, layer))
            except (AttributeError, TypeError) as error:
                problem = f"the parts of its block {layer} cannot be found ({error})"
                raise edges_error(model, problem) from error
        return parts

    def hooks(self) -> list[Hook]:
        """The hooks of all blocks."""
        n_layers, restores = self.graph.n_layers, self.starts_from_counterfactual
        # A bridge makes this dictionary anew each time.
        model, hook_dict = self.patch.model, self.patch.model.hook_dict
        hooks: list[Hook] = []

        def add(name: str, function: Callable[..., Tensor | None], *given: Any) -> None:
            def hook(activation: Tensor, hook: Any = None) -> Tensor:
                changed = function(activation, *given)
                return activation if changed is None else changed

            if name not in hook_dict:
                raise edges_error(model, f"it has no hook point {name}")
            hooks.append((name, hook))

        if restores or self.active.senders[0]:
            add(stream_hook(0), self._store_embedding)
        for layer, parts in enumerate(self.parts):
            block = f"blocks.{layer}."
            *uses, mlp = [bool(each.any()) for each in self.active.receivers[layer]]
            if mlp or any(uses):
                add(stream_hook(layer), self._store_stream, layer, parts)
            for number, name in enumerate(INPUT_HOOKS.values()):
                if uses[self._group_of(layer, number)]:
                    add(block + name, self._edit_heads, layer, parts, number)
            if restores or self._active_heads(layer):
                add(block + "attn.hook_z", self._store_heads, layer, parts)
            if mlp and parts.between is not None:
                add(block + parts.between, self._store_between)
            if mlp:
                add(block + "mlp.hook_in", self._edit_mlp, layer, parts)
            if restores or self.active.senders[self._mlp(layer)]:
                add(block + "hook_mlp_out", self._store_mlp, layer)
        if self.active.n_layers > n_layers:
            add(stream_hook(n_layers), self._edit_logits)
        return hooks

    def known_outputs(self) -> KnownOutputs:
        """What the parts write that no kept edge leaves."""
        outputs: KnownOutputs = {}
        for layer, parts in enumerate(self.parts):
            if not self._active_heads(layer):
                heads = partial(self._counterfactual, f"blocks.{layer}.attn.hook_z")
                outputs[layer, ATTENTION] = partial(project_heads, heads=heads, out=parts.out)
            if not self.active.senders[self._mlp(layer)]:
                outputs[layer, MLP] = partial(self._counterfactual, f"blocks.{layer}.hook_mlp_out")
        return outputs

    def _active_heads(self, layer: int) -> list[int]:
        first = self.graph.first_sender(layer)
        heads = self.active.senders[first : first + self.graph.n_in_attention]
        return heads.nonzero()[:, 0].tolist()

    def _mlp(self, layer: int) -> int:
        """Number of the MLP of a layer as a sender."""
        return self.graph.first_sender(layer + 1) - 1

    def _group_of(self, layer: int, number: int) -> int:
        """Number of the group that receives queries (0), keys (1) or values (2)."""
        return number if len(self.graph.receivers[layer]) > len(INPUT_HOOKS) else 0

    def _store_embedding(self, stream: Tensor) -> Tensor | None:
        """Stores the change of the embedding."""
        if self.active.senders[0]:
            change = self._source_change(stream_hook(0), stream)
            self._store_changes(change[:, None], [0])
        return self._restore(stream_hook(0), stream)

    def _store_stream(self, stream: Tensor, layer: int, parts: BlockParts) -> None:
        """At the start of a block: stores the stream and what receivers read in addition to it."""
        self.stream = stream
        groups = self.graph.receivers[layer]
        # The MLP reads the same earlier senders here, and those of its own layer later.
        n_senders = groups[0].n_senders
        every = [self._weights(layer, number)[:, :, :n_senders] for number in range(len(groups))]
        stream = self._at_covered_positions(stream)
        changes = self._changes_read(layer, torch.cat(every, 1), stream)
        # This is another receiver's if the MLP is not active, and is not read then.
        self.into_mlp = changes[:, -1]
        n_uses = changes.shape[1] - every[-1].shape[1]
        if n_uses:
            read = parts.norm(stream[:, None] + changes[:, :n_uses])
            self.normalised = rearrange(read, "row receiver pos d -> receiver (row pos) d")

    def _store_heads(self, heads: Tensor, layer: int, parts: BlockParts) -> Tensor | None:
        name, active = f"blocks.{layer}.attn.hook_z", self._active_heads(layer)
        restored = self._restore(name, heads)
        if active:
            change, scale = self._source_change(name, heads), residual_multiplier(self.patch.model)
            weights = parts.out_weights(self.graph.n_heads).to(heads.dtype) * scale
            if len(active) < self.graph.n_in_attention:
                change, weights = change[:, :, active], weights[active]
            by_head = rearrange(change, "row pos head e -> head (row pos) e") @ weights
            if self.graph.by == "blocks":
                by_head = by_head.sum(0, keepdim=True)
            by_head = rearrange(by_head, "head (row pos) d -> row head pos d", row=len(heads))
            first, norm = self.graph.first_sender(layer), ()
            if parts.out_norm is not None:
                whole = heads if restored is None else restored
                own = scale * parts.out(self._at_covered_positions(whole).flatten(2))
                norm = (own, parts.out_norm)
            self._store_changes(by_head, [first + head for head in active], *norm)
        return restored

    def _store_mlp(self, out: Tensor, layer: int) -> Tensor | None:
        name, number = f"blocks.{layer}.hook_mlp_out", self._mlp(layer)
        if self.active.senders[number]:
            self._store_changes(self._source_change(name, out)[:, None], [number])
        return self._restore(name, out)

    def _store_changes(
        self, changes: Float[Tensor, "row sender pos d"], numbers: Sequence[int], *norm: Any
    ) -> None:
        """Stores changes of senders in `bank` or, if a norm follows them, in a new one.

        `norm` are the fields `own` and `norm` of the new bank.
        """
        patched = self.patch.patch_mask(len(changes) // len(self.patch.positions)).mT.to(changes)
        if self.order is None:
            self.order = changes.new_zeros(1, requires_grad=torch.is_grad_enabled())
        bank = None if norm else self.bank
        if bank is None:
            n_columns = (len(numbers) if norm else self._n_in_bank) * patched.shape[1]
            rows, _, *sizes = changes.shape
            bank = _Bank(changes.new_empty(rows, n_columns, *sizes), *norm)
            if norm:
                self.banks_of_heads.append(bank)
            else:
                self.bank = bank
        self.order = _WriteChanges.apply(changes, patched, self.order, bank)
        bank.numbers += numbers

    @cached_property
    def _n_in_bank(self) -> int:
        """Number of active senders that no norm follows."""
        senders = self.active.senders
        if self.parts[0].out_norm is not None:
            senders = senders[[0, *map(self._mlp, range(self.graph.n_layers))]]
        return int(senders.sum())

    def _edit_heads(self, activation: Tensor, layer: int, parts: BlockParts, number: int) -> Tensor:
        assert self.normalised is not None
        group, are_active = self._group_of(layer, number), self.active.receivers[layer]
        use, is_active = self.graph.receivers[layer][group], are_active[group]
        at = sum(int(each.sum()) for each in are_active[:group])
        n_heads = self.graph.n_key_value_heads if number else self.graph.n_heads
        weight, bias = parts.projection(number, n_heads)
        copies = n_heads // len(use.labels)
        read = self.normalised[at : at + int(is_active.sum())].repeat_interleave(copies, 0)
        heads = _index_of(is_active.repeat_interleave(copies))
        value = read @ weight[heads].to(read.dtype)
        if bias is not None:
            value = value + bias[heads].to(read.dtype)
        value = rearrange(value, "head (row pos) e -> row pos head e", row=len(activation))
        is_read = self._has_changed_input(layer, group).repeat_interleave(copies, 1)
        whole = activation.reshape(*activation.shape[:2], n_heads, value.shape[-1])
        edited = self._replace_where_read(whole[:, :, heads], value, is_read[:, None, :, None])
        if edited.shape != whole.shape:
            picked, edited = edited, whole.clone()
            edited[:, :, heads] = picked
        return edited.reshape(activation.shape)

    def _store_between(self, stream: Tensor) -> None:
        self.stream = stream

    def _edit_mlp(self, read: Tensor, layer: int, parts: BlockParts) -> Tensor:
        assert self.stream is not None
        assert self.into_mlp is not None
        first, n_senders = self.graph.first_sender(layer), self.graph.receivers[layer][-1].n_senders
        stream = self._at_covered_positions(self.stream if parts.mlp_norm is not None else read)
        change = self.into_mlp
        if n_senders > first:
            weights = self._weights(layer, -1)[:, :, first:]
            change = change + self._changes_read(layer, weights, stream, first)[:, 0]
        value = stream + change
        value = value if parts.mlp_norm is None else parts.mlp_norm(value)
        is_read = self._has_changed_input(layer, -1)[:, :, None]
        return self._replace_where_read(read, value, is_read)

    def _edit_logits(self, stream: Tensor) -> Tensor:
        n_layers, now = self.graph.n_layers, self._at_covered_positions(stream)
        value = now + self._changes_read(n_layers, self._weights(n_layers, 0), now)[:, 0]
        is_read = self._has_changed_input(n_layers, 0)[:, :, None]
        return self._replace_where_read(stream, value, is_read)

    def _changes_read(
        self,
        layer: int,
        weights: Float[Tensor, "row receiver sender span"],
        stream: Float[Tensor, "row pos d"],
        first: int = 0,
    ) -> Float[Tensor, "row receiver pos d"]:
        """Changes that receivers of a stream read, of the senders from number `first` on."""
        n_receivers, n_senders, n_spans = weights.shape[1:]
        is_read = self.active.senders_into[layer].tolist()
        total: Any = None
        for bank in filter(None, (self.bank, *self.banks_of_heads)):
            at = [each for each, n in enumerate(bank.numbers) if first <= n < first + n_senders]
            at_read = [each for each in at if is_read[bank.numbers[each]]]
            if at_read:
                columns: slice | list[int] = slice(at[0] * n_spans, (at[-1] + 1) * n_spans)
                # A copy of the columns that are read pays where they are few.
                if 2 * len(at_read) < len(at):
                    at = at_read
                    columns = [each * n_spans + span for each in at for span in range(n_spans)]
                numbers = [bank.numbers[each] - first for each in at]
                picked = weights if len(at) == n_senders else weights[:, :, numbers]
                picked = picked.flatten(2).to(bank.values.dtype)
                part = _ReadChanges.apply(picked, self.order, bank, columns)
                if bank.norm is not None and bank.own is not None:
                    own = bank.own[:, None]
                    part = bank.norm(own + part) - bank.norm(own)
                total = part if total is None else part + total
        if total is None:
            return stream.new_zeros(()).expand(len(stream), n_receivers, *stream.shape[1:])
        return total

    def _weights(self, layer: int, group: int) -> Float[Tensor, "row receiver sender span"]:
        """Factors of the changes that the active receivers of a group read."""
        into = self.graph.receivers[layer][group]
        part = self.weights[layer][:, into.start : into.stop]
        part = part.unflatten(1, (len(into.labels), into.n_senders))
        return part[:, _index_of(self.active.receivers[layer][group])]

    def _has_changed_input(self, layer: int, group: int) -> Bool[Tensor, "row receiver"]:
        """Which active receivers read something in addition to the stream, row by row."""
        return (self._weights(layer, group) != 0).flatten(2).any(-1)

    def _counterfactual(self, name: str, like: Tensor) -> Tensor:
        """Counterfactual values at a hook point, for the rows and positions of another tensor."""
        first = self.patch.covered_positions.start
        return repeat_values(self.patch.counterfactual[name], like, first)

    def _restore(self, name: str, activation: Tensor) -> Tensor | None:
        """An activation with counterfactual values, if the pass starts from them; else None."""
        if not self.starts_from_counterfactual:
            return None
        is_patched = self.patch.patch_mask(1).any(-1)
        is_patched = repeat_values(is_patched, activation, self.patch.covered_positions.start) > 0
        is_patched = is_patched.view(*is_patched.shape, *[1] * (activation.ndim - 2))
        return torch.where(is_patched, self._counterfactual(name, activation), activation)

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


def _index_of(is_chosen: Bool[Tensor, " entry"]) -> slice | Int[Tensor, " chosen"]:
    """Picks the chosen entries of an axis: a slice if it is all of them, so that none is copied."""
    return slice(None) if is_chosen.all() else is_chosen.nonzero()[:, 0]


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
