"""Tiny random models and prompt pairs, made from seeds."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import tracekit as tk
from tests.architectures import ARCHITECTURES, D_MODEL, N_HEADS, N_LAYERS, VOCABULARY, random_model
from tracekit.models.hooked import HookedModel, weights_digest

__all__ = [
    "ARCHITECTURE_CASES",
    "DIGESTS",
    "D_MODEL",
    "METHOD_OPTIONS",
    "N_HEADS",
    "N_LAYERS",
    "PATCHED_KINDS",
    "VOCABULARY",
    "WRITING_KINDS",
    "engine",
    "hf_model",
    "members_of",
    "pairs",
    "rows",
    "shared_model",
]

hf_model = random_model

ARCHITECTURE_CASES = [
    name
    if name in ("gpt2", "llama", "gemma2", "gpt_neox")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in ARCHITECTURES
]
"""Every architecture, of which a default run takes four."""

DIGESTS: dict[HookedModel, str] = {}
"""Shared models, with what tells their weights from others."""


@cache
def shared_model(architecture: str) -> HookedModel:
    """A loaded model for all tests that leave it as it is, which is checked at the end."""
    model = tk.load_model(hf_model(architecture))
    DIGESTS[model] = weights_digest(model)
    return model


WRITING_KINDS = (
    "attention-patterns",
    "head-outputs",
    "mlp-outputs",
    "mlp-neurons",
    "mlp-blocks",
)
"""Kinds that may all be patched at once without one hiding what another does."""
PATCHED_KINDS = (*WRITING_KINDS, "keys", "residual-before")
"""Kinds with every form of activation, and at every place of a block."""
METHOD_OPTIONS = {
    "pgb-ct+local": {"epochs": 5},
    "pgb-ct": {"trials": 3, "epochs": 5},
    "top-k": {},
    "empirical-bayes-top-k": {},
    "local-search": {},
    "greedy": {},
    "random": {"draws": 20},
    "exhaustive": {},
}
"""Search methods with options under which they are quick on twelve heads."""


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


def engine(model, data: tk.PromptPairs, kinds="attention-patterns", metric="odds-ratio", **options):
    """An engine without the checks of a tracer; options are those of a registry or a config."""
    from tracekit.metrics import resolve_metric

    selection = {key: options.pop(key) for key in ("layers", "indices", "spans") if key in options}
    registry = tk.components.ComponentRegistry.build(model.cfg, kinds, **selection)
    config = tk.engine.EngineConfig(**options)
    return tk.engine.Engine.build(model, data, registry, resolve_metric(metric), config)


def members_of(result) -> tuple[int, ...]:
    """Flat indices of the components that a result selects."""
    return tuple(result.binary_mask.nonzero()[:, 0].tolist())
