"""`tracekit evaluate`."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import tracekit as tk


@pytest.mark.slow
def test_masks_are_evaluated(command, tmp_path, demo_model):
    pairs = tk.load_dataset("demo-bias", demo_model)[:6]
    result = tk.Tracer(demo_model, pairs).run("top-k", budget=3)
    result.save(tmp_path / "run")
    (tmp_path / "soft.json").write_text(json.dumps([0.5] * 32))
    code, out, err = command(
        *("evaluate", "--limit", 6, "--mask", tmp_path / "run", "--mask", tmp_path / "soft.json"),
        *("--output", tmp_path / "effects.csv"),
    )
    assert code == 0, err
    assert f"{result.effect:.6g}" in out
    labels = ",".join(result.labels)
    code, by_label, err = command("evaluate", "--limit", 6, "--mask", labels)
    assert code == 0, err
    assert f"{result.effect:.6g}" in by_label
    frame = pd.read_csv(tmp_path / "effects.csv")
    assert frame["mask"].tolist() == ["run"] * 6 + ["soft.json"] * 6
    assert frame["effect"][:6].tolist() == pytest.approx(result.per_example.tolist(), rel=1e-5)
    code, _, err = command(
        *("evaluate", "--limit", 6, "--mask", tmp_path / "run", "--components", "head-outputs")
    )
    assert code == 1
    assert "(attention-patterns) is not among the 32 components of this registry" in err
    (tmp_path / "bad.json").write_text('{"a": 1}')
    for name, text in (
        ("bad.json", "holds no mask. Write a JSON list with one number per component"),
        ("none.json", "There is no file"),
        ("soft.json", "Its last axis needs one entry for each of the 8 components"),
    ):
        options = ["--layers", "0"] if name == "soft.json" else []
        code, _, err = command("evaluate", "--limit", 6, "--mask", tmp_path / name, *options)
        assert code == 1
        assert text in err
