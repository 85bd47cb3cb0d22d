"""Searches that train on newly drawn pairs instead of the searched examples."""

from __future__ import annotations

from html import unescape
from itertools import count, islice, repeat

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ConfigError, PairsError
from tracekit.measure.training_pairs import TrainingSource

TRAINED = {
    "pgb-ct": {"lambda1": 1e-3, "epochs": 3},
    "dcm": {"lambda1": 1e-3, "epochs": 3},
    "learned-ranking": {"epochs": 3, "steps": 2},
}
PAIRS = tiny.pairs(8, seed=3)


class Draws:
    """Batches of new pairs, the same in every iteration; counts how many were taken."""

    def __init__(self, first_seed=100, n=4):
        self.first_seed, self.n, self.taken = first_seed, n, []

    def __iter__(self):
        for seed in count(self.first_seed):
            pairs = tiny.pairs(self.n, seed=seed)
            self.taken.append(pairs.fingerprint)
            yield pairs


def make_tracer(model, pairs=PAIRS, **options):
    return tk.Tracer(model, pairs, metric="probability-ratio", progress=False, **options)


@pytest.mark.parametrize("method", TRAINED)
def test_training_is_on_the_drawn_pairs(model, method, monkeypatch):
    source, seen = Draws(), []
    gradient = tk.engine.Engine.gradient

    def noted(self, mask, weights, examples=None):
        seen.append(self.pairs.fingerprint)
        return gradient(self, mask, weights, examples)

    monkeypatch.setattr(tk.engine.Engine, "gradient", noted)
    result = make_tracer(model).run(
        method, budget=3, training_pairs=source, **TRAINED[method], batch_size=8
    )
    # Two batches of four are as many as are searched; each epoch is one step.
    assert len(source.taken) == 2 * 3
    drawn = list(dict.fromkeys(each for each in seen if each != PAIRS.fingerprint))
    assert len(drawn) == 3
    assert result.run.training.n_pairs == 24
    # What a set does is still measured on the searched examples.
    assert result.dataset_fingerprint == PAIRS.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pgb-ct", "dcm"])
def test_a_mask_is_that_of_a_tracer_of_the_drawn_pairs(model, method):
    others = tiny.pairs(12, seed=77)  # More than are searched.
    elsewhere = make_tracer(model, others).run(method, **TRAINED[method])
    here = make_tracer(model).run(method, training_pairs=repeat(others), **TRAINED[method])
    assert torch.allclose(here.soft_mask, elsewhere.soft_mask, atol=1e-6)
    given = make_tracer(model).run(method, **TRAINED[method])
    assert not torch.allclose(here.soft_mask, given.soft_mask, atol=1e-3)


@pytest.mark.slow
def test_what_was_drawn_is_recorded_and_can_be_drawn_again(model, tmp_path):
    run = {"budget": 3, **TRAINED["learned-ranking"]}
    first, again, other = (
        make_tracer(model).run("learned-ranking", training_pairs=Draws(seed), **run)
        for seed in (100, 100, 200)
    )
    assert first.run.training == again.run.training
    assert torch.equal(first.soft_mask, again.soft_mask)
    assert first.run.training.fingerprint != other.run.training.fingerprint
    assert first.run.training.code is None
    first.save(tmp_path)
    assert tk.TraceResult.load(tmp_path).run.training == first.run.training
    assert make_tracer(model).run("learned-ranking", **run).run.training is None


def test_a_generated_data_set_is_drawn_again_by_its_code(model, monkeypatch):
    def load(name, model, *, n, seed):
        assert name == "ioi"
        return tiny.pairs(n, seed=seed)

    monkeypatch.setattr("tracekit.data.registry.load_dataset", load)
    source = tk.data.endless_pairs("ioi", model, n=4, first_seed=50)
    run = {"budget": 3, **TRAINED["learned-ranking"]}
    result = make_tracer(model).run("learned-ranking", training_pairs=source, **run)
    code = result.run.training.code
    assert code == "tk.data.endless_pairs('ioi', model, first_seed=50, n=4)"
    again = make_tracer(model).run("learned-ranking", training_pairs=eval(code), **run)
    assert again.run.training == result.run.training


