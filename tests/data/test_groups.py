"""Groups: pairs that share a template or a relation are no independent evidence."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.data import gender_bias
from tracekit.data.factual_recall import _counterfact_row, _known_fact_row
from tracekit.data.pair import check_disjoint
from tracekit.errors import DataWarning, PairsError
from tracekit.results import effect_interval
from tracekit.search.auto import cross_fit
from tracekit.search.baselines.empirical_bayes_topk import shrunken_means

PROMPTS = ("prompt_ids", "counterfactual_ids")


def grouped(labels, seed=0):
    rows = tiny.rows(len(labels), seed=seed)
    return tk.PromptPairs.from_ids(
        [{**row, "group": label} for row, label in zip(rows, labels, strict=True)]
    )


def test_pairs_of_a_group_are_one_example():
    pairs = grouped(["a", "b", "a", None, None, 3, 3])
    assert pairs.n_distinct == 5
    assert pairs.clusters.tolist() == [0, 1, 0, 2, 3, 4, 4]
    assert [pair.group for pair in pairs[[0, 3, 5]]] == ["a", None, "3"]
    assert pairs.reversed()[0].group == "a"
    assert pairs.fingerprint != pairs.grouped([None] * 7).fingerprint
    assert pairs.grouped(list("abcdefg")).clusters is None


def test_equal_pairs_of_two_groups_make_them_one():
    rows = tiny.rows(5)
    twice = [*rows, rows[0]]
    labels = ["a", "a", "b", "c", None, "b"]
    pairs = tk.PromptPairs.from_ids(
        [{**row, "group": label} for row, label in zip(twice, labels, strict=True)]
    )
    assert pairs.clusters.tolist() == [0, 0, 0, 1, 2, 0]


def test_a_pair_and_its_mirror_are_one_example(model):
    """Prompts exchanged, and x and y: the two runs are the same, and so is what lies between."""
    rows = tiny.rows(6, longest=1)
    for row in rows:
        row["counterfactual_ids"] = row["counterfactual_ids"][: len(row["prompt_ids"])]
    mirrors = [
        {
            "prompt_ids": row["counterfactual_ids"],
            "counterfactual_ids": row["prompt_ids"],
            "x_ids": row["y_ids"],
            "y_ids": row["x_ids"],
        }
        for row in rows
    ]
    pairs = tk.PromptPairs.from_ids([*rows, *mirrors])
    assert pairs.clusters.tolist() == [*range(6), *range(6)]
    assert pairs.fingerprint != pairs[[6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5]].fingerprint
    # Whatever x and y are.
    answers = [{"x_ids": row["x_ids"], "y_ids": row["y_ids"]} for row in rows]
    same = [mirror | own for mirror, own in zip(mirrors, answers, strict=True)]
    assert tk.PromptPairs.from_ids([*rows, *same]).clusters.tolist() == [*range(6), *range(6)]
    full = tk.Tracer(model, pairs, "residual", "logit-difference").engine.full_effects
    torch.testing.assert_close(full[:6], full[6:], rtol=1e-4, atol=1e-6)
    pair = pairs.pairs[0]
    for changed in ({"x_set_ids": (1, 2)}, {"y_ids": (5,)}, {"spans": {"first": (0, 1)}}):
        assert replace(pair, **changed).independence_key == pair.independence_key
    for direction in ("noising", "denoising"):
        tracer = tk.Tracer(model, pairs, "residual", "logit-difference", direction=direction)
        assert tracer.engine.pairs.clusters.tolist() == pairs.clusters.tolist()
        assert len({each.identity for each in tracer.engine.pairs}) == 12
    # With zeros a mirror is another run, as it has another prompt.
    tracer = tk.Tracer(model, pairs[:6], "residual", source="zero", held_out=pairs[6:])
    assert tracer.question.held_out_engine.pairs.n_distinct == 6
    first, second = pairs.split(0.5)
    check_disjoint(first, second)
    with pytest.raises(PairsError, match="also searched, or are mirrors of searched ones"):
        check_disjoint(pairs[:6], pairs[8:])


def test_rows_that_differ_in_the_foil_are_one_example(model):
    """A drop of the probability of x is the same number for each of them."""
    rows = tiny.rows(4)
    foils = [row | {"y_ids": [number]} for row in rows for number in (1, 2, 3)]
    pairs = tk.PromptPairs.from_ids(foils)
    assert pairs.n_distinct == 4
    effects = tk.Tracer(model, pairs, "residual", "probability-drop").engine.full_effects
    assert len(set(effects.tolist())) == 4
    own, fresh = pairs.split(0.5)
    assert not {pair.prompt_ids for pair in own} & {pair.prompt_ids for pair in fresh}
    with pytest.raises(PairsError, match="held-out examples are also searched"):
        check_disjoint(pairs[:1], pairs[1:])


def test_pairs_of_one_prompt_are_one_example_where_nothing_is_read_of_the_other(model):
    """Zeros do the same to a prompt whatever its counterfactuals are, and in noising only."""
    first, other = tiny.rows(2)
    rows = [first, first | {"counterfactual_ids": first["counterfactual_ids"][::-1]}, other]
    pairs = tk.PromptPairs.from_ids(rows)
    assert pairs.n_distinct == pairs.reversed().n_distinct == 3
    tracer = tk.Tracer(model, pairs, "head-outputs", "probability-drop", source="zero")
    assert tracer.engine.pairs.clusters.tolist() == [0, 0, 1]
    full = tracer.engine.full_effects
    assert full[0] == full[1]
    with pytest.raises(
        PairsError, match="also searched, or are mirrors of searched ones, or have the same"
    ):
        tk.Tracer(model, pairs[:1], "head-outputs", source="zero", held_out=pairs[1:])
    # Draws of one prompt for several others make these no one example.
    even = [row | {key: row[key][:3] for key in PROMPTS} for row in tiny.rows(12)]
    pairs = tk.PromptPairs.from_ids(even)
    drawn = tk.Tracer(model, pairs, source="resample", direction="denoising")
    assert len({pair.prompt_ids for pair in drawn.engine.pairs}) < 12
    assert drawn.engine.pairs.n_distinct == 12
    # Of foils each has a draw of its own, and all have one prompt.
    foils = tk.PromptPairs.from_ids([*even, *(row | {"y_ids": [7]} for row in even)])
    assert tk.Tracer(model, foils, source="resample").engine.pairs.n_distinct == 12


def test_noise_counts_alike_in_both_directions():
    rows = tiny.rows(3, noise=True)
    swapped = [row | {"x_ids": row["y_ids"], "y_ids": row["x_ids"]} for row in rows]
    pairs = tk.PromptPairs.from_ids([*rows, *swapped])
    assert pairs.n_distinct == pairs.reversed().n_distinct == 3
    with pytest.raises(PairsError, match="held-out examples are also searched"):
        check_disjoint(pairs, pairs.reversed())


def test_a_split_keeps_groups_whole():
    pairs = grouped([f"template {n % 6}" for n in range(30)])
    for seed in range(5):
        first, second = pairs.split(0.5, seed=seed)
        assert len(first) == len(second) == 15
        check_disjoint(first, second)
        assert not {p.group for p in first} & {p.group for p in second}


def test_too_few_groups_for_an_interval_are_warned_of():
    with pytest.warns(DataWarning, match="^2 independent groups in 6 examples: an interval needs"):
        pairs = grouped("aabbbb")
    with pytest.warns(DataWarning) as caught:
        pairs.split(0.5)
    assert [str(each.message).partition(":")[0] for each in caught] == [
        "1 independent group in 4 examples of the second part"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Too few with and without groups: these are not the reason.
        grouped("aa")
        tk.PromptPairs.from_ids([{**tiny.rows(1)[0], "group": label} for label in "abbb"])
        grouped("aabbcc")


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (["a"] * 6, "All 6 pairs are of the one group 'a'"),
        (["a"] * 7, "7 groups were given for 6 pairs. Give the group of each pair"),
        ([*"abcde", 1.5], "group of example 5 is 1.5. Give a text or a whole number"),
        ([*"abcde", True], "group of example 5 is True. Give a text or a whole number"),
    ],
)
def test_groups_that_are_none(labels, text):
    with pytest.raises(PairsError, match=text):
        tiny.pairs(6).grouped(labels)
    if len(labels) == 6:
        with pytest.raises(PairsError, match=text):
            grouped(labels)


def test_a_group_on_both_sides_is_refused(model):
    pairs = grouped(["a", "a", "b", "b", "c", "c", "d", "d"])
    text = r"1 groups .* \('c'\). Keep each group on one side, as pairs.split\(\.\.\.\) does"
    with pytest.raises(PairsError, match=text):
        tk.Tracer(model, pairs[:5], held_out=pairs[5:])
    tracer = tk.Tracer(model, pairs[:4], held_out=pairs[4:])
    result = tracer.run("top-k", budget=2)
    assert result.held_out.clusters.tolist() == [0, 0, 1, 1]
    assert result.held_out_interval is None


@pytest.mark.slow
def test_what_a_search_makes_of_groups(model):
    pairs = grouped([f"g{n // 2}" for n in range(16)])
    tracer = tk.Tracer(model, pairs)
    search = tk.search.make("top-k", {})
    fit = cross_fit(tk.search.make_target(tracer.engine), [search], [2], 0)
    first, second = ({pairs[n].group for n in half} for half in fit.halves)
    assert (len(first), len(second), first & second) == (4, 4, set())
    # A lead on four groups of equal leads is no lead on sixteen examples.
    fit = cross_fit(tk.search.make_target(tracer.engine), [search, search], [2], 0)
    leads = torch.tensor([1.0, -1.0, 1.0, 0.5, 1.0, -1.0, 0.5, 1.0]).repeat_interleave(2)[None]
    t = leads.mean() / (leads[0, ::2].std() / 8**0.5)
    assert fit._is_ahead(leads, t.item() - 0.01)
    assert not fit._is_ahead(leads, t.item() + 0.01)


def test_shrinkage_takes_groups_for_single_examples():
    generator = torch.Generator().manual_seed(0)
    changes = torch.randn(12, 8, generator=generator).double() + torch.arange(12)[:, None] / 6
    once = shrunken_means(changes, torch.ones(8).double())
    often, weights = changes.repeat_interleave(3, dim=1), torch.ones(24).double()
    clusters = torch.arange(8).repeat_interleave(3)
    torch.testing.assert_close(shrunken_means(often, weights, clusters), once)
    assert not torch.allclose(shrunken_means(often, weights), once)


def test_the_interval_of_grouped_examples_is_that_of_their_sums():
    values = torch.randn(24, generator=torch.Generator().manual_seed(1))
    clusters = torch.arange(24) // 4
    own = effect_interval(values.reshape(6, 4).mean(1))
    assert effect_interval(values, clusters=clusters) == pytest.approx(own)


def test_groups_of_the_built_in_data_sets(monkeypatch):
    first = "1 [The developer] argued with the designer because [he] did not like the design."
    second = "2 The developer argued with [the designer] because [her] idea cannot be implemented."
    row = gender_bias._winobias_row(
        first, second.replace("[her] idea", "[she] had an idea"), keep_case=False
    )
    assert row["group"] == "The developer argued with the designer because"
    sentence = "The $OCCUPATION told the $PARTICIPANT that $NOM_PRONOUN could pay with cash."
    rows = [["technician", "customer", answer, sentence] for answer in "01"]
    row = gender_bias._winogender_row(*rows, {"technician": 20.0}, keep_case=False)
    assert row["group"] == "The $OCCUPATION told the $PARTICIPANT that"
    record = {"prompt": "Paris is in", "attribute": "France", "relation_id": "P17"}
    assert _known_fact_row(record)["group"] == "P17"
    rewrite = {"prompt": "{} is in", "subject": "Paris", "relation_id": "P17"}
    rewrite |= {"target_true": {"str": "France"}, "target_new": {"str": "Peru"}}
    assert _counterfact_row({"requested_rewrite": rewrite})["group"] == "P17"
    monkeypatch.setattr(gender_bias, "check_size", lambda *_: None)
    lines = {"templates.txt": ["The {} said", "The {} ran"]}
    monkeypatch.setattr(
        gender_bias,
        "read_lines",
        lambda dataset, folder, name: lines.get(name, ["nurse"]),
    )
    taken = {}
    monkeypatch.setattr(
        tk.PromptPairs, "from_text", lambda rows, model, **options: taken.update(rows=rows)
    )
    gender_bias.load_professions(None)
    assert [row["group"] for row in taken["rows"]] == ["The {} said", "The {} ran"] * 2


def test_files_hold_groups(tmp_path, demo_model):
    row = "the maid visited the {0} since she,the maid visited the {0} since he, a, b,{1}\n"
    text = "prompt,counterfactual,x,y,group\n"
    text += "".join(row.format(who, who[0]) for who in ("soldier", "singer", "mechanic"))
    (tmp_path / "mine.csv").write_text(text)
    pairs = tk.load_pairs(tmp_path / "mine.csv", demo_model)
    assert pairs.clusters.tolist() == [0, 0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_a_split_by_prompt_is_one_for_zeros(demo_model, crossed, seed):
    halves = crossed.split(0.5, seed=seed, by_prompt=True)
    own, fresh = ({pair.prompt_ids for pair in half} for half in halves)
    assert not own & fresh
    assert len(own | fresh) == 7
    assert sum(map(len, halves)) == 24
    tracer = tk.Tracer(demo_model, halves[0], source="zero", held_out=halves[1])
    assert f"({len(own)} independent) searched" in str(tracer)
    assert f"({len(fresh)} independent) held-out" in str(tracer)
    with pytest.raises(
        PairsError, match="pass by_prompt=True if the source does not read the count"
    ):
        first, second = crossed.split(0.5, seed=seed)
        tk.Tracer(demo_model, first, source="zero", held_out=second)


@pytest.mark.slow
def test_a_look_at_zeros_halves_by_prompt(demo_model, crossed):
    said = str(tk.Tracer(demo_model, crossed, source="zero").look(examples=24))
    own, fresh = (int(n) for n in re.findall(r"\((\d) independent\)", said)[:2])
    assert own + fresh == 7
    few = tk.load_dataset("demo-binding", demo_model)[:12]
    said = str(tk.Tracer(demo_model, few.grouped([0] * 6 + [1] * 6), source="zero").look())
    assert "12 (2 independent) examples" in said
    assert "held-out examples" not in said
