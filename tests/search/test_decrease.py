"""Effects below 0: said before a search, sought when asked for, and found between two models."""

from __future__ import annotations

import warnings
from itertools import combinations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tracekit as tk
from tests import tiny
from tracekit.demo import MODEL_DIR
from tracekit.errors import BudgetError, UnreliableResultWarning

SAID = "they move the metric towards x, and the search seeks sets that move it away"
METHODS = ("top-k", "greedy", "exhaustive", "local-search", "mask-ig", "random", "pgb-ct", "dcm")


@pytest.fixture(scope="module")
def backwards(demo_model):
    """A question whose full effect is below 0: prompts and counterfactuals are exchanged."""
    pairs = tk.load_dataset("demo-facts", demo_model)[:12].reversed()
    return tk.Tracer(demo_model, pairs, "mlp-blocks+attention-blocks", "logit-difference")


@pytest.mark.parametrize("method", METHODS)
def test_the_opposite_is_sought_when_it_is_asked_for(backwards, method):
    assert backwards.full_effect < 0
    options = {"max_passes": 40} if method == "local-search" else {}
    options |= {"epochs": 4, "trials": 1} if method in ("pgb-ct", "dcm") else {}
    with pytest.warns(UnreliableResultWarning, match=SAID):
        backwards.run(method, budget=2, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{SAID}")
        result = backwards.run(method, budget=2, objective="decrease", **options)
    assert result.run.objective == "decrease"
    # Reported is the effect itself.
    assert result.effect == pytest.approx(backwards.evaluate(result), abs=1e-5)
    assert result.effect < 0
    if method == "exhaustive":
        sets = [*combinations(range(8), 2), *((i,) for i in range(8))]
        assert result.effect == pytest.approx(
            backwards.engine.set_effects(sets).mean(1).min().item(), abs=1e-5
        )


def test_fronts_targets_and_constraints(backwards):
    front = backwards.pareto(max_budget=3, objective="decrease", statistics=False, max_passes=60)
    effects = [result.effect for result in front]
    assert effects == sorted(effects, reverse=True)
    assert front.smallest(effect=effects[-1]).n_selected == front[-1].n_selected
    found = backwards.run("greedy", target_effect=effects[0] / 2, objective="decrease")
    assert found.effect <= effects[0] / 2
    assert found.target_effect == effects[0] / 2
    for target, objective, text in ((-1.0, "mean", "above 0"), (1.0, "decrease", "below 0")):
        with pytest.raises(BudgetError, match=f"seeks effects {text}. Give one of these, or obj"):
            backwards.run("greedy", target_effect=target, objective=objective)
    keep = tk.Constraint(metric="kl", at_most=100.0)
    bound = backwards.run("greedy", budget=1, objective="decrease", constraint=keep)
    assert bound.labels == front[0].labels


def test_an_effect_above_0_is_no_reason_to_warn(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:12]
    tracer = tk.Tracer(demo_model, pairs, "mlp-blocks", "logit-difference")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{SAID}")
        tracer.run("top-k", budget=1)
    with pytest.warns(UnreliableResultWarning, match="sets whose effect is below 0"):
        tracer.run("top-k", budget=1, objective="decrease")


@pytest.mark.parametrize("seed", range(6))
def test_which_component_differs_between_two_models(seed):
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    base, tuned = (AutoModelForCausalLM.from_pretrained(MODEL_DIR) for _ in range(2))
    torch.manual_seed(seed)
    for name, weight in tuned.named_parameters():
        if ".1." in name and "mlp" in name:
            weight.data.add_(torch.randn_like(weight) * weight.std() * 0.7)
    model = tk.load_model(tuned, tokenizer=tokenizer)
    source = tk.OtherModel(tk.load_model(base, tokenizer=tokenizer))
    pairs = tk.load_dataset("demo-facts", model)[:16]
    tracer = tk.Tracer(
        model, pairs, "attention-blocks+mlp-blocks", "logit-difference", source=source
    )
    assert tracer.full_effect < 0
    for method in ("exhaustive", "top-k", "greedy"):
        result = tracer.run(method, budget=2)
        assert "MLP1" in result.labels
        assert result.effect == pytest.approx(tracer.full_effect, rel=0.1)
        assert result.run.objective == "faithful, complement 0"
    assert tracer.run("exhaustive", budget=1, objective="decrease").effect < 0
    low = tracer.run("greedy", target_effect=tracer.full_effect / 2)
    assert low.run.objective == "decrease"
    front = tracer.pareto(max_budget=2, statistics=False, max_passes=40)
    assert front[0].labels == ["MLP1"]


def test_it_is_saved_and_continues(model, tmp_path):
    tracer = tk.Tracer(model, tiny.pairs(6))
    result = tracer.run("top-k", budget=2, objective="decrease")
    loaded = tk.TraceResult.load(result.save(tmp_path))
    assert loaded.run.objective == "decrease"
    assert loaded.title == result.title == "top-k (decrease)"
