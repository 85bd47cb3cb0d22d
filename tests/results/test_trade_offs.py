"""Fronts in two dimensions: effect and faithfulness."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

import tracekit as tk
from tests import tiny
from tracekit.components.masks import complement_of
from tracekit.errors import BudgetError, ConfigError, ResultFormatError, TargetNotReachedError
from tracekit.results.pareto_front import trade_offs
from tracekit.search.targets import EffectAndComplement


@pytest.fixture(scope="module")
def tracer(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:12]
    return tk.Tracer(demo_model, pairs, "head-outputs", "logit-difference", layers=[1, 2])


@pytest.fixture(scope="module")
def fronts(tracer):
    return {
        objective: tracer.pareto(
            max_budget=6, max_passes=passes, statistics=False, objective=objective
        )
        for objective, passes in (("mean", 50), ("faithful", 100))
    }


@pytest.mark.parametrize("is_denoising", [False, True])
def test_none_is_beaten_in_both(is_denoising):
    measured = {
        members: EffectAndComplement((7 * sum(members)) % 11 / 5, (5 * sum(members)) % 13 / 9)
        for size in (1, 2)
        for members in combinations(range(9), size)
    }
    front = trade_offs(measured, [2], full=2.0, is_denoising=is_denoising)

    def place(means):
        faithful = means.effect / 2 if is_denoising else 1 - means.complement / 2
        return means.effect, -abs(1 - faithful)

    places = [place(means) for members, means in measured.items() if len(members) == 2]
    best = {p for p in places if not any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in places)}
    assert {place(measured[each.members]) for each in front} == best
    assert len(front) == len(best)
    assert [each.effect for each in front] == sorted((each.effect for each in front), reverse=True)


@pytest.mark.slow
def test_a_front_knows_the_strongest_and_the_most_faithful_sets(tracer, fronts):
    front, by_effect = fronts["faithful"], fronts["mean"]
    assert by_effect.trade_offs == ()
    full = tracer.full_effect
    for each in front.trade_offs:
        sets = [each.members, complement_of(each.members, 16)]
        own, others = tracer.engine.set_effects(sets).mean(1).tolist()
        assert each.effect == pytest.approx(own, abs=1e-4)
        assert each.faithfulness == pytest.approx(1 - others / full, abs=1e-4)
        assert each.completeness == pytest.approx(1 - own / full, abs=1e-4)
    for result in front:
        size = result.n_selected
        here = [each for each in front.trade_offs if len(each.members) == size]
        if size in by_effect.sizes:
            # No effect is below one that the tracer knew before.
            assert here[0].effect >= by_effect.at(size).effect - 1e-4
        distance = abs(1 - result.faithfulness().faithfulness[0])
        assert abs(1 - here[-1].faithfulness) <= distance + 1e-4
    frame = front.trade_off_frame()
    assert frame["size"].tolist() == [len(each.members) for each in front.trade_offs]
    assert frame["components"][0].split()[0] in {tracer.registry.label(i) for i in range(16)}


def test_the_smallest_faithful_set(fronts):
    front = fronts["faithful"]
    scores = [
        result.searched.faithfulness(sizes=[result.n_selected], n_components=result.n_components)
        for result in front
    ]
    close = [1 - abs(1 - each.faithfulness[0]) for each in scores]
    level = max(close) - 1e-3
    smallest = front.smallest(faithfulness=level)
    first = next(
        result
        for result, each, value in zip(front, scores, close, strict=True)
        if value >= level and each.completeness[0] < level
    )
    assert smallest.labels == first.labels
    text = r"faithfulness within 0\.001 of 1 and a complement less faithful than 0\.999"
    with pytest.raises(TargetNotReachedError, match=text):
        front.smallest(faithfulness=0.999)
    for options in ({}, {"effect": 1.0, "faithfulness": 0.5}):
        with pytest.raises(ConfigError, match="Give either effect or faithfulness"):
            front.smallest(**options)
    for value in (0.0, 1.0, -1.0):
        with pytest.raises(ConfigError, match=r"Give a level in \(0, 1\)"):
            front.smallest(faithfulness=value)


def test_the_curve_shows_what_sets_do_alone(fronts):
    for front in fronts.values():
        frame = front.to_frame()
        (line,) = (trace for trace in front.curve().data if trace.name == "alone")
        assert list(line.x) == frame["size"].tolist()
        full = front[0].full_effect
        assert list(line.y) == pytest.approx((frame["faithfulness"] * full).tolist())


def test_they_are_saved(fronts, tmp_path):
    front = fronts["faithful"]
    folder = front.save(tmp_path / "front")
    assert tk.ParetoFront.load(folder).trade_offs == front.trade_offs
    document = json.loads((folder / "pareto.json").read_text())
    assert document["trade_offs"][0]["members"] == list(front.trade_offs[0].members)
    document["trade_offs"][0]["members"] = [16]
    (folder / "pareto.json").write_text(json.dumps(document))
    with pytest.raises(ResultFormatError):
        tk.ParetoFront.load(folder)


class TestSmallestOfARun:
    @pytest.fixture(scope="class")
    def tracer(self, model):
        pairs = tiny.pairs(16, seed=3)
        return tk.Tracer(model, pairs[:8], "head-outputs", "kl", held_out=pairs[8:])

    @pytest.mark.slow
    def test_is_the_first_size_that_is_so_faithful_on_the_searched_examples(self, tracer):
        n = len(tracer.registry)
        curve = tracer.run("mask-ig", budgets=range(1, n + 1), objective="faithful", sign="full")
        scores = [
            each.searched.faithfulness(sizes=[each.n_selected], n_components=n) for each in curve
        ]
        close = [1 - abs(1 - each.faithfulness[0]) for each in scores]
        level = sorted(close)[n // 2]
        first = next(
            result
            for result, value, each in zip(curve, close, scores, strict=True)
            if value >= level and each.completeness[0] < level
        )
        small = tracer.run("mask-ig", faithfulness=level)
        assert (small.labels, small.run.objective) == (first.labels, "faithful")
        assert curve.smallest(faithfulness=level).labels == first.labels
        assert small.held_out is not None
        # A report repeats it by its budget.
        assert small.budget == small.n_selected
        assert tracer.results[-1] is small

    @pytest.mark.slow
    def test_passes_are_estimated_before(self, tracer):
        estimate = tracer.estimate("mask-ig", faithfulness=0.5)
        small = tracer.run("mask-ig", faithfulness=0.5)
        assert small.cost.forward_equivalents <= estimate.passes

    def test_wrong_levels_and_two_goals_are_refused(self, tracer):
        for level in (0.0, 1.0, 90):
            with pytest.raises(ConfigError, match=rf"{level}.* Give a level in \(0, 1\)"):
                tracer.run("mask-ig", faithfulness=level)
        for goal in ({"budget": 3}, {"budgets": [3]}, {"target_effect": 0.1}):
            with pytest.raises(BudgetError, match="Use one of budget, budgets, target_effect and"):
                tracer.run("mask-ig", faithfulness=0.9, **goal)

    def test_the_error_names_the_nearest(self, tracer):
        with pytest.raises(TargetNotReachedError, match="No set has a faithfulness within 1e-06"):
            tracer.run("top-k", budgets=[1, 2], objective="faithful").smallest(
                faithfulness=1 - 1e-6
            )
