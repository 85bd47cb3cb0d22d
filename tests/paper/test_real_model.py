"""Experiments on a model that is none of the paper's."""

from __future__ import annotations

import pytest

import tracekit as tk
from paper.experiment import Setting
from paper.jobs import ModelAt
from paper.reproduction import reproduce

pytestmark = [pytest.mark.real, pytest.mark.soak]


def test_examples_are_left_out_what_the_tokenizer_does_not_allow(real_model, shared, tmp_path):
    setting = Setting(
        models=[ModelAt.parse("smollm2-135m")],
        datasets=["professions"],
        methods=["mask-ig"],
        limit=6,
        held_out=False,
    )
    data_dir = shared / "data"
    (written,) = reproduce(["table-neurons"], setting, tmp_path, data_dir=data_dir, images=False)
    whole = tk.load_dataset(
        "professions", real_model, data_dir=data_dir / "professions", on_mismatch="skip"
    )
    assert len(whole.skipped) > 600
    notes = (tmp_path / "table-neurons" / "notes.md").read_text()
    assert f"{len(whole.skipped)} examples of professions are left out with smollm2-135m" in notes
    table = written.report.tables["effects"].frame
    assert (table["n_examples"] == 6).all()
    assert (table["effect"] > 0).all()
