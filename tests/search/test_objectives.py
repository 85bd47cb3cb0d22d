"""What a search maximises over the examples, where that is not the mean effect."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import combinations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.errors import (
    BudgetError,
    ConfigError,
    NoResultError,
    UnreliableResultWarning,
)
from tracekit.metrics import METRICS
from tracekit.results.curve import effect_curve
from tracekit.search.constraint import make_target
from tracekit.search.objectives import (
    LowerBound,
    Quantile,
    TrimmedMean,
    describe_objective,
    log_odds_of,
    resolve_objective,
)
from tracekit.search.targets import differentiate

OBJECTIVES = ["log-odds", "trimmed-mean", "lower-bound", "median"]


@pytest.fixture
def tracer(model):
    return tk.Tracer(model, tiny.pairs(11, seed=3), "head-outputs", "odds-ratio")


def scoring(tracer, objective):
    return make_target(tracer.engine, resolve_objective(objective))


def by_hand(objective, effects):
    """The objective of one set from its effects, as numpy knows it."""
    ordered = effects.double().sort().values
    if objective == "log-odds":
        return torch.log1p(effects.double()).mean().item()
    if objective == "trimmed-mean":
        return ordered[1:-1].mean().item()
    if objective == "lower-bound":
        return (ordered.mean() - ordered.std() / len(ordered) ** 0.5).item()
    return ordered[len(ordered) // 2].item()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_mean_score_is_the_objective(tracer, objective):
    engine = scoring(tracer, objective)
    sets = list(combinations(range(12), 2))[:9]
    for members, scores in zip(sets, engine.set_effects(sets), strict=True):
        effects = tracer.engine.set_effects([members])[0]
        assert scores.mean().item() == pytest.approx(by_hand(objective, effects), rel=1e-4)
    assert torch.equal(tracer.engine.set_effects(sets), tracer.engine.set_effects(sets))


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("part", [None, [0, 7, 3, 9, 4, 1]])
def test_the_gradient_is_that_of_the_objective(model, objective, part):
    """Whatever the batches: the examples of a trimmed mean are told apart over all of them."""
    tracer = tk.Tracer(model, tiny.pairs(11, seed=3), "head-outputs", max_batch_size=4)
    engine = scoring(tracer, objective)
    examples = None if part is None else torch.tensor(part)
    mask = torch.linspace(0.2, 0.9, 12)
    scores, gradient = engine.gradient(mask, torch.ones_like, examples)
    step = 3e-3
    for index in (0, 5, 11):
        moved = [mask.clone(), mask.clone()]
        moved[0][index] -= step
        moved[1][index] += step
        low, high = (engine.gradient(each, torch.ones_like, examples)[0].sum() for each in moved)
        slope = (high - low).item() / (2 * step)
        assert gradient[index].item() == pytest.approx(slope, rel=0.05, abs=2e-2)
    if part is None:
        torch.testing.assert_close(scores, engine.effects(mask))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_predictions_are_of_the_objective(tracer, objective):
    engine = scoring(tracer, objective)
    members, step = (1, 5), 1e-2
    base = torch.zeros(12)
    base[list(members)] = 1
    prediction = engine.predict_changes(members)
    for index in (0, 1, 7):
        nudged = base.clone()
        nudged[index] += -step if base[index] else step
        change = engine.effects(nudged).mean() - engine.effects(base).mean()
        slope = (change / (nudged - base)[index]).item()
        assert prediction.gradient[index].item() == pytest.approx(slope, rel=0.1, abs=1e-2)


def test_no_exchange_of_one_member_is_better_after_local_search(tracer):
    members = tiny.members_of(tracer.run("local-search", budget=2, objective="log-odds"))
    near = [pair for pair in combinations(range(12), 2) if set(pair) & set(members)]
    near += [(index,) for index in members]
    scores = scoring(tracer, "log-odds").set_effects([members, *near]).mean(1)
    assert scores[0].item() == pytest.approx(scores.max().item(), abs=1e-5)


def test_another_objective_selects_another_set(model):
    """One example outgrows all others by the odds, and counts like any other by the log-odds."""
    tracer = tk.Tracer(model, tiny.pairs(4, seed=2), "head-outputs", "odds-ratio")
    found = {o: tracer.run("exhaustive", budget=3, objective=o) for o in ("mean", "log-odds")}
    assert found["mean"].components != found["log-odds"].components
    assert found["mean"].effect > found["log-odds"].effect


@pytest.mark.parametrize("objective", ["trimmed-mean", "lower-bound", "median"])
def test_slopes_of_weighted_scores_are_those_of_small_changes(tracer, objective):
    chosen = resolve_objective(objective)
    n = tracer.engine.n_examples
    effects, weights = (
        torch.rand(n, generator=torch.Generator().manual_seed(2)),
        torch.arange(1, n + 1),
    )
    scores, (slopes,) = differentiate(chosen.scores, [effects], lambda scores: weights / n)

    def total(values):
        return (chosen.scores(values.double()) * weights / n).sum().item()

    assert torch.equal(scores, chosen.scores(effects))
    for number in range(n):
        step = torch.zeros(n, dtype=torch.float64)
        step[number] = 1e-5
        change = total(effects + step) - total(effects - step)
        assert slopes[number].item() == pytest.approx(change / 2e-5, abs=1e-3)


@pytest.mark.slow
def test_fronts_do_better_by_it_at_every_size(tracer, tmp_path):
    options = {"max_budget": 4, "checkpoint": tmp_path / "search.ckpt", "max_passes": 80}
    front = tracer.pareto(objective="log-odds", **options)
    engine = scoring(tracer, "log-odds")
    scores = engine.set_effects([tiny.members_of(result) for result in front]).mean(1)
    assert (scores.diff() > 0).all()
    assert {result.run.objective for result in front} == {"log-odds"}
    assert front.statistics
    loaded = tk.ParetoFront.load(front.save(tmp_path / "front"))
    assert loaded[0].run.objective == "log-odds"
    assert loaded[0].title == "local search (log-odds)"
    with pytest.raises(tk.errors.ResultFormatError):
        tracer.pareto(**options)


@pytest.mark.slow
def test_it_goes_with_what_is_kept(model, tracer):
    neutral = tiny.pairs(7, seed=8)
    kept = tk.Tracer(model, neutral, "head-outputs", "kl")
    keep = tk.Constraint(pairs=neutral, at_most=0.5 * kept.full_effect)
    result = tracer.run("exhaustive", budget=2, objective="log-odds", constraint=keep)
    sets = [each for k in (1, 2) for each in combinations(range(12), k)]
    scores = scoring(tracer, "log-odds").set_effects(sets).mean(1).tolist()
    changes = kept.engine.set_effects(sets).mean(1).tolist()
    best = max(s for s, k in zip(scores, changes, strict=True) if abs(k) <= keep.at_most)
    chosen = scoring(tracer, "log-odds").set_effects([tiny.members_of(result)]).mean().item()
    assert chosen == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("metric", ["odds-ratio", "probability-drop", "probability-ratio"])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_log_odds_rise_with_the_effect(model, metric, direction):
    tracer = tk.Tracer(model, tiny.pairs(8), "head-outputs", metric, direction=direction)
    mask = torch.rand(12, generator=torch.Generator().manual_seed(0))
    scores, effects = scoring(tracer, "log-odds").effects(mask), tracer.engine.effects(mask)
    assert torch.equal(scores > 0, effects > 0)
    assert scoring(tracer, "log-odds").effects(torch.zeros(12)).abs().max() == 0


@pytest.mark.slow
def test_lines_of_figures_are_told_apart(tracer):
    results = [tracer.run("top-k", budget=3, objective=o) for o in ("mean", "log-odds")]
    names = {trace.name for trace in effect_curve(results).data if trace.name}
    assert {"top-k", "top-k (log-odds)"} <= names
    assert list(tk.compare(results).labels) == ["top-k", "top-k (log-odds)"]


def test_names():
    assert describe_objective(None) == "mean"
    assert describe_objective(Quantile()) == "median"
    assert describe_objective(Quantile(level=0.25)) == "quantile, level 0.25"
    assert resolve_objective("trimmed-mean") == TrimmedMean(share=0.1)


def test_what_is_refused(tracer, unchecked):
    with pytest.raises(ConfigError, match=r"Unknown objective 'best'. Use one of mean, log-odds"):
        tracer.run("top-k", budget=2, objective="best")
    with pytest.raises(
        ConfigError, match="'kl' has no log-odds. Search by them with probability-d"
    ):
        log_odds_of(METRICS["kl"])
    with pytest.raises(BudgetError, match="A target_effect is a mean effect, and the search max"):
        tracer.run("top-k", target_effect=0.1, objective="median")
    for make in (lambda v: TrimmedMean(share=v), lambda v: Quantile(level=v)):
        with pytest.raises(ConfigError, match="(share|level) is 1.0. Input should be less than"):
            make(1.0)
    for value in (0, -1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(ConfigError, match=f"errors is {value!r}. (Input should be|Give)"):
            LowerBound(errors=value)


def test_a_set_that_does_much_for_one_example_only_is_a_warning(tracer):
    effects = torch.full((11,), 0.1)
    effects[4] = 0.6
    with pytest.warns(
        UnreliableResultWarning, match=r"Example 4 \(.*\) carries 37 % of the effect"
    ):
        tracer.run(Fixed(effects), budget=1)
    effects[4] = 0.4
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreliableResultWarning)
        tracer.run(Fixed(effects), budget=1, sign="positive")


@pytest.mark.slow
def test_a_set_that_does_not_hold_is_a_warning(model):
    pairs = tiny.pairs(11, seed=3)
    tracer = tk.Tracer(model, pairs, held_out=tiny.pairs(9, seed=40), metric="odds-ratio")
    with pytest.warns(UnreliableResultWarning, match="less than half of the .* on those that had"):
        result = tracer.run("exhaustive", budget=3)
    assert result.held_out_effect < result.effect / 2


class Fixed:
    """A search that knows its answer."""

    name = "fixed"

    def __init__(self, effects):
        self.effects = effects

    def search(self, engine, goal, seed):
        return [tk.search.Selection(mask=from_indices([3], 12), effects=self.effects, budget=1)]


def row(size, fitted, error):
    nothing = dict.fromkeys(("control", "control_low", "control_high", "stability"))
    fields = {"cross_fitted": fitted, "cross_fitted_error": error}
    nothing |= dict.fromkeys(("cross_fitted_low", "cross_fitted_high"))
    return tk.results.SizeStatistics(size=size, **fields, **nothing)


@pytest.mark.slow
def test_the_best_size_is_the_smallest_within_one_standard_error(tracer):
    front = tracer.pareto(max_budget=4, statistics=False)
    rows = (row(1, 0.2, 0.05), row(2, 0.71, 0.3), row(3, 0.8, 0.1))
    assert replace(front, statistics=rows).best_size() == 2
    narrow = (*rows[:2], row(3, 0.8, 0.05))
    assert replace(front, statistics=narrow).best_size() == 3
    with pytest.raises(NoResultError, match="no cross-fitted effects to choose a size by"):
        front.best_size()
