"""DCM against a descent written out plainly."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tracekit.errors import (
    ConfigError,
)
from tracekit.search import Goal


def descended(engine, search_, epochs):
    """The descent of DCM, written out plainly: full batches, autograd of the whole loss."""
    mask = torch.full((engine.n_components,), 0.5, requires_grad=True)
    optimizer = torch.optim.Adam([mask], lr=0.1)
    for _ in range(epochs):
        effects, gradient = engine.gradient(mask.detach(), torch.ones_like)
        surrogate = (mask * gradient).sum() / len(effects)
        loss = -surrogate + search_.lambda1 * (mask + 0.001).sqrt().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mask.data.clamp_(0, 1)
    return mask.detach()


def test_dcm_descends_the_raw_effect_with_a_concave_penalty(tracer):
    search_ = tk.search.DCM(lambda1=2e-3, epochs=4, batch_size=len(tracer.pairs))
    (found,) = search_.search(tk.search.make_target(tracer.engine), Goal(), 0)
    expected = descended(tracer.engine, search_, 4)
    torch.testing.assert_close(found.soft_mask, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.mask, expected > 0.5)
    line = found.history[-1]
    assert line["size_penalty"] == pytest.approx(
        2e-3 * (expected + 0.001).sqrt().sum().item(), rel=1e-4
    )
    assert "binary_penalty" not in line


@pytest.mark.slow
def test_dcm_answers_budgets_and_targets(tracer):
    curve = tracer.run("dcm", budgets=[2, 5], epochs=8, trials=3)
    assert [result.method for result in curve] == ["dcm", "dcm"]
    assert all(r.n_selected <= r.budget for r in curve)
    reached = tracer.run("dcm", target_effect=0.5 * curve[1].effect, epochs=8)
    assert reached.effect >= 0.5 * curve[1].effect
    with pytest.raises(ConfigError, match="trials is 0"):
        tk.search.DCM(trials=0)


@pytest.mark.parametrize("value", [0.0, 0.01, 0.5, 1.0])
def test_the_slope_of_the_penalty_is_its_derivative(value):
    search, step = tk.search.DCM(), 1e-4

    def total(first):
        mask = torch.tensor([first, 0.2], dtype=torch.float64)
        return search.penalty_terms(0.3, mask, 0)["size_penalty"]

    change = (total(value + step) - total(value - step)) / (2 * step)
    mask = torch.tensor([value, 0.2])
    assert search.penalty_slope(0.3, mask, 0) == pytest.approx(change, rel=0.01)
    assert search.penalty_gradient(0.3, mask, 0)[0].item() == pytest.approx(change, rel=0.01)
