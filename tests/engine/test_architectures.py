"""Every architecture is traced, or refused with the reason."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
import torch

import tracekit as tk
from paper.models import PAPER_MODELS
from tests import architectures, tiny
from tests.architectures import ARCHITECTURES, random_model, try_out
from tracekit.cli.data import REFUSED as TABLE
from tracekit.components import KINDS
from tracekit.errors import UnknownNameError

pytestmark = pytest.mark.lens

FIRST = tuple(ARCHITECTURES)[:14]
"""Those that are tested in every run; the others are soak tests."""
EACH = [
    pytest.param(name, marks=() if name in FIRST else pytest.mark.soak) for name in ARCHITECTURES
]
REFUSED = json.loads(TABLE.read_text(encoding="utf-8"))
REASONS = {"residual-between": "hook_resid_mid does not exist", "mlp-neurons": "has shape"}
MODULES = {
    "mistral": ("model.layers.{}.mlp", "model.layers.{}.self_attn.o_proj"),
    "gemma2": ("model.layers.{}.mlp", "model.layers.{}.self_attn.o_proj"),
    "gemma3": ("model.layers.{}.mlp", "model.layers.{}.self_attn.o_proj"),
    "phi3": ("model.layers.{}.mlp", "model.layers.{}.self_attn.o_proj"),
    "olmo2": ("model.layers.{}.mlp", "model.layers.{}.self_attn.o_proj"),
    "gpt_neox": ("gpt_neox.layers.{}.mlp", "gpt_neox.layers.{}.attention.dense"),
    "qwen2": ("model.layers.{}.mlp", "model.layers.{}.self_attn.o_proj"),
}


@pytest.mark.slow
@pytest.mark.pairwise
@pytest.mark.parametrize("architecture", EACH)
def test_each_kind_works_or_is_refused(architecture):
    found = try_out(architecture)
    assert list(found) == list(KINDS)
    refused = {kind: reason for kind, reason in found.items() if reason is not None}
    assert list(refused) == REFUSED[architecture], "Run python -m tools.architectures."
    for kind, reason in refused.items():
        assert f"cannot be traced by {kind}" in reason
        assert REASONS[kind] in reason


def test_the_table_of_the_command_has_every_architecture():
    assert list(REFUSED) == list(ARCHITECTURES)
    assert {kind for kinds in REFUSED.values() for kind in kinds} == set(REASONS)


@pytest.mark.pairwise
@pytest.mark.parametrize("architecture", sorted(set(FIRST) - {"mixtral"}))
def test_searches_run_on_it(architecture):
    kinds = "attention-patterns+mlp-outputs"
    tracer = tk.Tracer(tiny.shared_model(architecture), tiny.pairs(), kinds)
    result = tracer.run(budget=3, epochs=2)
    assert 0 < result.n_selected <= 3
    assert result.effect == pytest.approx(tracer.evaluate(result.binary_mask), rel=1e-4)


@pytest.mark.parametrize("architecture", MODULES)
def test_interventions_are_those_of_plain_forward_hooks(architecture):
    """The same replacement, made with hooks on the modules of the Hugging Face model."""
    rows = [{**row, "x_ids": row["x_ids"][:1], "y_ids": row["y_ids"][:1]} for row in tiny.rows(4)]
    tracer = tk.Tracer(
        tiny.shared_model(architecture),
        tk.PromptPairs.from_ids(rows),
        "head-outputs+mlp-blocks",
        "logit-difference",
    )
    chosen = [("mlp-blocks", 1, 0), ("head-outputs", 0, 2), ("head-outputs", 2, 1)]
    mask = torch.zeros(len(tracer.registry))
    for component in chosen:
        mask[tracer.registry.index(tk.Component(*component))] = 1
    effects = tracer.evaluate(mask, per_example=True)
    plain = random_model(architecture)
    assert effects.abs().max() > 1e-2
    expected = [_plain_effect(plain, row, chosen, *MODULES[architecture]) for row in rows]
    torch.testing.assert_close(effects, torch.stack(expected), rtol=1e-3, atol=1e-4)


MLP_ADDS = {
    "gpt2": "transformer.h.{}.mlp",
    "llama": "model.layers.{}.mlp",
    "gemma2": "model.layers.{}.post_feedforward_layernorm",
    "gemma3": "model.layers.{}.post_feedforward_layernorm",
    "olmo2": "model.layers.{}.post_feedforward_layernorm",
    "olmo3": "model.layers.{}.post_feedforward_layernorm",
    "exaone4": "model.layers.{}.post_feedforward_layernorm",
    "glm4": "model.layers.{}.post_mlp_layernorm",
}
"""The module whose output is what the MLP adds to the residual stream."""
BEYOND_THE_LIST = {
    "olmo3": "Olmo3",
    "exaone4": "Exaone4",
    "glm4": "Glm4",
}


@pytest.mark.parametrize("architecture", MLP_ADDS)
@pytest.mark.parametrize("kind", ["mlp-outputs", "mlp-blocks"])
def test_soft_masks_mix_what_the_mlp_adds_to_the_residual_stream(architecture, kind, monkeypatch):
    if architecture in BEYOND_THE_LIST:
        options = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "head_dim": 6}
        build = architectures._llama_like(BEYOND_THE_LIST[architecture], **options)
        monkeypatch.setitem(ARCHITECTURES, architecture, build)
    rows = [{**row, "x_ids": row["x_ids"][:1], "y_ids": row["y_ids"][:1]} for row in tiny.rows(4)]
    pairs = tk.PromptPairs.from_ids(rows)
    tracer = tk.Tracer(tk.load_model(random_model(architecture)), pairs, kind, "logit-difference")
    mask = torch.rand(tracer.registry.grid_shape, generator=torch.Generator().manual_seed(1))
    found = tracer.evaluate(mask.flatten(), per_example=True)
    plain = random_model(architecture)
    named = dict(plain.named_modules())
    modules = [named[MLP_ADDS[architecture].format(layer)] for layer in range(len(mask))]

    def run(ids, hook):
        handles = [
            module.register_forward_hook(hook(weight))
            for module, weight in zip(modules, mask, strict=True)
        ]
        with torch.no_grad():
            logs = plain(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        for handle in handles:
            handle.remove()
        return logs

    expected = []
    for row in rows:
        seen = {}

        def note(weight, seen=seen):
            return lambda module, given, out: seen.update({module: out})

        def mix(weight, seen=seen):
            return lambda module, given, out: (1 - weight) * out + weight * seen[module]

        def nothing(weight):
            return lambda module, given, out: None

        clean = run(row["prompt_ids"], nothing)
        run(row["counterfactual_ids"], note)
        mixed = run(row["prompt_ids"], mix)
        x, y = row["x_ids"][0], row["y_ids"][0]
        expected.append((mixed[y] - mixed[x]) - (clean[y] - clean[x]))
    assert found.abs().max() > 1e-2
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-3, atol=1e-4)


def _plain_effect(model, row, chosen, mlp_name, output_name):
    named = dict(model.named_modules())
    heads = model.config.num_attention_heads

    def run(ids, hooks):
        with torch.no_grad(), ExitStack() as stack:
            for register, hook in hooks:
                stack.enter_context(register(hook))
            return model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)

    seen = {}

    def note_output(name):
        return named[name].register_forward_hook, lambda m, i, out: seen.update({name: out})

    def note_input(name):
        return named[name].register_forward_pre_hook, lambda m, i: seen.update({name: i[0]})

    def put_output(name):
        return named[name].register_forward_hook, lambda m, i, out: seen[name]

    def put_head(name, head):
        def replace(module, inputs):
            values = inputs[0].clone()
            width = values.shape[-1] // heads
            part = slice(head * width, (head + 1) * width)
            values[..., part] = seen[name][..., part]
            return (values,)

        return named[name].register_forward_pre_hook, replace

    notes, puts = [], []
    for kind, layer, index in chosen:
        if kind == "mlp-blocks":
            notes.append(note_output(mlp_name.format(layer)))
            puts.append(put_output(mlp_name.format(layer)))
        else:
            notes.append(note_input(output_name.format(layer)))
            puts.append(put_head(output_name.format(layer), index))
    clean = run(row["prompt_ids"], [])
    run(row["counterfactual_ids"], notes)
    moved = run(row["prompt_ids"], puts)
    x, y = row["x_ids"][0], row["y_ids"][0]
    return (moved[y] - moved[x]) - (clean[y] - clean[x])


# The paper's table of specifications; its heads are attention patterns, its neurons MLP outputs.
SPECIFICATIONS = {
    "DistilGPT2": {"attention-patterns": 72, "mlp-outputs": 4608},
    "GPT2-small": {"attention-patterns": 144, "mlp-outputs": 9216},
    "GPT2-medium": {"attention-patterns": 384, "mlp-outputs": 24576},
    "GPT2-large": {"attention-patterns": 720, "mlp-outputs": 46080},
    "GPT2-xl": {"attention-patterns": 1200, "mlp-outputs": 76800},
    "Qwen3-1.7B": {"attention-patterns": 448, "mlp-outputs": 57344},
    "Llama-3.2-1B": {"attention-patterns": 512, "mlp-outputs": 32768},
    "LLaMA-7B": {"head-outputs": 1024, "mlp-blocks": 32},
    "LLaMA-13B": {"head-outputs": 1600, "mlp-blocks": 40},
}


@pytest.mark.parametrize("title", PAPER_MODELS)
def test_component_counts_are_the_papers(title):
    for kind, count in SPECIFICATIONS[title].items():
        assert PAPER_MODELS[title].count(kind) == count
    assert PAPER_MODELS[title].count("mlp-neurons") is None


def test_unknown_architecture():
    with pytest.raises(UnknownNameError, match="Unknown architecture 'gpt3'. Did you mean"):
        random_model("gpt3")
