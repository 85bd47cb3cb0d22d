"""The walk from all components downwards."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.engine.gradients import FirstOrderPrediction
from tracekit.search import make_target
from tracekit.search.backward import backward_elimination, most_backward_passes


@pytest.fixture
def engine(model):
    return make_target(tiny.engine(model, tiny.pairs(8, seed=1), metric="logit-difference"))


def planted(engine, monkeypatch, value):
    """Gives sets the values of a function of masks, with its gradient."""

    def set_effects(sets, label=""):
        masks = torch.stack(
            [from_indices(members, engine.n_components).float() for members in sets]
        )
        return torch.stack([value(mask) for mask in masks])[:, None].expand(-1, engine.n_examples)

    def predict_changes(members):
        mask = from_indices(members, engine.n_components).float().requires_grad_(True)
        (gradient,) = torch.autograd.grad(value(mask), mask)
        return FirstOrderPrediction(gradient, gradient)

    monkeypatch.setitem(vars(engine), "set_effects", set_effects)
    monkeypatch.setitem(vars(engine), "predict_changes", predict_changes)


def test_what_adds_up_leaves_from_the_least_to_the_most(engine, monkeypatch):
    weights = torch.tensor([3.0, -1, 5, 0, 9, 2, 7, -4, 6, 1, 8, 4])
    planted(engine, monkeypatch, lambda mask: mask @ weights)
    order = weights.argsort(descending=True).tolist()
    found = backward_elimination(engine, range(1, 13))
    assert found == {size: tuple(sorted(order[:size])) for size in range(1, 13)}


def test_a_conjunction_is_seen_from_above(engine, monkeypatch):
    """Three components that do nothing unless all are there: no slope at the clean run says so."""
    together = [1, 6, 10]
    singles = torch.full((12,), 0.1)
    planted(engine, monkeypatch, lambda mask: mask @ singles + 5 * mask[together].prod())
    assert backward_elimination(engine, [3])[3] == (1, 6, 10)


def test_an_exchange_mends_what_the_slopes_mistook(engine, monkeypatch):
    """Of two components that do the same thing, slopes at all components miss neither."""
    either = [2, 7]
    singles = torch.full((12,), 0.5)
    singles[either] = 0.0
    value = lambda mask: mask @ singles + 4 * (1 - (1 - mask[either]).prod())  # noqa: E731
    planted(engine, monkeypatch, value)
    (chosen,) = backward_elimination(engine, [4]).values()
    assert len({*chosen} & {*either}) == 1


def test_sets_of_a_model(engine):
    before = engine.cost
    sizes = [2, 5, 9, 12]
    found = backward_elimination(engine, sizes)
    spent = (engine.cost - before).forward_equivalents
    assert sorted(found) == sizes
    assert all(len(set(members)) == size for size, members in found.items())
    assert found[12] == tuple(range(12))
    assert spent <= most_backward_passes(12, sizes) <= 2 * spent
    # Not the best of all pairs by chance: better than most.
    pairs = engine.set_effects(list(combinations(range(12), 2))).mean(1)
    own = engine.set_effects([found[2]]).mean()
    assert (pairs > own + 1e-6).float().mean() <= 0.1
