"""The Pareto front: questions, files, curve."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.files import rewrite
from tracekit.errors import (
    BudgetError,
    ResultFormatError,
    TargetNotReachedError,
)


def test_a_front_answers_every_budget(front, tracer, plain_effects):
    assert front.effects.shape == (12,)
    assert (front.effects.diff() >= 0).all()
    assert front.at(0.5).budget == 6
    assert front.at(6).effect == pytest.approx(front.effects[5].item())
    assert sorted(front.ranking) == list(range(12))
    n_budgets = [
        sum(i in tiny.members_of(front.at(size)) for size in range(1, 13)) for i in front.ranking
    ]
    assert n_budgets == sorted(n_budgets, reverse=True)
    goal = 0.9 * max(plain_effects.values())
    small = front.smallest(effect=goal)
    assert small.effect >= goal
    assert small.target_effect == goal
    assert all(r.effect < goal for r in front if r.n_selected < small.n_selected)
    with pytest.raises(TargetNotReachedError):
        front.smallest(effect=1e9)
    with pytest.raises(BudgetError, match="The front goes up to 3 components, and 4 were asked"):
        tracer.pareto(max_budget=3, statistics=False).at(4)
    assert repr(front).startswith("ParetoFront(")


def test_fronts_are_saved_and_loaded(front, tmp_path):
    loaded = tk.ParetoFront.load(front.save(tmp_path / "front"))
    assert loaded.to_frame().equals(front.to_frame())
    assert (loaded.ranking, loaded.largest) == (front.ranking, front.largest)
    assert (loaded.statistics, loaded.statistics_cost) == (front.statistics, front.statistics_cost)
    assert torch.equal(loaded.effects, front.effects)


def test_a_front_of_one_size_is_saved_and_loaded(tracer, tmp_path):
    front = tracer.pareto(max_budget=1, statistics=False, objective="mean", max_passes=30)
    assert len(front) == 1
    loaded = tk.ParetoFront.load(front.save(tmp_path / "front"))
    assert loaded.to_frame().equals(front.to_frame())


@pytest.mark.parametrize(
    "change",
    [{"ranking": [0.5]}, {"largest": "1"}, {"statistics": [{"size": 3}]}],
    ids=str,
)
def test_entries_of_no_front_are_refused(front, change, tmp_path):
    front.save(tmp_path)
    rewrite(tmp_path / "pareto.json", lambda document, _: document.update(change))
    with pytest.raises(
        ResultFormatError, match=f"pareto.json cannot be read: {next(iter(change))}"
    ):
        tk.ParetoFront.load(tmp_path)


def test_a_front_with_the_curve_of_another_is_refused(front, tracer, tmp_path):
    front.save(tmp_path)
    tracer.run("top-k", budgets=[1, 2]).save(tmp_path)
    assert len(tk.results.TraceCurve.load(tmp_path)) == 2
    with pytest.raises(
        ResultFormatError, match="is damaged, was changed, or belongs to another run"
    ):
        tk.ParetoFront.load(tmp_path)


@pytest.mark.slow
def test_the_curve_of_a_front_draws_the_held_out_examples_of_its_tracer(demo_model):
    inside, outside = tk.load_dataset("demo-facts", demo_model)[:12].split(0.5)
    tracer = tk.Tracer(demo_model, inside, metric="probability-drop", held_out=outside)
    front = tracer.pareto(max_budget=2)
    named = {trace.name: trace for trace in front.curve().data if trace.name}
    fresh = named["held out, 95 % interval"]
    assert list(fresh.y) == [result.held_out_effect for result in front]
    assert list(fresh.error_y.arrayminus) == pytest.approx(
        [result.held_out_effect - result.held_out_interval[0] for result in front]
    )
    assert list(named["cross-fitted, 95 % interval"].y) == front.to_frame()["cross_fitted"].tolist()


def test_the_curve_of_a_front_draws_its_data(front):
    frame = front.to_frame()
    figure = front.curve()
    named = {trace.name: trace for trace in figure.data if trace.name}
    assert list(named) == [
        "best set, searched, 95 % spread",
        "cross-fitted, 95 % interval",
        "random, same layers, range",
        "alone",
        "from all downwards",
        "all 12 components",
    ]
    assert list(named["best set, searched, 95 % spread"].y) == frame["effect"].tolist()
    taken = frame.dropna(subset=["cross_fitted"])
    assert list(named["cross-fitted, 95 % interval"].y) == taken["cross_fitted"].tolist()
    bars = named["cross-fitted, 95 % interval"].error_y
    assert list(bars.array) == pytest.approx(
        (taken["cross_fitted_high"] - taken["cross_fitted"]).tolist()
    )
    band = figure.data[0]
    assert list(band.y) == [*frame["effect_high"], *frame["effect_low"][::-1]]
    assert figure.layout.shapes[0].y0 == pytest.approx(front[0].full_effect)
    assert "Jaccard" in named["cross-fitted, 95 % interval"].customdata[0]
