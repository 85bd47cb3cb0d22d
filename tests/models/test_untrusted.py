"""Nothing that a model directory holds is run, and nothing is installed for it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file

import tracekit as tk
from paper.jobs import ModelAt
from tracekit.demo import MODEL_DIR
from tracekit.errors import UnsupportedModelError

OWN_CODE = "brings code of its own, which is not run. Give a model whose architecture transformers"
PICKLED = "hold Python objects, which could run code when they are read. Give weights in safet"


@pytest.fixture
def directory(tmp_path):
    """A copy of the embedded model, with code that leaves a mark when it is run."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    code = f"open({str(tmp_path / 'RAN')!r}, 'w')\nclass Mine: pass\n"
    for name in ("mine.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    yield folder
    assert not (tmp_path / "RAN").exists()


class Runs:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.system, (f"touch {self.folder.parent / 'RAN'}",)


def change(path, **entries):
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def test_code_of_an_architecture_of_its_own(directory):
    change(
        directory / "config.json",
        model_type="mine",
        architectures=["Mine"],
        auto_map={"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"},
    )
    with pytest.raises(UnsupportedModelError, match=OWN_CODE):
        tk.load_model(directory)
    assert ModelAt.parse(str(directory)).count("head-outputs") is None


def test_code_beside_a_known_architecture_and_tokenizer(directory):
    """They are ignored: the numbers are those of transformers' own classes."""
    change(directory / "config.json", auto_map={"AutoModelForCausalLM": "mine.Mine"})
    change(
        directory / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["mine.Mine", None]},
        tokenizer_class="Mine",
    )
    model, tokens = tk.load_model(directory), torch.arange(6)[None]
    logits, expected = model(tokens), tk.load_model("demo")(tokens)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("form", ["saved by torch", "a bare pickle", "in shards"])
def test_pickled_weights(directory, form):
    (directory / "model.safetensors").unlink()
    weights = directory / "pytorch_model.bin"
    if form == "saved by torch":
        torch.save({"transformer.wte.weight": Runs(directory)}, weights)
    else:
        weights.write_bytes(pickle.dumps(Runs(directory), protocol=2))
    if form == "in shards":
        index = {"metadata": {}, "weight_map": {"transformer.wte.weight": weights.name}}
        (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(UnsupportedModelError, match=PICKLED):
        tk.load_model(directory)


def test_pickled_tensors_alone_are_taken(directory):
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    torch.save(tensors, directory / "pytorch_model.bin")
    tokens = torch.arange(6)[None]
    assert torch.equal(tk.load_model(directory)(tokens), tk.load_model("demo")(tokens))


@pytest.fixture
def commands(monkeypatch):
    """Every command that is started; none is run."""
    started = []

    def start(self, arguments, *rest):
        started.append(arguments)
        raise FileNotFoundError("not in this test")

    monkeypatch.setattr(subprocess.Popen, "_execute_child", start)
    return started


def test_a_model_for_images_has_nothing_installed(directory, commands):
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    pytest.importorskip("transformer_lens.model_bridge.supported_architectures.llava")
    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = LlavaConfig(
        text_config=LlamaConfig(**small, vocab_size=100).to_dict(),
        vision_config=CLIPVisionConfig(**small, image_size=8, patch_size=4).to_dict(),
        image_token_index=99,
    )
    (directory / "model.safetensors").unlink()
    LlavaForConditionalGeneration(config).save_pretrained(directory)
    text = "asks for torchvision to be installed, as models for images or sound do. Give a model"
    with pytest.raises(UnsupportedModelError, match=text):
        tk.load_model(directory)
    assert not commands
