"""On trained weights: every kind, source and direction against plain hooks; published effects."""

from __future__ import annotations

import json
from statistics import mode

import pytest
import torch

import tracekit as tk
from tests import plain
from tests.plain import Plain, effects_by_span

pytestmark = pytest.mark.real

QUESTIONS = [
    *((kind, "counterfactual", "noising") for kind in plain.KINDS),
    ("head-outputs", "zero", "noising"),
    ("head-outputs", "mean", "noising"),
    ("head-outputs", "mean-positional", "noising"),
    ("head-outputs", "noise", "noising"),
    ("head-outputs", "resample", "noising"),
    ("mlp-outputs", "mean", "noising"),
    ("head-outputs", "counterfactual", "denoising"),
    ("residual", "noise", "denoising"),
]


@pytest.fixture(scope="module")
def rows(real_model):
    """Two examples of IOI, as many tokens each, their spans named."""
    pairs = tk.load_dataset("ioi", real_model, n=24)
    length = mode(len(pair.prompt_ids) for pair in pairs)
    return [
        {
            "prompt_ids": list(pair.prompt_ids),
            "counterfactual_ids": list(pair.counterfactual.ids),
            "x_ids": list(pair.x_ids),
            "y_ids": list(pair.y_ids),
            "spans": {name: [at[0], at[-1] + 1] for name, at in pair.spans.items()},
        }
        for pair in pairs
        if len(pair.prompt_ids) == length
    ][:2]


@pytest.mark.parametrize(("kind", "source", "direction"), QUESTIONS)
def test_real_effects_equal_plain_hooks(real_model, bare_model, rows, kind, source, direction):
    tracer = tk.Tracer(
        real_model,
        tk.PromptPairs.from_ids(rows),
        kind,
        "logit-difference",
        split_by="span",
        source=source,
        direction=direction,
    )
    generator = torch.Generator().manual_seed(1)
    mask = (torch.rand(len(tracer.registry), generator=generator) < 0.3).float()
    mask *= torch.rand(len(mask), generator=generator)
    found = tracer.evaluate(mask, per_example=True)
    expected = effects_by_span(Plain("llama", kind, bare_model), rows, tracer, mask)
    assert expected.abs().max() > 0.05
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_real_effects_are_those_of_the_published_code(real_model, shared):
    record = json.loads((shared / "oracle" / "real" / "smollm2_heads_winobias.json").read_text())
    pairs = tk.PromptPairs.from_ids(record["examples"])
    tracer = tk.Tracer(real_model, pairs, "attention-patterns", "odds-ratio")
    largest = 0.0
    for case in record["cases"]:
        found = tracer.evaluate(torch.tensor(case["values"]).flatten(), per_example=True)
        expected = torch.tensor(case["per_example"])
        # Float32 log-probabilities near 20 have steps of 2e-6, and four of them make an effect.
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5, msg=case["mask"])
        assert found.mean().item() == pytest.approx(case["metric"], abs=1e-5)
        largest = max(largest, expected.abs().max().item())
    assert largest > 0.1
