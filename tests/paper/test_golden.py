"""Every experiment of the paper, on the embedded model, gives the numbers it gave before."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from paper.reproduction import EXPERIMENTS
from tests.processes import ROOT
from tools import golden


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("options", "pinned"),
    [
        pytest.param(golden.FEW, golden.PINNED_FEW, marks=pytest.mark.slow, id="few"),
        pytest.param((), golden.PINNED, marks=pytest.mark.soak, id="all"),
    ],
)
def test_all_experiments_on_the_embedded_model(tmp_path, options, pinned):
    command = ["all", "--model", "demo", "--jobs", "2", "--quiet", *options]
    done = subprocess.run(
        [sys.executable, "-m", "paper", *command, "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in EXPERIMENTS:
        assert (tmp_path / name / "notes.md").exists()
        assert list((tmp_path / name).glob("*.tex"))
    found = golden.differences(golden.numbers(tmp_path), pinned)
    assert not found, "\n".join(found)


def test_what_changed_is_said():
    pinned = json.loads(golden.PINNED.read_text())
    assert {name.split("/")[0] for name in pinned} == set(EXPERIMENTS)
    assert golden.differences(pinned) == []
    few = json.loads(golden.PINNED_FEW.read_text())
    assert set(few) == set(pinned)
    assert golden.differences(few, golden.PINNED_FEW) == []
    changed = copy.deepcopy(pinned)
    changed["table-heads/effects"][1]["effect"] *= 1.05
    (line,) = golden.differences(changed)
    assert line.startswith("table-heads/effects, row 1 (demo-bias, random, demo): effect is ")
    changed["findings/findings"].pop()
    changed["fig-time/time"][0]["forward"] += 100
    changed["another"] = []
    lines = "\n".join(golden.differences(changed))
    assert "findings/findings has 0 rows instead of 1" in lines
    assert "fig-time/time, row 0 (demo-professions, random, demo): forward is 504.0" in lines
    assert "another is new" in lines
    assert lines.count("\n") == 3
