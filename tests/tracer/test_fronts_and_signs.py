"""Fronts are never below sets that a tracer knows; signs and limits hold for every objective."""

from __future__ import annotations

from itertools import combinations

import pytest

import tracekit as tk
from tests import tiny
from tracekit.errors import UnreliableResultWarning
from tracekit.results.pareto_front import ParetoFront


@pytest.fixture
def tracer(model):
    return tk.Tracer(model, tiny.pairs(8, seed=3), "head-outputs", "logit-difference")


@pytest.fixture
def bound():
    return tk.Constraint(pairs=tiny.pairs(5, seed=8), metric="kl", at_most=10.0)


@pytest.mark.slow
@pytest.mark.pairwise
@pytest.mark.parametrize("objective", [None, "mean", "median", "trimmed-mean"])
@pytest.mark.parametrize("sign", ["positive", "negative"])
@pytest.mark.parametrize("is_bounded", [False, True])
def test_no_front_is_below_a_known_set(tracer, bound, objective, sign, is_bounded):
    request = {
        "objective": objective,
        "sign": sign,
        "constraint": bound if is_bounded else None,
    }
    known = tracer.run("exhaustive", budget=2, **request)
    front = tracer.pareto(max_budget=3, max_passes=18, statistics=False, **request)
    if objective in (None, "mean"):
        factor = 1 if sign == "positive" else -1
        assert factor * front.at(2).effect >= factor * known.effect - 1e-6
    else:
        # The objective, not the mean, decides: so the best set of all pairs is that of the front.
        assert front.at(known.n_selected).components == known.components


def test_a_known_set_outside_the_bound_is_not_taken(tracer):
    free = tracer.run("exhaustive", budget=2)
    tight = tk.Constraint(pairs=tiny.pairs(5, seed=8), metric="kl", at_most=1e-3)
    try:
        front = tracer.pareto(max_budget=2, max_passes=40, statistics=False, constraint=tight)
    except tk.errors.NothingFoundError:
        return
    assert all(each.constraint.is_within for each in front)
    assert all(each.components != free.components for each in front)


@pytest.mark.slow
def test_the_best_set_of_at_most_a_size_may_be_a_smaller_one(tracer):
    """A front may fall where sets are chosen for what they do on other examples."""
    means = tracer.engine.set_effects(list(combinations(range(12), 2)), "pairs").mean(1)
    worst = list(combinations(range(12), 2))[int(means.argmin())]
    labels = [tracer.registry.label(index) for index in worst]
    results = [tracer.run("greedy", budget=1), tracer.as_result(labels)]
    assert results[0].effect > results[1].effect
    front = ParetoFront.of(results, 3, order=range(12))
    assert [front.at(k).n_selected for k in (1, 2, 3)] == [1, 1, 1]
    assert front.effects.tolist() == [pytest.approx(results[0].effect)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("request_", [{"objective": "median"}, {"sign": "negative"}, {}])
def test_limits_bound_the_reported_cost(tracer, request_):
    result = tracer.run("local-search", budget=3, max_passes=20, **request_)
    planned = tracer.estimate("local-search", budget=3, max_passes=20, **request_)
    assert result.cost.forward_equivalents <= 20
    assert planned.passes == 20


def test_a_set_of_the_other_sign_is_warned_of(tracer):
    # All together are on one side, so a ranking that ignores how sets combine ends there.
    sought = "positive" if tracer.full_effect < 0 else "negative"
    with pytest.warns(UnreliableResultWarning, match=r"were sought, and the selected set of 12"):
        tracer.run("attribution", budget=12, sign=sought)
