"""Bootstrap intervals, with and without weights."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.results import effect_interval


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
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for draw in range(400):
        effects = 1 + 0.3 * torch.randn(50, generator=generator)
        weights = weighted(50) if with_weights else None
        values = effects if weights is None else effects * weights
        low, high = effect_interval(values, weights=weights, seed=draw)
        covered += low <= 1 <= high
    assert 0.90 <= covered / 400 <= 0.98


def test_weights_go_with_results(model, tmp_path):
    rows = [{**row, "weight": 1 + 4 * (i % 2)} for i, row in enumerate(tiny.rows(8))]
    pairs = tk.PromptPairs.from_ids(rows)
    result = tk.Tracer(model, pairs[:6], held_out=pairs[6:]).run("top-k", budget=2)
    assert result.weights.mean() == pytest.approx(1)
    loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
    assert torch.equal(loaded.weights, result.weights)
    assert torch.equal(loaded.held_out_weights, result.held_out_weights)
    assert loaded.interval == result.interval
    assert result.interval == effect_interval(result.per_example, weights=result.weights)


@pytest.mark.parametrize(("confidence", "quantile"), [(0.95, 1.960), (0.5, 0.674)])
def test_the_width_is_that_of_the_confidence_asked_for(confidence, quantile):
    """Of a mean of many normal values: twice the quantile times the standard error."""
    values = torch.randn(400, generator=torch.Generator().manual_seed(1))
    low, high = effect_interval(values, weights=torch.ones(400), confidence=confidence)
    assert high - low == pytest.approx(2 * quantile * values.std().item() / 400**0.5, rel=0.1)
