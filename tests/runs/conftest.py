"""Two tiny models and pairs in files, which workers load for themselves."""

from __future__ import annotations

import json

import pytest
import torch

from tests import tiny


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A folder with the models `first` and `second`, and pairs of ragged and of equal lengths."""
    folder = tmp_path_factory.mktemp("lab")
    for seed, name in enumerate(("first", "second")):
        torch.manual_seed(seed)
        model = tiny.hf_model("gpt2")
        with torch.no_grad():
            model.transformer.wte.weight += 0.01 * seed
        model.save_pretrained(folder / name)
    lines = [json.dumps(row) for row in tiny.rows(6)]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    for row in (even := tiny.rows(4, seed=1)):
        for name in ("prompt_ids", "counterfactual_ids"):
            row[name] = row[name][:3]
    (folder / "even.jsonl").write_text("\n".join(map(json.dumps, even)))
    return folder


@pytest.fixture
def grid(lab, tmp_path):
    """Keyword arguments of a small sweep: both models, two methods, two sizes."""
    return {
        "models": [str(lab / "first"), str(lab / "second")],
        "datasets": [str(lab / "pairs.jsonl")],
        "methods": ["top-k", {"name": "random", "draws": 3}],
        "budgets": [2, 0.25],
        "output": tmp_path / "out",
        "progress": False,
    }
