"""Effects of paths: a sender's change reaches the metric through one receiver alone.

Path patching (Wang et al., Interpretability in the Wild, 2023, section 3) with everything else
frozen, MLPs too; `docs/paths.md` has its steps. The clean stream is computed once per batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor

from tracekit._util import progress as _progress
from tracekit.components import ComponentRegistry, ComponentSet, Site
from tracekit.engine.batch import Batch
from tracekit.engine.counterfactual_cache import CounterfactualCache
from tracekit.engine.forward import replace_by
from tracekit.engine.patching import Activations, MaskedPatch
from tracekit.engine.prepared import PreparedData
from tracekit.engine.skipping import ResidualStream
from tracekit.errors import ComponentError, HookPointError
from tracekit.models.architectures import (
    ATTENTION,
    INPUT_HOOKS,
    MLP,
    READS,
    PathInput,
    out_hook,
    stream_hook,
)
from tracekit.models.hooked import Hook, is_close, is_exact, model_name

_EXAMPLES = 2


@dataclass(frozen=True)
class PathRow:
    """A path whose effect is measured."""

    sender: int | None
    """Flat index; None: the embedding."""
    receiver: int | None
    """Flat index; None: the logits."""
    input: PathInput
    """What the sender changes of the receiver's input."""


def path_place(site: Site) -> tuple[int, int]:
    """The layer of a site, and 0 if it is in the attention, 1 if it is in the MLP."""
    hook, name = site.kind.hook, site.kind.name
    if len(site.acts_in) > 1:
        raise ComponentError(
            "Components that act in several layers at once have no place on a path. Trace without "
            "layer_window."
        )
    if hook.startswith("attn.") or hook == "hook_attn_out":
        return site.layer, ATTENTION
    if hook.startswith("mlp.") or hook == "hook_mlp_out":
        return site.layer, MLP
    raise ComponentError(
        f"Components of kind {name!r} add nothing to the residual stream at one place, so no path "
        "begins or ends there. Give parts of attention or MLP layers, such as head-outputs or "
        "mlp-blocks."
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class PathRuns:
    """Measures all paths among some components of a prepared data set."""

    data: PreparedData
    members: ComponentSet
    by_input: bool
    """Whether paths into attention are told apart by what they change of its input."""

    @cached_property
    def rows(self) -> list[PathRow]:
        """What is measured: by receiver, from the embedding and first layers up."""
        first: list[int | None] = [None] if self.has_embedding else []
        return [
            PathRow(sender, receiver, via)
            for receiver in [*self.members_in_order, None]
            for sender in [*first, *self.members_in_order]
            if self.reaches(sender, receiver)
            for via in self.measured_inputs(receiver)
        ]

    def effects(self) -> Float[Tensor, "row example"]:
        """The effect of each of `rows` on every example; times its weight if examples have some."""
        data, numbers = self.data, {row: number for number, row in enumerate(self.rows)}
        effects = torch.zeros(len(numbers), data.n_examples, device=data.device)
        bar = _progress.open_bar("paths", len(numbers), data.n_examples, shown=data.config.progress)
        n_done = 0
        with data.measuring(), bar:
            for batch in data.batches:
                for row, values in _BatchPaths(self, batch).measure():
                    effects[numbers[row], batch.examples] = values.to(effects)
                    n_done += len(values)
                    _progress.current_run().advance(len(values))
            data.account.add_examples(len(numbers) * data.n_examples, reported=n_done)
        (effects,) = data.ranks.sum_ranks(effects.cpu())
        for row in effects:
            data.check_finite(row)
        return effects

    @cached_property
    def has_embedding(self) -> bool:
        """Whether the source is a run of the model, so that the embedding changes too."""
        return self.data.counterfactual_cache.constants is None

    @cached_property
    def embeddings(self) -> CounterfactualCache:
        """The input of the first block in the counterfactual run."""
        stream = ComponentRegistry.build(self.data.model.cfg, "residual-before", layers=[0])
        size = self.data.max_rows
        return CounterfactualCache(self.data.model, self.data.layout, stream, max_batch_size=size)

    @cached_property
    def places(self) -> dict[int, tuple[int, int]]:
        """Place of each member; see `path_place`."""
        return {member: path_place(self.data.registry.site_of(member)) for member in self.members}

    @cached_property
    def member_hooks(self) -> dict[int, str]:
        """Hook point of each member."""
        return {member: self.data.registry.site_of(member).hook_name for member in self.members}

    @cached_property
    def members_in_order(self) -> list[int]:
        """The members, sorted by layer."""
        return sorted(self.members, key=lambda member: (self.places[member], member))

    def measured_inputs(self, receiver: int | None) -> Sequence[PathInput]:
        """The inputs of a receiver into which paths are measured separately."""
        if receiver is None or not self.by_input:
            return ("all",)
        return ("all", *READS.get(self.data.registry.site_of(receiver).kind.hook, ()))

    def reaches(self, sender: int | None, receiver: int | None) -> bool:
        """Whether the receiver reads what the sender writes."""
        if sender is None or receiver is None:
            return True
        before, after = self.places[sender], self.places[receiver]
        is_sequential = self.is_sequential[before[0]]
        return before < after and (before[0] < after[0] or is_sequential)

    @cached_property
    def is_sequential(self) -> dict[int, bool]:
        """Whether the MLP of each member's layer reads what the attention writes.

        Found on a few examples, which also show that paths can be followed through these blocks.
        """
        data = self.data
        few = torch.arange(min(_EXAMPLES, data.n_examples))
        probe = data.layout.make_batch(few).to(data.device)
        split = {
            self.places[member][0]: hook
            for member, hook in self.member_hooks.items()
            if len(self.measured_inputs(member)) > 1
        }
        with data.measuring():
            layers = dict.fromkeys(layer for layer, _ in self.places.values())
            return {layer: _check_block(data, probe, layer, split.get(layer)) for layer in layers}


def _check_block(data: PreparedData, batch: Batch, layer: int, split: str | None) -> bool:
    """Checks that paths can be followed through a block; returns if its MLP reads its attention.

    `split` is a hook point of attention into whose queries, keys and values paths are separate.
    """
    run, model = data.forward_pass.activations, data.model
    tolerance = 1e-4 if is_exact(model) else 0.05
    attention, mlp = out_hook(layer, ATTENTION), out_hook(layer, MLP)
    before, after = stream_hook(layer), stream_hook(layer + 1)
    inputs = [f"blocks.{layer}.{hook}" for hook in INPUT_HOOKS.values()] if split else []
    start = f"Paths cannot be followed through block {layer} of {model_name(model)}: "
    for name in (before, attention, mlp, after, *inputs):
        if name not in model.hook_dict:
            instead = "Give by_input=False." if name in inputs else "Use explain() instead."
            raise HookPointError(f"{start}it has no hook point {name}. {instead}")
    clean = run(batch, [], [before, attention, mlp, after])
    stream = clean[before]
    drawn = torch.randn(stream.shape, generator=torch.Generator().manual_seed(0))
    change = drawn.to(stream) * stream.float().std().to(stream)
    frozen = [(name, replace_by(clean[name])) for name in (attention, mlp)]
    moved = stream + change

    def resumed(names: Sequence[str], hooks: Sequence[Hook], residual: Tensor) -> Activations:
        return run(batch, hooks, names, start=layer, residual=residual)

    if not is_close(resumed([after], frozen, moved)[after], clean[after] + change, tolerance):
        raise HookPointError(
            f"{start}with the outputs of its attention and MLP fixed, a change of its input does "
            "not reach its output unchanged. Use explain() instead."
        )
    if split:
        wanted = resumed([*inputs, split], [], moved)
        parts = [(name, replace_by(wanted[name])) for name in inputs]
        if not is_close(resumed([split], parts, stream)[split], wanted[split], tolerance):
            raise HookPointError(
                f"{start}queries, keys and values put in at {', '.join(inputs)} do not give the "
                f"{split} that they belong to. Give by_input=False."
            )
    of_attention = [(attention, replace_by(clean[attention] + change))]
    return not is_close(resumed([mlp], of_attention, stream)[mlp], clean[mlp], tolerance)


@dataclass(frozen=True, eq=False)
class _BatchPaths:
    runs: PathRuns
    batch: Batch

    def measure(self) -> Iterator[tuple[PathRow, Float[Tensor, " example"]]]:
        """Rows, each with its effects on the examples of the batch."""
        runs, n_layers = self.runs, int(self.runs.data.model.cfg.n_layers)
        changes = self._sender_changes()
        for (layer, part), group in groupby(runs.members_in_order, key=runs.places.__getitem__):
            receivers = list(group)
            senders = [sender for sender in changes if runs.reaches(sender, receivers[0])]
            for some in runs.data.chunks(senders, self.batch):
                clean = self._copy_clean(stream_hook(layer), len(some))
                moved = clean + torch.cat([changes[sender].to(clean) for sender in some])
                for via, read in self._read_receivers(layer, part, receivers, moved, clean):
                    for receiver in receivers:
                        if via in runs.measured_inputs(receiver):
                            hooks = self._patch_hooks(receiver, read[runs.member_hooks[receiver]])
                            effects = self._effects(hooks, layer, clean)
                            rows = [PathRow(sender, receiver, via) for sender in some]
                            yield from zip(rows, effects, strict=True)
        for some in runs.data.chunks(list(changes), self.batch):
            clean = self._copy_clean(stream_hook(n_layers), len(some))
            change = torch.cat([changes[sender].to(clean) for sender in some])
            effects = self._effects([], n_layers, clean + change)
            yield from zip([PathRow(sender, None, "all") for sender in some], effects, strict=True)

    @cached_property
    def _clean_activations(self) -> Activations:
        """The clean stream where members read and write, and clean outputs that are held fixed."""
        names = {stream_hook(0), stream_hook(int(self.runs.data.model.cfg.n_layers))}
        for layer, part in self.runs.places.values():
            names |= {stream_hook(layer), stream_hook(layer + 1), out_hook(layer, 1 - part)}
        return self.runs.data.forward_pass.activations(self.batch, [], sorted(names))

    def _sender_changes(self) -> dict[int | None, ResidualStream]:
        runs, data = self.runs, self.runs.data
        changes: dict[int | None, ResidualStream] = {}
        if runs.has_embedding:
            batch, clean = self.batch, self._clean_activations[stream_hook(0)]
            embedded = runs.embeddings.activations_for(batch)[stream_hook(0)].to(clean)
            covered = slice(batch.first_position, batch.first_position + embedded.shape[1])
            is_patched = batch.positions[:, covered, None].to(clean.device)
            changes[None] = change = torch.zeros_like(clean)
            change[:, covered] = torch.where(is_patched, embedded - clean[:, covered], 0.0)
        source = data.counterfactual_cache.activations_for(self.batch)
        for (layer, part), group in groupby(runs.members_in_order, key=runs.places.__getitem__):
            after = stream_hook(layer + 1)
            for senders in data.chunks(list(group), self.batch):
                masks = data.masks_of([(sender,) for sender in senders])
                hooks = data.hooks(self.batch, source, masks, {layer})
                hooks += self._freeze_hooks(layer, MLP, len(senders)) if part == ATTENTION else []
                stream = self._copy_clean(stream_hook(layer), len(senders))
                parts = self._run_from(hooks, [after], layer, stream)[after]
                parts = rearrange(parts, "(sender row) ... -> sender row ...", sender=len(senders))
                parts = parts - self._clean_activations[after]
                changes |= dict(zip(senders, parts, strict=True))
        return changes

    def _read_receivers(
        self,
        layer: int,
        part: int,
        receivers: Sequence[int],
        moved: ResidualStream,
        clean: ResidualStream,
    ) -> Iterator[tuple[PathInput, Activations]]:
        """Activations of receivers where all of their input changes, or one use of it."""
        runs, n = self.runs, len(moved) // len(self.batch.sequences)
        held = self._freeze_hooks(layer, ATTENTION, n) if part == MLP else []
        hooks = [runs.member_hooks[receiver] for receiver in receivers]
        names: dict[PathInput, str] = {
            via: f"blocks.{layer}.{name}"
            for via, name in INPUT_HOOKS.items()
            if any(via in runs.measured_inputs(each) for each in receivers)
        }
        whole = self._run_from(held, [*hooks, *names.values()], layer, moved)
        yield "all", whole
        for via, name in names.items():
            yield via, self._run_from([(name, replace_by(whole[name]))], hooks, layer, clean)

    def _patch_hooks(self, receiver: int, value: Tensor) -> list[Hook]:
        """Hooks by which a receiver takes a value where it is patched."""
        data, batch = self.runs.data, self._repeat_batch(value)
        patch = MaskedPatch(
            registry=data.registry,
            counterfactual={self.runs.member_hooks[receiver]: value},
            positions=batch.positions,
            span_numbers=batch.span_numbers,
        )
        return patch.hooks(data.masks_of([(receiver,)])[0])

    def _effects(
        self, hooks: Sequence[Hook], layer: int, stream: ResidualStream
    ) -> Float[Tensor, "sender example"]:
        data, batch, reads = self.runs.data, self._repeat_batch(stream), self.runs.data.metric.reads
        run = data.forward_pass.log_probs(batch, hooks, reads=reads, start=layer, residual=stream)
        return data.effects_from(self.batch, run)

    def _run_from(
        self, hooks: Sequence[Hook], names: Iterable[str], layer: int, stream: ResidualStream
    ) -> Activations:
        run, batch = self.runs.data.forward_pass.activations, self._repeat_batch(stream)
        return run(batch, hooks, sorted(set(names)), start=layer, residual=stream)

    def _repeat_batch(self, rows: Tensor) -> Batch:
        return self.batch.repeat(len(rows) // len(self.batch.sequences))

    def _freeze_hooks(self, layer: int, part: int, copies: int) -> list[Hook]:
        """Hooks that keep the output of a layer's attention or MLP at its clean value."""
        name = out_hook(layer, part)
        return [(name, replace_by(self._copy_clean(name, copies)))]

    def _copy_clean(self, name: str, copies: int) -> Tensor:
        return repeat(self._clean_activations[name], "row pos d -> (copy row) pos d", copy=copies)
