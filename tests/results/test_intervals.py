"""Bootstrap intervals, with and without weights."""

from __future__ import annotations

import math
from operator import attrgetter

import pytest
import scipy.stats
import torch

import tracekit as tk
from tests import tiny
from tracekit._util.markup import interval_text
from tracekit.explore.exploration import Measurement
from tracekit.results import effect_interval, intervals
from tracekit.results.intervals import (
    ratio_interval,
    row_intervals,
    standard_error,
)


def weighted(count: int) -> torch.Tensor:
    weights = torch.tensor([5.0, 1.0] * (count // 2))
    return weights / weights.mean()


def test_a_constant_effect_has_an_interval_of_no_width():
    weights = weighted(50)
    assert effect_interval(weights, weights=weights) == pytest.approx((1, 1), abs=1e-6)
    assert effect_interval(torch.ones(50)) == pytest.approx((1, 1), abs=1e-6)


@pytest.mark.parametrize("with_weights", [False, True])
def test_coverage_of_normal_effects(with_weights):
    """400 draws of 50 examples: the true mean lies in a 95 % interval in about 95 % of them."""

    def draw(generator):
        return 1 + 0.3 * torch.randn(50, generator=generator)

    weights = weighted(50) if with_weights else None
    assert 0.92 <= coverage(draw, 1, weights) <= 0.98


def percentile_interval(values, weights=None, seed=0) -> tuple[float, float]:
    """What a studentised interval is compared with."""
    n = len(values)
    picks = torch.randint(n, (2000, n), generator=torch.Generator().manual_seed(seed))
    low, high = values[picks].mean(1).quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


def coverage(draw, truth, weights=None, draws: int = 250, interval=effect_interval) -> float:
    """How often a 95 % interval holds the true mean."""
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for seed in range(draws):
        effects = draw(generator)
        values = effects if weights is None else effects * weights
        low, high = interval(values, weights=weights, seed=seed)
        covered += low - 1e-6 <= truth <= high + 1e-6
    return covered / draws


@pytest.mark.parametrize(
    ("sigma", "n", "least"),
    [(0.5, 16, 0.92), (1.0, 16, 0.86), (1.5, 16, 0.83), (1.5, 160, 0.88), (2.0, 64, 0.82)],
)
def test_coverage_of_odds_ratios(sigma, n, least):
    """Log-normal effects; percentiles of resampled means cover less."""

    def draw(generator):
        return (0.5 + sigma * torch.randn(n, generator=generator)).exp() - 1

    truth = math.exp(0.5 + sigma**2 / 2) - 1
    studentised, percentiles = (
        coverage(draw, truth, interval=each) for each in (effect_interval, percentile_interval)
    )

    assert studentised >= least
    assert studentised - percentiles >= (0.02 if sigma < 1.5 else 0.04 if n > 64 else 0.08)


@pytest.mark.parametrize(("probability", "n"), [(0.5, 64), (0.8, 64), (0.95, 160)])
def test_coverage_of_effects_of_zero_or_one(probability, n):
    def draw(generator):
        return (torch.rand(n, generator=generator) < probability).float()

    assert 0.9 <= coverage(draw, probability) <= 0.99


def test_resamples_in_portions_are_the_same(monkeypatch):
    values = torch.randn(40, generator=torch.Generator().manual_seed(1)).exp()
    at_once = effect_interval(values)
    monkeypatch.setattr(intervals, "_AT_ONCE", 4000)
    assert effect_interval(values) == pytest.approx(at_once)


def test_where_all_but_one_example_are_alike_the_interval_is_finite():
    values = torch.ones(20)
    values[3] = 0
    low, high = effect_interval(values)
    assert 0.6 < low < 0.95 < high < 1.1


def test_the_standard_error_is_that_of_resampled_means():
    generator = torch.Generator().manual_seed(2)
    weights = weighted(60)
    values = (1 + torch.randn(60, generator=generator)) * weights
    picks = torch.randint(60, (20_000, 60), generator=generator)
    resampled = values[picks].sum(1) / weights[picks].sum(1)
    assert standard_error(values, weights) == pytest.approx(resampled.std().item(), rel=0.05)


def test_weights_go_with_results(model, tmp_path):
    rows = [{**row, "weight": 1 + 4 * (i % 2)} for i, row in enumerate(tiny.rows(8))]
    pairs = tk.PromptPairs.from_ids(rows)
    result = tk.Tracer(model, pairs[:6], held_out=pairs[6:]).run("top-k", budget=2)
    assert result.searched.weights.mean() == pytest.approx(1)
    loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
    assert torch.equal(loaded.searched.weights, result.searched.weights)
    assert torch.equal(loaded.held_out.weights, result.held_out.weights)
    assert loaded.spread == result.spread
    assert result.spread == effect_interval(result.per_example, weights=result.searched.weights)


@pytest.mark.parametrize(("confidence", "quantile"), [(0.95, 1.960), (0.5, 0.674)])
def test_the_width_is_that_of_the_confidence_asked_for(confidence, quantile):
    """Of a mean of many normal values: twice the quantile times the standard error."""
    values = torch.randn(400, generator=torch.Generator().manual_seed(1))
    low, high = effect_interval(values, weights=torch.ones(400), confidence=confidence)
    assert high - low == pytest.approx(2 * quantile * values.std().item() / 400**0.5, rel=0.1)


def test_three_examples():
    """Intervals of rows are those of each row, with the fewest examples too."""
    values = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.5, 4.0]])
    expected = torch.tensor([effect_interval(row) for row in values], dtype=torch.float64)
    assert (expected[:, 0] < expected[:, 1]).all()
    torch.testing.assert_close(row_intervals(values), expected)


