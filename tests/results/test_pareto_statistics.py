"""Held-out effects, random controls and stability of a front."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.conftest import FRONT_PASSES
from tracekit.errors import (
    SearchStoppedWarning,
)
from tracekit.masks import from_indices
from tracekit.results.pareto_statistics import control_sets, jaccard
from tracekit.search import Goal


def interrupted_after(engine, calls, monkeypatch):
    """Ctrl-C in the middle of a measurement."""
    left = iter(range(calls))
    original = engine.set_effects

    def measure(sets, label="effects", **rest):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return original(sets, label, **rest)

    monkeypatch.setitem(vars(engine), "set_effects", measure)


def test_ctrl_c_in_the_statistics_keeps_the_front_only(model, monkeypatch):
    tracer = tk.Tracer(model, tiny.pairs(8, seed=3), metric="probability-ratio")
    whole = tracer.pareto(max_budget=3, statistics=False, max_passes=60)
    original = tk.LocalSearch.run
    for when in (2, 3):
        calls = []

        def run(self, engine, goal, seed, calls=calls, when=when):
            calls.append(engine)
            if len(calls) == when:
                interrupted_after(engine, 1, monkeypatch)
            return original(self, engine, goal, seed)

        monkeypatch.setattr(tk.LocalSearch, "run", run)
        with pytest.warns(SearchStoppedWarning, match="the front is complete, but has no statis"):
            front = tracer.pareto(max_budget=3, max_passes=60)
        monkeypatch.undo()
        assert len(calls) == when
        assert (front.statistics, front.stopped) == ((), "max_passes")
        assert front.to_frame().equals(whole.to_frame())


def test_jaccard_similarity():
    assert jaccard((1, 2, 3), (2, 3, 4, 5)) == pytest.approx(2 / 5)
    assert (jaccard((1,), (2,)), jaccard((1, 2), (2, 1)), jaccard((), ())) == (0, 1, 1)


@pytest.mark.slow
def test_statistics_are_what_they_say(front, tracer):
    """Held-out effects by hand: search on each half, measure on the other."""
    engine = tracer.engine
    assert [one.size for one in front.statistics] == sorted({one.size for one in front.statistics})
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0)).tolist()
    halves = [sorted(order[:6]), sorted(order[6:])]
    sizes = tuple(one.size for one in front.statistics)
    sets = []
    for half in halves:
        part = engine.with_pairs(engine.pairs.subset(half))
        walk = tk.LocalSearch(max_passes=FRONT_PASSES).run(part, Goal(budgets=sizes), 0)
        sets.append([walk.best_sets.best_within(size) for size in sizes])
    for place, one in enumerate(front.statistics):
        mine, theirs = sets[0][place], sets[1][place]
        assert one.stability == pytest.approx(jaccard(mine, theirs))
        first = engine.effects(from_indices(mine, 12))[halves[1]].sum()
        second = engine.effects(from_indices(theirs, 12))[halves[0]].sum()
        assert one.held_out == pytest.approx(((first + second) / 12).item(), rel=1e-4)
        assert one.held_out_low <= one.held_out <= one.held_out_high
        assert one.control_low <= one.control <= one.control_high
    assert front.statistics_cost.forward_equivalents > 0
    alone = tracer.pareto(statistics=False, objective="mean", max_passes=FRONT_PASSES)
    assert front[0].cost == alone[0].cost


def test_controls_have_the_same_layers(tracer):
    registry = tk.ComponentRegistry.build(tracer.model.cfg, "attention-patterns+mlp-blocks")
    members = (0, 1, 6, 12, 14)
    draws = set(control_sets(registry, members, 20, torch.Generator().manual_seed(0)))
    assert len(draws) > 5

    def profile(one):
        return sorted((registry[i].kind, registry[i].layer) for i in one)

    assert all(profile(one) == profile(members) for one in draws)


def test_no_control_where_there_is_one_set_only(model):
    front = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-blocks").pareto()
    assert all(one.control is None and one.held_out is not None for one in front.statistics)
    front.curve()


def test_too_few_examples_for_halves(model):
    front = tk.Tracer(model, tiny.pairs(3, seed=3)).pareto(max_budget=2)
    assert front.statistics[0].held_out is None
    assert front.statistics[0].stability is None
    assert front.statistics[0].control is not None
    front.to_frame()
    front.curve()
