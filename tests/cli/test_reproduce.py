"""`tracekit reproduce`."""

from __future__ import annotations

import pytest

from tracekit.cli.app import app
from tracekit.cli.output import console


def test_the_list_of_experiments_fits_a_terminal(capsys, monkeypatch):
    from tracekit.paper import EXPERIMENTS

    monkeypatch.setattr(console, "width", 80)
    assert not app(["reproduce", "--list"], standalone_mode=False)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    for name in EXPERIMENTS:
        assert name in out.split()


@pytest.mark.slow
def test_reproduce(command, tmp_path):
    code, out, _ = command("reproduce", "--list")
    assert code == 0
    assert "fig-nonadditivity" in out
    arguments = (
        *("reproduce", "table-single", "fig-dcm", "--model", "demo", "--dataset", "demo-bias"),
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
    code, _, err = command("reproduce", "table-single", "--methods", "top", "--output", tmp_path)
    assert code == 1
    assert "Unknown method 'top'. Did you mean 'top-k'?" in err
    code, _, err = command("reproduce", "fig-9")
    assert code == 1
    assert "Unknown experiment 'fig-9'." in err


@pytest.mark.slow
def test_what_was_not_done_is_said(command, tmp_path):
    code, out, _ = command(
        *("reproduce", "table-single", "--model", "demo", "--dataset", "demo-bias", "--limit", 6),
        *("--methods", "top-k,exhaustive", "--output", tmp_path, "--quiet"),
        *("--jobs", 1),
    )
    assert code == 0
    code, out, _ = command(
        *("reproduce", "table-heads", "--model", "demo", "--dataset", "demo-bias", "--limit", 4),
        *("--methods", "top-k,exhaustive", "--output", tmp_path, "--quiet"),
    )
    assert code == 1
    assert "Skipped: demo, demo-bias, attention-patterns, odds-ratio, exhaustive: " in " ".join(
        out.split()
    )
