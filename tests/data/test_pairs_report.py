"""Pairs that would give a wrong number: each is refused, or found by the report and warned of."""

from __future__ import annotations

import json
import re
import warnings

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.data.pair import check_disjoint
from tracekit.errors import (
    ConfigError,
    DataFormatError,
    DataWarning,
    PairsError,
    UnreliableResultWarning,
)
from tracekit.search.auto import cross_fit

BOS, PAD = 1, 2
"""Special tokens of the embedded model."""


@pytest.fixture(scope="module")
def bias(demo_model):
    return tk.load_dataset("demo-bias", demo_model)[:8]


def ids_of(pairs) -> list[dict]:
    return [
        {
            "prompt_ids": list(pair.prompt_ids),
            "counterfactual_ids": list(pair.counterfactual_ids),
            "x_ids": list(pair.x_ids),
            "y_ids": list(pair.y_ids),
        }
        for pair in pairs
    ]


def texts_of(pairs) -> list[dict]:
    return [dict(pair.texts) for pair in pairs]


def from_ids(rows, change=lambda row: row):
    return tk.PromptPairs.from_ids([{**row, **change(row)} for row in rows])


def kinds(pairs, tokenizer=None) -> list[str]:
    from tracekit.data.pairs_report import make_report

    report = make_report(pairs, pairs.token_texts, tokenizer)
    return [finding.kind for finding in report.findings]


def warned(model, pairs, **options) -> list[str]:
    """Warnings about pairs when a tracer is built."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tk.Tracer(model, pairs, **options)
    return [str(each.message) for each in caught if issubclass(each.category, DataWarning)]


def padded(row):
    # The shorter ones scored after <pad>: .32 instead of .73 on such rows.
    return {key: (row[key] + [PAD] * 8)[:8] for key in ("prompt_ids", "counterfactual_ids")}


def padded_on_the_left(part):
    """Padding before one part, and as many words before the other."""
    fill = {f"{name}_ids": PAD if name == part else 5 for name in ("prompt", "counterfactual")}
    return lambda row: {key: [token, token, *row[key]] for key, token in fill.items()}


class TestPaddingAndSpecialTokens:
    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (padded, r"prompt of example 1 .* ends with padding \(token 2\). Leave padding out"),
            (padded_on_the_left("prompt"), "prompt of example 0 .* begins with padding"),
            (
                padded_on_the_left("counterfactual"),
                "counterfactual of example 0 .* begins with padding",
            ),
            (lambda row: {"y_ids": [*row["y_ids"], PAD]}, "y of example 0 .* ends with padding"),
        ],
        ids=["prompts", "prompts on the left", "counterfactuals on the left", "continuations"],
    )
    def test_padding_is_refused(self, demo_model, bias, change, text):
        with pytest.raises(PairsError, match=text):
            tk.Tracer(demo_model, from_ids(ids_of(bias), change))

    def test_one_token_that_pads_and_also_ends_a_text_is_warned_of(self, gpt2_tokenizer):
        """It may be meant, as at the end of a turn; two of them may not."""
        model = tk.load_model(tiny.hf_model("gpt2"), tokenizer=gpt2_tokenizer)
        end = model.tokenizer.eos_token_id
        assert end == model.tokenizer.pad_token_id
        assert kinds(tiny.pairs(2), model.tokenizer) == []
        # No forward pass: the tiny model has a smaller vocabulary.
        from tracekit.data.pairs_report import check_padding

        def ending(n):
            return from_ids(
                tiny.rows(2), lambda r: {"prompt_ids": [*r["prompt_ids"][:-n], *[end] * n]}
            )

        check_padding(ending(1), model.tokenizer)
        assert kinds(ending(1), model.tokenizer) == ["padding-token"]
        with pytest.raises(PairsError, match="The prompt of example 0 .* ends with padding"):
            check_padding(ending(2), model.tokenizer)

    def test_words_that_the_tokenizer_does_not_know_are_warned_of(self, demo_model, gpt2_tokenizer):
        from tracekit.data.pairs_report import make_report

        tokenizer = demo_model.tokenizer
        rows = [
            {"prompt": "the nurse said that", "x": " she", "y": word} for word in (" he", " quux")
        ]
        rows[0]["counterfactual"] = rows[1]["counterfactual"] = "the farmer said that"
        pairs = tk.PromptPairs.from_text(rows, demo_model)
        (found,) = make_report(pairs, {}, tokenizer).findings
        assert (found.kind, found.examples) == ("unknown-token", (1,))
        assert "have a word that the tokenizer does not know" in str(found)
        of_set = [{**rows[0], "y_set": [" he", " quux"]}]
        pairs = tk.PromptPairs.from_text(of_set, demo_model)
        assert [each.kind for each in make_report(pairs, {}, tokenizer).findings] == [
            "unknown-token"
        ]
        # Of tokenizers that know every text, what ends a text stands in its place.
        end = gpt2_tokenizer.unk_token_id
        assert end == gpt2_tokenizer.eos_token_id
        ends = from_ids(tiny.rows(2), lambda row: {"x_ids": [end], "y_ids": [end]})
        assert "unknown-token" not in kinds(ends, gpt2_tokenizer)

    def test_a_padding_token_in_front_is_warned_of(self, demo_model, bias):
        rows = [
            {**row, **{k: [PAD, *row[k]] for k in ("prompt_ids", "counterfactual_ids")}}
            for row in ids_of(bias)
        ]
        (text,) = warned(demo_model, tk.PromptPairs.from_ids(rows))
        assert text.startswith("8 of 8 examples begin or end with the padding token (example 0: [2")

    def test_special_tokens_in_continuations_are_warned_of(self, demo_model, bias):
        """As `model.to_tokens(" Paris")` gives them: .73 became .11 on such rows."""
        rows = [{**row, "x_ids": [BOS, *row["x_ids"]]} for row in ids_of(bias)[:5]]
        (text,) = warned(demo_model, tk.PromptPairs.from_ids([*rows, *ids_of(bias)[5:]]))
        assert text.startswith("5 of 8 examples have a special token in x or y before its end (ex")
        assert "; and 2 more). The model never saw it there. Encode continuations with" in text

    def test_a_special_token_that_ends_a_continuation_is_text(self, demo_model, bias):
        rows = [{**row, "x_ids": [*row["x_ids"], BOS]} for row in ids_of(bias)]
        assert demo_model.tokenizer.eos_token_id == BOS
        assert warned(demo_model, tk.PromptPairs.from_ids(rows)) == []


def tokenizer_with_bos():
    """Puts a token before every text, as the tokenizers of Llama, Gemma and Mistral do."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "When", "she", "he", "the", "nurse", "doctor", "met", "said", "that", "?"]
    inner = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")


