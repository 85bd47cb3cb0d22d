"""Explanations are saved whole, and refused where they were changed or are of another run."""

from __future__ import annotations

import json

import pytest
import torch

import tracekit as tk
from tracekit.anatomy.explanation_files import FILES, check_of_run
from tracekit.errors import ResultFormatError, ResultNotFoundError
from tracekit.results.storage import read_run, write_run


@pytest.fixture(scope="module")
def result(tracer):
    return tracer.run("top-k", budget=4)


@pytest.fixture(scope="module")
def why(tracer, result):
    return tracer.explain(result)


def assert_same(again, why):
    assert str(again) == str(why)
    for name in ("table", "interactions", "replacements", "backups"):
        mine, theirs = getattr(again, name), getattr(why, name)
        assert (mine is None) == (theirs is None)
        assert mine is None or mine.equals(theirs)
    assert again.additivity.equals(why.additivity)
    assert again.redundant == why.redundant
    assert again.cost == why.cost


def test_everything_is_read_back(why, result, tmp_path):
    result.save(tmp_path)
    assert_same(tk.anatomy.Explanation.load(why.save(tmp_path)), why)
    # Beside the run, which stays readable.
    assert tk.TraceResult.load(tmp_path).labels == result.labels
    check_of_run(tk.anatomy.Explanation.load(tmp_path), result, tmp_path)
    with pytest.raises(ResultNotFoundError, match=r"holds no explanation\.json"):
        tk.anatomy.Explanation.load(tmp_path / "none")


def test_without_outsiders_and_with_many_members(model, tmp_path):
    from tests import tiny

    tracer = tk.Tracer(model, tiny.pairs(4), "mlp-outputs", "accuracy", layers=[0])
    why = tracer.explain([tracer.registry[i] for i in range(13)], max_sets=60)
    assert why.pairs.averaged is None
    assert why.outsiders is None
    assert_same(tk.anatomy.Explanation.load(why.save(tmp_path)), why)


def damage(change, folder):
    document, tensors = read_run(folder, files=FILES)
    if change == "shape":
        tensors["alone"] = tensors["alone"][:-1]
    elif change == "nan":
        tensors["last"][0, 0] = torch.nan
    elif change == "values":
        tensors["values"][1] += 0.1
    elif change == "member":
        tensors["members"][tensors["members"].nonzero()[0]] = False
    elif change == "player":
        document["redundant"] = [7]
    elif change == "no number":
        document["outsiders"][0] = [0, None]
    elif change == "fraction":
        document["outsiders"][0] = [0, 5.5]
    elif change == "outsider":
        document["outsiders"][0] = [0, int(tensors["members"].nonzero()[0])]
    elif change == "context":
        del tensors["pairs_averaged"]
    elif change == "field":
        del document["tolerance"]
    write_run(folder, document, tensors, files=FILES)
    if change == "edited":
        path = folder / FILES[0]
        document = json.loads(path.read_text())
        path.write_text(json.dumps(document | {"model": "another"}))


CHANGES = [
    "shape",
    "nan",
    "values",
    "member",
    "player",
    "outsider",
    "no number",
    "fraction",
    "context",
    "field",
    "edited",
]


@pytest.mark.parametrize("change", CHANGES)
def test_damaged_files_are_refused(why, tmp_path, change):
    damage(change, why.save(tmp_path))
    with pytest.raises(ResultFormatError, match="is damaged, was changed"):
        tk.anatomy.Explanation.load(tmp_path)


def test_an_explanation_of_another_run_is_refused(tracer, why, tmp_path):
    other = tracer.run("top-k", budget=3)
    with pytest.raises(ResultFormatError, match="is of another run than the one beside it"):
        check_of_run(why, other, tmp_path)
    side = tracer.side_effects(other, {"same": (tracer.pairs, "kl")}, draws=1)
    check_of_run(side, other, tmp_path)
    text = r"The record of side effects in .* Measure it again, or delete its side_effects\.json"
    with pytest.raises(ResultFormatError, match=text):
        check_of_run(side, tracer.run("top-k", budget=4), tmp_path)
