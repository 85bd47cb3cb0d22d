"""The walk along a model of the slopes, and when a search ends after it."""

from __future__ import annotations

import math
from itertools import groupby

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.search import Goal, LocalSearch, carriers
from tracekit.search.local import local_search, model_walk, plan
from tracekit.search.local.best_sets import BestSets, relative_gains
from tracekit.search.local.local_search import refine_sets
from tracekit.search.local.measurements import LimitReachedError, Limits, MeasurementCache
from tracekit.search.local.model_walk import ModelWalk
from tracekit.search.local.plan import WalkPlan
from tracekit.search.local.sweeps import Sweeps
from tracekit.search.racing import Portions

N = 12


@pytest.fixture
def engine(model):
    """Eight examples, whose effect is a curve over log-odds."""
    return tiny.engine(model, tiny.pairs(8, seed=1), metric="odds-ratio")


@pytest.fixture
def expanded(monkeypatch):
    """Sets whose gradients were taken, in their order."""
    sets = []
    original = MeasurementCache.expand_set

    def noted(self, members, examples):
        sets.append(members)
        return original(self, members, examples)

    monkeypatch.setattr(MeasurementCache, "expand_set", noted)
    return sets


def best_sets_of(engine, largest=8, portions=None, **limits):
    return BestSets(MeasurementCache(engine, Limits(**limits), portions=portions), largest)


def turns(sizes):
    """Sizes without repetitions in turn."""
    return [size for size, _ in groupby(sizes)]


def test_rounds_go_up_and_down_in_turn(engine, expanded):
    best_sets = best_sets_of(engine)
    walk = ModelWalk(best_sets, (1, 2, 4, 8))
    walk.go(None, rounds=1)
    assert turns(map(len, expanded)) == [0, 1, 2, 4, 8]
    assert best_sets.sizes == [1, 2, 4, 8]
    first = len(expanded)
    walk.go(None, rounds=1)
    down = turns(map(len, expanded[first:]))
    assert down == sorted(down, reverse=True)
    assert down
    second = len(expanded)
    walk.go(None, rounds=1)
    up = turns(map(len, expanded[second:]))
    assert up == sorted(up)
    # No gradient is taken twice.
    assert len(set(expanded)) == len(expanded)


def test_a_set_is_what_its_gradient_says(engine):
    """Nothing but gradients was taken, and each measured a set."""
    best_sets = best_sets_of(engine)
    ModelWalk(best_sets, (1, 2, 4, 8)).go(None, rounds=2)
    for size in best_sets.sizes:
        members = best_sets.best(size)
        expected = engine.set_effects([members])[0]
        torch.testing.assert_close(best_sets.effects(members), expected, rtol=1e-4, atol=1e-5)
        assert best_sets.effect(size) == pytest.approx(expected.mean().item(), rel=1e-4)


def test_it_ends_after_two_rounds_of_little_gain(engine, monkeypatch):
    rounds = []
    gains = iter([1.0, 0.0005, 1.0, 0.0005, 0.0005, 1.0])

    def gain(before, after):
        rounds.append(before)
        return torch.tensor([next(gains)])

    monkeypatch.setattr(model_walk, "relative_gains", gain)
    ModelWalk(best_sets_of(engine), (1, 2, 4)).go(None)
    assert len(rounds) == 5


def test_it_ends_with_its_passes(engine):
    best_sets = best_sets_of(engine)
    walk = ModelWalk(best_sets, (1, 2, 4))
    before = best_sets.measurements.planned
    walk.go(None, passes=1)
    # The round that it had begun.
    assert 6 <= best_sets.measurements.planned - before <= 12
    with pytest.raises(LimitReachedError):
        ModelWalk(best_sets_of(engine, max_passes=5), (1, 2, 4)).go(None)


