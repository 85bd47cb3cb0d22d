"""Heads as they are read, against attentions and weights of plain Hugging Face models."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.head_reads import contributions, head_reads

HEADS = ((0, 1), (1, 3), (2, 0))


def _weights_of_norm(norm, stream):
    """What the final norm multiplies a centred vector by, its scale frozen."""
    weight, eps = norm.weight, getattr(norm, "eps", getattr(norm, "variance_epsilon", None))
    if type(norm).__name__ == "LayerNorm":
        scale = (stream.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
        return weight / scale, True
    scale = (stream.square().mean(-1, keepdim=True) + eps).sqrt()
    factor = 1 + weight if "Gemma" in type(norm).__name__ else weight
    return factor / scale, False


def plain_reads(hf, out_projections, post_norms, norm, prompt, x, y, heads, stream=None):
    """Attention of each head, its direct contribution, and the final stream.

    The scale is that of `stream`, by default that of the prompt itself.
    """
    read = {}

    def keep(layer):
        def hook(module, args):
            read[layer] = args[0][0, -1]

        return hook

    handles = [m.register_forward_pre_hook(keep(n)) for n, m in enumerate(out_projections)]
    handles.append(norm.register_forward_pre_hook(keep("stream")))
    with torch.no_grad():
        out = hf(torch.tensor([list(prompt)]), output_attentions=True)
    for handle in handles:
        handle.remove()
    direction = hf.get_output_embeddings().weight[x] - hf.get_output_embeddings().weight[y]
    factor, is_centred = _weights_of_norm(norm, read["stream"] if stream is None else stream)
    patterns, direct = [], []
    for layer, head in heads:
        patterns.append(out.attentions[layer][0, head])
        z, module = read[layer], out_projections[layer]
        size = len(z) // hf.config.num_attention_heads
        kept = z.clone()
        kept[head * size : (head + 1) * size] = 0
        with torch.no_grad():
            written = post_norms[layer](module(z)) - post_norms[layer](module(kept))
        if is_centred:
            written = written - written.mean()
        direct.append((written * factor) @ direction)
    return patterns, torch.stack(direct), read["stream"]


def parts_of(architecture, hf):
    if architecture == "gpt2":
        blocks = hf.transformer.h
        return [b.attn.c_proj for b in blocks], [torch.nn.Identity()] * 9, hf.transformer.ln_f
    blocks = hf.model.layers
    identity = torch.nn.Identity()
    is_gemma = architecture == "gemma2"
    post = [b.post_attention_layernorm if is_gemma else identity for b in blocks]
    return [b.self_attn.o_proj for b in blocks], post, hf.model.norm


def check(architecture, hf, data, heads=HEADS):
    hf.set_attn_implementation("eager")
    reads = head_reads(data, heads)
    direct = contributions(data, reads.outputs, reads.streams)
    parts = parts_of(architecture, hf)
    for number, pair in enumerate(data.pairs):
        patterns, expected, _ = plain_reads(
            hf, *parts, pair.prompt_ids, pair.x_ids[0], pair.y_ids[0], heads
        )
        torch.testing.assert_close(direct[:, number], expected, rtol=2e-3, atol=2e-5)
        for head, pattern in enumerate(patterns):
            got, pattern = reads.patterns[head, number], pattern[-1]
            torch.testing.assert_close(got[: len(pattern)], pattern, rtol=1e-3, atol=1e-6)
            assert (got[len(pattern) :] == 0).all()
    assert direct.abs().max() > 1e-3


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("skips", [True, False])
def test_heads_equal_plain_models(architecture, skips):
    options = {} if skips else {"capabilities": tk.Capabilities.none()}
    model = tiny.shared_model(architecture)
    engine = tiny.engine(model, tiny.pairs(5), "head-outputs", max_batch_size=3, **options)
    check(architecture, tiny.hf_model(architecture), engine.data)
