"""Tiny random models and prompt pairs, made from seeds."""

from __future__ import annotations

import torch

import tracekit as tk

VOCABULARY = 61
D_MODEL = 24
N_LAYERS = 3
N_HEADS = 4


def hf_model(architecture: str, seed: int = 0, scale: float = 1.5, **changes):
    """A Hugging Face model with random weights; grouped queries where the class has them.

    `changes` go into its configuration.
    """
    import transformers

    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": D_MODEL,
        "intermediate_size": 40,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    configs = {
        "gpt2": lambda: transformers.GPT2Config(
            n_layer=N_LAYERS,
            n_head=N_HEADS,
            n_embd=D_MODEL,
            n_positions=64,
            vocab_size=VOCABULARY,
            bos_token_id=0,
            eos_token_id=0,
        ),
        "llama": lambda: transformers.LlamaConfig(**shared),
        "qwen3": lambda: transformers.Qwen3Config(**shared, head_dim=6),
        "opt": lambda: transformers.OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=D_MODEL,
            ffn_dim=4 * D_MODEL,
            num_hidden_layers=2,
            num_attention_heads=N_HEADS,
            max_position_embeddings=64,
            word_embed_proj_dim=D_MODEL,
        ),
        "mistral": lambda: transformers.MistralConfig(**shared),
        "gpt_neo": lambda: transformers.GPTNeoConfig(
            vocab_size=VOCABULARY,
            hidden_size=D_MODEL,
            intermediate_size=40,
            max_position_embeddings=64,
            **changes,
        ),
        "mixtral": lambda: transformers.MixtralConfig(
            **shared, num_local_experts=2, num_experts_per_tok=1
        ),
    }
    generator = torch.Generator().manual_seed(seed)
    config = configs[architecture]()
    for name, value in changes.items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.ndim > 1:
                spread = scale / parameter.shape[-1] ** 0.5
                parameter.copy_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def rows(count: int = 8, seed: int = 0, *, longest: int = 4, noise: bool = False) -> list[dict]:
    """Rows for `PromptPairs.from_ids`: ragged prompts, continuations of 1 to `longest` tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(length: int) -> list[int]:
        return torch.randint(VOCABULARY, (length,), generator=generator).tolist()

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    made = []
    for _ in range(count):
        prompt = draw(between(3, 8))
        row = {
            "prompt_ids": prompt,
            "x_ids": draw(between(1, longest)),
            "y_ids": draw(between(1, longest)),
        }
        if noise:
            row["noise"] = 0.5 * torch.randn(len(prompt), D_MODEL, generator=generator)
        else:
            changed = list(prompt)
            changed[between(0, len(prompt) - 2)] = draw(1)[0]
            changed[0] = (prompt[0] + 1) % VOCABULARY
            row["counterfactual_ids"] = changed
        made.append(row)
    return made


def pairs(count: int = 8, seed: int = 0, **options) -> tk.PromptPairs:
    """Prompt pairs from `rows`."""
    return tk.PromptPairs.from_ids(rows(count, seed, **options))


def engine(model, data: tk.PromptPairs, kinds="heads", metric="odds-ratio", **options):
    """An engine without the checks of a tracer."""
    from tracekit.metrics import resolve
    from tracekit.runs import Engine

    chosen = {key: options.pop(key) for key in ("layers", "indices") if key in options}
    registry = tk.ComponentRegistry.build(model.cfg, kinds, **chosen)
    return Engine(model, data, registry, resolve(metric), **options)
