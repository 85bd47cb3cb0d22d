"""Interventions in every architecture, against hooks on the modules of the Hugging Face model.

Each kind is traced with a soft mask, or refused with the reason; never is it something else.
"""

from __future__ import annotations

import json

import pytest
import torch

import tracekit as tk
from tests import plain, tiny
from tests.architectures import ARCHITECTURES, random_model
from tests.plain import Plain
from tracekit.cli.data import REFUSED
from tracekit.components import KINDS
from tracekit.errors import HookPointError

pytestmark = pytest.mark.lens

BLOCKS = (
    "transformer.h",
    "transformer.blocks",
    "gpt_neox.layers",
    "model.decoder.layers",
    "model.layers",
)
ATTENTIONS = ("self_attn", "self_attention", "attn.attention", "attn", "attention")
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")
MLPS = ("mlp", "block_sparse_moe", "ffn")
AFTER_MLP = ("post_feedforward_layernorm", "post_mlp_layernorm")
WITH_RESIDUAL = {"bloom": "mlp.dense_4h_to_h", "mpt": "ffn.down_proj"}
"""MLPs that add the residual stream themselves, and what they add it to."""
QUICK = ("opt", "bloom")
FIRST = (*tuple(ARCHITECTURES)[:14], "falcon", "granite", "cohere", "mpt")


def modules_of(architecture):
    """Templates of the modules of a layer; a post-norm stands for what it follows."""
    names = {name for name, _ in random_model(architecture).named_modules()}
    stem = next(stem for stem in BLOCKS if f"{stem}.0" in names)
    block = f"{stem}.{{}}"

    def first(candidates, prefix=block):
        return next(
            (f"{prefix}.{c}" for c in candidates if f"{prefix}.{c}".format(0) in names), None
        )

    attention = first(ATTENTIONS)
    output = first(OUTPUTS, attention)
    has_post_norm = first(AFTER_MLP) is not None
    after_attention = first(
        ("post_self_attn_layernorm", "post_attention_layernorm") if has_post_norm else ()
    )
    parts = {
        "block": block,
        "heads": output,
        "attention": after_attention or output,
        "mlp": f"{block}.{WITH_RESIDUAL[architecture]}"
        if architecture in WITH_RESIDUAL
        else first(AFTER_MLP) or first(MLPS),
    }
    for part, name in (("queries", "q_proj"), ("keys", "k_proj"), ("values", "v_proj")):
        if first((name,), attention):
            parts[part] = first((name,), attention)
    return parts


def marks_of(name):
    """A few in every run; the first ones as slow tests, all others as soak tests."""
    if name in QUICK:
        return ()
    return pytest.mark.slow if name in FIRST else pytest.mark.soak


@pytest.fixture(params=[pytest.param(name, marks=marks_of(name)) for name in ARCHITECTURES])
def architecture(request, monkeypatch):
    monkeypatch.setitem(plain.MODULES, request.param, modules_of(request.param))
    return request.param


ROWS = [{**row, "x_ids": row["x_ids"][:1], "y_ids": row["y_ids"][:1]} for row in tiny.rows(3)]


def expected_effects(reference, by_layer):
    effects = []
    for row in ROWS:
        prompt = row["prompt_ids"]
        source = reference.activations(row["counterfactual_ids"])
        changes = reference.mixed(by_layer, source, len(prompt)), lambda layer, value: None
        acted, clean = (
            reference.score(prompt, row["y_ids"], c) - reference.score(prompt, row["x_ids"], c)
            for c in changes
        )
        effects.append(acted - clean)
    return torch.stack(effects)


