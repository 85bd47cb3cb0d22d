"""Local search, against every set measured the plain way."""

from __future__ import annotations

import warnings
from itertools import count

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.engine import Engine
from tracekit.errors import (
    DataWarning,
    NonFiniteMetricError,
    NotDifferentiableError,
    NothingFoundError,
    SearchStoppedWarning,
    TargetNotReachedError,
    UnreliableResultWarning,
)
from tracekit.search import local_search

NAMES = ("pgb-ct", "pgb-ct+local")


@pytest.mark.slow
def test_the_front_is_the_optimum_at_every_budget(tracer, plain_effects):
    front = tracer.pareto(statistics=False)
    for size in range(1, 13):
        best = max(effect for one, effect in plain_effects.items() if len(one) <= size)
        assert front.at(size).effect == pytest.approx(best, rel=1e-4)
        assert tracer.evaluate(front.at(size)) == pytest.approx(front.at(size).effect, rel=1e-4)
    assert front[0].cost.forward_equivalents <= 600


@pytest.mark.soak
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


@pytest.mark.soak
@pytest.mark.slow
def test_sets_of_many_components_are_better_than_of_rankings(model):
    tracer = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-outputs")
    curve = tracer.run("local-search", budgets=[3, 0.1, 0.3])
    for method in ("top-k", "random"):
        for ours, theirs in zip(curve, tracer.run(method, budgets=[3, 0.1, 0.3]), strict=True):
            assert ours.effect >= theirs.effect
    assert curve[0].cost.forward_equivalents <= 300


@pytest.mark.slow
def test_targets_are_reached_by_few(tracer, plain_effects):
    goal = 0.6 * max(plain_effects.values())
    found = tracer.run("local-search", target_effect=goal)
    assert found.effect >= goal
    assert found.n_selected == min(len(s) for s, effect in plain_effects.items() if effect >= goal)
    with pytest.raises(TargetNotReachedError, match="No set that was tried reaches an effect of"):
        tracer.run("local-search", target_effect=1e6)


@pytest.mark.slow
def test_refinement_never_loses_and_keeps_to_its_passes(model):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    gained = 0
    for budget in (2, 6):
        plain = tracer.run("pgb-ct", budget=budget, trials=1, epochs=6)
        refined = tracer.run("pgb-ct+local", budget=budget, epochs=6)
        assert refined.effect >= plain.effect
        assert refined.n_selected <= budget
        assert refined.cost.forward_equivalents <= 250
        assert torch.equal(refined.soft_mask, plain.soft_mask)
        assert tracer.evaluate(refined) == pytest.approx(refined.effect, rel=1e-4)
        gained += refined.effect > plain.effect * 1.001
    assert gained


@pytest.mark.slow
def test_names_tell_refined_pgbct_from_the_papers_method(tracer):
    paper, refined = (tracer.run(name, budget=2, epochs=2, trials=1) for name in NAMES)
    assert (paper.method, refined.method) == NAMES
    assert (paper.title, refined.title) == ("PGB-CT", "PGB-CT + local")
    assert tracer.run(budget=2, epochs=2).method == "pgb-ct+local"
    edges = tk.Tracer(tracer.model, tracer.pairs, components="edges-by-block")
    assert edges.estimate(budget=4).method == edges.run(budget=4).method == "learned-ranking"
    plain, same = (tracer.run(name, lambda1=0.02, epochs=4) for name in NAMES)
    assert torch.equal(plain.binary_mask, same.binary_mask)
    assert plain.cost == same.cost


@pytest.mark.slow
def test_the_search_draws_nothing(model):
    frames = []
    for seed in (0, 1):
        tracer = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-outputs")
        found = tracer.run("local-search", budgets=[2, 5, 12], seed=seed, max_passes=30)
        frames.append([(each.effect, each.components) for each in found])
    assert frames[0] == frames[1]


def test_a_search_without_limits_keeps_to_its_own_passes(tracer, monkeypatch):
    monkeypatch.setattr(local_search, "default_passes", lambda n_components: 45)
    found = tracer.run("local-search", budget=6)
    assert found.cost.forward_equivalents <= 45
    assert found.stopped is None


def swept_sizes(tracer, monkeypatch, **options):
    """Sizes at which neighbours are proposed, in order."""
    sizes = []
    original = local_search.promising_neighbours

    def noted(members, *given, **moves):
        sizes.append(len(members))
        return original(members, *given, **moves)

    monkeypatch.setattr(local_search, "promising_neighbours", noted)
    tracer.run("local-search", **options)
    return sizes


@pytest.mark.slow
def test_sweeps_go_up_first_and_then_down(tracer, monkeypatch):
    sizes = swept_sizes(tracer, monkeypatch, budget=6)
    assert sizes[:12] == [1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1]


