"""Data sets under a tokenizer that writes digits one by one."""

from __future__ import annotations

import pytest

import tracekit as tk

pytestmark = pytest.mark.real


def test_greater_than_asks_for_the_tens_digit(real_model):
    pairs = tk.load_dataset("greater-than", real_model, n=30)
    for pair in pairs:
        words = real_model.tokenizer.decode(list(pair.prompt_ids)).split()
        year, century = next(word for word in words if len(word) == 4 and word.isdigit()), words[-1]
        assert year[:2] == century
        right, wrong = (
            sorted(real_model.tokenizer.decode([token]) for token in ids)
            for ids in (pair.x_set_ids, pair.y_set_ids)
        )
        assert right == [str(digit) for digit in range(int(year[2]) + 1, 10)]
        assert wrong == [str(digit) for digit in range(int(year[2]))]
        other = real_model.tokenizer.decode(list(pair.counterfactual.ids))
        assert f"{century}01 to" in other
