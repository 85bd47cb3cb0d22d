"""A model as its user has it: hooks, settings of torch, other threads, weights."""

from __future__ import annotations

import copy
import threading
import warnings

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ConfigError, ModelWarning, UnsupportedModelError
from tracekit.models.hooked import foreign_hooks, frozen, revision_of, weights_digest

TOKENS = torch.tensor([[1, 2, 3]])


@pytest.fixture
def own_model():
    """A model that a test may change."""
    return tk.load_model(tiny.hf_model("gpt2"))


# ---- hooks that were left ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "mixtral", "gemma2"])
def test_left_hooks_of_the_libraries_are_none(name):
    model = tk.load_model(tiny.hf_model(name))
    assert foreign_hooks(model) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        tk.Tracer(model, tiny.pairs(), "head-outputs")
    assert foreign_hooks(model) == []


def test_left_hooks_are_named_once_and_warned_of(own_model):
    def halve(value, hook=None):
        return value / 2

    own_model.add_hook("blocks.0.attn.hook_z", halve)
    own_model.add_hook("blocks.1.hook_mlp_out", halve, is_permanent=True)
    inner = own_model.original_model.transformer
    inner.wte.register_forward_hook(lambda *given: None)
    own_model.original_model.register_forward_pre_hook(lambda *given: None)
    left = foreign_hooks(own_model)
    assert left[:2] == ["blocks.0.attn.hook_z", "blocks.1.hook_mlp_out"]
    assert len(left) == 4
    assert "GPT2LMHeadModel" in left
    with pytest.warns(ModelWarning, match=r"Hooks were left on .* at .* and 1 more\. They act"):
        tk.Tracer(own_model, tiny.pairs())
    assert foreign_hooks(own_model) == left


# ---- settings of torch ------------------------------------------------------------------------


def test_inference_mode_is_refused(model):
    text = r"torch.inference_mode\(\) is on, .* Leave it out, or use torch.no_grad"
    for use in (
        lambda: tk.Tracer(model, tiny.pairs()),
        lambda: tk.load_model(tiny.hf_model("gpt2")),
    ):
        with torch.inference_mode(), pytest.raises(ConfigError, match=text):
            use()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_dtype_is_refused(model, dtype):
    torch.set_default_dtype(dtype)
    try:
        with pytest.raises(ConfigError, match=f"The default dtype of torch is {dtype}. Call torch"):
            tk.Tracer(model, tiny.pairs())
        with pytest.raises(ConfigError, match="The default dtype of torch"):
            tk.load_model("demo")
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast_of_the_user_changes_no_effect(model):
    def measured():
        tracer = tk.Tracer(model, tiny.pairs())
        engine = tracer.engine
        gradient = engine.gradient(torch.full((engine.n_components,), 0.5), torch.ones_like)[1]
        return engine.full_effects, engine.set_effects([(0,), (1, 2)]), gradient

    expected = measured()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = measured()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_model_on_the_meta_device_is_refused():
    with pytest.raises(UnsupportedModelError, match="is on the meta device and has no weights"):
        tk.load_model(tiny.hf_model("gpt2").to("meta"))
    hooked = tk.load_model(tiny.hf_model("gpt2"))
    hooked.original_model.to("meta")
    with pytest.raises(UnsupportedModelError, match="is on the meta device and has no weights"):
        tk.Tracer(hooked, tiny.pairs())


# ---- other threads ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_passes_of_another_thread_wait_while_a_tracer_measures(name):
    model = tk.load_model(tiny.hf_model(name))
    tracer = tk.Tracer(model, tiny.pairs())
    with torch.no_grad():
        expected = model(TOKENS)
    passes = {
        "bridge": lambda: model(TOKENS),
        "hooks": lambda: model.run_with_hooks(TOKENS, fwd_hooks=[]),
        "cache": lambda: model.run_with_cache(TOKENS)[0],
        "bare": lambda: model.original_model(TOKENS).logits,
    }
    seen: list[tuple[str, bool]] = []
    is_done = threading.Event()

    def use() -> None:
        with torch.no_grad():
            while not is_done.is_set():
                for name, run in passes.items():
                    seen.append((name, torch.equal(run(), expected)))

    full = tracer.engine.full_effects
    users = threading.Thread(target=use)
    users.start()
    try:
        for _ in range(10):
            assert torch.equal(tracer.engine.effects(torch.ones(12)), full)
            tracer.engine.set_effects([(0,), (1, 2), (5, 7, 11)])
    finally:
        is_done.set()
        users.join()
    assert len(seen) > len(passes)
    assert all(is_right for _, is_right in seen), seen


def test_model_whose_passes_wait_can_be_copied(own_model):
    with frozen(own_model):
        pass
    twin = copy.deepcopy(own_model)
    with torch.no_grad():
        next(twin.parameters()).zero_()
        assert not torch.equal(twin(TOKENS), own_model(TOKENS))
        assert torch.equal(twin(TOKENS), twin.original_model(TOKENS).logits)


# ---- weights ----------------------------------------------------------------------------------


def test_weights_digest_tells_one_changed_number(own_model):
    before = weights_digest(own_model)
    assert before == weights_digest(tk.load_model(tiny.hf_model("gpt2")))
    assert before != weights_digest(tk.load_model(tiny.hf_model("gpt2").to(torch.bfloat16)))
    parameter = list(own_model.parameters())[3]
    changed = parameter.detach().clone()
    # Neither in the sample nor, as a number, of any size.
    changed.view(-1)[5] += 1e-7
    parameter.data = changed
    assert weights_digest(own_model) != before


def test_weights_digest_tells_the_order_of_numbers(own_model):
    before = weights_digest(own_model)
    parameter = next(iter(own_model.parameters()))
    parameter.data = parameter.detach().flip(0).contiguous()
    assert weights_digest(own_model) != before


def test_revision_of_a_model_from_elsewhere_is_none(model, demo_model):
    assert revision_of(model) is None
    assert revision_of(demo_model) is None
