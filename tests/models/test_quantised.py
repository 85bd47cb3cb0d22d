"""Checkpoints in 4 and 8 bits, and models whose weights lie on a disk."""

from __future__ import annotations

import pytest
import torch
import transformers

import tracekit as tk
from tests import tiny
from tests.plain import Plain

ROWS = [
    {
        "prompt_ids": [1 + row, 2, 3, 4],
        "counterfactual_ids": [1 + row, 5, 3, 4],
        "x_ids": [6, 9],
        "y_ids": [7 + row],
    }
    for row in range(4)
]


def small_llama():
    # The kernels for 4 bits want multiples of 32.
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.fixture(scope="module", params=[8, 4])
def checkpoint(request, tmp_path_factory):
    """A directory with a checkpoint of so many bits."""
    pytest.importorskip("bitsandbytes")
    folder = tmp_path_factory.mktemp("quantised")
    small_llama().save_pretrained(folder / "plain")
    settings = {
        # Without a threshold, no column of a product depends on the other rows of a batch.
        8: {"load_in_8bit": True, "llm_int8_threshold": 0.0},
        4: {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.float32},
    }
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "plain",
        quantization_config=transformers.BitsAndBytesConfig(**settings[request.param]),
        device_map={"": "cpu"},
    )
    hf.save_pretrained(folder / "quantised")
    return folder / "quantised"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp-outputs", "head-outputs"])
def test_a_quantised_checkpoint_is_traced_as_it_is(checkpoint, kind, monkeypatch):
    model = tk.load_model(checkpoint)
    assert {torch.int8, torch.uint8} & {parameter.dtype for parameter in model.parameters()}
    tracer = tk.Tracer(model, tk.PromptPairs.from_ids(ROWS), kind, "logit-difference")

    reference = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, device_map="cpu")
    for module in reference.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    monkeypatch.setattr(tiny, "hf_model", lambda architecture: reference)
    plain = Plain("llama", kind)
    mask = torch.rand(len(tracer.registry), generator=torch.Generator().manual_seed(0))
    expected = []
    for row in ROWS:
        change = plain.mixed(mask.reshape(2, -1), plain.activations(row["counterfactual_ids"]), 4)
        scores = [
            plain.score(row["prompt_ids"], row[key], hook)
            for hook in (change, lambda layer, value: None)
            for key in ("y_ids", "x_ids")
        ]
        expected.append(scores[0] - scores[1] - scores[2] + scores[3])
    expected = torch.stack(expected)
    measured = tracer.evaluate(mask, per_example=True)
    torch.testing.assert_close(measured, expected, rtol=0.02, atol=0.02 * expected.abs().max())


@pytest.mark.slow
def test_gradients_flow_through_quantised_weights(checkpoint):
    tracer = tk.Tracer(tk.load_model(checkpoint), tk.PromptPairs.from_ids(ROWS), "mlp-outputs")
    for method, options in (("pgb-ct", {"epochs": 2}), ("local-search", {"max_passes": 30})):
        result = tracer.run(method, budget=2, **options)
        assert result.effect == pytest.approx(tracer.evaluate(result.binary_mask), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param("attention-patterns", marks=pytest.mark.slow), "mlp-outputs"]
)
def test_weights_on_a_disk_give_the_same_numbers(kind, tmp_path):
    small_llama().save_pretrained(tmp_path / "model")
    device_map = {
        **dict.fromkeys(["model.embed_tokens", "model.norm", "model.rotary_emb"], "cpu"),
        **{"lm_head": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk"},
    }
    offloaded = tk.load_model(
        tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "offloaded"
    )
    assert any(parameter.is_meta for parameter in offloaded.parameters())
    pairs = tk.PromptPairs.from_ids(ROWS)
    tracers = [
        tk.Tracer(model, pairs, kind) for model in (tk.load_model(tmp_path / "model"), offloaded)
    ]
    for options in ({"method": "top-k"}, {"method": "pgb-ct", "epochs": 3}):
        here, there = (tracer.run(budget=2, **options) for tracer in tracers)
        assert here.components == there.components
        torch.testing.assert_close(here.per_example, there.per_example)
    fronts = [tracer.pareto(max_budget=3, statistics=False, max_passes=40) for tracer in tracers]
    torch.testing.assert_close(fronts[0].effects, fronts[1].effects)
    saved = tracers[1].run("pgb-ct", budget=2, epochs=1).save(tmp_path / "run")
    assert tk.TraceResult.load(saved).effect == pytest.approx(
        tracers[0].run("pgb-ct", budget=2, epochs=1).effect
    )