ROW = {"prompt": "the nurse said that", "counterfactual": "the doctor said that", "x": " she"}


class TestBeginningOfSequence:
    def test_by_default_as_the_tokenizer_does_by_itself(self, gpt2_tokenizer):
        (pair,) = tk.PromptPairs.from_text([ROW], tokenizer_with_bos())
        assert pair.prompt_ids == (0, 4, 5, 8, 9)
        assert pair.counterfactual_ids == (0, 4, 6, 8, 9)
        assert pair.x_ids == (2,)
        (pair,) = tk.PromptPairs.from_text([ROW], tokenizer_with_bos(), prepend_bos=False)
        assert pair.prompt_ids == (4, 5, 8, 9)
        (pair,) = tk.PromptPairs.from_text([ROW], gpt2_tokenizer)
        assert gpt2_tokenizer.bos_token_id not in pair.prompt_ids

    def test_it_does_not_count_what_transformer_lens_makes_of_a_tokenizer(self, gpt2_tokenizer):
        model = tk.load_model(tiny.hf_model("gpt2"), tokenizer=gpt2_tokenizer)
        assert model.to_tokens("a")[0, 0] == gpt2_tokenizer.bos_token_id
        (pair,) = tk.PromptPairs.from_text([ROW], model)
        assert pair.prompt_ids == tuple(gpt2_tokenizer.encode(ROW["prompt"]))

    def test_nor_what_it_makes_of_one_in_a_folder(self, gpt2_tokenizer, tmp_path):
        tiny.hf_model("gpt2").save_pretrained(tmp_path)
        gpt2_tokenizer.save_pretrained(tmp_path)
        model = tk.load_model(tmp_path)
        assert model.to_tokens("a")[0, 0] == gpt2_tokenizer.bos_token_id
        (pair,) = tk.PromptPairs.from_text([ROW], model)
        assert pair.prompt_ids == tuple(gpt2_tokenizer.encode(ROW["prompt"]))

    def test_a_model_whose_tokenizer_puts_one_first(self, tmp_path):
        model = tk.load_model(tiny.hf_model("gpt2"), tokenizer=tokenizer_with_bos())
        (pair,) = tk.PromptPairs.from_text([ROW], model)
        assert pair.prompt_ids == (0, 4, 5, 8, 9)
        without = tk.PromptPairs.from_text([ROW], model, prepend_bos=False)
        assert kinds(without, model.tokenizer) == ["no-bos"]
        (text,) = warned(model, without, metric="probability-drop")
        assert text == (
            "1 of 1 examples do not begin with the beginning-of-sequence token, which the "
            "tokenizer puts first (example 0: 'the nurse said that'). The model hardly saw such "
            "texts. Use prepend_bos=None or True, or put it before the ids."
        )

    @pytest.mark.parametrize("prepend_bos", [None, True])
    def test_texts_that_have_one_get_no_second(self, prepend_bos):
        """As those of a chat template: .418 became .164 with two."""
        row = {**ROW, **{k: f"<s> {ROW[k]}" for k in ("prompt", "counterfactual")}}
        options = {"prepend_bos": prepend_bos}
        (pair,) = tk.PromptPairs.from_text([row], tokenizer_with_bos(), **options)
        assert pair.prompt_ids == (0, 4, 5, 8, 9)
        assert pair.counterfactual_ids == (0, 4, 6, 8, 9)

    def test_two_in_ids_are_warned_of(self, demo_model, bias):
        rows = [
            {**row, **{k: [BOS, BOS, *row[k]] for k in ("prompt_ids", "counterfactual_ids")}}
            for row in ids_of(bias)
        ]
        (text,) = warned(demo_model, tk.PromptPairs.from_ids(rows))
        assert text.startswith("8 of 8 examples begin with the beginning-of-sequence token twice (")

    @pytest.mark.parametrize("name", ["ioi", "greater-than", "gendered-pronouns"])
    def test_named_data_sets_do_as_the_tokenizer_does(self, name, gpt2_tokenizer, monkeypatch):
        from tracekit.data import tokenization

        plain = tk.load_dataset(name, gpt2_tokenizer, n=4)
        monkeypatch.setattr(tokenization, "adds_bos", lambda tokenizer: True)
        with_bos = tk.load_dataset(name, gpt2_tokenizer, n=4)
        for pair, same in zip(with_bos, plain, strict=True):
            assert pair.prompt_ids == (gpt2_tokenizer.bos_token_id, *same.prompt_ids)
            shifted = {k: tuple(p + 1 for p in ps) for k, ps in (same.spans or {}).items()}
            assert (pair.spans or {}) == shifted


