"""A first look against what its parts measure, and what it says where a part is missing."""

from __future__ import annotations

import pytest
import torch

import tests.tiny as tiny
import tracekit as tk
from tracekit.components.members import members_of
from tracekit.errors import ConfigError
from tracekit.measure import Look
from tracekit.measure.controls import control_sets
from tracekit.metrics import METRICS

HEADS = "head-outputs+mlp-blocks"


@pytest.fixture(scope="module")
def facts(demo_model):
    return tk.load_dataset("demo-facts", demo_model)[:24]


@pytest.fixture(scope="module")
def seen(demo_model, facts):
    tracer = tk.Tracer(
        demo_model, facts[:12], "attention-patterns", "logit-difference", held_out=facts[12:]
    )
    told = []
    look = tracer.look(examples=6, say=told.append)
    assert tuple(told) == look.parts
    return look


def part(look, name):
    return next(each for each in look.parts if each.name == name)


@pytest.mark.slow
def test_parts_have_the_numbers_of_the_tools(seen, demo_model, facts):
    own, fresh = facts[0:12:2], facts[12:24:2]
    tracer = tk.Tracer(demo_model, own, HEADS, "logit-difference", held_out=fresh)
    sets = tracer.run("mask-ig", budgets=[1, 3, 10])
    rows = part(seen, "sets").rows
    assert [each.labels for each in seen.sets] == [each.labels for each in sets]
    for row, found in zip(rows, sets, strict=True):
        assert row["held_out"] == pytest.approx(tracer.evaluate(found.labels), rel=1e-4)
        assert row["effect"] == pytest.approx(found.effect, rel=1e-4)
        assert row["held_out_share"] == pytest.approx(found.held_out.share, rel=1e-4)
    largest = sets[-1].component_scores.abs().argmax().item()
    assert part(seen, "who").rows[0]["component"] == tracer.registry.label(largest)
    residual = tk.Tracer(demo_model, own, "residual", "logit-difference", split_by="span")
    singles = residual.single_effects()
    shown = part(seen, "where").rows
    for each, effect in zip(singles.components, singles.effects.tolist(), strict=True):
        share = effect / residual.full_effect
        assert shown[each.layer][each.span] == pytest.approx(share, abs=1e-3)


@pytest.mark.slow
def test_documents_have_whole_sets(seen):
    sets = part(seen, "sets")
    assert [row["components"] for row in sets.rows] == [each.labels for each in seen.sets]
    assert len(sets.rows[-1]["components"]) == 10
    assert ", and 2 more" in str(sets)


def test_random_sets_have_the_kinds_of_the_set(seen, demo_model, facts):
    rows = part(seen, "sets").rows
    # Of one MLP block there is no other in its layer, and three in others.
    assert rows[0]["components"] == ["MLP0"]
    assert rows[0]["random"] is not None
    fresh = tk.Tracer(demo_model, facts[12:24:2], HEADS, "logit-difference")
    drawn = torch.Generator().manual_seed(0)
    for row, found in zip(rows, seen.sets, strict=True):
        members = members_of(found, found.registry)
        sets = control_sets(found.registry, members, 5, drawn, "kinds")
        assert len(sets) == (3 if row is rows[0] else 5)
        means = fresh.engine.set_effects(sets).mean(1).tolist()
        assert row["random_low"] == pytest.approx(min(means), rel=1e-4)
        assert row["random_high"] == pytest.approx(max(means), rel=1e-4)
        assert row["random"] == pytest.approx(sum(means) / len(means), rel=1e-4)


def test_first_choices_are_those_of_the_model(seen, demo_model, facts):
    own = facts[0:12:2]
    rows = {row["run"]: row for row in part(seen, "task").rows}
    with torch.no_grad():
        logits = [demo_model(torch.tensor([pair.prompt_ids]))[0, -1] for pair in own]
    odds = [
        (row[pair.x_ids[0]] - row[pair.y_ids[0]]).item()
        for row, pair in zip(logits, own, strict=True)
    ]
    first = [row.argmax().item() for row in logits]
    assert rows["clean"]["first_x"] == sum(a == p.x_ids[0] for a, p in zip(first, own, strict=True))
    assert rows["clean"]["log_odds"] == pytest.approx(sum(odds) / len(odds), rel=1e-3)
    assert rows["counterfactual"]["n"] == 6