def test_below_three_independent_examples_there_is_none(model):
    for few in (torch.tensor([0.3]), torch.tensor([1.0, 3.0])):
        assert all(map(math.isnan, effect_interval(few)))
        assert all(map(math.isnan, ratio_interval(few, few)))
    two_groups = torch.tensor([0, 0, 1, 1])
    assert all(map(math.isnan, effect_interval(torch.rand(4), clusters=two_groups)))
    assert interval_text(math.nan, math.nan) == "too few independent examples for an interval"
    tracer = tk.Tracer(model, tiny.pairs(6), held_out=tiny.pairs(8, seed=9)[6:])
    result = tracer.run("top-k", budget=2)
    assert result.held_out_effect is not None
    assert result.held_out_interval is None


class TestWhatAnEffectCanBe:
    def test_ends_lie_within_the_bounds(self):
        values = torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 0])
        assert effect_interval(values)[1] > 1
        low, high = effect_interval(values, bounds=tk.metrics.bounds_of("accuracy"))
        assert (0.2 < low < 0.6, high) == (True, 1.0)
        odds = torch.tensor([-0.9, -0.8, 5.0, -0.95, 300.0])
        assert row_intervals(odds[None])[0, 0] < -1
        assert row_intervals(odds[None], bounds=tk.metrics.bounds_of("odds-ratio"))[0, 0] == -1
        assert tk.metrics.bounds_of("somebody's own") == (-math.inf, math.inf, False)

    def test_equal_effects_of_zero_or_one_have_exact_ends(self):
        """The lower end of 12 of 12, of Clopper and Pearson."""
        bounds = tk.metrics.bounds_of("first-choice-change")
        lower = scipy.stats.binomtest(12, 12).proportion_ci(method="exact").low
        assert effect_interval(torch.ones(12), bounds=bounds) == pytest.approx((lower, 1))
        assert lower == pytest.approx(0.735, abs=1e-3)
        assert effect_interval(torch.zeros(12), bounds=bounds) == pytest.approx((0, 1 - lower))
        weights = weighted(12)
        low, high = effect_interval(weights, weights=weights, bounds=bounds)
        assert (low < lower, high) == (True, 1)
        # Effects that are no counts may be equal for a reason, as those of a head without any.
        assert effect_interval(torch.zeros(12), bounds=bounds._replace(counts=False)) == (0, 0)

    def test_bounds_of_interactions(self):
        bounds = tk.metrics.bounds_of("probability-drop").of_sum(1, 2)
        assert (bounds.low, bounds.high) == (-3, 3)
        bounds = tk.metrics.bounds_of("odds-ratio").of_sum(2, 1)
        assert (bounds.low, bounds.high) == (-math.inf, math.inf)
        bounds = tk.metrics.bounds_of("kl").of_sum(2, 0)
        assert (bounds.low, bounds.high) == (0, math.inf)


