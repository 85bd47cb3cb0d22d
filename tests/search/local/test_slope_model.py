"""The model of slopes: what it learned it gives back, and what it proposes is best by it."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.engine.gradients import Expansion, expand
from tracekit.search import Goal
from tracekit.search.local import slope_model
from tracekit.search.local.local_search import LocalSearch
from tracekit.search.local.measurements import Limits, MeasurementCache
from tracekit.search.local.slope_model import SlopeModel
from tracekit.search.objectives import LogOdds, TrimmedMean
from tracekit.search.targets import target_of

N = 12


@pytest.fixture
def engine(model):
    """Eight examples, whose effect is a curve over log-odds."""
    return tiny.engine(model, tiny.pairs(8, seed=1), metric="odds-ratio")


def rows_of(sets):
    return torch.stack([from_indices(members, N).float() for members in sets])


def expansion_of(engine, members, examples=None):
    examples = torch.arange(engine.n_examples) if examples is None else examples
    masks = from_indices(members, N).float().expand(len(examples), -1)
    return expand(engine.data, masks, examples)


def promised(model, sets, near=None):
    """Promises of sets, each by itself, or of neighbours of one by as many exchanges each."""
    if near is None:
        return torch.cat([promised(model, [members], members) for members in sets])
    flips = [sorted(set(members) ^ set(near)) for members in sets]
    return model.promises(rows_of([near])[0], torch.tensor(flips, dtype=torch.long))


class Quadratic:
    """A quantity that is a sum over components and pairs of them, on every example."""

    def __init__(self, engine, bend):
        generator = torch.Generator().manual_seed(3)
        n = engine.n_examples
        self.engine = engine
        self.start = engine.metric.linearization.to_linear(engine.clean)
        self.linear = torch.randn(n, N, generator=generator) / 5
        pairs = torch.randn(n, N, N, generator=generator)
        self.pairs = bend * (pairs + pairs.mT)

    def at(self, members):
        row = from_indices(members, N).float()
        return self.start + self.linear @ row + (self.pairs @ row) @ row / 2

    def expansion(self, members):
        row = from_indices(members, N).float()
        return Expansion(self.at(members), self.linear + self.pairs @ row)

    def effects(self, sets):
        curve = self.engine.metric.linearization.to_effect
        return torch.stack([curve(self.engine.clean, self.at(members)).mean() for members in sets])

    def taught(self, sets):
        """A model that knows some sets."""
        model = SlopeModel(self.engine, torch.arange(self.engine.n_examples))
        for members in sets:
            model.add(members, self.expansion(members))
        return model


def test_what_adds_up_is_exact_everywhere(engine):
    truth = Quadratic(engine, bend=0)
    model = truth.taught([(), (1, 2)])
    sets = [(1, 2), (1, 5), (3, 4, 7, 9), tuple(range(N)), ()]
    found = promised(model, sets)
    torch.testing.assert_close(found, truth.effects(sets), rtol=1e-4, atol=1e-5)


def test_pairs_are_seen_once_slopes_are_known_on_both_sides(engine, monkeypatch):
    """The trapezoid rule is exact for them; the ridge is taken away to see it."""
    monkeypatch.setattr(slope_model, "_RIDGE", 1e-7)
    truth = Quadratic(engine, bend=0.05)
    sets = [(0, 1, 2), (4, 5, 6), (0, 9)]
    monkeypatch.setattr(torch.Tensor, "argmin", lambda self: torch.tensor(0))
    found = promised(truth.taught([(0, 1, 3), *sets]), sets)
    blind = promised(truth.taught([(0, 1, 3)]), sets)
    expected = truth.effects(sets)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4)
    assert (blind - expected).abs().max() > 20 * (found - expected).abs().max()


def test_a_neighbour_promises_what_it_does_by_itself(engine, monkeypatch):
    """Whatever set it is a neighbour of, as long as predictions start from the same one."""
    model = Quadratic(engine, bend=0.2).taught([(), (0, 1, 2), (5, 6), (3, 7, 8, 9)])
    monkeypatch.setattr(torch.Tensor, "argmin", lambda self: torch.tensor(1))
    sets = [(0, 4, 5), (1, 4, 7), (2, 8, 9)]
    expected = promised(model, sets)
    for near, members in (
        ((4, 5), [(0, 4, 5)]),
        ((0, 4, 5, 6), [(0, 4, 5)]),
        ((4, 7, 8, 9), sets[1:2]),
        ((2, 8, 10), sets[2:]),
    ):
        rank = sets.index(members[0])
        found = promised(model, members, near)
        torch.testing.assert_close(found, expected[rank : rank + 1], rtol=1e-4, atol=1e-5)
    # Several of one set that share a component, or do not.
    for flips in ([[0, 4], [0, 5], [1, 4]], [[3, 4], [5, 6], [7, 8]], [[4], [5], [0]]):
        row = rows_of([(0, 1, 2)])[0]
        neighbours = [tuple(sorted({0, 1, 2} ^ set(flip))) for flip in flips]
        torch.testing.assert_close(
            model.promises(row, torch.tensor(flips)),
            promised(model, neighbours),
            rtol=1e-4,
            atol=1e-5,
        )


def test_it_predicts_from_the_nearest_set_that_it_knows(engine):
    """What it knows it gives back, whatever it knows besides."""
    truth = Quadratic(engine, bend=0.2)
    known = [(), (0, 1, 2), (4, 5, 6, 7), (0, 9)]
    model = truth.taught(known)
    for members in known:
        expected = truth.effects([members])
        torch.testing.assert_close(promised(model, [members]), expected)
        assert model.objective(members) == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)


def test_the_more_gradients_the_better_unseen_sets_are_predicted(engine):
    truth = Quadratic(engine, bend=0.05)
    generator = torch.Generator().manual_seed(5)
    drawn = [
        tuple(torch.randperm(N, generator=generator)[:4].sort()[0].tolist()) for _ in range(60)
    ]
    unseen = drawn[40:]
    expected = truth.effects(unseen)
    errors = []
    for seen in (1, 40):
        model = truth.taught(drawn[:seen])
        found = promised(model, unseen)
        errors.append((found - expected).square().mean())
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize("metric", ["odds-ratio", "logit-difference"])
def test_it_learns_from_the_gradients_of_a_model(model, metric):
    """Against measured effects, whether the effect is a curve or not."""
    engine = tiny.engine(model, tiny.pairs(8, seed=1), metric=metric)
    learned = SlopeModel(engine, torch.arange(8))
    for members in [(), (3,), (6, 7), (3, 6)]:
        learned.add(members, expansion_of(engine, members))
    sets = [tuple(sorted((3, 6, i))) for i in range(N) if i not in (3, 6)]
    found = promised(learned, sets)
    measured = engine.set_effects(sets).mean(1)
    assert torch.corrcoef(torch.stack([found, measured]))[0, 1] > 0.8


def test_gradients_of_a_part_make_a_model_of_the_part(engine):
    some = torch.tensor([0, 3, 5])
    part = SlopeModel(engine, some)
    part.add((2,), expansion_of(engine, (2,), some))
    measured = engine.set_effects([(2,)])[0, some].mean().item()
    assert part.objective((2,)) == pytest.approx(measured, rel=1e-4)
    assert promised(part, [(2,)]).item() == pytest.approx(measured, rel=1e-4)


class TestSomeExamples:
    """A set of which the gradient was taken on some of the examples."""

    SEEN = torch.tensor([1, 4, 6])
    REST = torch.tensor([0, 2, 3, 5, 7])
    KNOWN = ((), (0, 1, 2), (5, 6), (1, 5, 8, 9))
    NEW = (0, 2, 6, 9)

    def learned(self, engine):
        truth = Quadratic(engine, bend=0.05)
        model = truth.taught(self.KNOWN)
        before = model.expansion(self.NEW)
        true = truth.expansion(self.NEW)
        seen = Expansion(*(values[self.SEEN] for values in true))
        model.add(self.NEW, seen, self.SEEN)
        return truth, model, before, true

    def test_it_knows_these_and_predicts_the_others(self, engine):
        _, model, before, true = self.learned(engine)
        known = model.expansion(self.NEW)
        for values, truth, predicted in zip(known, true, before, strict=True):
            assert torch.equal(values[self.SEEN], truth[self.SEEN])
            torch.testing.assert_close(values[self.REST], predicted[self.REST])
            assert not torch.allclose(values[self.REST], truth[self.REST], rtol=1e-2)
        curve = engine.metric.linearization.to_effect
        mean = curve(engine.clean, known.quantity).mean().item()
        assert model.objective(self.NEW) == pytest.approx(mean, rel=1e-5)

    def test_what_it_predicts_of_the_others_changes_little(self, engine):
        truth, model, _, _ = self.learned(engine)
        without = truth.taught(self.KNOWN)
        sets = [(0, 2, 6), (0, 2, 6, 9, 10), (2, 9)]
        for members in sets:
            learned, old = model.expansion(members), without.expansion(members)
            true = truth.expansion(members)
            for rows, least, most in ((self.REST, 0, 0.1), (self.SEEN, 0.1, 10)):
                moved = (learned.slopes - old.slopes)[rows].norm()
                assert least <= moved / (true.slopes - old.slopes)[rows].norm() <= most

    def test_a_prediction_is_what_was_promised(self, engine):
        model = Quadratic(engine, bend=0.05).taught(self.KNOWN)
        curve = engine.metric.linearization.to_effect
        mean = curve(engine.clean, model.expansion(self.NEW).quantity).mean().item()
        assert promised(model, [self.NEW]).item() == pytest.approx(mean, rel=1e-5)

    @pytest.mark.parametrize(
        ("rest", "carriers"), [(0.3, [2]), (0.2, [2, 5]), (0.05, [2, 5, 7]), (0.001, None)]
    )
    def test_carriers_make_up_the_effects(self, engine, monkeypatch, rest, carriers):
        """Of every one of the sets, regardless of signs; more than half are as good as all."""
        shares = {
            (1,): [0.0, 0.02, 0.75, 0.0, 0.01, -0.2, 0.0, 0.02],
            (2,): [0.01, 0.02, -0.75, 0.0, 0.0, 0.12, 0.0, 0.1],
        }
        model = SlopeModel(engine, torch.arange(8))
        for members, effects in shares.items():
            model.add(members, Expansion(torch.tensor(effects), torch.zeros(8, N)))
        monkeypatch.setattr(model, "_scores", lambda quantity: 3 * quantity)
        monkeypatch.setattr("tracekit.search.carriers._REST", rest)
        found = model.carriers(list(shares))
        assert (found if found is None else found.tolist()) == carriers


@pytest.mark.parametrize("objective", [TrimmedMean(share=0.25), LogOdds()])
def test_what_the_search_maximises_is_predicted(engine, objective):
    scoring = target_of(engine, objective)
    model = SlopeModel(scoring, torch.arange(8))
    model.add((4, 5), expansion_of(scoring, (4, 5)))
    measured = scoring.set_effects([(4, 5)]).mean().item()
    assert promised(model, [(4, 5)]).item() == pytest.approx(measured, rel=1e-4)
    assert abs(measured - engine.set_effects([(4, 5)]).mean().item()) > 1e-3


def test_examples_count_by_their_weights(model):
    rows = [{**row, "weight": 1 + 4 * (i % 2)} for i, row in enumerate(tiny.rows(8))]
    engine = tiny.engine(model, tiny.tk.PromptPairs.from_ids(rows), metric="odds-ratio")
    learned = SlopeModel(engine, torch.arange(8))
    learned.add((4, 5), expansion_of(engine, (4, 5)))
    measured = engine.set_effects([(4, 5)]).mean().item()
    assert learned.objective((4, 5)) == pytest.approx(measured, rel=1e-4)


class TestProposals:
    """Sets that are the best of their neighbours by the model."""

    KNOWN = ((), (0, 1, 2), (5, 6))

    def test_each_exchange_is_the_best_of_all(self, engine, monkeypatch):
        truth = Quadratic(engine, bend=0.05)
        model = truth.taught(self.KNOWN)
        monkeypatch.setattr(slope_model, "_EXCHANGES", 1)
        for start in ((0, 1, 2), (3, 8, 11)):
            others = [
                members
                for members in combinations(range(N), 3)
                if len(set(members) & set(start)) == 2
            ]
            promises = promised(model, others, near=start)
            found, promise = model.climbed(start)
            assert found == others[int(promises.argmax())]
            assert promise == pytest.approx(promises.max().item(), rel=1e-4)

    def test_exchanges_go_on_until_none_promises_more(self, engine):
        model = Quadratic(engine, bend=0.05).taught(self.KNOWN)
        found, promise = model.climbed((9, 10, 11))
        assert len(set(found) & {9, 10, 11}) < 3
        assert promise > promised(model, [(9, 10, 11)]).item()
        assert model.climbed(found)[0] == found

    def test_screening_leaves_out_what_promises_little_by_itself(self, model, monkeypatch):
        """Where effects add up, the best exchange is of the worst inside and the best outside."""
        engine = tiny.engine(model, tiny.pairs(8, seed=1), metric="logit-difference")
        slopes = torch.randn(8, N, generator=torch.Generator().manual_seed(1))
        learned = SlopeModel(engine, torch.arange(8))
        learned.add((), Expansion(torch.zeros(8), slopes))
        monkeypatch.setattr(slope_model, "_SCREENED", 1)
        monkeypatch.setattr(slope_model, "_EXCHANGES", 1)
        means = slopes.mean(0)
        leaves, joins = means[:3].argmin().item(), 3 + means[3:].argmax().item()
        found, _ = learned.climbed((0, 1, 2))
        assert set(found) == {0, 1, 2, joins} - {leaves}

    def test_sets_without_exchanges_stay(self, engine):
        model = Quadratic(engine, bend=0.05).taught(self.KNOWN)
        everything = tuple(range(N))
        assert model.climbed(())[0] == ()
        assert model.climbed(everything)[0] == everything

    def test_the_components_that_promise_most_join(self, engine):
        truth = Quadratic(engine, bend=0)
        model = truth.taught(self.KNOWN)
        start = (3, 8)
        grown = [tuple(sorted((*start, i))) for i in range(N) if i not in start]
        order = truth.effects(grown).argsort(descending=True).tolist()
        assert model.extended(start, 4) == [grown[place] for place in order[:4]]
        assert set(model.extended(start, N)) == set(grown)
        assert model.extended(tuple(range(N)), 4) == []

    def test_another_size_keeps_what_it_can(self, engine):
        truth = Quadratic(engine, bend=0)
        model = truth.taught(self.KNOWN)
        start = (0, 1, 2)
        assert set(model.resized(start, 1)) < set(start) < set(model.resized(start, 5))
        assert model.resized(start, 3) == start
        assert model.resized(start, N) == tuple(range(N))
        assert model.resized(start, 0) == ()
        # One component joins at a time, each the best.
        grown = [(*start, i) for i in range(N) if i not in start]
        best = grown[int(truth.effects(grown).argmax())]
        assert model.resized(start, 4) == tuple(sorted(best))
        shrunk = list(combinations(start, 2))
        assert model.resized(start, 2) == shrunk[int(truth.effects(shrunk).argmax())]


class TestMeasuredByGradients:
    """The gradient on all examples at a set says what the set does, too."""

    def test_effects_are_those_of_a_measurement(self, engine):
        cache = MeasurementCache(engine, Limits())
        cache.expand_set((3, 7), torch.arange(8))
        assert (3, 7) in cache
        expected = engine.set_effects([(3, 7)])[0]
        torch.testing.assert_close(cache.effects((3, 7)), expected, rtol=1e-4, atol=1e-5)
        cache.expand_set((3, 8), torch.arange(7))
        assert (3, 8) not in cache

    @pytest.mark.parametrize("objective", [None, LogOdds(), TrimmedMean(share=0.25)])
    @pytest.mark.parametrize("metric", ["odds-ratio", "probability-drop", "logit-difference"])
    def test_predictions_are_those_of_another_gradient(self, model, metric, objective):
        engine = tiny.engine(model, tiny.pairs(8, seed=1), metric=metric)
        if objective is not None and not (metric == "logit-difference" and objective == LogOdds()):
            engine = target_of(engine, objective)
        for members in ((), (3, 7)):
            cache = MeasurementCache(engine, Limits())
            cache.expand_set(members, torch.arange(8))
            before = cache.spent
            found = cache.predict_changes(members)
            assert (cache.spent == before) == engine.examples_are_independent
            expected = engine.predict_changes(members)
            for ours, theirs in zip(vars(found).values(), vars(expected).values(), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)

    def test_a_distance_is_looked_at_halfway_first(self, model):
        engine = tiny.engine(model, tiny.pairs(8, seed=1), metric="kl")
        cache = MeasurementCache(engine, Limits())
        cache.expand_set((), torch.arange(8))
        assert cache.predict_changes(()).gradient.abs().max() > 1e-4


def test_the_best_of_all_sets_of_four_is_found(engine):
    """Of 495, in 50 passes."""
    sets = list(combinations(range(N), 4))
    best = engine.set_effects(sets).mean(1).max().item()
    search = LocalSearch(max_passes=50)
    (found,) = search.search(engine, Goal.make(N, budgets=[4]), 0)
    assert found.effects.mean().item() == pytest.approx(best, rel=1e-5)
