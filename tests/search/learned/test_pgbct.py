"""PGB-CT: one step by hand, budgets, seeds, options."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    ConfigError,
    NotDifferentiableError,
)
from tracekit.search import Goal, make_target
from tracekit.search.learned.reward import LossGradient, make_loss


def test_one_step_of_the_paper_by_hand(tracer):
    """One full-batch step of Adam moves every entry by the learning rate, against the sign."""
    result = tracer.run(
        lambda1=0.01, lambda2=0.02, epochs=1, batch_size=12, learning_rate=0.1, init=0.4
    )
    engine = tracer.engine
    start = torch.full((12,), 0.4)
    effects, gradient = engine.gradient(start, lambda e: torch.ones_like(e) / 12)
    slope = -1 / (1 + effects.mean()) ** 2
    total = slope * gradient + 0.01 + 0.02 * (1 - 2 * 0.4)
    torch.testing.assert_close(result.soft_mask, 0.4 - 0.1 * total.sign(), rtol=0, atol=1e-4)
    record = result.history[0]
    assert record["reward"] == pytest.approx(1 / (1 + effects.mean().item()), rel=1e-5)
    assert record["size_penalty"] == pytest.approx(0.01 * result.soft_mask.sum().item(), rel=1e-5)
    violation = (result.soft_mask * (1 - result.soft_mask)).sum().item()
    assert record["binary_violation"] == pytest.approx(violation, rel=1e-5)
    assert record["binary_penalty"] == pytest.approx(0.02 * violation, rel=1e-5)
    assert record["n_selected"] == result.n_selected


@pytest.mark.slow
def test_a_budget_needs_no_lambda(tracer):
    result = tracer.run(budget=5, trials=2, epochs=3)
    assert result.config["lambda1"] is None
    assert result.history[0]["lambda1"] > 0


def test_later_budgets_take_half_of_the_training_runs(tracer):
    """Those of the first one are used again."""
    options = {"trials": 5, "epochs": 2, "lambda2": 0.0}
    first = tracer.run("pgb-ct", budget=1, **options)
    both = tracer.run("pgb-ct", budgets=[1, 6], **options)
    assert 0 < first.cost.backward <= 5 * 2
    assert both[0].cost.backward <= first.cost.backward + 3 * 2


@pytest.mark.parametrize(("trials", "most"), [(4, 4 + 2 * 2), (5, 5 + 2 * 3)])
def test_three_budgets_take_so_many_training_runs_at_most(trials, most):
    search = tk.search.PGBCT(trials=trials, epochs=7)
    cost = search.planned_passes(12, Goal.make(12, budgets=[1, 3, 6])).cost
    # A gradient an epoch, and one for the first lambda; an answer for each budget.
    assert cost.backward == most * 7 + 1
    assert most * 7 < cost.forward


@pytest.mark.parametrize("budget", [1, 4, 11])
def test_at_the_first_lambda_so_many_gradients_outweigh_the_penalty_half_way(model, budget):
    engine = tiny.engine(model, tiny.pairs(12), metric="logit-difference")
    search = tk.search.PGBCT(epochs=10)
    start = torch.full((12,), search.init)
    weight = search._first_lambda(make_target(engine), budget)
    reward = LossGradient(
        make_target(engine),
        make_loss(search.loss, make_target(engine)),
    )
    gains = -reward.step(start, torch.arange(12))
    at_the_bound = gains.sort(descending=True).values[budget - 1].abs().item()
    assert search.penalty_slope(weight, start, 5) == pytest.approx(at_the_bound, rel=1e-4)


@pytest.mark.parametrize("weight", ["lambda1", "lambda2"])
def test_a_schedule_may_not_grow_beyond_numbers(tracer, weight):
    """Either weight counts, times the factor of the schedule."""
    weights = {"lambda1": 1e-3, "lambda2": 1e-3, weight: 1e9}
    with pytest.raises(ConfigError, match="gives 1e\\+08 in epoch 0. Give one that grows less"):
        tracer.run(epochs=2, penalty_schedule=lambda epoch: 1e8, **weights)


@pytest.mark.slow
def test_fixed_lambdas_are_one_training_run(tracer):
    result = tracer.run(lambda1=1e-3, epochs=4, batch_size=5)
    assert len(result.history) == 4
    assert result.cost.backward == pytest.approx(4)
    assert [r["lambda1"] for r in result.history] == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])
    assert [r["lambda2"] for r in result.history] == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])
    assert torch.equal(result.binary_mask, result.soft_mask > 0.5)
    strong = tracer.run(lambda1=10.0, epochs=9, budget=4)
    assert len(strong.history) < 9  # stops once few enough are selected


def test_the_same_seed_gives_the_same_bits(tracer):
    first, second = (
        tracer.run(lambda1=1e-3, epochs=3, batch_size=5, seed=4).soft_mask for _ in range(2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(
        first, tracer.run(lambda1=1e-3, epochs=3, batch_size=5, seed=5).soft_mask
    )


def test_learning_rates_of_the_paper(model, pairs):
    for kinds, rate in (
        ("attention-patterns", 0.1),
        ("mlp-outputs", 0.5),
        ("head-outputs+mlp-blocks", 0.01),
    ):
        engine = tiny.engine(model, pairs, kinds)
        assert tk.search.PGBCT()._learning_rate(make_target(engine)) == rate
    usual = tk.search.PGBCT()
    assert (usual.epochs, usual.init, usual.threshold) == (15, 0.5, 0.5)


def test_a_metric_without_gradient_cannot_be_followed(model, pairs):
    engine = tiny.engine(model, pairs, metric="accuracy")
    with pytest.raises(NotDifferentiableError, match="'accuracy' has no gradient for pgb-ct"):
        tk.search.PGBCT().search(make_target(engine), Goal(budgets=(2,)), 0)
    assert tk.search.TopK().search(make_target(engine), Goal(budgets=(2,)), 0)[0].mask.sum() == 2


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lambda1": -1.0}, "lambda1 is -1.0. Input should be greater than or equal to 0"),
        ({"lambda2": -1.0}, "lambda2 is -1.0. Input should be greater than or equal to 0"),
        ({"trials": 0}, "trials is 0. Input should be greater than 0"),
        ({"epochs": 0}, "epochs is 0. Input should be greater than 0"),
        ({"init": 1.5}, "init is 1.5. Input should be less than or equal to 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0. Input should be greater than 0"),
        ({"reward": "both"}, "reward is 'both'. Input should be 'dataset' or 'per-example'"),
        (
            {"penalty_reduction": "max"},
            "penalty_reduction is 'max'. Input should be 'sum' or 'mean'",
        ),
        ({"penalty_schedule": "cosine"}, "Unknown schedule 'cosine'"),
    ],
)
def test_hyper_parameters_out_of_range(options, text):
    with pytest.raises(ConfigError, match=text):
        tk.search.PGBCT(**options)


def test_pgbct_without_one_of_its_penalties(tracer):
    first = tracer.run("pgb-ct", budgets=[3, 6], lambda1=0.0, lambda2=1e-2, epochs=4)
    assert first[0].history[-1]["size_penalty"] == 0
    second = tracer.run("pgb-ct", budgets=[3, 6], lambda2=0.0, epochs=4, trials=2)
    assert second[0].history[-1]["binary_penalty"] == 0
    assert second[0].history[-1]["size_penalty"] > 0
    for result in (*first, *second):
        assert 0 < result.n_selected <= result.budget


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_penalty_gradients_are_those_of_the_penalties(reduction):
    """Autograd of lambda1 |m|_1 + lambda2 m^T(1 - m), with the growth of the third epoch."""
    search = tk.search.PGBCT(lambda2=0.3, penalty_reduction=reduction)
    mask = torch.tensor([0.1, 0.4, 0.8, 1.0], requires_grad=True)
    size, binary = mask.abs().sum(), (mask * (1 - mask)).sum()
    scale = 3 / (4 if reduction == "mean" else 1)
    (expected,) = torch.autograd.grad(scale * (0.7 * size + 0.3 * binary), mask)
    torch.testing.assert_close(search.penalty_gradient(0.7, mask.detach(), 2), expected)
    terms = search.penalty_terms(0.7, mask.detach(), 2)
    assert terms["size_penalty"] == pytest.approx(scale * 0.7 * size.item())
    assert terms["binary_penalty"] == pytest.approx(scale * 0.3 * binary.item())
    assert (terms["lambda1"], terms["lambda2"]) == pytest.approx((3 * 0.7, 3 * 0.3))
