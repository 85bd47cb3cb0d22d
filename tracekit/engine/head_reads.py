"""What heads attend to from a position of a prompt, and what they write to the logits.

`tracekit.measure.attention.Attention` defines direct contributions. Each norm has its scale of the
clean run, so everything from the heads to the logits is linear. Logits are those before a soft cap,
and after a multiplier of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.engine.batch import Batch
from tracekit.engine.forward import replace_by
from tracekit.engine.layout import check_distinguishable
from tracekit.engine.prepared import PreparedData
from tracekit.engine.skipping import record_calls
from tracekit.errors import UnsupportedModelError
from tracekit.models.architectures import (
    ATTENTION,
    MLP,
    out_hook,
    post_attention_norm,
    residual_multiplier,
    stream_hook,
)
from tracekit.models.hooked import dtype_of, model_name

HeadPlace = tuple[int, int]
"""Layer and index of a head."""
_ROUNDING = 0.05
"""Share of the largest number of a stream by which a sum in bfloat16 may be off."""
_PATTERN, _OUTPUT = "blocks.{}.attn.hook_pattern", "blocks.{}.attn.hook_z"


class HeadActivity(NamedTuple):
    """What heads read and write on the prompts of a data set."""

    patterns: Float[Tensor, "head example key"]
    """Attention weights of a query of each prompt; 0 behind the prompt."""
    outputs: Float[Tensor, "head example d_model"]
    """What each adds to the stream where the token is predicted, with frozen scales of norms."""
    streams: Float[Tensor, "example d_model"]
    """The stream that the final norm reads there."""
    attention: Float[Tensor, "layer example d_model"]
    """What a norm behind the attention reads there; 0 in layers without one, or without a head."""


def measure_heads(
    data: PreparedData,
    heads: Sequence[HeadPlace],
    queries: Int[Tensor, " example"] | None = None,
    *,
    frozen_at: HeadActivity | None = None,
) -> HeadActivity:
    """Runs the prompts as they are, and reads heads at `queries`: by default the last positions.

    Norms behind the attention have the scales of `frozen_at`, by default of this run.
    """
    for number, pair in enumerate(data.pairs if data.layout.all_have_y else ()):
        check_distinguishable(number, pair, "a contribution to their difference")
    queries = data.layout.starts if queries is None else queries
    n, width = data.n_examples, data.layout.longest_row
    d_model, n_layers = int(data.model.cfg.d_model), int(data.model.cfg.n_layers)
    reads = HeadActivity(
        torch.zeros(len(heads), n, width),
        torch.zeros(len(heads), n, d_model),
        torch.zeros(n, d_model),
        torch.zeros(n_layers, n, d_model),
    )
    scales = reads if frozen_at is None else frozen_at
    layers = {layer for layer, _ in heads}
    norms = {layer: post_attention_norm(data.model, layer) for layer in layers}
    norms = {layer: norm for layer, norm in norms.items() if norm is not None}
    names = {_PATTERN.format(layer) for layer in layers}
    # All that a head's output goes through on its way to the final norm.
    behind = range(min(layers), n_layers)
    names |= {stream_hook(block) for block in (*behind, n_layers)}
    names |= {out_hook(layer, part) for layer in behind for part in (ATTENTION, MLP)}
    run = data.forward_pass.activations
    with data.measuring():
        for batch in data.batches:
            examples, rows = batch.examples.cpu(), _readout_positions(batch)[0]
            with record_calls(norms) as calls:
                clean = run(batch, [], sorted(names))
            _check_blocks_add(data, clean, behind)
            reads.streams[examples] = _at_readout(clean[stream_hook(n_layers)], batch)
            for layer, (value, _) in calls.items():
                reads.attention[layer, examples] = _at_readout(value, batch)
            for number, (layer, head) in enumerate(heads):
                pattern = clean[_PATTERN.format(layer)][:, head]
                at = rows.to(pattern.device), queries[examples].to(pattern.device)
                reads.patterns[number, examples, : pattern.shape[-1]] = pattern[at].float().cpu()
                mlp = out_hook(layer, MLP)
                before, after = stream_hook(layer), stream_hook(layer + 1)
                without_head = partial(_remove_head, head=head)
                hooks = [(_OUTPUT.format(layer), without_head), (mlp, replace_by(clean[mlp]))]
                with record_calls(norms) as calls_without:
                    without = run(batch, hooks, [after], start=layer, residual=clean[before])
                if layer not in norms:
                    written = _at_readout(clean[after] - without[after], batch)
                else:
                    change = calls[layer][0] - calls_without[layer][0]
                    written = _at_readout(change, batch)
                    norm = partial(_apply_norm, data, norms[layer].forward)
                    written = _apply_frozen_norm(norm, written, scales.attention[layer, examples])
                    written = residual_multiplier(data.model) * written
                reads.outputs[number, examples] = written
    return HeadActivity(*data.ranks.sum_ranks(*reads))


def _check_blocks_add(
    data: PreparedData, clean: Mapping[str, Tensor], layers: Sequence[int]
) -> None:
    for layer in layers:
        before, after = (clean[stream_hook(block)].float() for block in (layer, layer + 1))
        added = [clean[out_hook(layer, part)].float() for part in (ATTENTION, MLP)]
        size = max(each.abs().max().item() for each in (before, after, *added))
        if (before + sum(added) - after).abs().max() > _ROUNDING * size:
            raise UnsupportedModelError(
                f"Block {layer} of {model_name(data.model)} does more to the residual stream than "
                "to add its attention and its MLP to it, so heads have no direct contributions. "
                "Use tracer.paths for what they do to the logits."
            )


def direct_contributions(
    data: PreparedData,
    outputs: Float[Tensor, "head example d_model"],
    streams: Float[Tensor, "example d_model"],
) -> Float[Tensor, "head example"]:
    """Direct contributions of vectors in the final stream; the norm has its scale on `streams`."""
    direct = torch.zeros(outputs.shape[:2])
    with data.measuring():
        for batch in data.batches:
            examples = batch.examples.cpu()
            weights = data.forward_pass.unembedding_gradient(batch).cpu()
            norm = partial(_apply_final_norm, data, batch)
            values = _apply_frozen_norm(norm, outputs[:, examples], streams[examples])
            direct[:, examples] = (values * weights).sum(-1)
    return data.ranks.sum_ranks(direct)[0]


def _apply_frozen_norm(
    norm: Callable[[Tensor], Tensor],
    vectors: Float[Tensor, "*some example d_model"],
    own: Float[Tensor, "example d_model"],
) -> Float[Tensor, "*some example d_model"]:
    """Applies a norm to vectors, without its bias and with the scale that it has on `own`."""
    several = torch.stack([torch.zeros_like(own), own, own + own.std()])
    of_nothing, of_own, of_shifted = norm(several)
    # Layer norm takes the mean away, RMS norm does not.
    is_centred = (of_shifted - of_own).abs().max() < 1e-3 * of_own.abs().max()
    sizes = [
        (each - is_centred * each.mean(-1, keepdim=True)).norm(dim=-1, keepdim=True)
        for each in (own, vectors)
    ]
    # As large as `own`, so that the norm divides both by the same.
    times = torch.where(sizes[1] > 0, sizes[0] / sizes[1], 0.0)
    return torch.where(times > 0, (norm(vectors * times) - of_nothing) / times, 0.0)


def _apply_norm(data: PreparedData, norm: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
    """Applies a norm of the model to vectors in float32 on the CPU."""
    return norm(vectors.to(data.device, dtype_of(data.model))).float().cpu()


def _apply_final_norm(
    data: PreparedData, batch: Batch, vectors: Float[Tensor, "vector example d_model"]
) -> Float[Tensor, "vector example d_model"]:
    """Applies the final norm to vectors that are put into the final stream at the readouts."""
    n_layers, name = int(data.model.cfg.n_layers), data.forward_pass.scored_hook
    rows, positions = _readout_positions(batch)
    parts = []
    for vector in vectors:
        stream = torch.zeros(*batch.positions.shape, vector.shape[-1], dtype=dtype_of(data.model))
        stream[rows.cpu(), positions.cpu()] = vector.to(stream)
        stream = stream.to(data.device)
        got = data.forward_pass.activations(batch, [], [name], start=n_layers, residual=stream)
        parts.append(_at_readout(got[name], batch))
    return torch.stack(parts)


def _readout_positions(batch: Batch) -> tuple[Tensor, Tensor]:
    """Row and position that predict the token of each example."""
    rows, positions = batch.readout_positions
    return rows[batch.single_readout], positions[batch.single_readout]


def _at_readout(value: Tensor, batch: Batch) -> Float[Tensor, "example width"]:
    rows, positions = (index.to(value.device) for index in _readout_positions(batch))
    return value[rows, positions].float().cpu()


def _remove_head(activation: Tensor, hook: Any = None, *, head: int) -> Tensor:
    changed = activation.clone()
    changed[:, :, head] = 0
    return changed
