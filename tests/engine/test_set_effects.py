"""Many sets over a prefix tree give what one mask at a time gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit as tk
from tests import tiny
from tracekit.components.masks import from_indices

pytestmark = pytest.mark.lens

EVERY_KIND = [*tiny.PATCHED_KINDS, "+".join(tiny.WRITING_KINDS)]


def engines(model, pairs, kinds="attention-patterns", metric="odds-ratio", **options):
    """The same engine with and without optimisations."""
    fast = tiny.engine(model, pairs, kinds, metric, **options)
    plain_options = {**options, "max_batch_size": 64, "capabilities": tk.Capabilities.none()}
    return fast, tiny.engine(model, pairs, kinds, metric, **plain_options)


def random_sets(engine, count, seed=0, largest=6):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, largest, (count,), generator=generator).tolist()
    draw = torch.rand(count, engine.n_components, generator=generator).argsort(1)
    return [tuple(row[:size].tolist()) for row, size in zip(draw, sizes, strict=True)]


def close(value, expected, factor=1.0):
    torch.testing.assert_close(value, expected, rtol=factor * 5e-4, atol=factor * 2e-5)


@pytest.mark.pairwise
@pytest.mark.parametrize("kinds", EVERY_KIND)
def test_many_sets_equal_one_at_a_time(any_model, kinds):
    fast, plain = engines(any_model, tiny.pairs(5, seed=1), kinds, max_batch_size=11)
    sets = [*random_sets(fast, 30), (), (0,), (0,), (fast.n_components - 1,)]
    sets += [(0, i) for i in range(1, min(fast.n_components, 9))]
    # A whole set that others go on from, with several components in a layer.
    start = random_sets(fast, 40, seed=3)[-1][:4]
    sets += [tuple({*start, i}) for i in range(0, fast.n_components, 1 + fast.n_components // 12)]
    masks = torch.stack([from_indices(one, fast.n_components) for one in sets])
    close(fast.set_effects(sets).mean(1), plain.effects(masks).mean(1))
    close(plain.set_effects(sets).mean(1), plain.effects(masks).mean(1))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 11), max_size=5, unique=True), min_size=1, max_size=12))
def test_any_sets_equal_one_at_a_time(model, sets):
    engine = tiny.engine(model, tiny.pairs(3), max_batch_size=7)
    masks = torch.stack([from_indices(one, 12) for one in sets])
    close(engine.set_effects(sets).mean(1), engine.effects(masks).mean(1))


def test_sets_that_begin_in_a_layer_share_passes(model, monkeypatch):
    engine = tiny.engine(model, tiny.pairs(4), max_batch_size=12)
    engine.set_effects([[0]])
    taken, measure = [], engine.log_probs

    def recorded(batch, source, masks, **rest):
        taken.append(len(masks) * len(batch.examples))
        return measure(batch, source, masks, **rest)

    monkeypatch.setitem(vars(engine), "log_probs", recorded)
    engine.set_effects([[8], [9], [10], [11]])
    assert sum(taken) == 16
    assert max(taken) == 12
    assert len(taken) == 2


def test_layers_below_a_candidate_are_not_run_again(any_model, monkeypatch):
    engine = tiny.engine(any_model, tiny.pairs(4), max_batch_size=4)
    engine.set_effects([[0]]).mean(1)
    ran = []
    # On what the blocks wrap: a block that is left out is called and hands its input on.
    handles = [
        block.original_component.register_forward_hook(lambda *_, n=number: ran.append(n))
        for number, block in enumerate(any_model.blocks)
    ]
    engine.set_effects([[i] for i in range(12)]).mean(1)
    for handle in handles:
        handle.remove()
    # Four heads in each of three layers, and the clean stream carried on by a block twice.
    assert [ran.count(layer) for layer in range(3)] == [4 + 1, 8 + 1, 12]


def test_sets_on_no_example_have_no_effects(model):
    # The part of a process when more of them share the examples than there are.
    engine = tiny.engine(model, tiny.pairs(3))
    nothing = torch.tensor([], dtype=torch.long)
    assert engine.set_effects([(0,), (1, 2)], examples=nothing).shape == (2, 0)
