"""Whatever moment a command is killed at, repeating it ends where one ends that was never killed.

By hand: `pytest -m soak tests/test_kills.py`, 50 kills of each command; TRACEKIT_KILLS sets another
number, TRACEKIT_KILLS_SEED other moments.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from tests.processes import Command

KILLS = int(os.environ.get("TRACEKIT_KILLS", "50"))
SEED = int(os.environ.get("TRACEKIT_KILLS_SEED", "0"))

_TIMES = {"seconds", "minutes"}
"""What may differ: wall times."""
_DIGESTS = {"sha256"}
"""Of entries that hold wall times; what is in them is compared itself."""

COMMANDS = {
    "trace": (
        *("trace", "--limit", 8, "--method", "top-k", "--method", "greedy", "--budget", 2),
        *("--budget", 4, "--output", "out", "--quiet"),
    ),
    "pareto": (
        *("pareto", "--limit", 8, "--max-passes", 60, "--checkpoint", "out/kept"),
        *("--output", "out", "--quiet"),
    ),
    "evaluate": ("evaluate", "--limit", 64, "--mask", "mask.json", "--output", "out/effects.csv"),
    "paper": (
        *("table-heads", "fig-heads", "--model", "demo", "--dataset", "demo-bias"),
        *("--methods", "top-k,greedy", "--limit", 8, "--output", "out", "--quiet"),
    ),
    "paper in processes": (
        *("table-heads", "--model", "demo", "--dataset", "demo-bias", "--jobs", 2),
        *("--methods", "top-k,greedy", "--limit", 8, "--output", "out", "--quiet"),
    ),
    "demo": ("demo", "--output", "out"),
}


def start(folder: Path, name: str) -> Command:
    (folder / "out").mkdir(parents=True, exist_ok=True)
    (folder / "mask.json").write_text(json.dumps([0.5] * 32))
    module = "paper" if name.startswith("paper") else "tracekit"
    return Command(*COMMANDS[name], log=folder / "log", folder=folder, module=module)


def finish(folder: Path, name: str) -> dict[str, Any]:
    """Runs the command to its end; gives what it wrote."""
    command = start(folder, name)
    assert command.process.wait(600) == 0, command.output
    return contents(folder / "out")


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a folder by name, without wall times and what follows from them."""
    return {
        str(path.relative_to(folder)): _content(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        return _without_times(json.loads(path.read_text()))
    if path.suffix == ".csv":
        header, *lines = path.read_text().splitlines()
        timed = [n for n, name in enumerate(header.split(",")) if name in _TIMES]
        assert not timed or '"' not in "".join(lines), "a cell may hold a comma"
        return [
            [cell for n, cell in enumerate(line.split(",")) if n not in timed] for line in lines
        ]
    if path.suffix == ".tex":
        rows = [line.split(" & ") for line in path.read_text().splitlines()]
        timed = {n for row in rows for n, cell in enumerate(row) if cell.rstrip(" \\") in _TIMES}
        return [[cell for n, cell in enumerate(row) if n not in timed] for row in rows]
    if path.name == "kept":
        # A checkpoint: safetensors writes the entries of its metadata in any order.
        with safe_open(path, framework="np") as file:
            tensors = {key: file.get_tensor(key).tobytes() for key in sorted(file.keys())}
            return tensors, file.metadata()
    if path.suffix in (".md", ".html"):
        # Pages and notes say how long a search took.
        return re.sub(r"\d+(\.\d+)? (s|seconds|min|minutes)\b", "TIME", path.read_text())
    return path.read_bytes()


def _without_times(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {
            name: _without_times(value)
            for name, value in entry.items()
            if name not in _TIMES | _DIGESTS
        }
    if isinstance(entry, list):
        return [_without_times(value) for value in entry]
    # A curve lists its runs with their digests.
    return "DIGEST" if isinstance(entry, str) and re.fullmatch("[0-9a-f]{64}", entry) else entry


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    different = [name for name in expected if found[name] != expected[name]]
    assert not different


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_was_killed_ends_as_if_it_had_not_been(tmp_path, name):
    began = time.monotonic()
    whole = finish(tmp_path / "whole", name)
    seconds = time.monotonic() - began
    assert_same(finish(tmp_path / "again", name), whole)
    moments = random.Random(f"{SEED} {name}")
    for number in range(KILLS):
        folder = tmp_path / "killed"
        if number % 2 == 0:
            # Else over what the repetition before it wrote.
            shutil.rmtree(folder, ignore_errors=True)
        command = start(folder, name)
        moment = moments.uniform(0, seconds)
        time.sleep(moment)
        if command.process.poll() is None:
            assert command.stop(signal.SIGKILL) < 5
        try:
            assert_same(finish(folder, name), whole)
        except AssertionError as error:
            error.add_note(f"kill {number}, after {moment:.3f} s of {seconds:.1f}")
            raise


def test_comparison_of_outputs_sees_their_content(tmp_path):
    """A digit of a result, a cell of a table and a byte of a figure count; wall times do not."""
    files = {
        "result.json": ('{"effect": 1.5, "seconds": 2}', '{"effect": 1.6, "seconds": 2}'),
        "table.csv": ("effect,seconds\n1.5,2\n", "effect,seconds\n1.6,2\n"),
        "figure.png": ("abc", "abd"),
    }
    for name, (text, _) in files.items():
        (tmp_path / name).write_text(text)
    whole = contents(tmp_path)
    (tmp_path / "result.json").write_text('{"effect": 1.5, "seconds": 3}')
    (tmp_path / "table.csv").write_text("effect,seconds\n1.5,7\n")
    assert_same(contents(tmp_path), whole)
    for name, (text, changed) in files.items():
        (tmp_path / name).write_text(changed)
        with pytest.raises(AssertionError):
            assert_same(contents(tmp_path), whole)
        (tmp_path / name).write_text(text)
    (tmp_path / ".draft").touch()
    with pytest.raises(AssertionError):
        assert_same(contents(tmp_path), whole)
