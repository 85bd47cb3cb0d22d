"""Heads as they are read, against attentions and weights of plain Hugging Face models."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.architectures import ARCHITECTURES
from tracekit.engine.head_reads import direct_contributions, measure_heads
from tracekit.errors import UnsupportedModelError

pytestmark = pytest.mark.lens

HEADS = ((0, 1), (1, 3), (2, 0))
_OUT = ("o_proj", "c_proj", "out_proj", "dense")
_FINAL = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")
_NORMS_BEHIND = {
    **dict.fromkeys(("gemma2", "gemma3", "olmo2", "olmo3", "exaone4"), "post_attention_layernorm"),
    "glm4": "post_self_attn_layernorm",
}
"""Norms of what the attention adds to the stream, by architecture."""
_FROM_ONE = ("Gemma", "Nemotron")
"""Classes of norms that multiply by one more than their weight."""


def parts_of(architecture, hf):
    """The projections out of the heads, the norms behind these, and the final norm."""
    named = dict(hf.named_modules())
    attentions = ("attn", "attention", "self_attn", "self_attention")
    out = [
        module
        for name, module in named.items()
        if name.split(".")[-1] in _OUT and name.split(".")[-2] in attentions
    ]
    behind = [
        module
        for name, module in named.items()
        if name.split(".")[-1] == _NORMS_BEHIND.get(architecture)
    ]
    (final,) = (
        module
        for name, module in named.items()
        if name.split(".")[-1] in _FINAL and not any(part.isdigit() for part in name.split("."))
    )
    return out, behind or [None] * len(out), final


def frozen(norm, own):
    """A norm whose scale is the one that `own` has, as a function without its bias."""
    if norm is None:
        return lambda vector: vector
    eps = getattr(norm, "eps", getattr(norm, "variance_epsilon", None))
    is_centred = "LayerNorm" in type(norm).__name__ and own.mean().abs() > 1e-9
    with torch.no_grad():
        is_centred = is_centred and torch.allclose(norm(own), norm(own + 1), atol=1e-4)
    weight = getattr(norm, "weight", None)
    weight = torch.ones_like(own) if weight is None else weight
    weight = weight + any(name in type(norm).__name__ for name in _FROM_ONE)

    def centred(vector):
        return vector - vector.mean() if is_centred else vector

    scale = (centred(own).square().mean() + (1e-5 if eps is None else eps)).sqrt()
    return lambda vector: weight * centred(vector) / scale


def multipliers(config):
    """What a model multiplies what its blocks add by, and its logits."""
    names = ("residual_multiplier", "logit_scale", "logits_scaling")
    added, times, over = (getattr(config, name, None) or 1.0 for name in names)
    return added, times / over


def matrix(module):
    return module.weight.T if type(module).__name__ == "Conv1D" else module.weight


def values_read(hf, modules, ids):
    """What modules read at the last token."""
    read = {}

    def keep(number):
        def hook(module, args):
            read[number] = args[0][0, -1].detach()

        return hook

    handles = [
        module.register_forward_pre_hook(keep(number))
        for number, module in modules.items()
        if module is not None
    ]
    with torch.no_grad():
        hf(torch.tensor([list(ids)]))
    for handle in handles:
        handle.remove()
    return read


def plain_reads(hf, parts, prompt, x, y, heads, scales_of=None):
    """Attention of each head, its direct contribution, and that of the attention block of each.

    The scales of norms are those of the run of `scales_of`, by default of the prompt.
    """
    out, behind, final = parts
    modules = {("out", n): module for n, module in enumerate(out)}
    modules |= {("behind", n): module for n, module in enumerate(behind)} | {"final": final}
    read = values_read(hf, modules, prompt)
    scales = read if scales_of is None else values_read(hf, modules, scales_of)
    # Falcon attends otherwise where it gives its attentions out: its values are of another pass.
    with torch.no_grad():
        attentions = hf(torch.tensor([list(prompt)]), output_attentions=True).attentions
    unembedding = hf.get_output_embeddings().weight
    added, of_logits = multipliers(hf.config)
    direction = of_logits * (unembedding[x] - (0 if y is None else unembedding[y]))
    to_final = frozen(final, scales["final"])

    def contribution(layer, written):
        to_stream = frozen(behind[layer], scales.get(("behind", layer)))
        return (to_final(added * to_stream(written)) @ direction).detach()

    patterns, direct, of_blocks = [], [], []
    for layer, head in heads:
        z = read["out", layer]
        size = len(z) // hf.config.num_attention_heads
        own = slice(head * size, (head + 1) * size)
        patterns.append(attentions[layer][0, head])
        direct.append(contribution(layer, matrix(out[layer])[:, own] @ z[own]))
        with torch.no_grad():
            bias = out[layer](torch.zeros_like(z))
            of_blocks.append(contribution(layer, out[layer](z) - bias))
    return patterns, torch.stack(direct), torch.stack(of_blocks)


def check(architecture, hf, data, heads=HEADS, *, with_patterns=True):
    hf.set_attn_implementation("eager")
    reads = measure_heads(data, heads)
    direct = direct_contributions(data, reads.outputs, reads.streams)
    parts = parts_of(architecture, hf)
    for number, pair in enumerate(data.pairs):
        patterns, expected, of_blocks = plain_reads(
            hf, parts, pair.prompt_ids, pair.x_ids[0], pair.y_ids[0], heads
        )
        torch.testing.assert_close(direct[:, number], expected, rtol=2e-3, atol=5e-5)
        for layer in {layer for layer, _ in heads}:
            own = [n for n, (of_layer, _) in enumerate(heads) if of_layer == layer]
            if len(own) == hf.config.num_attention_heads:
                torch.testing.assert_close(
                    direct[own, number].sum(), of_blocks[own[0]], rtol=2e-3, atol=5e-5
                )
        for head, pattern in enumerate(patterns if with_patterns else ()):
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
    check(architecture, tiny.hf_model(architecture), engine)


_CHANGED = {
    "gemma2-bias": ("gemma2", {"attention_bias": True, "final_logit_softcapping": 2.0}),
    "gemma3-soft-cap": ("gemma3", {"attention_bias": True, "final_logit_softcapping": 2.0}),
    "olmo2-bias": ("olmo2", {"attention_bias": True}),
    "granite-multipliers": ("granite", {"logits_scaling": 3.0, "attention_bias": True}),
    "cohere-scale": ("cohere", {"logit_scale": 2.0, "attention_bias": True}),
    "llama-bias": ("llama", {"attention_bias": True}),
}
_DEFAULT_RUN = ("gemma3", "olmo2", "glm4", "granite-multipliers", "gemma2-bias")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=() if name in _DEFAULT_RUN else pytest.mark.slow)
        for name in (*ARCHITECTURES, *_CHANGED)
    ],
)
def test_contributions_of_heads_add_up_to_their_block(case):
    """Of all heads of all layers, with norms and biases that are drawn."""
    architecture, changes = _CHANGED.get(case, (case, {}))

    def drawn():
        hf = tiny.hf_model(architecture, **changes)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for _, each in sorted(hf.named_parameters()):
                if each.ndim == 1:
                    each.add_(0.3 * torch.randn(each.shape, generator=generator))
        return hf

    hf = drawn()
    config = hf.config
    heads = [
        (layer, head)
        for layer in range(config.num_hidden_layers)
        for head in range(config.num_attention_heads)
    ]
    engine = tiny.engine(tk.load_model(drawn()), tiny.pairs(3), "head-outputs")
    check(architecture, hf, engine, heads, with_patterns=False)


def test_the_counterfactual_run_has_the_scales_of_the_clean_one():
    hf = tiny.hf_model("gemma2", attention_bias=True)
    model = tk.load_model(tiny.hf_model("gemma2", attention_bias=True))
    rows = tiny.rows(12, longest=1)
    length = len(rows[0]["prompt_ids"])
    rows = [row for row in rows if len(row["prompt_ids"]) == length]
    pairs = tk.PromptPairs.from_ids(rows)
    tracer = tk.Tracer(model, pairs, "head-outputs", "logit-difference")
    read = tracer.attention([f"L{layer}H{head}" for layer, head in HEADS])
    hf.set_attn_implementation("eager")
    parts = parts_of("gemma2", hf)
    for number, pair in enumerate(pairs):
        tokens = pair.x_ids[0], pair.y_ids[0]
        ids = pair.counterfactual_ids
        _, expected, _ = plain_reads(hf, parts, ids, *tokens, HEADS, pair.prompt_ids)
        got = read.counterfactual_direct[:, number]
        torch.testing.assert_close(got, expected, rtol=2e-3, atol=5e-5)


def test_blocks_that_do_more_than_add_have_no_contributions():
    changes = {"apply_residual_connection_post_layernorm": True}
    model = tk.load_model(tiny.hf_model("bloom", **changes))
    engine = tiny.engine(model, tiny.pairs(2), "head-outputs")
    with pytest.raises(UnsupportedModelError, match="Block 1 .* does more to the residual stream"):
        measure_heads(engine, [(1, 0)])
