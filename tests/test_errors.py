"""Errors: what all of them can do."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

import tracekit as tk
from tests import tiny
from tracekit.errors import UnknownOptionError


def test_errors_pass_between_processes():
    from tracekit import errors

    error = errors.UnknownOptionError("lamda", ["lambda1"])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    plain = errors.ConfigError("No. Yes.")
    assert str(pickle.loads(pickle.dumps(plain))) == "No. Yes."


@pytest.fixture(scope="module")
def known(model, tmp_path_factory):
    """What users type names of: a tracer, its result, and the runs of a sweep."""
    tracer = tk.Tracer(model, tiny.pairs(6))
    result = tracer.run("top-k", budget=2)
    folder = tmp_path_factory.mktemp("runs")
    result.save(folder / "run")
    runs = tk.load_runs(folder)
    return SimpleNamespace(model=model, tracer=tracer, result=result, runs=runs)


SWEPT = {"models": ["demo"], "datasets": ["demo-bias"], "output": "never made"}


@pytest.mark.parametrize(
    ("call", "typed", "meant"),
    [
        (lambda known, **typed: known.runs.select(**typed), "metrik", "metric"),
        (lambda known, **typed: known.runs.select(**typed), "datasets", "dataset"),
        (lambda known, **typed: tk.Setup(**typed), "layer", "layers"),
        (lambda known, **typed: tk.Constraint(at_most=1.0, **typed), "metrics", "metric"),
        (lambda known, **typed: tk.Tracer(known.model, tiny.pairs(2), **typed), "metrik", "metric"),
        (lambda known, **typed: tk.sweep(**SWEPT, **typed), "metric", "metrics"),
        (lambda known, **typed: tk.search.LocalSearch(**typed), "max_pass", "max_passes"),
        (lambda known, **typed: known.tracer.run("random", **typed), "bugdet", "budget"),
        (lambda known, **typed: known.tracer.run("random", **typed), "drawz", "draws"),
        (lambda known, **typed: known.tracer.pareto(**typed), "max_bugdet", "max_budget"),
        (lambda known, **typed: known.tracer.estimate("top-k", **typed), "budgts", "budgets"),
        (lambda known, **typed: known.tracer.evaluate(known.result, **typed), "metric", "metrics"),
        (lambda known, **typed: known.tracer.explain(known.result, **typed), "max_set", "max_sets"),
        (lambda known, **typed: known.result.heatmap(**typed), "colour", "color"),
        (lambda known, **typed: tk.compare([known.result]).heatmap(**typed), "colour", "color"),
        (lambda known, **typed: tk.figures.write(None, "a.html", **typed), "widht", "width"),
    ],
)
def test_a_keyword_that_nobody_knows_is_answered_by_a_guess(known, call, typed, meant):
    with pytest.raises(UnknownOptionError) as caught:
        call(known, **{typed: "kl"})
    text = str(caught.value)
    assert text.startswith(f"Unknown option {typed!r}. Did you mean {meant!r}? Known: ")
    assert meant in text.partition("Known: ")[2].rstrip(".").split(", ")
    assert isinstance(caught.value, TypeError)
    assert "self" not in text.split("Known: ")[1].split(", ")
