"""Pairs from templates and for chat models: filled, balanced, aligned, and read as was meant."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import pytest

import tracekit as tk
from tracekit.errors import ConfigError, DataWarning, PairsError, UnsupportedModelError

TEXT = "When {A} and {B} went to the {place}, {A} gave a drink to"
NAMES = ["Mary", "John", "Tom", "James", "Paul", "Anna", "Bartholomew", "Zerubbabel"]
"""The last two are several tokens of GPT-2."""
CAPITALS = {
    ("country", "capital"): [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid")],
}
CHAT = (
    "{% for m in messages %}<|endoftext|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|endoftext|>assistant:\n{% endif %}"
)


def made(tokenizer, template=TEXT, **changes):
    options = {
        "x": "{B}",
        "y": "{A}",
        "counterfactual": {"A": "C"},
        "values": {"A": NAMES, "B": NAMES, "place": ["park", "office"]},
        "n": 12,
    }
    return tk.PromptPairs.from_template(template, tokenizer, **{**options, **changes})


@pytest.fixture
def chat_tokenizer(gpt2_tokenizer):
    tokenizer = deepcopy(gpt2_tokenizer)
    tokenizer.chat_template = CHAT
    return tokenizer


class TestTemplates:
    def test_fields_are_filled_alike_in_all_parts(self, gpt2_tokenizer):
        for pair in made(gpt2_tokenizer):
            texts = pair.texts
            words, other = texts["prompt"].split(), texts["counterfactual"].split()
            assert (texts["y"], texts["x"]) == (f" {words[1]}", f" {words[3]}")
            assert words[8] == words[1] != other[1] == other[8] != words[3] == other[3]
            assert len(pair.prompt_ids) == len(pair.counterfactual_ids)

    def test_spans_are_called_as_the_fields(self, gpt2_tokenizer):
        for pair in made(gpt2_tokenizer):
            assert list(pair.spans) == ["A1", "B", "place", "A2"]
            assert all(pair.is_aligned for pair in made(gpt2_tokenizer).by_span())
            (first, *_) = pair.spans["A2"]
            # Shows a field where it stands, in the counterfactual too.
            shown = gpt2_tokenizer.decode([pair.prompt_ids[first]])
            assert pair.texts["y"].startswith(shown)

    def test_every_value_is_about_as_frequent(self, gpt2_tokenizer):
        pairs = made(gpt2_tokenizer, n=24, one_token=True)
        for part in ("x", "y"):
            counts = Counter(pair.texts[part] for pair in pairs)
            # 24 pairs, 6 names of one token; the least used may be the other field's.
            assert len(counts) == 6
            assert set(counts.values()) <= {3, 4, 5}

    def test_several_right_and_several_wrong_answers(self, gpt2_tokenizer):
        pairs = made(gpt2_tokenizer, x_set=["{B}", "someone"], y_set=["{A}", "{C}", "{place}"])
        for pair in pairs:
            texts, decode = pair.texts, gpt2_tokenizer.decode
            right, wrong = ([decode([t]) for t in ids] for ids in (pair.x_set_ids, pair.y_set_ids))
            assert right == [texts["x"], " someone"]
            other = texts["counterfactual"].split()[1]
            assert wrong == [texts["y"], f" {other}", f" {texts['prompt'].split()[7].rstrip(',')}"]
        # Values of several tokens are left out, as a set is of first tokens.
        assert any("_set ' Bartholomew' is" in line for line in pairs.skipped)
        with pytest.raises(PairsError, match="y_set ' Bartholomew' is 3 tokens"):
            made(gpt2_tokenizer, y_set=["Bartholomew"])
        with pytest.raises(PairsError, match="The field 'D' has no values"):
            made(gpt2_tokenizer, x_set=["{D}"])

    def test_values_of_several_tokens_are_dropped_and_named(self, gpt2_tokenizer):
        pairs = made(gpt2_tokenizer, one_token=True)
        assert {len(pair.x_ids) for pair in pairs} == {1}
        assert any("'Bartholomew' in 'A' is" in line for line in pairs.skipped)
        assert "skipped" in repr(pairs)

    def test_a_longer_value_gets_a_counterfactual_of_as_many_tokens(self, gpt2_tokenizer):
        longer = [" Bartholomew", " Zerubbabel", " Anna"]
        lengths = [len(gpt2_tokenizer.encode(name)) for name in longer]
        assert lengths[0] == lengths[1] != lengths[2]
        values = {"A": ["Bartholomew"], "B": ["Tom"], "C": ["Anna", "Zerubbabel"], "place": ["zoo"]}
        with pytest.warns(DataWarning, match="gives 1 of 3"):
            pairs = made(gpt2_tokenizer, values=values, n=3)
        assert "Zerubbabel" in pairs[0].texts["counterfactual"]

    def test_rows_of_values_stay_together(self, gpt2_tokenizer):
        pairs = made(
            gpt2_tokenizer,
            "The capital of {country} is",
            **{"x": "{capital}", "y": "{capital2}", "values": CAPITALS, "n": 3},
            counterfactual={"country": "country2", "capital": "capital2"},
        )
        capitals = dict(CAPITALS["country", "capital"])
        for pair in pairs:
            country, other = (pair.texts[key].split()[3] for key in ("prompt", "counterfactual"))
            assert pair.texts["x"].strip() == capitals[country]
            assert pair.texts["y"].strip() == capitals[other]
        assert len({pair.texts["x"] for pair in pairs}) == 3

    def test_templates_in_turn_and_counterfactuals_of_their_own(self, gpt2_tokenizer):
        pairs = made(
            gpt2_tokenizer,
            ["{A} saw {B}, so {A} met", "{B} saw {A}, so {A} met"],
            counterfactual=["{A} saw {B}, so {B} met", "{B} saw {A}, so {B} met"],
            n=6,
            one_token=["A", "B"],
        )
        firsts = [pair.texts["prompt"].split()[0] for pair in pairs]
        is_first = [
            f.strip() == pair.texts["x"].strip() for f, pair in zip(firsts, pairs, strict=True)
        ]
        assert is_first == [False, True] * 3

    def test_no_counterfactual_for_sources_that_need_none(self, gpt2_tokenizer):
        pairs = made(gpt2_tokenizer, counterfactual=None, n=2)
        assert not pairs[0].differs

    def test_the_same_seed_draws_the_same(self, gpt2_tokenizer):
        first, again, other = (made(gpt2_tokenizer, seed=seed).fingerprint for seed in (1, 1, 2))
        assert first == again != other

    def test_fewer_than_asked_for_are_a_warning(self, gpt2_tokenizer):
        values = {"A": NAMES[:2], "B": NAMES[:2], "C": NAMES[2:3], "place": ["park"]}
        with pytest.warns(DataWarning, match=r"gives 2 of 9 examples; 200 .* repeats an earlier"):
            assert len(made(gpt2_tokenizer, values=values, n=9)) == 2

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"counterfactual": {}}, "has no counterfactual. Give counterfactual={'A': 'C'}"),
            ({"counterfactual": {"Z": "C"}}, "replaces 'Z', which the template does not have"),
            ({"x": "{D}"}, "The field 'D' has no values. Give some for every field"),
            ({"values": {"A": "Mary"}}, "The values of A are 'Mary'. Give a list of texts"),
            ({"values": {("A", "B"): [("a",)]}}, "a list of rows"),
            ({"template": "{A!r} and"}, "has the field 'A'. Write fields as {name}"),
            ({"template": "{A and"}, "cannot be read: expected '}'"),
            ({"counterfactual": ["a", "b"]}, "There are 1 templates and 2 counterfactuals"),
            (
                {"values": {"A": ["Tom"], "B": ["Mary"], "C": ["Bartholomew"], "place": ["zoo"]}},
                "No example can be made of the template: 'When Tom .* no counterfactual of as many",
            ),
            (
                {"values": {"A": ["Tom"], "B": ["Tom"], "place": ["zoo"]}},
                "No value is left for the field 'B'",
            ),
        ],
    )
    def test_what_cannot_be_filled_is_refused(self, gpt2_tokenizer, changes, text):
        with pytest.raises(PairsError, match=text):
            made(gpt2_tokenizer, **changes)

    def test_a_number_of_pairs_below_one(self, gpt2_tokenizer):
        with pytest.raises(ConfigError, match="n is 0. Give a whole number, at least 1."):
            made(gpt2_tokenizer, n=0)


class TestChat:
    def rows(self, **changes):
        row = {"prompt": "Is Tom here?", "counterfactual": "Is Ann here?", "x": "Yes", "y": "No"}
        return [{**row, "spans": {"name": "Tom"}, **changes}]

    def test_the_template_is_written_up_to_the_answer(self, chat_tokenizer):
        (pair,) = tk.PromptPairs.from_text(self.rows(), chat_tokenizer, chat=True)
        text = "<|endoftext|>user: Is Tom here?\n<|endoftext|>assistant:\n"
        assert chat_tokenizer.decode(pair.prompt_ids) == text
        (name,) = pair.spans["name"]
        assert chat_tokenizer.decode([pair.prompt_ids[name]]) == " Tom"
        # Tables show what was said.
        assert pair.texts["prompt"] == "Is Tom here?"

    def test_bos_comes_once(self, chat_tokenizer):
        for prepend in (None, True):
            (pair,) = tk.PromptPairs.from_text(
                self.rows(), chat_tokenizer, chat=True, prepend_bos=prepend
            )
            bos = chat_tokenizer.bos_token_id
            assert pair.prompt_ids[0] == bos != pair.prompt_ids[1]

    def test_messages_and_the_beginning_of_an_answer(self, chat_tokenizer):
        asked = [{"role": "user", "content": "Is Tom here?"}]
        (whole,) = tk.PromptPairs.from_text(self.rows(prompt=asked), chat_tokenizer, chat=True)
        (same,) = tk.PromptPairs.from_text(self.rows(), chat_tokenizer, chat=True)
        assert whole.prompt_ids == same.prompt_ids
        begun = [*asked, {"role": "assistant", "content": "I think"}]
        rows = self.rows(prompt=begun, counterfactual=begun, x=" so")
        (pair,) = tk.PromptPairs.from_text(rows, chat_tokenizer, chat=True)
        assert chat_tokenizer.decode(pair.prompt_ids).endswith("assistant: I think")

    def test_spans_are_looked_for_in_what_was_said(self, chat_tokenizer):
        rows = self.rows(prompt="The user left", counterfactual="The aunt left")
        rows[0]["spans"] = {"who": "user"}
        (pair,) = tk.PromptPairs.from_text(rows, chat_tokenizer, chat=True)
        (who,) = pair.spans["who"]
        assert chat_tokenizer.decode(pair.prompt_ids[who - 1 : who + 1]) == " The user"

    def test_templates_fill_what_the_user_says(self, chat_tokenizer):
        pairs = made(
            chat_tokenizer, "Say {A} or {B}, not {A}", chat=True, n=4, one_token=["A", "B"]
        )
        for pair in pairs:
            assert pair.texts["x"] == pair.texts["prompt"].split()[3].rstrip(",")
            (place,) = pair.spans["A2"]
            assert chat_tokenizer.decode([pair.prompt_ids[place]]).strip() == pair.texts["y"]

    @pytest.mark.parametrize(("x", "kinds"), [(" Yes", ["two-spaces"]), ("Yes", [])])
    def test_a_leading_space_is_reported(self, chat_tokenizer, x, kinds):
        pairs = tk.PromptPairs.from_text(self.rows(x=x), chat_tokenizer, chat=True)
        assert [finding.kind for finding in pairs.report.findings] == kinds

    def test_a_model_without_chat_template(self, gpt2_tokenizer):
        with pytest.raises(UnsupportedModelError, match="has no chat template, so chat=True"):
            tk.PromptPairs.from_text(self.rows(), gpt2_tokenizer, chat=True)

    @pytest.mark.parametrize("prompt", [5, [{"role": "user"}], ["Hello"]])
    def test_what_is_no_chat(self, chat_tokenizer, prompt):
        with pytest.raises(PairsError, match="a list of messages with the keys role and content"):
            tk.PromptPairs.from_text(self.rows(prompt=prompt), chat_tokenizer, chat=True)

    def test_messages_that_the_template_refuses(self, chat_tokenizer):
        chat_tokenizer.chat_template = "{{ raise_exception('no system role') }}"
        with pytest.raises(PairsError, match="refuses the prompt of example 0: no system role"):
            tk.PromptPairs.from_text(self.rows(), chat_tokenizer, chat=True)
