from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracekit.components import masks
from tracekit.errors import ConfigError, MaskError
from tracekit.search.learned import pgbct as schedules


def test_penalties():
    mask = torch.tensor([0.0, 0.5, 1.0, 0.25])
    assert masks.l1(mask).item() == 1.75
    assert masks.binary_violation(mask).item() == pytest.approx(0.25 + 0.1875)
    assert masks.binary_violation(mask.round()).item() == 0


def test_threshold_is_strict_unless_asked_otherwise():
    mask = torch.tensor([0.4, 0.5, 0.6])
    assert masks.truncate(mask).tolist() == [False, False, True]
    assert masks.truncate(mask, inclusive=True).tolist() == [False, True, True]


def test_ranking_breaks_ties_by_the_second_key_then_by_index():
    scores = torch.tensor([1.0, 0.5, 1.0, 1.0])
    assert masks.ranking(scores) == [0, 2, 3, 1]
    assert masks.ranking(scores, torch.tensor([0.0, 9.0, 2.0, 2.0])) == [2, 3, 0, 1]


@given(st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3))
def test_masks_within_range_pass(values):
    assert masks.check(values, 3).tolist() == pytest.approx(values)


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 4), ()])
def test_wrong_shape(shape):
    with pytest.raises(MaskError, match="one entry for each of the 3 components"):
        masks.check(torch.zeros(shape), 3)


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf")])
def test_out_of_range(value):
    with pytest.raises(MaskError, match=r"at \[1\]. Entries must lie in \[0, 1\]"):
        masks.check([0, value, 1], 3)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1]),
        ("linear", [1, 2, 3]),
        (schedules.Exponential(growth=2), [1, 2, 4]),
        (schedules.Polynomial(power=2), [1, 4, 9]),
        (lambda epoch: 0.5, [0.5, 0.5, 0.5]),
    ],
)
def test_schedules(schedule, expected):
    resolved = schedules.resolve_schedule(schedule)
    assert [resolved(epoch) for epoch in range(3)] == expected


def test_unknown_schedule():
    with pytest.raises(ConfigError, match="Unknown schedule 'cosine'. Use one of constant, linear"):
        schedules.resolve_schedule("cosine")
    with pytest.raises(ConfigError, match="The option growth is 0. Input should be greater than 0"):
        schedules.Exponential(growth=0)
