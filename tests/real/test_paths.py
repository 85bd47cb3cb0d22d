"""Paths and attention of SmolLM2-135M against the bare model with torch hooks."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.engine.test_head_reads import check
from tests.engine.test_path_effects import Plain, plainly


@pytest.mark.soak
@pytest.mark.real
def test_of_a_real_model_equals_plain_hooks(real_model, bare_model):
    pairs = tk.load_dataset("ioi", real_model, n=2)
    tracer = tk.Tracer(real_model, pairs, "head-outputs+mlp-blocks", "logit-difference")
    paths = tracer.paths(["L12H3", "MLP17", "L22H1"])
    expected = plainly(tracer, Plain("llama", bare_model), paths.rows)
    torch.testing.assert_close(paths.effects, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.real
def test_heads_of_a_real_model_equal_the_bare_one(real_model, bare_model):
    pairs = tk.load_dataset("ioi", real_model, n=3)
    engine = tiny.engine(real_model, pairs, "head-outputs")
    check("llama", bare_model, engine, ((12, 3), (23, 3), (24, 4), (29, 1)))
