"""Searches for effects below 0, and which sign is sought where nobody says."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tracekit as tk
from tests import tiny
from tracekit.demo import MODEL_DIR
from tracekit.errors import (
    BudgetError,
    ConfigError,
    MetricError,
    TargetNotReachedError,
    UnreliableResultWarning,
)

_PLAIN = ("exhaustive", "greedy", "top-k", "empirical-bayes-top-k", "local-search", "mask-ig")
METHODS = {
    **{name: {} for name in (*_PLAIN, "attribution")},
    "random": {"draws": 12},
    "pgb-ct+local": {"epochs": 4},
    "dcm": {"epochs": 4},
    "learned-ranking": {"epochs": 4},
}
OBJECTIVES = ("mean", "trimmed-mean", "lower-bound", "median", "faithful", "auto")


def rows(*, exchange=False, count=11):
    """Rows of which all heads together lower the logit difference, or raise it."""
    made = tiny.rows(count, seed=3)
    for row in made if exchange else ():
        row["x_ids"], row["y_ids"] = row["y_ids"], row["x_ids"]
    return made


@pytest.fixture(scope="module")
def is_negative(model):
    pairs = tk.PromptPairs.from_ids(rows())
    return tk.Tracer(model, pairs, "head-outputs", "logit-difference").full_effect < 0


@pytest.fixture
def both(model, is_negative):
    """Tracers of the same examples with x and y exchanged: effects of one are those of the other
    times -1. The first has a full effect above 0."""
    pairs = [tk.PromptPairs.from_ids(rows(exchange=x)) for x in (is_negative, not is_negative)]
    return [tk.Tracer(model, each, "head-outputs", "logit-difference") for each in pairs]


@pytest.mark.slow
@pytest.mark.pairwise
@pytest.mark.parametrize(
    ("method", "objective"),
    [
        (method, objective)
        for objective in OBJECTIVES
        for method in METHODS
        # Of the objective auto, two are enough.
        if objective != "auto" or method in ("local-search", "greedy")
    ],
)
def test_the_other_sign_is_the_search_of_exchanged_continuations(both, method, objective):
    given = {"budget": 3, "objective": objective, **METHODS[method]}
    plain = both[0].run(method, **given)
    other = both[1].run(method, sign="negative", **given)
    assert other.labels == plain.labels
    assert other.effect == pytest.approx(-plain.effect, abs=1e-5)
    assert other.effect == pytest.approx(both[1].evaluate(other), abs=1e-5)
    assert (plain.run.sign, other.run.sign) == ("positive", "negative")
    if objective == "mean" and plain.component_scores is not None:
        assert torch.allclose(other.component_scores, -plain.component_scores, atol=1e-5)
    if objective == "auto":
        for name, effect in plain.run.held_out_by.items():
            assert other.run.held_out_by[name] == pytest.approx(-effect, abs=1e-5)


@pytest.mark.slow
def test_constraints_held_out_examples_and_log_odds_go_with_it(model, both, is_negative):
    keep = tk.Constraint(metric="kl", at_most=0.05)
    plain, other = (
        tracer.run("exhaustive", budget=2, constraint=keep, sign=sign)
        for tracer, sign in zip(both, ("positive", "negative"), strict=True)
    )
    assert (other.labels, other.constraint.is_within) == (plain.labels, True)
    pairs = tk.PromptPairs.from_ids(rows(exchange=not is_negative))
    held = tk.Tracer(model, pairs[:7], "head-outputs", "odds-ratio", held_out=pairs[7:])
    for objective in ("mean", "log-odds"):
        found = held.run("exhaustive", budget=2, objective=objective, sign="full")
        assert found.effect < 0
        assert found.held_out_effect == pytest.approx(found.held_out.effects.mean().item())
    sets = held.engine.set_effects(
        [tuple(m) for m in torch.combinations(torch.arange(12)).tolist()]
    )
    assert held.run("exhaustive", budget=2, sign="negative").effect <= sets.mean(1).min() + 1e-6


@pytest.mark.slow
def test_fronts_of_the_other_sign(both, tmp_path):
    plain = both[0].pareto(max_budget=3, max_passes=60)
    other = both[1].pareto(max_budget=3, max_passes=60, sign="negative")
    assert [each.labels for each in other] == [each.labels for each in plain]
    assert other.best_size() == plain.best_size()
    for one, two in zip(plain.statistics, other.statistics, strict=True):
        for name in ("cross_fitted", "control", "from_all"):
            assert getattr(two, name) == pytest.approx(-getattr(one, name), abs=1e-5), name
    effect = other[-1].effect
    assert other.smallest(effect=effect).effect == effect
    with pytest.raises(TargetNotReachedError):
        other.smallest(effect=2 * effect)
    compared = tk.compare([*other, *both[1].pareto(max_budget=3, max_passes=60)])
    assert compared.smallest(effect=effect).effect <= effect < 0
    loaded = tk.ParetoFront.load(other.save(tmp_path / "front"))
    assert {result.run.sign for result in loaded} == {"negative"}
    assert "negative" in loaded[0].title
    faithful = [
        tracer.pareto(
            max_budget=3, max_passes=60, statistics=False, objective="faithful", sign=sign
        )
        for tracer, sign in zip(both, ("positive", "full"), strict=True)
    ]
    trades = [[(e.members, round(e.faithfulness, 3)) for e in each.trade_offs] for each in faithful]
    assert faithful[0][-1].labels == faithful[1][-1].labels
    assert trades[0][-1] == trades[1][-1]


def test_a_target_says_its_sign(both):
    effect = both[1].full_effect * 0.5
    found = both[1].run("greedy", target_effect=effect)
    assert (found.run.sign, found.target_effect) == ("negative", effect)
    assert found.effect <= effect
    assert found.labels == both[0].run("greedy", target_effect=-effect).labels
    with pytest.raises(BudgetError, match="target_effect is -1, and sign='positive'.*above 0"):
        both[1].run("greedy", target_effect=-1.0, sign="positive")
    with pytest.raises(BudgetError, match="target_effect is 1, and sign='negative'.*below 0"):
        both[0].run("greedy", target_effect=1.0, sign="negative")
    with pytest.raises(TargetNotReachedError, match="Effects below 0 are sought"):
        both[1].run("top-k", target_effect=-1e3)


@pytest.mark.slow
def test_what_is_warned_of_and_refused(both):
    text = "have an effect of -.* the other way.*'full'"
    with pytest.warns(UnreliableResultWarning, match=text):
        both[1].run("top-k", budget=1)
    with pytest.warns(UnreliableResultWarning, match=r"away from x.* with effects below 0.*'full'"):
        both[0].run("top-k", budget=1, sign="negative")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="All components together have an effect")
        both[0].run("top-k", budget=1)
        both[1].run("top-k", budget=1, sign="full")
        both[1].run("top-k", budget=1, sign="positive")
    with pytest.raises(ConfigError, match="sign is 'down'. Use one of positive, negative, full"):
        both[1].run("top-k", budget=1, sign="down")
    with pytest.raises(MetricError, match="needs a positive one.*sign='full'"):
        both[1].run("top-k", budget=1, objective="faithful")
    with pytest.raises(MetricError, match="needs a negative one"):
        both[0].run("top-k", budget=1, objective="faithful", sign="negative")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_which_component_differs_between_two_models(seed):
    """Only the MLP of a layer differs, and the other model's values raise x."""
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
        assert (result.run.objective, result.run.sign) == ("faithful, complement 0", "negative")
    assert tracer.run("exhaustive", budget=1, objective="mean").effect < 0
    low = tracer.run("greedy", target_effect=tracer.full_effect / 2)
    assert (low.run.objective, low.run.sign) == ("mean", "negative")
    front = tracer.pareto(max_budget=2, statistics=False, max_passes=40)
    assert front[0].labels == ["MLP1"]


@pytest.mark.slow
def test_sweeps_and_commands_take_it(tmp_path):
    runs = tk.sweep(
        ["demo"], ["demo-bias"], ["top-k"], [2], output=tmp_path, limit=6, sign="negative"
    )
    assert runs.to_frame()["sign"].tolist() == ["negative"]
    assert runs.to_frame()["effect"].item() < 0
    assert tk.load_runs(tmp_path).to_frame()["sign"].tolist() == ["negative"]


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["negative", "full"])
def test_a_sweep_searches_for_the_sign(demo_model, tmp_path, sign):
    runs = tk.sweep(
        ["demo"],
        ["demo-facts"],
        ["top-k"],
        [2],
        components=["head-outputs"],
        metrics=["logit-difference"],
        layers=[1],
        limit=4,
        sign=sign,
        output=tmp_path,
    )
    (result,) = runs[0].curve
    pairs = tk.load_dataset("demo-facts", demo_model)[:4]
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", "logit-difference", layers=[1])
    expected = tracer.run("top-k", budget=2, sign=sign)
    assert (result.labels, result.run.sign) == (expected.labels, expected.run.sign)
