"""`tracekit validate`."""

from __future__ import annotations

import json

import pytest

import tracekit as tk


def test_validate(command, tmp_path, monkeypatch, demo_model):
    """On the command line, with a table of the embedded model, and with other weights."""
    pairs = tk.load_dataset("demo-bias", demo_model)
    tracer = tk.Tracer(demo_model, pairs)
    entry = {
        "dataset": "demo-bias",
        "model": "demo",
        "n_examples": len(pairs),
        "all_heads_effect": tracer.full_effect,
        "single_head_effect": tracer.run("top-k", budget=1).component_scores.reshape(4, 8).tolist(),
    }
    table = tmp_path / "table.json"
    table.write_text(json.dumps(entry))
    code, out, err = command("validate", "demo", "--dataset", "demo-bias", "--table", table)
    assert code == 0, err
    assert "demo agrees with demo." in out
    assert "1.000000" in out
    entry["single_head_effect"][0].reverse()
    table.write_text(json.dumps(entry))
    code, out, err = command(
        "validate", "demo", "--dataset", "demo-bias", "--table", table, "--json"
    )
    assert code == 1
    assert json.loads(out)["tables"]["validation"][0]["heads"] == 32
    assert "demo does not agree with the table for demo on demo-bias: the correlation" in err


@pytest.mark.soak
def test_random_weights_do_not_validate_as_gpt2(command, tmp_path, shared, gpt2_tokenizer):
    """The real sizes of DistilGPT2, its tokenizer and data, but not its weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=6)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "distilgpt2")
    gpt2_tokenizer.save_pretrained(tmp_path / "distilgpt2")
    code, out, err = command(
        *("validate", tmp_path / "distilgpt2", "--data-dir", shared / "data" / "winogender"),
        "--quiet",
    )
    assert code == 1
    assert "Vig et al. 2020" in out
    assert "does not agree with the table for distilgpt2 on winogender-bergsma" in err
