"""A model as its user has it: hooks, settings of torch, other threads, weights."""

from __future__ import annotations

import copy
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ConfigError, ModelWarning, UnsupportedModelError
from tracekit.models.hooked import foreign_hooks, freeze, revision_of, weights_digest

TOKENS = torch.tensor([[1, 2, 3]])


@pytest.fixture
def own_model():
    """A model that a test may change."""
    return tk.load_model(tiny.hf_model("gpt2"))


# ---- hooks that were left ---------------------------------------------------------------------


@pytest.mark.lens
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


KINDS_OF_HOOKS = {
    "forward": lambda m: m.add_hook("blocks.1.attn.hook_z", lambda value, hook: value),
    "backward": lambda m: m.add_hook("blocks.1.attn.hook_z", lambda g, hook: g, dir="bwd"),
    "backward, permanent": lambda m: m.add_hook(
        "blocks.1.hook_mlp_out", lambda g, hook: g, dir="bwd", is_permanent=True
    ),
    "module, forward": lambda m: mlp(m).register_forward_hook(lambda *given: None),
    "module, before": lambda m: mlp(m).register_forward_pre_hook(lambda *given: None),
    "module, gradients": lambda m: mlp(m).register_full_backward_hook(lambda *given: None),
    "module, gradients before": lambda m: mlp(m).register_full_backward_pre_hook(
        lambda *given: None
    ),
    "parameter": lambda m: weight(m).register_hook(lambda gradient: None),
    "parameter, afterwards": lambda m: weight(m).register_post_accumulate_grad_hook(
        lambda parameter: None
    ),
    "all modules": lambda m: torch.nn.modules.module.register_module_full_backward_hook(
        lambda *given: None
    ),
    "all modules, forward": lambda m: torch.nn.modules.module.register_module_forward_hook(
        lambda *given: None
    ),
}


def mlp(model):
    return model.original_model.transformer.h[1].mlp


def weight(model):
    return model.original_model.transformer.wte.weight.requires_grad_(True)


@pytest.mark.pairwise
@pytest.mark.lens
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS_OF_HOOKS)
def test_hooks_of_every_kind_are_warned_of_and_stored(kind, when, own_model):
    tracer = tk.Tracer(own_model, tiny.pairs(), "head-outputs")
    handle = KINDS_OF_HOOKS[kind](own_model)
    try:
        left = foreign_hooks(own_model)
        assert len(left) == 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if when == "before":
                tracer = tk.Tracer(own_model, tiny.pairs(), "head-outputs")
            result = tracer.run("attribution", budget=2)
        texts = [str(each.message) for each in caught if each.category is ModelWarning]
        assert len(texts) == 1
        assert f"at {left[0]}. They act in every pass or on every gradient" in texts[0]
        assert list(result.model_facts.foreign_hooks) == left
    finally:
        if handle is not None:
            handle.remove()


def test_hooks_on_gradients_that_cannot_act_are_a_clear_error(own_model):
    tracer, hook = tk.Tracer(own_model, tiny.pairs(), "head-outputs"), "blocks.0.attn.hook_z"
    own_model.add_hook(hook, lambda gradient, hook: gradient * 0, dir="bwd")
    text = rf"Hooks on gradients cannot act .*left at .*{hook}\. Call the model's reset_hooks"
    with pytest.warns(ModelWarning), pytest.raises(ConfigError, match=text):
        tracer.run("attribution", budget=2)
    own_model.reset_hooks()
    assert tracer.run("attribution", budget=2).labels


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


WAYS_TO_RUN = {
    "bridge": lambda model: model(TOKENS),
    "hooks": lambda model: model.run_with_hooks(TOKENS, fwd_hooks=[]),
    "cache": lambda model: model.run_with_cache(TOKENS)[0],
    "bare": lambda model: model.original_model(TOKENS).logits,
    "generate": lambda model: model.original_model.generate(TOKENS, max_new_tokens=2),
}
ELSEWHERE = "The model runs in another thread while it is traced, .* a copy of the model"


@pytest.mark.parametrize("way", WAYS_TO_RUN)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_pass_in_another_thread_is_refused_while_the_model_is_traced(name, way):
    model, run = tk.load_model(tiny.hf_model(name)), WAYS_TO_RUN[way]
    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        expected = run(model)
        with freeze(model):
            assert torch.equal(run(model), expected)
            with pytest.raises(ConfigError, match=ELSEWHERE):
                pool.submit(run, model).result()
        assert torch.equal(pool.submit(run, model).result(), expected)


def test_a_trace_is_refused_while_the_model_runs_in_another_thread(own_model):
    tracer = tk.Tracer(own_model, tiny.pairs())
    is_within, may_end = threading.Event(), threading.Event()

    def wait(value, hook=None):
        is_within.set()
        may_end.wait()

    def use(model):
        with torch.no_grad():
            model.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.hook_mlp_out", wait)])

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(use, own_model)
        is_within.wait()
        try:
            with pytest.raises(ConfigError, match=ELSEWHERE):
                tracer.evaluate(torch.ones(12))
        finally:
            may_end.set()
        running.result()
    assert tracer.evaluate(torch.ones(12)) == tracer.evaluate(torch.ones(12))


def test_a_pass_that_failed_elsewhere_is_over(own_model):
    def fail(value, hook=None):
        raise ZeroDivisionError

    hooks = [("blocks.1.hook_mlp_out", fail)]
    with freeze(own_model):
        pass
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(ZeroDivisionError):
            pool.submit(own_model.run_with_hooks, TOKENS, fwd_hooks=hooks).result()
        with freeze(own_model):
            pass


def test_a_copy_of_a_model_is_used_apart_from_it(own_model):
    with freeze(own_model):
        twin = copy.deepcopy(own_model)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(twin, TOKENS).result()
    with torch.no_grad():
        next(twin.parameters()).zero_()
        assert not torch.equal(twin(TOKENS), own_model(TOKENS))
        assert torch.equal(twin(TOKENS), twin.original_model(TOKENS).logits)
    assert foreign_hooks(twin) == []


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
