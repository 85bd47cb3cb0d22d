from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    ConfigError,
    EmptyContinuationError,
    LengthMismatchError,
    PairsError,
    UnsupportedModelError,
)

ROW = {"prompt_ids": [1, 2], "counterfactual_ids": [1, 3], "x_ids": [4], "y_ids": [5, 6]}


class Words:
    """A tokenizer of one token per word."""

    bos_token_id = 0

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [len(word) for word in text.split()]


def test_from_text_encodes_each_part_by_itself():
    row = {"prompt": "a bb", "counterfactual": "a ccc", "x": " d", "y": " ee f"}
    pair = tk.PromptPairs.from_text([row], Words())[0]
    assert (pair.prompt_ids, pair.counterfactual.ids) == ((1, 2), (1, 3))
    assert (pair.x_ids, pair.y_ids) == ((1,), (2, 1))
    assert pair.describe() == "'a bb'"
    with_bos = tk.PromptPairs.from_text([row], Words(), prepend_bos=True)[0]
    assert (with_bos.prompt_ids, with_bos.x_ids) == ((0, 1, 2), (1,))
    assert with_bos.counterfactual.ids == (0, 1, 3)


def test_mismatched_lengths_are_listed_or_skipped():
    rows = [ROW, {**ROW, "counterfactual_ids": [1, 2, 3]}]
    with pytest.raises(LengthMismatchError) as caught:
        tk.PromptPairs.from_ids(rows)
    assert str(caught.value) == (
        "1 of 2 counterfactuals differ in length from their prompts (example 1: 2 tokens in "
        "[1 2], 3 in its counterfactual). Align them token by token, or drop them with "
        'on_mismatch="skip".'
    )
    kept = tk.PromptPairs.from_ids(rows, on_mismatch="skip")
    assert len(kept) == 1
    assert kept.skipped == ("example 1: 2 tokens in [1 2], 3 in its counterfactual",)
    with pytest.raises(PairsError, match="There are no prompt pairs. All 1 were skipped."):
        tk.PromptPairs.from_ids(rows[1:], on_mismatch="skip")


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"x_ids": []}, EmptyContinuationError, "The x of example 0 encodes to no token."),
        ({"y_ids": []}, EmptyContinuationError, "The y of example 0 encodes to no token."),
        ({"prompt_ids": []}, EmptyContinuationError, "The prompt of example 0 encodes"),
        (
            {"counterfactual_ids": None},
            PairsError,
            "Example 0 has no counterfactual. Give it exactly one of counterfactual_ids, noise.",
        ),
        (
            {"noise": torch.zeros(2, 3)},
            PairsError,
            "Example 0 has several counterfactuals. Give it exactly one of counterfactual_ids, no",
        ),
        (
            {"counterfactual_ids": None, "noise": torch.zeros(2)},
            PairsError,
            "has shape (2,). It needs two axes: prompt position and d_model.",
        ),
    ],
)
def test_bad_rows(change, error, text):
    with pytest.raises(error) as caught:
        tk.PromptPairs.from_ids([{**ROW, **change}])
    assert text in str(caught.value)


def test_missing_keys_and_bad_options(unchecked):
    with pytest.raises(PairsError, match="Example 0 lacks x_ids. Give the keys"):
        tk.PromptPairs.from_ids([{"prompt_ids": [1], "counterfactual_ids": [1]}])
    with pytest.raises(PairsError, match="Example 0 lacks x. Give the keys"):
        tk.PromptPairs.from_text([{"prompt": "a"}], Words())
    with pytest.raises(ConfigError, match="on_mismatch is 'drop'. Use 'error' or 'skip'."):
        tk.PromptPairs.from_ids([ROW], on_mismatch="drop")
    row = {"prompt": "a", "counterfactual": "b", "x": "c", "y": " "}
    with pytest.raises(EmptyContinuationError, match=r"The y of example 0 \(' '\) encodes to no"):
        tk.PromptPairs.from_text([row], Words())