class TestRepeatedExamples:
    def test_they_are_counted_and_named(self, demo_model, bias):
        repeated = tk.PromptPairs.from_text(texts_of(bias) * 3, demo_model)
        assert repr(repeated).endswith("PromptCounterfactual; 16 repeated)")
        (text,) = warned(demo_model, repeated)
        assert text.startswith(
            "16 of 24 examples repeat an earlier one (example 8: 'the mechanic waited for the maid "
            "while she'; example 9: "
        )
        assert "; and 13 more). Intervals count each once" in text

    @pytest.mark.parametrize("seed", range(5))
    def test_a_split_keeps_equal_examples_together(self, demo_model, bias, seed):
        rows = [row for n, row in enumerate(texts_of(bias)) for _ in range(n + 1)]
        pairs = tk.PromptPairs.from_text(rows, demo_model)
        first, second = pairs.split(0.5, seed=seed)
        assert len(first) + len(second) == len(pairs) == 36
        assert 10 <= len(first) <= 18
        check_disjoint(first, second)
        assert first.n_distinct + second.n_distinct == 8

    def test_weights_and_noise_make_no_other_example(self, demo_model, bias):
        rows = [{**row, "weight": n + 1} for n, row in enumerate(texts_of(bias[:1]) * 2)]
        assert kinds(tk.PromptPairs.from_text(rows, demo_model)) == ["repeated"]
        rows = [{k: row[k] for k in ("prompt", "x")} for row in texts_of(bias[:1]) * 2]
        noise = tk.data.GaussianNoise(std=1)
        pairs = tk.PromptPairs.from_text(rows, demo_model, noise=noise)
        assert torch.equal(*(pair.counterfactual.noise for pair in pairs))
        assert pairs.n_distinct == 1

    def test_drawn_counterfactuals_make_no_other_example(self, demo_model):
        pairs = tk.load_dataset("demo-bias", demo_model)[:12]
        pairs = tk.PromptPairs.from_text(texts_of(pairs) * 2, demo_model)
        tracer = tk.Tracer(demo_model, pairs, source="resample")
        first, second = tracer.pairs[:12], tracer.pairs[12:]
        assert [p.counterfactual_ids for p in first] == [p.counterfactual_ids for p in second]
        assert tracer.pairs.n_distinct == 12

    def test_held_out_examples_that_are_searched_on_are_refused(self, demo_model, bias):
        text = (
            r"6 of 6 held-out examples .* \(example 0: 'the maid visited the soldier since she'; .*"
            r"; and 3 more\)\. Leave them out .* pairs\.split\(\.\.\.\) .* by_prompt=True"
        )
        with pytest.raises(PairsError, match=text):
            tk.Tracer(demo_model, bias, held_out=bias[2:])

    def test_halves_of_a_search_share_none(self, demo_model, bias):

        pairs = tk.PromptPairs.from_text(texts_of(bias) * 3, demo_model)
        engine = tk.Tracer(demo_model, pairs, layers=[0]).engine
        fit = cross_fit(tk.search.make_target(engine), [tk.search.TopK()], [2], 0)
        first, second = (pairs.subset(half) for half in fit.halves)
        check_disjoint(first, second)
        assert len(first) == len(second) == 12

    def test_a_search_on_halves_needs_distinct_examples(self, demo_model, bias):
        pairs = tk.PromptPairs.from_text(texts_of(bias[:3]) * 4, demo_model)
        with pytest.raises(ConfigError, match="searches halves of the examples, and there are 3"):
            tk.Tracer(demo_model, pairs).run("top-k", budget=2, objective="auto")


