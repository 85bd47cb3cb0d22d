from __future__ import annotations

import json
import re
import shutil

import pandas as pd
import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.files import rewrite
from tracekit._util.files import write_csv
from tracekit.components.kinds import KINDS
from tracekit.errors import (
    BudgetError,
    ResultFormatError,
    ResultNotFoundError,
)
from tracekit.results.intervals import effect_interval
from tracekit.results.on_examples import OnExamples
from tracekit.results.storage import FORMAT_VERSION, NOT_SAVED, write_document
from tracekit.search.learned.pgbct import Exponential

_DAMAGED = "is damaged, was changed, or belongs to another run than the files beside it. Run it"


@pytest.fixture(scope="module")
def tracer(model):
    return tk.Tracer(model, tiny.pairs(6), ["head-outputs", "mlp-blocks"], positions=[-1])


@pytest.fixture(scope="module")
def result(tracer):
    return tracer.run(budget=4, trials=2, epochs=3, penalty_schedule=Exponential())


def assert_same(first, second):
    # The tracer and the pairs of this process are not saved.
    for name, field in first.__dataclass_fields__.items():
        if field.metadata == NOT_SAVED:
            continue
        value, other = getattr(first, name), getattr(second, name)
        if isinstance(value, OnExamples):
            assert_same(value, other)
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, other), name
            assert value.dtype == other.dtype
        else:
            assert value == other, name


def test_a_saved_run_comes_back_whole(result, tmp_path):
    folder = result.save(tmp_path / "run")
    assert sorted(path.name for path in folder.iterdir()) == ["result.json", "result.safetensors"]
    loaded = tk.TraceResult.load(folder)
    assert_same(result, loaded)
    assert loaded.labels == result.labels
    document = json.loads((folder / "result.json").read_text())
    assert document["format_version"] == FORMAT_VERSION
    assert document["selected"] == result.labels
    assert document["run"]["config"]["penalty_schedule"] == {"name": "exponential", "growth": 1.3}
    assert document["run"]["versions"]["transformer-lens"]


def test_a_saved_curve_comes_back_whole(tracer, tmp_path):
    curve = tracer.run("top-k", budgets=[1, 5])
    curve.save(tmp_path)
    loaded = tk.results.TraceCurve.load(tmp_path)
    assert len(loaded) == 2
    assert_same(loaded.at(5), curve.at(5))
    assert loaded.to_frame()["n_selected"].tolist() == [1, 5]
    with pytest.raises(BudgetError, match="The curve has no budget of 2. It has 1, 5."):
        curve.at(2)


def test_a_curve_is_saved_over_one_whose_runs_are_gone(tracer, tmp_path):
    tracer.run("top-k", budgets=[1, 5]).save(tmp_path)
    shutil.rmtree(tmp_path / "budget-1")
    tracer.run("top-k", budgets=[2, 5]).save(tmp_path)
    assert [result.n_selected for result in tk.results.TraceCurve.load(tmp_path)] == [2, 5]


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ResultNotFoundError, match="holds no result.json. Give a folder that a run"):
        tk.TraceResult.load(tmp_path)


def test_results_are_frozen_and_describe_themselves(result):
    with pytest.raises(AttributeError):
        result.effect = 1.0
    assert f"{result.n_selected} of 15 components" in repr(result)
    frame = result.to_frame()
    assert len(frame) == 15
    assert frame[frame["selected"]]["component"].tolist() == result.labels
    assert result.history_frame()["epoch"].tolist()[0] == 0
    assert result.components == [result.registry[i] for i in result.binary_mask.nonzero()[:, 0]]


def test_intervals_hold_the_mean():
    values = torch.randn(200, generator=torch.Generator().manual_seed(0)) + 3
    low, high = effect_interval(values)
    assert low < values.mean().item() < high
    assert high - low == pytest.approx(2 * 1.96 * values.std().item() / 200**0.5, rel=0.25)
    assert effect_interval(values) == (low, high)


def edited(**changes):
    return lambda text: json.dumps({**json.loads(text), **changes})


