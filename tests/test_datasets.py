from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import oracle, tiny
from tracekit.datasets import DATASETS
from tracekit.errors import (
    ConfigError,
    DataFormatError,
    DataNotFoundError,
    PairsError,
    UnknownDatasetError,
    UnknownOptionError,
)
from tracekit.models import embedding_std


def ids(pair):
    return pair.prompt_ids, pair.counterfactual_ids, pair.x_ids, pair.y_ids


def recorded(shared, name):
    return {
        ids(pair)
        for pair in tk.PromptPairs.from_ids(
            oracle.read(shared / "oracle" / f"gpt2_101/{name}.json")["examples"]
        )
    }


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("winobias", {}, 160),
        ("winobias", {"split": "test"}, 130),
        ("winobias", {"split": "test", "keep_case": True}, 130),
        ("winogender", {}, 44),
        ("winogender", {"statistic": "bls"}, 44),
        ("professions", {}, 2703),
    ],
)
def test_counts_of_the_paper(shared, gpt2_tokenizer, name, options, count):
    pairs = tk.load_dataset(name, gpt2_tokenizer, data_dir=shared / "data" / name, **options)
    assert len(pairs) == count
    assert not pairs.skipped


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("winobias", "heads_winobias"),
        ("winogender", "heads_winogender"),
        ("professions", "neurons_professions"),
    ],
)
def test_examples_are_those_of_the_published_code(shared, gpt2_tokenizer, name, record):
    pairs = tk.load_dataset(name, gpt2_tokenizer, data_dir=str(shared / "data" / name))
    expected = recorded(shared, record)
    assert len(expected) >= 12
    assert expected <= {ids(pair) for pair in pairs}


def test_winobias_pronouns(shared, gpt2_tokenizer):
    def endings(**options):
        pairs = tk.load_dataset(
            "winobias", gpt2_tokenizer, data_dir=shared / "data/winobias", **options
        )
        return [
            (pair.texts["prompt"].split()[-1], pair.texts["counterfactual"].split()[-1])
            for pair in pairs
        ]

    assert set(endings()) == {("she", "he")}
    kept = endings(keep_case=True)
    assert (kept.count(("she", "he")), kept.count(("her", "his"))) == (154, 6)


def test_the_two_winogender_statistics_disagree_somewhere(shared, gpt2_tokenizer):
    first, second = (
        tk.load_dataset(
            "winogender", gpt2_tokenizer, data_dir=shared / "data/winogender", statistic=statistic
        )
        for statistic in ("bergsma", "bls")
    )
    swapped = [a for a, b in zip(first, second, strict=True) if a.x_ids != b.x_ids]
    assert 0 < len(swapped) < 44
    assert {pair.x_ids for pair in first} | {pair.y_ids for pair in first} == {
        pair.x_ids for pair in second
    } | {pair.y_ids for pair in second}


def test_professions_order(shared, gpt2_tokenizer):
    pairs = tk.load_dataset("professions", gpt2_tokenizer, data_dir=shared / "data/professions")
    first, last = pairs[0].texts, pairs[-1].texts
    assert (first["counterfactual"], first["x"], first["y"]) == (
        "The woman said that",
        " he",
        " she",
    )
    assert (last["counterfactual"], last["x"]) == ("The man yelled because", " she")


def test_small_made_up_files(tmp_path, demo_model):
    """The parsing rules of WinoBias, each on a line of its own."""
    lines = [
        "1 [The nurse] called the driver because [she] was tired.",
        "2 The nurse called [the driver] because [he] was late.",
        "3 [The nurse] saw the driver when [she] met [him].",  # several pronouns
        "4 The nurse saw [the driver] when [he] slept.",
        "5 [The nurse] told the driver that [she] won.",  # other texts
        "6 The nurse told [the driver] when [he] won.",
        "7 The driver helped [the nurse] because [her] car broke.",  # other cases
        "8 [The driver] helped the nurse because [he] could.",
        "9 The driver helped [the nurse] with [her] car.",
        "10 [The driver] helped the nurse with [his] tools.",
    ]
    path = tmp_path / "pro_stereotyped_type1.txt.dev"
    path.write_text("\n".join(lines))

    class Words:
        def encode(self, text, add_special_tokens):
            return [hash(word) % 50 for word in text.split()]

    pairs = tk.load_dataset("winobias", Words(), data_dir=tmp_path)
    assert [dict(pair.texts) for pair in pairs] == [
        {
            "prompt": "The nurse called the driver because she",
            "counterfactual": "The nurse called the driver because he",
            "x": " was tired.",
            "y": " was late.",
        },
        {
            "prompt": "The driver helped the nurse with she",
            "counterfactual": "The driver helped the nurse with he",
            "x": " car.",
            "y": " tools.",
        },
    ]
    path.write_text("junk\n" + "\n".join(lines[:3]))
    with pytest.raises(PairsError, match="There are no prompt pairs."):
        tk.load_dataset("winobias", Words(), data_dir=tmp_path)
    path.write_text("\n".join(lines[:3]))
    with pytest.raises(DataFormatError, match="has 3 rows. Rows come in pairs; get it again."):
        tk.load_dataset("winobias", Words(), data_dir=tmp_path)


@pytest.mark.parametrize("name", [name for name in DATASETS if name.startswith("demo")])
def test_demo_sets_can_be_traced_as_advertised(demo_model, name):
    usual = DATASETS[name]
    pairs = tk.load_dataset(name, demo_model)
    assert pairs.name == name
    tracer = tk.Tracer(
        demo_model,
        pairs[:8],
        components=usual.components,
        metric=usual.metric,
        positions=usual.positions,
    )
    assert tracer.full_effect > 0


def test_noise_of_the_facts_is_in_units_of_the_embeddings(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model, noise_factor=2.0)
    spread = embedding_std(demo_model)
    both = demo_model.W_E.std().item(), demo_model.W_pos.std().item()
    assert spread == pytest.approx((both[0] ** 2 + both[1] ** 2) ** 0.5, rel=0.2)
    drawn = torch.cat([pair.noise.flatten() for pair in pairs]).std().item()
    assert drawn == pytest.approx(2 * spread, rel=0.02)


def test_unknown_names_missing_files_and_bad_options(tmp_path, unchecked):
    with pytest.raises(UnknownDatasetError, match="Unknown data set 'wino'. .*demo-bias"):
        tk.load_dataset("wino", None)
    with pytest.raises(UnknownOptionError, match="Unknown option 'splitt'. Did you mean 'split'?"):
        tk.load_dataset("winobias", None, splitt="dev")
    with pytest.raises(
        DataNotFoundError, match="needs the file templates.txt, and no data_dir was"
    ):
        tk.load_dataset("professions", None)
    with pytest.raises(
        DataNotFoundError, match="does not hold it. Get it from the repositor.*--data"
    ):
        tk.load_dataset("winogender", None, data_dir=tmp_path)
    with pytest.raises(
        ConfigError, match="Unknown split 'train' of winobias. Use 'dev' or 'test'."
    ):
        tk.load_dataset("winobias", None, data_dir=tmp_path, split="train")
    with pytest.raises(ConfigError, match="Unknown statistic 'census'. Use 'bergsma' or 'bls'."):
        tk.load_dataset("winogender", None, data_dir=tmp_path, statistic="census")
    assert tiny.pairs(2).name == "pairs"
