"""Soft top-k."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.search.local.measurements import Limits, MeasurementCache
from tracekit.search.local.soft_topk import soft_mask, soft_topk_logits, through_threshold


@settings(max_examples=40, deadline=None)
@given(
    scores=st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40),
    share=st.floats(0.01, 0.99),
    temperature=st.floats(0.05, 3),
)
def test_soft_masks_sum_to_their_budget(scores, share, temperature):
    budget = share * len(scores)
    mask = soft_mask(torch.tensor(scores), budget, temperature)
    assert mask.sum().item() == pytest.approx(budget, rel=1e-3, abs=1e-3)
    order = torch.tensor(scores).argsort()
    assert (mask[order].diff() >= 0).all()


def test_gradients_pass_through_the_threshold():
    """Against finite differences of the whole map from scores to masks."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(9, generator=generator, dtype=torch.float64)
    weights = torch.randn(9, generator=generator)
    found = through_threshold(soft_mask(scores, 3.3, 0.5), weights, 0.5)
    for place in range(9):
        step = torch.zeros(9, dtype=torch.float64)
        step[place] = 1e-3
        up, down = (soft_mask(scores + sign * step, 3.3, 0.5) for sign in (1, -1))
        slope = ((up - down) * weights).sum().item() / 2e-3
        assert found[place].item() == pytest.approx(slope, abs=2e-3)


@pytest.mark.parametrize("schedule", ["log", "uniform"])
def test_soft_top_k_puts_the_best_components_first(tracer, plain_effects, schedule):
    measurements = MeasurementCache(tracer.engine, Limits())
    scores, total = soft_topk_logits(
        measurements, largest=12, steps=40, seed=0, budget_sampling=schedule
    )
    assert measurements.spent == 80
    for size in (2, 4, 6):
        best = max(plain_effects[s] for s in plain_effects if len(s) == size)
        for score in (scores, total):
            mine = tuple(sorted(score.argsort(descending=True)[:size].tolist()))
            assert plain_effects[mine] > 0.5 * best
        mine = tuple(sorted(scores.argsort(descending=True)[:size].tolist()))
        assert plain_effects[mine] > 0.9 * best
    rewarded, _ = soft_topk_logits(
        MeasurementCache(tracer.engine, Limits()), largest=12, steps=5, seed=0, reward="per-example"
    )
    plain, _ = soft_topk_logits(
        MeasurementCache(tracer.engine, Limits()), largest=12, steps=5, seed=0
    )
    shifted, _ = soft_topk_logits(
        MeasurementCache(tracer.engine, Limits()), largest=12, steps=5, seed=1
    )
    assert not torch.equal(plain, rewarded)
    assert not torch.equal(plain, shifted)
