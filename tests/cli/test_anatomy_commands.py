"""`tracekit explain` and `tracekit side-effects` of a saved run, and their part of a report."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
from pydantic import TypeAdapter

import tracekit as tk
from tracekit.cli.console import Row

QUICK = ("--quiet",)


@pytest.fixture(scope="module")
def tracer(demo_model):
    facts = tk.load_dataset("demo-facts", demo_model)[:12]
    return tk.Tracer(demo_model, facts, "head-outputs", "probability-drop", positions="last")


@pytest.fixture(scope="module")
def result(tracer):
    return tracer.run("top-k", budget=3)


@pytest.fixture
def folder(result, tmp_path):
    return result.save(tmp_path / "run")


@pytest.mark.slow
def test_explain_says_how_long_it_will_take(command, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = command("explain", folder, "--output", "out", "--dry-run", *QUICK)
    assert code == 0, err
    assert "explain: up to 78 passes, about " in out
    assert "Nothing was run or written." in out
    assert sorted(tmp_path.rglob("*")) == before
    code, out, err = command("explain", folder, "--json", "--dry-run", *QUICK)
    assert code == 0, err
    document = json.loads(out)
    (estimate,) = document["tables"]["estimates"]
    assert (estimate["passes"], list(document["tables"])) == (78, ["estimates"])


@pytest.mark.slow
def test_explain_prints_saves_and_writes(command, tracer, result, folder, tmp_path):
    options = ("--tolerance", 0.5, "--output", tmp_path / "out", *QUICK)
    code, out, err = command("explain", folder, *options)
    assert code == 0, err
    why = tracer.explain(result, tolerance=0.5)
    for line in str(why).splitlines():
        assert line in out
    row = why.table.iloc[0]
    assert f"{row['value']:.4g} ({row['value_low']:.3g} to {row['value_high']:.3g})" in out
    assert str(tk.measure.Explanation.load(folder)) == str(why)
    written = pd.read_csv(tmp_path / "out" / "members.csv")
    assert written["value"].tolist() == pytest.approx(why.table["value"].tolist(), abs=1e-6)
    for name in ("waterfall", "heatmap", "network"):
        assert (tmp_path / "out" / f"{name}.html").exists()
    tables = json.loads((tmp_path / "out" / "findings.json").read_text())
    TypeAdapter(dict[str, list[Row]]).validate_python(tables, strict=True)
    assert tables["explanation"][0]["members"] == result.labels
    assert [row["component"] for row in tables["members"]] == list(why.table["component"])


@pytest.mark.slow
def test_json_is_all_that_is_printed(command, tracer, result, folder):
    code, out, err = command("explain", folder, "--json", *QUICK)
    assert code == 0, err
    document = json.loads(out)
    assert (document["command"], document["ok"], document["error"]) == ("explain", True, None)
    why = tracer.explain(result)
    tables = document["tables"]
    assert pd.DataFrame(tables["members"])["value"].tolist() == why.table["value"].tolist()
    (whole,) = tables["explanation"]
    assert {name: whole[name] for name in why.additivity.index} == why.additivity.to_dict()
    assert whole["effect"] == pytest.approx(result.effect)
    assert tables["interactions"][0]["within"] == why.interactions["within"][0]
    assert whole["redundant"] == [str(component) for component in why.redundant]
    assert "NaN" not in out


def test_side_effects_say_how_long_they_will_take(command, folder, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    options = ("--other", "bias=demo-bias", "--other-limit", 6, "--draws", 4, "--dry-run")
    code, out, err = command("side-effects", folder, *options, "--json", *QUICK)
    assert code == 0, err
    (estimate,) = json.loads(out)["tables"]["estimates"]
    assert (estimate["passes"], estimate["is_exact"]) == (5 + 6, True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_side_effects_of_a_run(command, tracer, result, folder, tmp_path, demo_model):
    bias = tk.load_dataset("demo-bias", demo_model)[:6]
    rows = [pair.texts for pair in bias]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    code, out, err = command(
        *("side-effects", folder, "--other", "bias=demo-bias", "--other", f"mine={path}"),
        *("--other-metric", "mine=kl", "--other-limit", 6, "--draws", 4, "--seed", 3),
        *("--output", tmp_path / "out", *QUICK),
    )
    assert code == 0, err
    side = tracer.side_effects(result, {"bias": bias, "mine": (bias, "kl")}, draws=4, seed=3)
    saved = tk.measure.SideEffects.load(folder)
    assert saved.table["strength"].tolist() == pytest.approx(side.table["strength"].tolist())
    assert saved.table["metric"].tolist() == ["probability-drop", "probability-drop", "kl"]
    assert str(saved) in out
    written = pd.read_csv(tmp_path / "out" / "side_effects.csv")
    assert written["name"].tolist() == ["target", "bias", "mine"]
    assert (tmp_path / "out" / "side_effects.html").exists()


@pytest.mark.slow
def test_reports_have_what_was_saved_beside_a_run(command, tracer, result, folder, tmp_path):
    why = tracer.explain(result)
    why.save(folder)
    tracer.side_effects(result, {"kl": (tracer.pairs, "kl")}, draws=3).save(folder)
    page = tmp_path / "report.html"
    code, _, err = command("report", tmp_path / "run", "--output", page)
    assert code == 0, err
    text = page.read_text(encoding="utf-8")
    assert f"Why they act together: {', '.join(result.labels)}" in text
    assert f"Side effects of {', '.join(result.labels)}" in text
    # One of another run is refused.
    tracer.run("top-k", budget=2).save(folder)
    code, _, err = command("report", tmp_path / "run", "--output", page)
    assert code == 1
    assert "is of another run than the one beside it. Measure it again, or delete its expl" in err


@pytest.mark.slow
def test_held_out_examples_are_told_from_the_others(command, tmp_path, demo_model):
    facts, held_out = tk.load_dataset("demo-facts", demo_model)[:10].split(0.8, seed=4)
    tracer = tk.Tracer(
        demo_model, facts, "head-outputs", "probability-drop", positions="last", held_out=held_out
    )
    run = tracer.run("top-k", budget=2, seed=4).save(tmp_path / "run")
    code, _, err = command("explain", run, "--limit", 8, *QUICK)
    assert code == 1
    assert "The run used 8 examples of 'demo-facts', and these 8 are different ones." in err
    # The run itself knows which they were.
    code, _, err = command("explain", run, *QUICK)
    assert code == 0, err
    code, _, err = command("explain", run, "--limit", 10, "--held-out", 0.2, *QUICK)
    assert code == 0, err
    assert tk.measure.Explanation.load(run).labels == tk.TraceResult.load(run).labels


@pytest.mark.parametrize(
    "options",
    [
        {"source": tk.Noise(spans=("subject",), factor=2.5), "source_seed": 7},
        {"source": "noise", "source_seed": 3, "direction": "denoising"},
        {"source": "mean", "split_by": "span"},
        {"split_by": "position"},
    ],
)
def test_sources_are_rebuilt_from_the_run(command, tmp_path, demo_model, options):
    facts = tk.load_dataset("demo-facts", demo_model)
    length = len(facts[0].prompt_ids)
    n = next(n for n, pair in enumerate(facts) if len(pair.prompt_ids) != length)
    tracer = tk.Tracer(demo_model, facts[:n], "head-outputs", "probability-drop", **options)
    run = tracer.run("top-k", budget=2, seed=5).save(tmp_path / "run")
    code, _, err = command("explain", run, *QUICK)
    assert code == 0, err
    assert tk.measure.Explanation.load(run).source == tracer.source


def test_sources_that_take_more_than_a_name(command, tmp_path, demo_model):
    facts = tk.load_dataset("demo-facts", demo_model)
    source = tk.Mean(pairs=facts[8:])
    tracer = tk.Tracer(demo_model, facts[:8], "head-outputs", "probability-drop", source=source)
    run = tracer.run("top-k", budget=2).save(tmp_path / "run")
    code, _, err = command("explain", run, *QUICK)
    assert code == 1
    assert "The source 'mean over demo-facts (" in err
    assert ")' takes more than its name." in err
    assert "Build the tracer in Python for others." in err


@pytest.mark.slow
def test_runs_of_built_in_data_remember_options_and_model(
    command, tmp_path, demo_model, monkeypatch
):
    monkeypatch.setattr(demo_model.cfg, "model_name", "demo")
    pairs = tk.load_dataset("demo-facts", demo_model, seed=3)[4:10]
    named = replace(pairs, name="facts of mine")
    result = tk.Tracer(demo_model, named, "head-outputs", "kl").run("top-k", budget=2)
    run = result.save(tmp_path / "run")
    loaded = tk.TraceResult.load(run)
    assert (loaded.searched.origin.dataset, loaded.searched.origin.options) == (
        "demo-facts",
        {"seed": 3},
    )
    assert loaded.searched.origin.examples == tuple(range(4, 10))
    assert (loaded.model_facts.path, loaded.model_facts.dtype) == ("demo", "float32")
    for arguments in (["explain", run], ["side-effects", run, "--other", "b=demo-bias"]):
        more = ["--other-limit", 4, "--draws", 2] if arguments[0] == "side-effects" else []
        code, _, err = command(*arguments, *more, *QUICK)
        assert code == 0, err


def test_a_run_of_more_examples_than_the_data_have_says_so(command, folder, tmp_path):
    result = tk.TraceResult.load(folder)
    origin = replace(result.searched.origin, examples=tuple(range(500, 512)))
    far = replace(result, searched=replace(result.searched, origin=origin)).save(tmp_path / "far")
    code, _, err = command("explain", far, *QUICK)
    assert code == 1
    assert "demo-facts has 60 pairs, and example 511 of them is asked for. Restore the da" in err


def test_runs_that_cannot_be_measured_again(
    command,
    folder,
    tmp_path,
):
    result = tk.TraceResult.load(folder)
    mine = replace(result, searched=replace(result.searched, dataset="mine", origin=None)).save(
        tmp_path / "mine"
    )
    code, _, err = command("explain", mine, *QUICK)
    assert code == 1
    assert "The run used 'mine', which is not a data set of tracekit. Give its file by --da" in err
    # Another model of the same form: its set has another effect.
    shifted = replace(result, searched=replace(result.searched, effects=result.per_example * 1.1))
    code, _, err = command("explain", shifted.save(tmp_path / "shifted"), *QUICK)
    assert code == 1
    assert "in the run, so this is not the same model. Give --model, --dtype and" in err
    assert f"{result.effect:.4g}" in err
    assert not (tmp_path / "shifted" / "explanation.json").exists()


def test_names_of_other_data(command, folder):
    arguments = ("side-effects", folder, "--other", "a=demo-bias")
    code, _, err = command(*arguments, "--other-metric", "b=kl")
    assert code == 1
    assert "--other-metric names 'b', and no --other has this name." in err
    code, _, err = command(*arguments, "--other", "a=demo-facts")
    assert "--other names 'a' twice. Give each its own name." in err
    code, _, err = command("side-effects", folder, "--other", "demo-bias")
    assert "The option 'demo-bias' is not of the form name=value." in err
