"""Bootstrap intervals, with and without weights."""

from __future__ import annotations

import math

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.results import effect_interval, intervals
from tracekit.results.intervals import row_intervals, standard_error


def weighted(count: int) -> torch.Tensor:
    weights = torch.tensor([5.0, 1.0] * (count // 2))
    return weights / weights.mean()


def test_a_constant_effect_has_an_interval_of_no_width():
    weights = weighted(50)
    assert effect_interval(weights, weights=weights) == pytest.approx((1, 1), abs=1e-6)
    assert effect_interval(torch.ones(50)) == pytest.approx((1, 1), abs=1e-6)


@pytest.mark.parametrize("with_weights", [False, True])
def test_coverage_of_normal_effects(with_weights):
    """400 draws of 50 examples: the true mean lies in a 95 % interval in about 95 % of them."""

    def draw(generator):
        return 1 + 0.3 * torch.randn(50, generator=generator)

    weights = weighted(50) if with_weights else None
    assert 0.92 <= coverage(draw, 1, weights) <= 0.98


def percentile_interval(values, weights=None, seed=0) -> tuple[float, float]:
    """What a studentised interval is compared with."""
    n = len(values)
    picks = torch.randint(n, (2000, n), generator=torch.Generator().manual_seed(seed))
    low, high = values[picks].mean(1).quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


def coverage(draw, truth, weights=None, draws: int = 250, interval=effect_interval) -> float:
    """How often a 95 % interval holds the true mean."""
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for seed in range(draws):
        effects = draw(generator)
        values = effects if weights is None else effects * weights
        low, high = interval(values, weights=weights, seed=seed)
        covered += low - 1e-6 <= truth <= high + 1e-6
    return covered / draws


@pytest.mark.parametrize(
    ("sigma", "n", "least"),
    [(0.5, 16, 0.92), (1.0, 16, 0.86), (1.5, 16, 0.83), (1.5, 160, 0.88), (2.0, 64, 0.82)],
)
def test_coverage_of_odds_ratios(sigma, n, least):
    """Log-normal effects; percentiles of resampled means cover less."""

    def draw(generator):
        return (0.5 + sigma * torch.randn(n, generator=generator)).exp() - 1

    truth = math.exp(0.5 + sigma**2 / 2) - 1
    studentised, percentiles = (
        coverage(draw, truth, interval=each) for each in (effect_interval, percentile_interval)
    )

    assert studentised >= least
    assert studentised - percentiles >= (0.02 if sigma < 1.5 else 0.04 if n > 64 else 0.08)


@pytest.mark.parametrize(("probability", "n"), [(0.5, 64), (0.8, 64), (0.95, 160)])
def test_coverage_of_effects_of_zero_or_one(probability, n):
    def draw(generator):
        return (torch.rand(n, generator=generator) < probability).float()

    assert 0.9 <= coverage(draw, probability) <= 0.99


def test_resamples_in_portions_are_the_same(monkeypatch):
    values = torch.randn(40, generator=torch.Generator().manual_seed(1)).exp()
    at_once = effect_interval(values)
    monkeypatch.setattr(intervals, "_AT_ONCE", 4000)
    assert effect_interval(values) == pytest.approx(at_once)


def test_where_all_but_one_example_are_alike_the_interval_is_finite():
    values = torch.ones(20)
    values[3] = 0
    low, high = effect_interval(values)
    assert 0.6 < low < 0.95 < high < 1.1
    assert effect_interval(torch.tensor([0.3])) == pytest.approx((0.3, 0.3))


def test_the_standard_error_is_that_of_resampled_means():
    generator = torch.Generator().manual_seed(2)
    weights = weighted(60)
    values = (1 + torch.randn(60, generator=generator)) * weights
    picks = torch.randint(60, (20_000, 60), generator=generator)
    resampled = values[picks].sum(1) / weights[picks].sum(1)
    assert standard_error(values, weights) == pytest.approx(resampled.std().item(), rel=0.05)


def test_weights_go_with_results(model, tmp_path):
    rows = [{**row, "weight": 1 + 4 * (i % 2)} for i, row in enumerate(tiny.rows(8))]
    pairs = tk.PromptPairs.from_ids(rows)
    result = tk.Tracer(model, pairs[:6], held_out=pairs[6:]).run("top-k", budget=2)
    assert result.weights.mean() == pytest.approx(1)
    loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
    assert torch.equal(loaded.weights, result.weights)
    assert torch.equal(loaded.held_out_weights, result.held_out_weights)
    assert loaded.spread == result.spread
    assert result.spread == effect_interval(result.per_example, weights=result.weights)


@pytest.mark.parametrize(("confidence", "quantile"), [(0.95, 1.960), (0.5, 0.674)])
def test_the_width_is_that_of_the_confidence_asked_for(confidence, quantile):
    """Of a mean of many normal values: twice the quantile times the standard error."""
    values = torch.randn(400, generator=torch.Generator().manual_seed(1))
    low, high = effect_interval(values, weights=torch.ones(400), confidence=confidence)
    assert high - low == pytest.approx(2 * quantile * values.std().item() / 400**0.5, rel=0.1)


def test_two_examples():
    """Intervals of rows are those of each row, with the fewest examples too."""
    values = torch.tensor([[1.0, 3.0], [5.0, 4.5]])
    expected = torch.tensor([effect_interval(row) for row in values], dtype=torch.float64)
    torch.testing.assert_close(row_intervals(values), expected)
