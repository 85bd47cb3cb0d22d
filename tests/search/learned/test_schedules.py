"""Schedules and reductions of the penalty."""

from __future__ import annotations

import pytest


def test_schedules_and_reductions_reach_the_penalty(tracer):
    result = tracer.run(lambda1=1e-3, epochs=3, penalty_schedule="exponential")
    assert [r["lambda1"] for r in result.history] == pytest.approx([1e-3, 1.3e-3, 1.69e-3])
    mean = tracer.run(lambda1=1e-3, epochs=1, penalty_reduction="mean").history[0]
    total = tracer.run(lambda1=1e-3 / 12, epochs=1).history[0]
    assert mean["size_penalty"] == pytest.approx(total["size_penalty"], rel=1e-4)


def test_a_penalty_schedule_may_start_at_zero(tracer):
    result = tracer.run(
        budget=3, trials=2, epochs=3, penalty_schedule=lambda epoch: max(0, epoch - 1)
    )
    assert result.n_selected <= 3