def with_row(rows, number, **changes):
    return [{**row, **changes} if n == number else row for n, row in enumerate(rows)]


class TestDeadAndShiftedExamples:
    def test_equal_continuations(self, demo_model, bias):
        rows = ids_of(bias)
        pairs = tk.PromptPairs.from_ids(with_row(rows, 3, y_ids=rows[3]["x_ids"]))
        assert repr(pairs).endswith("; 1 equal continuations)")
        (text,) = warned(demo_model, pairs)
        assert text.startswith("1 of 8 examples have the same x and y (example 3: [")
        assert text.endswith("so they pull the mean to 0. Leave them out.")
        assert warned(demo_model, pairs, metric="probability-drop") == []

    def test_equal_prompts(self, demo_model, bias):
        texts = texts_of(bias)
        pairs = tk.PromptPairs.from_text(
            with_row(texts, 3, counterfactual=texts[3]["prompt"]), demo_model
        )
        assert repr(pairs).endswith("; 1 equal prompts)")
        (text,) = warned(demo_model, pairs)
        assert text.startswith(
            f"1 of 8 examples have a counterfactual that equals the prompt (example 3: "
            f"{texts[3]['prompt']!r})."
        )
        assert warned(demo_model, pairs, source="zero") == []

    def test_words_at_other_positions(self, gpt2_tokenizer):
        """A name of two tokens on each side: as many tokens, but what is between is shifted."""
        end = " went to the office,{} gave a letter to"
        rows = [
            {
                "prompt": f"When Wilma and John{end.format(' John')}",
                "counterfactual": f"When Mary and Wilma{end.format(' Mark')}",
                "x": " Mary",
            },
            {
                "prompt": f"When Mary and John{end.format(' John')}",
                "counterfactual": f"When John and Mary{end.format(' Tom')}",
                "x": " Mary",
            },
        ]
        pairs = tk.PromptPairs.from_text(rows, gpt2_tokenizer)
        assert len(gpt2_tokenizer.encode(" Wilma")) == 2
        (finding,) = pairs.report.findings
        assert (finding.kind, finding.examples) == ("shifted", (0,))
        assert str(finding).startswith(
            "1 of 2 examples have words at other positions in the counterfactual, which has as "
            "many tokens (example 0: 'When Wilma and John went"
        )
        assert str(finding).endswith("Choose words of as many tokens, or name spans.")

    def test_shifted_ids(self):
        row = {"prompt_ids": [1, 2, 3, 4, 5, 9], "x_ids": [1]}
        for other, found in (
            ([2, 3, 4, 5, 8, 9], ["shifted"]),
            ([1, 3, 2, 4, 5, 9], []),  # Two that exchange places.
            ([7, 2, 3, 4, 5, 9], []),
            ([11, 12, 1, 2, 13, 14], []),  # Another prompt, not an edited copy.
        ):
            assert kinds(tk.PromptPairs.from_ids([{**row, "counterfactual_ids": other}])) == found

    @pytest.mark.parametrize(
        ("prompt", "x", "found"),
        [
            ("The capital of France is ", " Paris", ["two-spaces"]),
            ("The capital of France is\n", " Paris", ["two-spaces"]),
            ("The capital of France is", " Paris", []),
            ("The capital of France is\n", "Paris", []),
        ],
    )
    def test_a_space_too_many(self, gpt2_tokenizer, prompt, x, found):
        row = {"prompt": prompt, "counterfactual": prompt.replace("France", "Spain"), "x": x}
        pairs = tk.PromptPairs.from_text([row], gpt2_tokenizer, warn=False)
        assert kinds(pairs) == found

    def test_continuations_of_other_token_counts(self, demo_model, bias):
        """The mean over "Mad|rid" beats "Paris", since its second token is nearly certain."""
        rows = with_row(ids_of(bias), 2, x_ids=[5])
        pairs = tk.PromptPairs.from_ids(rows)
        (text,) = warned(demo_model, pairs)
        assert text.startswith(
            "1 of 8 examples compare an x and a y of different numbers of tokens, one of them a "
            "single token (example 2: ["
        )
        # Clauses of several words, as of the paper's data, are what the mean is for.
        assert kinds(bias) == []
        assert warned(demo_model, pairs, metric="probability-drop") == []

    def test_named_data_sets_have_none(self, demo_model, gpt2_tokenizer, shared):
        for name in ("demo-bias", "demo-professions", "demo-facts", "demo-binding"):
            assert kinds(tk.load_dataset(name, demo_model), demo_model.tokenizer) == []
        for name in ("ioi", "greater-than", "gendered-pronouns", "variable-binding"):
            assert kinds(tk.load_dataset(name, gpt2_tokenizer), gpt2_tokenizer) == []
        folder = shared / "data" / "winobias"
        assert kinds(tk.load_dataset("winobias", gpt2_tokenizer, data_dir=folder)) == []

    def test_one_warning_a_kind_and_pair_set(self, demo_model, bias):
        rows = ids_of(bias)
        rows = with_row(with_row(rows, 0, y_ids=rows[0]["x_ids"]), 1, y_ids=rows[1]["x_ids"])
        rows = with_row(rows, 2, counterfactual_ids=rows[2]["prompt_ids"])
        pairs = tk.PromptPairs.from_ids(rows)
        texts = warned(demo_model, pairs[4:], held_out=pairs[:4])
        assert [text.split(" (")[0] for text in texts] == [
            "Held-out pairs: 2 of 4 examples have the same x and y",
            "Held-out pairs: 1 of 4 examples have a counterfactual that equals the prompt",
        ]
        assert str(pairs.report).count("\n") == 1
        assert str(bias.report) == "Nothing to remark on."

    def test_a_clean_model_that_never_prefers_x_is_warned_of(self, demo_model, bias):
        def swapped(row):
            return {"x_ids": row["y_ids"], "y_ids": row["x_ids"]}

        text = "The clean model finds y at least as probable as x on all 8 examples. x is the cont"
        with pytest.warns(UnreliableResultWarning, match=text):
            tk.Tracer(demo_model, from_ids(ids_of(bias), swapped)).run("top-k", budget=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tk.Tracer(demo_model, bias).run("top-k", budget=2)


IDS = {"prompt_ids": [1, 2], "counterfactual_ids": [1, 3], "x_ids": [4]}
TEXTS = {"prompt": "the maid", "counterfactual": "the nurse", "x": " slept"}


class TestKeysThatNobodyReads:
    @pytest.mark.parametrize(
        ("rows_of", "key", "hint"),
        [
            (texts_of, "weights", "Did you mean 'weight'?"),
            (texts_of, "weigth", "Did you mean 'weight'?"),
            (texts_of, "xset", "Did you mean 'x_set'?"),
            (texts_of, "span", "Did you mean 'spans'?"),
            (texts_of, "x_ids", "Give rows of token ids to from_ids."),
            (texts_of, "label", "Keys: counterfactual, counterfactual_spans, group, prompt"),
            (texts_of, 7, "Keys: counterfactual"),
            (ids_of, "y_id", "Did you mean 'y_ids'?"),
            (ids_of, "x_set", "Did you mean 'x_set_ids'?"),
            (ids_of, "attention_mask", "Give prompt_ids without padding, and leave masks out"),
            (ids_of, "token_type_ids", "Give prompt_ids without padding, and leave masks out"),
        ],
    )
    def test_keys_of_rows(self, demo_model, bias, rows_of, key, hint):
        rows = [{**row, key: 2} for row in rows_of(bias)]
        with pytest.raises(PairsError, match=re.escape(f"{key!r}, which nobody reads. {hint}")):
            if rows_of is ids_of:
                tk.PromptPairs.from_ids(rows)
            else:
                tk.PromptPairs.from_text(rows, demo_model)

    def test_notes_on_rows_of_ids_are_warned_of(self, bias):
        notes = dict.fromkeys(("token_a", "token_b", "template", "zipcode"), 7)
        rows = [*ids_of(bias)[:6], *({**row, **notes} for row in ids_of(bias)[6:])]
        text = "2 of 8 rows have keys that nobody reads: 'template', 'token_a', 'token_b', ...."
        with pytest.warns(DataWarning, match=re.escape(text)):
            tk.PromptPairs.from_ids(rows)

    @pytest.mark.parametrize(
        ("content", "options", "error", "text"),
        [
            (
                IDS,
                {"prepend_bos": True},
                ConfigError,
                "prepend_bos=True .* token ids.* Leave it out",
            ),
            (IDS, {"noise_std": 1.0}, ConfigError, "noise_std=1.0 .* token ids.* Leave it out"),
            (IDS, {"seed": 3}, ConfigError, "seed=3 .* token ids.* Leave it out"),
            (TEXTS, {"seed": 3}, ConfigError, "seed=3 .* without noise_std.* Leave it out"),
            ({**TEXTS, "weigth": 2}, {}, DataFormatError, "'weigth'. Did you mean 'weight'"),
        ],
    )
    def test_options_and_columns_of_a_file(
        self, tmp_path, demo_model, content, options, error, text
    ):
        path = tmp_path / "pairs.jsonl"
        path.write_text(json.dumps(content))
        with pytest.raises(error, match=text):
            tk.load_pairs(path, demo_model, **options)


class TestInputsThatAreNone:
    def test_an_overlong_prompt_is_named_by_its_ends(self, demo_model, bias):
        rows = [
            {**row, **{k: "the nurse " * 400 + row[k] for k in ("prompt", "counterfactual")}}
            for row in texts_of(bias)
        ]
        text = r"0 \('the nurse .* \.\.\. .* while she'\) needs 814 .* The model has 48; shorten it"
        with pytest.raises(PairsError, match=text):
            tk.Tracer(demo_model, tk.PromptPairs.from_text(rows, demo_model))

    def test_pairs_by_a_list_of_numbers(self, bias):
        for numbers in ([3, 1, 2], (3, 1, 2), torch.tensor([3, 1, 2])):
            assert list(bias[numbers]) == [bias[3], bias[1], bias[2]]

    @pytest.mark.parametrize("item", ["a", 1.5, [True], None, [1.0]])
    def test_pairs_by_anything_else_are_refused(self, bias, item):
        with pytest.raises(PairsError, match=f"{re.escape(repr(item))} .* a number, a slice or"):
            bias[item]

    @pytest.mark.parametrize("digits", [400, 5000])
    def test_huge_numbers_are_refused(self, bias, demo_model, digits):
        huge = 10**digits
        for change in (
            {"weight": huge},
            {"x_ids": [huge]},
            {"spans": {"a": [0, huge]}},
            {"counterfactual_ids": [-huge]},
        ):
            with pytest.raises(PairsError, match="of example 0 "):
                from_ids(ids_of(bias), lambda row, change=change: change)
        for ask in (
            lambda: bias.split(huge),
            lambda: bias.split(0.5, seed=huge),
            lambda: tk.data.GaussianNoise(std=huge),
            lambda: tk.load_dataset("demo-facts", demo_model, noise_factor=huge),
        ):
            with pytest.raises(ConfigError):
                ask()


@pytest.mark.real
class TestOnARealModel:
    CAPITAL = ("The capital of France is", "The capital of Spain is")

    def probability(self, model, row):
        pairs = tk.PromptPairs.from_ids([row])
        tracer = tk.Tracer(model, pairs, "mlp-blocks", "probability-drop", layers=[0])
        return tracer.engine.clean.x.exp().item()

    def ids(self, model, text):
        return model.tokenizer.encode(text, add_special_tokens=False)

    def test_its_tokenizer_adds_no_bos_by_itself(self, real_model):
        assert real_model.to_tokens("a")[0, 0] == real_model.tokenizer.bos_token_id == 1
        row = dict(zip(("prompt", "counterfactual"), self.CAPITAL, strict=True), x=" Paris")
        (pair,) = tk.PromptPairs.from_text([row], real_model)
        assert list(pair.prompt_ids) == self.ids(real_model, self.CAPITAL[0])
        assert tk.load_dataset("ioi", real_model, n=2)[0].prompt_ids[0] != 1

    def test_bos_in_an_answer_is_warned_of(self, real_model):
        prompt, other = (self.ids(real_model, text) for text in self.CAPITAL)
        row = {"prompt_ids": prompt, "counterfactual_ids": other}
        (answer,) = self.ids(real_model, " Paris")
        assert real_model.to_tokens(" Paris")[0].tolist() == [1, answer]
        assert self.probability(real_model, {**row, "x_ids": [answer]}) == pytest.approx(
            0.773, abs=0.002
        )
        with pytest.warns(DataWarning, match="1 of 1 examples have a special token in x or y"):
            wrong = self.probability(real_model, {**row, "x_ids": [1, answer]})
        assert wrong < 1e-3

    def test_bos_stands_once_before_a_chat_template(self, real_model):
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        text = real_model.tokenizer.apply_chat_template(messages, tokenize=False)
        row = {"prompt": text, "counterfactual": text.replace("France", "Spain"), "x": "Paris"}
        (pair,) = tk.PromptPairs.from_text([row], real_model, prepend_bos=True, warn=False)
        assert pair.prompt_ids[0] == 1
        assert pair.prompt_ids[1] != 1

    def test_a_space_too_many_is_warned_of(self, real_model):
        row = {"prompt": self.CAPITAL[0] + " ", "counterfactual": self.CAPITAL[1] + " "}
        pairs = tk.PromptPairs.from_text([{**row, "x": " Paris"}], real_model, warn=False)
        with pytest.warns(DataWarning, match="1 of 1 examples have a space at the end of the pr"):
            tracer = tk.Tracer(real_model, pairs, "mlp-blocks", "probability-drop", layers=[0])
        assert tracer.engine.clean.x.exp().item() < 0.05
