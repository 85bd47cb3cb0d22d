"""The model of slopes: what it learned it gives back, and what it proposes is best by it."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch

from tests import tiny
from tracekit.engine.look_ahead import Expansion
from tracekit.engine.objectives import ScoringEngine, TrimmedMean
from tracekit.masks import from_indices
from tracekit.search import Goal
from tracekit.search.local import slope_model
from tracekit.search.local.best_sets import BestSets
from tracekit.search.local.local_search import LocalSearch
from tracekit.search.local.measurements import LimitReachedError, Limits, MeasurementCache
from tracekit.search.local.slope_model import SlopeModel, exchanges

N = 12


@pytest.fixture
def engine(model):
    """Eight examples, whose effect is a curve over log-odds."""
    return tiny.engine(model, tiny.pairs(8, seed=1), metric="odds-ratio")


def rows_of(sets):
    return torch.stack([from_indices(members, N).float() for members in sets])


class Quadratic:
    """A quantity that is a sum over components and pairs of them, on every example."""

    def __init__(self, engine, bend):
        generator = torch.Generator().manual_seed(3)
        n = engine.n_examples
        self.start = engine.metric.linearization.to_linear(engine.clean)
        self.linear = torch.randn(n, N, generator=generator) / 5
        pairs = torch.randn(n, N, N, generator=generator)
        self.pairs = bend * (pairs + pairs.mT)
        self.examples = torch.arange(n)

    def at(self, members):
        row = from_indices(members, N).float()
        return self.start + self.linear @ row + (self.pairs @ row) @ row / 2

    def expansion(self, members):
        row = from_indices(members, N).float()
        return Expansion(self.examples, self.at(members), self.linear + self.pairs @ row)


def taught(engine, truth, sets):
    model = SlopeModel(engine, torch.arange(engine.n_examples))
    for members in sets:
        model.add(members, truth.expansion(members))
    return model


def effects_of(engine, truth, sets):
    curve = engine.metric.linearization.to_effect
    return torch.stack([curve(engine.clean, truth.at(members)).mean() for members in sets])


def test_what_adds_up_is_exact_everywhere(engine):
    truth = Quadratic(engine, bend=0)
    model = taught(engine, truth, [(), (1, 2)])
    sets = [(1, 2), (1, 5), (3, 4, 7, 9), tuple(range(N)), ()]
    found = model.objectives((1, 2), rows_of(sets))
    torch.testing.assert_close(found, effects_of(engine, truth, sets), rtol=1e-4, atol=1e-5)


def test_pairs_are_seen_once_slopes_are_known_on_both_sides(engine, monkeypatch):
    """The trapezoid rule is exact for them; the ridge is taken away to see it."""
    monkeypatch.setattr(slope_model, "_RIDGE", 1e-7)
    truth = Quadratic(engine, bend=0.05)
    sets = [(0, 1, 2, 3), (4, 5, 6), (0, 9)]
    model = taught(engine, truth, [*sets, (0, 1, 2)])
    expected = effects_of(engine, truth, sets)
    found = model.objectives((0, 1, 2), rows_of(sets))
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4)
    blind = taught(engine, truth, [(0, 1, 2)]).objectives((0, 1, 2), rows_of(sets))
    assert (blind - expected).abs().max() > 20 * (found - expected).abs().max()


def test_a_model_of_some_sets_knows_nothing_of_others(engine):
    truth = Quadratic(engine, bend=0.05)
    few = [(), (1, 2, 3)]
    model = taught(engine, truth, [*few, (4, 5), (6, 7, 8)]).only(few)
    rows = rows_of([(1, 4), (2, 3, 8)])
    expected = taught(engine, truth, few).objectives((), rows)
    assert torch.equal(model.objectives((), rows), expected)
    assert (4, 5) not in model


def test_the_more_gradients_the_better_unseen_sets_are_ordered(engine):
    truth = Quadratic(engine, bend=0.05)
    generator = torch.Generator().manual_seed(5)
    drawn = [
        tuple(torch.randperm(N, generator=generator)[:4].sort()[0].tolist()) for _ in range(60)
    ]
    unseen = drawn[40:]
    expected = effects_of(engine, truth, unseen)
    errors = []
    for seen in (1, 40):
        model = taught(engine, truth, drawn[:seen])
        errors.append((model.objectives(drawn[0], rows_of(unseen)) - expected).square().mean())
    assert errors[1] < 0.5 * errors[0]


def test_it_learns_from_the_gradients_of_a_model(engine):
    """Against measured effects."""
    model = SlopeModel(engine, torch.arange(engine.n_examples))
    for members in [(), (3,), (6, 7), (3, 6)]:
        expansion = engine.predict_changes(members, expand=True).expansion
        assert expansion is not None
        model.add(members, expansion)
    sets = [(3, 6, i) for i in range(N) if i not in (3, 6)]
    sets = [tuple(sorted(members)) for members in sets]
    found = model.objectives((3, 6), rows_of(sets))
    measured = engine.set_effects(sets).mean(1)
    assert torch.corrcoef(torch.stack([found, measured]))[0, 1] > 0.8


def test_gradients_of_a_part_make_a_model_of_the_part(engine):
    some = torch.tensor([5, 0, 3])
    part = SlopeModel(engine, some)
    part.add((), engine.predict_changes((), expand=True).expansion)
    part.add((2,), engine.predict_changes((2,), examples=some, expand=True).expansion)
    alone = SlopeModel(engine, some)
    for members in [(), (2,)]:
        expansion = engine.predict_changes(members, examples=some, expand=True).expansion
        alone.add(members, expansion)
    rows = rows_of([(2, 4), (2, 9)])
    torch.testing.assert_close(part.objectives((2,), rows), alone.objectives((2,), rows))
    measured = engine.set_effects([(2,)])[0, some].mean()
    torch.testing.assert_close(
        part.objectives((2,), rows_of([(2,)]))[0], measured, rtol=1e-4, atol=1e-5
    )


def test_what_the_search_maximises_is_predicted(engine):
    objective = TrimmedMean(share=0.25)
    scoring = ScoringEngine(engine, objective)
    model = SlopeModel(scoring, torch.arange(8))
    model.add((4, 5), scoring.predict_changes((4, 5), expand=True).expansion)
    found = model.objectives((4, 5), rows_of([(4, 5)]))
    measured = scoring.set_effects([(4, 5)]).mean(1)
    torch.testing.assert_close(found.float(), measured, rtol=1e-4, atol=1e-5)
    assert abs(measured - engine.set_effects([(4, 5)]).mean(1)) > 1e-3


def test_exchanges_are_all_of_them():
    row = from_indices((1, 4, 6), N).float()

    def sets(rows):
        return sorted(tuple(each.nonzero()[:, 0].tolist()) for each in rows)

    every = combinations(range(N), 3)
    expected = [members for members in every if len({1, 4, 6} & set(members)) == 2]
    assert sets(exchanges(row)) == expected
    assert not len(exchanges(torch.ones(N)))


def test_proposals_are_the_best_by_the_model(engine):
    truth = Quadratic(engine, bend=0.05)
    model = taught(engine, truth, [(), (0, 1, 2), (5, 6)])
    start = (0, 1, 2)
    rows = exchanges(from_indices(start, N).float())
    promised = model.objectives(start, rows)
    order = promised.argsort(descending=True).tolist()
    best = [tuple(rows[i].nonzero()[:, 0].tolist()) for i in order]
    assert model.best(start, rows, 2, lambda members: members == best[0]) == best[1:3]
    worst = tuple(rows[order[-1]].nonzero()[:, 0].tolist())
    climbed = [worst, *model.climb(start, worst, 9)]
    heights = model.objectives(start, rows_of(climbed)).tolist()
    assert len(climbed) > 2
    assert heights == sorted(heights)
    assert all(len(set(a) & set(b)) == 2 for a, b in pairwise(climbed))


class TestSetsForExamples:
    """Sets that promise most for one example each."""

    def test_they_are_the_best_where_components_add_up(self, engine):
        truth = Quadratic(engine, bend=0)
        model = taught(engine, truth, [(), tuple(range(N))])
        best = truth.linear.topk(3, dim=1).indices.tolist()
        expected = {tuple(sorted(members)) for members in best}
        rows = model.sets_for_examples((), 3)
        assert {tuple(row.nonzero()[:, 0].tolist()) for row in rows} == expected
        assert len(rows) == len(expected) > 1

    def test_they_follow_the_slopes_at_themselves(self, engine):
        """Pairs of components count too: the sets do more than those with the largest slopes."""
        truth = Quadratic(engine, bend=0.1)
        sets = list(combinations(range(N), 3))
        model = taught(engine, truth, [(), *sets[::4]])
        quantities = torch.stack([truth.at(members) for members in sets])
        promised = [
            quantities[sets.index(tuple(row.nonzero()[:, 0].tolist()))]
            for row in model.sets_for_examples((), 3)
        ]
        alone = truth.linear.topk(3, dim=1).indices.sort(dim=1).values.tolist()
        by_slope = torch.stack([quantities[sets.index(tuple(members))] for members in alone])
        # Of each example, the best of its sets; examples may share one.
        of_sets = torch.stack(promised).max(0).values
        share = (of_sets - by_slope.diagonal()) / (quantities.max(0).values - by_slope.diagonal())
        assert share.nanmean() > 0.5


class TestStarts:
    """Sets made for single examples, measured within a search."""

    def test_they_have_the_sizes_asked_for(self, engine):
        best_sets = BestSets(MeasurementCache(engine, Limits(), expand=True), 6)
        best_sets.start_from_examples([6, 3])
        assert best_sets.sizes == [3, 6]
        assert len([each for each in best_sets.measurements._decided if len(each) == 6]) >= 6

    def test_without_slopes_there_are_none(self, engine):
        best_sets = BestSets(MeasurementCache(engine, Limits()), 6)
        best_sets.start_from_examples([6, 3])
        assert best_sets.sizes == []

    def test_a_set_for_one_example_is_found_that_the_mean_does_not_point_to(self, engine):
        """Log-odds of seven examples rise by nine components a little, of the eighth by three
        others, steeply, and only together."""
        n = engine.n_examples
        generator = torch.Generator().manual_seed(0)
        linear = 0.3 * torch.rand(n, N, generator=generator)
        linear[:, [2, 6, 9]] = -0.1
        linear[5] = -0.5
        linear[5, [2, 6, 9]] = 0.2
        base = engine.metric.linearization.to_linear(engine.clean)

        def quantities(members):
            row = from_indices(members, N).float()
            joint = torch.zeros(n)
            joint[5] = 1.5 * max(0, len({2, 6, 9} & set(members)) - 1)
            return base + linear @ row + joint

        def expansion(members):
            at = quantities(members)
            more = [quantities(tuple({*members} | {i})) for i in range(N)]
            less = [quantities(tuple({*members} - {i})) for i in range(N)]
            return Expansion(torch.arange(n), at, torch.stack(more, 1) - torch.stack(less, 1))

        model = SlopeModel(engine, torch.arange(n))
        for members in [(), tuple(range(N))]:
            model.add(members, expansion(members))
        rows = model.sets_for_examples((), 3)
        assert (2, 6, 9) in {tuple(row.nonzero()[:, 0].tolist()) for row in rows}
        slopes = expansion(()).slopes.mean(0).topk(3).indices.tolist()
        assert not {2, 6, 9} & set(slopes)

    def test_a_search_measures_them(self, model, monkeypatch):
        engine = tiny.engine(model, tiny.pairs(8, seed=1))
        asked = sizes_asked_for(monkeypatch)
        search = LocalSearch(max_passes=200)
        search.run(engine, Goal.make(N, budgets=list(range(1, 11))), 0)
        assert asked == [[10]]
        # All components are one set; there is nothing to choose.
        search.run(engine, Goal.make(N, budgets=list(range(1, N + 1))), 0)
        assert asked[1] == [11]
        LocalSearch(max_passes=480).run(engine, Goal.make(N, budgets=list(range(1, 11))), 0)
        assert asked[2] == [10, 6, 3]
        # Few passes, and a distance, whose slopes at the clean run say little.
        LocalSearch(max_passes=100).run(engine, Goal.make(N, budgets=[4]), 0)
        distance = tiny.engine(model, tiny.pairs(8, seed=1), metric="kl")
        search.run(distance, Goal.make(N, budgets=[4]), 0)
        assert len(asked) == 3
        # Where they are not wanted.
        search = LocalSearch(max_passes=200, start_from_examples=False)
        search.run(engine, Goal.make(N, budgets=[4]), 0)
        assert len(asked) == 3

    def test_none_is_larger_than_what_reaches_the_target(self, model, monkeypatch):
        engine = tiny.engine(model, tiny.pairs(8, seed=1))
        asked = sizes_asked_for(monkeypatch)
        single = engine.set_effects([(i,) for i in range(N)]).mean(1).max().item()
        LocalSearch(max_passes=480).search(engine, Goal.make(N, target_effect=single / 2), 0)
        assert asked == [[]]


def sizes_asked_for(monkeypatch) -> list[list[int]]:
    """The sizes that searches make sets for single examples at, each of which stops there."""
    asked = []

    def stop_there(self, sizes):
        asked.append([*sizes])
        raise LimitReachedError("max_passes")

    monkeypatch.setattr(BestSets, "start_from_examples", stop_there)
    return asked


def test_the_best_of_all_sets_of_four_is_found(engine):
    """Of 495, in 165 passes."""
    sets = list(combinations(range(N), 4))
    best = engine.set_effects(sets).mean(1).max().item()
    search = LocalSearch(max_passes=165)
    (found,) = search.search(engine, Goal.make(N, budgets=[4]), 0)
    assert found.effects.mean().item() == pytest.approx(best, rel=1e-5)
