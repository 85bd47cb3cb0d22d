"""Speed by commit: lines that benchmarks append, and their picture."""

from __future__ import annotations

import json
import re
from datetime import datetime

import pytest
import typer
from typer.testing import CliRunner

from tools.benchmarks import __main__ as benchmarks
from tools.benchmarks import history
from tools.benchmarks.figures import Figure

HERE, THERE = {"device": "a", "threads": 2}, {"device": "b", "threads": 2}


def figures(step, start=None):
    measured = [Figure("a step", step, 1.2, "floor")]
    return measured + ([] if start is None else [Figure("start", start, None, "s")])


def test_the_quick_benchmarks_append_a_line(tmp_path, monkeypatch):
    made = {"step": lambda plan: figures(0.5), "real": lambda plan: figures(9.0)}
    monkeypatch.setattr(benchmarks, "FIGURES", made)
    app, file = typer.Typer(), tmp_path / "speed.jsonl"
    app.command()(benchmarks.main)
    for arguments in (["--quick"], ["--only", "step"], ["--quick", "--check"]):
        result = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--history", str(file)])
        assert result.exit_code == 0, result.output
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(entries) == 2
    for entry in entries:
        assert re.fullmatch(r"[0-9a-f]{10,}(-dirty)?|", entry["commit"])
        assert datetime.fromisoformat(entry["date"]).tzinfo is not None
        assert entry["machine"]["threads"] >= 1
        # Not the sections that take longer.
        assert entry["figures"] == {"a step": {"value": 0.5, "bound": 1.2, "of": "floor"}}


def test_the_picture_has_a_point_for_each_line_of_one_machine(tmp_path, monkeypatch):
    file = tmp_path / "speed.jsonl"
    for commit, machine, measured in [
        ("one", HERE, figures(0.6, 9.0)),
        ("two", THERE, figures(5.0)),
        ("three", HERE, figures(0.7)),
        ("three", HERE, figures(0.8, 8.0)),
    ]:
        monkeypatch.setattr(history, "commit_name", lambda commit=commit: commit)
        history.append_line(file, machine, measured)
    drawn = history.draw(history.read_lines(file))
    steps, bounds, start, _ = drawn.data
    assert (steps.x, steps.y) == (("1. one", "2. three", "3. three"), (0.6, 0.7, 0.8))
    assert (start.x, start.y) == (("1. one", "3. three"), (9.0, 8.0))
    assert [each.text for each in drawn.layout.annotations] == ["a step (floor)", "start (s)"]
    assert (bounds.x, bounds.y) == (steps.x, (1.2, 1.2, 1.2))


def test_a_file_without_figures_is_refused(tmp_path):
    text = "holds no figures. Run python -m tools.benchmarks --quick, which appends them."
    with pytest.raises(typer.BadParameter, match=re.escape(text)):
        history.read_lines(tmp_path / "none.jsonl")
