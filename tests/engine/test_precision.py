"""Precision of the matrix products."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.precision import products_in
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
    assert torch.equal(rough.clean.x, exact.clean.x)
    assert torch.equal(rough.full_effects, exact.full_effects)


@pytest.mark.parametrize("method", ["engine", "search"])
def test_an_unknown_precision(model, pairs, method, unchecked):
    text = "Unknown precision 'half'. Use one of float32, tf32, bfloat16."
    with pytest.raises(ConfigError, match=text):
        if method == "search":
            tk.PGBCT(precision="half")
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