@pytest.mark.slow
def test_every_kind_is_that_of_plain_hooks(architecture):
    model = tiny.shared_model(architecture)
    pairs = tk.PromptPairs.from_ids(ROWS)
    refused = json.loads(REFUSED.read_text(encoding="utf-8"))[architecture]
    for kind in plain.KINDS:
        part = {"mlp-blocks": "mlp", "mlp-outputs": "mlp"}.get(kind, kind)
        # Of OPT's MLP and of fused matrices no module gives out the activation.
        needs_module = part in ("mlp", "queries", "keys", "values")
        if needs_module and plain.MODULES[architecture].get(part) is None:
            continue
        if kind in refused:
            with pytest.raises(
                HookPointError, match=f"cannot be traced by {kind}: its hook point .* Use"
            ):
                tk.Tracer(model, pairs, kind, "logit-difference")
            continue
        tracer = tk.Tracer(model, pairs, kind, "logit-difference")
        reference = Plain(architecture, kind)
        by_layer = torch.rand(
            len(reference.modules), reference.count, generator=torch.Generator().manual_seed(1)
        )
        effects = tracer.evaluate(by_layer.flatten(), per_example=True)
        torch.testing.assert_close(
            effects,
            expected_effects(reference, by_layer),
            rtol=1e-3,
            atol=1e-3,
            msg=f"{kind} of it",
        )
    assert set(plain.KINDS) < set(KINDS)


def test_attention_patterns_multiply_the_values(architecture):
    """One layer at a time: mixed weights times values, put in where the output is projected."""
    if "values" not in plain.MODULES[architecture]:
        pytest.skip("its values are not a module's output")
    model = tiny.shared_model(architecture)
    pairs = tk.PromptPairs.from_ids(ROWS)
    tracer = tk.Tracer(model, pairs, "attention-patterns", "logit-difference")
    heads, of_values = Plain(architecture, "head-outputs"), Plain(architecture, "values")
    for each in (heads, of_values):
        each.model.set_attn_implementation("eager")
    n_layers = len(heads.modules)
    generator = torch.Generator().manual_seed(1)
    for layer in range(n_layers):
        weights = torch.rand(heads.count, generator=generator)
        mask = torch.zeros(n_layers, heads.count)
        mask[layer] = weights
        effects = tracer.evaluate(mask.flatten(), per_example=True)
        for effect, row in zip(effects, ROWS, strict=True):
            prompt = row["prompt_ids"]
            with torch.no_grad():
                clean, other = (
                    heads.model(torch.tensor([row[key]]), output_attentions=True).attentions[layer][
                        0
                    ]
                    for key in ("prompt_ids", "counterfactual_ids")
                )
            pattern = torch.lerp(clean, other, weights[:, None, None])
            values = of_values.activations(prompt)[layer].unflatten(-1, (of_values.count, -1))
            values = values.repeat_interleave(heads.count // of_values.count, 1)
            out = torch.einsum("hqk,khd->qhd", pattern, values).flatten(1)
            only = torch.zeros(n_layers, heads.count)
            only[layer] = 1
            change = heads.mixed(only, [out] * n_layers, len(prompt))
            acted, base = (
                heads.score(prompt, row["y_ids"], c) - heads.score(prompt, row["x_ids"], c)
                for c in (change, lambda layer, value: None)
            )
            assert effect.item() == pytest.approx((acted - base).item(), abs=1e-3)


def test_the_model_is_as_it_was():
    hf = random_model("opt")
    model = tk.load_model(hf)
    attention = model.blocks[0].attn
    before = dict(vars(attention))
    tk.Tracer(model, tiny.pairs(4), "attention-patterns").run("top-k", budget=2)
    assert dict(vars(attention)) == before


def test_what_holds_the_residual_stream_is_not_added_to_it():
    kind = tk.Kind(
        name="not added",
        hook="hook_resid_post",
        axes=("batch", "pos", "d_model"),
        width=None,
        label="N{layer}",
        is_added=True,
    )
    model = tk.load_model(random_model("gpt2"))
    with pytest.raises(HookPointError, match="holds the residual stream besides what is added"):
        tk.Tracer(model, tiny.pairs(4), kind)
