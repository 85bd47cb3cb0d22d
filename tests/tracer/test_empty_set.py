"""The empty set, however it is given: its effect is 0, or a plain error says what takes members."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import tracekit as tk
from tracekit.cli.options import read_masks
from tracekit.errors import ComponentError, DataFormatError, MaskError, PairsError

FORMS = [[], (), {}, set(), frozenset(), range(0), {1: []}, {0: (), 1: []}, [0] * 32]
FORMS += [torch.zeros(32), np.zeros((4, 8)), torch.zeros(32, dtype=torch.bool)]


@pytest.fixture(scope="module")
def tracer(demo_model):
    pairs = tk.load_dataset("demo-facts", demo_model)[:8]
    return tk.Tracer(
        demo_model, pairs[:4], "head-outputs", "probability-drop", source="zero", held_out=pairs[4:]
    )


@pytest.mark.parametrize("given", FORMS, ids=repr)
def test_its_effect_is_zero(tracer, given):
    assert tracer.evaluate(given) == tracer.evaluate(given, held_out=True) == 0
    assert tracer.evaluate(given, per_example=True).tolist() == [0] * 4
    assert (tracer.evaluate(given, metrics=["kl", "odds-ratio"]).loc["effect"] == 0).all()
    result = tracer.as_result(given)
    assert (result.effect, result.labels) == (0, [])


@pytest.mark.parametrize("given", [[], {}], ids=repr)
def test_it_changes_nothing(tracer, given, tmp_path):
    written = tracer.generate(given, "the pilot", max_new_tokens=3)
    assert written.clean == written.intervened
    assert tracer.export(given, tmp_path / "out").written_effects.tolist() == [0] * 4
    tokens = torch.tensor([[3, 4, 5]])
    before = tracer.model(tokens)
    with tracer.steer(given) as steered:
        assert torch.equal(steered(tokens), before)
    assert tracer.faithfulness(given).faithfulness == (0,)


@pytest.mark.parametrize("given", [[], {}, torch.zeros(32)], ids=repr)
@pytest.mark.parametrize(
    ("ask", "error", "remedy"),
    [
        (lambda tracer, given: tracer.explain(given), ComponentError, "Give at least two"),
        (lambda tracer, given: tracer.minimality(given), ComponentError, "Give at least one"),
        (lambda tracer, given: tracer.paths(given), ComponentError, "Give 1 to"),
        (lambda tracer, given: tracer.attention(given), ComponentError, "Give head-outputs"),
        (lambda tracer, given: tracer.interactions(given), ComponentError, "Choose 2 to"),
        (
            lambda tracer, given: tracer.side_effects(given, {"a": tracer.pairs}),
            PairsError,
            "Give at least one",
        ),
    ],
)
def test_where_members_are_needed_an_error_says_so(tracer, given, ask, error, remedy):
    with pytest.raises(error, match=remedy):
        ask(tracer, given)


@pytest.mark.parametrize("given", [None, "", torch.zeros(0), [[]], {1: None}], ids=repr)
def test_what_is_no_set_is_refused(tracer, given):
    with pytest.raises((MaskError, ComponentError), match=r"mask|is not among"):
        tracer.evaluate(given)


def test_a_file_may_hold_it(tracer, tmp_path):
    file = tmp_path / "mask.json"
    for empty in ([], [[]], [0] * 32):
        file.write_text(json.dumps(empty))
        [(_, mask)] = read_masks(file)
        assert tracer.evaluate(mask) == 0
    for wrong in ({}, None, 1, "", {"a": 1}):
        file.write_text(json.dumps(wrong))
        with pytest.raises(DataFormatError, match="holds no mask"):
            read_masks(file)
