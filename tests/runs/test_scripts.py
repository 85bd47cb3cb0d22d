"""Sweeps with several workers in scripts as people write them, each run as a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SWEEP = """
tk.sweep(
    models=["demo"], datasets=["demo-facts"], methods=["random"], budgets=[1, 2], limit=4,
    output="out", {jobs}
)
print("it is done")
"""
PLAIN = "import tracekit as tk\n" + SWEEP.format(jobs="jobs=2")
GIVEN = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import tracekit as tk
pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
""" + SWEEP.format(jobs="executor=pool")


def guarded(script):
    head, _, body = script.partition("tk.sweep")
    lines = ("tk.sweep" + body).splitlines()
    return f"{head}\nif __name__ == '__main__':\n" + "\n".join(f"    {line}" for line in lines)


def run(folder, script, way):
    arguments = [sys.executable]
    if way == "file":
        (folder / "script.py").write_text(script)
        arguments.append("script.py")
    elif way == "-c":
        arguments += ["-c", script]
    else:
        arguments.append("-")
    given = script if way == "stdin" else ""
    return subprocess.run(
        arguments, input=given, cwd=folder, capture_output=True, text=True, timeout=300
    )


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "way", "says"),
    [
        (PLAIN, "file", "No worker process could start"),
        (PLAIN, "stdin", "No worker process could start"),
        (guarded(PLAIN), "stdin", "No worker process could start"),
        (GIVEN, "file", "If none began"),
        (guarded(PLAIN), "file", None),
        (PLAIN, "-c", None),
    ],
)
def test_a_script_without_a_guard_says_what_to_do_once(script, way, says, tmp_path):
    ended = run(tmp_path, script, way)
    if says is None:
        assert "it is done" in ended.stdout, ended.stderr
        return
    assert ended.returncode == 1
    assert ended.stderr.count(says) == 1, ended.stderr
    assert 'under if __name__ == "__main__":' in ended.stderr
    assert "in use by another sweep" not in ended.stderr
    assert "it is done" not in ended.stdout
    assert not (tmp_path / "out").exists()
