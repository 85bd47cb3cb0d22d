"""CUDA graphs of passes: searches find the same with replayed passes."""

from __future__ import annotations

import warnings
from itertools import count

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine import cuda_graphs
from tracekit.errors import ModelWarning
from tracekit.search import Goal, make
from tracekit.search.constraint import make_target

KINDS = {"attention-patterns": 1, "mlp-neurons": 4, "head-outputs+mlp-blocks": 3, "edges": 1}
"""With the most tokens of their pairs' continuations."""
METHODS = {
    "pgb-ct": {"lambda1": 1e-3, "epochs": 4, "batch_size": 3},
    "learned-ranking": {"epochs": 4, "batch_size": 3},
    "mask-ig": {},
    "local-search": {},
    "greedy": {},
}


@pytest.fixture
def replayed(monkeypatch):
    """On the CPU, the work of a graph is done again in its place; counts the replays."""
    times = count()

    def again(work, cache):
        with_gradient = torch.is_grad_enabled()
        work()

        def replay():
            next(times)
            with torch.set_grad_enabled(with_gradient):
                work()

        return replay

    monkeypatch.setattr(cuda_graphs, "capture_graph", again)
    monkeypatch.setattr(cuda_graphs, "_DEVICE_TYPES", {"cpu"})
    return lambda: next(times)


def searched(engine, method, seed=0):
    target = make_target(engine)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        with engine.cuda_graphs.recording():
            (selection,) = make(method, METHODS[method]).search(target, Goal(budgets=(3,)), seed)
    return selection


@pytest.mark.slow
@pytest.mark.pairwise
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kinds", KINDS)
def test_a_search_of_replayed_passes_finds_the_same(replayed, monkeypatch, kinds, method):
    model = tiny.shared_model("llama")
    pairs = tiny.pairs(8, longest=KINDS[kinds])
    ours = searched(tiny.engine(model, pairs, kinds, "logit-difference"), method)
    n_replayed = replayed()
    monkeypatch.setattr(cuda_graphs, "_DEVICE_TYPES", set())
    plain = searched(tiny.engine(model, pairs, kinds, "logit-difference"), method)
    torch.testing.assert_close(ours.mask, plain.mask, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.effects, plain.effects, atol=1e-5, rtol=1e-4)
    assert n_replayed > 4
    assert replayed() == n_replayed + 1


@pytest.mark.pairwise
@pytest.mark.parametrize("positions", ["prompt", "last", "all"])
def test_filled_batches_give_the_same_numbers(replayed, any_model, positions):
    engine = tiny.engine(
        any_model, tiny.pairs(7, longest=3, seed=2), "head-outputs", positions=positions
    )
    mask = torch.rand(engine.n_components, generator=torch.Generator().manual_seed(1))
    some = torch.tensor([4, 0, 6, 1])
    plain = [engine.gradient(mask, torch.sin, some), engine.predict_changes((1, 2), examples=some)]
    with engine.cuda_graphs.recording():
        for _ in range(3):
            filled = [
                engine.gradient(mask, torch.sin, some),
                engine.predict_changes((1, 2), examples=some),
            ]
    (batch,) = engine.batches_of(some)
    with engine.cuda_graphs.recording():
        (full,) = engine.batches_of(some)
    assert len(full.slot) > len(batch.slot)
    assert not full.slot[len(batch.slot) :].ge(0).any()
    for ours, expected in zip(filled, plain, strict=True):
        for one, other in (
            zip(ours, expected, strict=True)
            if isinstance(ours, tuple)
            else [
                (ours.predicted_effects, expected.predicted_effects),
                (ours.gradient, expected.gradient),
            ]
        ):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_replayed_sets_keep_within_the_rows_of_a_pass(replayed, monkeypatch):
    engine = tiny.engine(tk.load_model(tiny.hf_model("gpt2")), tiny.pairs(4), max_batch_size=13)
    sets = [(number,) for number in range(7)]
    expected, shapes = engine.set_effects(sets), []
    way = engine.forward_pass.log_probs

    def watched(batch, hooks, **options):
        shapes.append(len(batch.examples))
        return way(batch, hooks, **options)

    monkeypatch.setattr(engine.forward_pass, "log_probs", watched)
    with engine.cuda_graphs.recording():
        for _ in range(3):
            torch.testing.assert_close(engine.set_effects(sets), expected)
    # Three sets of four examples at once; the last one alone.
    assert set(shapes) == {12, 4}


def test_a_graph_that_computes_something_else_is_not_used(replayed, monkeypatch):
    def off(work, cache):
        return lambda: None

    monkeypatch.setattr(cuda_graphs, "capture_graph", off)
    engine = tiny.engine(tk.load_model(tiny.hf_model("gpt2")), tiny.pairs(5))
    mask = torch.rand(engine.n_components)
    expected = engine.gradient(mask, torch.ones_like)
    with engine.cuda_graphs.recording():
        engine.gradient(torch.zeros_like(mask), torch.ones_like)
        with pytest.warns(ModelWarning, match="CUDA graphs cannot be used on this device"):
            again = engine.gradient(mask, torch.ones_like)
        assert not engine.cuda_graphs.is_on
    for one, other in zip(again, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_gradient_after_another_pass_is_refused(replayed):
    engine = tiny.engine(tk.load_model(tiny.hf_model("gpt2")), tiny.pairs(5))
    (batch,) = engine.batches
    source = engine.counterfactual_cache.activations_for(batch)
    mask = torch.full((1, engine.n_components), 0.5, requires_grad=True)
    with engine.cuda_graphs.recording():
        for _ in range(3):
            first, _ = (engine.log_probs(batch, source, mask) for _ in range(2))
    with pytest.raises(AssertionError, match="Another pass was replayed before the gradient"):
        torch.autograd.grad(first.x.sum(), mask)


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_cuda_replays_what_it_captured(monkeypatch, architecture, kinds, method):
    model = tk.load_model(tiny.hf_model(architecture).to("cuda"))
    engine = tiny.engine(model, tiny.pairs(8), kinds, "logit-difference")
    assert engine.rows > 64
    ours = searched(engine, method)
    assert engine.cuda_graphs.n_replays > 4 or method == "greedy"  # All sets fit into one pass.
    monkeypatch.setattr(cuda_graphs, "_DEVICE_TYPES", set())
    plain = searched(tiny.engine(model, tiny.pairs(8), kinds, "logit-difference"), method)
    torch.testing.assert_close(ours.mask, plain.mask, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(ours.effects, plain.effects, atol=1e-4, rtol=1e-3)
