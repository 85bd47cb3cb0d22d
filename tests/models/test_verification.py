"""Models with missing, reshaped or differently computed weights are refused."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import tracekit as tk
from tests import tiny
from tracekit.demo import MODEL_DIR
from tracekit.errors import ModelWarning, UnsupportedModelError


@pytest.fixture
def changed_demo(tmp_path):
    """The embedded model's directory with its tensors changed."""

    def make(change):
        folder = tmp_path / "changed"
        shutil.copytree(MODEL_DIR, folder)
        tensors = {
            name: value.contiguous()
            for name, value in (
                change(*item) for item in load_file(folder / "model.safetensors").items()
            )
            if value is not None
        }
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return make


def test_missing_weights_are_named(changed_demo):
    folder = changed_demo(lambda name, value: (name, None if ".h.1.mlp." in name else value))
    with pytest.raises(UnsupportedModelError) as caught:
        tk.load_model(folder)
    assert "lack transformer.h.1.mlp.c_fc.bias, transformer.h.1.mlp.c_fc.weight" in str(
        caught.value
    )
    assert "would fill in at random" in str(caught.value)


def test_one_missing_bias_is_refused(changed_demo):
    folder = changed_demo(
        lambda name, value: (name, None if name.endswith("h.2.attn.c_proj.bias") else value)
    )
    with pytest.raises(UnsupportedModelError, match="lack transformer.h.2.attn.c_proj.bias, which"):
        tk.load_model(folder)


def test_weights_under_another_prefix_are_named(changed_demo):
    folder = changed_demo(lambda name, value: (f"other.{name}", value))
    with pytest.raises(UnsupportedModelError, match=r"lack .* and \d+ more, which transformers"):
        tk.load_model(folder)


def test_reshaped_weights_are_named(changed_demo):
    name = "transformer.h.0.mlp.c_fc.weight"
    folder = changed_demo(lambda n, value: (n, value[:, :-1] if n == name else value))
    with pytest.raises(UnsupportedModelError, match=rf"config.json says: {name}\. Give"):
        tk.load_model(folder)


def test_weights_that_are_no_file_are_one_clear_error(tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(MODEL_DIR, folder)
    (folder / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(UnsupportedModelError, match="could not be loaded"):
        tk.load_model(folder)


@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "from a directory"])
def test_a_bridge_that_computes_other_numbers_is_refused(saved, tmp_path):
    """TransformerLens ignores `scale_attn_weights`: log-probabilities were off by over one nat."""
    hf = tiny.hf_model("gpt2", scale_attn_weights=False)
    source = hf
    if saved:
        hf.save_pretrained(tmp_path / "unscaled")
        source = tmp_path / "unscaled"
    with pytest.raises(UnsupportedModelError, match="computes other logits than .* differ by up"):
        tk.load_model(source)


def test_loading_leaves_training_mode_alone():
    hf = tiny.hf_model("llama").train()
    with torch.random.fork_rng():
        logits = tk.load_model(hf).run_with_hooks(torch.tensor([[1, 2, 3]]), fwd_hooks=[])
    torch.testing.assert_close(logits, hf(torch.tensor([[1, 2, 3]])).logits)


def test_short_contexts_and_padded_heads_are_no_difference():
    tk.load_model(tiny.hf_model("gpt2", n_positions=6))
    hf = tiny.hf_model("gpt2")
    head = torch.nn.Linear(tiny.D_MODEL, tiny.VOCABULARY, bias=False)
    head.weight = torch.nn.Parameter(hf.lm_head.weight.detach().clone())
    hf.lm_head = head
    tk.load_model(hf)


def test_a_model_that_cannot_be_run_by_itself_warns(monkeypatch):
    from tracekit.models.verification import reference_of

    hf = tiny.hf_model("gpt2")
    monkeypatch.setattr(hf, "forward", lambda *args, **kwargs: 1 / 0)
    with pytest.warns(ModelWarning, match="cannot be run before it is wrapped"):
        assert reference_of(hf, "broken") is None
