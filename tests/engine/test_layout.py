"""The layout of a data set: rows, branches, sources, positions."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tracekit.engine.layout import Layout
from tracekit.errors import PairsError

PROMPT = {"prompt_ids": [1, 2, 3], "counterfactual_ids": [4, 2, 3]}


def layout(rows, positions="prompt", packed=False):
    return Layout.build(tk.PromptPairs.from_ids(rows), positions, packed=packed)


def batch(built, examples):
    return built.make_batch(torch.tensor(examples))


@pytest.mark.parametrize("packed", [False, True])
def test_continuations_of_one_token_share_a_row(packed):
    built = layout([{**PROMPT, "x_ids": [5], "y_ids": [6]}], packed=packed)
    assert built.sequences.tokens.tolist() == [[1, 2, 3]]
    one = batch(built, [0])
    assert (one.readout_positions[0].tolist(), one.readout_positions[1].tolist()) == ([0], [2])
    assert one.scored_token.tolist() == [5, 6]
    assert bool(one.sequences.model_inputs(torch.float32)) == packed


def test_the_last_token_of_a_continuation_is_not_read():
    built = layout([{**PROMPT, "x_ids": [5, 6, 7], "y_ids": [8]}])
    assert built.sequences.tokens.tolist() == [[1, 2, 3, 5, 6], [1, 2, 3, 0, 0]]
    assert built.lengths.tolist() == [5, 3]


def test_x_and_y_are_branches_of_one_row():
    built = layout([{**PROMPT, "x_ids": [5, 6, 7], "y_ids": [8, 9]}], packed=True)
    assert built.sequences.tokens.tolist() == [[1, 2, 3, 5, 6, 8]]
    assert built.sequences.branches.tolist() == [[0, 0, 0, 1, 1, 2]]
    assert built.sequences.position_ids.tolist() == [[0, 1, 2, 3, 4, 3]]
    one = batch(built, [0])
    # Predicted by: the prompt's end, the first and the second token of x, and that of y.
    assert one.readout_positions[1].tolist() == [2, 3, 4, 5]
    assert one.readout_positions[1][one.scored_readout].tolist() == [2, 3, 4, 2, 5]
    assert one.scored_token.tolist() == [5, 6, 7, 8, 9]
    inputs = one.sequences.model_inputs(torch.float32)
    seen = inputs["attention_mask"][0, 0] == 0
    assert seen.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 1],
    ]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 3]]


def test_continuations_that_read_the_same_share_a_branch():
    built = layout([{**PROMPT, "x_ids": [5, 6, 7], "y_ids": [5, 6, 8]}], packed=True)
    assert built.sequences.tokens.tolist() == [[1, 2, 3, 5, 6]]
    one = batch(built, [0])
    assert one.scored_readout.tolist() == [0, 1, 2, 0, 1, 2]
    assert not one.sequences.has_branches


def test_equal_counterfactual_prompts_are_run_once():
    rows = [{**PROMPT, "x_ids": [5]}, {**PROMPT, "prompt_ids": [9, 2, 3], "x_ids": [5]}]
    assert layout(rows).sources.tokens.tolist() == [[4, 2, 3]]
    assert layout(rows).row_sources.tolist() == [0, 0]


def test_equal_prompts_with_other_noise_are_run_apart():
    noises = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(0))
    rows = [{"prompt_ids": [1, 2], "x_ids": [3], "noise": noise} for noise in noises]
    built = layout(rows)
    assert len(built.sources) == len(built.sequences) == 2
    assert torch.equal(built.counterfactuals[1].added_to_embeddings(), rows[1]["noise"])


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


@pytest.mark.parametrize(
    ("packed", "tokens", "sources"),
    [(False, [[4, 2, 3, 5], [4, 2, 3, 7]], [0, 1]), (True, [[4, 2, 3, 5, 7]], [0])],
)
def test_the_scope_all_continues_the_counterfactual_too(packed, tokens, sources):
    built = layout([{**PROMPT, "x_ids": [5, 6], "y_ids": [7, 8]}], "all", packed)
    assert built.sources.tokens.tolist() == tokens
    assert built.row_sources.tolist() == sources


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ("first", "The positions are 'first'.*prompt, last, all"),
        ([3], r"\[3\].*outside the prompt of example 0, .*3 tokens.*-3 to 2"),
        ([], "No position was given for the prompt of example 0"),
    ],
)
def test_bad_positions(positions, text, unchecked):
    with pytest.raises(PairsError, match=text):
        layout([{**PROMPT, "x_ids": [5]}], positions)


def test_a_filled_batch_stays_on_its_side_of_a_long_rope_limit():
    rows = [
        {"prompt_ids": ids, "counterfactual_ids": ids, "x_ids": [5], "y_ids": [6]}
        for ids in (list(range(n)) for n in (4, 5, 6, 7, 13))
    ]
    built = Layout.build(tk.PromptPairs.from_ids(rows), long_rope_limit=6)

    def widths(numbers):
        for filled in (False, True):
            one = built.make_batch(torch.tensor(numbers), filled=filled)
            yield tuple(one.sequences.tokens.shape)

    # Of the short rows the longest has 6 tokens; the others are filled up to multiples of 8.
    assert list(widths([0, 1])) == [(2, 5), (4, 6)]
    assert list(widths([3])) == [(1, 7), (2, 8)]
    assert list(widths([4])) == [(1, 13), (2, 13)]
