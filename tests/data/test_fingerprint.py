"""The fingerprint of a data set: of the pairs that were given, and of nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ComparisonError, ResultFormatError
from tracekit.measure.question import bind

SPANS = {"first": [0, 1], "second": [1, 2]}


def rows(n=6):
    """Pairs of one length with spans, groups and weights."""
    generator = torch.Generator().manual_seed(3)

    def drawn(count):
        return torch.randint(1, 49, (count,), generator=generator).tolist()

    return [
        {
            "prompt_ids": drawn(4),
            "counterfactual_ids": drawn(4),
            "x_ids": [51],
            "y_ids": [52],
            "spans": SPANS,
            "group": f"template {number // 2}",
            "weight": 1.0 + number,
        }
        for number in range(n)
    ]


PAIRS = tk.PromptPairs.from_ids(rows())


BY_NAME = ("counterfactual", "zero", "mean", "mean-positional", "resample", "noise")
NAMES = (*BY_NAME, "Mean", "Noise", "OtherModel", "tensors")


def another(seed):
    """A model of the same class with other weights."""
    return tk.load_model(tiny.hf_model("gpt2", seed=seed))


def sources(model):
    """A source of every form."""
    return {
        **dict.fromkeys(BY_NAME),
        "Mean": tk.Mean(pairs=tiny.pairs(4)),
        "Noise": tk.Noise(spans=("first",), factor=2.0),
        "OtherModel": tk.OtherModel(another(1)),
        "tensors": {
            f"blocks.{layer}.attn.hook_z": torch.ones(model.cfg.n_heads, model.cfg.d_head)
            for layer in range(model.cfg.n_layers)
        },
    }


@pytest.fixture(scope="module")
def gpt2():
    return tiny.shared_model("gpt2")


def has_run(source):
    """Whether denoising can start from it."""
    return source in ("counterfactual", "resample", "noise", "Noise")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_pairs_have_one_fingerprint(gpt2, name):
    """Whatever source, seed, direction and split, and whichever object the model is."""
    source = sources(gpt2)[name] or name
    cases = [{}, {"source_seed": 5}]
    if name != "mean-positional":
        cases += [{"split_by": split} for split in ("span", "position", "first")]
    if name in ("counterfactual", "resample", "noise", "Noise"):
        cases += [{"direction": "denoising"}]
    for options in cases:
        setup = tk.Setup(components="head-outputs", source=source, **options)
        for model in (gpt2, *[another(3)] * (options == {})):
            config = tk.engine.EngineConfig()
            question = bind(setup, model, PAIRS, config, held_out=PAIRS[4:])
            for part in (PAIRS, PAIRS[4:]):
                assert question.engine_of(part).fingerprint == part.fingerprint, options


def test_results_say_the_fingerprint_of_what_was_given(gpt2):
    for options in ({"source": "zero"}, {"direction": "denoising"}, {"split_by": "span"}):
        tracer = tk.Tracer(gpt2, PAIRS[:4], "head-outputs", held_out=PAIRS[4:], **options)
        result = tracer.run("top-k", budget=1)
        assert tracer.pairs.fingerprint == PAIRS[:4].fingerprint, options
        assert result.searched.fingerprint == result.dataset_fingerprint == PAIRS[:4].fingerprint
        assert result.held_out.fingerprint == tracer.held_out.fingerprint == PAIRS[4:].fingerprint


def changed(**values):
    """The pairs with other values in the first row."""
    first, *rest = rows()
    return tk.PromptPairs.from_ids([{**first, **values}, *rest])


DIFFERENT = {
    "as given": lambda: PAIRS,
    "prompt": lambda: changed(prompt_ids=[5, 6, 7, 8]),
    "counterfactual": lambda: changed(counterfactual_ids=[5, 6, 7, 8]),
    "no counterfactual": lambda: changed(counterfactual_ids=None),
    "noise": lambda: changed(counterfactual_ids=None, noise=torch.zeros(4, 16)),
    "x": lambda: changed(x_ids=[53]),
    "longer x": lambda: changed(x_ids=[51, 52]),
    "y": lambda: changed(y_ids=[53]),
    "no y": lambda: changed(y_ids=None),
    "x set": lambda: changed(x_set_ids=[51, 54]),
    "y set": lambda: changed(y_set_ids=[52, 54]),
    "spans": lambda: changed(spans={"first": [0, 2], "second": [2, 3]}),
    "names of spans": lambda: changed(spans={"first": [0, 1], "third": [1, 2]}),
    "no spans": lambda: changed(spans=None),
    "spans of the counterfactual": lambda: changed(
        counterfactual_spans={"first": [1, 2], "second": [2, 3]}
    ),
    "group": lambda: changed(group="template 2"),
    "no group": lambda: changed(group=None),
    "weight": lambda: changed(weight=9.0),
    "order": lambda: PAIRS[[1, 0, 2, 3, 4, 5]],
    "fewer": lambda: PAIRS[:5],
    "one twice": lambda: PAIRS[[0, 0, 1, 2, 3, 4, 5]],
    "reversed": lambda: PAIRS.reversed(),
    "zeros by hand": lambda: (
        tk.Tracer(tiny.shared_model("gpt2"), PAIRS, "head-outputs", source="zero").engine.pairs
    ),
}


def test_different_pairs_have_different_fingerprints():
    prints = {name: make().fingerprint for name, make in DIFFERENT.items()}
    for first, second in combinations(prints, 2):
        assert prints[first] != prints[second], (first, second)


def test_names_texts_and_scale_do_not_count():
    with_text = [{**row, "prompt": "said", "weight": 2 * row["weight"]} for row in rows()]
    other = tk.PromptPairs.from_ids(with_text, name="other")
    assert replace(other, skipped=("a line",)).fingerprint == PAIRS.fingerprint


@pytest.mark.slow
def test_two_sources_of_one_name_give_the_same_values(gpt2):
    """What a source was given beyond its name is a part of the name, as a digest."""
    values = sources(gpt2)["tensors"]
    for same, other in (
        (lambda: tk.Mean(pairs=tiny.pairs(4)), tk.Mean(pairs=tiny.pairs(5))),
        (lambda: {n: v.clone() for n, v in values.items()}, {n: 2 * v for n, v in values.items()}),
        (
            lambda: tk.OtherModel(another(1)),
            tk.OtherModel(another(2)),
        ),
    ):
        first, again, second = (
            tk.Tracer(gpt2, PAIRS, "head-outputs", source=source).run("top-k", budget=1)
            for source in (same(), same(), other)
        )
        assert first.setup == again.setup
        assert len(tk.compare([first, again])) == 2
        with pytest.raises(ComparisonError, match="of different sources"):
            tk.compare([first, second]).curve()


def test_results_of_two_draws_are_not_on_one_scale(gpt2):
    drawn = [
        tk.Tracer(gpt2, PAIRS, "head-outputs", source="noise", source_seed=seed).run(
            "top-k", budget=1
        )
        for seed in (0, 1)
    ]
    compared = tk.compare(drawn)
    assert compared.jaccard.shape == (2, 2)
    with pytest.raises(ComparisonError, match="of different seeds of the source"):
        compared.to_latex()


@pytest.mark.parametrize(
    "other",
    [{"source": "zero"}, {"source_seed": 1}, {"direction": "denoising"}],
    ids=str,
)
def test_a_checkpoint_of_another_source_is_refused(gpt2, tmp_path, other):
    own = {"source": "noise"}
    for options, is_same in ((own, True), (own, True), (own | other, False)):
        tracer = tk.Tracer(gpt2, PAIRS, "head-outputs", "logit-difference", **options)
        asked = {"budget": 2, "checkpoint": tmp_path / "search"}
        if is_same:
            tracer.run("local-search", **asked)
        else:
            with pytest.raises(ResultFormatError, match="of another search, model or data set"):
                tracer.run("local-search", **asked)


SAME_PROMPTS = {
    "groups": lambda: PAIRS.grouped([None] * 6),
    "weights": lambda: tk.PromptPairs.from_ids([{**row, "weight": 1} for row in rows()]),
    "y": lambda: tk.PromptPairs.from_ids([{**row, "y_ids": [50]} for row in rows()]),
    "part": lambda: PAIRS[1:4],
}


@pytest.mark.parametrize("source", ["counterfactual", "zero", "noise"])
def test_searched_examples_are_known_under_every_source(gpt2, source):
    """Also with other groups, weights and foils: the prompts are the evidence."""
    result = tk.Tracer(gpt2, PAIRS, "head-outputs", source=source).run("top-k", budget=1)
    assert result.searched.count_shared_pairs(PAIRS) == 6
    assert result.searched.count_shared_pairs(tiny.pairs(5)) == 0
    for name, make in SAME_PROMPTS.items():
        assert result.searched.count_shared_pairs(make()) == len(make()), name
    for measured_by in ("counterfactual", "zero"):
        given = SAME_PROMPTS["groups"]()
        tracer = tk.Tracer(gpt2, given, "head-outputs", source=measured_by)
        assert tracer.question.selected_on(result) == given.fingerprint
        assert "selected on" in tracer.faithfulness(result).examples


def test_a_tracer_takes_the_pairs_of_another(gpt2):
    """They are those that were given, so that no source or direction acts twice."""
    first = tk.Tracer(gpt2, PAIRS, "head-outputs", source="counterfactual", direction="denoising")
    second = tk.Tracer(gpt2, first.pairs, "head-outputs", direction="denoising")
    assert torch.equal(first.engine.full_effects, second.engine.full_effects)
    assert first.engine.pairs[0].prompt_ids == PAIRS[0].counterfactual.ids
