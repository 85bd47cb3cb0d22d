"""Comparisons and reports of results wherever they are: in memory, in runs and in folders."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    ComparisonError,
    ConfigError,
    NoResultError,
    ResultFormatError,
    ResultNotFoundError,
)


@pytest.fixture(scope="module")
def tracer():
    return tk.Tracer(tiny.shared_model("gpt2"), tiny.pairs(6), "head-outputs")


@pytest.fixture(scope="module")
def curve(tracer):
    return tracer.run("top-k", budgets=[2, 10])


@pytest.fixture(scope="module")
def alone(tracer):
    return tracer.run("random", budget=3, draws=2)


@pytest.fixture(scope="module")
def folder(curve, alone, tmp_path_factory):
    """A curve in a folder of its own, and a result beside it."""
    root = tmp_path_factory.mktemp("runs")
    curve.save(root / "curve")
    alone.save(root / "deep" / "er" / "alone")
    return root


SETS = [("top-k", 2), ("top-k", 10), ("random", 3)]
GIVEN = {
    "a list": lambda curve, alone, folder: [*curve, alone],
    "curves and results": lambda curve, alone, folder: [curve, alone],
    "a text": lambda curve, alone, folder: str(folder),
    "a Path": lambda curve, alone, folder: folder,
    "several folders": lambda curve, alone, folder: [folder / "curve", str(folder / "deep")],
    "a generator": lambda curve, alone, folder: iter([curve, folder / "deep"]),
    "a comparison": lambda curve, alone, folder: tk.compare([curve, alone]),
    "load_runs": lambda curve, alone, folder: tk.load_runs(folder),
    "some runs": lambda curve, alone, folder: list(tk.load_runs(folder)),
    "both": lambda curve, alone, folder: [folder / "curve", [alone]],
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_compared_and_reported(name, curve, alone, folder, tmp_path):
    compared = tk.compare(GIVEN[name](curve, alone, folder))
    found = [(each.method, each.n_selected) for each in compared]
    assert sorted(found) == sorted(SETS)
    if name not in ("load_runs", "some runs"):  # They are sorted by method.
        assert found == SETS
    if name in ("a text", "load_runs", "both"):
        page = tk.report(GIVEN[name](curve, alone, folder), tmp_path / "page.html").read_text()
        assert all(each.title in page for each in compared)


def test_one_result_and_one_run(alone, folder, tmp_path):
    assert len(tk.compare(alone)) == 1
    (run,) = tk.load_runs(folder / "deep")
    assert len(tk.compare(run)) == len(tk.compare(folder / "deep" / "er" / "alone")) == 1
    tk.report(run, tmp_path / "run.html")


def test_labels_are_in_the_order_of_numbers(folder):
    compared = tk.compare(folder / "curve", labels=["small", "large"])
    assert [each.n_selected for each in compared] == [2, 10]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (5, ConfigError, "A int was given where results are wanted: 5. Give results, curves"),
        (None, ConfigError, "A NoneType was given where results are wanted"),
        ([5], ConfigError, "A int was given where results are wanted"),
        ({"a": 1}, ConfigError, "A dict was given where results are wanted"),
        (torch.zeros(2), ConfigError, "A Tensor was given where results are wanted"),
        (pd.DataFrame({"a": [1]}), ConfigError, "A DataFrame was given where results are wanted"),
        ([], NoResultError, "There is no result"),
        ("nowhere", ResultNotFoundError, "The folder nowhere holds no result.json. Give a folder"),
        ([Path("nowhere")], ResultNotFoundError, "The folder nowhere holds no result.json"),
        ("a\0b", ConfigError, "which no file system takes"),
        (b"folder", ConfigError, "where results are wanted"),
    ],
    ids=repr,
)
def test_what_holds_no_results_is_refused(given, error, text, tmp_path, unchecked):
    with pytest.raises(error, match=text):
        tk.compare(given)
    with pytest.raises(error, match=text.replace("There is no result", "There is no result to re")):
        tk.report(given, tmp_path / "page.html")


def test_folders_are_read_with_their_checks(alone, tmp_path, unchecked):
    alone.save(tmp_path)
    path = tmp_path / "result.json"
    path.write_text(path.read_text().replace('"random"', '"greedy"'))
    for refused in (tk.compare, lambda given: tk.report(given, tmp_path / "page.html")):
        with pytest.raises(ResultFormatError, match="is damaged, was changed"):
            refused(tmp_path)
    with pytest.raises(ConfigError, match="path is 5, which is not a path"):
        tk.report(alone, 5)


def another_model():
    changed = tiny.hf_model("gpt2", seed=4)
    changed.config._name_or_path = "another"
    return tk.load_model(changed)


OTHERS = {
    "models": lambda: tk.Tracer(another_model(), tiny.pairs(6), "head-outputs"),
    "data sets": lambda: tk.Tracer(
        tiny.shared_model("gpt2"), tk.PromptPairs.from_ids(tiny.rows(6), name="b"), "head-outputs"
    ),
    "examples": lambda: tk.Tracer(tiny.shared_model("gpt2"), tiny.pairs(5), "head-outputs"),
    **{
        name: lambda options=options: tk.Tracer(
            tiny.shared_model("gpt2"), tiny.pairs(6), **{"components": "head-outputs"} | options
        )
        for name, options in {
            "sources": {"source": "zero"},
            "directions": {"direction": "denoising"},
            "metrics": {"metric": "logit-difference"},
            "continuation means": {"continuation_mean": "arithmetic"},
            "positions": {"positions": "last"},
            "components": {"components": "head-outputs+mlp-blocks"},
        }.items()
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_refused_comparison_advises_works(name, tracer, alone):
    """It is followed as it is written, in the state in which it is given."""
    own = tk.Tracer(tiny.shared_model("gpt2"), tiny.pairs(6), "head-outputs+mlp-blocks")
    other = OTHERS[name]().run("random", budget=2, draws=2)
    results = [alone, other]
    with pytest.raises(ComparisonError, match=f"of different {name}.*tracer.as_result") as refused:
        tk.compare(results).to_latex()
    message = str(refused.value)
    if "`jaccard` of tk.compare" in message:
        assert tk.compare(results).jaccard.shape == (2, 2)
    code = message.partition("components: ")[2].partition("])")[0] + "])"
    compared = eval(code, {"tk": tk, "results": results, "tracer": own})
    assert compared.to_latex()
    assert [each.labels for each in compared] == [each.labels for each in results]
