"""`--json`: every command prints one document, also of an error; and `tracekit verify`.

`conftest.py` holds every document that a command of these tests prints against its schema.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
import torch
from jsonschema import ValidationError, validate

import tracekit as tk
from docs.schemas.command_documents import schemas
from tests.cli.test_app import COMMANDS
from tracekit.cli import demo
from tracekit.cli.console import CommandOutput, console


@pytest.fixture
def document(command):
    def run(*arguments):
        out = command(*arguments, "--json")[1]
        assert console.document is None
        return json.loads(out)

    return run


@pytest.fixture(scope="module")
def folder(demo_model, tmp_path_factory):
    tracer = tk.Tracer(demo_model, tk.load_dataset("demo-bias", demo_model)[:8])
    return tracer.run("attribution", budget=3).save(tmp_path_factory.mktemp("runs") / "run")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_it(name):
    assert any("--json" in parameter.opts for parameter in COMMANDS[name].params)
    assert name in schemas()


QUICK = ("--dataset", "demo-bias", "--limit", 6)
OUTPUTS = {
    "evaluate": [*QUICK, "--mask", "L1H4", "--extra-metric", "kl"],
    "demo": ["--output", "demo"],
    "look": ["demo", "demo-bias", "--limit", 6, "--held-out", 0.5, "--output", "seen"],
    "pareto": [*QUICK, "--max-budget", 2, "--max-passes", 20, "--output", "front"],
    "report": ["{folder}", "--output", "report.html"],
    "show": ["{folder}", "--all"],
    "side-effects": ["{folder}", "--other", "kl=demo-bias", "--other-limit", 4, "--draws", 2],
    "sweep": ["sweep.toml", "--quiet"],
    "trace": [*QUICK, "--budget", 2, "--budget", 3, "--method", "attribution", "--output", "run"],
}
"""Arguments of commands whose output no other test of `--json` has."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.slow if each == "demo" else ()) for each in OUTPUTS],
)
def test_outputs_are_those_of_their_schemas(document, folder, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tracekit.figures.write_all", lambda figures: None)
    monkeypatch.setattr(demo, "_EXAMPLES", 4)
    quick = {"pgb-ct+local": {"trials": 1, "epochs": 1}, "top-k": {}, "random": {"draws": 2}}
    monkeypatch.setattr(demo, "_METHODS", quick)
    Path("sweep.toml").write_text(
        'models = ["demo"]\ndatasets = ["demo-bias"]\nmethods = ["top-k"]\nbudgets = [2]\nlimit = 4'
    )
    words = [str(word).replace("{folder}", str(folder)) for word in OUTPUTS[name]]
    parsed = document(name, *words)
    assert (parsed["command"], parsed["error"]) == (name, None)
    assert bool(parsed["tables"]) == (name != "report")


def test_a_schema_refuses_other_columns():
    row = {"measured": "weights", "saved": 1, "now": 1, "agrees": True}
    output = CommandOutput(
        format_version=1,
        command="verify",
        ok=True,
        tracekit="1",
        tables={"measured": [row]},
        lines=[],
        warnings=[],
        error=None,
    )
    validate(output, schemas()["verify"])
    for wrong in ({**row, "more": 1}, {"measured": "weights"}, {**row, "now": {"low": 1}}):
        with pytest.raises(ValidationError):
            validate({**output, "tables": {"measured": [wrong]}}, schemas()["verify"])
    with pytest.raises(ValidationError):
        validate({**output, "tables": {"others": [row]}}, schemas()["verify"])


def test_what_makes_a_command_fail_is_not_ok(document, tmp_path):
    Path(tmp_path / "mine.csv").write_text("prompt,counterfactual,x,y\na maid,the maid, b, b\n")
    parsed = document("pairs", "check", tmp_path / "mine.csv")
    assert "red" in {row["color"] for row in parsed["tables"]["checks"]}
    assert (parsed["ok"], parsed["error"]) == (False, None)


def test_ctrl_c_is_not_ok(command, monkeypatch, folder):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tk.TraceResult, "load", interrupted)
    code, out, _ = command("show", folder, "--json")
    assert (code, json.loads(out)["ok"]) == (130, False)


def test_tables_and_lines(document):
    parsed = document("datasets")
    assert (parsed["command"], parsed["tracekit"]) == ("datasets", tk.__version__)
    assert [row["dataset"] for row in parsed["tables"]["datasets"]] == list(tk.data.DATASETS)


QUICK_TRACE = ("--dataset", "demo-bias", "--limit", 12, "--held-out", 0.5)


