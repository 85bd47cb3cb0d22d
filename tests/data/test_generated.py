"""Data sets that are generated: indirect objects, greater-than, gendered pronouns; wordings."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from itertools import islice
from string import Formatter
from typing import get_args

import pytest

import tracekit as tk
from tracekit.data import DATASETS, generated
from tracekit.errors import ConfigError, UnknownOptionError

WORDED = ("ioi", "greater-than", "gendered-pronouns", "variable-binding")
"""Data sets with several wordings."""


def text(tokenizer, ids):
    return tokenizer.decode(list(ids))


@pytest.mark.parametrize("counterfactual", ["abc", "flip"])
@pytest.mark.parametrize("prepend_bos", [False, True])
@pytest.mark.parametrize("wording", get_args(generated.IOIWording))
def test_indirect_objects(gpt2_tokenizer, counterfactual, prepend_bos, wording):
    options = {"counterfactual": counterfactual, "prepend_bos": prepend_bos, "wording": wording}
    pairs = generated.load_ioi(gpt2_tokenizer, n=40, **options)
    assert len(pairs) == 40
    orders = set()
    for pair in pairs:
        words = [text(gpt2_tokenizer, [token]) for token in pair.prompt_ids]
        (io,), (s1,), (s2,) = (pair.spans[name] for name in ("IO", "S1", "S2"))
        subject, indirect = text(gpt2_tokenizer, pair.y_ids), text(gpt2_tokenizer, pair.x_ids)
        assert words[io] == indirect
        assert words[s1] == words[s2] == subject
        assert words.count(indirect) == 1
        orders.add(io < s1)
        other = [text(gpt2_tokenizer, [token]) for token in pair.counterfactual.ids]
        if counterfactual == "flip":
            assert other[s2] == indirect
            assert [w for i, w in enumerate(other) if i != s2] == [
                w for i, w in enumerate(words) if i != s2
            ]
        else:
            assert len({other[io], other[s1], other[s2], indirect, subject}) == 5
    assert orders == {True, False}
    again = generated.load_ioi(gpt2_tokenizer, n=40, **options)
    assert again.fingerprint == pairs.fingerprint
    assert generated.load_ioi(gpt2_tokenizer, n=40, seed=1).fingerprint != pairs.fingerprint


def test_pairs_without_end_have_one_seed_after_the_other(gpt2_tokenizer):
    source = tk.data.endless_pairs("ioi", gpt2_tokenizer, n=5, first_seed=3, counterfactual="flip")
    expected = [
        tk.load_dataset("ioi", gpt2_tokenizer, n=5, seed=seed, counterfactual="flip").fingerprint
        for seed in (3, 4, 5)
    ]
    assert isinstance(source, tk.data.EndlessPairs)
    again = eval(source.code(), {"tk": tk, "model": gpt2_tokenizer})
    assert next(iter(again)).fingerprint == next(iter(source)).fingerprint
    # Each iteration begins at the first seed, also while another one is under way.
    first = iter(source)
    assert next(first).fingerprint == expected[0]
    assert [pairs.fingerprint for pairs in islice(source, 3)] == expected
    assert next(first).fingerprint == expected[1]
    with pytest.raises(FrozenInstanceError):
        source.first_seed = 4
    with pytest.raises(ConfigError, match="'winobias' is not drawn by a seed. Use one of counterf"):
        tk.data.endless_pairs("winobias", gpt2_tokenizer)


def test_further_pairs_are_of_the_seeds_after_that_of_given_ones(gpt2_tokenizer):
    pairs = tk.load_dataset("ioi", gpt2_tokenizer, n=5, seed=3, wording="friends")[:2]
    source = tk.data.further_pairs(pairs, gpt2_tokenizer)
    assert (source.dataset, source.first_seed) == ("ioi", 4)
    assert source.options == {"n": 16, "wording": "friends"}
    by_wording = tk.data.further_pairs(pairs, gpt2_tokenizer, by_wording=True)
    assert {name: each.options["wording"] for name, each in by_wording.items()} == {
        name: name for name in tk.data.DATASETS["ioi"].wordings
    }
    text = "generated from a seed, .* Load them with tk.load_dataset, or give pairs of your own"
    with pytest.raises(ConfigError, match=text):
        tk.data.further_pairs(replace(pairs, origin=None), gpt2_tokenizer)


@pytest.mark.parametrize("wording", get_args(generated.YearWording))
def test_greater_than(gpt2_tokenizer, wording):
    pairs = generated.load_greater_than(gpt2_tokenizer, n=50, wording=wording)
    for pair in pairs:
        prompt = text(gpt2_tokenizer, pair.prompt_ids)
        ((century, last),) = re.findall(r" (1\d)(\d\d)\b", prompt)
        year = int(last)
        assert prompt.endswith(f" {century}")
        right = [int(text(gpt2_tokenizer, [token])) for token in pair.x_set_ids]
        wrong = [int(text(gpt2_tokenizer, [token])) for token in pair.y_set_ids]
        assert sorted(right) == list(range(year + 1, 100))
        assert sorted(wrong) == list(range(year + 1))
        early = text(gpt2_tokenizer, pair.counterfactual.ids)
        assert early == prompt.replace(f" {century}{last}", f" {century}01")
        assert pair.x_ids[0] in pair.x_set_ids
        assert pair.y_ids[0] in pair.y_set_ids


@pytest.mark.parametrize("wording", get_args(generated.PronounWording))
def test_gendered_pronouns(gpt2_tokenizer, wording):
    pairs = generated.load_gendered_pronouns(gpt2_tokenizer, n=30, wording=wording)
    answers = [text(gpt2_tokenizer, pair.x_ids) for pair in pairs]
    assert answers == [" she", " he"] * 15
    for pair in pairs:
        (position,) = pair.spans["name"]
        name = text(gpt2_tokenizer, [pair.prompt_ids[position]]).strip()
        other = text(gpt2_tokenizer, [pair.counterfactual.ids[position]]).strip()
        women = name in generated.FEMALE
        assert women == (text(gpt2_tokenizer, pair.x_ids) == " she")
        assert women != (other in generated.FEMALE)
        differing = sum(
            a != b for a, b in zip(pair.prompt_ids, pair.counterfactual.ids, strict=True)
        )
        assert differing == 1


@pytest.mark.parametrize("name", ["ioi", "greater-than", "gendered-pronouns"])
def test_tokenizers_that_split_are_refused(demo_model, name):
    with pytest.raises(ConfigError, match=f"data set {name} needs"):
        tk.load_dataset(name, demo_model)


def test_options(gpt2_tokenizer):
    assert len(tk.load_dataset("ioi", gpt2_tokenizer, n=3, counterfactual="flip")) == 3
    for name in ("ioi", "greater-than", "gendered-pronouns"):
        assert len(tk.load_dataset(name, gpt2_tokenizer)) == 100
        with pytest.raises(ConfigError, match="n is 0. Give a whole number, at least 1"):
            tk.load_dataset(name, gpt2_tokenizer, n=0)
    with pytest.raises(ConfigError):
        tk.load_dataset("ioi", gpt2_tokenizer, counterfactual="other")


@pytest.mark.parametrize(
    ("name", "options", "fingerprint"),
    [
        ("ioi", {}, "29acb0c0db7d46b5"),
        ("ioi", {"counterfactual": "flip"}, "abe13c6ad0f92888"),
        ("greater-than", {}, "949947fb2d47003b"),
        ("gendered-pronouns", {}, "e4afa0cb69e405ba"),
        ("variable-binding", {}, "4c613607a681e316"),
        ("variable-binding", {"split": "test"}, "bedec8430597745b"),
        ("variable-binding", {"desideratum": "operation", "split": "test"}, "45b7f7a6c434ac72"),
    ],
)
def test_a_seed_draws_the_same_examples_in_every_release(
    gpt2_tokenizer, name, options, fingerprint
):
    """Numbers in papers belong to these examples: a change belongs in the CHANGELOG."""
    pairs = tk.load_dataset(name, gpt2_tokenizer, n=20, **options)
    assert pairs.fingerprint[:16] == fingerprint


class TestWordings:
    """What the wordings of a data set have in common, and that they differ."""

    @pytest.mark.parametrize("name", WORDED)
    def test_each_is_an_option_and_has_templates(self, name):
        wordings = DATASETS[name].wordings
        assert wordings == tuple(generated.WORDS[name])
        assert len(wordings) >= 6
        assert [each for each in DATASETS if DATASETS[each].wordings] == [*WORDED]

    @pytest.mark.parametrize("name", WORDED)
    def test_templates_have_the_same_fields_and_another_beginning(self, name):
        default, *others = (
            templates[:1] if name == "variable-binding" else templates
            for templates in generated.WORDS[name].values()
        )

        def fields(template):
            return sorted(field for _, field, _, _ in Formatter().parse(template) if field)

        usual = fields(default[0])
        beginnings = {" ".join(template.split()[:3]) for template in default}
        for template in (template for templates in others for template in templates):
            assert fields(template) == usual
            if template != generated.WORDS[name].get("code", [""])[0]:
                assert " ".join(template.split()[:3]) not in beginnings
            # Names are single tokens after a space only.
            assert not re.search(r"(?<! )\{(A|B|C|name)\}", template)

    @pytest.mark.parametrize("name", WORDED)
    def test_their_prompts_are_disjoint(self, gpt2_tokenizer, name):
        prompts = [
            {
                ids
                for pair in tk.load_dataset(name, gpt2_tokenizer, n=50, wording=wording)
                for ids in (pair.prompt_ids, pair.counterfactual.ids)
            }
            for wording in DATASETS[name].wordings
        ]
        assert len(set.union(*prompts)) == sum(map(len, prompts))

    @pytest.mark.parametrize("name", WORDED)
    def test_the_first_is_the_default(self, gpt2_tokenizer, name):
        named = tk.load_dataset(name, gpt2_tokenizer, n=8, wording=DATASETS[name].wordings[0])
        assert named.fingerprint == tk.load_dataset(name, gpt2_tokenizer, n=8).fingerprint

    def test_an_unknown_one_is_refused(self, gpt2_tokenizer, unchecked):
        message = "option wording is 'rhyme'. Input should be 'default', 'friends', 'argument'"
        with pytest.raises(ConfigError, match=message):
            tk.load_dataset("ioi", gpt2_tokenizer, wording="rhyme")

    def test_fresh_pairs_of_each(self, gpt2_tokenizer):
        options = {"n": 3, "first_seed": 5, "counterfactual": "flip"}
        wordings = tk.data.wordings("ioi", gpt2_tokenizer, **options)
        assert tuple(wordings) == DATASETS["ioi"].wordings
        for wording, source in wordings.items():
            for seed, pairs in zip((5, 6), source, strict=False):
                options = {"counterfactual": "flip", "wording": wording, "n": 3, "seed": seed}
                same = tk.load_dataset("ioi", gpt2_tokenizer, **options)
                assert pairs.fingerprint == same.fingerprint
                assert pairs.origin.options == options

    def test_data_sets_with_one_only_are_refused(self, gpt2_tokenizer):
        message = f"'counterfact' has one wording only. Use one of {', '.join(WORDED)}."
        with pytest.raises(ConfigError, match=message):
            tk.data.wordings("counterfact", gpt2_tokenizer)
        with pytest.raises(UnknownOptionError, match="Unknown option 'wording'"):
            tk.data.wordings("ioi", gpt2_tokenizer, wording="friends")
