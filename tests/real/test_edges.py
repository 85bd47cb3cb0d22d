"""Edges of a pretrained model against what plain PyTorch answers."""

from __future__ import annotations

import json

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.conftest import SHARED
from tracekit.components.masks import complement_of

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


@pytest.mark.soak
def test_sparse_passes_are_whole_ones(real_model):
    pairs = tk.load_dataset("ioi", real_model, n=4)
    fast, whole = (
        tiny.engine(real_model, pairs, "edges", "logit-difference", capabilities=capabilities)
        for capabilities in (None, tk.Capabilities.none())
    )
    order = torch.randperm(fast.n_components, generator=torch.Generator().manual_seed(0)).tolist()
    for size in (70, 700, 7000):
        members = fast.edge_paths.first(order, size)
        others = complement_of(members, fast.n_components)
        torch.testing.assert_close(
            fast.set_effects([members, others]),
            whole.set_effects([members, others]),
            rtol=1e-3,
            atol=1e-3,
        )
