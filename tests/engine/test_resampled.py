"""Engines of resampled examples give what an engine of these examples alone gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.cost import Cost
from tracekit.engine.resampled import ResampledEngine, SharedMeasurements
from tracekit.metrics import resolve_metric

NUMBERS = [3, 3, 0, 5, 1, 1, 1]
SETS = [(0, 2), (), (1, 3, 4), (0, 2)]


def engines(components="head-outputs", metric="probability-drop", weights=None, **options):
    """An engine that shares what is measured, and one that does not."""
    pairs = tiny.pairs(6, seed=3)
    if weights is not None:
        weighted = [replace(pair, weight=w) for pair, w in zip(pairs, weights, strict=True)]
        pairs = replace(pairs, pairs=tuple(weighted))
    tracer = tk.Tracer(tiny.shared_model("gpt2"), pairs, components, metric, **options)
    shared = SharedMeasurements(tracer.engine)
    alone = shared.engine.with_pairs(shared.engine.pairs.subset(NUMBERS))
    return ResampledEngine.draw(shared, NUMBERS), alone


CASES = {
    "heads": {},
    "weights": {"weights": [1, 2, 3, 0.5, 2, 5]},
    "edges": {"components": "edges"},
    "denoising": {"direction": "denoising"},
    "mean": {"source": "mean"},
    "divergence": {"metric": "kl"},
}


@pytest.fixture(params=list(CASES))
def both(request):
    return engines(**CASES[request.param])


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_effects_of_sets_are_those_of_the_drawn_examples(both):
    shared, alone = both
    some = torch.tensor([4, 0])
    close(shared.set_effects(SETS), alone.set_effects(SETS))
    close(shared.set_effects(SETS, examples=some), alone.set_effects(SETS, examples=some))
    close(shared.full_effects, alone.full_effects)
    assert shared.cost == alone.cost


@pytest.mark.parametrize("is_level", [True, False], ids=["equal entries", "any mask"])
def test_gradients_are_those_of_the_drawn_examples(both, is_level):
    shared, alone = both
    mask = torch.full((alone.n_components,), 0.3)
    if not is_level:
        mask[1] = 0.7
    for examples in (None, torch.tensor([6, 2, 3])):
        results = [each.gradient(mask, lambda e: 1 + e.abs(), examples) for each in both]
        for actual, expected in zip(*results, strict=True):
            close(actual, expected)
    assert shared.cost == alone.cost


def test_another_metric_is_shared_too(both):
    metrics = [each.with_metric(resolve_metric("logit-difference")) for each in both]
    close(*(each.set_effects(SETS) for each in metrics))
    close(*(each.full_effects for each in metrics))


def test_nothing_is_run_twice():
    shared, _ = engines()
    again = ResampledEngine.draw(shared.shared, [0, 0])
    mask = torch.full((again.n_components,), 0.5)
    for each in (shared, again):
        each.set_effects(SETS)
        each.gradient(mask, torch.ones_like)
    assert shared.shared.engine.cost == Cost(3 + 1, 1)
    assert again.cost == shared.cost == Cost(4 + 1, 1)
    saved = shared.shared.saved
    assert saved.forward == pytest.approx((7 + 2) * 5 / 6 - 4)
    assert saved.backward == pytest.approx((7 + 2) / 6 - 1)


def test_large_gradients_are_not_kept(monkeypatch):
    monkeypatch.setattr("tracekit.engine.resampled._MOST_GRADIENTS", 1)
    shared, alone = engines()
    mask = torch.full((alone.n_components,), 0.5)
    close(*(each.gradient(mask, torch.ones_like)[1] for each in (shared, alone)))
    assert shared.shared.engine.cost.backward == 0


def test_recorders_get_the_sets():
    shared, _ = engines()
    recorded = []
    replace(
        shared, record=lambda sets, effects: recorded.append((list(sets), effects.shape))
    ).set_effects(SETS)
    assert recorded == [(SETS, (4, len(NUMBERS)))]
