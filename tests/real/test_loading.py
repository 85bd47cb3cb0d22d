"""A GGUF file of trained weights, and the same weights as a directory."""

from __future__ import annotations

import json

import pytest
import torch

import tracekit as tk
from tracekit.models.hooked import is_exact

pytestmark = pytest.mark.real


def test_real_weights_of_gguf_and_of_a_directory_are_the_same(real_model, bare_model, tmp_path):
    assert is_exact(real_model)
    tokens = real_model.to_tokens("The capital of France is")
    logits = real_model(tokens)[0, -1]
    assert real_model.to_string(logits.argmax()) == " Paris"
    bare_model.save_pretrained(tmp_path)
    real_model.tokenizer.save_pretrained(tmp_path)
    saved = tk.load_model(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()).get("quantization_config") is None
    torch.testing.assert_close(bare_model(tokens).logits[0, -1], logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(saved(tokens)[0, -1], logits, rtol=0, atol=1e-4)