@pytest.mark.slow
def test_a_search_never_ends_before_one_sweep_each_way(tracer, monkeypatch):
    monkeypatch.setattr(local_search.Sweeps, "_has_gained", lambda self, before: False)
    monkeypatch.setattr(local_search, "_PASSES_PER_SIZE", 10)
    assert swept_sizes(tracer, monkeypatch, budget=4) == [1, 2, 3, 4, 4, 3, 2, 1]


def test_sizes_are_those_asked_for_and_fill_the_gaps_between():
    def sizes(n_sizes, *budgets):
        return local_search.sizes_to_visit(budgets[-1], budgets, n_sizes)

    assert sizes(16, 6) == [1, 2, 3, 4, 5, 6]
    assert sizes(5, 3, 100) == [1, 3, 17, 41, 100]
    assert sizes(4, *range(1, 101)) == [1, 10, 32, 100]


@pytest.mark.slow
def test_a_limit_gives_the_best_so_far(tracer):
    short = tracer.run("local-search", budget=6, max_passes=25)
    assert (short.stopped, short.n_selected <= 6) == ("max_passes", True)
    assert short.cost.forward_equivalents <= 25
    hasty = tracer.run("local-search", budget=6, max_seconds=0.2)
    assert hasty.stopped == "max_seconds"
    assert tracer.run("local-search", budget=2).stopped is None
    with pytest.raises(NothingFoundError, match="was stopped \\(max_passes\\) before it meas"):
        tracer.run("local-search", budget=6, max_passes=2)


def interrupted_after(calls, monkeypatch):
    """Ctrl-C, once, in the middle of a measurement."""
    number, original = count(), Engine.set_effects

    def measure(self, sets, label="effects", **rest):
        if next(number) == calls:
            raise KeyboardInterrupt
        return original(self, sets, label, **rest)

    monkeypatch.setattr(Engine, "set_effects", measure)


def test_ctrl_c_gives_the_best_so_far_and_says_so(model, monkeypatch):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    interrupted_after(5, monkeypatch)
    with pytest.warns(SearchStoppedWarning, match="Ctrl-C: the front holds the best sets"):
        front = tracer.pareto()
    monkeypatch.undo()
    assert front.stopped == "interrupted"
    assert front.statistics == ()
    assert "stopped by interrupted" in repr(front)
    assert tracer.evaluate(front[-1]) == pytest.approx(front[-1].effect, rel=1e-4)


def test_an_interrupted_run_says_so(model, monkeypatch):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    interrupted_after(3, monkeypatch)
    with pytest.warns(SearchStoppedWarning, match="the result is the best found so far"):
        assert tracer.run("local-search", budget=6).stopped == "interrupted"
    interrupted_after(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        tracer.run("local-search", target_effect=1e9)


def test_few_passes_are_spread_over_the_sizes(tracer):
    found = tk.Tracer(tracer.model, tracer.pairs, components="mlp-outputs").pareto(
        max_passes=40, statistics=False
    )
    assert len(found) > 3


@pytest.mark.slow
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
        # Six random examples say little about others, and that is said.
        warnings.simplefilter("ignore", UnreliableResultWarning)
        warnings.simplefilter("ignore", DataWarning)
        tk.Tracer(model, data).pareto(max_budget=2)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["logit-difference", "odds-ratio"])
def test_a_limit_leaves_no_set_below_what_rankings_find(demo_model, metric):
    """Neurons of all layers: too many to be measured one by one."""
    pairs = tk.load_dataset("demo-bias", demo_model)[:6]
    tracer = tk.Tracer(demo_model, pairs, "mlp-neurons", metric)
    rankings = [tracer.run(method, budget=20) for method in ("mask-ig", "attribution")]
    for max_passes in (24, 30, 60):
        found = tracer.run("local-search", budget=20, max_passes=max_passes)
        for ranked in rankings:
            if ranked.cost.forward_equivalents + 2 <= max_passes:
                assert found.effect >= ranked.effect - 1e-6, (max_passes, ranked.method)
        assert found.cost.forward_equivalents <= max_passes


def test_what_a_limit_leaves_out_is_said(demo_model):
    pairs = tk.load_dataset("demo-bias", demo_model)[:6]
    tracer = tk.Tracer(demo_model, pairs, "mlp-neurons", "logit-difference")
    with pytest.warns(SearchStoppedWarning, match=r"\(max_passes\) before it tried .*22 passes"):
        tracer.run("local-search", budget=4, max_passes=20)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "is_rough"), [(1, True), (40, False)])
def test_scores_that_do_not_add_up_are_a_warning(demo_model, steps, is_rough):
    pairs = tk.load_dataset("demo-facts", demo_model)[:6]
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", "probability-drop")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tracer.run("mask-ig", budget=2, steps=steps)
    gaps = [str(each.message) for each in told if "scores of mask-ig sum to" in str(each.message)]
    assert bool(gaps) == is_rough
    assert all(f"Give steps={2 * steps}" in text for text in gaps)
