"""Edges of a pretrained model against what plain PyTorch answers."""

from __future__ import annotations

import json

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.conftest import SHARED

pytestmark = pytest.mark.real


def test_effects_and_gradients_of_edges(real_model):
    answers = json.loads((SHARED / "oracle/real/smollm2_edges_ioi.json").read_text())
    rows = [
        {"prompt_ids": e["prompt"], "counterfactual_ids": e["cf"], "x_ids": e["x"], "y_ids": e["y"]}
        for e in answers["examples"]
    ]
    engine = tiny.engine(real_model, tk.PromptPairs.from_ids(rows), "edges", "logit-difference")
    n = engine.n_components
    assert n == answers["n_edges"]
    full = torch.tensor(answers["full"])
    torch.testing.assert_close(engine.full_effects, full, rtol=1e-4, atol=1e-4)

    def mask_of(edges):
        mask = torch.zeros(n)
        mask[[engine.registry.index(e) if isinstance(e, str) else e for e in edges]] = 1
        return mask

    for given in answers["sets"]:
        effects = engine.effects(mask_of(given["edges"]))
        torch.testing.assert_close(effects, torch.tensor(given["effects"]), rtol=1e-4, atol=1e-4)
    at = answers["gradient_at"]
    for mask, expected in [
        (torch.zeros(n), answers["attribution"]),
        (mask_of(at["edges"]), at["gradient"]),
    ]:
        slopes = engine.gradient(mask, torch.ones_like)[1] / len(rows)
        mine = slopes[[engine.registry.index(label) for label in expected]]
        torch.testing.assert_close(
            mine, torch.tensor(list(expected.values())), rtol=1e-4, atol=1e-4
        )
