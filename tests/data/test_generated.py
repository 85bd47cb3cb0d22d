"""Data sets that are generated: indirect objects, greater-than, gendered pronouns."""

from __future__ import annotations

import pytest

import tracekit as tk
from tracekit.data import generated
from tracekit.errors import ConfigError


def text(tokenizer, ids):
    return tokenizer.decode(list(ids))


@pytest.mark.parametrize("counterfactual", ["abc", "flip"])
@pytest.mark.parametrize("prepend_bos", [False, True])
def test_indirect_objects(gpt2_tokenizer, counterfactual, prepend_bos):
    pairs = generated.load_ioi(
        gpt2_tokenizer, n=40, counterfactual=counterfactual, prepend_bos=prepend_bos
    )
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
    assert (
        pairs.fingerprint
        == generated.load_ioi(
            gpt2_tokenizer, n=40, counterfactual=counterfactual, prepend_bos=prepend_bos
        ).fingerprint
    )
    assert generated.load_ioi(gpt2_tokenizer, n=40, seed=1).fingerprint != pairs.fingerprint


def test_pairs_without_end_have_one_seed_after_the_other(gpt2_tokenizer):
    source = tk.data.endless_pairs("ioi", gpt2_tokenizer, n=5, first_seed=3, counterfactual="flip")
    for seed in (3, 4, 5):
        pairs = tk.load_dataset("ioi", gpt2_tokenizer, n=5, seed=seed, counterfactual="flip")
        assert next(source).fingerprint == pairs.fingerprint
    with pytest.raises(ConfigError, match="'winobias' is not drawn by a seed. Use one of counterf"):
        tk.data.endless_pairs("winobias", gpt2_tokenizer)


def test_greater_than(gpt2_tokenizer):
    pairs = generated.load_greater_than(gpt2_tokenizer, n=50)
    for pair in pairs:
        prompt = text(gpt2_tokenizer, pair.prompt_ids)
        year = int(prompt.split(" to the year")[0][-2:])
        assert prompt.endswith(prompt.split("the year ")[1][:2])
        right = [int(text(gpt2_tokenizer, [token])) for token in pair.x_set_ids]
        wrong = [int(text(gpt2_tokenizer, [token])) for token in pair.y_set_ids]
        assert sorted(right) == list(range(year + 1, 100))
        assert sorted(wrong) == list(range(year + 1))
        early = text(gpt2_tokenizer, pair.counterfactual.ids)
        assert early == prompt.replace(f"{year:02d} to", "01 to")
        assert pair.x_ids[0] in pair.x_set_ids
        assert pair.y_ids[0] in pair.y_set_ids


def test_gendered_pronouns(gpt2_tokenizer):
    pairs = generated.load_gendered_pronouns(gpt2_tokenizer, n=30)
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
