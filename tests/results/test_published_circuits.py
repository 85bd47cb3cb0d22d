"""A set beside a circuit: published lists, precision and recall where the truth is known."""

from __future__ import annotations

import pytest

import tests.tiny as tiny
import tracekit as tk
from tests.figures.gallery import legend_of
from tools.planted import planted_model
from tracekit.errors import ComponentError, ConfigError, UnknownNameError


@pytest.fixture(scope="module")
def traced(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:8]
    return tk.Tracer(demo_model, pairs, "head-outputs+mlp-blocks", "logit-difference")


@pytest.fixture(scope="module")
def gpt2():
    """A random model of GPT-2 small's 12 layers of 12 heads."""
    return tk.load_model(tiny.hf_model("gpt2", n_layer=12, n_head=12, n_embd=48))


@pytest.fixture(scope="module")
def of_gpt2(gpt2):
    return tk.Tracer(gpt2, tiny.pairs(4), "head-outputs+mlp-blocks", "logit-difference")


def test_hits_misses_and_extras(traced):
    result = traced.as_result(["L0H1", "L1H4", "MLP2"])
    beside = result.against(["L1H4", "L1H7", "MLP2", "MLP3"], name="mine")
    assert (beside["hit"], beside["miss"], beside["extra"]) == (
        ["L1H4", "MLP2"],
        ["L1H7", "MLP3"],
        ["L0H1"],
    )
    assert beside.precision == pytest.approx(2 / 3)
    assert beside.recall == pytest.approx(1 / 2)
    first, *lines = str(beside).splitlines()
    assert first.endswith("(counterfactual patching) against mine: precision 0.67, recall 0.50")
    assert lines == ["  2 hits: L1H4, MLP2", "  1 extra: L0H1", "  2 misses: L1H7, MLP3"]
    assert beside.table["score"].isna().all()
    assert "L1H7" in beside.to_latex()


def test_a_set_against_another_result_names_both(traced):
    results = [traced.run(method, budget=2) for method in ("top-k", "greedy")]
    text = str(results[0].against(results[1]))
    method, other = (f"{each.title} (counterfactual patching)" for each in results)
    assert text.startswith(f"{method} against {other}: precision ")
    assert all(line[-1] != ":" for line in text.splitlines())


def test_scores_of_top_k_are_single_effects(traced):
    beside = traced.run("top-k", budget=3).against(["L0H1", "L1H4"])
    rows = beside.table.set_index("component")
    assert len(rows) >= 3
    for label, row in rows.iterrows():
        assert row["score"] == pytest.approx(traced.evaluate([label]), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "n", "some"),
    [("ioi", 26, "L9H9"), ("greater-than", 17, "MLP9")],
)
def test_published_circuits_have_their_members(of_gpt2, name, n, some):
    beside = of_gpt2.as_result([some, "L11H0"]).against(name)
    assert (beside["hit"], beside["extra"]) == ([some], ["L11H0"])
    assert len(beside["miss"]) == n - 1
    assert (beside.precision, beside.recall) == (0.5, 1 / n)
    assert ", 2023)" in beside.name
    roles = beside.table.set_index("component")["role"]
    assert roles[some] in ("name mover", "MLP")
    assert roles["L11H0"] == ""


def test_what_is_not_studied_counts_for_nothing(gpt2):
    tracer = tk.Tracer(gpt2, tiny.pairs(4), "head-outputs", "logit-difference", layers=[0, 5])
    beside = tracer.as_result(["L0H1", "L5H5"]).against("greater-than")
    assert beside.recall == 2 / 4
    assert "MLP9" in beside.not_studied
    assert len(beside["hit"] + beside["miss"]) + len(beside.not_studied) == 17


def test_a_head_at_any_span_is_in_the_set(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:4]
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", "logit-difference", split_by="span")
    beside = tracer.as_result(["L1H4@last"]).against(["L1H4@subject", "L1H7@last"])
    assert (beside["hit"], beside["miss"]) == (["L1H4"], ["L1H7"])


@pytest.mark.parametrize(
    ("name", "share"),
    # Of "and" either head breaks the behaviour, so that a decoy takes the other place.
    [("or", 1.0), ("backup", 1.0), ("sum", 1.0), ("and", 0.5)],
)
def test_planted_heads_are_found_again(name, share):
    planted = planted_model(name)
    truth = [str(each) for each in planted.components]
    found = planted.tracer().run("local-search", budget=len(truth), max_passes=80).against(truth)
    assert (found.precision, found.recall) == (share, share)
    decoys = planted.tracer().as_result([str(each) for each in planted.decoys]).against(truth)
    assert (decoys.precision, decoys.recall) == (0.0, 0.0)


def test_what_does_not_suit_is_refused(traced, of_gpt2):
    result = traced.as_result(["L0H1"])
    with pytest.raises(UnknownNameError, match="Did you mean 'ioi'"):
        result.against("iio")
    with pytest.raises(ConfigError, match="12 layers of 12 heads, and .* 4 layers of 8 heads"):
        result.against("ioi")
    with pytest.raises(ComponentError):
        result.against(["L9H9"])


def test_members_of_a_circuit_are_framed(of_gpt2):
    result = of_gpt2.as_result(["L9H9", "L11H0"])
    heads, blocks = result.heatmap(outline="ioi").data, result.panels("selected")
    (frame,) = [each for each in heads if each.name == "frame" and each.yaxis == "y"]
    assert len(frame.x) == 6 * 26
    assert (8.5, 8.5) in set(zip(frame.x, frame.y, strict=True))
    assert legend_of(result.heatmap(outline="ioi")) == ["selected", "outlined circuit"]
    assert legend_of(result.heatmap(outline=["L0H1"])) == ["selected", "outlined circuit"]
    assert sum(cell is True for row in blocks[0].selected for cell in row) == 2
