"""Costs: what is counted, and what is left of one count after an earlier one."""

from __future__ import annotations

import tracekit as tk


def test_passes_stay_exact_after_earlier_work():
    """An engine counts examples; a run's cost is the difference of two counts over all of them."""
    for n_examples in (3, 7, 11, 12, 13, 49):
        for earlier in range(500):
            before = tk.engine.Cost(backward=earlier / n_examples)
            after = tk.engine.Cost(backward=(earlier + 41 * n_examples + 1) / n_examples)
            assert (after - before).backward == (41 * n_examples + 1) / n_examples
            assert (before + (after - before)).backward == after.backward
