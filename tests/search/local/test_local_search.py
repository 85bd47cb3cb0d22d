"""Local search, against every set measured the plain way."""

from __future__ import annotations

import warnings

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    ConfigError,
    NonFiniteMetricError,
    NotDifferentiableError,
    NothingFoundError,
    SearchStoppedWarning,
    TargetNotReachedError,
    UnreliableResultWarning,
)
from tracekit.search.local import local_search
from tracekit.search.local.best_sets import BestSets


@pytest.mark.slow
def test_the_front_is_the_optimum_at_every_budget(tracer, plain_effects):
    front = tracer.pareto(statistics=False)
    for size in range(1, 13):
        best = max(effect for one, effect in plain_effects.items() if len(one) <= size)
        assert front.at(size).effect == pytest.approx(best, rel=1e-4)
        assert tracer.evaluate(front.at(size)) == pytest.approx(front.at(size).effect, rel=1e-4)
    assert front[0].cost.forward_equivalents <= 600


@pytest.mark.slow
def test_few_passes_still_beat_the_rankings(model):
    """Forty passes for six of twelve: additions, exchanges and removals are all needed."""
    tracer = tk.Tracer(model, tiny.pairs(10, seed=8), metric="odds-ratio")
    for budgets in ([2, 4, 6],):
        found = tracer.run("local-search", budgets=budgets, max_passes=40)
        for rival in ("top-k", "random"):
            theirs = tracer.run(rival, budgets=budgets)
            for ours, other in zip(found, theirs, strict=True):
                assert ours.effect >= other.effect - 1e-6
        assert found[0].cost.forward_equivalents <= 40


@pytest.fixture
def without_walk(monkeypatch):
    """Searches as for many components, or with something to keep."""
    monkeypatch.setattr("tracekit.search.local.local_search.effects_tell_all", lambda target: False)


