"""Rewards and their gradients."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    ConfigError,
    NonFiniteMetricError,
)
from tracekit.search.learned.reward import LossGradient, make_loss


def test_the_per_example_reward_weighs_each_example_by_its_own_slope(tracer):
    """The gradient of the per-example reward weighs each example by its own slope."""
    engine = tracer.engine
    start = torch.full((12,), 0.5)
    by_example = LossGradient(
        tk.search.make_target(engine), make_loss("per-example", tk.search.make_target(engine))
    )
    found = by_example.step(start, torch.arange(12))
    effects = engine.effects(start)
    _, expected = engine.gradient(start, lambda e: -1 / (1 + e) ** 2 / 12)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert by_example.value() == pytest.approx((1 / (1 + effects)).mean().item(), rel=1e-4)


def test_minibatches_of_the_dataset_reward_use_the_running_mean(tracer):
    engine = tracer.engine
    start = torch.full((12,), 0.5)
    reward = LossGradient(
        tk.search.make_target(engine), make_loss("dataset", tk.search.make_target(engine))
    )
    reward.step(start, torch.arange(6))
    found = reward.step(start, torch.arange(6, 12))
    effects = engine.effects(start)
    _, plain = engine.gradient(start, lambda e: torch.ones_like(e) / 6, torch.arange(6, 12))
    expected = plain * -1 / (1 + effects.mean()) ** 2
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-7)


def test_unbounded_metrics_meet_no_pole(model):
    """Below -1/2 the reward goes on along its tangent, so an effect of -1 is nothing special."""
    tracer = tk.Tracer(model, tiny.pairs(6, seed=2), metric="logit-difference")
    objective = make_loss("dataset", tk.search.make_target(tracer.engine))
    effects = torch.tensor([-3.0, -1.0, -0.5, 0.0, 1.0])
    rewards = [objective.value(effect[None]).item() for effect in effects]
    assert rewards == pytest.approx([12, 4, 2, 1, 0.5])
    slopes = [objective.scale(effect).item() for effect in effects]
    assert slopes == pytest.approx([-4, -4, -4, -1, -0.25])
    assert tracer.run(budget=2, trials=2, epochs=3).n_selected <= 2


def test_the_pole_of_the_reward_is_never_reached(model):
    """In float32 the odds of an example can fall to nothing: its effect is then exactly -1."""

    def ruined(clean, intervened):
        effects = torch.expm1(intervened.y - clean.y - intervened.x + clean.x)
        return torch.where(torch.arange(len(effects)) == 0, effects * 0 - 1, effects)

    metric = tk.Metric("ruined", ruined, lower_bound=-1.0)
    engine = tiny.engine(model, tiny.pairs(4), metric=metric)
    for reward in ("per-example", "dataset"):
        gradient = LossGradient(
            tk.search.make_target(engine), make_loss(reward, tk.search.make_target(engine))
        )
        step = gradient.step(torch.full((12,), 0.5), torch.tensor([0]))
        assert torch.isfinite(step).all()
        assert gradient.value() < float("inf")


def test_a_gradient_that_is_not_finite_is_an_error(model, pairs):
    def rooted(clean, intervened):
        return (intervened.x - intervened.x.detach()).clamp(min=0).sqrt()

    tracer = tk.Tracer(model, pairs, metric=rooted)
    text = "gradient of the metric 'rooted' is not finite although"
    with pytest.raises(NonFiniteMetricError, match=text):
        tracer.run(lambda1=1e-3, batch_size=2)


def test_an_effect_that_is_not_finite_names_its_example_only(model, pairs):
    """Also where later steps of the epoch, with a spoilt mask, have no finite effect at all."""

    def broken(clean, intervened):
        effects = intervened.x - clean.x
        return torch.where(intervened.x == clean.x, effects, effects / (clean.x != lowest))

    tracer = tk.Tracer(model, pairs, metric="probability-drop")
    lowest = tracer.engine.clean.x.min()
    number = int(tracer.engine.clean.x.argmin())
    broken_tracer = tk.Tracer(model, pairs, metric=broken)
    text = rf"is not finite on 1 of 8 examples: example {number} \("
    with pytest.raises(NonFiniteMetricError, match=text):
        broken_tracer.run(lambda1=1e-3, batch_size=2)


def test_the_per_example_reward_has_no_weights(model):
    rows = [{**row, "weight": 1 + i} for i, row in enumerate(tiny.rows(4))]
    tracer = tk.Tracer(model, tk.PromptPairs.from_ids(rows))
    assert tracer.run(budget=2, epochs=2).effect > 0
    with pytest.raises(ConfigError, match="per-example reward has no meaning for weighted"):
        tracer.run("pgb-ct", budget=2, reward="per-example")
