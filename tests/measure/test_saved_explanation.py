"""Explanations are saved whole, and refused where they were changed or are of another run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import tracekit as tk
from tests.files import rewrite
from tracekit.errors import ResultFormatError, ResultNotFoundError
from tracekit.measure.explanation import EXPLANATION
from tracekit.reports.report import check_of_run


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
    assert_same(tk.measure.Explanation.load(why.save(tmp_path)), why)
    # Beside the run, which stays readable.
    assert tk.TraceResult.load(tmp_path).labels == result.labels
    check_of_run(tk.measure.Explanation.load(tmp_path), result, tmp_path)
    with pytest.raises(ResultNotFoundError, match=r"holds no explanation\.json"):
        tk.measure.Explanation.load(tmp_path / "none")


def test_without_non_members_and_with_many_members(model, tmp_path):
    from tests import tiny

    tracer = tk.Tracer(model, tiny.pairs(4), "mlp-outputs", "accuracy", layers=[0])
    why = tracer.explain([tracer.registry[i] for i in range(13)], max_sets=60)
    assert why.pairs.averaged is None
    assert why.non_members is None
    assert_same(tk.measure.Explanation.load(why.save(tmp_path)), why)


def non_member(value):
    return lambda document, tensors: document["non_members"][0].update(non_member=value)


def flat(name):
    return lambda document, tensors: tensors.update({name: tensors[name].flatten()})


def member(number):
    return lambda document, tensors: document["redundancy"].update(members=[number])


CHANGES = {
    "shape": (flat("alone"), r"alone is torch.float32 of shape \(48,\), not"),
    "missing": (lambda d, t: t.pop("alone"), "the tensor alone is missing"),
    "member's type": (member(None), "redundancy.members.0: Input should be a valid integer"),
    "fraction": (non_member(5.5), "non_members.0.non_member: Input should be a valid integer"),
    "field": (lambda d, t: d.pop("tolerance"), "tolerance: Field required"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_damaged_files_are_refused(why, tmp_path, change):
    make, text = CHANGES[change]
    rewrite(why.save(tmp_path) / EXPLANATION, make)
    with pytest.raises(ResultFormatError, match=text):
        tk.measure.Explanation.load(tmp_path)


def test_an_edited_file_is_refused(why, tmp_path):
    path = why.save(tmp_path) / EXPLANATION
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"model": "another"}))
    with pytest.raises(ResultFormatError, match="is damaged, was changed"):
        tk.measure.Explanation.load(tmp_path)


def test_an_explanation_of_another_run_is_refused(tracer, why, tmp_path):
    other = tracer.run("top-k", budget=3)
    with pytest.raises(ResultFormatError, match="is of another run than the one beside it"):
        check_of_run(why, other, tmp_path)
    side = tracer.side_effects(other, {"same": (tracer.pairs, "kl")}, draws=1)
    check_of_run(side, other, tmp_path)
    text = r"record of side effects in .*delete its side_effects\.json"
    with pytest.raises(ResultFormatError, match=text):
        check_of_run(side, tracer.run("top-k", budget=4), tmp_path)
    with pytest.raises(ResultFormatError, match=text):
        check_of_run(replace(side, positions="last"), other, tmp_path)


def test_what_is_saved_of_listed_positions_is_of_its_run(tracer, tmp_path):
    at_two = tk.Tracer(tracer.model, tracer.pairs, "head-outputs", positions=[0, -1])
    run = at_two.run("attribution", budget=3)
    run.save(tmp_path)
    at_two.explain(run).save(tmp_path)
    at_two.side_effects(run, {"same": (tracer.pairs, "kl")}, draws=1).save(tmp_path)
    for kind in (tk.measure.Explanation, tk.measure.SideEffects):
        check_of_run(kind.load(tmp_path), tk.TraceResult.load(tmp_path), tmp_path)
