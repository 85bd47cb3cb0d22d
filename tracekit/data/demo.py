"""The four data sets that come with the embedded model.

Their sentences come from the grammar of its training text, so it knows every fact.
"""

from __future__ import annotations

from typing import Any

from tracekit.data.counterfactuals import GaussianNoise
from tracekit.data.prompts import OnMismatch, PromptPairs, published_pairs
from tracekit.data.variable_binding import Desideratum, interleave_parts
from tracekit.demo import rows
from tracekit.models.hooked import embedding_std


def load(name: str, model: Any, *, on_mismatch: OnMismatch = "error") -> PromptPairs:
    """Loads `bias` or `professions`, which are like WinoBias and Professions."""
    return published_pairs(rows(name), model, f"demo-{name}", None, on_mismatch)


def load_facts(
    model: Any, *, noise_factor: float = 3.0, seed: int = 0, on_mismatch: OnMismatch = "error"
) -> PromptPairs:
    """Planted facts; the counterfactual is the prompt with noise on its embeddings.

    `noise_factor` is the standard deviation of the noise over that of the first block's input.
    """
    # Drawn in order, as for the published numbers.
    noise = GaussianNoise(std=noise_factor * embedding_std(model), seed=seed, in_order=True)
    return published_pairs(rows("facts"), model, "demo-facts", None, on_mismatch, noise)


def load_binding(
    model: Any,
    *,
    desideratum: Desideratum = "value",
    weights: tuple[float, float] = (5.0, 1.0),
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Arithmetic on two variables; arguments are as in `variable_binding.load`."""
    kinds = {"value": ("binding",), "operation": ("operations",), "both": ("binding", "operations")}
    parts = [rows(name) for name in kinds[desideratum]]
    name = f"demo-binding{'' if desideratum == 'value' else f'-{desideratum}'}"
    return published_pairs(interleave_parts(parts, weights), model, name, None, on_mismatch)
