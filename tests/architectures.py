"""Architectures: which kinds of component can be traced in which, found out by trying.

A new architecture needs nothing here to be traced: where TransformerLens supports it, a `Tracer`
checks its hook points, and refuses kinds that do not act. An entry in `ARCHITECTURES` adds it to
the tests and to the table of `tracekit models`, which `python -m tools.architectures` writes:
`try_out` builds a tiny random model of its real configuration class and runs the same checks on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tracekit.components import KINDS, ComponentRegistry
from tracekit.engine import checks
from tracekit.errors import TracekitError, UnknownNameError
from tracekit.models import load_model

VOCABULARY = 61
D_MODEL = 24
N_LAYERS = 3
N_HEADS = 4
_D_MLP = 40
_CONTEXT = 64


def _gpt2_like(name: str, **changes: Any) -> Callable[[], Any]:
    sizes = {"n_layer": N_LAYERS, "n_head": N_HEADS, "n_embd": D_MODEL, "n_positions": _CONTEXT}
    return _config(name, **sizes, **changes)


def _standard(name: str, **changes: Any) -> Callable[[], Any]:
    sizes = {
        "hidden_size": D_MODEL,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "max_position_embeddings": _CONTEXT,
    }
    return _config(name, **{**sizes, **changes})


def _llama_like(name: str, **changes: Any) -> Callable[[], Any]:
    options = {"intermediate_size": _D_MLP, "tie_word_embeddings": False, "num_key_value_heads": 2}
    return _standard(name, **{**options, **changes})


def _config(name: str, **options: Any) -> Callable[[], Any]:
    """Makes a configuration when it is called: transformers is imported late."""

    def build() -> Any:
        import transformers

        return getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, **options)

    return build


_HEAD = {"head_dim": 6}
_TOKENS = {"bos_token_id": 0, "eos_token_id": 0}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}

ARCHITECTURES: Mapping[str, Callable[[], Any]] = {
    "gpt2": _gpt2_like("GPT2", **_TOKENS),
    "llama": _llama_like("Llama"),
    "qwen2": _llama_like("Qwen2"),
    "qwen3": _llama_like("Qwen3", **_HEAD),
    "mistral": _llama_like("Mistral"),
    "gemma2": _llama_like("Gemma2", **_HEAD, query_pre_attn_scalar=6, **_TOKENS),
    "gemma3": _llama_like("Gemma3Text", **_HEAD, query_pre_attn_scalar=6, **_TOKENS),
    "phi3": _llama_like("Phi3", pad_token_id=0, **_TOKENS),
    "olmo2": _llama_like("Olmo2", pad_token_id=0, **_TOKENS),
    "gpt_neox": _standard("GPTNeoX", intermediate_size=_D_MLP, **_TOKENS),
    "mixtral": _llama_like("Mixtral", num_local_experts=2, num_experts_per_tok=1),
    "opt": _standard("OPT", ffn_dim=4 * D_MODEL, num_hidden_layers=2, word_embed_proj_dim=D_MODEL),
    "gpt_neo": _config(
        "GPTNeo",
        hidden_size=D_MODEL,
        intermediate_size=_D_MLP,
        max_position_embeddings=_CONTEXT,
        num_layers=2,
        num_heads=N_HEADS,
        attention_types=[[["global", "local"], 1]],
        **_TOKENS,
    ),
    "gptj": _gpt2_like("GPTJ", rotary_dim=4, **_TOKENS),
    "gemma": _llama_like("Gemma", **_HEAD, **_TOKENS),
    "vaultgemma": _llama_like("VaultGemma", **_HEAD, query_pre_attn_scalar=6, **_TOKENS),
    "phi": _llama_like("Phi", partial_rotary_factor=2 / 3, **_TOKENS),
    "starcoder2": _llama_like("Starcoder2", **_TOKENS),
    "cohere": _llama_like("Cohere", pad_token_id=0, **_TOKENS),
    "cohere2": _llama_like("Cohere2", pad_token_id=0, **_TOKENS),
    "granite": _llama_like("Granite", residual_multiplier=0.5, **_TOKENS),
    "granitemoe": _llama_like("GraniteMoe", **_EXPERTS, **_TOKENS),
    "glm": _llama_like("Glm", **_HEAD, pad_token_id=0, **_TOKENS),
    "glm4": _llama_like("Glm4", **_HEAD, pad_token_id=0, **_TOKENS),
    "olmo": _llama_like("Olmo", pad_token_id=0, **_TOKENS),
    "olmo3": _llama_like("Olmo3", pad_token_id=0, **_TOKENS),
    "olmoe": _llama_like("Olmoe", num_experts=2, num_experts_per_tok=1, pad_token_id=0, **_TOKENS),
    "exaone4": _llama_like("Exaone4", **_HEAD, pad_token_id=0, **_TOKENS),
    "qwen2_moe": _llama_like(
        "Qwen2Moe",
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=_D_MLP,
        shared_expert_intermediate_size=_D_MLP,
    ),
    "qwen3_moe": _llama_like(
        "Qwen3Moe", **_HEAD, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=_D_MLP
    ),
    "gpt_oss": _llama_like("GptOss", **_HEAD, **_EXPERTS),
    "smollm3": _llama_like("SmolLM3", pad_token_id=0, **_TOKENS),
    "seed_oss": _llama_like("SeedOss", **_HEAD, pad_token_id=0, **_TOKENS),
    "arcee": _llama_like("Arcee"),
    "apertus": _llama_like("Apertus", pad_token_id=0, **_TOKENS),
    "ernie4_5": _llama_like("Ernie4_5", **_HEAD, pad_token_id=0, **_TOKENS),
    "hunyuan": _llama_like("HunYuanDenseV1", **_HEAD, pad_token_id=0, **_TOKENS),
    "nemotron": _llama_like("Nemotron", pad_token_id=0, **_TOKENS),
    "ministral3": _llama_like("Ministral3", **_HEAD),
    "falcon": _config(
        "Falcon",
        hidden_size=D_MODEL,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        multi_query=True,
        parallel_attn=True,
        **_TOKENS,
    ),
    "bloom": _config("Bloom", hidden_size=D_MODEL, n_layer=N_LAYERS, n_head=N_HEADS, **_TOKENS),
    "mpt": _config(
        "Mpt", d_model=D_MODEL, n_layers=N_LAYERS, n_heads=N_HEADS, max_seq_len=_CONTEXT
    ),
    "codegen": _gpt2_like("CodeGen", rotary_dim=4, **_TOKENS),
    "gpt_bigcode": _gpt2_like("GPTBigCode", **_TOKENS),
}
"""Configurations of tiny models, by architecture."""


def random_model(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """A tiny Hugging Face model with random weights; grouped queries where the class has them.

    A matrix has the standard deviation 1.5 over the root of its width. `changes` are entries of
    the configuration.
    """
    import transformers

    if architecture not in ARCHITECTURES:
        raise UnknownNameError("architecture", architecture, ARCHITECTURES)
    config = ARCHITECTURES[architecture]()
    for name, value in changes.items():
        setattr(config, name, value)
    generator = torch.Generator().manual_seed(seed)
    # Vectors, such as attention sinks, are drawn by the class itself.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.ndim > 1:
                spread = 1.5 / parameter.shape[-1] ** 0.5
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def try_out(architecture: str) -> dict[str, str | None]:
    """For every kind of component, None if it can be traced in the architecture, or why not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = load_model(random_model(architecture))
    except TracekitError as error:
        return dict.fromkeys(KINDS, str(error))
    refusals: dict[str, str | None] = {}
    for kind in KINDS:
        try:
            checks.check_sites(model, ComponentRegistry.build(model.cfg, kind))
        except TracekitError as error:
            refusals[kind] = str(error)
        else:
            refusals[kind] = None
    return refusals
