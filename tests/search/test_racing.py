"""Races: what is dropped early, what is measured on all examples, and what it saves."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import NonFiniteMetricError, SearchStoppedWarning
from tracekit.search.carriers import few_carriers
from tracekit.search.local import measurements
from tracekit.search.local.measurements import Limits, MeasurementCache
from tracekit.search.objectives import resolve_objective
from tracekit.search.racing import (
    FEWEST_EXAMPLES,
    Heat,
    Portions,
    means_of_race,
    raced_effects,
    still_in,
)
from tracekit.search.targets import ConstrainedTarget, target_of

N = 128


def similar_pairs() -> tk.PromptPairs:
    """Pairs that differ in one word, so that components do about the same on all of them."""
    rows = []
    for base in tiny.rows(4, seed=5):
        start = [7, 21, base["prompt_ids"][0]]
        for word in range(N // 4):
            row = {**base, "prompt_ids": [word, *start, *base["prompt_ids"]]}
            row["counterfactual_ids"] = [word, *start, *base["counterfactual_ids"]]
            rows.append(row)
    return tk.PromptPairs.from_ids(rows)


@pytest.fixture(scope="module")
def raced(model) -> tk.Tracer:
    """A tracer with enough examples for races."""
    return tk.Tracer(model, similar_pairs(), metric="logit-difference")


class TestPortions:
    """What the rounds see."""

    def test_rounds_double_what_is_seen(self, raced):
        portions = Portions.make(raced.engine, 3)
        seen = torch.cumsum(torch.tensor([len(examples) for examples in portions.rounds]), 0)
        assert seen.tolist() == list(portions.stops)
        assert portions.stops[-1] == N
        inner = portions.stops[:-1]
        assert all(after == 2 * before for before, after in pairwise(inner))
        assert sorted(torch.cat(portions.rounds).tolist()) == list(range(N))
        assert Portions.make(raced.engine, 4).order.tolist() != portions.order.tolist()

    def test_gradients_take_turns(self, raced):
        portions = Portions.make(raced.engine, 3)
        turns = [portions.of_gradient(number) for number in range(N)]
        n_turns = len({tuple(turn.tolist()) for turn in turns})
        assert n_turns >= 2
        assert sorted(torch.cat(turns[:n_turns]).tolist()) == list(range(N))

    def test_the_first_gradient_takes_the_first_turn(self, raced):
        portions, turns = Portions(order=torch.arange(200), stops=(100, 200)), []
        cache = MeasurementCache(raced.engine, Limits(), portions=portions)

        def compute(examples):
            turns.append(examples)
            return torch.zeros(raced.engine.n_components)

        for step in range(3):
            cache.soft_gradient(step, compute)
            assert turns[step].tolist() == portions.of_gradient(step).tolist()

    @pytest.mark.parametrize(("n", "n_turns"), [(10_000, 8), (200, 3), (100, 1)])
    def test_how_many_turns_gradients_take(self, n, n_turns):
        """At least 64 examples each, at most eight turns."""
        portions = Portions(order=torch.arange(n), stops=(n // 2, n))
        turns = [portions.of_gradient(number) for number in range(n_turns + 1)]
        assert sorted(torch.cat(turns[:n_turns]).tolist()) == list(range(n))
        assert turns[n_turns].tolist() == turns[0].tolist()

    def test_races_begin_at_a_number_of_examples(self, model):
        just = tiny.engine(model, tiny.pairs(FEWEST_EXAMPLES))
        assert len(Portions.make(just, 0).rounds) > 1

    def test_a_single_round_where_nothing_can_be_raced(self, model, raced):
        few = tiny.engine(model, tiny.pairs(FEWEST_EXAMPLES - 1))
        engine = raced.engine
        objective = target_of(engine, resolve_objective("trimmed-mean"))
        keeping = ConstrainedTarget(
            engine, engine, Constraint(metric="logit-difference", at_most=1.0)
        )
        for whole in (
            Portions.make(few, 0),
            Portions.make(engine, 0, race=False),
            Portions.make(objective, 0),
            Portions.make(keeping, 0),
        ):
            assert whole.is_whole
            assert whole.of_gradient(5) is None
        odds = tk.Tracer(model, raced.pairs, metric="odds-ratio").engine
        assert not Portions.make(target_of(odds, resolve_objective("log-odds")), 0).is_whole


class TestDropping:
    """Who goes on to the next round."""

    def test_the_best_is_rarely_dropped_and_the_hopeless_are(self):
        """Effects with a common part and own noise; the gap is ten of its standard errors."""
        generator = torch.Generator().manual_seed(1)
        lost = kept = 0
        for _ in range(400):
            common = torch.randn(256, generator=generator)
            own = torch.randn(6, 256, generator=generator)
            gaps = torch.tensor([0.0, 0.05, 0.1, 2.0, 2.0, 2.0])
            effects = common + own - gaps[:, None]
            order = torch.randperm(256, generator=generator)[:32]
            running = still_in(effects[:, order], 256)
            lost += not running[effects.mean(1).argmax()]
            kept += int(running[3:].sum())
        assert lost <= 4
        assert kept <= 12

    def test_of_all_examples_only_winners_are_left(self):
        effects = torch.tensor([[1.0, 2.0], [3.0, 0.5], [0.0, 0.0], [3.0, 1.0]])
        assert still_in(effects, 2, n_winners=2).tolist() == [False, True, False, True]
        rival = torch.tensor([2.0, 1.6])
        assert still_in(effects, 2, rival=rival).tolist() == [False, False, False, True]
        # A rival below the best set of a race decides nothing.
        low = torch.zeros(2)
        assert still_in(effects, 2, rival=low, n_winners=3).tolist() == [True, True, False, True]

    def test_equal_sets_stay(self):
        effects = torch.tensor([[0.2, 0.7, 0.1]]).repeat(5, 1)
        assert still_in(effects, 50).all()


class TestMeasuring:
    """Parts of the examples give what all of them give."""

    def test_effects_on_some_examples_are_those_of_all(self, raced):
        sets = [(0,), (3, 7), (1, 2, 11)]
        examples = torch.tensor([17, 2, 91, 9, 88])
        before = raced.engine.cost
        part = raced.engine.set_effects(sets, examples=examples)
        cost = raced.engine.cost - before
        whole = raced.engine.set_effects(sets)
        torch.testing.assert_close(part, whole[:, examples], rtol=1e-4, atol=1e-6)
        assert cost.forward == pytest.approx(3 * 5 / N)

    def test_predictions_on_parts_make_that_of_all(self, raced):
        portions = Portions.make(raced.engine, 0)
        whole = raced.engine.predict_changes((2, 5))
        parts = [
            (len(examples), raced.engine.predict_changes((2, 5), examples=examples))
            for examples in portions.rounds
        ]
        for name in ("gains", "gradient"):
            together = torch.stack([n * getattr(part, name) for n, part in parts]).sum(0) / N
            torch.testing.assert_close(together, getattr(whole, name), rtol=1e-4, atol=1e-6)

    def test_an_objective_of_a_part_is_that_of_the_part(self, model, raced):
        examples = torch.arange(0, N, 3)
        names = ("trimmed-mean", "log-odds")
        for name in names:
            odds = tk.Tracer(model, raced.pairs, metric="odds-ratio").engine
            engine = target_of(odds, resolve_objective(name))
            own = engine.with_pairs(raced.pairs.subset(examples.tolist()))
            part = engine.set_effects([(1, 4)], examples=examples)
            torch.testing.assert_close(part, own.set_effects([(1, 4)]), rtol=1e-4, atol=1e-6)
            found = engine.predict_changes((1, 4), examples=examples)
            expected = own.predict_changes((1, 4))
            torch.testing.assert_close(found.gains, expected.gains, rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(found.gradient, expected.gradient, rtol=1e-4, atol=1e-6)

    def test_an_effect_that_is_not_finite_is_named_by_its_number(self, raced):
        def broken(clean, intervened):
            drop = clean.x - intervened.x
            return torch.where(drop == drop.max(), drop.new_tensor(torch.inf), drop)

        metric = tk.Metric("broken", broken, needs_y=False)
        tracer = tk.Tracer(raced.model, raced.pairs, metric="logit-difference")
        engine = tk.Engine(tracer.model, tracer.pairs, tracer.registry, metric)
        with pytest.raises(NonFiniteMetricError, match="example 77"):
            engine.set_effects([(0,)], examples=torch.tensor([77]))


class TestSets:
    """A race of many sets."""

    def test_winners_are_measured_on_all_examples(self, raced):
        sets = list(combinations(range(12), 2))
        portions = Portions.make(raced.engine, 0)
        whole = raced.engine.set_effects(sets)
        before = raced.engine.cost
        effects = raced_effects(raced.engine, sets, portions, "pairs", n_winners=3)
        cost = (raced.engine.cost - before).forward
        assert cost < 0.75 * len(sets)
        is_whole = ~effects.isnan().any(1)
        assert 3 <= is_whole.sum() < len(sets)
        torch.testing.assert_close(effects[is_whole], whole[is_whole], rtol=1e-4, atol=5e-6)
        best = whole.mean(1).argsort(descending=True)[:3].tolist()
        assert means_of_race(effects).argsort(descending=True)[:3].tolist() == best

    def test_a_dropped_set_is_never_better_than_what_beat_it(self, raced):
        """Not even where it is ahead on the few examples that it was measured on."""
        cache = MeasurementCache(raced.engine, Limits(), portions=Portions.make(raced.engine, 0))
        n = raced.engine.n_examples
        rival, (ahead, behind) = torch.ones(n), torch.full((2, n), torch.nan)
        ahead[:8], behind[:8] = 3.0, 0.25
        cache.import_measured({(0,): rival, (1,): ahead, (2,): behind})
        cache._dropped |= {(1,), (2,)}
        assert [cache.mean((i,), (0,)) for i in range(3)] == pytest.approx([1.0, 1.0, 0.25])
        assert cache.mean((1,)) == pytest.approx(3.0)

    def test_a_dropped_set_ranks_below_those_that_were_not(self):
        nan = torch.nan
        effects = torch.tensor([[1.0, 1.0, 1.0], [9.0, nan, nan], [0.5, 0.5, 0.5], [0.1, nan, nan]])
        assert means_of_race(effects).argsort(descending=True).tolist() == [0, 2, 1, 3]

    @pytest.mark.parametrize("method", ["top-k", "greedy", "random"])
    def test_searches_select_the_same_for_less(self, raced, method):
        options = {"draws": 60} if method == "random" else {}
        exact = raced.run(method, budget=4, **options)
        quick = raced.run(method, budget=4, race=True, **options)
        assert quick.components == exact.components
        assert quick.effect == pytest.approx(exact.effect, rel=1e-5)
        assert quick.cost.forward < 0.85 * exact.cost.forward
        assert quick.config["race"] is True

    def test_top_k_with_a_target_measures_all(self, raced):
        exact = raced.run("top-k", target_effect=0.3 * raced.full_effect)
        quick = raced.run("top-k", target_effect=0.3 * raced.full_effect, race=True)
        assert (quick.components, quick.cost) == (exact.components, exact.cost)


class TestCarriers:
    """Where few examples carry what a set has to beat, these are looked at first."""

    RIVAL = (0, 1)

    @pytest.fixture
    def effects(self, raced, monkeypatch):
        """Effects of the sets that are measured, and how many examples each was read on."""
        n_read, truth = {}, {self.RIVAL: torch.full((N,), 0.1)}
        truth[self.RIVAL][[5, 70]] = 80.0  # Of 172.6 in all.
        for members, change in (
            ((0, 2), {5: -3.0}),
            ((0, 3), {5: -30.0}),
            ((0, 4), {70: -30.0, 8: 31.0}),
            ((0, 5), {5: 1.0}),
        ):
            truth[members] = truth[self.RIVAL].clone()
            for example, by in change.items():
                truth[members][example] += by

        def set_effects(sets, label="effects", *, examples=None):
            rows = torch.arange(N) if examples is None else examples
            for members in sets:
                n_read[members] = n_read.get(members, 0) + len(rows)
            return torch.stack([truth[members][rows] for members in sets])

        monkeypatch.setitem(vars(raced.engine), "set_effects", set_effects)
        return truth, n_read

    def measured(self, raced, truth, *, race=True):
        portions = Portions.make(raced.engine, 0, race=race)
        cache = MeasurementCache(raced.engine, Limits(), portions=portions)
        cache.import_measured({self.RIVAL: truth[self.RIVAL]})
        sets = [members for members in truth if members != self.RIVAL]
        # Two predictions may propose the same set.
        cache.measure([Heat(sets=[*sets, *sets[:2]], rival=self.RIVAL)], "sets")
        return cache

    def test_sets_far_behind_on_them_are_measured_no_further(self, raced, effects):
        truth, n_read = effects
        cache = self.measured(raced, truth)
        # All others together do 12.6: that makes no 30 good.
        assert {members for members, n in n_read.items() if n == 2} == {(0, 3), (0, 4)}
        assert cache.is_dropped((0, 3))
        assert not cache.is_dropped((0, 5))
        assert torch.equal(cache.effects((0, 5)), truth[0, 5])
        # No example is read twice.
        assert n_read[0, 2] == n_read[0, 5] == N

    def test_what_they_are_behind_counts_once_for_all_examples(self, raced, effects):
        """Their differences on two examples are not those of all."""
        truth, _ = effects
        cache = self.measured(raced, truth)
        for members in ((0, 3), (0, 4)):
            expected = truth[self.RIVAL].mean() - 30 / N
            assert cache.mean(members, self.RIVAL) == pytest.approx(expected.item(), rel=1e-5)
            # Without a rival the other examples count nothing.
            assert cache.mean(members) == pytest.approx(130 / N, rel=1e-5)

    def test_without_races_all_are_measured_on_all(self, raced, effects):
        truth, n_read = effects
        cache = self.measured(raced, truth, race=False)
        assert set(n_read.values()) == {N}
        assert not any(cache.is_dropped(members) for members in n_read)

    def test_where_they_are_many_nothing_is_looked_at_first(self, raced, effects):
        truth, n_read = effects
        truth[self.RIVAL][:] = 1.0
        self.measured(raced, truth)
        assert min(n_read.values()) >= 32

    def test_what_they_are(self):
        effects = torch.tensor([[0.0, -6.0, 1.0, 0.5, 3.0, 0.0], [0.0, 9.0, 0.0, 0.25, 0.0, 0.25]])
        assert few_carriers(effects).tolist() == [1, 2, 4]
        assert few_carriers(effects[1:]).tolist() == [1]
        assert few_carriers(torch.ones(2, 6)) is None
        assert few_carriers(torch.tensor([[torch.nan, 5.0, 0.1]])).tolist() == [1]


class TestLocalSearch:
    """The search of every size, which races unless told otherwise."""

    def test_what_it_selects_was_measured_on_all_examples(self, raced):
        exact = raced.pareto(max_budget=2, statistics=False, objective="mean", race=False)
        quick = raced.pareto(max_budget=2, statistics=False, objective="mean")
        for result in quick:
            assert not result.per_example.isnan().any()
            assert raced.evaluate(result) == pytest.approx(result.effect, rel=1e-4)
        for size in (1, 2):
            assert quick.at(size).effect >= 0.99 * exact.at(size).effect
        spent = [front[0].cost.forward_equivalents for front in (quick, exact)]
        assert spent[0] < 0.8 * spent[1]

    def test_it_is_exact_with_few_examples(self, model):
        tracer = tk.Tracer(model, tiny.pairs(12, seed=3))
        raced, exact = (
            tracer.pareto(max_budget=4, statistics=False, max_passes=50, race=race)
            for race in (True, False)
        )
        assert raced.to_frame().equals(exact.to_frame())
        assert raced[0].cost == exact[0].cost

    @pytest.mark.parametrize(
        "calls",
        [pytest.param(2, marks=pytest.mark.slow), 7, pytest.param(19, marks=pytest.mark.slow)],
    )
    def test_a_checkpoint_goes_on_in_the_middle_of_a_race(
        self, model, monkeypatch, tmp_path, calls
    ):
        def fresh():
            return tk.Tracer(model, similar_pairs(), metric="logit-difference")

        options = {"max_budget": 2, "statistics": False, "checkpoint": tmp_path / "front.ckpt"}
        options |= {"objective": "mean", "max_passes": 120}
        whole = fresh().pareto(**{**options, "checkpoint": tmp_path / "whole.ckpt"})
        first = fresh()
        left, measure = iter(range(calls)), first.engine.set_effects

        def interrupted(*args, **rest):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return measure(*args, **rest)

        monkeypatch.setitem(vars(first.engine), "set_effects", interrupted)
        try:
            with pytest.warns(SearchStoppedWarning):
                first.pareto(**options)
        except KeyboardInterrupt:
            assert calls == 2  # Before any set was measured on all examples.
        resumed = fresh().pareto(**options)
        assert resumed.to_frame().equals(whole.to_frame())
        spent = [front[0].cost.forward_equivalents for front in (resumed, whole)]
        assert spent[0] == pytest.approx(spent[1], rel=1e-12)

    def test_without_time_the_set_that_is_ahead_is_measured_to_the_end(self, raced, monkeypatch):
        class Clock:
            """Runs out after a few looks."""

            now = 0.0

            def monotonic(self):
                self.now += 1.0
                return self.now

        for seconds in (12, 20, 30):
            monkeypatch.setattr(measurements, "time", Clock())
            front = raced.pareto(max_budget=2, statistics=False, max_seconds=seconds)
            assert front.stopped == "max_seconds"
            for result in front:
                assert raced.evaluate(result) == pytest.approx(result.effect, rel=1e-4)

    def test_a_limit_on_passes_counts_what_was_read(self, raced):
        front = raced.pareto(max_budget=6, statistics=False, max_passes=40)
        assert 25 <= front[0].cost.forward_equivalents <= 40
