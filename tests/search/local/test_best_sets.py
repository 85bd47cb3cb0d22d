"""The best measured sets of every size, and moves to their neighbours."""

from __future__ import annotations

from itertools import pairwise

import pytest

import tracekit as tk
from tests import tiny
from tracekit.search.local.best_sets import BestSets
from tracekit.search.local.measurements import LimitReachedError, Limits, MeasurementCache
from tracekit.search.local.moves import Moves, in_turn


def test_neighbours_are_those_that_look_best(tracer):
    engine = tracer.engine
    best_sets = BestSets(MeasurementCache(engine, Limits()), 12)
    best_sets.measure([(1, 5, 8)], "start")
    ahead = engine.predict_changes((1, 5, 8))
    inside, outside = [1, 5, 8], [i for i in range(12) if i not in (1, 5, 8)]
    best = [max(outside, key=lambda i: s[i].item()) for s in (ahead.gains, ahead.gradient)]
    worst = [min(inside, key=lambda i: s[i].item()) for s in (ahead.gains, ahead.gradient)]
    for moves, up, down, expected in (
        (Moves(additions=1, removals=0, swaps=0), 4, 2, {1, 5, 8, best[0]}),
        (Moves(additions=0, removals=1, swaps=0), 4, 2, {1, 5, 8} - {worst[0]}),
        (Moves(additions=0, removals=0, swaps=1), 4, 2, {1, 5, 8} - {worst[0]} | {best[0]}),
    ):
        before = set(best_sets.measurements._measured.effects)
        best_sets.explore((1, 5, 8), moves, up=up, down=down)
        (new,) = set(best_sets.measurements._measured.effects) - before
        assert new == tuple(sorted(expected))
    # The only set of three whose neighbours were not measured is the one that the swap made.
    swapped = tuple(sorted({1, 5, 8} - {worst[0]} | {best[0]}))
    assert best_sets.unexplored(3, depth=2, within=float("inf")) == swapped
    best_sets.explore((1, 5, 8), Moves(additions=0, removals=0, swaps=0), up=7, down=1)
    assert {len(one) for one in best_sets.measurements._measured.effects} >= {7, 1}


def test_best_sets_keep_the_best_of_every_size(tracer, plain_effects):
    best_sets = BestSets(MeasurementCache(tracer.engine, Limits()), 3)
    sets = [s for s in plain_effects if len(s) <= 3][::3]
    best_sets.measure(sets, "some")
    for size in (1, 2, 3):
        best = max((s for s in sets if len(s) == size), key=plain_effects.__getitem__)
        assert best_sets.best(size) == best
        assert best_sets.effect(size) == pytest.approx(plain_effects[best], rel=1e-5)
    best_sets.measure([range(4)], "too large")
    assert best_sets.sizes == [1, 2, 3]
    target = best_sets.effect(2)
    assert best_sets.reaching(target) == (1 if best_sets.effect(1) >= target else 2)


def test_orders_are_taken_in_turn():
    assert in_turn([3, 1, 2], [1, 2, 3]) == [3, 1, 2]
    assert in_turn([0, 1, 2, 3], [3, 2, 1, 0]) == [0, 3, 1, 2]


class TestGroupTesting:
    """Groups of components are halved, to find single ones that no gradient points to."""

    def test_every_round_halves_the_best_groups(self, model):
        engine = tiny.engine(model, tiny.pairs(4), "mlp-outputs")
        n = engine.n_components
        best_sets = BestSets(MeasurementCache(engine, Limits()), 5)
        rounds = []
        measure = best_sets.measurements.measure

        def note(heats, label):
            rounds.append([members for heat in heats for members in heat.sets])
            return measure(heats, label)

        best_sets.measurements.measure = note
        best_sets.group_testing(4, 2)
        assert sorted(i for group in rounds[0] for i in group) == list(range(n))
        for before, after in pairwise(rounds):
            means = {one: engine.set_effects([one]).mean(1).item() for one in before}
            best = sorted(before, key=lambda one: -means[one])[:2]
            assert sorted(i for one in after for i in one) == sorted(i for one in best for i in one)
            assert all(any({*half} < {*one} for one in best) for half in after)
        assert {len(one) for one in rounds[-1]} <= {1, 2}
        assert best_sets.sizes[0] == 1
        assert best_sets.sizes[-1] <= 5

    def test_it_heeds_limits(self, model):
        engine = tiny.engine(model, tiny.pairs(4), "mlp-outputs")
        best_sets = BestSets(MeasurementCache(engine, Limits(max_passes=6)), 72)
        with pytest.raises(LimitReachedError):
            best_sets.group_testing(4, 2)
        assert engine.cost.forward_equivalents == 6

    @pytest.mark.slow
    def test_a_neuron_that_the_gradient_does_not_see_is_found(self, demo_model):
        """Its effect is a single fact tipped over; the gradient ranks it last but a few."""
        pairs = tk.load_dataset("demo-facts", demo_model)
        tracer = tk.Tracer(demo_model, pairs, "mlp-outputs", "probability-drop")
        best = tracer.run("top-k", budget=1)
        gains = tracer.engine.predict_changes(()).gains
        (members_of,) = best.binary_mask.nonzero()[:, 0].tolist()
        assert (gains > gains[members_of]).sum() > len(gains) / 2
        front = tracer.pareto(max_budget=8, statistics=False)
        assert front.at(1).effect == pytest.approx(best.effect, rel=1e-4)
