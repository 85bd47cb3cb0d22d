"""Which neighbours of a set are proposed."""

from __future__ import annotations

import torch

from tracekit.engine.gradients import FirstOrderPrediction
from tracekit.search.local.moves import Moves, Surroundings, promising_neighbours

SINGLES = [7, 2, 5, 0, 4]
NONE = Moves(additions=0, removals=0, swaps=0)


def around(members, up, down=None):
    return Surroundings(members=members, up=up, down=down, orders=(), singles=SINGLES)


def proposed(surroundings, moves):
    gains = torch.arange(8.0)
    prediction = FirstOrderPrediction(gains=gains, gradient=-gains)
    return [tuple(sorted(each)) for each in promising_neighbours(surroundings, moves, prediction)]


def test_small_sets_get_the_best_single_components():
    assert proposed(around((2,), 2), NONE) == [(2, 7), (2, 5), (0, 2)]
    assert proposed(around((2, 7), 3), NONE) == [(2, 5, 7), (0, 2, 7)]
    assert proposed(around((1, 2, 7), 4), NONE) == [(1, 2, 5, 7)]
    assert proposed(around((1, 2, 6, 7), 5), NONE) == []
    # Only where one component more is a size of interest.
    assert proposed(around((2,), None), NONE) == []


def test_both_predictions_propose_in_turn():
    surroundings = around((1, 2, 3, 4), 5, 3)
    assert proposed(surroundings, Moves(additions=3, removals=0, swaps=0)) == [
        (1, 2, 3, 4, 7),
        (0, 1, 2, 3, 4),
        (1, 2, 3, 4, 6),
    ]
    assert proposed(surroundings, Moves(additions=0, removals=2, swaps=0)) == [
        (2, 3, 4),
        (1, 2, 3),
    ]
    assert proposed(surroundings, Moves(additions=0, removals=0, swaps=2)) == [
        (2, 3, 4, 7),
        (0, 1, 2, 3),
    ]