def test_sizes_beyond_a_target_are_of_no_interest(engine, expanded):
    best_sets = best_sets_of(engine)
    walk = ModelWalk(best_sets, (1, 2, 4, 8))
    walk.go(None, rounds=1)
    target = best_sets.effect(2)
    first = len(expanded)
    walk.go(target, rounds=1)
    assert best_sets.largest <= 2
    # A round that began with larger ones goes through them; the next one does not.
    second = len(expanded)
    walk.go(target, rounds=1)
    assert first < len(expanded)
    assert max(map(len, expanded[second:]), default=0) <= 2


def test_sizes_between_have_a_set_each(engine):
    best_sets = best_sets_of(engine)
    walk = ModelWalk(best_sets, (1, 4, 8))
    walk.go(None, rounds=1)
    spent = best_sets.measurements.spent
    held = best_sets.effects_at((1, 4, 8))
    walk.fill(range(1, 9))
    assert best_sets.sizes == list(range(1, 9))
    assert best_sets.measurements.spent - spent == 5
    assert best_sets.effects_at((1, 4, 8)) == held
    for size in (2, 3, 5, 6, 7):
        random = torch.randperm(N, generator=torch.Generator().manual_seed(size))[:size].tolist()
        assert best_sets.effect(size) >= engine.set_effects([random]).mean().item()


@pytest.mark.parametrize("good", [2, 6])
def test_they_are_made_from_the_better_neighbour(engine, good):
    """The smaller one and one more, or the larger one without some."""
    best_sets = best_sets_of(engine)
    walk = ModelWalk(best_sets, (2, 6))
    order = best_sets.orders_from_empty()[0]
    best_sets.measure([order[:size] if size == good else order[-size:] for size in (2, 6)], "")
    for members in map(best_sets.best, (2, 6)):
        walk._learn(members)
    walk._model.climbed = lambda members: (members, walk._model._promise(walk._model._row(members)))
    walk.fill([4])
    own, other = (set(best_sets.best(size)) for size in (good, 8 - good))
    found = set(best_sets.best(4))
    assert found > own if good == 2 else found < own
    assert not (found < other if good == 2 else found > other)


def test_of_many_examples_a_part_has_gradients(model, monkeypatch, expanded):
    """What the part says is best of its size is measured on all."""
    engine = tiny.engine(model, tiny.pairs(128, seed=1), metric="odds-ratio")
    portions = Portions.make(engine, 0)
    # As many as their slopes allow.
    assert len(portions.of_model(384)) == 128
    assert len(portions.of_model(385)) == 127
    assert len(portions.of_model(4096)) == 12
    assert len(portions.of_model(10**6)) == 1
    whole = Portions.make(engine, 0, race=False)
    assert len(whole.of_model(N)) == 128
    assert len(whole.of_model(2**13)) == 64
    # And no more than this, if not all.
    monkeypatch.setattr("tracekit.search.racing._OF_MODEL", 40)
    assert len(portions.of_model(384)) == 128
    assert len(portions.of_model(385)) == 40
    assert len(whole.of_model(2**13)) == 64
    monkeypatch.setattr("tracekit.search.racing._SLOPES_OF_MODEL", (128 * N - 1, 2**19))
    assert torch.equal(portions.of_model(N), portions.order[:40].sort().values)
    measurements = MeasurementCache(engine, Limits(), portions=portions)
    best_sets = BestSets(measurements, 4)
    ModelWalk(best_sets, (1, 2, 4)).go(None, rounds=1)
    n_gradients = len(set(expanded))
    assert measurements.planned < 2 * n_gradients * 40 / 128 + n_gradients
    for size in (1, 2, 4):
        expected = engine.set_effects([best_sets.best(size)])[0]
        torch.testing.assert_close(
            best_sets.effects(best_sets.best(size)), expected, rtol=1e-4, atol=1e-5
        )


