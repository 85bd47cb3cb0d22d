"""Metrics that read the distribution at the first predicted token, against plain computations."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.plain import MODULES, Plain
from tracekit.errors import (
    ConfigError,
    MetricError,
    MissingContinuationError,
    PairsError,
    UnknownNameError,
)
from tracekit.metrics import METRICS

METRIC_NAMES = (
    "kl",
    "jensen-shannon",
    "entropy-change",
    "set-logit-difference",
    "set-probability-difference",
    "rank-change",
    "first-choice-change",
)


def rows_with_sets(count=6, seed=0):
    rows = tiny.rows(count, seed)
    for number, row in enumerate(rows):
        first_x, first_y = row["x_ids"][0], row["y_ids"][0]
        others = [t for t in range(20) if t not in (first_x, first_y)]
        if number % 2:
            row["x_set_ids"] = [first_x, *others[:3]]
            row["y_set_ids"] = [*others[5:7], first_y]
        elif first_x == first_y:
            row["y_set_ids"] = others[:1]
    return rows


def plain_values(row, before, after):
    """Every metric by its textbook formula, from two vectors of probabilities."""

    def entropy(p):
        return -(p * p.log()).sum()

    def divergence(p, q):
        return (p * (p / q).log()).sum()

    first_x = row["x_ids"][0]
    sets = [torch.tensor(row.get(f"{side}_set_ids", row[f"{side}_ids"][:1])) for side in ("x", "y")]
    (px, py), (qx, qy) = ([p[ids].sum() for ids in sets] for p in (before, after))
    middle = (before + after) / 2
    return {
        "kl": divergence(before, after),
        "jensen-shannon": (divergence(before, middle) + divergence(after, middle)) / 2,
        "entropy-change": entropy(after) - entropy(before),
        "set-logit-difference": (qy / qx).log() - (py / px).log(),
        "set-probability-difference": (qy - qx) - (py - px),
        "rank-change": (after > after[first_x]).sum() - (before > before[first_x]).sum(),
        "first-choice-change": before.argmax() != after.argmax(),
    }


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name == "llama" else pytest.mark.soak) for name in MODULES],
)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_effects_equal_plain_hooks(architecture, soft, direction):
    plain = Plain(architecture, "head-outputs")
    rows = rows_with_sets()
    tracer = tk.Tracer(
        tiny.shared_model(architecture),
        tk.PromptPairs.from_ids(rows),
        "head-outputs",
        metric="logit-difference",
        direction=direction,
    )
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(len(tracer.registry), generator=generator)
    mask = mask if soft else (mask > 0.5).float()
    table = tracer.evaluate(mask, metrics=METRIC_NAMES, per_example=True)
    by_layer = mask.reshape(len(plain.modules), -1)
    for number, row in enumerate(rows):
        base, source = row["prompt_ids"], row["counterfactual_ids"]
        if direction == "denoising":
            base, source = source, base
        values = plain.activations(source)
        nothing = plain.run(base, lambda layer, value: None)[-1].exp().double()
        acted = plain.run(base, plain.mixed(by_layer, values, len(base)))[-1].exp().double()
        # When clean values are put back, the run that is started from comes second.
        runs = (nothing, acted) if direction == "noising" else (acted, nothing)
        for name, value in plain_values(row, *runs).items():
            assert table[name][number] == pytest.approx(float(value), abs=1e-3), name


@pytest.mark.slow
def test_a_table_has_what_single_tracers_say(model):
    pairs = tk.PromptPairs.from_ids(rows_with_sets())
    tracer = tk.Tracer(model, pairs, "head-outputs", metric="logit-difference")
    members = [tracer.registry[1], tracer.registry[5]]
    names = ["kl", "odds-ratio", "logit-difference", "accuracy", "rank-change"]
    cost = tracer.engine.cost.forward
    table = tracer.evaluate(members, metrics=names)
    assert tracer.engine.cost.forward == cost + 2  # The set, and all components.
    assert list(table.columns) == names
    assert list(table.index) == ["effect", "effect_low", "effect_high", "full_effect", "share"]
    for name in names:
        alone = tk.Tracer(model, pairs, "head-outputs", metric=name)
        column = table[name]
        assert column["effect"] == pytest.approx(alone.evaluate(members), abs=1e-6)
        assert column["full_effect"] == pytest.approx(alone.full_effect, abs=1e-6)
        assert column["effect_low"] <= column["effect"] <= column["effect_high"]
        if column["full_effect"]:
            assert column["share"] == pytest.approx(column["effect"] / column["full_effect"])


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_fast_paths_equal_the_plain_way(model, name):
    pairs = tk.PromptPairs.from_ids(rows_with_sets(9))
    fast = tiny.engine(model, pairs, "head-outputs", name)
    plain = tiny.engine(
        model,
        pairs,
        "head-outputs",
        name,
        capabilities=tk.Capabilities.none(),
        max_batch_size=1,
    )
    sets = [(), (0,), (0, 3), (0, 3, 7), (11,), tuple(range(12))]
    expected = torch.stack(
        [plain.effects(tk.components.masks.from_indices(members, 12).float()) for members in sets]
    )
    torch.testing.assert_close(fast.set_effects(sets), expected, rtol=1e-4, atol=1e-5)
    assert fast.set_effects([()]).abs().max() < 1e-6
    if METRICS[name].differentiable:
        mask = torch.linspace(0.1, 0.9, 12)
        gradients = [each.gradient(mask, torch.ones_like)[1] for each in (fast, plain)]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
        assert gradients[0].abs().max() > 0


@pytest.mark.parametrize("max_memory", [0, 2000, None])
def test_clean_distributions_beyond_the_memory_are_computed_again(model, max_memory):
    pairs = tk.PromptPairs.from_ids(rows_with_sets(9))
    engine = tiny.engine(
        model, pairs, "head-outputs", "kl", max_memory=max_memory, max_batch_size=4
    )
    kept = tiny.engine(model, pairs, "head-outputs", "kl")
    mask = torch.linspace(0.1, 0.9, 12)
    torch.testing.assert_close(engine.effects(mask), kept.effects(mask), rtol=1e-4, atol=1e-6)
    mine, other = (each.gradient(mask, torch.ones_like)[1] for each in (engine, kept))
    torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-6)
    assert (engine.clean_run._latest is not None) == (max_memory is not None)
    assert (engine.clean.distribution is None) == (max_memory is not None)


@pytest.mark.slow
def test_results_carry_further_metrics_and_are_read_back(model, tmp_path):
    pairs = tk.PromptPairs.from_ids(rows_with_sets())
    tracer = tk.Tracer(
        model, pairs, "head-outputs", metric="logit-difference", extra_metrics=["kl", "accuracy"]
    )
    result = tracer.run("top-k", budget=3)
    assert set(result.extra_effects) == {"kl", "accuracy"}
    assert result.extra_effects["kl"] == pytest.approx(
        tracer.evaluate(result, metrics=["kl"])["kl"]["effect"]
    )
    assert tk.TraceResult.load(result.save(tmp_path / "run")).extra_effects == result.extra_effects
    front = tracer.pareto(max_budget=3, statistics=False)
    assert {"kl", "accuracy"} <= set(front.to_frame().columns)
    assert {"kl", "accuracy"} <= set(tracer.run("top-k", budgets=[1, 2]).to_frame().columns)
    assert tk.Tracer(model, pairs, "head-outputs").run("top-k", budget=2).extra_effects == {}


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["kl", "jensen-shannon", "entropy-change"])
def test_searches_follow_distances(model, metric):
    tracer = tk.Tracer(model, tiny.pairs(16), "head-outputs", metric=metric)
    best = tracer.run("exhaustive", budget=3).effect
    for method, options in (
        ("greedy", {}),
        ("local-search", {}),
        ("pgb-ct", {"trials": 3, "epochs": 8}),
    ):
        found = tracer.run(method, budget=3, **options)
        assert 0.8 * best <= found.effect <= best + 1e-6, method
    assert 0 < tracer.run("mask-ig", budget=3).effect <= best + 1e-6


@pytest.mark.slow
def test_local_search_is_not_blind_where_the_gradient_vanishes(demo_model):
    facts = tk.load_dataset("demo-facts", demo_model)[:32]
    tracer = tk.Tracer(demo_model, facts, "head-outputs", metric="kl")
    assert tracer.engine.predict_changes(()).predicted_effects.abs().max() > 0.1
    greedy = tracer.run("greedy", budgets=[3, 6])
    front = tracer.pareto(max_budget=6, statistics=False)
    for result in greedy:
        assert front.at(result.budget).effect >= 0.99 * result.effect


def test_a_gradient_that_vanishes_ranks_nothing(model):
    tracer = tk.Tracer(model, tiny.pairs(), "head-outputs", metric="kl")
    with pytest.raises(tk.errors.NotDifferentiableError, match="vanishes at the empty mask"):
        tracer.run("attribution", budget=2)


@pytest.fixture(scope="module")
def with_sets(model):
    return tk.Tracer(model, tk.PromptPairs.from_ids(rows_with_sets()), "head-outputs")


@pytest.mark.parametrize(
    ("metrics", "error", "text"),
    [
        (["kll"], UnknownNameError, "'kll'. Did you mean 'kl'"),
        (["kl", "kl"], ConfigError, r"twice in \['kl', 'kl'\]. Name each one once"),
        ([], ConfigError, "metrics is empty. Name at least one, or leave it out"),
    ],
)
def test_metrics_that_are_refused(with_sets, metrics, error, text):
    with pytest.raises(error, match=text):
        with_sets.evaluate(torch.zeros(12), metrics=metrics)


@pytest.mark.parametrize("name", ["logit-difference", "set-logit-difference", "accuracy"])
def test_metrics_of_y_are_refused_where_there_is_none(model, name):
    rows = [{k: v for k, v in row.items() if k[0] != "y"} for row in tiny.rows()]
    pairs = tk.PromptPairs.from_ids(rows)
    bare = tk.Tracer(model, pairs, "head-outputs", metric="probability-drop")
    with pytest.raises(MissingContinuationError, match="(has no|has a) y. Give every example a"):
        bare.evaluate(torch.zeros(12), metrics=[name])


def test_what_is_refused(model, with_sets, unchecked):
    with pytest.raises(ConfigError, match="metrics are 'kl'. Give a list"):
        tk.Tracer(model, tiny.pairs(), "head-outputs", extra_metrics="kl")
    with pytest.raises(ConfigError, match="reads 'rank'. Give a tuple of 'argmax'"):
        tk.Metric("mine", lambda c, i: c.x, reads="rank")

    def unasked(clean, intervened):
        return intervened.require("distribution")[:, 0] - clean.require("distribution")[:, 0]

    with pytest.raises(MetricError, match=r"no distribution. .* reads=\('distribution',\)"):
        with_sets.evaluate(torch.zeros(12), metrics=[unasked])
    asked = tk.Metric("asked", unasked, needs_y=False, reads=("distribution",))
    assert with_sets.evaluate(torch.zeros(12), metrics=[asked])["asked"]["effect"] == 0


def test_token_sets_of_one_side_may_replace_y(model):
    rows = [{k: v for k, v in row.items() if k != "y_ids"} for row in tiny.rows()]
    for row in rows:
        row["y_set_ids"] = [t for t in (1, 2, 3) if t != row["x_ids"][0]]
    tracer = tk.Tracer(
        model, tk.PromptPairs.from_ids(rows), "head-outputs", metric="set-logit-difference"
    )
    assert abs(tracer.full_effect) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_set_ids": [3, 3]}, "The x_set_ids of example 1 name a token twice"),
        ({"x_set_ids": [3, 4], "y_set_ids": [4]}, "Token 4 of example 1 counts as x and as y"),
        ({"x_set_ids": []}, "The x_set of example 1 encodes to no token"),
        ({"x_set_ids": [99]}, "Example 1 .* has a token id outside the vocabulary"),
    ],
)
def test_token_sets_that_are_none(model, change, message):
    rows = tiny.rows(3)
    rows[1] |= change
    with pytest.raises(tk.errors.TracekitError, match=message):
        tk.Tracer(model, tk.PromptPairs.from_ids(rows), "head-outputs")


def test_token_sets_from_text(demo_model):
    row = {
        "prompt": "the mechanic waited for the maid while",
        "x": " she",
        "y": " he",
        "x_set": [" she", " the"],
        "y_set": [" he"],
    }
    pairs = tk.PromptPairs.from_text([row], demo_model)
    assert len(pairs[0].x_set_ids) == 2
    assert pairs[0].x_set_ids[0] == pairs[0].x_ids[0]
    assert (
        pairs.fingerprint
        != tk.PromptPairs.from_text(
            [{k: v for k, v in row.items() if "set" not in k}], demo_model
        ).fingerprint
    )
    with pytest.raises(PairsError, match="holds ' she ironed', which is 2 tokens"):
        tk.PromptPairs.from_text([{**row, "x_set": [" she ironed"]}], demo_model)
    with pytest.raises(PairsError, match="The x_set of example 0 is ' she'. Give a list"):
        tk.PromptPairs.from_text([{**row, "x_set": " she"}], demo_model)


def test_a_changed_model_is_found_out_though_the_clean_run_is_done_again(model):
    from copy import deepcopy

    changed = tk.load_model(deepcopy(tiny.hf_model("gpt2")))
    tracer = tk.Tracer(changed, tiny.pairs(8), "head-outputs", "kl", max_memory=0, max_batch_size=4)
    tracer.evaluate(torch.ones(12))
    weight = next(p for n, p in changed.named_parameters() if p.ndim == 2 and "wte" not in n)
    with torch.no_grad():
        weight.mul_(1.5)
    with pytest.raises(tk.errors.IdentityCheckError):
        tracer.evaluate(torch.ones(12))


def test_sets_that_share_a_token_are_refused(model):
    rows = tiny.rows(4)
    rows[2] |= {"x_ids": [4, 6], "y_ids": [4, 7]}
    pairs = tk.PromptPairs.from_ids(rows)
    with pytest.raises(PairsError, match="Token 4 counts as x and as y in example 2"):
        tk.Tracer(model, pairs, "head-outputs", "set-logit-difference")
    tracer = tk.Tracer(model, pairs, "head-outputs", "logit-difference")
    with pytest.raises(PairsError, match="begin alike"):
        tracer.evaluate(torch.ones(12), metrics=["set-probability-difference"])


def test_the_first_token_of_the_vocabulary_may_be_a_set(model):
    """Its number is 0, which is no sign that a set is missing."""
    rows = tiny.rows(3)
    for row in rows:
        row["y_set_ids"], row["x_ids"] = [0], [5]
    tracer = tk.Tracer(model, tk.PromptPairs.from_ids(rows), metric="set-logit-difference")
    assert tracer.engine.clean.y_set is not None
    logits = [model(torch.tensor([row["prompt_ids"]]))[0, -1].log_softmax(-1)[0] for row in rows]
    torch.testing.assert_close(tracer.engine.clean.y_set, torch.stack(logits).detach())


@pytest.mark.parametrize("name", ["logit-difference", "set-logit-difference", "accuracy"])
def test_further_metrics_are_checked_before_a_search(model, name):
    rows = [{k: v for k, v in row.items() if k[0] != "y"} for row in tiny.rows()]
    pairs = tk.PromptPairs.from_ids(rows)
    with pytest.raises(MissingContinuationError, match="(has no|has a) y. Give every example a"):
        tk.Tracer(model, pairs, "head-outputs", "probability-drop", extra_metrics=[name])
