"""P values of tables in which rows differ widely."""

from __future__ import annotations

import pytest
import torch

from tracekit.results.significance import PValues, p_values


def test_rows_that_one_example_makes_up_hide_no_other_row():
    generator = torch.Generator().manual_seed(0)
    rows = 0.3 * torch.randn(30, 40, generator=generator)
    rows[0] += 0.3
    for row in range(1, 6):
        rows[row] = 0.01 * torch.randn(40, generator=generator)
        rows[row, row] = 20.0
    p = p_values(rows)
    assert p.family[0] < 0.01
    assert p.q[0] < 0.05
    assert (p.family[1:6] > 0.3).all()


@pytest.mark.parametrize("side", [1, -1])
def test_one_large_example_does_not_part_p_from_p_family(side):
    """Of three differences by one method with one large example, each row is judged by its tail."""
    ones = torch.linspace(1, 2.3, 11)
    rows = side * torch.stack(
        [torch.cat([torch.tensor([12.2]), ones]), torch.cat([torch.tensor([11.0]), ones - 0.3])]
    )
    third = torch.randn(1, 12, generator=torch.Generator().manual_seed(5)) + 0.2
    p = p_values(torch.cat([rows, third]))
    assert (p.row[:2] < 0.01).all()
    assert (p.family[:2] < 0.05).all()
    assert (p.family <= 10 * p.row).all()
    assert (p.family >= p.row).all()


def test_q_of_skewed_effects_of_few_examples_comes_with_a_caution():
    draw = torch.Generator().manual_seed(0)
    skewed = torch.randn(40, 20, generator=draw).exp()
    found = p_values(skewed)
    assert found.skewness == pytest.approx(1.6, abs=0.3)
    assert found.caution.startswith("q is not reliable here: the effects are skewed (median skew")
    zeros = torch.zeros(60, 20)
    assert p_values(torch.cat([skewed, zeros])).skewness == pytest.approx(found.skewness)
    normal, many = torch.randn(40, 20, generator=draw), torch.randn(40, 60, generator=draw).exp()
    for effects in (normal, many, zeros):
        assert p_values(effects).caution == ""
    clusters = torch.arange(60) // 2
    assert p_values(many, clusters=clusters).caution
    assert PValues.none(3).caution == ""


def test_q_is_the_false_discovery_rate_of_its_definition():
    """Of the k-th smallest p of m: the least p m / j over all j from k on."""
    rows = torch.randn(40, 15, generator=torch.Generator().manual_seed(1)).double()
    rows[:4] += 1
    found = p_values(rows)
    p, order = found.row.double().sort()
    scaled = p * 40 / torch.arange(1, 41)
    q = scaled.flip(0).cummin(0).values.flip(0).clamp(max=1)
    torch.testing.assert_close(found.q.double()[order], q, atol=1e-6, rtol=1e-5)
    assert (found.row <= found.q).all()
    assert (found.row <= found.family).all()


def test_a_table_of_one_row_has_one_p():
    rows = torch.randn(1, 9, generator=torch.Generator().manual_seed(2)) + 1
    found = p_values(rows)
    assert found.row.item() == found.q.item() <= found.family.item()


def test_effects_that_are_all_equal_or_few():
    equal, few = p_values(torch.ones(3, 12)), p_values(torch.ones(3, 4))
    assert (equal.q < 0.01).all()
    assert (few.row >= 0.1).all()
    assert (p_values(torch.zeros(3, 12)).q == 1).all()


def test_one_row_of_many_can_be_found():
    rows = torch.randn(300, 24, generator=torch.Generator().manual_seed(3))
    rows[7] += 3
    found = p_values(rows)
    assert found.significant().index(True) == 7
    assert sum(found.significant()) == 1