def test_many_components_are_ranked_first(model, without_walk):
    """Neurons: sizes are spread, soft top-k ranks, and the passes stay below top-k's."""
    tracer = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-outputs")
    n = len(tracer.registry)
    search = tk.LocalSearch(max_passes=n // 2, soft_steps=4)
    curve = tracer.run(search, budgets=[3, 0.1, 0.3])
    rivals = [tracer.run(method, budgets=[3, 0.1, 0.3]) for method in ("top-k", "random")]
    for rival in rivals:
        for ours, theirs in zip(curve, rival, strict=True):
            assert ours.effect >= theirs.effect
    assert curve[0].cost.forward_equivalents <= n // 2
    assert curve[0].component_scores is not None
    plain = tracer.run(
        "local-search", budgets=[3, 0.1, 0.3], max_passes=n // 2, refine=False, soft_steps=4
    )
    assert all(ours.effect >= other.effect for ours, other in zip(curve, plain, strict=True))
    assert plain[0].cost.forward_equivalents <= n // 2


@pytest.mark.slow
def test_targets_are_reached_by_few(tracer, plain_effects):
    goal = 0.6 * max(plain_effects.values())
    found = tracer.run("local-search", target_effect=goal)
    assert found.effect >= goal
    assert found.n_selected == min(len(s) for s, effect in plain_effects.items() if effect >= goal)
    with pytest.raises(TargetNotReachedError, match="No set that was tried reaches an effect of"):
        tracer.run("local-search", target_effect=1e6)


def test_refinement_never_loses_and_keeps_to_its_passes(model):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    gained = 0
    for budget in (2, 6):
        plain = tracer.run(budget=budget, refine=False, trials=1, epochs=6)
        polished = tracer.run(budget=budget, epochs=6)
        assert polished.effect >= plain.effect
        assert polished.n_selected <= budget
        assert polished.cost.forward_equivalents <= 250
        assert torch.equal(polished.soft_mask, plain.soft_mask)
        assert tracer.evaluate(polished) == pytest.approx(polished.effect, rel=1e-4)
        gained += polished.effect > plain.effect * 1.001
    assert gained


def test_fixed_lambdas_without_a_budget_are_not_refined(tracer):
    plain, same = (tracer.run(lambda1=0.02, epochs=4, refine=r) for r in (False, True))
    assert torch.equal(plain.binary_mask, same.binary_mask)
    assert plain.cost == same.cost


def test_the_same_seed_gives_the_same_front(model):
    runs = []
    for seed in (0, 0, 1):
        tracer = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-outputs")
        runs.append(tracer.pareto(max_budget=12, seed=seed, max_passes=30))
    same, again, other = (run.to_frame() for run in runs)
    assert same.equals(again)
    assert not same.equals(other)


def test_a_search_without_limits_keeps_to_its_own_passes(tracer, monkeypatch):
    monkeypatch.setattr(local_search, "default_passes", lambda n_components, last: 45)
    found = tracer.run("local-search", budget=6)
    assert found.cost.forward_equivalents <= 45
    assert found.stopped is None


def test_sweeps_go_up_first_and_then_down(tracer, monkeypatch, without_walk):
    explored = []
    explore = BestSets.explore

    def noted(self, members, *given, **options):
        if not options.get("larger"):
            explored.append(len(members))
        return explore(self, members, *given, **options)

    monkeypatch.setattr(BestSets, "explore", noted)
    tracer.run("local-search", budget=6, max_passes=90)
    turn = explored.index(max(explored))
    assert explored[: turn + 1] == sorted(explored[: turn + 1])
    assert explored[turn + 1] <= explored[turn]
    assert len(set(explored[: turn + 1])) > 3


def test_a_limit_gives_the_best_so_far(tracer):
    short = tracer.run("local-search", budget=6, max_passes=25)
    assert (short.stopped, short.n_selected <= 6) == ("max_passes", True)
    assert short.cost.forward_equivalents <= 25
    hasty = tracer.run("local-search", budget=6, max_seconds=0.2)
    assert hasty.stopped == "max_seconds"
    assert tracer.run("local-search", budget=2).stopped is None
    with pytest.raises(NothingFoundError, match="was stopped \\(max_passes\\) before it meas"):
        tracer.run("local-search", budget=6, max_passes=2)


def interrupted_after(engine, calls, monkeypatch):
    """Ctrl-C in the middle of a measurement."""
    left = iter(range(calls))
    original = engine.set_effects

    def measure(sets, label="effects", **rest):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return original(sets, label, **rest)

    monkeypatch.setitem(vars(engine), "set_effects", measure)


def test_ctrl_c_gives_the_best_so_far_and_says_so(model, monkeypatch):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    interrupted_after(tracer.engine, 5, monkeypatch)
    with pytest.warns(SearchStoppedWarning, match="Ctrl-C: the front holds the best sets"):
        front = tracer.pareto()
    monkeypatch.undo()
    assert front.stopped == "interrupted"
    assert front.statistics == ()
    assert "stopped by interrupted" in repr(front)
    assert tracer.evaluate(front[-1]) == pytest.approx(front[-1].effect, rel=1e-4)


def test_an_interrupted_run_says_so(model, monkeypatch):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    interrupted_after(tracer.engine, 3, monkeypatch)
    with pytest.warns(SearchStoppedWarning, match="the result is the best found so far"):
        assert tracer.run("local-search", budget=6).stopped == "interrupted"
    with pytest.raises(KeyboardInterrupt):
        tracer.run("local-search", target_effect=1e9)


def test_few_passes_are_spread_over_the_sizes(tracer):
    found = tk.Tracer(tracer.model, tracer.pairs, components="mlp-outputs").pareto(
        max_passes=40, statistics=False
    )
    assert len(found) > 3
    soft = tracer.pareto(max_passes=60, soft_steps=300, statistics=False)
    assert len(soft) > 3
    assert soft[0].cost.backward <= 31


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_passes": 0}, "max_passes is 0. It must be positive."),
        ({"max_seconds": -1.0}, "max_seconds is -1.0. It must be positive."),
        ({"temperature": 0.0}, "temperature is 0.0. It must be positive."),
        ({"additions": 0}, "additions is 0. It must be positive."),
        ({"soft_steps": -1}, "soft_steps is -1. It must be at least 0."),
        ({"budget_sampling": "cubic"}, "Unknown budget_sampling 'cubic'. Use 'log' or 'uniform'."),
        ({"reward": "each"}, "Unknown reward 'each'. Use 'dataset' or 'per-example'."),
        ({"refine": False, "soft_steps": 0}, "Neither refinement nor soft top-k is left."),
    ],
)
def test_bad_options_of_local_search(options, text, unchecked):
    with pytest.raises(ConfigError) as caught:
        tk.LocalSearch(**options)
    assert text in str(caught.value)


def test_metrics_without_a_finite_gradient_are_refused(model):
    def rooted(clean, intervened):
        return (intervened.x - intervened.x.detach()).clamp(min=0).sqrt()

    data = tiny.pairs(6)
    with pytest.raises(NonFiniteMetricError, match="The gradient of the metric 'rooted' is not"):
        tk.Tracer(model, data, metric=rooted).pareto()
    with pytest.raises(
        NotDifferentiableError, match="'accuracy' has no gradient for local-search to"
    ):
        tk.Tracer(model, data, metric="accuracy").pareto()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Six examples of a random model say little about others, and that is said.
        warnings.simplefilter("ignore", UnreliableResultWarning)
        tk.Tracer(model, data).pareto(max_budget=2)