class TestRatios:
    @staticmethod
    def drawn(mean, n, generator):
        whole = mean + torch.randn(n, generator=generator)
        return 0.6 * whole + 0.3 * torch.randn(n, generator=generator), whole

    @pytest.mark.parametrize(("mean", "least"), [(0.2, 0.93), (1.0, 0.92), (3.0, 0.92)])
    def test_coverage_with_a_weak_whole_effect(self, mean, least):
        generator, covered, unbounded = torch.Generator().manual_seed(1), 0, 0
        for _ in range(200):
            low, high = ratio_interval(*self.drawn(mean, 20, generator))
            covered += low <= 0.6 <= high
            unbounded += math.isinf(low) and math.isinf(high)
        assert covered / 200 >= least
        assert (unbounded > 100) == (mean == 0.2)

    def test_of_equal_variances_it_is_that_of_fieller(self):
        """By his formula with normal quantiles; the bootstrap's are close to them."""
        part, whole = self.drawn(1.0, 400, torch.Generator().manual_seed(2))
        a, b = part.mean().item(), whole.mean().item()
        (aa, ab), (_, bb) = (1.96**2 / 400 * torch.cov(torch.stack([part, whole]))).tolist()
        root = ((a * b - ab) ** 2 - (a * a - aa) * (b * b - bb)) ** 0.5
        expected = [(a * b - ab + side * root) / (b * b - bb) for side in (-1, 1)]
        assert ratio_interval(part, whole) == pytest.approx(expected, abs=0.006)
        mirrored = [-end for end in reversed(expected)]
        assert ratio_interval(part, -whole) == pytest.approx(mirrored, abs=0.006)

    def test_the_ratio_of_a_whole_effect_to_itself_is_1(self):
        whole = torch.randn(12, generator=torch.Generator().manual_seed(3))
        assert ratio_interval(whole, whole) == (1, 1)
        other = whole.flip(0)
        assert ratio_interval(other, whole) == (-math.inf, math.inf)
        assert interval_text(*ratio_interval(other, whole)) == "unbounded"