DAMAGES = {
    "cut short": lambda text: text[:100],
    "a key twice": lambda text: text.replace('"effect":', '"effect": 1, "effect":', 1),
    "no run": edited(run=None),
    "another effect": edited(effect=0.5),
    "another model": edited(model="another"),
    "no history": edited(history=[]),
    "null": lambda _: "null",
    "a list": lambda _: "[]",
    "a number": lambda _: "3",
    "a brace": lambda _: "{",
    "100,000 brackets": lambda _: "[" * 100_000,
    "5,001 digits": lambda _: f'{{"effect": 1{"0" * 5000}}}',
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_documents_are_refused(result, tmp_path, damage):
    path = result.save(tmp_path) / "result.json"
    path.write_text(DAMAGES[damage](path.read_text()))
    with pytest.raises(ResultFormatError, match=f"result.json {_DAMAGED}"):
        tk.TraceResult.load(tmp_path)


def test_other_versions_and_tensors_are_refused(result, tmp_path):
    path = result.save(tmp_path) / "result.json"
    path.write_text(edited(format_version=6)(path.read_text()))
    with pytest.raises(ResultFormatError, match="version 6; .* version 7. Open it with"):
        tk.TraceResult.load(tmp_path)
    rewrite(
        result.save(tmp_path) / path.name, lambda _, tensors: tensors.update(more=torch.ones(2))
    )
    with pytest.raises(ResultFormatError, match="the tensors more are of no field. Repeat"):
        tk.TraceResult.load(tmp_path)
    (tmp_path / "result.safetensors").unlink()
    with pytest.raises(ResultFormatError, match=f"result.safetensors {_DAMAGED}"):
        tk.TraceResult.load(tmp_path)


def test_two_runs_in_one_folder_are_found_out(model, tmp_path):
    """A run that was killed between its two files, over an older one."""
    tracer = tk.Tracer(model, tiny.pairs(6))
    first, second = (tracer.run("top-k", budget=size) for size in (2, 5))
    first.save(tmp_path / "first")
    second.save(tmp_path / "second")
    name = "result.safetensors"
    (tmp_path / "first" / name).write_bytes((tmp_path / "second" / name).read_bytes())
    with pytest.raises(ResultFormatError, match=_DAMAGED):
        tk.TraceResult.load(tmp_path / "first")
    first.save(tmp_path / "first")
    assert tk.TraceResult.load(tmp_path / "first").effect == first.effect
    assert {path.name for path in (tmp_path / "first").iterdir()} == {"result.json", name}


SITE = {"kind": "attention-patterns", "layer": 0, "width": 9, "indices": None}
SITE |= {"spans": [], "acts_in": [], "definition": None}
TYPES = {
    "effect": ("large", None, [1], True),
    "run": (None, {}, 5),
    "run.seed": ("1\nimport os", [1], 1.5),
    "run.seconds": ("x", None),
    "run.config": (None, [], "x"),
    "run.versions": ([], 5, {"torch": 2}),
    "run.cost": (3, {"forward": "x", "backward": 1.0}),
    "run.method": ([], 5),
    "run.stopped": ("max\nimport os; os.system('id')", 5),
    "run.records_every_size": (1, "yes"),
    "setup.source": (5, None),
    "setup.direction": ("sideways",),
    "setup.positions": (4, [1.5], None),
    "setup.split_by": (3, ["span"]),
    "history": ([1], None, [{"epoch": [1]}]),
    "model": (5, None),
    "searched.dataset": (None,),
    "axis_label": (5,),
    "extra_metrics": ([5], "kl"),
    "constraint": (5, {}),
    "registry": (None, 5, [{**SITE, "layer": "0"}], [{**SITE, "indices": [0.5]}]),
    "tracer": ("x",),
    "unknown": (1,),
}
"""Values of other types, by field."""
VALUES = [
    ("noise_floor", float("nan"), "noise_floor: Input should be a finite number"),
    ("registry", [], "The description has no components"),
    ("registry", [SITE, SITE], "or one layer of a kind twice"),
    ("registry", [{**SITE, "width": 10**10}], "is invalid. Give a layer, its width"),
    ("registry", [{**SITE, "width": -1}], "is invalid. Give a layer, its width"),
    ("registry", [{**SITE, "layer": -1}], "is invalid. Give a layer, its width"),
    ("registry", [{**SITE, "indices": [3, 3]}], "ascending indices below the width"),
    ("registry", [{**SITE, "indices": [9]}], "ascending indices below the width"),
    ("registry", [{**SITE, "kind": "none such"}], "none such"),
    ("setup.layer_window", 0, "layer_window is 0"),
    ("run.config", {"race=False)\nimport os": 1}, "config names"),
]


def _enter(document, field, value):
    """Puts a value in a document; a dotted field lies within another."""
    *parents, name = field.split(".")
    for parent in parents:
        document = document[parent]
    document[name] = value


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [*((f, value, f"{f}") for f, values in TYPES.items() for value in values), *VALUES],
    ids=lambda each: str(each)[:40],
)
def test_a_document_that_fits_no_result_is_refused(result, field, value, text, tmp_path):
    result.save(tmp_path)
    path = tmp_path / "result.json"
    # With a digest that fits: only a look at the content can find these out.
    rewrite(path, lambda document, _: _enter(document, field, value))
    with pytest.raises(ResultFormatError, match=f"result.json cannot be read: .*{text}"):
        tk.TraceResult.load(tmp_path)


