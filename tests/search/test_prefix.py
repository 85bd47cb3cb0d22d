"""Prefixes of a ranking that reach a target."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import TargetNotReachedError
from tracekit.search.prefix import most_prefixes, smallest_prefix, smallest_size


@pytest.fixture
def engine_with(model, monkeypatch):
    """An engine whose mean effect depends on the size of the set alone."""

    def make(effect_of_size):
        engine = tk.search.make_target(tiny.engine(model, tiny.pairs(4)))

        def effects(mask):
            return torch.full((4,), effect_of_size(int(mask.sum())))

        def set_effects(sets, label="effects"):
            return torch.tensor([[effect_of_size(len(members))] * 4 for members in sets])

        monkeypatch.setitem(vars(engine), "effects", effects)
        monkeypatch.setitem(vars(engine), "set_effects", set_effects)
        return engine

    return make


@pytest.mark.parametrize(
    ("reaching", "smallest"), [({3}, 3), ({5, 7}, 5), ({3, 5, 6, 11}, 3), ({11}, 11), ({1, 5}, 1)]
)
def test_the_smallest_reaching_prefix_between_the_doubled_sizes(engine_with, reaching, smallest):
    """Sizes 1, 2, 4, 8 and 12 are tried first; others only if none of those reaches."""
    engine = engine_with(lambda size: 2.0 if size in reaching else 1.0)
    order = [11, 3, 7, 0, 1, 2, 4, 5, 6, 8, 9, 10]
    prefix = smallest_prefix(engine, order, 1.5)
    assert prefix.size == smallest
    assert set(prefix.mask.nonzero()[:, 0].tolist()) == set(order[:smallest])


def test_the_worst_case_takes_what_is_said_at_most(engine_with):
    """No doubled size reaches the target: every other one is measured, then the answer."""
    counted = []
    engine = engine_with(lambda size: counted.append(size) or (2.0 if size == 11 else 1.0))
    assert smallest_prefix(engine, list(range(12)), 1.5).size == 11
    assert len(counted) == most_prefixes(12)


def test_a_target_that_no_prefix_reaches(engine_with):
    engine = engine_with(lambda size: size / 10)
    with pytest.raises(TargetNotReachedError, match="of 7; the largest seen is 1.2"):
        smallest_prefix(engine, list(range(12)), 7.0)


@pytest.mark.parametrize("first", [1, 2, 3, 5, 8, 9, 12])
def test_the_smallest_size_is_found_in_few_tries_where_effects_grow(first):
    tried = []
    size, by_size = smallest_size(12, lambda n: tried.append(n) or n, lambda n: n >= first)
    assert size == first
    assert len(tried) == len(by_size) <= 7
