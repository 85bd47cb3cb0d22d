"""P values of tables in which rows differ widely."""

from __future__ import annotations

import torch

from tracekit.results.significance import p_values


def test_rows_that_one_example_makes_up_hide_no_other_row():
    generator = torch.Generator().manual_seed(0)
    rows = 0.3 * torch.randn(30, 40, generator=generator)
    rows[0] += 0.3
    for row in range(1, 6):
        rows[row] = 0.01 * torch.randn(40, generator=generator)
        rows[row, row] = 20.0
    p = p_values(rows)
    assert p[0] < 0.01
    assert (p[1:6] > 0.3).all()
