"""Capabilities: probes, on random tokens, which optimisations a model supports.

Packing x and y into one row needs an attention mask of its own and position ids; skipping blocks
needs blocks that form a chain; leaving parts out needs attentions and MLPs that only add to the
stream. An optimisation that fails, or that gives other numbers than the plain way, is switched off
with a single `ModelWarning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from tracekit._util.warn import warn
from tracekit.components import ComponentRegistry
from tracekit.components.edges import EdgeGraph, EdgesBy
from tracekit.engine.batch import PackedSequences
from tracekit.engine.edge_patch import EdgePatch
from tracekit.engine.patching import MaskedPatch
from tracekit.engine.skipping import BlockSkipper, KnownOutputs, PartSkipper, replaced_parts
from tracekit.errors import ModelWarning
from tracekit.models.architectures import shortest_window
from tracekit.models.hooked import (
    Hook,
    HookedModel,
    device_of,
    dtype_of,
    freeze,
    is_exact,
    model_name,
    random_tokens,
    record_pass,
)

_SHORTEST = 8
_Trial = tuple[Sequence[Hook], Sequence[Hook], KnownOutputs]
"""Hooks of a whole pass, hooks of one that leaves parts out, and what these would write."""


class Capabilities:
    """Optimisations that one model supports, in its present type and on its present device."""

    def __init__(
        self,
        block_skipper: BlockSkipper | None,
        *,
        packing: bool | None = None,
        skips_parts: bool = True,
    ) -> None:
        """Use `Capabilities.probe` or `Capabilities.none`; `packing` None: tested on the model."""
        self.block_skipper = block_skipper
        """Runs some of the model's blocks; None: every pass runs all of them."""
        self.skips_parts = skips_parts
        """Whether passes without gradients compute only what a mask leaves open."""
        self._part_skippers: dict[EdgesBy | None, PartSkipper | None] = {}
        self._packing = packing
        self._packing_refusals: dict[int, str] = {}
        self._has_warned = False

    @classmethod
    def none(cls) -> Capabilities:
        """No optimisation: the plain way, which the fast one must equal."""
        return cls(None, packing=False, skips_parts=False)

    @classmethod
    def probe(cls, model: HookedModel) -> Capabilities:
        """Tests block skipping at once; packing is tested when it is asked for."""
        with freeze(model), torch.no_grad():
            block_skipper, tokens = BlockSkipper(model), random_tokens(model, 2, _SHORTEST)
            try:
                refusal = block_skipper.reason_unsupported(model, tokens.to(device_of(model)))
            except Exception as error:  # Whatever a model raises, its blocks cannot be skipped.
                refusal = f"its blocks cannot be left out ({type(error).__name__})"
        if refusal:
            _warn_of_slow_path(model, refusal, "every candidate set is run through all layers")
        return cls(None if refusal else block_skipper)

    def part_skipper(self, model: HookedModel, by: EdgesBy | None = None) -> PartSkipper | None:
        """Leaves out parts that masks replace, or no kept edge leaves; None if the trial fails."""
        if by not in self._part_skippers:
            skipper = None
            with freeze(model), torch.no_grad():
                tokens = random_tokens(model, 3, _SHORTEST).to(device_of(model))
                try:
                    skipper = PartSkipper(model, tokens)
                    refusal = _reason_not_skipped(model, by, skipper, tokens)
                except Exception as error:  # Whatever a model raises, its parts cannot be left out.
                    refusal = f"its parts cannot be left out ({type(error).__name__})"
            if refusal:
                which = "that masks replace" if by is None else "that no kept edge leaves"
                _warn_of_slow_path(model, refusal, f"parts {which} are computed all the same")
            self._part_skippers[by] = None if refusal else skipper
        return self._part_skippers[by]

    def supports_packing(self, model: HookedModel, length: int, *, warns: bool = False) -> bool:
        """Whether the model respects an attention mask in rows of up to a length.

        A longer row shows more: such a mask undoes an attention window that is shorter than it. If
        `warns`, the first refusal gives a warning.
        """
        if self._packing is not None:
            return self._packing
        length = max(length, _SHORTEST)
        if length not in self._packing_refusals:
            with freeze(model), torch.no_grad():
                self._packing_refusals[length] = _reason_not_packed(model, length)
        refusal = self._packing_refusals[length]
        if refusal and warns and not self._has_warned:
            _warn_of_slow_path(model, refusal, "x and y of an example are run as two sequences")
            self._has_warned = True
        return not refusal


_PROBED: WeakKeyDictionary[Any, dict[tuple[torch.dtype, torch.device], Capabilities]]
_PROBED = WeakKeyDictionary()


def capabilities_of(model: HookedModel) -> Capabilities:
    """Probes a model, once per model, type and device."""
    by_type = _PROBED.setdefault(model, {})
    key = (dtype_of(model), device_of(model))
    if key not in by_type:
        by_type[key] = Capabilities.probe(model)
    return by_type[key]


