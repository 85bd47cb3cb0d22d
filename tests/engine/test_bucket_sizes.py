"""How rows are grouped into passes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tracekit.engine.batch import bucket_sizes


def test_rows_of_similar_length_are_run_together_where_it_pays():
    assert bucket_sizes([3] * 4 + [30] * 4, 64, overhead=64) == [4, 4]
    assert bucket_sizes([3] * 4 + [30] * 4, 64, overhead=200) == [8]
    assert bucket_sizes([5] * 9, 4, overhead=64) == [3, 3, 3]


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=14).map(sorted),
    st.integers(1, 6),
    st.integers(0, 40),
)
def test_no_other_cuts_between_lengths_cost_less(lengths, batch_size, charge):
    def cost(sizes):
        ends = torch.tensor(sizes).cumsum(0).tolist()
        return sum(size * lengths[end - 1] + charge for size, end in zip(sizes, ends, strict=True))

    sizes = bucket_sizes(lengths, batch_size, charge)
    assert sum(sizes) == len(lengths)
    assert max(sizes) <= batch_size
    if len(lengths) <= batch_size:
        assert cost(sizes) <= cost([len(lengths)])
        changes = [i for i in range(1, len(lengths)) if lengths[i] > lengths[i - 1]]
        for cut in changes:
            assert cost(sizes) <= cost([cut, len(lengths) - cut])
