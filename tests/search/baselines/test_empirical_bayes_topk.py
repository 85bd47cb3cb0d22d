"""Shrinkage of single effects: by hand, by simulation, and what becomes of it on a model."""

from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ConfigError, NotDifferentiableError
from tracekit.search import make_target
from tracekit.search.baselines import empirical_bayes_topk
from tracekit.search.baselines.empirical_bayes_topk import (
    MOST_ALONE,
    EmpiricalBayesTopK,
    shrunken_effects,
    shrunken_means,
)
from tracekit.search.objectives import log_odds_of

EQUAL = torch.ones(4, dtype=torch.float64)


def by_hand(changes) -> list[float]:
    """The formula of the module's docstring, one component at a time."""
    n = len(changes[0])
    sizes = [sqrt(sum(u * u for u in row) / n) for row in changes]
    ratios = [sum(row) / n / size for row, size in zip(changes, sizes, strict=True)]
    errors = [(1 - z * z) / (n - 1) for z in ratios]
    common = sum(ratios) / len(ratios)
    spread = sum((z - common) ** 2 for z in ratios) / (len(ratios) - 1)
    true = max(0.0, spread - sum(errors) / len(errors))
    return [
        size * (common + true / (true + error) * (z - common))
        for size, z, error in zip(sizes, ratios, errors, strict=True)
    ]


def test_means_are_shrunken_by_the_formula():
    changes = [[2.0, 1.0, 3.0, 2.0], [0.5, -0.5, 0.4, -0.3], [-1.0, 0.2, -0.7, -0.9]]
    shrunken = shrunken_means(torch.tensor(changes).double(), EQUAL)
    assert shrunken.tolist() == pytest.approx(by_hand(changes))
    # Each lies between its own mean and what all have in common.
    means, sizes = torch.tensor(changes).mean(1), torch.tensor(changes).square().mean(1).sqrt()
    for mean, value, prior in zip(means, shrunken, sizes * (means / sizes).mean(), strict=True):
        assert min(mean, prior) < value < max(mean, prior)


def test_ratios_that_differ_by_chance_alone_become_the_same():
    changes = torch.tensor([[1.0, -1.0, 2.0, 0.0], [3.0, -2.0, 4.0, -1.0], [0.1, 0.1, -0.2, 0.1]])
    sizes = changes.square().mean(1).sqrt()
    ratios = shrunken_means(changes.double(), EQUAL) / sizes
    assert ratios.tolist() == pytest.approx([ratios[0].item()] * 3)


def test_components_that_always_push_one_way_are_left_as_they_are():
    changes = torch.tensor([[1.0] * 4, [-2.0] * 4, [3.0] * 4, [0.1, -0.1, 0.1, -0.1]]).double()
    assert shrunken_means(changes, EQUAL)[:3].tolist() == pytest.approx([1, -2, 3])


def test_what_tells_nothing_is_left_alone():
    still = torch.zeros(4, 4).double()
    assert shrunken_means(still, EQUAL).tolist() == [0.0] * 4
    still[0] = torch.tensor([1.0, 2.0, 0.0, 1.0])
    # A component that moves nothing has no ratio, and two are too few.
    assert shrunken_means(still, EQUAL).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert shrunken_means(still[:, :1], EQUAL[:1]).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_weights_count():
    changes = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    weights = torch.tensor([2.0, 1.0, 0.5, 0.5]).double()
    n, means = 16 / 5.5, (changes * weights).mean(1)
    sizes = (changes.square() * weights).mean(1).sqrt()
    ratios = means / sizes
    errors = (1 - ratios**2) / (n - 1)
    true = (ratios.var() - errors.mean()).clamp(min=0)
    common = ratios.mean()
    expected = sizes * (common + true / (true + errors) * (ratios - common))
    torch.testing.assert_close(shrunken_means(changes, weights), expected)


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5])
def test_they_are_closer_to_the_truth_than_means(spread):
    """Normal changes of 60 components on 40 examples; the true ratios differ by `spread`."""
    generator = np.random.default_rng(0)
    errors = np.zeros(2)
    for _ in range(50):
        scale = np.exp(0.7 * generator.standard_normal(60))
        truth = 0.2 + spread * generator.standard_normal(60)
        noise = generator.standard_normal((60, 40))
        changes = torch.from_numpy(scale[:, None] * (truth[:, None] + noise))
        shrunken = shrunken_means(changes, torch.ones(40).double()).numpy()
        for rank, found in enumerate((shrunken, changes.mean(1).numpy())):
            errors[rank] += np.square((found - scale * truth) / scale).mean()
    # By how much: of the error of the mean, the share that its own noise has in all spread.
    assert errors[0] / errors[1] < {0.0: 0.1, 0.1: 0.5, 0.5: 1.02}[spread]


# ---- on a model -----------------------------------------------------------------------------


def singles_of(engine):
    return engine.set_effects([(i,) for i in range(engine.n_components)])


