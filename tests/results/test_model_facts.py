"""Results say which weights they are of, and are not compared with those of others."""

from __future__ import annotations

import re

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
    text = r'^The results are of different weights \(\w{12} an.*load_model\(..., name="..."\)\.$'
    with pytest.raises(ComparisonError, match=text):
        tk.compare([first, second])
    # As the message says.
    named = traced(tk.load_model(tiny.hf_model("gpt2", seed=3), name="trained"))
    assert tk.compare([first, named]).jaccard.shape == (2, 2)


@pytest.mark.slow
def test_one_model_in_two_types_is_compared_where_that_is_asked_for():
    plain = tk.load_model(tiny.hf_model("gpt2"))
    first, second = traced(plain), traced(tk.load_model(tiny.hf_model("gpt2").to(torch.bfloat16)))
    text = r"of different dtypes \(float32 and bfloat16\).* Or give any_dtype=True\.$"
    with pytest.raises(ComparisonError, match=text):
        tk.compare([first, second])
    compared = tk.compare([first, second], any_dtype=True)
    assert compared.labels == ("float32", "bfloat16")
    assert "bfloat16 & 2 of" in compared.to_latex()
    # Curves of one method would be one line.
    with pytest.raises(ComparisonError, match=r"dtypes \(float32 and .*in results\]\)\.$"):
        compared.curve()
    with torch.no_grad():
        next(iter(plain.parameters()))[0, 0] += 1e-3
    with pytest.raises(ComparisonError, match=r"of different weights \(\w{12} and"):
        tk.compare([first, second, traced(plain)], any_dtype=True)


def test_what_is_printed_names_a_type_other_than_float32():
    for dtype, named in ((torch.float32, ""), (torch.bfloat16, r" \(bfloat16\)")):
        model = tk.load_model(tiny.hf_model("gpt2").to(dtype))
        tracer = tk.Tracer(model, tiny.pairs(6), "head-outputs", "logit-difference")
        curve = tracer.run("top-k", budgets=[1, 2])
        for shown in (tracer, curve, curve[0]):
            assert re.search(rf"GPT2LMHeadModel{named}[,:;]", repr(shown)), repr(shown)
            assert bool(re.search(r"\(bfloat16\)", shown._repr_html_())) == bool(named)
