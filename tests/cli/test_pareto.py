"""`tracekit pareto`."""

from __future__ import annotations

import pytest

import tracekit as tk


@pytest.mark.soak
@pytest.mark.slow
def test_pareto_fronts(command, tmp_path):
    code, out, err = command(
        *("pareto", "--limit", 6, "--max-budget", 4, "--max-passes", 20),
        *("--checkpoint", tmp_path / "kept", "--output", tmp_path / "run", "--quiet"),
    )
    assert code == 0, err
    assert "A limit of 20 passes applies to each of three searches" in " ".join(err.split())
    path = tk.ParetoFront.load(tmp_path / "run" / "pareto")
    assert path.largest == 4
    assert (tmp_path / "run" / "pareto.html").exists()
    assert (tmp_path / "kept").exists()
    for text in (
        "cross-fitted",
        "stability",
        "Stopped by --max-passes",
        "for the statistics",
    ):
        assert text in out
    assert f"{path.statistics[0].cross_fitted:.4g}" in out
    again, out, _ = command(
        *("pareto", "--limit", 6, "--max-budget", 4, "--max-passes", 20),
        *("--checkpoint", tmp_path / "kept", "--output", tmp_path / "run", "--quiet"),
    )
    assert again == 0
    assert tk.ParetoFront.load(tmp_path / "run" / "pareto").to_frame().equals(path.to_frame())


@pytest.mark.slow
def test_pareto_fronts_of_few_examples_and_whole_blocks(command, tmp_path):
    """No halves, and no other set of the same layers: dashes."""
    code, out, err = command(
        *("pareto", "--limit", 3, "--components", "mlp-blocks"),
        *("--output", tmp_path, "--quiet"),
    )
    assert code == 0, err
    assert out.count(" - ") >= 3
