"""Models in other precisions than float32."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny

pytestmark = pytest.mark.lens


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("kinds", ["attention-patterns", "head-outputs", "mlp-outputs"])
def test_float64_models_are_mixed_in_float64(architecture, kinds, pairs):
    """They were refused: mixing in float32 rounds, so an empty mask changed the logits."""
    single = tk.Tracer(tiny.shared_model(architecture), pairs, kinds)
    double = tk.Tracer(tk.load_model(tiny.hf_model(architecture).double()), pairs, kinds)
    mask = torch.full((len(single.registry),), 0.3)
    effects = [tracer.engine.effects(mask) for tracer in (single, double)]
    torch.testing.assert_close(effects[0], effects[1], rtol=1e-4, atol=1e-5)
