"""Settings of GGUF files: each acts as in the model that the file was made from, or is named."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
import transformers as tf

import tracekit as tk
from tracekit.errors import ModelWarning

gguf = pytest.importorskip("gguf")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
TOKENS = torch.randint(64, (1, 40), generator=torch.Generator().manual_seed(1))
THETA = 2e5
LINEAR, YARN = gguf.RopeScalingType.LINEAR, gguf.RopeScalingType.YARN
SHORT, LONG = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
YARN_OF_4 = {
    "add_rope_scaling_type": YARN,
    "add_rope_scaling_factor": 4.0,
    "add_rope_scaling_orig_ctx_len": 32,
}
LINEAR_OF_8 = {"add_rope_scaling_type": LINEAR, "add_rope_scaling_factor": 8.0}
GEMMA = {"add_key_length": 16, "add_sliding_window": 8}
SCALAR = "query_pre_attn_scalar, which no GGUF file says"


def rope(kind: str = "default", **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": THETA, **parameters}}


def gemma3(**scaling):
    layers = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": THETA, **scaling},
    }
    return {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 8, "rope_parameters": layers}


def llama3():
    return rope(
        "llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )


CASES = {
    # What the file was made from, the calls that write its settings, and what a warning names.
    "plain": ("llama", {}, {}, None),
    "width of heads": (
        "llama",
        {"head_dim": 16},
        {"add_rope_dimension_count": 16, "add_key_length": 16, "add_value_length": 16},
        None,
    ),
    "linear": ("llama", rope("linear", factor=8.0), LINEAR_OF_8, None),
    "yarn": (
        "llama",
        rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            beta_fast=16.0,
            beta_slow=2.0,
        ),
        {
            **YARN_OF_4,
            "add_rope_scaling_yarn_beta_fast": 16.0,
            "add_rope_scaling_yarn_beta_slow": 2.0,
        },
        None,
    ),
    "llama 3": ("llama", llama3(), {}, None),
    "qwen2 yarn": (
        "qwen2",
        rope("yarn", factor=4.0, original_max_position_embeddings=32),
        YARN_OF_4,
        None,
    ),
    "epsilon": ("qwen2", {"rms_norm_eps": 1e-2}, {}, None),
    "qwen3": ("qwen3", {"head_dim": 16}, {"add_key_length": 16, "add_value_length": 16}, None),
    "softcaps": (
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": 8,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "rope_parameters": rope()["rope_parameters"],
        },
        {**GEMMA, "add_attn_logit_softcapping": 2.0, "add_final_logit_softcapping": 3.0},
        SCALAR,
    ),
    "gemma 3": ("gemma3", gemma3(), GEMMA, SCALAR),
    "gemma 3, linear on global layers": (
        "gemma3",
        gemma3(rope_type="linear", factor=8.0),
        {**GEMMA, **LINEAR_OF_8},
        SCALAR,
    ),
    "phi3 window": ("phi3", {"sliding_window": 8}, {"add_sliding_window": 8}, None),
    "phi3 long rope": (
        "phi3",
        {
            "original_max_position_embeddings": 32,
            **rope(
                "longrope",
                short_factor=SHORT,
                long_factor=LONG,
                original_max_position_embeddings=32,
            ),
        },
        {
            "add_rope_scaling_orig_ctx_len": 32,
            "add_rope_scaling_attn_factors": (1 + np.log(4) / np.log(32)) ** 0.5,
        },
        None,
    ),
    "some dimensions": (
        "phi3",
        rope(partial_rotary_factor=0.5),
        {"add_rope_dimension_count": 6},
        None,
    ),
    "other epsilon": (
        "stablelm",
        {"layer_norm_eps": 1e-3, **rope(partial_rotary_factor=0.5)},
        {"add_layer_norm_eps": 1e-3, "add_rope_dimension_count": 6},
        None,
    ),
    "experts": (
        "qwen3moe",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        {
            "add_key_length": 16,
            "add_expert_count": 4,
            "add_expert_used_count": 2,
            "add_expert_feed_forward_length": 32,
            "add_expert_weights_norm": False,
            "add_expert_gating_func": gguf.ExpertGatingFuncType.SOFTMAX,
        },
        None,
    ),
    "scale of logits": ("llama", {}, {"add_logit_scale": 0.5}, "logit_scale = 0.5"),
    "other gate": (
        "qwen3moe",
        {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        {
            "add_key_length": 16,
            "add_expert_count": 4,
            "add_expert_used_count": 2,
            "add_expert_feed_forward_length": 32,
            "add_expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID,
            "add_expert_weights_scale": 2.5,
        },
        "expert_weights_scale = 2.5; expert_gating_func = 2",
    ),
    "both directions": ("llama", {}, {"add_causal_attention": False}, "attention.causal = False"),
    "alibi": ("llama", {}, {"add_max_alibi_bias": 8.0}, "attention.max_alibi_bias = 8"),
    "window": ("qwen2", {}, {"add_sliding_window": 8}, "attention.sliding_window = 8"),
    "yarn's logarithm": (
        "llama",
        {},
        {**YARN_OF_4, "add_rope_scaling_yarn_log_mul": 0.1},
        "rope.scaling.yarn_log_multiplier = 0.1",
    ),
    "unknown scaling": (
        "llama",
        {},
        {"add_rope_scaling_type": gguf.RopeScalingType.LONGROPE},
        "rope.scaling.type = longrope",
    ),
    "biases": ("llama", {"attention_bias": True}, {}, "the tensors blk.0.attn_q.bias, "),
    "unknown": ("llama", {}, {"llama.attention.novelty": 0.5}, "attention.novelty = 0.5"),
}
CONFIGS = {
    "llama": tf.LlamaConfig,
    "qwen2": tf.Qwen2Config,
    "qwen3": tf.Qwen3Config,
    "qwen3moe": tf.Qwen3MoeConfig,
    "gemma2": tf.Gemma2Config,
    "gemma3": tf.Gemma3TextConfig,
    "phi3": tf.Phi3Config,
    "stablelm": tf.StableLmConfig,
}


def written(path, architecture, config, settings, tensors=()):
    """The model of a configuration, written to a file as llama.cpp does it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = tf.AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.3 * torch.randn_like(parameter)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(THETA)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name, value in settings.items():
        if "." in name:
            writer.add_float32(name, value)
        else:
            getattr(writer, name)(value)
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    mapped = gguf.get_tensor_name_map(numbers[architecture], config.num_hidden_layers)
    for key, value in model.state_dict().items():
        array = value.numpy()
        if architecture == "llama" and re.search(r"[qk]_proj", key):
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2)
            array = array.reshape(value.shape)
        if architecture.startswith("gemma") and "norm" in key:
            array = array + 1
        parts = {mapped.get_name(key, try_suffixes=(".weight", ".bias")): array}
        if "experts" in key:
            block = f"blk.{key.split('.')[2]}.ffn"
            parts = {f"{block}_down_exps.weight": array}
            if "gate_up" in key:
                gate, up = np.split(array, 2, axis=1)
                parts = {f"{block}_gate_exps.weight": gate, f"{block}_up_exps.weight": up}
        if key != "lm_head.weight" or not config.tie_word_embeddings:
            for name, part in parts.items():
                writer.add_tensor(name, np.ascontiguousarray(part))
    for name, factors in tensors:
        writer.add_tensor(name, np.asarray(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.mark.parametrize("case", CASES)
def test_a_setting_acts_or_is_named(case, tmp_path):
    architecture, options, settings, named = CASES[case]
    options = {**SIZES, **rope(), **options}
    if architecture == "phi3":
        options["pad_token_id"] = 0
    config = CONFIGS[architecture](**options)
    tensors = []
    if case == "llama 3":
        scaled = tf.AutoModelForCausalLM.from_config(config).model.rotary_emb.inv_freq
        tensors = [("rope_freqs.weight", THETA ** -(torch.arange(0, 12, 2) / 12) / scaled)]
    if case == "phi3 long rope":
        tensors = [("rope_factors_short.weight", SHORT), ("rope_factors_long.weight", LONG)]
    original = written(tmp_path / "tiny.gguf", architecture, config, settings, tensors)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = tk.load_model(tmp_path / "tiny.gguf")
    texts = [str(each.message) for each in caught if each.category is ModelWarning]
    texts = [text for text in texts if "The tokenizer of" not in text]
    if named is None:
        assert texts == []
    else:
        assert len(texts) == 1
        assert "tiny.gguf has settings that transformers does not take" in texts[0]
        assert named in texts[0]
        assert "Give it as a directory in Hugging Face layout" in texts[0]
    if named in (None, SCALAR):
        with torch.no_grad():
            found, expected = (m(TOKENS) for m in (model, original))
        difference = found.log_softmax(-1) - expected.logits.log_softmax(-1)
        assert difference.abs().max() < 1e-4


@pytest.mark.parametrize(
    ("kind", "layers", "expected"), [("gemma2", 46, 12), ("gemma2", 26, 16), ("gemma3", 62, 12)]
)
def test_scalar_of_published_gemmas_is_known_by_their_layers(kind, layers, expected):
    from tracekit.models.gguf import complete_config

    config = CONFIGS[kind](**{**SIZES, "num_hidden_layers": layers, "head_dim": 16})
    config, problems = complete_config(config, {}, {})
    assert (config.query_pre_attn_scalar, problems) == (expected, [])
