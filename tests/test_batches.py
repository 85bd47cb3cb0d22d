from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.batches import Layout
from tracekit.errors import PositionError

PROMPT = {"prompt_ids": [1, 2, 3], "counterfactual_ids": [4, 2, 3]}


def layout(rows, positions="prompt"):
    return Layout.build(tk.PromptPairs.from_ids(rows), positions, device="cpu")


def test_continuations_of_one_token_share_a_row():
    built = layout([{**PROMPT, "x_ids": [5], "y_ids": [6]}])
    assert built.tokens.tolist() == [[1, 2, 3]]
    batch = built.batch(torch.tensor([0]))
    assert (batch.place[0].tolist(), batch.place[1].tolist()) == ([0], [2])
    assert batch.scored_token.tolist() == [5, 6]


def test_the_last_token_of_a_continuation_is_not_read():
    built = layout([{**PROMPT, "x_ids": [5, 6, 7], "y_ids": [8]}])
    assert built.tokens.tolist() == [[1, 2, 3, 5, 6], [1, 2, 3, 0, 0]]
    assert built.lengths.tolist() == [5, 3]


def test_equal_counterfactual_prompts_are_run_once():
    rows = [{**PROMPT, "x_ids": [5]}, {**PROMPT, "prompt_ids": [9, 2, 3], "x_ids": [5]}]
    assert layout(rows).source_tokens.tolist() == [[4, 2, 3]]
    assert layout(rows).sources.tolist() == [0, 0]


def test_equal_prompts_with_other_noise_are_not():
    rows = [{"prompt_ids": [1, 2], "x_ids": [3], "noise": torch.randn(2, 4)} for _ in range(2)]
    built = layout(rows)
    assert len(built.source_tokens) == len(built.tokens) == 2
    assert torch.equal(built.source_noise[1], rows[1]["noise"])


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ("prompt", [1, 1, 1, 0, 0]),
        ("last", [0, 0, 1, 0, 0]),
        ("all", [1, 1, 1, 1, 1]),
        ([0, -1], [1, 0, 1, 0, 0]),
    ],
)
def test_position_scopes(positions, expected):
    built = layout([{**PROMPT, "x_ids": [5, 6, 7]}], positions)
    assert built.positions.int().tolist() == [expected]


def test_the_scope_all_continues_the_counterfactual_too():
    built = layout([{**PROMPT, "x_ids": [5, 6], "y_ids": [7, 8]}], "all")
    assert built.source_tokens.tolist() == [[4, 2, 3, 5], [4, 2, 3, 7]]
    assert built.sources.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ("first", "Unknown positions 'first'. Use one of prompt, last, all"),
        (
            [3],
            "[3] lie outside the prompt of example 0, which has 3 tokens. Use -3 to 2.",
        ),
        ([], "No position was given for the prompt of example 0"),
    ],
)
def test_bad_positions(positions, text, unchecked):
    with pytest.raises(PositionError) as caught:
        layout([{**PROMPT, "x_ids": [5]}], positions)
    assert text in str(caught.value)


def test_batches_hold_every_example_once_and_read_it_where_it_is():
    built = Layout.build(tiny.pairs(11), "prompt", device="cpu")
    seen = torch.cat([batch.examples for batch in built.batches(4)])
    assert sorted(seen.tolist()) == list(range(11))
    for batch in built.batches(4):
        # Logits that name their own row and position show whether each score reads its place.
        logits = torch.randn(len(batch.place[0]), tiny.VOCABULARY)
        twice = batch.repeat(2).read(torch.cat([logits, logits]), "geometric")
        once = batch.read(logits, "geometric")
        assert torch.equal(twice.x, torch.cat([once.x, once.x]))
        assert torch.equal(twice.y_chosen, torch.cat([once.y_chosen, once.y_chosen]))
