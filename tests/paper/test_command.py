"""The command `python -m paper`."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys

import pytest
import typer

from paper import __main__ as command_line
from paper.reproduction import EXPERIMENTS, select_experiments
from tests.processes import ROOT, Command


@pytest.fixture
def command(monkeypatch, capsys, demo_model):
    """Runs the command in this process; gives exit code, standard output and standard error."""
    monkeypatch.setattr("tracekit.runs.worker.load_model", lambda source, **options: demo_model)
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    monkeypatch.setattr(command_line.console, "width", 160)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["paper", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            command_line.run()
        out = capsys.readouterr()
        return left.value.code or 0, out.out, out.err

    return run


def test_the_list_of_experiments_fits_a_terminal(command, monkeypatch):
    monkeypatch.setattr(command_line.console, "width", 80)
    code, out, _ = command("--list")
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    assert set(EXPERIMENTS) <= set(out.split())


@pytest.mark.parametrize("page", ["README.md", "docs/paper.md"])
def test_commands_of_the_docs_parse(page):
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^python -m paper (.+)$", text, re.MULTILINE)
    assert lines
    parser = typer.main.get_command(command_line.app)
    for line in lines:
        names = parser.make_context("paper", shlex.split(line)).params["names"]
        select_experiments(names or ["all"])


@pytest.mark.soak
@pytest.mark.slow
def test_runs_are_kept(command, tmp_path):
    arguments = (
        *("table-single", "fig-dcm", "--model", "demo", "--dataset", "demo-bias"),
        *("--methods", "top-k", "--limit", 6, "--output", tmp_path, "--quiet"),
    )
    code, out, err = command(*arguments)
    assert code == 0, err
    assert "Ran 4 of 4. " in out
    assert "not a reproduction of its numbers" in " ".join(out.split())
    for name in ("single.csv", "single.tex", "notes.md"):
        assert (tmp_path / "table-single" / name).exists()
    assert (tmp_path / "fig-dcm" / "share-demo-demo-bias.html").exists()
    code, out, _ = command(*arguments)
    assert "Ran 0 of 4, 4 were there. " in out
    assert not [path for path in tmp_path.rglob(".*") if "lock" not in path.name]
    single, epochs = json.loads(command(*arguments, "--json")[1])
    assert (single["name"], single["skipped"]) == ("table-single", [])
    assert single["tables"]["single"][0]["dataset"] == "demo-bias"
    assert len(epochs["tables"]["epochs"]) > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig-9"], "Unknown experiment 'fig-9'."),
        (["findings", "--methods", "top"], "Unknown method 'top'. Did you mean 'top-k'?"),
        (["findings", "--option", "trials"], "'trials' is not of the form name=value."),
        (["findings", "--dataset", "{folder}/none.csv"], "There is no file"),
        (["findings", "--data-dir", "{folder}/none"], "with data files"),
        (["findings", "--output", "{folder}/file"], "The output "),
        (["findings", "--part", "3"], "is not of the form NUMBER/COUNT"),
    ],
)
def test_wrong_arguments_are_refused_before_a_model_is_loaded(
    command, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.setattr("tracekit.runs.worker.load_model", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    given = [each.replace("{folder}", str(tmp_path)) for each in arguments]
    code, _, err = command(*given, "--model", "demo")
    assert (code, err.count("Error: ")) == (1, 1)
    assert message in err


@pytest.mark.slow
def test_failed_runs_are_reported(command, tmp_path):
    methods = ("--methods", "top-k,exhaustive", "--output", tmp_path, "--quiet")
    data = ("--model", "demo", "--dataset", "demo-bias")
    code, _, _ = command("table-single", *data, "--limit", 6, *methods, "--jobs", 1)
    assert code == 0
    code, out, _ = command("table-heads", *data, "--limit", 4, *methods)
    assert code == 1
    reason = "Skipped: demo, demo-bias, attention-patterns, odds-ratio, exhaustive: "
    assert reason in " ".join(out.split())


@pytest.mark.slow
def test_parts_write_no_report(command, tmp_path):
    arguments = ("table-heads", "--model", "demo", "--dataset", "demo-bias")
    arguments += ("--methods", "top-k,random", "--limit", 6, "--draws", 3, "--no-held-out")
    arguments += ("--output", tmp_path, "--quiet")
    for number in (1, 2):
        code, out, err = command(*arguments, "--part", f"{number}/2")
        assert code == 0, err
        assert "Ran 1 of 1. Runs are in" in out
        assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    code, out, _ = command(*arguments)
    assert "Ran 0 of 2" in out
    assert (tmp_path / "table-heads" / "notes.md").exists()


ARGUMENTS = (
    *("table-heads", "--model", "demo", "--dataset", "demo-bias", "--jobs", 2),
    *("--methods", "top-k,greedy,local-search", "--no-held-out", "--quiet"),
)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "group", "status"),
    [
        (signal.SIGINT, True, 130),
        pytest.param(signal.SIGINT, False, 130, marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, False, 143, marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, True, 143, marks=pytest.mark.soak),
        pytest.param(signal.SIGKILL, False, -signal.SIGKILL, marks=pytest.mark.soak),
    ],
)
def test_a_stopped_command_leaves_no_process_and_keeps_finished_runs(tmp_path, stop, group, status):
    runs, arguments = tmp_path / "out" / "runs", (*ARGUMENTS, "--output", tmp_path / "out")

    def finished():
        return {path.name for path in runs.glob("*") if path.name[0] != "."}

    command = Command(*arguments, log=tmp_path / "log", module="paper")
    # Workers are at work, and have done something.
    command.wait_until(finished)
    assert len(command.family()) >= 3
    assert command.stop(stop, group=group) < 5
    assert command.process.returncode == status
    kept = finished()
    assert kept
    assert "Traceback" not in command.output
    if stop != signal.SIGKILL:
        assert "Stopped." in command.output
        assert len(list(runs.iterdir())) == len(kept)
    if group:
        return
    written = {name: (runs / name / "run.json").stat().st_mtime_ns for name in kept}
    again = Command(*arguments, log=tmp_path / "log", module="paper")
    again.process.wait(300)
    assert again.process.returncode == 0, again.output
    assert f"Ran {len(finished()) - len(kept)} of" in again.output
    for name, time_written in written.items():
        assert (runs / name / "run.json").stat().st_mtime_ns == time_written
    assert not [path for path in (tmp_path / "out").rglob(".*")]
