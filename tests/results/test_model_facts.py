"""Results say which weights they are of, and are not compared with those of others."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ComparisonError
from tracekit.models import weights_digest


def traced(model):
    return tk.Tracer(model, tiny.pairs(6), "head-outputs", "logit-difference").run(
        "top-k", budget=2
    )


def test_results_say_which_weights_and_hooks_the_model_had(tmp_path):
    model = tk.load_model(tiny.hf_model("gpt2"))
    model.add_hook("blocks.0.attn.hook_z", lambda value, hook: value * 1)
    with pytest.warns(UserWarning, match="hook"):
        result = traced(model)
    loaded = tk.TraceResult.load(result.save(tmp_path))
    facts = loaded.model_facts
    assert facts == result.model_facts
    assert facts.weights_digest == weights_digest(model)
    assert facts.foreign_hooks == ("blocks.0.attn.hook_z",)
    assert facts.revision is None
    assert loaded.noise_floor == 0


def test_results_of_other_weights_are_not_compared():
    one, other = tk.load_model(tiny.hf_model("gpt2")), tk.load_model(tiny.hf_model("gpt2"))
    with torch.no_grad():
        next(iter(other.parameters()))[0, 0] += 1e-3
    first, second = traced(one), traced(other)
    with pytest.raises(ComparisonError, match=r"^The results are of different weights \(\w{12} an"):
        tk.compare([first, second])
