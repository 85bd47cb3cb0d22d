"""Ctrl-C keeps the best set so far, whatever the method."""

from __future__ import annotations

from contextlib import suppress

import pytest

import tracekit as tk
from tests import tiny
from tracekit.engine.prepared import PreparedData
from tracekit.errors import SearchStoppedWarning

METHODS = {"greedy": {}, "random": {"draws": 10}, "exhaustive": {}}


@pytest.fixture(scope="module")
def tracer(model):
    tracer = tk.Tracer(model, tiny.pairs(6, seed=3), layers=[0, 1], max_batch_size=6)
    _ = tracer.full_effect
    return tracer


@pytest.fixture
def interrupted_after(monkeypatch):
    """Ctrl-C, once, in the middle of the n-th pass of a batch."""

    def arrange(passes):
        log_probs, count = PreparedData.log_probs, [0]

        def counted(self, *args, **options):
            count[0] += 1
            if count[0] == passes + 1:
                raise KeyboardInterrupt
            return log_probs(self, *args, **options)

        monkeypatch.setattr(PreparedData, "log_probs", counted)

    return arrange


def test_the_best_so_far_of_each_budget_is_kept(tracer, interrupted_after, monkeypatch):
    interrupted_after(5)
    with pytest.warns(SearchStoppedWarning, match="Ctrl-C: the result is the best found so far"):
        curve = tracer.run("greedy", budgets=[3, 8])
    monkeypatch.undo()
    for result in curve:
        assert result.stopped == "interrupted"
        assert 1 <= result.n_selected <= result.budget
        # What is kept was measured.
        assert tracer.evaluate(result) == pytest.approx(result.effect, rel=1e-4, abs=1e-6)
    assert tracer.results[-2:] == list(curve)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_by_an_objective_and_within_a_bound_too(tracer, interrupted_after, monkeypatch, method):
    by_kl = tk.Tracer(tracer.model, tracer.pairs, layers=[0, 1], metric="kl")
    keep = tk.Constraint(metric="kl", at_most=0.3 * by_kl.full_effect)
    for options in ({"objective": "log-odds"}, {"constraint": keep}):
        result = None
        for passes in range(4, 60):  # As soon as a set within the bound was measured.
            interrupted_after(passes)
            with suppress(KeyboardInterrupt), pytest.warns(SearchStoppedWarning, match="Ctrl-C"):
                result = tracer.run(method, budget=3, **METHODS[method], **options)
            monkeypatch.undo()
            if result is not None:
                break
        assert (result.stopped, result.n_selected <= 3) == ("interrupted", True)
        assert tracer.evaluate(result) == pytest.approx(result.effect, rel=1e-4, abs=1e-6)
        if "constraint" in options:
            assert abs(result.constraint.effect) <= keep.at_most
        else:
            assert result.run.objective == "log-odds"


def test_the_best_is_the_best_of_what_was_measured(tracer, interrupted_after, monkeypatch):
    interrupted_after(5)
    with pytest.warns(SearchStoppedWarning):
        result = tracer.run("top-k", budget=3)
    monkeypatch.undo()
    singles = tracer.run("top-k", budget=1).component_scores
    assert result.effect in singles.tolist()


def test_with_nothing_measured_it_is_raised(tracer, interrupted_after):
    interrupted_after(0)
    with pytest.raises(KeyboardInterrupt):
        tracer.run("top-k", budget=3)


@pytest.mark.parametrize("method", ["top-k", "local-search"])
def test_a_target_that_was_not_reached_is_no_result(tracer, interrupted_after, method):
    interrupted_after(9)
    with pytest.raises(KeyboardInterrupt):
        tracer.run(method, target_effect=1e6)


def test_the_halves_may_be_interrupted(tracer, interrupted_after):
    interrupted_after(len(tracer.registry) + 2)
    with pytest.warns(SearchStoppedWarning):
        result = tracer.run("top-k", budget=3, objective="auto")
    assert (result.n_selected, result.stopped) == (3, "interrupted")
