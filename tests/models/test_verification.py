"""Models with missing, reshaped or differently computed weights are refused."""

from __future__ import annotations

import shutil
import warnings

import pytest
import torch
import transformers
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


def without(part):
    return lambda name, value: (name, None if part in name else value)


def reshaped(name, value):
    return name, value[:, :-1] if name == "transformer.h.0.mlp.c_fc.weight" else value


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without(".h.1.mlp."), r"transformer.h.1.mlp.c_fc.bias, transformer.h.1.mlp.c_fc.weight"),
        (without("h.2.attn.c_proj.bias"), "lack transformer.h.2.attn.c_proj.bias, which .* random"),
        (lambda name, value: (f"other.{name}", value), r"lack .* and \d+ more, which transformers"),
        (reshaped, r"config.json says: transformer.h.0.mlp.c_fc.weight\. Give"),
    ],
    ids=["a missing MLP", "a missing bias", "another prefix", "another shape"],
)
def test_weights_that_do_not_fit_are_named(changed_demo, change, text):
    with pytest.raises(UnsupportedModelError, match=text):
        tk.load_model(changed_demo(change))


def test_weights_that_are_no_file_are_one_clear_error(tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(MODEL_DIR, folder)
    (folder / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(UnsupportedModelError, match="could not be loaded"):
        tk.load_model(folder)


@pytest.mark.lens
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
    from tracekit.models.verification import record_reference

    hf = tiny.hf_model("gpt2")
    monkeypatch.setattr(hf, "forward", lambda *args, **kwargs: 1 / 0)
    with pytest.warns(ModelWarning, match="cannot be run before it is wrapped"):
        assert record_reference(hf, "broken") is None


@pytest.mark.lens
@pytest.mark.parametrize(
    ("architecture", "options", "said"),
    [
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}, "split_with_sizes"),
        ("gpt2", {"add_cross_attention": True}, "TransformerLens says: "),
        ("gpt_neox", {"attention_bias": False}, "AssertionError"),
        ("opt", {"do_layer_norm_before": False}, "final_layer_norm"),
        ("phi", {"qk_layernorm": True}, "q_layernorm"),
    ],
)
@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "from a directory"])
def test_a_setting_that_the_bridge_does_not_know_is_the_reason(
    architecture, options, said, saved, tmp_path
):
    """The checkpoint is all right, and transformers runs it."""
    source = tiny.hf_model(architecture, **options)
    if saved:
        source.save_pretrained(tmp_path)
        source = tmp_path
    setting = next(f"{name} = {value}" for name, value in options.items())
    with pytest.raises(UnsupportedModelError) as caught:
        tk.load_model(source)
    text = str(caught.value)
    assert "TransformerLens cannot run" in text
    assert setting in text
    assert "The checkpoint itself is all right" in text
    assert said in text
    assert "config.json" not in text


def with_vocabulary_of(tokenizer):
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=128
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def model_warnings(*given, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tk.load_model(*given, **options)
    return [str(each.message) for each in caught if each.category is ModelWarning]


@pytest.mark.slow
@pytest.mark.parametrize("saved", [False, True], ids=["in memory", "from a directory"])
def test_a_model_that_predicts_no_english_is_warned_of(saved, gpt2_tokenizer, tmp_path):
    hf = with_vocabulary_of(gpt2_tokenizer)
    if saved:
        hf.save_pretrained(tmp_path)
        gpt2_tokenizer.save_pretrained(tmp_path)
        found = model_warnings(tmp_path)
    else:
        found = model_warnings(hf, tokenizer=gpt2_tokenizer)
    assert len(found) == 1
    assert "hardly predicts plain English: 10.8 nats a token" in found[0]
    assert "among its 50,257 tokens gives 10.8. Unless it is untrained" in found[0]


def test_where_plain_english_says_nothing_there_is_no_warning(gpt2_tokenizer, demo_model):
    # No tokenizer; one whose tokens the model lacks; one that lacks the words.
    assert model_warnings(with_vocabulary_of(gpt2_tokenizer)) == []
    assert model_warnings(tiny.hf_model("gpt2"), tokenizer=gpt2_tokenizer) == []
    assert model_warnings("demo") == []
    hf = with_vocabulary_of(gpt2_tokenizer)
    assert model_warnings(hf, tokenizer=demo_model.tokenizer) == []


@pytest.mark.real
def test_a_real_model_predicts_english_until_its_weights_are_others(real_model):
    from tracekit.models.verification import warn_of_poor_text

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_poor_text(real_model, real_model.tokenizer, "it")
    weight = real_model.original_model.model.norm.weight
    before = weight.data
    weight.data = before.flip(0) * torch.linspace(-1, 1, len(before))
    try:
        with pytest.warns(ModelWarning, match="it hardly predicts plain English"):
            warn_of_poor_text(real_model, real_model.tokenizer, "it")
    finally:
        weight.data = before
