from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.data.from_file import load_pairs
from tracekit.data.tokenization import token_texts
from tracekit.errors import (
    ConfigError,
    DataFormatError,
    DataWarning,
    PairsError,
    UnsupportedModelError,
)

ROW = {"prompt_ids": [1, 2], "counterfactual_ids": [1, 3], "x_ids": [4], "y_ids": [5, 6]}


class Words:
    """A tokenizer of one token per word."""

    bos_token_id = 0

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens or text == "a"  # Asked what it adds by itself.
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
    text = r"1 of 2 .* \(example 1: 2 tokens in \[1 2\], 3 in its .*, give both spans, .*=.skip."
    with pytest.raises(PairsError, match=text):
        tk.PromptPairs.from_ids(rows)
    kept = tk.PromptPairs.from_ids(rows, on_mismatch="skip")
    assert len(kept) == 1
    assert kept.skipped == ("example 1: 2 tokens in [1 2], 3 in its counterfactual",)
    with pytest.raises(PairsError, match="There are no prompt pairs. All 1 were skipped."):
        tk.PromptPairs.from_ids(rows[1:], on_mismatch="skip")


def noise(value):
    return {"counterfactual_ids": None, "noise": value}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x_ids": []}, "x of example 0 encodes to no token. Give it at least one"),
        ({"y_ids": []}, "y of example 0 encodes to no token"),
        ({"prompt_ids": []}, "prompt of example 0 encodes to no token"),
        ({"noise": torch.zeros(2, 3)}, "Give it one of counterfactual_ids, noise"),
        (noise(torch.zeros(2)), r"shape \(2,\) .* finite numbers with two axes"),
        (noise([[1.0], [float("nan")]]), r"shape \(2, 1\) or is not finite. Give finite"),
        (noise("loud"), "'loud'. Give numbers with two axes"),
        (noise([[1.0], [1.0, 2.0]]), r"2.0\]\]. Give numbers with two axes"),
        (noise([["a"], ["b"]]), r"'b'\]\]. Give numbers with two axes"),
        (noise([object()]), "object.*. Give numbers with two axes"),
        ({"weight": -1}, "weight of example 0 is -1. .* positive"),
    ],
)
def test_rows_of_ids_that_are_refused(change, text):
    with pytest.raises(PairsError, match=text):
        tk.PromptPairs.from_ids([{**ROW, **change}])


@pytest.mark.parametrize("part", ["prompt", "counterfactual", "x", "y"])
@pytest.mark.parametrize(
    "ids",
    ["12", b"12", {1, 2}, [1.0, 2.0], [1.7, 2.2], [True, 2], ["1", "2"], [[1], [2]], 5, [None, 1]],
    ids=str,
)
def test_ids_that_are_no_ids_are_refused_and_not_converted(part, ids):
    text = (
        f"ids of the {part} of example 0 are {re.escape(repr(ids))}. Give a list of whole numbers"
    )
    with pytest.raises(PairsError, match=text):
        tk.PromptPairs.from_ids([{**ROW, f"{part}_ids": ids}])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"y": " "}, r"y of example 0 \(' '\) encodes to no token"),
        ({"counterfactual": ""}, "counterfactual of example 0 encodes to no token"),
        (
            {"counterfactual": "\ud800"},
            r"counterfactual of example 0 .* half a character: '.ud800'",
        ),
        ({"prompt": 5}, "prompt of example 0 is not text: 5. Give a text, or token ids"),
        ({"prompt": ["a"]}, r"prompt of example 0 is not text: \['a'\]. Give"),
        ({"prompt": b"a"}, "prompt of example 0 is not text: b'a'. Give"),
        ({"counterfactual": False}, "counterfactual of example 0 is not text: False. Give"),
        ({"counterfactual": 0}, "is not text: 0. Give"),
        ({"counterfactual": 0.0}, "is not text: 0.0. Give"),
        ({"counterfactual": {}}, "is not text: {}. Give"),
        ({"counterfactual": []}, r"is not text: \[\]. Give"),
        ({"weight": 0}, "weight of example 0 is 0. .* positive numbers; leave out what"),
        ({"weight": 0.0}, "weight of example 0 is 0.0. .* positive numbers"),
        ({"weight": "none"}, "weight of example 0 is 'none'. .* positive numbers"),
    ],
)
def test_rows_of_text_that_are_refused(change, text):
    row = {"prompt": "a b", "counterfactual": "a c", "x": " d"}
    with pytest.raises(PairsError, match=text):
        tk.PromptPairs.from_text([{**row, **change}], Words())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "make", [tk.PromptPairs.from_ids, lambda rows: tk.PromptPairs.from_text(rows, Words())]
)
@pytest.mark.parametrize("rows", [0, "prompt", {"prompt_ids": [1]}, [0]], ids=str)
def test_rows_that_are_no_mappings_are_refused(rows, make):
    value = "Example 0 is 0" if rows == [0] else f"The rows are {rows!r}"
    with pytest.raises(PairsError, match=re.escape(f"{value}. Give a list of mappings")):
        make(rows)


