"""The formulas of operations count what passes over edges do, and the sizes are those of models."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tools.benchmarks.setting import SIZES
from tools.studies.edge_operations import PartShares, Shape, TouchedParts
from tools.studies.large_models import count_operations, shapes
from tracekit.components.edges import EDGE_KINDS
from tracekit.components.masks import complement_of

N_PAIRS, LENGTH = 3, 5
ROUNDING = 1e-6


def pairs_of_one_length():
    generator = torch.Generator().manual_seed(0)

    def ids(count):
        return torch.randint(tiny.VOCABULARY, (count,), generator=generator).tolist()

    rows = [
        {
            "prompt_ids": ids(LENGTH),
            "counterfactual_ids": ids(LENGTH),
            "x_ids": ids(1),
            "y_ids": ids(1),
        }
        for _ in range(N_PAIRS)
    ]
    return tk.PromptPairs.from_ids(rows)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request):
    return tiny.shared_model(request.param)


@pytest.fixture(params=EDGE_KINDS)
def case(request, model):
    engine = tiny.engine(model, pairs_of_one_length(), request.param, "logit-difference")
    engine.effects(torch.zeros(engine.n_components))  # The clean and the counterfactual run.
    shape = Shape.of("tiny", model.original_model.config)
    assert shape.n_edges(EDGE_KINDS[request.param]) == engine.n_components
    return engine, shape, EDGE_KINDS[request.param]


def operations_of_token(run):
    return count_operations(run) / (N_PAIRS * LENGTH)


def test_a_forward_pass_a_mask_and_a_gradient(case):
    engine, shape, by = case
    mask = torch.rand(engine.n_components, generator=torch.Generator().manual_seed(0))

    def forward():
        with engine.measuring():
            for batch in engine.batches:
                engine.forward_pass.log_probs(batch, [])

    counted = operations_of_token(forward)
    assert counted == pytest.approx(shape.forward(LENGTH), rel=ROUNDING)
    counted = operations_of_token(lambda: engine.effects(mask))
    assert counted == pytest.approx(shape.dense_pass(LENGTH, by), rel=ROUNDING)
    counted = operations_of_token(lambda: engine.gradient(mask, torch.ones_like))
    assert counted == pytest.approx(shape.gradient(LENGTH, by), rel=ROUNDING)


@pytest.mark.parametrize("size", [1, 6, 20])
def test_connected_sets_of_edges(case, size):
    engine, shape, by = case
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(engine.n_components, generator=generator).tolist()
        members = engine.edge_paths.first(order, size)
        if 2 * len(members) >= engine.n_components:
            continue
        others = complement_of(members, engine.n_components)
        parts = TouchedParts.of(shape, members, by)
        engine.set_effects([members, others])  # Tries once whether parts can be left out.
        counted = operations_of_token(lambda m=members: engine.set_effects([m]))
        assert counted == pytest.approx(parts.patched(LENGTH), rel=ROUNDING)
        counted = operations_of_token(lambda m=others: engine.set_effects([m]))
        assert counted == pytest.approx(parts.others_patched(LENGTH), rel=ROUNDING)


def test_all_edges_touch_everything():
    shape = shapes()["smollm2-135m"]
    parts = TouchedParts.of(shape, range(shape.n_edges()))
    assert parts.shares == PartShares(1, 1, 1, 1, 1)
    assert TouchedParts.of(shape, []).shares == PartShares(0, 0, 0, 0, 0)


def test_sizes_are_those_of_the_models():
    """Parameters as their publishers count them, in millions."""
    published = {
        "gpt2": 124,
        "gpt2-medium": 355,
        "gpt2-xl": 1558,
        "smollm2-135m": 135,
        "qwen2.5-0.5b": 494,
        "llama-3.2-1b": 1236,
        "llama-3-8b": 8030,
    }
    assert set(published) == set(SIZES)
    for name, shape in shapes().items():
        # Without positions, biases and norms.
        assert shape.n_parameters / 1e6 == pytest.approx(published[name], rel=0.01)
    assert shapes()["gpt2"].n_edges() == 32_491  # Of Hanna et al. (2024).
