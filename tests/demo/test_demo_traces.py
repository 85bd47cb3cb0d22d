"""On the demo model: what a good search must find there."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tracekit.data.registry import DATASETS

HEADS = [0.1, 0.2, 0.3, 0.4]
NEURONS = [0.025, 0.05, 0.1, 0.15]


def tracer_for(model, name, components=None, limit=None):
    usual = DATASETS[name]
    pairs = tk.load_dataset(name, model)
    return tk.Tracer(
        model,
        pairs if limit is None else pairs[:limit],
        components=components or usual.components,
        metric=usual.metric,
        positions=usual.positions,
    )


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "budgets"),
    [
        pytest.param("demo-bias", HEADS, marks=pytest.mark.slow),
        pytest.param("demo-professions", NEURONS, marks=pytest.mark.soak),
        pytest.param("demo-facts", NEURONS, marks=pytest.mark.soak),
        pytest.param("demo-binding", HEADS, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pgb-ct", {"trials": 4}),
        pytest.param("pgb-ct", {}, marks=pytest.mark.soak),
        pytest.param("pgb-ct+local", {}, marks=pytest.mark.soak),
    ],
    ids=["four trials", "eight trials", "refined"],
)
def test_pgbct_is_at_least_top_k_at_every_budget(demo_model, name, budgets, method, options):
    tracer = tracer_for(demo_model, name)
    ours = tracer.run(method, budgets=budgets, **options)
    theirs = tracer.run("top-k", budgets=budgets)
    for one, other in zip(ours, theirs, strict=True):
        assert one.n_selected <= one.budget == other.budget
        assert one.effect >= other.effect - 1e-6 * abs(other.effect), one.budget


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        pytest.param("demo-bias", 0.995, marks=pytest.mark.soak),
        pytest.param("demo-professions", 0.995, marks=pytest.mark.soak),
        # Of these two one of four budgets falls short; docs/methods.md says so.
        pytest.param("demo-binding", 0.96, marks=pytest.mark.soak),
        pytest.param("demo-facts", 0.97, marks=pytest.mark.soak),
    ],
)
def test_a_path_is_as_good_as_greedy_for_less(demo_model, name, bar):
    tracer = tracer_for(demo_model, name, "attention-patterns")
    greedy = tracer.run("greedy", budgets=HEADS)
    passes = int(0.4 * greedy[0].cost.forward_equivalents)
    # By default it takes more where there are so few heads, as more is to be found.
    path = tracer.run("local-search", budgets=HEADS, max_passes=passes)
    assert path[0].cost.forward_equivalents <= passes
    for ours, theirs in zip(path, greedy, strict=True):
        assert ours.effect >= bar * theirs.effect
        one = tracer.run(budget=ours.budget)
        assert one.effect >= bar * theirs.effect
        assert one.cost.forward_equivalents <= 250


@pytest.mark.soak
@pytest.mark.slow
def test_the_optimum_of_a_small_space(demo_model):
    registry = tk.components.ComponentRegistry.build(
        demo_model.cfg, "attention-patterns", indices={1: [0, 3, 4, 7], 2: [0, 1, 2], 3: [5, 6]}
    )
    tracer = tracer_for(demo_model, "demo-bias", registry, limit=12)
    best = tracer.run("exhaustive", budget=3)
    for method, options in (
        ("pgb-ct", {"trials": 2, "epochs": 4}),
        ("greedy", {}),
        ("top-k", {}),
        ("random", {"draws": 9}),
    ):
        assert tracer.run(method, budget=3, **options).effect <= best.effect + 1e-6
    single = [tracer.run(m, budget=1).binary_mask for m in ("exhaustive", "greedy", "top-k")]
    assert torch.equal(single[0], single[1])
    assert torch.equal(single[0], single[2])


@pytest.mark.slow
def test_planted_facts_are_carried_by_more_than_one_head(demo_model):
    """Together the heads do more than the sum of what each does alone, or less: not additive."""
    tracer = tracer_for(demo_model, "demo-facts", "attention-patterns", limit=24)
    grid = tracer.interactions(layers=[0, 1])
    assert grid.interaction.nan_to_num().abs().max() > 0.05 * grid.singles.abs().max()
