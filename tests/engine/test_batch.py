"""One batch and its read-out."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.layout import Layout
from tracekit.metrics import Reading


@pytest.mark.parametrize("packed", [False, True])
def test_batches_hold_every_example_once_and_read_it_where_it_is(packed):
    built = Layout.build(tiny.pairs(11), "prompt", packed=packed)
    cpu = torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    batches = list(built.make_batches(4, device=cpu))
    seen = torch.cat([part.examples for part in batches])
    assert sorted(seen.tolist()) == list(range(11))
    assert max(len(part.examples) for part in batches) <= 4
    for part in batches:
        # Logits that name their own row and position show whether each score reads its place.
        n_readouts = len(part.readout_positions[0])
        logits = torch.randn(n_readouts, tiny.VOCABULARY, generator=generator)
        everything = get_args(Reading)
        twice = part.repeat(2).read_log_probs(torch.cat([logits, logits]), "geometric", everything)
        once = part.read_log_probs(logits, "geometric", everything)
        for name, value in vars(once).items():
            assert torch.equal(getattr(twice, name), torch.cat([value, value]))
        assert torch.equal(twice.x, torch.cat([once.x, once.x]))
        assert torch.equal(twice.y_is_argmax, torch.cat([once.y_is_argmax, once.y_is_argmax]))


def test_a_continuation_is_the_first_choice_only_if_all_its_tokens_are():
    """Against the plain definition: the argmax at every position that predicts a token."""
    rows = [
        {"prompt_ids": [1, 2], "counterfactual_ids": [3, 2], "x_ids": x, "y_ids": [7]}
        for x in ([5, 6], [5, 9], [8, 6], [8, 9])
    ]
    built = Layout.build(tk.PromptPairs.from_ids(rows), "prompt")
    batch = built.make_batch(torch.arange(4))
    choice = torch.zeros(batch.sequences.tokens.shape, dtype=torch.long)
    # After the prompt the model chooses 5, after 5 or 8 it chooses 6.
    choice[:, 1], choice[:, 2] = 5, 6
    logits = torch.nn.functional.one_hot(choice, 61).float()
    row, pos = batch.readout_positions
    scores = batch.read_log_probs(logits[row, pos], "geometric", ["argmax"])
    assert scores.x_is_argmax.tolist() == [True, False, False, False]
    assert scores.y_is_argmax.tolist() == [False] * 4
