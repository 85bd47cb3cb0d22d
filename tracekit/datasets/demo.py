"""The four data sets that come with the embedded model.

Their sentences are made by `tracekit.demo.grammar`, which also made the model's training text,
so what the model was taught is known exactly.
"""

from __future__ import annotations

from typing import Any

from tracekit.demo import rows
from tracekit.models import embedding_std
from tracekit.prompts import GaussianNoise, OnMismatch, PromptPairs


def load_bias(model: Any, *, on_mismatch: OnMismatch = "error") -> PromptPairs:
    """Two occupations and a pronoun, in the manner of WinoBias."""
    return PromptPairs.from_text(rows.bias_rows(), model, name="demo-bias", on_mismatch=on_mismatch)


def load_professions(model: Any, *, on_mismatch: OnMismatch = "error") -> PromptPairs:
    """Occupation -> pronoun, in the manner of Professions."""
    return PromptPairs.from_text(
        rows.profession_rows(), model, name="demo-professions", on_mismatch=on_mismatch
    )


def load_facts(
    model: Any, *, noise_factor: float = 3.0, seed: int = 0, on_mismatch: OnMismatch = "error"
) -> PromptPairs:
    """Planted facts; the counterfactual is the prompt with noise on its embeddings.

    Args:
        model: The model to be traced.
        noise_factor: Standard deviation of the noise, in units of the standard deviation of what
            the first block reads.
        seed: Seed of the noise.
        on_mismatch: As in `PromptPairs.from_text`.
    """
    noise = GaussianNoise(std=noise_factor * embedding_std(model), seed=seed)
    return PromptPairs.from_text(
        rows.fact_rows(), model, noise=noise, name="demo-facts", on_mismatch=on_mismatch
    )


def load_binding(model: Any, *, on_mismatch: OnMismatch = "error") -> PromptPairs:
    """Arithmetic on two variables, one operand changed: x is the old answer, y the new one."""
    return PromptPairs.from_text(
        rows.binding_rows(), model, name="demo-binding", on_mismatch=on_mismatch
    )
