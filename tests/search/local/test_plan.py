"""The plan of a local search: passes and sizes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.search.local.plan import (
    SearchPlan,
    WalkPlan,
    default_passes,
    log_spaced_sizes,
    may_start_from_examples,
)


@settings(max_examples=60, deadline=None)
@given(last=st.integers(1, 40_000), count=st.integers(2, 90))
def test_sizes_are_spread_from_one_to_the_last(last, count):
    sizes = log_spaced_sizes(1, last, count)
    assert (sizes[0], sizes[-1]) == (1, last)
    assert all(a < b for a, b in pairwise(sizes))
    assert len(sizes) <= max(count, 2)
    if last <= count:
        assert sizes == tuple(range(1, last + 1))


def test_the_number_of_passes_is_capped():
    assert default_passes(512, 512) == 512
    assert default_passes(384, 150) == 384
    assert default_passes(36_864, 36_864) == default_passes(300_000, 5) == 800
    assert default_passes(64, 25) == int(0.4 * sum(64 - size for size in range(25)))
    assert default_passes(144, 144) == 600
    # Small questions: 450, or 1.4 of what greedy takes if that is less; every component once in any
    # case.
    assert default_passes(64, 6) == default_passes(48, 19) == 450
    assert default_passes(32, 10) == int(1.4 * sum(32 - size for size in range(10)))
    assert default_passes(32, 4) == int(1.4 * (32 + 31 + 30 + 29))
    assert default_passes(64, 1) == 89
    assert default_passes(144, 40) == 600
    large = SearchPlan.make(36_864, 36_864, (5, 921), 800)
    assert {5, 921} <= set(large.sizes)
    assert (large.dense, large.soft_steps) == (False, 100)
    assert SearchPlan.make(32, 12, (3, 12), 128).sizes == tuple(range(1, 13))


def test_the_first_sweep_fits_into_the_passes():
    for n_components, last, passes in ((144, 57, 600), (144, 57, 330), (200, 80, 500)):
        for from_examples in (True, False):
            plan = SearchPlan.make(n_components, last, (last,), passes, from_examples=from_examples)
            assert plan.dense
            assert (plan.example_passes > 0) == from_examples
            # At each size: three additions and an exchange, and the gradient, there and back.
            assert plan.additions == 3
            assert plan.singles + plan.example_passes + 6 * len(plan.sizes) <= passes + 6


def test_a_first_sweep_over_few_sizes_fits_into_the_passes():
    shapes = ((144, 57, 140), (144, 144, 300), (512, 204, 512), (9216, 9216, 800))
    for n_components, last, passes in shapes:
        for from_examples in (True, False):
            plan = SearchPlan.make(n_components, last, (), passes, from_examples=from_examples)
            assert (plan.dense, plan.additions, plan.swaps) == (False, 2, 0)
            rankings = 4 if plan.soft_steps else 2
            planned = plan.singles + plan.example_passes + 2 * plan.soft_steps
            planned += rankings * len(plan.prefix_sizes) + 4 * len(plan.sizes)
            assert 0.7 * passes <= planned <= passes
            assert len(plan.sizes) > len(plan.prefix_sizes)


def test_soft_top_k_ranks_many_components_only():
    assert SearchPlan.make(144, 57, (), 140).soft_steps == 0
    assert SearchPlan.make(383, 200, (), 200).soft_steps == 0
    assert SearchPlan.make(384, 200, (), 200).soft_steps == 25
    # Where rankings are all there is, they are learned.
    assert SearchPlan.make(144, 57, (), 140, every_size=False).soft_steps == 17


def test_sets_for_single_examples_are_part_of_short_searches_too():
    plan = SearchPlan.make(144, 57, (), 140)
    assert not plan.dense
    assert plan.example_passes == pytest.approx(0.4 * 140)
    assert len(plan.example_sizes) == 8
    # They are a smaller part where components are many.
    assert SearchPlan.make(512, 512, (), 512).example_passes == pytest.approx(0.05 * 512)
    for n_components, passes, from_examples in (
        (144, 119, True),
        (144, 140, False),
        (512, 119, True),
    ):
        plan = SearchPlan.make(
            n_components, n_components // 3, (), passes, from_examples=from_examples
        )
        assert (plan.example_passes, plan.example_sizes) == (0, ())


@pytest.mark.parametrize(
    ("n_components", "last", "count"),
    [(144, 57, 8), (300, 255, 8), (1023, 1023, 10), (9216, 9216, 14)],
)
def test_sizes_of_sets_for_single_examples_about_double(n_components, last, count):
    plans = [
        SearchPlan.make(n_components, last, (), 600),
        WalkPlan.make(n_components, last, (), 600),
    ]
    for plan in plans:
        sizes = plan.example_sizes
        assert len(sizes) == count
        assert (sizes[0], sizes[-1]) == (1, min(last, n_components - 1))
        assert all(after <= 2.5 * before for before, after in pairwise(sizes))


def test_an_eighth_of_the_passes_may_go_greedys_way():
    walk = WalkPlan.make(32, 12, (), 450)
    assert walk.greedy_passes == pytest.approx(450 / 8)


@pytest.mark.parametrize(
    ("n_components", "last", "goes"),
    [(32, 12, True), (64, 14, True), (64, 15, False), (144, 18, True), (144, 19, False)],
)
def test_greedys_way_is_taken_where_it_reaches_the_largest_size(n_components, last, goes):
    walk = WalkPlan.make(n_components, last, (), default_passes(n_components, last))
    assert walk.goes_like_greedy(last) == goes
    # A target that smaller sets reach leaves a shorter way.
    assert walk.goes_like_greedy(10)


def test_many_components_take_greedys_way_until_its_passes_are_spent():
    assert not WalkPlan.make(383, 115, (), 450).goes_like_greedy(115)
    walk = WalkPlan.make(384, 115, (), 450)
    assert walk.goes_like_greedy(115)
    assert walk.greedy_passes < 4 * 115


def test_many_components_start_from_examples_where_one_is_a_small_part_of_a_pass():
    assert may_start_from_examples(383, 1)
    assert not may_start_from_examples(384, 255)
    assert may_start_from_examples(384, 256)


def test_more_additions_are_tried_where_there_are_passes_for_them():
    plan = SearchPlan.make(32, 12, (), default_passes(32, 12))
    assert plan.dense
    assert plan.additions == 8
    assert plan.singles + plan.example_passes + (8 + 3) * len(plan.sizes) <= plan.passes
    assert SearchPlan.make(32, 12, (), 250).additions == 3
    # Many passes for few sizes, of which most are not visited: there, sets grow by several at once.
    assert SearchPlan.make(512, 512, (), 512).additions == 2