def _warn_of_slow_path(model: HookedModel, refusal: str, instead: str) -> None:
    warn(
        f"{model_name(model)} takes the slower way: {instead}, because {refusal}. "
        "Results are the same.",
        ModelWarning,
    )


def _reason_not_packed(model: HookedModel, length: int) -> str:
    """Why rows of a length are not packed; empty if they can be."""
    window = shortest_window(model)
    if window < length:
        return f"its attention window of {window} tokens is shorter than rows of {length}"
    tokens = tuple(random_tokens(model, 1, length + 1)[0].tolist())
    prompt, branches = tokens[:-2], ((tokens[-2],), (tokens[-1],))
    one_row = PackedSequences.build([(prompt, branches)], needs_attention_mask=True)
    try:
        packed = _log_probs(model, one_row)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        return f"it takes no attention mask of its own ({type(error).__name__})"
    plain = [_log_probs(model, PackedSequences.build([(prompt, (branch,))])) for branch in branches]
    expected = torch.cat([plain[0], plain[1][-1:]])
    unheeded = _log_probs(model, PackedSequences.build([(prompt, branches)]))
    # A model that ignores the mask is off by ten times this; rounding is off by far less.
    tolerance = 0.1 * (unheeded - expected).abs().max()
    if is_exact(model):
        tolerance = min(tolerance, 1e-4 * expected.abs().max())
    if not (packed - expected).abs().max() <= tolerance:
        return f"its logits differ under an attention mask of its own in rows of {length} tokens"
    return ""


def _log_probs(model: HookedModel, sequences: PackedSequences) -> Tensor:
    """Log-probabilities at every position of the only row."""
    sequences = sequences.to(device_of(model))
    inputs = sequences.model_inputs(dtype_of(model))
    return model.run_with_hooks(sequences.tokens, fwd_hooks=[], **inputs)[0].float().log_softmax(-1)


def _reason_not_skipped(
    model: HookedModel, by: EdgesBy | None, skipper: PartSkipper, tokens: Tensor
) -> str:
    """Why parts cannot be left out, for edges `by` or for nodes; empty if they can be.

    In two trials, a random half of the parts is left out, and then the other half.
    """

    def logits(hooks: Sequence[Hook]) -> Tensor:
        return model.run_with_hooks(tokens, fwd_hooks=list(hooks)).float()

    if by is None:
        registry = ComponentRegistry.build(model.cfg, "head-outputs+mlp-blocks")
    else:
        registry = ComponentRegistry.of_edges(model.cfg, by)
    clean, recorded = record_pass(model, tokens, registry.hook_names)
    clean, others = clean.float(), {name: value.flip(0) for name, value in recorded.items()}
    positions = torch.ones_like(tokens, dtype=torch.bool)
    fields: Any = {"registry": registry, "counterfactual": others, "positions": positions}
    tolerance = (1e-4 if is_exact(model) else 0.1) * (clean - clean.flip(0)).abs().max()
    graph = EdgeGraph.of(model.cfg, by or "inputs")
    drawn = torch.rand(graph.n_layers, 2, generator=torch.Generator().manual_seed(0)) < 0.5
    for half in (drawn, ~drawn):
        is_in = half.repeat_interleave(torch.tensor([graph.n_in_attention, 1]), 1)
        if by is None:
            whole, sparse, outputs = _trial_of_nodes(model, MaskedPatch(**fields), is_in)
        else:
            whole, sparse, outputs = _trial_of_edges(EdgePatch(model=model, **fields), is_in)
        with skipper.skip(model, outputs):
            without_parts = logits(sparse)
        if not (without_parts - logits(whole)).abs().max() <= tolerance:
            return "other logits come out if they are left out"
    return ""


def _trial_of_nodes(
    model: HookedModel, patch: MaskedPatch, is_in: Bool[Tensor, "layer node"]
) -> _Trial:
    """Replaces the nodes that are in a half of the parts."""
    # The registry has all heads first, and then all MLPs.
    mask = torch.cat([is_in[:, :-1].flatten(), is_in[:, -1]])
    hooks = patch.hooks(mask.float())
    return hooks, hooks, replaced_parts(model, patch.registry, patch.counterfactual, mask)


def _trial_of_edges(patch: EdgePatch, is_in: Bool[Tensor, "layer node"]) -> _Trial:
    """Keeps the edges between the nodes that are in a half of the parts."""
    graph, registry = patch.graph, patch.registry
    starts = {site.layer: site.start for site in registry.sites}
    nodes = list(compress(graph.senders[1:], is_in.flatten().tolist()))
    kept = ComponentRegistry.of_edges(patch.model.cfg, graph.by, among=nodes)
    mask = torch.ones(1, len(registry), device=patch.positions.device)
    for site in kept.sites:
        mask[0, [starts[site.layer] + index for index in site.indices]] = 0
    hooks, outputs = patch.sparse_pass(mask, starts_from_counterfactual=True)
    return patch.hooks(mask), hooks, outputs