def test_effects_are_those_of_changes_moved_to_the_shrunken_mean(model):
    """Odds ratio: the change of the log-odds is log(1 + effect)."""
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3))
    changes = singles_of(tracer.engine).double().log1p()
    shrunken = by_hand(changes.tolist())
    expected = [
        sum(exp(u + value - row.mean().item()) - 1 for u in row.tolist()) / len(row)
        for row, value in zip(changes, shrunken, strict=True)
    ]
    result = tracer.run("empirical-bayes-top-k", budget=3)
    assert result.component_scores.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)
    order = sorted(range(12), key=lambda i: -expected[i])
    assert tiny.members_of(result) == tuple(sorted(order[:3]))
    assert result.effect == pytest.approx(tracer.evaluate(result.components))
    assert result.cost == tk.engine.Cost(12 + 1)


@pytest.mark.parametrize("metric", ["logit-difference", "kl"])
def test_effects_of_a_metric_without_a_curve_are_changes_themselves(model, metric):
    engine = tk.Tracer(model, tiny.pairs(), metric=metric).engine
    effects = singles_of(engine)
    assert shrunken_effects(make_target(engine), effects).tolist() == pytest.approx(
        by_hand(effects.double().tolist()), rel=1e-4, abs=1e-7
    )


def test_weights_of_examples_are_taken_out_and_count(model):
    rows = [{**row, "weight": 1 + 3 * (i % 2)} for i, row in enumerate(tiny.rows(8))]
    weights = torch.tensor([0.4, 1.6] * 4).double()
    for metric in ("logit-difference", "odds-ratio"):
        plain = tk.Tracer(model, tiny.pairs(8), metric=metric).engine
        engine = tk.Tracer(model, tk.PromptPairs.from_ids(rows), metric=metric).engine
        changes = singles_of(plain).double()
        if metric == "odds-ratio":
            changes = changes.log1p()
        shrunken = shrunken_means(changes, weights)
        if metric == "odds-ratio":
            moved = changes + (shrunken - (changes * weights).mean(1))[:, None]
            shrunken = (moved.expm1() * weights).mean(1)
        scores = shrunken_effects(make_target(engine), singles_of(engine))
        assert scores.tolist() == pytest.approx(shrunken.tolist(), rel=1e-3, abs=1e-6)


def test_nothing_is_shrunken_where_examples_hang_on_each_other(tracer):
    plain, shrunken = (
        tracer.run(method, budget=3, objective="trimmed-mean")
        for method in ("top-k", "empirical-bayes-top-k")
    )
    assert tiny.members_of(plain) == tiny.members_of(shrunken)


@pytest.mark.parametrize("entries", [2**24, 12 * 5])
def test_gradients_are_those_of_integrated_gradients(model, monkeypatch, entries):
    """In the mean over examples, of the log-odds; in parts of examples or all at once."""
    monkeypatch.setattr(empirical_bayes_topk, "_ENTRIES", entries)
    tracer = tk.Tracer(model, tiny.pairs(12, seed=5))
    slopes = EmpiricalBayesTopK(steps=4)._mean_gradients(make_target(tracer.engine))
    of_log_odds = tk.Tracer(model, tiny.pairs(12, seed=5), metric=log_odds_of(tracer.engine.metric))
    scores = of_log_odds.run("mask-ig", budget=1, steps=4).component_scores
    torch.testing.assert_close(slopes.mean(1), scores, rtol=1e-3, atol=1e-5)
    shrunken = by_hand(slopes.double().tolist())
    expected = [
        sum(exp(u + value - row.mean().item()) - 1 for u in row.tolist()) / len(row)
        for row, value in zip(slopes.double(), shrunken, strict=True)
    ]
    result = tracer.run("empirical-bayes-top-k", budget=3, by_gradients=True, steps=4)
    assert result.component_scores.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert result.cost == tk.engine.Cost(5 + 1, 5)


def test_many_components_are_ranked_by_gradients():
    goal = tk.search.Goal(budgets=(2,))
    usual, never = EmpiricalBayesTopK(), EmpiricalBayesTopK(by_gradients=False)
    assert usual.planned_passes(MOST_ALONE, goal).cost == tk.engine.Cost(MOST_ALONE + 1)
    assert usual.planned_passes(MOST_ALONE + 1, goal).cost == tk.engine.Cost(11 + 1, 11)
    assert never.planned_passes(MOST_ALONE + 1, goal).cost.backward == 0


def test_what_it_refuses(model):
    with pytest.raises(ConfigError, match="The option steps is 0. Input should be greater than 0"):
        EmpiricalBayesTopK(steps=0)
    accuracy = tk.Tracer(model, tiny.pairs(), metric="accuracy")
    with pytest.raises(
        NotDifferentiableError, match="no gradient for empirical-bayes-top-k to follow"
    ):
        accuracy.run("empirical-bayes-top-k", budget=2, by_gradients=True)
    assert accuracy.run("empirical-bayes-top-k", budget=2).n_selected == 2
