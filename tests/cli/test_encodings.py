"""Names and streams of any encoding: no run is lost to them, and none ends with a traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit as tk
from tests.cli.test_app import COMMANDS
from tracekit import cli
from tracekit.cli.console import console, error_console
from tracekit.demo import rows

NAME = "é→模"
"""No ASCII, not all of cp1252."""
HALF = "caf\udce9"
"""How Python reads a name in Latin-1."""
QUICK = ("--limit", "4", "--quiet", "--model", "demo")
ARGUMENTS = {
    "trace": (
        *("--dataset", f"{NAME}.jsonl", *QUICK, "--budget", "2", "--method", "top-k"),
        *("--output", f"out-{NAME}"),
    ),
    "show": (NAME,),
    "evaluate": (
        *("--dataset", f"{NAME}.jsonl", "--model", "demo", "--mask", f"{NAME}.json"),
        *("--components", "attention-patterns"),
    ),
    "report": (NAME, "--output", f"{NAME}.html"),
    "pairs": ("check", f"{NAME}.jsonl", "--model", "demo"),
    "verify": (NAME, "--dataset", f"{NAME}.jsonl"),
    "explain": (NAME, "--dataset", f"{NAME}.jsonl", "--output", f"why-{NAME}"),
    "pareto": (
        *("--dataset", f"{NAME}.jsonl", *QUICK, "--max-budget", "2", "--max-passes", "20"),
        *("--output", f"front-{NAME}"),
    ),
}
QUICKEST = {("trace", "cp1252"), ("show", "ascii"), ("evaluate", "ascii"), ("report", "cp1252")}
CELLS = [
    pytest.param(name, encoding, marks=() if (name, encoding) in QUICKEST else pytest.mark.slow)
    for name in ARGUMENTS
    for encoding in ("ascii", "cp1252", "utf-8")
]


def with_streams(monkeypatch, encoding, *arguments):
    """Runs a command whose streams have an encoding; gives its exit code and what it printed."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, errors="strict") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setattr(sys, "argv", ["tracekit", *arguments])
    monkeypatch.setattr(console, "width", 160)
    monkeypatch.setattr(error_console, "width", 400)
    code = 0
    try:
        cli.main()
    except SystemExit as stopped:
        code = stopped.code or 0
    for stream in streams:
        stream.flush()
    return code, *(stream.buffer.getvalue().decode(encoding) for stream in streams)


@pytest.fixture
def folder(demo_model, tmp_path, monkeypatch):
    """A folder with data, a mask and a run, all of that name; the mask has a byte-order mark."""
    monkeypatch.chdir(tmp_path)
    lines = "".join(json.dumps(row) + "\n" for row in rows("bias")[:8])
    Path(f"{NAME}.jsonl").write_text(lines, encoding="utf-8")
    mask = [1.0] + [0.0] * (demo_model.cfg.n_layers * demo_model.cfg.n_heads - 1)
    Path(f"{NAME}.json").write_text(json.dumps(mask), encoding="utf-8-sig")
    pairs = tk.load_pairs(f"{NAME}.jsonl", demo_model)
    tk.Tracer(demo_model, pairs, metric="odds-ratio").run("top-k", budget=2).save(NAME)
    return tmp_path


@pytest.mark.parametrize(("name", "encoding"), CELLS)
def test_a_command_ends_well_whatever_its_streams_can_show(folder, monkeypatch, name, encoding):
    code, out, err = with_streams(monkeypatch, encoding, name, *ARGUMENTS[name])
    assert code == 0, err
    assert out
    if name == "trace":
        (saved,) = Path(f"out-{NAME}").rglob("result.json")
        assert tk.TraceResult.load(saved.parent).searched.dataset == NAME
    if name == "report":
        assert NAME in Path(f"{NAME}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_names_that_are_no_text_are_refused_before_any_work(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    given = (f"{HALF}.jsonl",) if name in ARGUMENTS else (f"--output={HALF}",)
    code, out, err = with_streams(monkeypatch, "utf-8", name, *given)
    assert code == 1
    assert "The argument '" in err
    assert "caf�" in err
    assert "is not valid UTF-8" in err
    assert "Rename the file" in err
    assert not out
    assert not list(tmp_path.iterdir())


def test_what_has_such_a_name_in_python_is_saved_drawn_and_read(demo_model, tmp_path):
    pairs = tk.PromptPairs.from_text(rows("bias")[:4], demo_model, name=HALF)
    result = tk.Tracer(demo_model, pairs, metric="odds-ratio").run("top-k", budget=2)
    loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
    assert loaded.searched.dataset == "caf?"
    assert loaded.to_frame().equals(result.to_frame())
    assert tk.compare([result, loaded]).to_frame()["dataset"].tolist() == ["caf?"] * 2
    page = tk.report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "caf?" in page
    tk.figures.write(result.heatmap(), tmp_path / "figure.html")


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "cp1252"},
        pytest.param({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    ],
    ids=lambda each: next(iter(each)),
)
def test_a_process_of_another_encoding_is_told_what_to_do_or_ends_well(folder, variables):
    ended = subprocess.run(
        [sys.executable, "-m", "tracekit", "show", NAME],
        env={**os.environ, **variables},
        capture_output=True,
        check=False,
    )
    said = (ended.stdout + ended.stderr).decode("cp1252", "replace")
    assert "Traceback" not in said
    if "LC_ALL" in variables:
        assert ended.returncode == 1
        assert "PYTHONUTF8=1" in said
    else:
        assert ended.returncode == 0, said
        assert "L" in said
