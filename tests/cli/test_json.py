"""`--json`: every command prints one document, also of an error; and `tracekit verify`.

`conftest.py` holds every document that a command of these tests prints against its schema.
"""

from __future__ import annotations

import json
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
from tracekit.cli.output import CommandOutput, console


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
    "pareto": [*QUICK, "--max-budget", 2, "--max-passes", 20, "--output", "front"],
    "report": ["{folder}", "--output", "report.html"],
    "reproduce": ["--list"],
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
    monkeypatch.setattr(demo, "_METHODS", tuple(quick.items()))
    Path("sweep.toml").write_text(
        'models = ["demo"]\ndatasets = ["demo-bias"]\nmethods = ["top-k"]\nbudgets = [2]\nlimit = 4'
    )
    words = [str(word).replace("{folder}", str(folder)) for word in OUTPUTS[name]]
    parsed = document(name, *words)
    assert (parsed["command"], parsed["error"]) == (name, None)
    assert bool(parsed["tables"]) == (name != "report")


def test_a_schema_refuses_other_columns():
    rows = {"measured": "weights", "saved": 1, "now": 1, "agrees": "yes"}
    output = CommandOutput(
        command="verify", ok=True, tracekit="1", tables=[[rows]], lines=[], warnings=[], error=None
    )
    validate(output, schemas()["verify"])
    for wrong in ({**rows, "more": 1}, {"measured": "weights"}):
        with pytest.raises(ValidationError):
            validate({**output, "tables": [[wrong]]}, schemas()["verify"])


def test_what_makes_a_command_fail_is_not_ok(document, tmp_path):
    Path(tmp_path / "mine.csv").write_text("prompt,counterfactual,x,y\na maid,the maid, b, b\n")
    parsed = document("pairs", "check", tmp_path / "mine.csv")
    assert "red" in {row["color"] for row in parsed["tables"][0]}
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
    assert [row["data set"] for row in parsed["tables"][0]] == list(tk.data.DATASETS)


def test_numbers_are_numbers(document, folder):
    parsed = document("show", folder)
    (row,) = parsed["tables"][0]
    effect = tk.TraceResult.load(folder).effect
    assert row["effect"] == pytest.approx(effect, rel=1e-3)
    assert parsed["error"] is None


def test_warnings(command, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(",prompt,counterfactual,x,y\n0,the maid,the nurse, smiled, left\n")
    _, out, _ = command("pairs", "check", path, "--json")
    parsed = json.loads(out)
    assert any("numbers its rows, and is left out" in text for text in parsed["warnings"])
    assert {row["check"] for row in parsed["tables"][0]} >= {"task", "tokens", "balance", "leak"}


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
        rows = {row["measured"]: row for row in parsed["tables"][0]}
        assert {row["agrees"] for row in rows.values()} == {"yes"}
        assert rows["effect"]["saved"] == rows["effect"]["now"]
        assert rows["weights"]["saved"] == rows["weights"]["now"]
        assert parsed["lines"][-1].endswith("agrees.")

    def test_held_out_examples(self, document, demo_model, tmp_path):
        pairs, fresh = tk.load_dataset("demo-bias", demo_model)[:12].split(0.5)
        tracer = tk.Tracer(demo_model, pairs, held_out=fresh)
        result = tracer.run("attribution", budget=3)
        parsed = document("verify", result.save(tmp_path / "run"))
        rows = {row["measured"]: row for row in parsed["tables"][0]}
        assert rows["held-out effect"]["now"] == pytest.approx(result.held_out_effect, rel=1e-4)
        assert rows["largest difference on a held-out example"]["agrees"] == "yes"
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
        changed = replace(result, own=replace(result.own, effects=result.per_example + change))
        parsed = document("verify", changed.save(tmp_path / "run"))
        assert "largest difference on an example" in parsed["error"]["message"]

    def test_values_of_another_model(self, document, demo_model, tmp_path):
        pairs = tk.load_dataset("demo-bias", demo_model)[:4]
        tracer = tk.Tracer(demo_model, pairs, "head-outputs", source="mean", positions="all")
        result = tracer.run("attribution", budget=2)
        tracer.export(result, tmp_path / "edited")
        model = ("--model", tmp_path / "edited")
        parsed = document("verify", result.save(tmp_path / "run"), *model)
        assert parsed["error"]["message"].endswith(
            "as for the run. The weights differ too, and values such as means are the "
            "model's: give --model."
        )

    def test_another_model(self, document, folder, tmp_path):
        result = tk.TraceResult.load(folder)
        changed = replace(result, own=replace(result.own, effects=result.per_example + 0.1))
        parsed = document("verify", changed.save(tmp_path / "run"))
        assert "so the model is another one" in parsed["error"]["message"]
