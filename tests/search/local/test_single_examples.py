"""Sets for single examples: made along the slopes of each, and measured within a search."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.engine.example_curves import ExampleCurves
from tracekit.engine.gradients import Expansion
from tracekit.search import Goal
from tracekit.search.local import plan, single_examples
from tracekit.search.local.best_sets import BestSets
from tracekit.search.local.local_search import LocalSearch
from tracekit.search.local.measurements import LimitReachedError, Limits, MeasurementCache
from tracekit.search.local.single_examples import (
    OwnSets,
    can_one_example_matter,
    promised_shares,
    resized,
)
from tracekit.search.objectives import LogOdds, TrimmedMean
from tracekit.search.racing import Portions
from tracekit.search.targets import target_of

N = 12


@pytest.fixture
def engine(model):
    """Eight examples, whose effect is a curve over log-odds."""
    return tiny.engine(model, tiny.pairs(8, seed=1), metric="odds-ratio")


def own_sets_of(engine, sizes, passes, limits=None):
    measurements = MeasurementCache(engine, limits or Limits())
    return OwnSets(measurements, ExampleCurves.of(engine.data), sizes, passes)


class Pairwise:
    """A quantity that is a sum over components and pairs of them, on every example."""

    def __init__(self, engine, bend, sign=1):
        generator = torch.Generator().manual_seed(3)
        n = engine.n_examples
        self.start = engine.metric.linearization.to_linear(engine.clean)
        self.linear = sign * torch.randn(n, N, generator=generator) / 5
        pairs = torch.randn(n, N, N, generator=generator)
        self.pairs = sign * bend * (pairs + pairs.mT)
        self.pairs.diagonal(dim1=1, dim2=2).zero_()

    def quantity(self, masks, examples):
        joint = torch.einsum("en,enm,em->e", masks, self.pairs[examples], masks) / 2
        return self.start[examples] + (self.linear[examples] * masks).sum(1) + joint

    def expand(self, masks, examples):
        slopes = self.linear[examples] + torch.einsum("enm,em->en", self.pairs[examples], masks)
        return Expansion(self.quantity(masks, examples), slopes)

    def best(self, size, number, largest=True):
        sets = torch.stack([from_indices(s, N).float() for s in combinations(range(N), size)])
        values = self.quantity(sets, torch.full((len(sets),), number))
        return values.max() if largest else values.min()


def share_of_best(engine, truth, own_sets, sizes, *, largest=True):
    """How much of the best change of the quantity the best sets of every example reach."""
    shares = []
    for number, size in enumerate(sizes):
        for row, example in enumerate(own_sets.examples.tolist()):
            best = truth.best(size, example, largest) - truth.start[example]
            signs = own_sets._signs[example]
            reached = own_sets._quantity[number, row] * signs - truth.start[example]
            shares.append(reached / best)
    return torch.stack(shares)


def test_without_interactions_every_example_has_its_best_sets(engine, monkeypatch):
    truth = Pairwise(engine, bend=0.0)
    monkeypatch.setitem(vars(engine), "expand", truth.expand)
    sizes = [1, 3, 6]
    own_sets = own_sets_of(engine, sizes, 400)
    assert own_sets.examples.tolist() == list(range(8))
    own_sets.walk()
    shares = share_of_best(engine, truth, own_sets, sizes)
    torch.testing.assert_close(shares, torch.ones_like(shares), rtol=1e-3, atol=1e-3)


def test_exchanges_find_better_sets_where_components_interact(engine, monkeypatch):
    truth = Pairwise(engine, bend=0.15)
    monkeypatch.setitem(vars(engine), "expand", truth.expand)
    sizes = [2, 4, 6]
    own_sets = own_sets_of(engine, sizes, 2000)
    own_sets.walk()
    walked = share_of_best(engine, truth, own_sets, sizes)
    own_sets.improve()
    improved = share_of_best(engine, truth, own_sets, sizes)
    assert (improved >= walked - 1e-5).all()
    leading = own_sets._most_promising(2)
    rows = torch.arange(len(sizes))[:, None] * len(own_sets.examples) + leading
    assert improved[rows].min() > 0.97
    assert walked[rows].min() < 0.97
    # Each of these sets is measured under the right size, and promises what it does.
    best = own_sets.best()
    assert [len(members) for members in best] == sizes
    # All are close to nothing.
    assert set(best) < set(own_sets.rivals([0.0] * len(sizes)))
    assert len(own_sets.rivals([0.0] * len(sizes))) <= 3 * len(sizes)


def test_only_close_rivals_are_measured(engine):
    """Those whose example alone makes up enough of what the most promising set does."""
    sizes = [2, 5]
    own_sets = own_sets_of(engine, sizes, 200)
    own_sets.walk()
    top = own_sets._own_shares().topk(3).values
    for rank, count in ((0, 1), (1, 2)):
        between = (top[:, rank] + top[:, rank + 1]) / 2
        means = (between / single_examples._CLOSE).tolist()
        found = own_sets.rivals(means)
        assert [len(members) for members in found] == [2] * count + [5] * count
        assert set(own_sets.best()) <= set(found)


def test_an_effect_may_fall_with_the_quantity(model, monkeypatch):
    """Denoising asks for the fall of what noising makes rise."""
    pairs = tiny.pairs(8, seed=1)
    tracer = tk.Tracer(model, pairs, "head-outputs", "odds-ratio", direction="denoising")
    engine = tracer.engine
    curves = ExampleCurves.of(engine.data)
    rises = curves.steepness(curves.linearization.to_linear(curves.clean)[:, None])[:, 0].sign()
    truth = Pairwise(engine, bend=0.0, sign=1)
    monkeypatch.setitem(vars(engine), "expand", truth.expand)
    own_sets = own_sets_of(engine, [2, 4], 400)
    own_sets.walk()
    assert len(set(rises.tolist())) == 1
    shares = share_of_best(engine, truth, own_sets, [2, 4], largest=bool(rises[0] > 0))
    torch.testing.assert_close(shares, torch.ones_like(shares), rtol=1e-3, atol=1e-3)


def test_what_an_example_promises_is_what_is_measured_of_it(engine):
    """On the real model: its effect at its own set, as a share of the mean."""
    sizes = [2, 5]
    own_sets = own_sets_of(engine, sizes, 200)
    own_sets.walk()
    shares = own_sets._own_shares()
    for number in range(len(sizes)):
        for row, example in enumerate(own_sets.examples.tolist()):
            effects = engine.effects(own_sets._masks[number, row])
            measured = effects[example] / engine.n_examples
            torch.testing.assert_close(shares[number, row], measured, rtol=1e-4, atol=1e-6)
    best = own_sets.best()
    assert [len(members) for members in best] == sizes
    (top,) = engine.set_effects([best[1]])
    assert top.max() / engine.n_examples == pytest.approx(shares[1].max().item(), rel=1e-4)


@pytest.mark.parametrize("passes", [30, 60, 200])
def test_it_spends_about_what_it_may(engine, passes):
    own_sets = own_sets_of(engine, [1, 2, 4, 6], passes)
    before = engine.cost
    own_sets.walk()
    own_sets.improve()
    spent = (engine.cost - before).forward_equivalents
    most = min(passes, 2 * (1 + single_examples._PER_EXAMPLE[0]))
    # A sweep that was begun is ended, and few examples run out of things to try.
    assert 0.3 * most <= spent <= 1.35 * most


def test_the_more_components_the_more_gradients(engine, monkeypatch):
    spent = []
    for of_components in (1.0, 2.0):
        monkeypatch.setattr(single_examples, "_PER_EXAMPLE", (1, of_components))
        own_sets = own_sets_of(engine, [2, 4, 6], 10_000)
        before = engine.cost
        own_sets.walk()
        own_sets.improve()
        spent.append((engine.cost - before).forward_equivalents)
    # A gradient of each example, and of each twelve or twenty-four more.
    assert spent == pytest.approx([2 * 13, 2 * 25], rel=0.25)


def test_the_same_set_is_expanded_once(engine):
    own_sets = own_sets_of(engine, [2, 4], 200)
    rows = torch.arange(len(own_sets.examples))
    own_sets._sweep_up(rows, 0)
    before = engine.cost
    own_sets._sweep_up(rows, 0)
    assert engine.cost == before


def test_a_limit_ends_it(engine):
    own_sets = own_sets_of(engine, [2, 4], 200, Limits(max_passes=4))
    with pytest.raises(LimitReachedError):
        own_sets.walk()


def test_sets_are_resized_by_their_slopes():
    masks = torch.tensor([[1.0, 0, 0, 1, 0], [0, 1, 1, 0, 0]])
    slopes = torch.tensor([[0.1, 5, -2, 0.3, 4], [9, 0.5, -1, 2, 1]])
    grown = torch.tensor([[1.0, 1, 0, 1, 0], [1, 1, 1, 0, 0]])
    assert torch.equal(resized(masks, slopes, 3), grown)
    shrunk = torch.tensor([[0.0, 0, 0, 1, 0], [0, 1, 0, 0, 0]])
    assert torch.equal(resized(masks, slopes, 1), shrunk)
    assert torch.equal(resized(masks, slopes, 2), masks)


def test_one_example_matters_where_effects_have_no_bound(model):
    pairs = tiny.pairs(30, seed=1)
    odds = ExampleCurves.of(tiny.engine(model, pairs, metric="odds-ratio").data)
    assert can_one_example_matter(odds, 0.5)
    drop = ExampleCurves.of(tiny.engine(model, pairs, metric="probability-drop").data)
    assert not can_one_example_matter(drop, 0.5)
    assert can_one_example_matter(drop, 1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_shares_are_exact_where_slopes_do_not_change(engine, monkeypatch, sign):
    """Whichever way the effect goes with the quantity: a set adds what moves it most."""
    truth = Pairwise(engine, bend=0.0)
    monkeypatch.setitem(vars(engine), "expand", truth.expand)
    curves = ExampleCurves.of(engine.data)
    monkeypatch.setattr(ExampleCurves, "signs", lambda self: torch.full((8,), float(sign)))
    at_empty, n_new = MeasurementCache(engine, Limits()).expand_at_empty()
    assert n_new == 8
    # No more than four components, of which none goes the other way.
    sizes = torch.stack(
        [sign * torch.stack([truth.best(k, e, sign == 1) for e in range(8)]) for k in range(5)]
    )
    best = sign * sizes.amax(0)
    expected = (curves.effects(best) / 8).float()
    torch.testing.assert_close(promised_shares(curves, at_empty, 4), expected)


class TestUnseen:
    """One example carries sets, and races may not see it."""

    @pytest.fixture
    def heavy(self, model):
        """The last of 16 examples counts a thousand times as much as each other one."""
        rows = [
            {**row, "weight": 1000.0 if i == 15 else 1.0} for i, row in enumerate(tiny.rows(16))
        ]
        return tiny.engine(model, tk.PromptPairs.from_ids(rows), metric="odds-ratio")

    @pytest.fixture
    def halves(self):
        return Portions(torch.arange(16), (8, 16), may_skip=True)

    def best_sets(self, engine, portions, effect=1e-9):
        best_sets = BestSets(MeasurementCache(engine, Limits(), portions=portions), 8)
        best_sets.import_measured({(0,): torch.full((16,), effect)})
        return best_sets

    def test_its_slopes_must_promise_a_third_of_the_best_effect(self, heavy, halves):
        at_empty, _ = MeasurementCache(heavy, Limits()).expand_at_empty()
        share = promised_shares(ExampleCurves.of(heavy.data), at_empty, 8).max().item()
        for times, might in ((3.1, False), (2.9, True)):
            best_sets = self.best_sets(heavy, halves, times * share)
            assert best_sets.might_one_example_carry() == might

    def test_without_races_all_examples_are_seen(self, heavy, monkeypatch):
        monkeypatch.setattr(MeasurementCache, "expand_at_empty", None)
        assert not self.best_sets(heavy, Portions.whole(heavy)).might_one_example_carry()

    @pytest.mark.parametrize("metric", ["kl", "probability-drop"])
    def test_without_curve_or_with_a_bound_no_pass_is_taken(
        self, model, halves, monkeypatch, metric
    ):
        monkeypatch.setattr(MeasurementCache, "expand_at_empty", None)
        engine = tiny.engine(model, tiny.pairs(16), metric=metric)
        assert not self.best_sets(engine, halves, 0.7).might_one_example_carry()

    @pytest.mark.parametrize("chosen", [None, False])
    def test_a_search_makes_them_unless_told_not_to(self, heavy, halves, monkeypatch, chosen):
        asked = []
        monkeypatch.setattr(Portions, "make", lambda *_, race=True, **__: halves)
        monkeypatch.setattr(BestSets, "does_one_example_carry", False)
        monkeypatch.setattr(
            BestSets, "start_from_examples", lambda self, sizes, passes: asked.append(passes)
        )
        search = LocalSearch(max_passes=60, start_from_examples=chosen)
        search.run(heavy, Goal.make(N, budgets=[8]), 0)
        assert (12 in asked) == (chosen is None)


def test_examples_carry_the_mean_where_one_makes_up_half_of_it(engine, monkeypatch):
    own_sets = own_sets_of(engine, [1, 2, 4, 6], 60)
    shares = torch.tensor([[0.9], [0.1], [0.3], [0.4]])
    monkeypatch.setattr(own_sets, "_own_shares", lambda: shares)
    # The two smaller sizes have no say.
    assert not own_sets.carry([1.0, 1.0])
    assert own_sets.carry([1.0, 0.7])
    assert own_sets.carry([0.5, 1.0])
    assert not own_sets.carry([1.0, -0.7])


@pytest.mark.parametrize("is_carried", [False, True])
def test_they_are_improved_where_one_example_carries_a_large_one(engine, monkeypatch, is_carried):
    """Before that is known only large sets are measured; rivals only after it."""
    sizes, done = (1, 2, 4, 6), []
    first = [tuple(range(size)) for size in sizes]
    later = [tuple(range(1, size + 1)) for size in sizes]
    rivals = [tuple(range(2, size + 2)) for size in sizes]

    class Fixed:
        made = first

        def __init__(self, *given):
            pass

        def walk(self):
            done.append("walk")

        def best(self):
            return self.made

        def carry(self, means):
            done.append(("carry", means))
            return is_carried

        def improve(self):
            done.append("improve")
            self.made = later

        def rivals(self, means):
            done.append(("rivals", means))
            return rivals

    def noted(self, sets):
        done.append(list(sets))
        measure(self, sets)

    measure = BestSets._measure_starts
    monkeypatch.setattr(BestSets, "_measure_starts", noted)
    monkeypatch.setattr("tracekit.search.local.best_sets.OwnSets", Fixed)
    best_sets = BestSets(MeasurementCache(engine, Limits()), 8)
    best_sets.measure([[0]], "start")
    best_sets.start_from_examples(sizes, 100)

    def means(sets):
        return pytest.approx(engine.set_effects(sets).mean(1).tolist(), rel=1e-5)

    assert done[:3] == ["walk", first[2:], ("carry", means(first[2:]))]
    if is_carried:
        assert done[3:] == ["improve", later, ("rivals", means(later)), rivals]
    else:
        assert done[3:] == [first]


class TestWithinASearch:
    """Which searches make such sets, and of which sizes, where they do not walk before."""

    @pytest.fixture(autouse=True)
    def without_walk(self, monkeypatch):
        monkeypatch.setattr(
            "tracekit.search.local.local_search.effects_tell_all", lambda target: False
        )

    def test_a_search_measures_them(self, model, monkeypatch):
        engine = tiny.engine(model, tiny.pairs(8, seed=1))
        asked = sizes_asked_for(monkeypatch)
        ten = Goal.make(N, budgets=list(range(1, 11)))
        LocalSearch(max_passes=200).run(engine, ten, 0)
        assert asked == [((1, 2, 3, 4, 5, 6, 8, 10), 50)]
        # All components are one set; there is nothing to choose.
        everything = Goal.make(N, budgets=list(range(1, N + 1)))
        LocalSearch(max_passes=480).run(engine, everything, 0)
        assert asked[1] == ((1, 2, 3, 4, 5, 7, 9, 11), 120)
        # Few passes, or where they are not wanted.
        LocalSearch(max_passes=100).run(engine, ten, 0)
        LocalSearch(max_passes=200, start_from_examples=False).run(engine, ten, 0)
        assert asked[2:] == [((), 0), ((), 0)]

    @pytest.mark.parametrize(
        ("metric", "objective", "expected"),
        [
            ("odds-ratio", None, True),
            ("logit-difference", None, False),
            ("kl", None, False),
            ("odds-ratio", TrimmedMean(), False),
            ("odds-ratio", LogOdds(), False),
        ],
    )
    def test_only_where_they_can_matter(self, model, monkeypatch, metric, objective, expected):
        """Where the metric is a curve, and the score of an example is its own."""
        engine = tiny.engine(model, tiny.pairs(8, seed=1), metric=metric)
        searched = engine if objective is None else target_of(engine, objective)
        made = []

        def walk(self):
            made.append(self)
            raise LimitReachedError("max_passes")

        monkeypatch.setattr(OwnSets, "walk", walk)
        LocalSearch(max_passes=200).run(searched, Goal.make(N, budgets=[4]), 0)
        assert bool(made) is expected

    def test_searches_of_few_sizes_make_them_too(self, model, monkeypatch):
        engine = tiny.engine(model, tiny.pairs(8, seed=1), kinds="mlp-neurons")
        asked = sizes_asked_for(monkeypatch)
        everything = Goal.make(engine.n_components, budget=1.0)
        LocalSearch(max_passes=120).run(engine, everything, 0)
        ((sizes, passes),) = asked
        assert (len(sizes), passes) == (9, 48)

    def test_many_components_have_them_given_many_examples(self, model, monkeypatch):
        engine = tiny.engine(model, tiny.pairs(8, seed=1))
        asked = sizes_asked_for(monkeypatch)
        monkeypatch.setattr(plan, "MANY", N)
        for least in (9, 8):
            monkeypatch.setattr(plan, "_EXAMPLES_OF_MANY", least)
            LocalSearch(max_passes=200).run(engine, Goal.make(N, budgets=[4]), 0)
        assert asked == [((), 0), ((1, 2, 3, 4), 10)]

    def test_not_where_the_slopes_of_all_examples_take_too_much_memory(self, model, monkeypatch):
        engine = tiny.engine(model, tiny.pairs(8, seed=1))
        best_sets = BestSets(MeasurementCache(engine, Limits()), 4)
        best_sets.measure([[i] for i in range(N)], "single components")
        for bound, is_made in ((8 * N - 1, False), (8 * N, True)):
            monkeypatch.setattr(single_examples, "_MOST_SLOPES", bound)
            best_sets.start_from_examples([2, 4], 60)
            assert (4 in best_sets.sizes) == is_made
        # Fewer examples have sets where masks are long.
        own_sets = [OwnSets(best_sets.measurements, ExampleCurves.of(engine.data), [2, 4], 60)]
        monkeypatch.setattr(single_examples, "_MOST_ENTRIES", 3 * N)
        own_sets.append(OwnSets(best_sets.measurements, ExampleCurves.of(engine.data), [2, 4], 60))
        assert [len(each.examples) for each in own_sets] == [8, 3]

    def test_they_are_measured_on_all_examples(self, model):
        """The example that a set was made for may not be among the first of a race."""
        engine = tiny.engine(model, tiny.pairs(120, seed=1))
        portions = Portions.make(engine, 0)
        measurements = MeasurementCache(engine, Limits(), portions=portions)
        best_sets = BestSets(measurements, 4)
        best_sets.measure([[i] for i in range(N)], "single components")
        assert any(measurements.is_dropped((i,)) for i in range(N))
        before = set(measurements._measured.effects)
        best_sets.start_from_examples([2, 4], 60)
        made = set(measurements._measured.effects) - before
        assert {len(members) for members in made} == {2, 4}
        assert not any(measurements.is_dropped(members) for members in made)

    def test_none_is_larger_than_what_reaches_the_target(self, model, monkeypatch):
        engine = tiny.engine(model, tiny.pairs(8, seed=1))
        best_sets = BestSets(MeasurementCache(engine, Limits()), 3)
        best_sets.measure([[i] for i in range(N)], "single components")
        best_sets.start_from_examples([1, 2, 3, 4, 6], 60)
        assert best_sets.sizes == [1, 2, 3]
        best_sets.start_from_examples([4, 6], 60)
        assert best_sets.sizes == [1, 2, 3]


def sizes_asked_for(monkeypatch):
    """Sizes and passes that searches make sets for single examples with, and stop there."""
    asked = []

    def stop_there(self, sizes, passes):
        asked.append((sizes, passes))
        raise LimitReachedError("max_passes")

    monkeypatch.setattr(BestSets, "start_from_examples", stop_there)
    return asked


def test_a_set_for_one_example_is_found_that_the_mean_does_not_point_to(engine, monkeypatch):
    """Log-odds of seven examples rise by nine components a little, of the eighth by three others,
    steeply, and only together."""
    n = engine.n_examples
    generator = torch.Generator().manual_seed(0)
    linear = 0.3 * torch.rand(n, N, generator=generator)
    linear[:, [2, 6, 9]] = -0.1
    linear[5] = -0.5
    linear[5, [2, 6, 9]] = 0.2
    base = engine.metric.linearization.to_linear(engine.clean)

    def quantity(masks, examples):
        together = masks[:, [2, 6, 9]].sum(1).sub(1).clamp(min=0)
        return base[examples] + (linear[examples] * masks).sum(1) + 3 * together * (examples == 5)

    def expand(masks, examples):
        with torch.enable_grad():
            leaf = masks.clone().requires_grad_(True)
            values = quantity(leaf, examples)
            return Expansion(values.detach(), torch.autograd.grad(values.sum(), leaf)[0])

    monkeypatch.setitem(vars(engine), "expand", expand)
    own_sets = own_sets_of(engine, [1, 2, 3], 100)
    own_sets.walk()
    own_sets.improve()
    assert (2, 6, 9) in own_sets.best()
    at_empty = expand(torch.zeros(n, N), torch.arange(n)).slopes.mean(0)
    assert not {2, 6, 9} & set(at_empty.topk(3).indices.tolist())


def test_the_best_of_all_sets_of_four_is_found(engine):
    """Of 495, in 165 passes."""
    sets = list(combinations(range(N), 4))
    best = engine.set_effects(sets).mean(1).max().item()
    search = LocalSearch(max_passes=165)
    (found,) = search.search(engine, Goal.make(N, budgets=[4]), 0)
    assert found.effects.mean().item() == pytest.approx(best, rel=1e-5)


def test_a_checkpoint_keeps_them(model, monkeypatch, tmp_path):
    """A search that was stopped while it made them takes the same way, and no gradient twice."""
    options = {"max_budget": 8, "statistics": False, "max_passes": 200, "objective": "mean"}

    def tracer():
        return tk.Tracer(model, tiny.pairs(6, seed=3), metric="odds-ratio")

    whole = tracer().pareto(**options)
    file, first = tmp_path / "front.ckpt", tracer()
    left, original = iter(range(6)), first.engine.expand

    def expand(masks, examples):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return original(masks, examples)

    monkeypatch.setitem(vars(first.engine), "expand", expand)
    with pytest.warns(tk.errors.SearchStoppedWarning):
        part = first.pareto(checkpoint=file, **options)
    second = tracer()
    _ = second.full_effect
    before = second.engine.cost
    resumed = second.pareto(checkpoint=file, **options)
    assert resumed.to_frame().equals(whole.to_frame())
    assert resumed[0].cost == whole[0].cost
    done = (second.engine.cost - before).forward_equivalents
    spent = part[0].cost.forward_equivalents
    assert spent + done == pytest.approx(whole[0].cost.forward_equivalents)


def test_few_examples_get_sets(engine, monkeypatch):
    measurements = MeasurementCache(engine, Limits())
    curves = ExampleCurves.of(engine.data)
    counts = []
    for most in (2, engine.n_examples):
        monkeypatch.setattr(single_examples, "_MOST_EXAMPLES", most)
        counts.append(len(OwnSets(measurements, curves, [2, 4], 200).examples))
    assert counts == [2, engine.n_examples]