class TestRepeatedExamples:
    """Pairs that repeat an example are no further evidence."""

    @pytest.mark.parametrize("weighted", [False, True])
    def test_every_one_repeated_leaves_intervals_as_they_are(self, weighted):
        generator = torch.Generator().manual_seed(3)
        effects = torch.randn(9, generator=generator)
        weights = torch.rand(9, generator=generator) + 0.5 if weighted else None
        repeated = None if weights is None else weights.repeat(5)
        clusters = torch.arange(9).repeat(5)
        single = effect_interval(effects, weights=weights)
        many = effect_interval(effects.repeat(5), weights=repeated, clusters=clusters)
        assert many == pytest.approx(single)
        narrow = effect_interval(effects.repeat(5), weights=repeated)
        assert narrow[1] - narrow[0] < 0.6 * (single[1] - single[0])
        rows = row_intervals(effects.repeat(5)[None], weights=repeated, clusters=clusters)
        assert rows[0].tolist() == pytest.approx(single)
        error = standard_error(effects.repeat(5), repeated, clusters)
        assert error == pytest.approx(standard_error(effects, weights))

    def test_one_repeated_counts_as_a_weight(self):
        effects, clusters = torch.tensor([1.0, 2.0, 4.0, 4.0]), torch.tensor([0, 1, 2, 2])
        low, high = effect_interval(effects, clusters=clusters)
        weighted = effect_interval(torch.tensor([1.0, 2.0, 8.0]), weights=torch.tensor([1.0, 1, 2]))
        assert (low, high) == pytest.approx(weighted)

    @pytest.mark.slow
    def test_of_a_trace(self, demo_model, tmp_path):
        """Held-out effects of pairs that each stand there several times, in other orders."""
        train, test = tk.load_dataset("demo-bias", demo_model)[:16].split(0.5)

        def times(pairs, n):
            return pairs.subset([number for number in range(len(pairs)) for _ in range(n)])

        def result(n):
            tracer = tk.Tracer(demo_model, times(train, n), held_out=times(test, n), layers=[1])
            return tracer.run("top-k", budget=2)

        once, often = result(1), result(4)
        assert often.held_out_interval == pytest.approx(once.held_out_interval, rel=1e-3)
        assert often.spread == pytest.approx(once.spread, rel=1e-3)
        assert once.searched.clusters is None
        loaded = tk.TraceResult.load(often.save(tmp_path))
        assert torch.equal(loaded.held_out.clusters, often.held_out.clusters)
        assert loaded.held_out_interval == often.held_out_interval

    @pytest.mark.slow
    def test_of_tables_grids_and_faithfulness(self, demo_model):
        pairs = tk.load_dataset("demo-bias", demo_model)[:8]
        twice = pairs.subset([*range(8), *range(8)])
        one, two = (tk.Tracer(demo_model, each, layers=[1]) for each in (pairs, twice))
        members = one.registry[0], one.registry[1]
        tables = [t.evaluate(members, metrics=["odds-ratio"]) for t in (one, two)]
        torch.testing.assert_close(
            *(torch.tensor(t.to_numpy()) for t in tables), rtol=1e-4, atol=1e-5
        )
        grids = [t.interactions() for t in (one, two)]
        for name in ("singles_interval", "interaction_interval", "tests.row", "tests.q"):
            ours, expected = (attrgetter(name)(grid) for grid in reversed(grids))
            torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5, msg=name)
        shares = [t.faithfulness(members) for t in (one, two)]
        for name in ("faithfulness_intervals", "completeness_intervals"):
            ours, expected = (torch.tensor(getattr(each, name)) for each in reversed(shares))
            torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5, msg=name)

    @pytest.mark.slow
    def test_of_explanations_and_side_effects(self, demo_model, tmp_path):
        pairs = tk.load_dataset("demo-bias", demo_model)[:12]
        twice = pairs.subset([*range(12), *range(12)])
        one, two = (tk.Tracer(demo_model, each, layers=[1]) for each in (pairs, twice))
        members = one.registry[0], one.registry[1], one.registry[3]
        explained = [t.explain(members) for t in (one, two)]
        columns = ["alone_low", "alone_high", "averaged_low", "averaged_high", "p"]
        ours, expected = (torch.tensor(e.interactions[columns].to_numpy()) for e in explained)
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)
        loaded = tk.measure.Explanation.load(explained[1].save(tmp_path))
        assert torch.equal(loaded.clusters, explained[1].clusters)
        sides = [t.side_effects(members, {"other": t.pairs}, draws=3) for t in (one, two)]
        columns = ["effect_low", "effect_high", "strength_low", "strength_high"]
        ours, expected = (torch.tensor(s.table[columns].to_numpy()) for s in sides)
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)
        low, high = sides[1].selectivity_interval("other")
        assert (low, high) == pytest.approx(sides[0].selectivity_interval("other"), abs=1e-4)
        loaded = tk.measure.SideEffects.load(sides[1].save(tmp_path))
        assert torch.equal(loaded.target.clusters, sides[1].target.clusters)

    @pytest.mark.slow
    def test_of_strongest_pairs(self, demo_model):
        pairs = tk.load_dataset("demo-bias", demo_model)[:24]
        tracer = tk.Tracer(demo_model, pairs.subset([*range(24)] * 2), layers=[1])
        found = tracer.strongest_pairs(count=2)
        assert found.intervals is not None
        few = tk.Tracer(demo_model, pairs.subset([0, 1, 2] * 8), layers=[1])
        assert few.strongest_pairs(count=2).intervals is None

    def test_of_what_is_measured_by_hand(self):
        effects, clusters = torch.tensor([1.0, 2.0, 4.0]), torch.arange(3).repeat(4)
        once, often = (
            Measurement((0,), effects),
            Measurement((0,), effects.repeat(4), clusters=clusters),
        )
        assert often.spread == pytest.approx(once.spread)
