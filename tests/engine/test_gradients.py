"""Looking ahead: predicted changes against one gradient per example."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.engine.cost import Cost
from tracekit.engine.effects import masked_log_probs
from tracekit.engine.gradients import expand
from tracekit.metrics import METRICS, ContinuationLogProbs


def twins():
    """Continuations of one token after the same prompt, x and y exchanged: rows are shared."""
    row = tiny.rows(1, seed=2, longest=1)[0]
    return tk.PromptPairs.from_ids([row, row | {"x_ids": row["y_ids"], "y_ids": row["x_ids"]}])


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.linearization])
def test_linearizations_give_the_metric(name):
    generator = torch.Generator().manual_seed(0)
    clean, after = (
        ContinuationLogProbs(*(-3 * torch.rand(2, 9, generator=generator, dtype=torch.float64)))
        for _ in range(2)
    )
    metric = METRICS[name]
    assert metric.linearization is not None
    values = metric.linearization.to_linear(after)
    torch.testing.assert_close(metric.linearization.to_effect(clean, values), metric(clean, after))
    several = metric.linearization.to_effect(clean, values[:, None].repeat(1, 3))
    torch.testing.assert_close(several, metric(clean, after)[:, None].repeat(1, 3))


def test_linearizations_have_finite_gradients_where_the_model_is_certain():
    """P(x) = 1 in float32 must not make a gradient that is no number."""
    certain = torch.zeros(2, requires_grad=True)
    link = METRICS["probability-drop"].linearization
    assert link is not None
    values = link.to_linear(ContinuationLogProbs(certain))
    (gradient,) = torch.autograd.grad(values.sum(), certain)
    assert torch.isfinite(values).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("metric", ["odds-ratio", "probability-drop", "logit-difference"])
@pytest.mark.parametrize("members", [(), (1, 4, 7)])
@pytest.mark.parametrize("data", [tiny.pairs(7, seed=5), twins()], ids=["ragged", "shared"])
def test_gains_are_first_order_in_the_linearization_and_exact_in_the_metric(
    model, data, metric, members
):
    """Against one gradient per example, taken apart with engines of single examples."""
    engine = tiny.engine(model, data, metric=metric, max_batch_size=3)
    count = len(data)
    found = engine.predict_changes(members)
    mask = from_indices(members, 12).float()
    _, total = engine.gradient(mask, torch.ones_like)
    torch.testing.assert_close(found.gradient, total / count, rtol=1e-4, atol=1e-6)
    link = METRICS[metric].linearization
    gains = torch.zeros(12)
    for number in range(count):
        alone = engine.with_pairs(data.subset([number]))
        effects, slope = alone.gradient(mask, torch.ones_like)
        if link is None:
            gains += slope
            continue
        value = link.to_linear(masked_log_probs(alone, mask)).detach().requires_grad_(True)
        weight = torch.autograd.grad(link.to_effect(alone.clean, value).sum(), value)[0]
        step = (slope / weight) * (1 - 2 * mask)
        ahead = link.to_effect(alone.clean, value.detach()[:, None] + step)[0]
        gains += (ahead - effects) * (1 - 2 * mask)
    torch.testing.assert_close(found.predicted_effects, gains / count, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_gains_predict_better_than_the_gradient_where_the_model_is_certain(model):
    data = tk.load_dataset("demo-facts", demo := tk.load_model("demo"))
    registry = tk.components.ComponentRegistry.build(demo.cfg, "attention-patterns")
    engine = tk.Tracer(demo, data, components=registry, metric="probability-drop").engine
    singles = engine.set_effects([[i] for i in range(32)]).mean(1)
    ahead = engine.predict_changes(())

    def agreement(score):
        ranks = torch.stack([singles.argsort().argsort(), score.argsort().argsort()]).float()
        return torch.corrcoef(ranks)[0, 1].item()

    assert agreement(ahead.predicted_effects) > 0.85
    assert agreement(ahead.gradient) < 0.6


@pytest.mark.parametrize("metric", ["odds-ratio", "probability-drop", "logit-difference"])
@pytest.mark.parametrize("data", [tiny.pairs(7, seed=5), twins()], ids=["ragged", "shared"])
def test_every_example_is_expanded_at_a_mask_of_its_own(model, data, metric):
    """Against engines of single examples, in whatever order the examples are asked for."""
    engine = tiny.engine(model, data, metric=metric, max_batch_size=3)
    generator = torch.Generator().manual_seed(4)
    examples = torch.randperm(len(data), generator=generator)[:5]
    masks = (torch.rand(len(examples), 12, generator=generator) < 0.4).float()
    before = engine.cost
    expansion = expand(engine, masks, examples)
    expected = Cost(len(examples) / len(data), len(examples) / len(data))
    assert engine.cost - before == expected
    link = METRICS[metric].linearization
    for row, number in enumerate(examples.tolist()):
        alone = engine.with_pairs(data.subset([number]))
        effects, slope = alone.gradient(masks[row], torch.ones_like)
        if link is None:
            value, weight = effects, torch.ones(1)
        else:
            value = (
                link.to_linear(masked_log_probs(alone, masks[row])).detach().requires_grad_(True)
            )
            weight = torch.autograd.grad(link.to_effect(alone.clean, value).sum(), value)[0]
        torch.testing.assert_close(expansion.quantity[row], value.detach()[0])
        torch.testing.assert_close(expansion.gradients[row], slope / weight, rtol=1e-3, atol=1e-5)