@pytest.mark.slow
def test_a_report_says_which_pairs_were_drawn(model, monkeypatch, tmp_path):
    def load(name, model, *, n, seed):
        return tiny.pairs(n, seed=seed)

    monkeypatch.setattr("tracekit.data.registry.load_dataset", load)
    sources = {
        "training_pairs=tk.data.endless_pairs('ioi', model, first_seed=50, n=4)": (
            tk.data.endless_pairs("ioi", model, n=4, first_seed=50)
        ),
        "the training pairs are of no generated data set": Draws(),
    }
    for text, source in sources.items():
        result = make_tracer(model).run("dcm", budget=3, training_pairs=source, **TRAINED["dcm"])
        page = unescape(tk.report(result, tmp_path / "report.html").read_text())
        assert text in page


def test_searched_and_held_out_pairs_are_never_trained_on(model):
    held_out = tiny.pairs(4, seed=9)
    mixed = [
        tk.PromptPairs(pairs=(*held_out.pairs, *PAIRS.pairs, *tiny.pairs(8, seed=seed).pairs))
        for seed in (100, 101)
    ]
    question = make_tracer(model, held_out=held_out).question
    drawn = [engine.pairs for engine in islice(TrainingSource(question, mixed).engines(), 2)]
    assert [[pair.prompt_ids for pair in pairs] for pairs in drawn] == [
        [pair.prompt_ids for pair in tiny.pairs(8, seed=seed)] for seed in (100, 101)
    ]


def test_drawing_and_running_the_pairs_is_paid_for(model):
    options = {"lambda1": 1e-3, "epochs": 3}
    given = make_tracer(model).run("dcm", **options)
    drawn = make_tracer(model).run("dcm", training_pairs=Draws(n=8), **options)
    # The clean and the counterfactual run of each of three batches.
    assert drawn.run.cost.backward == given.run.cost.backward
    assert 5 <= drawn.run.cost.forward - given.run.cost.forward <= 7


REFUSED = {
    "no training": (
        {"method": "top-k", "training_pairs": Draws()},
        ConfigError,
        "The method 'top-k' does not train on pairs. Leave out training_pairs, or use "
        "learned-ranking, pgb-ct or dcm.",
    ),
    "a constraint": (
        {
            "method": "dcm",
            "training_pairs": Draws(),
            "constraint": tk.Constraint(pairs=tiny.pairs(4, seed=5), at_most=0.1),
        },
        ConfigError,
        "A constraint is measured on the searched examples, and training_pairs are others. Leave "
        "one of them out.",
    ),
    "pairs with an end": (
        {"method": "dcm", "training_pairs": PAIRS},
        PairsError,
        "training_pairs is PromptPairs(p",
    ),
    "no pairs": (
        {"method": "dcm", "lambda1": 1e-3, "training_pairs": [["a"]]},
        PairsError,
        "A batch of training pairs is ['a']. Give PromptPairs.",
    ),
    "an end": (
        {"method": "dcm", "lambda1": 1e-3, "training_pairs": [tiny.pairs(8, seed=100)]},
        PairsError,
        "The source of training pairs has run out of new pairs, after 8 of them. Give one without "
        "end, take fewer epochs, or leave out training_pairs.",
    ),
    "only searched pairs": (
        {"method": "dcm", "lambda1": 1e-3, "training_pairs": repeat(PAIRS)},
        PairsError,
        "The source of training pairs has run out of new pairs, after 0 of them.",
    ),
    "an order": (
        {
            "method": "dcm",
            "lambda1": 1e-3,
            "epochs": 1,
            "example_order": [list(range(8))],
            "training_pairs": Draws(),
        },
        ConfigError,
        "example_order orders the given examples, and the search trains on others. Leave out "
        "example_order or training_pairs.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_on_is_refused(model, case):
    options, error, text = REFUSED[case]
    with pytest.raises(error) as raised:
        make_tracer(model).run(**options)
    assert str(raised.value).startswith(text)