def test_missing_keys_and_unknown_options_are_refused(unchecked):
    with pytest.raises(PairsError, match="Example 0 lacks x_ids. Give the keys .* prompt_ids"):
        tk.PromptPairs.from_ids([{"prompt_ids": [1], "counterfactual_ids": [1]}])
    with pytest.raises(PairsError, match="Example 0 lacks x. Give the keys .* prompt, x"):
        tk.PromptPairs.from_text([{"prompt": "a"}], Words())
    with pytest.raises(ConfigError, match="on_mismatch is 'drop'. Use one of error, skip"):
        tk.PromptPairs.from_ids([ROW], on_mismatch="drop")


def test_noise_is_fixed_by_its_seed(model):
    rows = [{"prompt": "a bb", "x": "c"}, {"prompt": "a", "x": "c"}]

    def draw(seed):
        noise = tk.data.GaussianNoise(std=0.5, seed=seed)
        tokenizer_and_width = type("M", (), {"tokenizer": Words(), "cfg": model.cfg})()
        return tk.PromptPairs.from_text(rows, tokenizer_and_width, noise=noise)

    assert draw(1)[0].counterfactual.noise.shape == (2, tiny.D_MODEL)
    assert draw(1).fingerprint == draw(1).fingerprint != draw(2).fingerprint
    many = tk.data.GaussianNoise(std=0.5).draw([1000], 100)[0]
    assert many.std().item() == pytest.approx(0.5, rel=0.02)
    with pytest.raises(ConfigError, match="The noise has std 0. It must be positive."):
        tk.data.GaussianNoise(std=0)
    with pytest.raises(UnsupportedModelError, match="Noise needs the width"):
        tk.PromptPairs.from_text(rows, Words(), noise=tk.data.GaussianNoise(std=1))


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


def row(**changes):
    return {"prompt_ids": [1, 2], "counterfactual_ids": [3, 2], "x_ids": [4], **changes}


@pytest.mark.parametrize(
    "ids", [(1, 2), range(1, 3), torch.tensor([1, 2]), np.array([1, 2]), [np.int64(1), 2]], ids=str
)
def test_ids_in_other_containers_are_taken(ids):
    pair = tk.PromptPairs.from_ids([row(prompt_ids=ids)])[0]
    assert pair.prompt_ids == (1, 2)
    assert all(type(token) is int for token in pair.prompt_ids)


@pytest.mark.parametrize("weights", [(1e-60, 1), (1e308, 1e200), (5e-324, 1e308)])
def test_weights_that_would_count_nothing_are_refused(weights):
    with pytest.raises(PairsError, match="so many orders of magnitude that the smallest would"):
        tk.PromptPairs.from_ids([row(weight=weight) for weight in weights])


def test_large_weights_are_relative():
    pairs = tk.PromptPairs.from_ids([row(weight=weight) for weight in (1e308, 1.5e308)])
    assert pairs.weights.tolist() == pytest.approx([0.8, 1.2])


@pytest.mark.parametrize("share", [float("nan"), float("inf"), -0.1, 0, 1.0, 1.5])
def test_shares_that_leave_a_part_empty_are_refused(share):
    with pytest.raises(ConfigError, match=f"share of {share} .* the 3 pairs .* between 0 and 1"):
        tiny.pairs(3).split(share)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, None, "0", True])
def test_seeds_that_are_none_are_refused(seed):
    pairs, text = tiny.pairs(3), f"The seed is {seed!r}. Give a whole number from 0 to 2\\^63 - 1"
    with pytest.raises(ConfigError, match=text):
        pairs.split(0.5, seed=seed)
    with pytest.raises(ConfigError, match=text):
        tk.data.GaussianNoise(std=1.0, seed=seed)


