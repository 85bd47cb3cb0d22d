"""How many neighbours a sweep proposes at each size."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import tracekit as tk
from tracekit.search.local.plan import SearchPlan, SweepPlan, WalkPlan
from tracekit.search.local.sweeps import Sweeps

PLAN = SweepPlan(sizes=(1, 2, 3, 5), dense=True, additions=3, additions_to_small=8, swaps=1)


class Recorder:
    """Stands in for the best sets: has one unexplored set of each size, and measures nothing."""

    largest = 5
    engine = SimpleNamespace(n_components=12)

    def __init__(self):
        self.moves = {}

    def stop_beyond(self, target):
        assert target is None

    def unexplored(self, size, **how):
        return tuple(range(size))

    def effect(self, size):
        return 0.0

    def explore(self, members, moves, **further):
        self.moves[len(members)] = moves


@pytest.fixture
def recorder():
    return Recorder()


def test_the_first_sweep_adds_more_to_small_sets(recorder, unchecked):
    Sweeps(recorder, PLAN, orders=(), target=None).go_once()
    assert {size: moves.additions for size, moves in recorder.moves.items()} == {
        1: 8,
        2: 8,
        3: 3,
        5: 3,
    }
    assert {(moves.removals, moves.swaps) for moves in recorder.moves.values()} == {(0, 1)}


def test_later_sweeps_remove_and_exchange_too(recorder, unchecked):
    sweeps = Sweeps(recorder, PLAN, orders=(), target=None, n_done=1)
    # The first goes up, the second down, the third up again.
    for removals in (2, 1):
        sweeps.go_once()
        assert {
            (moves.additions, moves.removals, moves.swaps) for moves in recorder.moves.values()
        } == {(2, removals, 2)}


@pytest.mark.parametrize(
    "plan",
    [WalkPlan.make(32, 12, (), 128).look, SearchPlan.make(32, 12, (), 128)],
    ids=["after a walk", "without one"],
)
def test_additions_that_are_asked_for_hold_at_every_size(plan):
    assert tk.LocalSearch()._with_own_additions(plan) is plan
    asked = tk.LocalSearch(additions=5)._with_own_additions(plan)
    assert (asked.additions, asked.additions_to_small) == (5, 5)
    assert asked.sizes == plan.sizes