@pytest.mark.parametrize("label", ["{layer:>100000000}", "{layer.__class__}", "{0}", "{"])
def test_a_kind_whose_label_formats_is_refused(result, label, tmp_path):
    definition = {**KINDS["mlp-outputs"].definition(), "name": "mine", "label": label}
    site = {**SITE, "kind": "mine", "definition": definition}
    rewrite(result.save(tmp_path) / "result.json", lambda d, _: _enter(d, "registry", [site]))
    with pytest.raises(
        ResultFormatError, match=f"{re.escape(label)}'. Use {{layer}} and {{index}} only"
    ):
        tk.TraceResult.load(tmp_path)


class TestCurves:
    def save(self, tracer, folder, *budgets, method="top-k"):
        curve = tracer.run(method, budgets=budgets)
        curve.save(folder)
        return curve

    def test_a_saved_curve_comes_back(self, tracer, tmp_path):
        curve = self.save(tracer, tmp_path, 2, 4)
        loaded = tk.results.TraceCurve.load(tmp_path)
        assert len(loaded) == 2
        for one, other in zip(curve, loaded, strict=True):
            assert_same(one, other)

    @pytest.mark.slow
    def test_runs_of_two_curves_are_found_out(self, tracer, tmp_path):
        """A curve of which one run was written again, and not the others."""
        self.save(tracer, tmp_path, 2, 4)
        tracer.run("random", budget=4).save(tmp_path / "budget-4")
        assert tk.TraceResult.load(tmp_path / "budget-4").method == "random"
        with pytest.raises(ResultFormatError, match=_DAMAGED):
            tk.results.TraceCurve.load(tmp_path)

    def test_an_earlier_curve_leaves_nothing_behind(self, tracer, tmp_path):
        self.save(tracer, tmp_path, 2, 3, 4)
        (tmp_path / "budget-mine").mkdir()
        self.save(tracer, tmp_path, 2, 5)
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"curve.json", "budget-2", "budget-5", "budget-mine"}

    @pytest.mark.parametrize(
        "runs", [["budget-2"], {}, None, {"../other": "a"}, {"budget-2/../x": "a"}]
    )
    def test_lists_of_runs_elsewhere_are_refused(self, tracer, runs, tmp_path):
        self.save(tracer, tmp_path, 2)
        write_document(tmp_path / "curve.json", {"runs": runs})
        with pytest.raises(ResultFormatError, match="curve.json cannot be read: "):
            tk.results.TraceCurve.load(tmp_path)


def test_csv_files_hold_no_formulas(tmp_path):
    frame = pd.DataFrame({"name": ["=HYPERLINK(1)", "+1", "@x", "plain", "-"], "value": [-1.5] * 5})
    write_csv(frame, tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines == [
        "name,value",
        "'=HYPERLINK(1),-1.5",
        "'+1,-1.5",
        "'@x,-1.5",
        "plain,-1.5",
        "'-,-1.5",
    ]