class TestLikeGreedy:
    """Greedy's way up, of the components that promise most."""

    def greedy(self, engine, last):
        """Its set of every size."""
        sets = [()]
        for _ in range(last):
            grown = [
                tuple(sorted((*sets[-1], i)))
                for i in range(engine.n_components)
                if i not in sets[-1]
            ]
            sets.append(grown[int(engine.set_effects(grown).mean(1).argmax())])
        return sets[1:]

    def gone(self, engine, monkeypatch, joining, passes=1000):
        """The sets that it measures, size by size, and the passes for them."""
        monkeypatch.setattr(model_walk, "JOINING", joining)
        best_sets = best_sets_of(engine, largest=5)
        best_sets.measure([[i] for i in range(N)], "single components")
        walk, asked, measure = ModelWalk(best_sets, (1, 2, 5)), [], BestSets.measure

        def noted(self, sets, label):
            asked.append(list(sets))
            measure(self, asked[-1], label)

        monkeypatch.setattr(BestSets, "measure", noted)
        before = best_sets.measurements.planned
        walk.go_like_greedy(passes)
        return best_sets, asked, best_sets.measurements.planned - before

    def test_with_all_components_it_is_greedy(self, engine, monkeypatch):
        best_sets, asked, _ = self.gone(engine, monkeypatch, N)
        assert [len(sets) for sets in asked] == [11, 10, 9, 8]
        assert [best_sets.best(size) for size in range(1, 6)] == self.greedy(engine, 5)

    def test_of_some_the_best_joins(self, engine, monkeypatch):
        best_sets, asked, _ = self.gone(engine, monkeypatch, 3)
        assert [len(sets) for sets in asked] == [3] * 4
        for size, sets in enumerate(asked, start=1):
            assert all(set(best_sets.best(size)) < set(members) for members in sets)

    def test_it_goes_on_from_its_own_sets(self, engine, monkeypatch):
        """And not from the best of a size: here the worst component joins each time."""
        monkeypatch.setattr(
            MeasurementCache, "ranked", lambda self, sets, rival: sorted(sets, key=self.mean)
        )
        _, asked, _ = self.gone(engine, monkeypatch, N)
        worst = min(asked[0], key=lambda members: engine.set_effects([members]).mean().item())
        assert all(set(worst) < set(members) for members in asked[1])

    @pytest.mark.parametrize(("passes", "sizes"), [(3.9, 0), (8, 2), (11.5, 2), (12, 3)])
    def test_it_ends_with_its_passes(self, engine, monkeypatch, passes, sizes):
        _, asked, spent = self.gone(engine, monkeypatch, 4, passes)
        assert (len(asked), spent) == (sizes, 4 * sizes)

    def test_dropped_sets_come_last(self, engine):
        measurements = best_sets_of(engine).measurements
        sets = [(0,), (1,), (2,)]
        measurements.import_measured(
            {members: torch.full((8,), float(i)) for i, members in enumerate(sets)}
        )
        assert measurements.ranked(sets) == sets[::-1]
        measurements._dropped.add((2,))
        assert measurements.ranked(sets) == [(1,), (0,), (2,)]

    def test_dropped_sets_are_held_against_what_beat_them(self, engine):
        """On the examples that both were measured on: these differ from set to set."""
        measurements = best_sets_of(engine).measurements
        nan = float("nan")
        measurements.import_measured(
            {
                (0,): torch.tensor([3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
                (1,): torch.tensor([2.0, 2.0, *[nan] * 6]),
                (2,): torch.tensor([3.0, 2.5, -0.5, 0.0, *[nan] * 4]),
            }
        )
        measurements._dropped.update({(1,), (2,)})
        # Their own means are 2 and 1.25; they are behind by 1 and by 0.25.
        assert measurements.ranked([(1,), (2,)]) == [(1,), (2,)]
        assert measurements.ranked([(1,), (2,)], (0,)) == [(2,), (1,)]

    def test_it_holds_them_against_the_best_of_the_size(self, engine, monkeypatch):
        rivals, ranked = [], MeasurementCache.ranked

        def noted(self, sets, rival):
            rivals.append(rival)
            return ranked(self, sets, rival)

        monkeypatch.setattr(MeasurementCache, "ranked", noted)
        best_sets, _, _ = self.gone(engine, monkeypatch, 3)
        assert rivals == [best_sets.best(size) for size in (2, 3, 4, 5)]

    def test_with_a_target_its_way_is_shorter(self, engine, monkeypatch):
        """Up to the smallest set that reaches it, which the passes suffice for."""
        done = []
        monkeypatch.setattr(local_search, "FEW", 1)
        monkeypatch.setattr(ModelWalk, "go_like_greedy", lambda self, passes: done.append(self))
        monkeypatch.setattr(
            WalkPlan, "goes_like_greedy", lambda self, largest: done.append(largest) or False
        )
        best = engine.set_effects([[i] for i in range(N)]).mean(1).max().item()
        LocalSearch().run(engine, Goal.make(N, target_effect=0.9 * best), 0)
        assert done == [1]

    def test_a_limit_ends_it(self, engine):
        best_sets = best_sets_of(engine, max_passes=12)
        walk = ModelWalk(best_sets, (1, 2, 5))
        with pytest.raises(LimitReachedError):
            walk.go_like_greedy(1000)
        # Two passes for a gradient, and four for each size.
        assert best_sets.sizes == [1, 2, 3]

    @pytest.mark.parametrize(
        ("joining", "passes", "goes"), [(4, None, True), (80, None, False), (80, 60, True)]
    )
    def test_it_is_taken_where_it_costs_few_passes_or_all_are_asked_for(
        self, engine, monkeypatch, joining, passes, goes
    ):
        done = []
        monkeypatch.setattr(local_search, "FEW", 1)
        monkeypatch.setattr(plan, "JOINING", joining)
        monkeypatch.setattr(ModelWalk, "go_like_greedy", lambda self, passes: done.append(passes))
        LocalSearch(max_passes=passes).run(engine, Goal.make(N, budgets=[2]), 0)
        assert bool(done) == goes

    @pytest.mark.parametrize("finds", [True, False])
    def test_a_search_goes_on_from_what_it_finds(self, engine, monkeypatch, finds):
        done, go = [], ModelWalk.go

        def noted(self, *given, **options):
            done.append("go")
            go(self, *given, **options)

        def like_greedy(self, passes):
            done.append(passes)

        def gains(before, after):
            # Of all sizes that the walk visits, not only of those that the sweep looks at.
            assert done[-1] == "go" or len(before) == 5
            return torch.tensor([0.1 * (finds and done[-1] != "go")])

        monkeypatch.setattr(ModelWalk, "go", noted)
        monkeypatch.setattr(ModelWalk, "go_like_greedy", like_greedy)
        monkeypatch.setattr(local_search, "relative_gains", gains)
        monkeypatch.setattr(plan, "_WALK_SIZES", 5)
        LocalSearch(max_passes=160).run(engine, Goal.make(N, budgets=[8]), 0)
        assert done == ["go", "go", 20, *["go"] * finds]


class TestCarriers:
    """Gradients of the examples that make up the effects, where these are few."""

    @pytest.fixture
    def carried(self, model):
        """Two of 16 examples count a hundred times as much as each other one."""
        rows = [
            {**row, "weight": 100.0 if i in (3, 9) else 1.0} for i, row in enumerate(tiny.rows(16))
        ]
        pairs = tk.PromptPairs.from_ids(rows)
        return tiny.engine(model, pairs, metric="odds-ratio")

    @pytest.fixture
    def read(self, monkeypatch):
        """Sets and the examples that their gradients were taken on."""
        noted = []
        original = MeasurementCache.expand_set

        def expand_set(self, members, examples):
            noted.append((members, examples.tolist()))
            return original(self, members, examples)

        monkeypatch.setattr(MeasurementCache, "expand_set", expand_set)
        return noted

    def test_after_the_first_round_others_are_left_out(self, carried, read):
        best_sets = best_sets_of(carried, portions=Portions.make(carried, 0))
        walk = ModelWalk(best_sets, (1, 2, 4, 8))
        walk.go(None, rounds=1)
        assert {len(examples) for _, examples in read} == {16}
        first = len(read)
        before = best_sets.measurements.planned
        walk.go(None)
        later = read[first:]
        assert later
        assert all({3, 9} <= set(examples) for _, examples in later)
        assert all(len(examples) <= 8 for _, examples in later)
        n_sets = sum(best_sets.measurements.is_confirmed(members) for members, _ in later)
        gradients = sum(2 * len(examples) / 16 for _, examples in later)
        assert best_sets.measurements.planned - before == pytest.approx(
            gradients + n_sets, abs=n_sets
        )

    def improved(self, engine, rounds=None):
        """Best sets after a walk that began with others."""
        best_sets = best_sets_of(engine, portions=Portions.make(engine, 0))
        best_sets.measure([range(size) for size in (1, 2, 4, 8)], "starts")
        ModelWalk(best_sets, (1, 2, 4, 8)).go(None, rounds=rounds)
        return best_sets

    def test_the_first_round_reads_all_also_where_there_are_sets(self, carried, read):
        """The model that predicts of the others has to be learned from something."""
        self.improved(carried, rounds=1)
        assert {len(examples) for _, examples in read} == {16}
        self.improved(carried, rounds=2)
        assert min(len(examples) for _, examples in read) < 16

    def test_the_best_sets_are_measured_on_all(self, carried, read):
        best_sets = self.improved(carried)
        some = [members for members, examples in read if len(examples) < 16]
        best = [best_sets.best(size) for size in best_sets.sizes]
        assert set(best) & set(some)
        for members in best:
            expected = carried.set_effects([members])[0]
            torch.testing.assert_close(best_sets.effects(members), expected, rtol=1e-4, atol=1e-5)

    def test_they_are_as_good_as_gradients_of_all(self, carried, monkeypatch):
        effects = []
        for most in (0.5, 0.0):
            monkeypatch.setattr(carriers, "_MOST", most)
            best_sets = best_sets_of(carried, portions=Portions.make(carried, 0))
            ModelWalk(best_sets, (1, 2, 4, 8)).go(None)
            effects.append(best_sets.effects_at((1, 2, 4, 8)))
        assert effects[0] == pytest.approx(effects[1], rel=1e-3)

    def test_a_sweep_draws_on_them(self, carried, read, monkeypatch):
        """No other gradient is taken at a set that was learned from."""
        best_sets = self.improved(carried)
        some = {members for members, examples in read if len(examples) < 16}
        members = next(best_sets.best(n) for n in (8, 4, 2) if best_sets.best(n) in some)
        monkeypatch.setattr(type(carried), "predict_changes", None)
        learned = best_sets.measurements.predict_changes(members)
        monkeypatch.undo()
        true = carried.predict_changes(members)
        for ours, theirs in ((learned.gains, true.gains), (learned.gradient, true.gradient)):
            torch.testing.assert_close(
                ours, theirs, rtol=0.1, atol=0.05 * theirs.abs().max().item()
            )

    @pytest.mark.parametrize("independent", [True, False])
    def test_not_without_races_or_where_examples_hang_together(
        self, carried, read, monkeypatch, independent
    ):
        monkeypatch.setattr(type(carried), "examples_are_independent", independent)
        portions = Portions.make(carried, 0, race=not independent)
        ModelWalk(best_sets_of(carried, portions=portions), (1, 2, 4, 8)).go(None)
        assert {len(examples) for _, examples in read} == {16}

    def test_refinement_leaves_others_out_too(self, carried, read):
        sets = {members: carried.set_effects([members])[0] for members in [(1, 2, 3), (4,)]}
        refine_sets(carried, sets, [3], 60)
        assert min(len(examples) for _, examples in read) < 8


def test_gains_are_relative_to_each_size():
    gains = relative_gains([1.0, -2.0, -math.inf, 0.0], [1.5, -1.0, 3.0, 0.0])
    assert gains.tolist() == [0.5, 0.5, math.inf, 0.0]
    assert relative_gains([-math.inf], [-math.inf]).tolist() == [0.0]


def test_one_example_may_carry_a_set(engine):
    best_sets = best_sets_of(engine)
    even, carried = torch.ones(8), torch.ones(8)
    best_sets.import_measured({(1,): even, (2, 3): even})
    assert not best_sets.does_one_example_carry
    carried[4] = 3.4
    best_sets.import_measured({(2, 3): even, (2, 4): carried})
    assert not best_sets.does_one_example_carry
    carried = carried.clone()
    carried[4] = 3.6
    best_sets.import_measured({(2, 5): carried})
    assert best_sets.does_one_example_carry


class TestConfirmed:
    """The best sets are measured by themselves in the end, for which passes are kept."""

    def is_confirmed(self, best_sets):
        cache = best_sets.measurements
        return [best_sets.best(size) not in cache._by_gradient for size in best_sets.sizes]

    @pytest.mark.parametrize("max_passes", [30, 45, 200])
    def test_whatever_ends_the_search(self, engine, max_passes):
        state = LocalSearch(max_passes=max_passes).run(engine, Goal.make(N, budgets=[3, 8]), 0)
        assert all(self.is_confirmed(state.best_sets))
        assert len(state.best_sets.sizes) > 2
        assert state.best_sets.measurements.spent <= max_passes
        for size in state.best_sets.sizes:
            members = state.best_sets.best(size)
            assert torch.equal(state.best_sets.effects(members), engine.set_effects([members])[0])
            mean = state.best_sets.effects(members).mean().item()
            assert state.best_sets.effect(size) == mean

    def test_also_after_the_refinement_of_given_sets(self, engine):
        sets = {(1, 2, 3): engine.set_effects([(1, 2, 3)])[0]}
        best_sets = refine_sets(engine, sets, [3], 30)
        assert all(self.is_confirmed(best_sets))

    def test_passes_are_kept_free(self, engine):
        best_sets = best_sets_of(engine, max_passes=14)
        with pytest.raises(LimitReachedError), best_sets.confirming(4):
            ModelWalk(best_sets, (1, 2, 4, 8)).go(None)
        assert 10 <= best_sets.measurements.spent <= 14
        assert all(self.is_confirmed(best_sets))
        # What was kept is free again.
        assert best_sets.measurements.room == 14 - best_sets.measurements.spent

    def test_a_gradient_leaves_room_to_confirm_its_set(self, engine):
        everything = torch.arange(engine.n_examples)
        with pytest.raises(LimitReachedError):
            best_sets_of(engine, max_passes=2).expand((1, 2), everything)
        best_sets = best_sets_of(engine, max_passes=3)
        with best_sets.confirming(1):
            best_sets.expand((1, 2), everything)
        assert self.is_confirmed(best_sets) == [True]

    def test_without_time_sets_stay_as_they_are(self, engine):
        best_sets = best_sets_of(engine)
        walk = ModelWalk(best_sets, (1, 2, 4))
        with pytest.raises(LimitReachedError, match="max_seconds"), best_sets.confirming(3):
            walk.go(None, rounds=1)
            best_sets.measurements._limits = Limits(max_seconds=1e-9)
            walk.go(None, rounds=1)
        assert best_sets.sizes == [1, 2, 4]
        assert not any(self.is_confirmed(best_sets))


class TestPlan:
    def test_a_walk_visits_few_sizes(self):
        walk = WalkPlan.make(144, 57, (14, 57), 600)
        assert len(walk.sizes) <= 17
        assert {1, 14, 57} <= set(walk.sizes)
        assert {14, 57} <= set(walk.filled)
        assert 25 < len(walk.filled) < 40
        assert (walk.look.dense, walk.look.additions) == (False, 2)
        # Every second size, the largest one among them.
        assert set(walk.look.sizes) < set(walk.sizes)
        assert len(walk.look.sizes) == (len(walk.sizes) + 1) // 2
        assert walk.look.sizes[-1] == 57
        # Budgets beyond that number are no sizes of the walk, but have sets of their own.
        walk = WalkPlan.make(144, 57, tuple(range(5, 58)), 600)
        assert len(walk.sizes) <= 16
        assert set(range(5, 58)) <= set(walk.filled)

    def test_where_sizes_are_few_it_visits_all(self):
        walk = WalkPlan.make(32, 12, (3, 12), 400)
        assert walk.sizes == walk.filled == tuple(range(1, 13))
        assert (walk.look.dense, walk.look.additions, walk.look.additions_to_small) == (True, 8, 8)
        # With few passes the look comes to all sizes, rather than to many neighbours of the first.
        walk = WalkPlan.make(32, 12, (3, 12), 128)
        assert walk.sizes == tuple(range(1, 13))
        assert (walk.look.dense, walk.look.additions, walk.look.additions_to_small) == (True, 3, 8)

    def test_fewer_passes_visit_fewer_sizes(self):
        assert len(WalkPlan.make(144, 57, (), 40).sizes) == 5
        assert len(WalkPlan.make(144, 57, (), 4).sizes) == 2

    def test_all_single_components_are_measured_where_that_is_cheap(self):
        assert WalkPlan.make(64, 25, (), 535).singles == 64
        assert WalkPlan.make(64, 25, (), 200).singles == 16
        assert WalkPlan.make(144, 57, (), 600).singles == 16
        assert WalkPlan.make(144, 57, (), 12).singles == 4

    def test_a_pass_is_kept_for_the_best_set_of_each_size(self):
        assert [WalkPlan.make(144, 57, (), n).reserved for n in (600, 140, 40, 3)] == [16, 16, 5, 0]

    def test_many_components_are_looked_for_in_groups(self):
        walk = WalkPlan.make(512, 200, (), 512)
        assert (walk.singles, walk.groups) == (64, 16)
        assert WalkPlan.make(512, 200, (), 150).groups == 0
        assert WalkPlan.make(144, 57, (), 600).groups == 0

    def test_sets_for_single_examples_have_40_passes_if_there_are(self):
        passes = [WalkPlan.make(64, 25, (), n).example_passes for n in (600, 300, 100)]
        assert passes == pytest.approx([45, 40, 20])


class TestEnd:
    """When a search ends after its walk."""

    @pytest.fixture
    def large(self, monkeypatch):
        monkeypatch.setattr(local_search, "FEW", 1)

    def search(self, engine, **options):
        search = LocalSearch(start_from_examples=False, **options)
        state = search.run(engine, Goal.make(N, budgets=[8]), 0)
        return state.best_sets.measurements.planned, state

    @pytest.fixture
    def noted(self, monkeypatch):
        """What a search does after its first walk."""
        done = []
        for cls, name in (
            (ModelWalk, "go"),
            (ModelWalk, "go_like_greedy"),
            (Sweeps, "go_once"),
            (Sweeps, "go_on"),
        ):
            original = getattr(cls, name)

            def call(self, *given, original=original, name=name, **options):
                done.append(name)
                return original(self, *given, **options)

            monkeypatch.setattr(cls, name, call)
        return done

    @pytest.mark.parametrize(
        ("gains", "done"),
        [
            ([[0.0, 0.0]], ["go_once"]),
            ([[0.0005, 0.001]], ["go_once"]),
            ([[0.002, 0.002], [0.0, 0.0]], ["go_once", "go", "go_once"]),
            # One size gains much, and all together little.
            ([[0.015, -0.014], [0.0, 0.0]], ["go_once", "go", "go_once"]),
        ],
    )
    def test_it_ends_where_a_sweep_finds_nothing(
        self, engine, large, noted, monkeypatch, gains, done
    ):
        left = iter([*gains, [0.0, 0.0]])
        monkeypatch.setattr(local_search, "relative_gains", lambda a, b: torch.tensor(next(left)))
        _, state = self.search(engine)
        assert state.stopped is None
        assert noted == ["go", "go", *done, "go_like_greedy"]

    def test_passes_that_were_asked_for_are_used(self, engine, large, monkeypatch):
        monkeypatch.setattr(local_search, "relative_gains", lambda a, b: torch.tensor([0.0]))
        short, _ = self.search(engine)
        assert self.search(engine, max_passes=1000)[0] > short + 20

    def test_a_few_components_are_searched_to_the_end(self, engine, monkeypatch):
        monkeypatch.setattr(local_search, "relative_gains", lambda a, b: torch.tensor([0.0]))
        thorough, _ = self.search(engine)
        monkeypatch.setattr(local_search, "FEW", 1)
        assert self.search(engine)[0] < thorough - 20

    def test_it_makes_sets_for_single_examples_where_one_carries(self, engine, monkeypatch):
        asked = []
        monkeypatch.setattr(
            BestSets, "start_from_examples", lambda self, *given: asked.append(given)
        )
        for carries in (False, True):
            monkeypatch.setattr(BestSets, "does_one_example_carry", carries)
            LocalSearch(max_passes=60).run(engine, Goal.make(N, budgets=[8]), 0)
        assert [given for given in asked if given[0]] == [((1, 2, 3, 4, 5, 6, 7, 8), 12)]


@pytest.mark.parametrize("metric", ["odds-ratio", "probability-drop", "logit-difference", "kl"])
def test_walks_are_as_good_as_sweeps_alone(model, monkeypatch, metric):
    engine = tiny.engine(model, tiny.pairs(8, seed=1), metric=metric)
    goal = Goal.make(N, budgets=[2, 4, 6])
    search = LocalSearch(max_passes=70)
    found = search.search(engine, goal, 0)
    monkeypatch.setattr(local_search, "MOST_OF_WALK", N - 1)
    for ours, theirs in zip(found, search.search(engine, goal, 0), strict=True):
        assert ours.effects.mean() >= 0.999 * theirs.effects.mean()


@pytest.mark.parametrize("most", [N, N - 1])
def test_of_too_many_components_there_is_no_model(engine, expanded, monkeypatch, most):
    monkeypatch.setattr(local_search, "MOST_OF_WALK", most)
    LocalSearch(max_passes=60).run(engine, Goal.make(N, budgets=[4]), 0)
    assert bool(expanded) == (most == N)


def test_groups_are_halved_before_a_walk_of_many(engine, monkeypatch):
    asked = []
    monkeypatch.setattr(BestSets, "group_testing", lambda self, *given: asked.append(given))
    LocalSearch(max_passes=120).run(engine, Goal.make(N, budgets=[4]), 0)
    assert not asked
    monkeypatch.setattr(plan, "MANY", 10)
    monkeypatch.setattr(plan, "_OF_SINGLES", 0)
    monkeypatch.setattr(plan, "_n_singles", lambda n, passes: 4)
    LocalSearch(max_passes=160).run(engine, Goal.make(N, budgets=[4]), 0)
    assert asked[0] == (16, 4)


def test_what_is_kept_is_searched_by_sweeps(tracer, expanded):
    tracer.run("local-search", budget=3, max_passes=60)
    assert expanded
    expanded.clear()
    keep = Constraint(at_most=10.0, metric="logit-difference")
    tracer.run("local-search", budget=3, max_passes=60, constraint=keep)
    assert not expanded


def test_a_search_is_repeatable(model):
    fronts = [
        tk.Tracer(model, tiny.pairs(8, seed=1)).pareto(
            max_budget=6, statistics=False, max_passes=150
        )
        for _ in range(2)
    ]
    assert fronts[0].to_frame().equals(fronts[1].to_frame())
