"""Which architectures can be traced by what, found out by trying; and the paper's models.

`try_out` builds a tiny random model of an architecture's real configuration class and runs on it
the checks that every `Tracer` runs on its own model. The table of `tracekit models` is made so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from tracekit.checks import hooks
from tracekit.components import KINDS, ComponentRegistry
from tracekit.errors import TracekitError, UnknownArchitectureError
from tracekit.models.loading import load_model

VOCABULARY = 61
D_MODEL = 24
N_LAYERS = 3
N_HEADS = 4
_D_MLP = 40
_CONTEXT = 64


@dataclass(frozen=True, kw_only=True)
class PaperModel:
    """A model that the paper traces."""

    hub: str
    """Name on the hub, where weights can be had from."""
    title: str
    """Name in the paper's tables."""
    architecture: str
    """One of `ARCHITECTURES`."""
    n_layers: int
    n_heads: int
    """Query heads per layer."""
    d_model: int
    published: Mapping[str, int]
    """Number of components of each kind in the paper's table of specifications."""

    def count(self, kind: str) -> int:
        """Number of components of a kind."""
        sizes = SimpleNamespace(
            n_layers=self.n_layers, n_heads=self.n_heads, d_model=self.d_model, d_mlp=None
        )
        return len(ComponentRegistry.build(sizes, kind))


def _paper(
    hub: str, title: str, architecture: str, sizes: tuple[int, int, int], **published: int
) -> PaperModel:
    layers, heads, width = sizes
    return PaperModel(
        hub=hub,
        title=title,
        architecture=architecture,
        n_layers=layers,
        n_heads=heads,
        d_model=width,
        published={name.replace("_", "-"): count for name, count in published.items()},
    )


PAPER_MODELS: Mapping[str, PaperModel] = {
    model.title: model
    for model in (
        _paper("distilgpt2", "DistilGPT2", "gpt2", (6, 12, 768), heads=72, neurons=4608),
        _paper("gpt2", "GPT2-small", "gpt2", (12, 12, 768), heads=144, neurons=9216),
        _paper("gpt2-medium", "GPT2-medium", "gpt2", (24, 16, 1024), heads=384, neurons=24576),
        _paper("gpt2-large", "GPT2-large", "gpt2", (36, 20, 1280), heads=720, neurons=46080),
        _paper("gpt2-xl", "GPT2-xl", "gpt2", (48, 25, 1600), heads=1200, neurons=76800),
        _paper("Qwen/Qwen3-1.7B", "Qwen3-1.7B", "qwen3", (28, 16, 2048), heads=448, neurons=57344),
        _paper(
            "meta-llama/Llama-3.2-1B",
            "Llama-3.2-1B",
            "llama",
            (16, 32, 2048),
            heads=512,
            neurons=32768,
        ),
        _paper(
            "huggyllama/llama-7b",
            "LLaMA-7B",
            "llama",
            (32, 32, 4096),
            head_outputs=1024,
            mlp_blocks=32,
        ),
        _paper(
            "huggyllama/llama-13b",
            "LLaMA-13B",
            "llama",
            (40, 40, 5120),
            head_outputs=1600,
            mlp_blocks=40,
        ),
    )
}


def _gpt2_like(name: str, **changes: Any) -> Callable[[], Any]:
    def build() -> Any:
        sizes = {"n_layer": N_LAYERS, "n_head": N_HEADS, "n_embd": D_MODEL, "n_positions": _CONTEXT}
        return _config(name, vocab_size=VOCABULARY, **sizes, **changes)

    return build


def _llama_like(name: str, **changes: Any) -> Callable[[], Any]:
    def build() -> Any:
        return _config(
            name,
            vocab_size=VOCABULARY,
            hidden_size=D_MODEL,
            intermediate_size=_D_MLP,
            num_hidden_layers=N_LAYERS,
            num_attention_heads=N_HEADS,
            max_position_embeddings=_CONTEXT,
            tie_word_embeddings=False,
            **{"num_key_value_heads": 2, **changes},
        )

    return build


def _config(name: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, f"{name}Config")(**options)


_HEAD = {"head_dim": 6}
_TOKENS = {"bos_token_id": 0, "eos_token_id": 0}

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
    "gpt_neox": lambda: _config(
        "GPTNeoX",
        vocab_size=VOCABULARY,
        hidden_size=D_MODEL,
        intermediate_size=_D_MLP,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        max_position_embeddings=_CONTEXT,
        **_TOKENS,
    ),
    "mixtral": _llama_like("Mixtral", num_local_experts=2, num_experts_per_tok=1),
    "opt": lambda: _config(
        "OPT",
        vocab_size=VOCABULARY,
        hidden_size=D_MODEL,
        ffn_dim=4 * D_MODEL,
        num_hidden_layers=2,
        num_attention_heads=N_HEADS,
        max_position_embeddings=_CONTEXT,
        word_embed_proj_dim=D_MODEL,
    ),
    "gpt_neo": lambda: _config(
        "GPTNeo",
        vocab_size=VOCABULARY,
        hidden_size=D_MODEL,
        intermediate_size=_D_MLP,
        max_position_embeddings=_CONTEXT,
        num_layers=2,
        num_heads=N_HEADS,
        attention_types=[[["global", "local"], 1]],
        **_TOKENS,
    ),
    "gptj": _gpt2_like("GPTJ", rotary_dim=4, **_TOKENS),
}
"""Configurations of tiny models, by architecture."""


def random_model(architecture: str, seed: int = 0, scale: float = 1.5, **changes: Any) -> Any:
    """A tiny Hugging Face model with random weights; grouped queries where the class has them.

    Args:
        architecture: One of `ARCHITECTURES`.
        seed: Of the weights.
        scale: Standard deviation of a matrix times the root of its width.
        **changes: Entries of the configuration to change.

    Raises:
        UnknownArchitectureError: None of them.
    """
    import transformers

    if architecture not in ARCHITECTURES:
        raise UnknownArchitectureError(architecture, ARCHITECTURES)
    config = ARCHITECTURES[architecture]()
    for name, value in changes.items():
        setattr(config, name, value)
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.ndim > 1:
                spread = scale / parameter.shape[-1] ** 0.5
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def try_out(architecture: str) -> dict[str, str | None]:
    """For every kind of component, None if the architecture can be traced by it, or why not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = load_model(random_model(architecture))
    except TracekitError as error:
        return dict.fromkeys(KINDS, str(error))
    found: dict[str, str | None] = {}
    for kind in KINDS:
        try:
            hooks.check_sites(model, ComponentRegistry.build(model.cfg, kind))
        except TracekitError as error:
            found[kind] = str(error)
        else:
            found[kind] = None
    return found