class TestNumbers:
    """They are those of the objects, with all their digits."""

    def check_results(self, rows, results):
        assert len(rows) == len(results)
        for row, result in zip(rows, results, strict=True):
            scores = result.faithfulness()
            (faithful,), (complete,) = (
                scores.faithfulness_intervals,
                scores.completeness_intervals,
            )
            expected = {
                "method": result.method,
                "budget": result.budget,
                "n_selected": result.n_selected,
                "n_components": result.n_components,
                "effect": result.effect,
                **_ends("effect", result.spread),
                "full_effect": result.full_effect,
                "share": result.share_of_full_effect,
                "faithfulness": scores.faithfulness[0],
                **_ends("faithfulness", faithful),
                "completeness": scores.completeness[0],
                **_ends("completeness", complete),
                "held_out": result.held_out_effect,
                **_ends("held_out", result.held_out_interval or (None, None)),
                **result.extra_effects,
                "passes": result.cost.forward_equivalents,
                "components": result.labels,
                "n_examples": len(result.per_example),
                "dataset": result.dataset,
                "seed": result.seed,
            }
            assert {name: row[name] for name in expected} == expected

    @pytest.mark.slow
    def test_of_trace_and_show(self, document, tmp_path, monkeypatch):
        monkeypatch.setattr("tracekit.figures.write_all", lambda figures: None)
        methods = ("--method", "top-k", "--method", "attribution")
        options = ("--budget", 2, "--budget", 3, "--extra-metric", "kl", "--output", tmp_path)
        traced = document("trace", *QUICK_TRACE, *methods, *options)
        assert any(
            "kl: effect (KL divergence, nats), searched." in each for each in traced["lines"]
        )
        rows = traced["tables"]["results"]
        folders = [tmp_path / f"{method}-{k}" for method in methods[1::2] for k in (2, 3)]
        results = [tk.TraceResult.load(folder) for folder in folders]
        self.check_results(rows, results)
        again = document("show", tmp_path)["tables"]["results"]
        assert sorted(map(str, again)) == sorted(map(str, rows))
        for row, result in zip(rows, results, strict=True):
            frame = tk.results.TraceCurve((result,)).to_frame()
            assert list(frame) == list(row)

    @pytest.mark.slow
    def test_of_a_front(self, document, tmp_path, monkeypatch):
        monkeypatch.setattr("tracekit.figures.write_all", lambda figures: None)
        limits = ("--max-budget", 3, "--max-passes", 40, "--output", tmp_path)
        rows = document("pareto", *QUICK, *limits)["tables"]["front"]
        front = tk.ParetoFront.load(tmp_path / "pareto")
        assert [row["size"] for row in rows] == [*front.sizes]
        assert [row["effect"] for row in rows] == [result.effect for result in front]
        assert [row["components"] for row in rows] == [each.labels for each in front]
        by_size = {row["size"]: row for row in rows}
        for each in front.statistics:
            row = by_size[each.size]
            for name in ("", "_low", "_high", "_error"):
                assert row[f"cross_fitted{name}"] == getattr(each, f"cross_fitted{name}")
            for name in ("control", "stability"):
                assert row[name] == getattr(each, name), name
        assert front.statistics

    def test_of_masks(self, document, demo_model):
        masks = ("--mask", "L1H4", "--mask", "L1H4,L1H7")
        asked = (*QUICK_TRACE[:2], "--limit", 6, "--extra-metric", "kl")
        evaluated = document("evaluate", *asked, *masks)
        assert evaluated["lines"][-1] == (
            "On 6 examples: effect (odds ratio \u2212 1); kl: effect (KL divergence, nats); "
            "ends: 95 % interval"
        )
        rows = evaluated["tables"]["masks"]
        pairs = tk.load_dataset("demo-bias", demo_model)[:6]
        own = tk.Tracer(demo_model, pairs, extra_metrics=["kl"])
        for row in rows:
            effects = own.evaluate(row["mask"].split(","), per_example=True)
            ends = tk.results.effect_interval(
                effects, bounds=own.engine.metric.bounds, **own.pairs.statistics_options
            )
            expected = {"effect": effects.mean().item(), **_ends("effect", ends)}
            assert {name: row[name] for name in expected} == expected
            further = own.evaluate(row["mask"].split(","), metrics=["kl"], per_example=True)
            assert row["kl"] == further["kl"].mean()

    @pytest.mark.slow
    def test_of_a_sweep(self, document, tmp_path):
        (tmp_path / "sweep.toml").write_text(
            'models = ["demo"]\ndatasets = ["demo-bias"]\n'
            'methods = ["top-k", {name = "random", draws = 3}]\nbudgets = [2, 4]\n'
            'limit = 6\nmetrics = ["odds-ratio", "kl"]'
        )
        parsed = document("sweep", tmp_path / "sweep.toml", "--output", tmp_path / "out", "--quiet")
        frame = tk.load_runs(tmp_path / "out").to_frame()
        rows = sorted(parsed["tables"]["runs"], key=lambda row: row["folder"])
        frame = frame.sort_values("folder")
        assert len(rows) == len(frame) == 8
        assert {row["metric"] for row in rows} == {"odds-ratio", "kl"}
        assert set(rows[0]) == set(frame)
        for name in ("effect", "effect_low", "effect_high", "share", "faithfulness", "budget"):
            assert [row[name] for row in rows] == frame[name].tolist()
        assert all(type(row["budget"]) is int for row in rows)
        labels = [tk.TraceResult.load(row["folder"]).labels for row in rows]
        assert [row["components"] for row in rows] == labels

    def test_of_side_effects(self, document, folder, demo_model):
        parsed = document("side-effects", folder, "--other", "facts=demo-facts", "--draws", 2)
        side = tk.measure.SideEffects.load(folder)
        rows = parsed["tables"]["side_effects"]
        table = side.table
        assert list(rows[0]) == list(table)
        for name in table:
            assert [row[name] for row in rows] == [
                None if value != value else value for value in table[name].tolist()
            ]

    def test_of_pairs(self, document, demo_model):
        parsed = document("pairs", "check", "demo-bias", "--limit", 4)
        checked = tk.load_dataset("demo-bias", demo_model)[:4].check(demo_model)
        rows = parsed["tables"]["examples"]
        for name in ("p_x", "p_y", "prompt", "prefers_x"):
            assert [row[name] for row in rows] == checked.table[name].tolist()
        checks = [(row["color"], row["check"]) for row in parsed["tables"]["checks"]]
        assert checks == [(line.color, line.topic) for line in checked.lines]