IDS = '{"prompt_ids": %s, "counterfactual_ids": [1], "x_ids": [1]}'
FILES = {
    "utf-16.csv": ("x\né".encode("utf-16"), DataFormatError, "byte 0.* Save it as UTF-8"),
    "latin-1.csv": ("x\né".encode("latin-1"), DataFormatError, "byte 2.* Save it as UTF-8"),
    "utf-16.jsonl": ("é".encode("utf-16"), DataFormatError, "byte 0.* Save it as UTF-8"),
    "latin-1.jsonl": ("é".encode("latin-1"), DataFormatError, "byte 0.* Save it as UTF-8"),
    "huge.csv": (f"prompt,x\n{'a' * 140_000},b", DataFormatError, "larger than .* .jsonl file"),
    "twice.csv": ("prompt,x,x\na, b, d", DataFormatError, "column 'x' twice. Keep one of them"),
    "deep.jsonl": ("[" * 100_000, DataFormatError, "Line 1 .* Write one object per line"),
    "number.jsonl": (IDS % "5", PairsError, "prompt of example 0 are 5. Give a list"),
    "nested.jsonl": (IDS % "[[1]]", PairsError, r"0 are \[\[1\]\]. Give a list"),
    "nan.jsonl": (IDS % "[NaN]", PairsError, r"0 are \[nan\]. Give a list"),
    "inf.jsonl": (IDS % "[1e999]", PairsError, r"0 are \[inf\]. Give a list"),
    "text.jsonl": (IDS % '"12"', PairsError, "0 are '12'. Give a list"),
    "no-text.jsonl": ('{"prompt": 5, "x": "b"}', PairsError, "not text: 5. Give a text"),
    "half.jsonl": ('{"prompt": "\\ud800", "x": "b"}', PairsError, "half .* Give a text"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_refused(tmp_path, demo_model, name):
    content, error, text = FILES[name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(error, match=text):
        load_pairs(tmp_path / name, demo_model)


class TestBoundaries:
    """Continuations that are scored as other tokens than they have in the text."""

    def warnings_of(self, tokenizer, prompt, x, y=None, **options):
        row = {"prompt": prompt, "counterfactual": prompt, "x": x, "y": y or x}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tk.PromptPairs.from_text([row], tokenizer, **options)
        return [str(w.message) for w in caught if issubclass(w.category, DataWarning)]

    def test_continuations_that_fit_are_silent(self, gpt2_tokenizer):
        for prompt, x, y in (
            ("The doctor said that", " he", " she"),
            ("2 + 2 =", " 4", " 5"),
            ('He said: "', "Yes", "No"),
            ("The doctor said that", ", then", "."),
        ):
            assert self.warnings_of(gpt2_tokenizer, prompt, x, y) == []

    def test_special_tokens_of_the_tokenizer_are_none_of_the_text(self):
        """Llama's puts a token before every text; a text has it once, wherever it is split."""
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        words = {"<s>": 0, "The": 1, "doctor": 2, "said": 3, "he": 4, "?": 5}
        inner = Tokenizer(models.WordLevel(words, unk_token="?"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")
        assert tokenizer.encode("The doctor")[0] == 0
        assert self.warnings_of(tokenizer, "The doctor said", " he") == []

    def test_a_missing_space(self, gpt2_tokenizer):
        (text,) = self.warnings_of(gpt2_tokenizer, "The doctor said that", "he", " she")
        assert text == (
            "A continuation begins within a word; give it its leading space "
            "(x of example 0: [' said', ' that'] + ['he'])."
        )

    def test_a_space_at_the_end_of_the_prompt(self, gpt2_tokenizer):
        (text,) = self.warnings_of(gpt2_tokenizer, "The doctor said ", "he")
        assert text.startswith(
            "A continuation alone has other tokens than in the text "
            "(x of example 0: [' said', ' '] + ['he'], in the text [' said', ' he']"
        )

    def test_byte_tokens(self, gpt2_tokenizer):
        (text,) = self.warnings_of(gpt2_tokenizer, "The bear is a", " 熊")
        assert text.startswith("A continuation is encoded in parts of characters (byte tokens) (x")

    def test_byte_tokens_among_others(self, gpt2_tokenizer):
        (text,) = self.warnings_of(gpt2_tokenizer, "The bear is a", " black 熊")
        assert text.startswith("A continuation is encoded in parts of characters (byte tokens) (x")

    def test_many_examples_make_one_warning(self, gpt2_tokenizer):
        rows = [{"prompt": "It is", "counterfactual": "I was", "x": "so", "y": "no"}] * 9
        with pytest.warns(DataWarning, match="; and 15 more") as caught:
            tk.PromptPairs.from_text(rows, gpt2_tokenizer)
        assert len(caught) == 1

    def test_boundary_warning_can_be_switched_off(self, gpt2_tokenizer):
        assert self.warnings_of(gpt2_tokenizer, "It is", "so", warn=False) == []


def test_texts_of_tokens_are_in_order_of_their_ids(demo_model):
    """So that the same pairs are saved as the same bytes."""
    texts = token_texts(demo_model.tokenizer, [9, 3, 5])
    assert list(texts) == [3, 5, 9]
    assert texts[9] == demo_model.tokenizer.decode([9])


def test_pairs_print_briefly(demo_model):
    facts = tk.load_dataset("demo-facts", demo_model)
    assert repr(facts) == (
        "PromptPairs(demo-facts: 60 pairs, prompts of 5 to 9 tokens, NoiseCounterfactual)"
    )
    assert repr(facts[0]) == (
        "PromptPair(texts={'prompt': 'the tower of velm lies in the land of', 'x': ' vando', "
        "'y': ' teshk'}, spans={'subject': (0, 1, 2, 3)}; NoiseCounterfactual)"
    )
    by_ids = tk.PromptPairs.from_ids([row()])
    assert repr(by_ids) == "PromptPairs(pairs: 1 pairs, prompts of 2 tokens, PromptCounterfactual)"
    assert repr(by_ids[0]) == "PromptPair(prompt_ids=(1, 2), x_ids=(4,); PromptCounterfactual)"
