"""Precision of the matrix products."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.gradients import products_in
from tracekit.errors import ConfigError


def test_bfloat16_learns_the_mask_and_float32_measures_it(model, pairs):
    tracer = tk.Tracer(model, pairs)
    engine = tracer.engine
    mask = torch.full((12,), 0.5)
    exact, rough = (
        engine.gradient(mask, torch.ones_like, precision=p)[1] for p in ("float32", "bfloat16")
    )
    assert not torch.equal(rough, exact)
    assert torch.nn.functional.cosine_similarity(rough, exact, dim=0) > 0.99
    result = tracer.run(budget=3, epochs=4, trials=3, precision="bfloat16")
    assert result.effect == engine.effects(result.binary_mask).mean().item()
    assert result.config["precision"] == "bfloat16"


def test_the_clean_run_is_never_in_low_precision(model, pairs):
    rough, exact = tiny.engine(model, pairs), tiny.engine(model, pairs)
    rough.gradient(torch.full((12,), 0.5), torch.ones_like, precision="bfloat16")
    assert torch.equal(rough.data.clean.x, exact.data.clean.x)
    assert torch.equal(rough.full_effects, exact.full_effects)


@pytest.mark.parametrize("method", ["engine", "search"])
def test_an_unknown_precision(model, pairs, method, unchecked):
    text = "Unknown precision 'half'. Use one of float32, tf32, bfloat16."
    with pytest.raises(ConfigError, match=text):
        if method == "search":
            tk.search.PGBCT(precision="half")
        else:
            tiny.engine(model, pairs).gradient(
                torch.full((12,), 0.5), torch.ones_like, precision="half"
            )


@pytest.mark.gpu
def test_tf32_is_put_back():
    before = torch.backends.cuda.matmul.fp32_precision
    with products_in("tf32", torch.device("cuda")):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("kinds", ["attention-patterns", "head-outputs", "mlp-outputs"])
def test_float64_models_are_mixed_in_float64(architecture, kinds, pairs):
    """They were refused: mixing in float32 rounds, so an empty mask changed the logits."""
    single = tk.Tracer(tk.load_model(tiny.hf_model(architecture)), pairs, kinds)
    double = tk.Tracer(tk.load_model(tiny.hf_model(architecture).double()), pairs, kinds)
    mask = torch.full((len(single.registry),), 0.3)
    effects = [tracer.engine.effects(mask) for tracer in (single, double)]
    torch.testing.assert_close(effects[0], effects[1], rtol=1e-4, atol=1e-5)