def _ends(name, interval):
    """The ends of an interval as JSON has them: null where they are not finite."""
    ends = [end if end is not None and math.isfinite(end) else None for end in interval]
    return dict(zip((f"{name}_low", f"{name}_high"), ends, strict=True))


@pytest.mark.slow
def test_three_runs_are_one_table_in_pandas(document, tmp_path, monkeypatch):
    """The lines of `docs/cli.md`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tracekit.figures.write_all", lambda figures: None)
    for seed in (1, 2, 3):
        method = ("--method", "random", "--option", "draws=5", "--seed", seed)
        printed = document("trace", *QUICK, *method, "--budget", 2, "--output", f"of-{seed}")
        Path(f"run-{seed}.json").write_text(json.dumps(printed), encoding="utf-8")
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(compile(block, str(page), "exec"), names)
    table = names["table"].sort_values("seed")
    results = [tk.TraceResult.load(f"of-{seed}/random-2") for seed in (1, 2, 3)]
    assert table["effect"].tolist() == [result.effect for result in results]
    assert table["components"].tolist() == [result.labels for result in results]
    for name in ("effect", "effect_low", "share", "passes", "budget"):
        assert table[name].dtype.kind in "if", name


def test_warnings(command, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(",prompt,counterfactual,x,y\n0,the maid,the nurse, smiled, left\n")
    _, out, _ = command("pairs", "check", path, "--json")
    parsed = json.loads(out)
    assert any("numbers its rows, and is left out" in text for text in parsed["warnings"])
    assert {row["check"] for row in parsed["tables"]["checks"]} >= {
        "task",
        "tokens",
        "balance",
        "leak",
    }


@pytest.mark.parametrize("name", ["show", "explain"])
def test_errors(document, name):
    parsed = document(name, "nowhere")
    assert parsed["error"]["type"] == "ResultNotFoundError"
    assert "The folder nowhere holds no" in parsed["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "kind", "message", "expected"),
    [
        (("trace", "--bugdet", 3), "NoSuchOption", "No such option: --bugdet", 2),
        (("trace", "--limit", "many"), "BadParameter", "Invalid value for '--limit'", 2),
        (("show",), "MissingParameter", "Missing argument", 2),
        (("tarce",), "UsageError", "No such command 'tarce'", 2),
        (("trace", "--config", "none.toml"), "DataNotFoundError", "none.toml", 1),
    ],
)
def test_errors_of_usage(command, arguments, kind, message, expected):
    code, out, err = command(*arguments, "--json")
    parsed = json.loads(out)
    assert code == expected
    assert (parsed["command"], parsed["ok"]) == (arguments[0], False)
    assert parsed["error"]["type"] == kind
    assert message in parsed["error"]["message"]
    # A person sees it as without the option.
    assert message in err
    _, out, _ = command(*arguments)
    assert not out.startswith("{")


@pytest.mark.slow
def test_a_script_can_follow_the_page_for_programs(command, tmp_path, monkeypatch, capsys):
    """Every line of `llms.txt`, as it stands there and in its order, to the certificate."""
    monkeypatch.chdir(tmp_path)
    text = (Path(tk.__file__).parent / "llms.txt").read_text(encoding="utf-8")
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    commands = [shlex.split(line) for line in lines if line.startswith("tracekit ")]
    assert {words[1] for words in commands} >= {"pairs", "trace", "show", "explain", "verify"}
    names = {}
    for is_command, block in groupby(lines, lambda line: line.startswith("tracekit ")):
        if not is_command:
            exec(compile("\n".join(block), "llms.txt", "exec"), names)
            capsys.readouterr()
            continue
        for line in block:
            code, _, err = command(*shlex.split(line)[1:])
            assert code == 0, err
    assert names["made"].check(names["model"]).color == "green"
    assert (tmp_path / "edited" / "README.md").exists()


class TestVerify:
    def test_a_run_that_agrees(self, document, folder):
        parsed = document("verify", folder)
        rows = {row["measured"]: row for row in parsed["tables"]["measured"]}
        assert {row["agrees"] for row in rows.values()} == {True}
        assert rows["effect"]["saved"] == rows["effect"]["now"]
        assert rows["weights"]["saved"] == rows["weights"]["now"]
        assert parsed["lines"][-1].endswith("agrees.")

    @pytest.mark.slow
    def test_held_out_examples(self, document, demo_model, tmp_path):
        pairs, fresh = tk.load_dataset("demo-bias", demo_model)[:12].split(0.5)
        tracer = tk.Tracer(demo_model, pairs, held_out=fresh)
        result = tracer.run("attribution", budget=3)
        parsed = document("verify", result.save(tmp_path / "run"))
        rows = {row["measured"]: row for row in parsed["tables"]["measured"]}
        assert rows["held-out effect"]["now"] == pytest.approx(result.held_out_effect, rel=1e-4)
        assert rows["largest difference on a held-out example"]["agrees"] is True
        # Here the mean stays as it is.
        change = torch.zeros(len(fresh))
        change[:2] = torch.tensor([0.01, -0.01])
        effects = result.held_out.effects + change
        changed = replace(result, held_out=replace(result.held_out, effects=effects))
        parsed = document("verify", changed.save(tmp_path / "changed"))
        assert "largest difference on a held-out example" in parsed["error"]["message"]
        other = replace(result, held_out=replace(result.held_out, fingerprint="0" * 64))
        parsed = document("verify", other.save(tmp_path / "other"))
        assert "6 held-out examples are not those of the run" in parsed["error"]["message"]
        # Somebody's pairs are known to their own program only.
        path = replace(result, held_out=replace(result.held_out, origin=None)).save(
            tmp_path / "unknown"
        )
        assert "held-out examples were not measured" in document("verify", path)["lines"][0]

    def test_weights_that_differ(self, document, folder, tmp_path):
        result = tk.TraceResult.load(folder)
        facts = replace(result.model_facts, weights_digest="0" * 64)
        changed = replace(result, model_facts=facts)
        parsed = document("verify", changed.save(tmp_path / "run"))
        assert parsed["error"]["type"] == "ComparisonError"
        assert "does not agree with what is measured now: weights." in parsed["error"]["message"]

    def test_effects_that_differ_on_one_example(self, document, folder, tmp_path):
        result = tk.TraceResult.load(folder)
        # The mean stays as it is.
        change = torch.zeros(len(result.per_example))
        change[:2] = torch.tensor([0.01, -0.01])
        changed = replace(
            result, searched=replace(result.searched, effects=result.per_example + change)
        )
        parsed = document("verify", changed.save(tmp_path / "run"))
        assert "largest difference on an example" in parsed["error"]["message"]

    def test_values_of_another_model(self, document, demo_model, tmp_path):
        pairs = tk.load_dataset("demo-bias", demo_model)[:4]
        tracer = tk.Tracer(demo_model, pairs, "head-outputs", source="mean", positions="all")
        result = tracer.run("attribution", budget=2)
        tracer.export(result, tmp_path / "edited")
        model = ("--model", tmp_path / "edited")
        parsed = document("verify", result.save(tmp_path / "run"), *model)
        assert "so this is not the same model. Give --model" in parsed["error"]["message"]

    def test_another_model(self, document, folder, tmp_path):
        result = tk.TraceResult.load(folder)
        changed = replace(
            result, searched=replace(result.searched, effects=result.per_example + 0.1)
        )
        parsed = document("verify", changed.save(tmp_path / "run"))
        assert "so this is not the same model" in parsed["error"]["message"]
