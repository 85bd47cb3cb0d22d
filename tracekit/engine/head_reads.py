"""What heads attend to from a position of a prompt, and what they write to the logits.

A head's direct contribution is the logit of x less that of y (their first tokens; without y the
logit of x) that its output alone gives through the final norm and the unembedding, with the scale
of the norm as it is in the clean run (a folded norm): contributions of all parts of the stream then
sum to the logits, but for their biases and a soft cap. The output is taken in the stream, as what
is lost there where the head's `hook_z` is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.engine.batch import Batch
from tracekit.engine.forward import replacing
from tracekit.engine.prepared import PreparedData
from tracekit.models.architectures import MLP, out_of, stream_hook
from tracekit.models.hooked import dtype_of

HeadPlace = tuple[int, int]
"""Layer and index of a head."""
_PATTERN, _OUTPUT = "blocks.{}.attn.hook_pattern", "blocks.{}.attn.hook_z"


class HeadReads(NamedTuple):
    """Of heads on the prompts of a data set."""

    patterns: Float[Tensor, "head example key"]
    """Attention weights of a query of each prompt; 0 behind the prompt."""
    outputs: Float[Tensor, "head example d_model"]
    """What each adds to the residual stream at the last position."""
    streams: Float[Tensor, "example d_model"]
    """The stream that the final norm reads there."""


def head_reads(
    data: PreparedData, heads: Sequence[HeadPlace], queries: Int[Tensor, " example"] | None = None
) -> HeadReads:
    """Runs the prompts as they are, and reads heads at `queries`: by default the last positions."""
    queries = data.layout.starts if queries is None else queries
    n, width = data.n_examples, data.layout.longest
    d_model, n_layers = int(data.model.cfg.d_model), int(data.model.cfg.n_layers)
    reads = HeadReads(
        torch.zeros(len(heads), n, width),
        torch.zeros(len(heads), n, d_model),
        torch.zeros(n, d_model),
    )
    layers = {layer for layer, _ in heads}
    names = {stream_hook(block) for block in (n_layers, *layers, *(at + 1 for at in layers))}
    names |= {_PATTERN.format(layer) for layer in layers} | {out_of(at, MLP) for at in layers}
    run = data.forward_pass.activations
    with data.measuring():
        for batch in data.batches:
            examples, rows = batch.examples.cpu(), _last_positions(batch)[0]
            clean = run(batch, [], sorted(names))
            reads.streams[examples] = _last(clean[stream_hook(n_layers)], batch)
            for number, (layer, head) in enumerate(heads):
                pattern = clean[_PATTERN.format(layer)][:, head]
                at = (each.to(pattern.device) for each in (rows, queries[examples]))
                reads.patterns[number, examples, : pattern.shape[-1]] = (
                    pattern[tuple(at)].float().cpu()
                )
                mlp, before, after = out_of(layer, MLP), stream_hook(layer), stream_hook(layer + 1)
                hooks = [(_OUTPUT.format(layer), _without(head)), (mlp, replacing(clean[mlp]))]
                without = run(batch, hooks, [after], start=layer, residual=clean[before])
                reads.outputs[number, examples] = _last(clean[after] - without[after], batch)
    return HeadReads(*data.ranks.add(*reads))


def contributions(
    data: PreparedData,
    outputs: Float[Tensor, "head example d_model"],
    streams: Float[Tensor, "example d_model"],
) -> Float[Tensor, "head example"]:
    """Direct contributions of vectors in the final stream, with the norm's scale on `streams`."""
    direct = torch.zeros(outputs.shape[:2])
    with data.measuring():
        for batch in data.batches:
            examples = batch.examples.cpu()
            own, written = streams[examples], outputs[:, examples]
            nothing = torch.zeros_like(own)
            of_y = data.layout.targets[examples, 1, 0].to(data.device) if batch.all_have_y else None
            weights = data.forward_pass.unembedding(batch, of_y).cpu()
            normed = _normed(data, batch, torch.stack([nothing, own, own + own.std()]))
            # Layer norm takes the mean away, RMS norm does not.
            shift = int((normed[2] - normed[1]).abs().max() < 1e-3 * normed[1].abs().max())
            size = (own - shift * own.mean(-1, keepdim=True)).norm(dim=-1)
            sizes = (written - shift * written.mean(-1, keepdim=True)).norm(dim=-1)
            # As large as the stream, so that the norm divides both by the same.
            times = torch.where(sizes > 0, size / sizes, 0.0)[..., None]
            values = _normed(data, batch, written * times) - normed[0]
            parts = (values * weights).sum(-1) / times[..., 0]
            direct[:, examples] = torch.where(sizes > 0, parts, 0.0)
    return data.ranks.add(direct)[0]


def _normed(
    data: PreparedData, batch: Batch, vectors: Float[Tensor, "vector example d_model"]
) -> Float[Tensor, "vector example d_model"]:
    """What the unembedding reads where the final stream holds vectors at the last positions."""
    n_layers, name = int(data.model.cfg.n_layers), data.forward_pass.scored_hook
    rows, positions = _last_positions(batch)
    parts = []
    for vector in vectors:
        stream = torch.zeros(*batch.positions.shape, vector.shape[-1], dtype=dtype_of(data.model))
        stream[rows.cpu(), positions.cpu()] = vector.to(stream)
        stream = stream.to(data.device)
        got = data.forward_pass.activations(batch, [], [name], start=n_layers, residual=stream)
        parts.append(_last(got[name], batch))
    return torch.stack(parts)


def _last_positions(batch: Batch) -> tuple[Tensor, Tensor]:
    """Row and position of the last token of each example's prompt."""
    rows, positions = batch.readout_positions
    return rows[batch.first_readout], positions[batch.first_readout]


def _last(value: Tensor, batch: Batch) -> Float[Tensor, "example width"]:
    """Of an activation by row and position, what is at the last token of each prompt."""
    rows, positions = (index.to(value.device) for index in _last_positions(batch))
    return value[rows, positions].float().cpu()


def _without(head: int) -> Any:
    def remove(activation: Tensor, hook: Any = None) -> Tensor:
        changed = activation.clone()
        changed[:, :, head] = 0
        return changed

    return remove
