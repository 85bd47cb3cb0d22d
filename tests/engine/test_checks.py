"""A model whose hooks do not act is refused before any number is computed."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components import KINDS
from tracekit.engine import checks, patching
from tracekit.engine.capabilities import capabilities_of
from tracekit.engine.checks import check_engine, check_sites
from tracekit.errors import HookPointError, IdentityCheckError, ModelWarning, UnsupportedModelError
from tracekit.models import hooked

pytestmark = pytest.mark.lens


# The slow tests try every kind in every architecture.
@pytest.mark.pairwise
@pytest.mark.parametrize("kinds", list(KINDS))
def test_every_kind_passes_on_models_that_work(any_model, kinds):
    check_sites(any_model, tk.components.ComponentRegistry.build(any_model.cfg, kinds))


def test_discarded_edits_of_attention_patterns_are_found_on_opt(monkeypatch):
    model = tk.load_model(tiny.hf_model("opt"))
    # TransformerLens 3 has no such method, and its edits stay without effect.
    if hasattr(type(model.blocks[0].attn), "_fire_post_hoc_hook"):
        traced = tk.Tracer(model, tiny.pairs(), components="attention-patterns")
        assert traced.full_effect != 0
    # Without firing the hook point where patterns are computed. A model is checked once.
    model = tk.load_model(tiny.hf_model("opt"))
    monkeypatch.setattr(hooked, "make_patterns_editable", lambda model: nullcontext())
    text = (
        r"OPT.* by attention-patterns: .*blocks\.0\.attn\.hook_pattern.* Use head-outputs instead"
    )
    with pytest.raises(HookPointError, match=text):
        tk.Tracer(model, tiny.pairs(), components="attention-patterns")
    assert tk.Tracer(model, tiny.pairs(), components="head-outputs").full_effect != 0


def test_hidden_units_of_a_mixture_of_experts_are_refused():
    model = tk.load_model(tiny.hf_model("mixtral"))
    text = r"shape \(2, 6, 24\) instead of \(2, 6, 40\).* Use mlp-outputs or mlp-blocks instead"
    with pytest.raises(HookPointError, match=text):
        tk.Tracer(model, tiny.pairs(), components="mlp-neurons")
    assert tk.Tracer(model, tiny.pairs(), components="mlp-blocks").full_effect != 0


class Wrapped:
    """A model that passes everything on, but runs hooks in a way of its own."""

    def __init__(self, model, change):
        self._model = model
        self._change = change

    def __getattr__(self, name):
        return getattr(self._model, name)

    def run_with_hooks(self, tokens, *, fwd_hooks, **kwargs):
        changed = [pair for hook in fwd_hooks for pair in self._change(*hook)]
        return self._model.run_with_hooks(tokens, fwd_hooks=changed, **kwargs)


def deaf(name, hook):
    """Discards what hooks at layer 1 return."""
    if "blocks.1" not in name:
        return [(name, hook)]

    def ignore(value, **kwargs):
        hook(value.detach().clone())

    return [(name, ignore)]


def silent(name, hook):
    return [] if "blocks.1" in name else [(name, hook)]


def double(name, hook):
    return [(name, hook), (name, hook)] if "blocks.1" in name else [(name, hook)]


def offset(name, hook):
    """Returns something else than the hook did."""
    return [(name, lambda value, **kwargs: hook(value) + 1e-3)]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (deaf, HookPointError, r"blocks\.1\.attn\.hook_z ignores what a hook returns"),
        (silent, HookPointError, r"blocks\.1\.attn\.hook_z.* 0 times .*instead of once"),
        (double, HookPointError, r"blocks\.1\.attn\.hook_z.* 2 times .*instead of once"),
        (offset, IdentityCheckError, "Hooks that change nothing change the logits"),
    ],
)
def test_broken_hooks_are_found(model, change, error, text):
    registry = tk.components.ComponentRegistry.build(model.cfg, "head-outputs")
    with pytest.raises(error, match=text):
        check_sites(Wrapped(model, change), registry)


def test_a_missing_hook_point_is_named(model):
    class Bare(Wrapped):
        @property
        def hook_dict(self):
            return {"unembed.hook_in": None}

    registry = tk.components.ComponentRegistry.build(model.cfg, "attention-patterns")
    with pytest.raises(HookPointError, match="blocks.0.attn.hook_pattern does not exist. Use head"):
        check_sites(Bare(model, silent), registry)

    class Endless(Wrapped):
        @property
        def hook_dict(self):
            points = self._model.hook_dict.items()
            return {name: point for name, point in points if name.startswith("blocks")}

    with pytest.raises(UnsupportedModelError, match="no hook point before its unembedding"):
        tk.Tracer(Endless(model, lambda name, hook: [(name, hook)]), tiny.pairs())


def test_a_model_that_sees_its_padding_is_refused(model):
    class Bidirectional(Wrapped):
        def run_with_hooks(self, tokens, *, fwd_hooks, **kwargs):
            logits = self._model.run_with_hooks(tokens, fwd_hooks=fwd_hooks, **kwargs)
            return logits + 0.01 * (tokens + 1).float().sum(1)[:, None, None]

    registry = tk.components.ComponentRegistry.build(model.cfg, "attention-patterns")
    with pytest.raises(IdentityCheckError, match="Padding on the right changes the logits of"):
        check_sites(Bidirectional(model, lambda *hook: [hook]), registry)


def test_counterfactuals_that_change_nothing_are_refused(model):
    rows = [{**row, "counterfactual_ids": row["prompt_ids"]} for row in tiny.rows(3)]
    with pytest.raises(IdentityCheckError, match="Every counterfactual equals its prompt"):
        tk.Tracer(model, tk.PromptPairs.from_ids(rows))


def test_a_full_mask_that_changes_nothing_is_refused(model, pairs):
    # Attention from the first token can only go to itself.
    text = r"12 attention-patterns in layers 0-2 changes no score.*positions=\(0,\)"
    with pytest.raises(IdentityCheckError, match=text):
        tk.Tracer(model, pairs, components="attention-patterns", positions=[0])


def test_an_empty_mask_with_an_effect_is_refused(model, pairs):
    engine = tiny.engine(model, pairs, metric=lambda clean, intervened: intervened.x)
    with pytest.raises(IdentityCheckError, match="The empty mask has an effect of"):
        check_engine(engine)


def test_a_forgotten_hook_is_found(model, pairs):
    def stir(value, hook):
        return value + torch.randn_like(value)

    model.add_hook("blocks.0.hook_mlp_out", stir)
    try:
        with pytest.raises(IdentityCheckError, match="The model is not deterministic, or a hook"):
            tk.Tracer(model, pairs)
    finally:
        model.reset_hooks()
    assert capabilities_of(model).block_skipper is not None, "kept from the model with its hook"


@pytest.mark.pairwise
def test_a_unit_that_happens_to_be_silent_is_no_reason_to_refuse(any_model):
    for index in range(0, 24, 5):
        kinds = {"kinds": "mlp-neurons", "layers": [1], "indices": [index]}
        check_sites(any_model, tk.components.ComponentRegistry.build(any_model.cfg, **kinds))


@pytest.mark.slow
def test_nor_is_one_of_a_model_whose_units_are_often_silent():
    opt = tiny.shared_model("opt")
    for index in range(0, 96, 3):
        build = tk.components.ComponentRegistry.build
        registry = build(opt.cfg, "mlp-neurons", layers=[0], indices=[index])
        check_sites(opt, registry)


def test_a_mask_that_passes_the_stream_by_is_refused(monkeypatch):
    """As a bridge does it where what a hook returns reaches the MLP only."""
    model = tk.load_model(tiny.hf_model("llama"))
    registry = tk.components.ComponentRegistry.build(model.cfg, "residual-between")
    check_sites(model, registry)
    monkeypatch.setattr(patching, "STREAM_PASSES_BY", "nowhere")
    text = "hook_resid_mid is a copy.*Use residual"
    with pytest.raises(HookPointError, match=text):
        check_sites(model, registry)


def test_a_stream_that_the_mlps_add_nothing_to_is_no_reason_to_refuse():
    hf = copy.deepcopy(tiny.hf_model("llama"))
    for layer in hf.model.layers:
        layer.mlp.down_proj.weight.data.zero_()
    model = tk.load_model(hf)
    check_sites(model, tk.components.ComponentRegistry.build(model.cfg, "residual-between"))


def test_a_hook_point_that_is_off():
    """TransformerLens has some only on request."""
    model = tk.load_model(tiny.hf_model("gpt2"))
    kind = tk.Kind(
        name="head-results",
        hook="attn.hook_result",
        axes=("batch", "pos", "component", "d_model"),
        width="n_heads",
        label="L{layer}R{index}",
    )
    text = r"blocks\.0\.attn\.hook_result is off.*model\.set_use_attn_result\(True\)"
    with pytest.raises(HookPointError, match=text):
        tk.Tracer(model, tiny.pairs(4), kind)
    model.set_use_attn_result(True)
    results, heads = (
        tk.Tracer(model, tiny.pairs(4), each, "logit-difference") for each in (kind, "head-outputs")
    )
    torch.testing.assert_close(
        results.evaluate(torch.ones(12), per_example=True),
        heads.evaluate(torch.ones(12), per_example=True),
        rtol=1e-4,
        atol=1e-5,
    )


def test_one_hook_point_under_two_names_is_refused():
    # Of one width, as in gpt-oss: only their identity tells them apart.
    import transformers

    config = transformers.GptOssConfig(
        vocab_size=tiny.VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    model = tk.load_model(transformers.GptOssForCausalLM(config))
    text = r"blocks\.0\.mlp\.hook_post.*blocks\.0\.hook_mlp_out, which belongs to"
    with pytest.raises(HookPointError, match=text):
        tk.Tracer(model, tiny.pairs(), components="mlp-neurons")
    assert tk.Tracer(model, tiny.pairs(), components="mlp-outputs").full_effect != 0


def test_hook_points_are_proven_once_for_a_model_as_it_is(monkeypatch):
    model = tk.load_model(tiny.hf_model("gpt2"))
    asked = []
    original = checks.check_sites
    monkeypatch.setattr(
        checks, "check_sites", lambda *given: (asked.append(given[1]), original(*given))
    )
    for kinds, layers, count in (
        ("head-outputs", None, 1),
        ("head-outputs", [1], 1),
        ("mlp-outputs", None, 2),
        ("head-outputs+mlp-outputs", None, 3),
        ("mlp-outputs", [0], 3),
    ):
        tk.Tracer(model, tiny.pairs(4), kinds, layers=layers)
        assert len(asked) == count, kinds
    model.hook_dict["blocks.0.hook_mlp_out"].add_hook(lambda activation, hook: activation)
    with pytest.warns(ModelWarning, match="Hooks were left"):
        tk.Tracer(model, tiny.pairs(4), "head-outputs")
    assert len(asked) == 4


def test_model_that_changed_is_found_by_a_few_examples(monkeypatch):
    model = tk.load_model(tiny.hf_model("gpt2"))
    tracer = tk.Tracer(model, tiny.pairs(20), "head-outputs")
    run = []
    original = type(tracer.engine).passes
    monkeypatch.setattr(
        type(tracer.engine),
        "passes",
        lambda data, *given, **options: (
            run.append(data.n_examples),
            original(data, *given, **options),
        )[1],
    )
    checks.check_model_unchanged(tracer.engine)
    assert run == [4]
    next(model.original_model.parameters()).data *= 1.1
    with pytest.raises(IdentityCheckError, match="The empty mask now has an effect of"):
        checks.check_model_unchanged(tracer.engine)