def test_noise_is_fixed_by_its_seed(model):
    rows = [{"prompt": "a bb", "x": "c"}, {"prompt": "a", "x": "c"}]

    def draw(seed):
        noise = tk.GaussianNoise(std=0.5, seed=seed)
        tokenizer_and_width = type("M", (), {"tokenizer": Words(), "cfg": model.cfg})()
        return tk.PromptPairs.from_text(rows, tokenizer_and_width, noise=noise)

    assert draw(1)[0].counterfactual.noise.shape == (2, tiny.D_MODEL)
    assert draw(1).fingerprint == draw(1).fingerprint != draw(2).fingerprint
    many = tk.GaussianNoise(std=0.5).draw([1000], 100)[0]
    assert many.std().item() == pytest.approx(0.5, rel=0.02)
    with pytest.raises(ConfigError, match="The noise has std 0. It must be positive."):
        tk.GaussianNoise(std=0)
    with pytest.raises(UnsupportedModelError, match="Noise needs the width"):
        tk.PromptPairs.from_text(rows, Words(), noise=tk.GaussianNoise(std=1))


def test_a_model_without_tokenizer_cannot_encode(model):
    assert model.tokenizer is None
    with pytest.raises(UnsupportedModelError, match="The model has no tokenizer"):
        tk.PromptPairs.from_text([{"prompt": "a", "counterfactual": "b", "x": "c"}], model)


def test_split_is_disjoint_complete_and_seeded():
    pairs = tiny.pairs(10)
    first, second = pairs.split(0.7, seed=3)
    assert (len(first), len(second)) == (7, 3)
    both = {id(pair) for pair in first} | {id(pair) for pair in second}
    assert both == {id(pair) for pair in pairs}
    assert pairs.split(0.7, seed=3)[0].fingerprint == first.fingerprint
    assert pairs.split(0.7, seed=4)[0].fingerprint != first.fingerprint
    with pytest.raises(ConfigError, match="leaves one part of the 10 pairs empty"):
        pairs.split(1.0)
    assert len(pairs[:3]) == 3


class SpaceBefore:
    """Encodes as the tokenizers of the first Llamas do: with a space put before every text."""

    words: dict[str, int]

    def __init__(self):
        self.words = {}

    def encode(self, text, add_special_tokens):
        pieces = f" {text}".replace(" ", "\0_").split("\0")[1:]
        return [self.words.setdefault(piece, len(self.words)) for piece in pieces]


def test_continuations_behind_a_tokenizer_that_adds_a_space():
    tokenizer = SpaceBefore()
    row = {"prompt": "the nurse", "counterfactual": "the man", "x": " she left", "y": " he"}
    (pair,) = tk.PromptPairs.from_text([row], tokenizer)
    whole = tokenizer.encode("the nurse she left", add_special_tokens=False)
    assert pair.prompt_ids + pair.x_ids == tuple(whole)
    assert len(tokenizer.encode(" she left", add_special_tokens=False)) == 3  # one too many
    with pytest.raises(
        PairsError, match="joins the beginning of 's hat' to the end of 'the nurse'. Cut prompt and"
    ):
        tk.PromptPairs.from_text([{**row, "x": "s hat"}], tokenizer)


def test_weights():
    rows = [{**row, "weight": weight} for row, weight in zip(tiny.rows(3), (1, 2, 3), strict=True)]
    pairs = tk.PromptPairs.from_ids(rows)
    assert pairs.weights.tolist() == [0.5, 1.0, 1.5]
    assert pairs[:1].weights is None
    assert pairs.fingerprint != tk.PromptPairs.from_ids(tiny.rows(3)).fingerprint
    assert tk.PromptPairs.from_ids(tiny.rows(3)).weights is None
    with pytest.raises(PairsError, match="The weight of example 0 is -1. Weights must be positive"):
        tk.PromptPairs.from_ids([{**rows[0], "weight": -1}])
    text = {"prompt": "a b", "counterfactual": "a c", "x": " d"}
    for weight in (0, 0.0, "none"):
        with pytest.raises(PairsError, match="leave out what is to count for nothing"):
            tk.PromptPairs.from_text([{**text, "weight": weight}], SpaceBefore())
