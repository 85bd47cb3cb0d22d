"""Held-out effects, random controls and stability of a front."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import combinations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.conftest import FRONT_PASSES
from tracekit.components.masks import from_indices
from tracekit.errors import SearchStoppedWarning, UnreliableResultWarning
from tracekit.measure.controls import _from_all, control_sets
from tracekit.measure.question import KnownSets
from tracekit.results.comparison import jaccard
from tracekit.search import Goal
from tracekit.search.backward import backward_elimination
from tracekit.tracer import front as front_module
from tracekit.tracer.diagnostics import warn_of_front

WORSE = {"from_all_similarity": 0.0, "from_all_gain": -0.2}


def interrupted_after(engine, calls, monkeypatch):
    """Ctrl-C in the middle of a measurement."""
    left = iter(range(calls))
    original = engine.set_effects

    def measure(sets, label="effects", **rest):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return original(sets, label, **rest)

    monkeypatch.setitem(vars(engine), "set_effects", measure)


@pytest.mark.slow
def test_ctrl_c_in_the_statistics_keeps_the_front_only(model, monkeypatch):
    tracer = tk.Tracer(model, tiny.pairs(8, seed=3), metric="probability-ratio")
    whole = tracer.pareto(max_budget=3, statistics=False, max_passes=60)
    original = tk.search.LocalSearch.run
    for when in (2, 3):
        calls = []

        def run(self, engine, goal, seed, calls=calls, when=when):
            calls.append(engine)
            if len(calls) == when:
                interrupted_after(engine, 1, monkeypatch)
            return original(self, engine, goal, seed)

        monkeypatch.setattr(tk.search.LocalSearch, "run", run)
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
        walk = tk.search.LocalSearch(max_passes=FRONT_PASSES).run(
            tk.search.make_target(part), Goal(budgets=sizes), 0
        )
        sets.append([walk.best_within(size) for size in sizes])
    for place, one in enumerate(front.statistics):
        mine, theirs = sets[0][place], sets[1][place]
        assert one.stability == pytest.approx(jaccard(mine, theirs))
        first = engine.effects(from_indices(mine, 12))[halves[1]].sum()
        second = engine.effects(from_indices(theirs, 12))[halves[0]].sum()
        assert one.cross_fitted == pytest.approx(((first + second) / 12).item(), rel=1e-4)
        assert one.cross_fitted_low <= one.cross_fitted <= one.cross_fitted_high
        assert one.control_low <= one.control <= one.control_high
    assert front.statistics_cost.forward_equivalents > 0
    alone = tracer.pareto(statistics=False, objective="mean", max_passes=FRONT_PASSES)
    assert front[0].cost == alone[0].cost


class TestSetsFromAll:
    """What a walk from all components downwards finds beside the front."""

    @pytest.mark.slow
    def test_have_the_effects_of_sets_of_their_size(self, front, tracer):
        others = backward_elimination(
            tk.search.make_target(tracer.engine), [row.size for row in front.statistics]
        )
        for row in front.statistics:
            members, own = others[row.size], front.at(row.size)
            effect = tracer.evaluate(from_indices(members, 12))
            assert row.from_all == pytest.approx(effect, rel=1e-4)
            assert row.from_all_similarity == jaccard(members, tiny.members_of(own))
            gain = (effect - own.effect) / abs(own.effect)
            assert row.from_all_gain == pytest.approx(gain, abs=1e-4)
        shown = front.to_frame().dropna(subset=["from_all"])
        assert len(shown) == len(front.statistics)
        (trace,) = [each for each in front.curve().data if each.name == "from all downwards"]
        assert list(trace.y) == shown["from_all"].tolist()
        for text, similarity in zip(trace.customdata, shown["from_all_similarity"], strict=True):
            assert f"Jaccard similarity to the best set: {similarity:.2f}" in text

    @pytest.mark.parametrize("sign", [1, -1])
    def test_are_judged_by_what_was_maximised(self, tracer, sign):
        class Maximised(tk.search.Target):
            def __init__(self):
                pass

            def set_effects(self, sets, label=""):
                return sign * tracer.engine.set_effects(sets, label)

        singles = tracer.engine.set_effects([(i,) for i in range(12)]).mean(1)
        best, worst = (int(singles.argmax()),), (int(singles.argmin()),)
        fields, none = _from_all(tracer.engine, Maximised(), {1: best, 2: (0, 1)}, {1: worst})
        assert none == {}
        own, other = singles[best[0]].item(), singles[worst[0]].item()
        assert fields["from_all_gain"] == pytest.approx(sign * (other - own) / abs(own))
        # What is reported is the effect in any case.
        assert fields["from_all"] == pytest.approx(singles.min().item())
        assert fields["from_all_similarity"] == 0

    def test_another_one_as_good_is_said(self, front, monkeypatch):
        rows = [
            replace(row, from_all=1.25, from_all_similarity=0.9, from_all_gain=-0.04)
            for row in front.statistics
        ]
        similar = replace(front, statistics=tuple(rows))
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Another set")
            warn_of_front(similar)
            warn_of_front(replace(front, statistics=(replace(rows[2], **WORSE), *rows[3:])))
        other = replace(rows[2], from_all_similarity=0.2)
        with pytest.warns(UnreliableResultWarning) as caught:
            warn_of_front(replace(front, statistics=(*rows[:2], other, *rows[3:])))
        effect = front.at(other.size).effect
        (said,) = (text for text in map(str, (c.message for c in caught)) if "Another set" in text)
        assert f"Another set of size {other.size}, found from all components downwards" in said
        assert f"an effect of 1.25 beside {effect:.3g}" in said
        assert "similarity 0.20" in said
        assert "say so, or give more examples" in said

    def test_a_better_one_is_taken(self, model, monkeypatch):
        tracer = tk.Tracer(model, tiny.pairs(6, seed=3))
        pairs = list(combinations(range(12), 2))
        best = pairs[int(tracer.engine.set_effects(pairs).mean(1).argmax())]
        # It is to know of the best pair from the walk alone.
        tracer.question.sets.by_size().clear()
        monkeypatch.setattr(front_module, "backward_elimination", lambda engine, sizes: {2: best})
        front = tracer.pareto(max_budget=2, objective="mean", max_passes=3)
        assert tiny.members_of(front.at(2)) == best
        (row,) = [row for row in front.statistics if row.size == 2]
        assert (row.from_all_similarity, row.from_all_gain) == (1, pytest.approx(0, abs=1e-6))

    @pytest.mark.slow
    def test_no_front_is_below_a_set_that_the_tracer_has_measured(self, model, monkeypatch):
        tracer = tk.Tracer(model, tiny.pairs(6, seed=3))
        known: dict[int, float] = {}
        original = KnownSets.record

        def record(self, sets, effects):
            original(self, sets, effects)
            for members, row in zip(sets, effects, strict=True):
                known[len(members)] = max(known.get(len(members), -9.0), row.mean().item())

        monkeypatch.setattr(KnownSets, "record", record)
        tracer.run("random", budgets=[2, 3], draws=8)
        tracer.run("exhaustive", budget=2)
        tracer.run("greedy", budget=4)
        tracer.explain([tracer.registry[i] for i in (1, 4, 6, 11)])
        tracer.evaluate(from_indices((0, 1, 2, 3, 5, 8), 12))
        for options in ({"statistics": False}, {"objective": "mean"}):
            front = tracer.pareto(max_budget=6, max_passes=4, **options)
            for size in range(front.sizes[0], 7):
                best = max(known.get(each, -9.0) for each in range(1, size + 1))
                assert front.at(size).effect >= best - 1e-6
            assert front.at(2).effect == pytest.approx(known[2], abs=1e-6)

    def test_none_is_said_where_the_front_took_components_ranked_one_by_one(self, front):
        rows = [replace(row, from_all_gain=0.5, from_all_similarity=0) for row in front.statistics]
        scores = torch.ones(len(front[0].registry))
        results = [replace(result, component_scores=scores) for result in front]
        ranked = tk.ParetoFront.of(results, front.largest, order=front.ranking)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Another set")
            warn_of_front(replace(ranked, statistics=tuple(rows)))


def test_controls_have_the_same_layers(tracer):
    kinds = "attention-patterns+mlp-blocks"
    registry = tk.components.ComponentRegistry.build(tracer.model.cfg, kinds)
    members = (0, 1, 6, 12, 14)
    draws = set(control_sets(registry, members, 20, torch.Generator().manual_seed(0)))
    assert len(draws) > 5

    def profile(one):
        return sorted((registry[i].kind, registry[i].layer) for i in one)

    assert all(profile(one) == profile(members) for one in draws)


def test_no_control_where_there_is_one_set_only(model):
    front = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-blocks").pareto()
    assert all(one.control is None and one.cross_fitted is not None for one in front.statistics)
    front.curve()


def test_too_few_examples_for_halves(model):
    front = tk.Tracer(model, tiny.pairs(3, seed=3)).pareto(max_budget=2)
    assert front.statistics[0].cross_fitted is None
    assert front.statistics[0].stability is None
    assert front.statistics[0].control is not None
    front.to_frame()
    front.curve()
