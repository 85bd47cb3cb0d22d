"""Capabilities: optimisations that a model does not support are switched off, and said once."""

from __future__ import annotations

import gc
import re
import warnings
import weakref

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.capabilities import capabilities_of
from tracekit.errors import ModelWarning

pytestmark = pytest.mark.lens


def random_sets(engine, count, seed=0, largest=6):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, largest, (count,), generator=generator).tolist()
    draw = torch.rand(count, engine.n_components, generator=generator).argsort(1)
    return [tuple(row[:size].tolist()) for row, size in zip(draw, sizes, strict=True)]


def close(value, expected, factor=1.0):
    torch.testing.assert_close(value, expected, rtol=factor * 5e-4, atol=factor * 2e-5)


def no_mask(model):
    """A model that takes nothing but tokens."""
    run = model.run_with_hooks

    def refuse(tokens, *, fwd_hooks, **inputs):
        if inputs:
            raise TypeError("unexpected keyword")
        return run(tokens, fwd_hooks=fwd_hooks)

    return "run_with_hooks", refuse


def ignores_mask(model):
    """A model that takes a mask and does not heed it: the dangerous one."""
    run = model.run_with_hooks
    return "run_with_hooks", lambda tokens, *, fwd_hooks, **_: run(tokens, fwd_hooks=fwd_hooks)


def one_stack(model):
    """A model whose blocks are not to be had one by one."""
    return "blocks", ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (no_mask, r"two sequences, because .*no attention mask of its own \(TypeError\)"),
        (ignores_mask, "because its logits differ .*attention mask.* in rows of"),
        (one_stack, "through all layers, because .*no list of blocks"),
    ],
)
def test_an_unsupported_optimisation_warns_once(change, text, dtype, pairs, monkeypatch):
    model, other = (tk.load_model(shifted(tiny.hf_model("gpt2")).to(dtype)) for _ in range(2))
    expected = tiny.engine(model, pairs).set_effects([[i] for i in range(12)]).mean(1)
    monkeypatch.setitem(vars(other), *change(other))
    with pytest.warns(ModelWarning) as caught:
        engine = tiny.engine(other, pairs)
    assert [bool(re.search(text, str(warning.message))) for warning in caught] == [True]
    assert "GPT2LMHeadModel takes the slower way: " in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.engine(other, pairs)
    found = engine.set_effects([[i] for i in range(12)]).mean(1)
    close(found, expected, 1 if dtype == torch.float32 else 400)


def shifted(model):
    """With a large logit that all tokens share, as GPT-2 has: it hides differences."""
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(3)
        model.lm_head.weight.add_(1)
    return model


def test_no_warning_where_optimisations_are_supported(any_model, pairs):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        tiny.engine(any_model, pairs)
    assert capabilities_of(any_model).block_skipper is not None
    assert tiny.engine(any_model, pairs).layout.sequences.has_branches


def test_cached_capabilities_do_not_keep_a_model_alive(pairs):
    model = tk.load_model(tiny.hf_model("gpt2"))
    capabilities_of(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.gpu
@pytest.mark.parametrize("max_memory", [None, 0])
def test_cuda_uses_the_same_optimisations(pairs, max_memory):
    here = tiny.engine(
        tk.load_model(tiny.hf_model("llama")), pairs, "attention-patterns+mlp-outputs"
    )
    model = tk.load_model(tiny.hf_model("llama").to("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        there = tiny.engine(model, pairs, "attention-patterns+mlp-outputs", max_memory=max_memory)
    assert there.layout.sequences.has_branches
    assert there.capabilities.block_skipper is not None
    sets = random_sets(here, 20)
    torch.testing.assert_close(
        there.set_effects(sets).mean(1), here.set_effects(sets).mean(1), rtol=1e-3, atol=1e-4
    )
    assert there.counterfactual_cache.storage == ("host" if max_memory == 0 else "device")
