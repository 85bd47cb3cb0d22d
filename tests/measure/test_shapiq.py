"""Values and interactions against shapiq, a library for cooperative games (extra `game`)."""

from __future__ import annotations

import importlib

import pytest

MEMBERS = (1, 4, 6, 8, 11)


@pytest.fixture(scope="module")
def shapiq():
    """Imported by who tests it: it takes seconds."""
    return importlib.import_module("shapiq")


@pytest.fixture(scope="module")
def exact(tracer, shapiq):
    """What shapiq computes of the game that a tracer gives, from all coalitions."""
    game = tracer.as_game([tracer.registry[i] for i in MEMBERS])
    return shapiq.ExactComputer(game, game.n_members)


@pytest.fixture(scope="module")
def why(tracer):
    return tracer.explain([tracer.registry[i] for i in MEMBERS], look_outside=False)


def rank_of(why):
    return {label: rank for rank, label in enumerate(why.labels)}


@pytest.mark.slow
def test_values(exact, why):
    theirs = exact("SV", order=1).dict_values
    ranks = rank_of(why)
    for row in why.table.to_dict("records"):
        assert row["value"] == pytest.approx(theirs[(ranks[row["component"]],)], abs=1e-6)


def test_averaged_interactions_of_pairs(exact, why):
    """The Shapley interaction index of second order."""
    theirs = exact("SII", order=2).dict_values
    ranks = rank_of(why)
    for row in why.interactions.to_dict("records"):
        pair = ranks[row["first"]], ranks[row["second"]]
        assert row["averaged"] == pytest.approx(theirs[pair], abs=1e-6)


def test_interactions_of_pairs_with_nothing_else(exact, why):
    """The Moebius transform."""
    theirs = exact("Moebius", order=2).dict_values
    ranks = rank_of(why)
    for row in why.interactions.to_dict("records"):
        pair = ranks[row["first"]], ranks[row["second"]]
        assert row["alone"] == pytest.approx(theirs[pair], abs=1e-6)


def test_an_approximation_takes_the_game(tracer, why, shapiq):
    game = tracer.as_game(why.components)
    approximator = shapiq.KernelSHAPIQ(n=game.n_members, max_order=2, random_state=0)
    theirs = approximator.approximate(budget=32, game=game).dict_values
    ranks = rank_of(why)
    for row in why.interactions.to_dict("records"):
        pair = ranks[row["first"]], ranks[row["second"]]
        assert row["averaged"] == pytest.approx(theirs[pair], abs=1e-5)
    # No coalition is measured twice.
    assert game.n_measured <= 32
