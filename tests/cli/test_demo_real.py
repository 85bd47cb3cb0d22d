"""`tracekit demo --real`: its steps on the embedded model, itself in a soak test."""

from __future__ import annotations

import pytest

from tracekit.cli import demo


@pytest.mark.slow
def test_demo_of_a_real_model_says_what_joint_search_finds(command, tmp_path, monkeypatch):
    for name, value in {
        "_REAL_MODEL": "demo",
        "_REAL_TASK": "demo-bias",
        "_REAL_METRIC": "odds-ratio",
        "_REAL_BUDGETS": (2, 4),
        "_REAL_EXAMPLES": (8, 6),
    }.items():
        monkeypatch.setattr(demo, name, value)
    code, out, err = command("demo", "--real", "--output", tmp_path / "out")
    assert code == 0, err
    assert "2 of 32 heads (" in out
    assert "on 6 examples that no search saw. Top-k takes " in out
    assert " joint search has " in out
    page = (tmp_path / "out" / "index.html").read_text()
    assert "local search" in page.lower()
    assert "top-k" in page.lower()


@pytest.mark.real
@pytest.mark.soak
def test_demo_of_smollm2(real_model, command, tmp_path):
    code, out, err = command("demo", "--real", "--output", tmp_path / "out")
    assert code == 0, err
    assert "3 of 270 heads (L25H1, L25H2, L26H2)" in out
    assert "by 8.70 on 32 examples that no search saw" in out