@pytest.mark.slow
def test_what_comes_next_runs(seen, demo_model, facts):
    written = part(seen, "next").lines[-1].partition("tracer = ")[2].removesuffix(":")
    tracer = eval(written, {"tk": tk, "model": demo_model, "pairs": facts[:6]})
    run, front, singles = (row["call"] for row in part(seen, "next").rows)
    for call in (run, front, singles):
        limited = call if "()" in call else call.replace(")", ", max_passes=30, seed=1)")
        assert eval(limited, {"tracer": tracer})


def test_a_saved_look_is_the_same_and_begins_a_report(seen, tmp_path):
    seen.save(tmp_path)
    again = Look.load(tmp_path)
    assert str(again) == str(seen)
    assert again.where.table.equals(seen.where.table)
    page = tk.report([seen.sets[0], again], tmp_path / "report.html").read_text()
    assert page.index("<h2>A first look</h2>") < page.index("<h2>Setting</h2>")


def test_a_card_shows_the_text_letter_by_letter(seen):
    card = seen._repr_html_()
    assert "<pre>" in card
    assert "tk.Setup(components=&#x27;head-outputs+mlp-blocks&#x27;" in card


def looked(model, pairs, metric="logit-difference", **options):
    return tk.Tracer(model, pairs, "mlp-blocks", metric, **options).look()


@pytest.mark.slow
def test_what_is_missing_is_said(model):
    pairs = tiny.pairs(8)
    without = looked(model, pairs, "accuracy")
    assert without.sets == ()
    assert "left out" in part(without, "who").lines[0]
    assert part(without, "next").rows[0]["call"] == "tracer.run('top-k', budget=1)"
    few = looked(model, pairs[:3])
    assert [row["held_out"] for row in part(few, "sets").rows] == [None] * len(few.sets)
    zeros = looked(model, pairs, source="zero")
    assert [row["run"] for row in part(zeros, "task").rows] == ["clean"]
    assert looked(model, pairs, direction="denoising").sets


@pytest.mark.slow
def test_places_suit_the_prompts(model, demo_model, facts):
    # Tokens of several lengths from the end, positions of one length, named spans.
    ragged = looked(model, tiny.pairs(8))
    assert list(part(ragged, "where").rows[0])[-1] == "last"
    assert "-2" in part(ragged, "where").rows[0]
    rows = [{**row, "prompt_ids": [n, 1, 2, 3, n]} for n, row in enumerate(tiny.rows(6))]
    rows = [{**row, "counterfactual_ids": [n + 9, 1, 2, 3, n]} for n, row in enumerate(rows)]
    equal = looked(model, tk.PromptPairs.from_ids(rows))
    assert len(part(equal, "where").rows[0]) == 6
    assert "subject" in part(looked(demo_model, facts[:6]), "where").rows[0]


@pytest.mark.slow
def test_advice_suits_the_effect(demo_model, facts):
    look = looked(demo_model, facts[:8], METRICS["probability-drop"])
    assert any("is bounded" in said for said in part(look, "next").lines)
    negative = tk.Metric("back", lambda clean, after: after.x - clean.x)
    look = looked(demo_model, facts[:8], negative)
    assert any("below 0" in said for said in part(look, "next").lines)
    assert "sign='negative'" in part(look, "next").rows[0]["call"]


@pytest.mark.parametrize("examples", [0, -1, 1.5, True])
def test_impossible_numbers_of_examples_are_refused(demo_tracer, examples, unchecked):
    with pytest.raises(ConfigError, match="Give a whole number, at least 1"):
        demo_tracer.look(examples=examples)
