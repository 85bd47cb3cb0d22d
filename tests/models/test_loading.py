from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import transformers

import tracekit as tk
from tests import tiny
from tests.hub import commit_of, on_hub, serve
from tracekit._util import progress
from tracekit.demo import MODEL_DIR
from tracekit.errors import (
    ConfigError,
    HubUnreachableError,
    MissingExtraError,
    UnknownModelError,
    UnknownOptionError,
    UnsupportedModelError,
)
from tracekit.models import loading
from tracekit.models.checkpoint import Checkpoint, _files_to_load, checkpoint_dtype
from tracekit.models.hooked import (
    HookedModel,
    freeze,
    model_name,
    revision_of,
    scored_hook,
    short_name,
)
from tracekit.models.loading import load_model
from tracekit.models.verification import Loader, check_same_numbers


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A model saved in Hugging Face layout, without tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "small"
    tiny.hf_model("llama").save_pretrained(folder)
    return folder


def logits(model):
    with torch.no_grad():
        return model.run_with_hooks(torch.tensor([[1, 2, 3]]), fwd_hooks=[])


@pytest.mark.lens
def test_every_way_in_gives_the_same_numbers(directory):
    hf = tiny.hf_model("llama")
    expected = hf(torch.tensor([[1, 2, 3]])).logits
    in_memory = load_model(hf)
    for model in (load_model(directory), load_model(str(directory)), in_memory):
        torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-5)
        assert isinstance(model, HookedModel)
        assert model.tokenizer is None
    assert load_model(in_memory) is in_memory
    assert model_name(load_model(directory)) == "small"


def test_loaded_models_are_frozen_and_in_evaluation_mode(directory):
    model = load_model(directory)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


def test_frozen_restores_what_it_found(directory):
    model = load_model(directory)
    first, second = list(model.parameters())[:2]
    first.requires_grad_(True)
    model.train(True)
    with pytest.raises(ZeroDivisionError), freeze(model):
        assert not first.requires_grad
        assert not model.training
        raise ZeroDivisionError
    assert first.requires_grad
    assert not second.requires_grad
    assert model.training


def test_frozen_restores_every_part_as_it_was(directory):
    model = load_model(directory)
    model.train(True)
    modules = list(model.modules())
    for module in modules[3::5]:
        module.training = False
    before = [module.training for module in modules]
    assert len(set(before)) == 2
    with freeze(model):
        assert not any(module.training for module in modules)
    assert [module.training for module in modules] == before


def test_a_block_within_another_one_changes_nothing(directory):
    model = load_model(directory)
    first = next(iter(model.parameters()))
    first.requires_grad_(True)
    model.train(True)
    with freeze(model):
        with freeze(model):
            pass
        assert not first.requires_grad
        assert not model.training
    assert first.requires_grad
    assert model.training


@pytest.mark.lens
def test_every_wrapper_of_a_model_is_frozen():
    hf = tiny.hf_model("llama")
    one, other = load_model(hf), load_model(hf)
    one.train(True)
    other.train(True)
    with freeze(one), freeze(other), freeze(one):
        assert not one.training
        assert not other.training
    assert one.training
    assert other.training


def test_types(directory):
    assert next(load_model(directory, dtype="bfloat16").parameters()).dtype == torch.bfloat16
    assert next(load_model(directory, dtype=torch.float16).parameters()).dtype == torch.float16


@pytest.mark.parametrize("named", ["bfloat16", "float16", "float32", "float64", None])
@pytest.mark.parametrize("fits", [True, False])
def test_dtype_auto_is_float32_where_it_fits_else_of_the_checkpoint(
    tmp_path, monkeypatch, named, fits
):
    hf = tiny.hf_model("llama").to(getattr(torch, named or "float32"))
    hf.save_pretrained(tmp_path)
    if not fits:
        size = (tmp_path / "model.safetensors").stat().st_size
        monkeypatch.setattr(loading, "_free_bytes", lambda device: 2 * size)
    config = json.loads((tmp_path / "config.json").read_text())
    if named is None:
        config = {key: value for key, value in config.items() if "dtype" not in key}
        (tmp_path / "config.json").write_text(json.dumps(config))
    is_low = named in ("bfloat16", "float16")
    expected = torch.float32 if fits and is_low else getattr(torch, named or "float32")
    for dtype in (None, "auto"):
        model = load_model(tmp_path, dtype=dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {expected}
    assert next(load_model(tmp_path, dtype="float32").parameters()).dtype == torch.float32


def test_dtype_auto_knows_the_free_memory(monkeypatch):
    assert 2**27 < loading._free_bytes(torch.device("cpu")) < 2**50
    monkeypatch.setattr(loading, "cgroup_free_bytes", lambda: 5)
    assert loading._free_bytes(torch.device("cpu")) == 5


def test_a_type_that_no_weights_have_is_refused(directory, tmp_path):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    for named in ("int8", "nonsense"):
        (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": named}))
        with pytest.raises(ConfigError, match=f"names the dtype '{named}', which no weights have"):
            load_model(tmp_path)


def test_the_type_may_stand_in_a_part_of_the_configuration(tmp_path):
    text = json.dumps({"model_type": "x", "text_config": {"dtype": "bfloat16"}})
    (tmp_path / "config.json").write_text(text)
    assert checkpoint_dtype(tmp_path) == torch.bfloat16
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": "float16"}))
    assert checkpoint_dtype(tmp_path) == torch.float16


def test_a_tokenizer_made_in_memory_is_taken(directory, gpt2_tokenizer):
    for model in (
        load_model(directory, tokenizer=gpt2_tokenizer),
        load_model(tiny.hf_model("gpt2"), tokenizer=gpt2_tokenizer),
    ):
        text = "The accountant said that"
        found = model.tokenizer.encode(text, add_special_tokens=False)
        assert found == gpt2_tokenizer.encode(text)


def test_the_demo_model_is_loaded_by_the_ordinary_path(demo_model):
    again = load_model(MODEL_DIR)
    assert torch.equal(logits(again), logits(demo_model))
    assert model_name(demo_model) == "demo"
    assert demo_model.tokenizer.encode("the nurse") == again.tokenizer.encode("the nurse")
    assert scored_hook(demo_model) in demo_model.hook_dict


def test_the_given_name_is_in_titles_and_saved_results(tmp_path, directory):
    for number, source in enumerate((directory, "demo", tiny.hf_model("llama"))):
        model = load_model(source, name=f"tuned {number}")
        assert model_name(model) == f"tuned {number}"
    result = tk.Tracer(model, tiny.pairs(), "head-outputs").run("top-k", budget=2)
    assert result.model == "tuned 2"
    assert "tuned 2:" in repr(result)
    result.save(tmp_path / "saved")
    assert tk.TraceResult.load(tmp_path / "saved").model == "tuned 2"
    # One object under two names, and a hooked model.
    hf = tiny.hf_model("llama")
    first, second = load_model(hf, name="first"), load_model(hf, name="second")
    assert [model_name(each) for each in (first, second)] == ["first", "second"]
    assert model_name(load_model(second, name="third")) == "third"


WAITED = (" ...", r": 0\.\d s so far")
"""What follows the name of the model, line by line."""


@pytest.mark.parametrize(
    ("source", "after", "is_watched", "n_said"),
    [
        (MODEL_DIR, 0.01, False, 2),
        (MODEL_DIR, 60, False, 0),  # What is read at once says nothing.
        (MODEL_DIR, 0.01, True, 0),
        ("demo", 0.01, False, 0),
    ],
)
def test_where_nobody_watches_the_log_says_what_is_loaded(
    monkeypatch, capsys, source, after, is_watched, n_said
):
    def slow(name):
        deadline = time.monotonic() + 10
        said = ""
        while said.count("\n") < n_said and time.monotonic() < deadline:
            time.sleep(0.02)
            said += capsys.readouterr().err
        words = [f"Loading the model {re.escape(str(MODEL_DIR))}{how}" for how in WAITED[:n_said]]
        assert re.fullmatch("".join(f"{line}\n" for line in words), said)
        return Checkpoint(MODEL_DIR)

    monkeypatch.setattr(progress, "_FIRST_LINE_AFTER", after)
    monkeypatch.setattr(progress, "_LINE_EVERY", 0.3)
    monkeypatch.setattr(progress, "is_interactive", lambda: is_watched)
    monkeypatch.setattr(loading, "locate", slow)
    load_model(source)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("./nowhere", UnknownModelError, "no directory ./nowhere. .* a hub name, or 'demo'"),
        ("/nowhere/at/all", UnknownModelError, "no directory /nowhere/at/all. Give"),
        ("a/b/c", UnknownModelError, "no directory a/b/c. Give"),
        ("no good name!", UnknownModelError, "'no good name!' .* Use a directory, a name"),
        ("gpt2@", UnknownModelError, "'gpt2@' has nothing on one side of its @. Give"),
        ("@main", UnknownModelError, "'@main' has nothing on one side of its @. Give"),
        ("model@q4.gguf", UnknownModelError, "no file model@q4.gguf. Give"),
        # The test run itself is offline.
        ("someone/other", HubUnreachableError, "no folder ./someone/other: pass one .* 'demo'"),
        ("tuned", HubUnreachableError, "'tuned' is not on this machine .* no folder ./tuned: pass"),
        ({"weights": 1}, UnknownModelError, "Cannot trace a dict. Give a name, a directory"),
    ],
)
def test_sources_that_lead_nowhere(unchecked, tmp_path, monkeypatch, source, error, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=text):
        load_model(source)


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        (None, UnknownModelError, "holds no config.json. Give a model in Hugging Face layout"),
        ("{}", UnsupportedModelError, "could not be loaded: .* Check its config.json"),
        ("{", UnsupportedModelError, "could not be loaded: .* Check its config.json"),
        ('{"model_type": "none-such"}', UnsupportedModelError, "`none-such`.* Check its config"),
    ],
)
def test_directories_without_a_model(tmp_path, config, error, text):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(error, match=text):
        load_model(tmp_path)


NAME = "name of a model is a text of one line, not"
IN_MEMORY = "A model in memory stays as it is, and {} was given for it. Move or convert it"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("source", "options", "error", "text"),
    [
        ("demo", {"name": ""}, ConfigError, f"{NAME} ''"),
        ("demo", {"name": "  "}, ConfigError, f"{NAME} '  '"),
        ("demo", {"name": "two\nlines"}, ConfigError, f"{NAME} 'two.nlines'"),
        ("demo", {"name": 3}, ConfigError, f"{NAME} 3. Give one"),
        ("demo", {"dtype": "int8"}, ConfigError, "dtype is 'int8'. Use one of auto, float32, bf"),
        ("demo", {"device": "abacus"}, ConfigError, "device 'abacus' .* Use cpu"),
        ("demo", {"device": "cuda:99"}, ConfigError, "device 'cuda:99' .* Use cpu"),
        ("demo", {"torch_dtype": "bfloat16"}, UnknownOptionError, "'torch_dtype'. Did .* 'dtype'"),
        ("demo", {"revision": "x"}, ConfigError, "'x' .* directory demo, .* Leave it out, or give"),
        ("folder", {"revision": "x"}, ConfigError, "'x' .* directory /.* Leave it out, or give"),
        ("model", {"revision": "x"}, ConfigError, IN_MEMORY.format("revision")),
        ("model", {"dtype": "bfloat16"}, ConfigError, IN_MEMORY.format("dtype")),
        ("part", {}, UnsupportedModelError, "GPT2Model gives no logits. .* AutoModelForCausalLM"),
    ],
)
def test_options_that_are_refused(directory, source, options, error, text):
    if source in ("model", "part"):
        model = tiny.hf_model("gpt2")
        source = model if source == "model" else model.transformer
    with pytest.raises(error, match=text):
        load_model(directory if source == "folder" else source, **options)


def test_mps_is_taken_before_the_cpu_and_compared_with_it(directory, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loading._as_device(None, {}) == torch.device("mps")

    def with_faults(model, device):
        assert device == torch.device("mps")
        for parameter in model.parameters():
            parameter.data *= 1.5

    monkeypatch.setattr(transformers.PreTrainedModel, "to", with_faults)
    loader = Loader("tiny", torch.device("mps"), transformers.AutoModelForCausalLM)
    moved = loader.from_pretrained(directory)
    monkeypatch.undo()
    bridge = load_model(moved)
    with pytest.raises(UnsupportedModelError, match="computes other logits than tiny itself"):
        check_same_numbers(bridge, loader)


def test_devices(directory):
    assert next(iter(load_model(directory, device="cpu").parameters())).device.type == "cpu"


# ---- the hub, played by a server on this machine --------------------------------------------

SCRIPT = """
import sys, tracekit as tk
from tracekit.models.hooked import revision_of
for name in sys.argv[1:]:
    name, *options = name.split()
    try:
        model = tk.load_model(name, **dict(given.split("=") for given in options))
        print("loaded", model.cfg.n_layers, next(model.parameters()).dtype, revision_of(model))
    except tk.errors.TracekitError as error:
        print(type(error).__name__, error)
"""


def ask(endpoint, cache, *names):
    """Loads models in a fresh process; a name may be followed by options."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *names],
        env={**os.environ, **on_hub(endpoint, cache)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.findall(r"^(?:loaded|\w+Error) .*", done.stdout, re.MULTILINE)
    assert len(found) == len(names), done.stderr[-2000:]
    return found, time.perf_counter() - start


@pytest.fixture
def hub(tmp_path_factory):
    """A stand-in for the hub that serves one public and one gated model; gives its address."""
    models = {
        "someone/small": MODEL_DIR,
        "someone/steps": {"main": MODEL_DIR, "step1": tmp_path_factory.mktemp("step")},
    }
    tiny.hf_model("llama").save_pretrained(models["someone/steps"]["step1"])
    with serve(models, gated={"someone/secret"}) as address:
        yield address


NOWHERE = "http://127.0.0.1:9"


@pytest.mark.slow
def test_models_come_from_the_hub_and_then_from_its_cache(hub, tmp_path):
    expected = f"loaded 4 torch.float32 {commit_of('main')}"
    assert ask(hub, tmp_path, "someone/small")[0] == [expected]
    cached, seconds = ask(NOWHERE, tmp_path, "someone/small")
    assert cached == [expected]
    assert seconds < 40


@pytest.mark.soak
@pytest.mark.slow
def test_revision_is_loaded_from_the_hub_and_from_its_cache_or_is_an_error(hub, tmp_path):
    expected = f"loaded 3 torch.float32 {commit_of('step1')}"
    # Only this revision is in the cache afterwards.
    first, second = (f"someone/steps revision={name}" for name in ("step1", "step2"))
    found, _ = ask(hub, tmp_path, first, second)
    assert found == [
        expected,
        "UnknownModelError The hub has no revision 'step2' of the model 'someone/steps'. "
        "Give one of its branches, tags or commits.",
    ]
    cached, *refused = ask(NOWHERE, tmp_path, first, "someone/steps", second)[0]
    assert cached == expected
    for text, of_what in zip(
        refused,
        ("model 'someone/steps'", "revision 'step2' of model 'someone/steps'"),
        strict=True,
    ):
        assert text.startswith(f"HubUnreachableError The {of_what} is not on this machine")


def test_revisions_with_slashes_belong_to_the_short_name():
    for name, is_on_hub, short in (
        ("someone/small@refs/pr/1", True, "small@refs/pr/1"),
        ("someone/small", True, "small"),
        ("/home/me@lab/small@step1", False, "small@step1"),
        ("/", False, "/"),
    ):
        assert short_name(name, is_on_hub=is_on_hub) == short


def test_files_to_load_are_of_one_format():
    names = ["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "README.md"]
    names += ["onnx/model.safetensors", "tokenizer.model", "model.fp16.safetensors"]
    small = ["config.json", "tokenizer.model"]
    assert _files_to_load(names) == [*small, "model.safetensors"]
    names.remove("model.safetensors")
    assert _files_to_load(names) == [*small, "pytorch_model.bin"]


# ---- adapters and compiled models -----------------------------------------------------------


@pytest.mark.slow
def test_adapter_in_a_folder_needs_peft_and_a_base_model(tmp_path, monkeypatch):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": None}))
    with pytest.raises(UnknownModelError, match="names no base model. Give the PeftModel in"):
        load_model(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match="holds an adapter, which the package peft reads"):
        load_model(tmp_path)


def test_lora_of_peft_is_merged_from_memory_and_from_a_folder(tmp_path, monkeypatch):
    import peft

    base, folder = tmp_path / "base", tmp_path / "adapter"
    tiny.hf_model("llama").save_pretrained(base)
    bare = transformers.AutoModelForCausalLM.from_pretrained(base)
    plain = logits(load_model(base))
    adapted = peft.get_peft_model(bare, peft.LoraConfig(r=2, target_modules=["q_proj", "o_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data, std=0.5)
    expected = adapted(torch.tensor([[1, 2, 3]])).logits.detach()
    adapted.save_pretrained(folder)
    assert (expected - plain).abs().max() > 0.01
    for given in (adapted, folder):
        torch.testing.assert_close(logits(load_model(given)), expected, atol=1e-5, rtol=1e-4)
    # The adapter in memory stays apart from its base model.
    assert any("lora_B" in name for name, _ in adapted.named_parameters())
    with adapted.disable_adapter():
        torch.testing.assert_close(adapted(torch.tensor([[1, 2, 3]])).logits.detach(), plain)
    # One of the hub has the name and the revision that were given, not those of its folder.
    found = {str(base): Checkpoint(base), "someone/tuned@step1": Checkpoint(folder, "commit")}
    monkeypatch.setattr(loading, "locate", found.__getitem__)
    model = load_model("someone/tuned", revision="step1")
    assert (model_name(model), revision_of(model)) == ("tuned@step1", "commit")


def test_a_model_larger_than_the_free_memory_is_refused(directory, monkeypatch):
    monkeypatch.setattr(loading, "_free_bytes", lambda device: 100)
    monkeypatch.setattr(loading, "_make_bridge", None)
    with pytest.raises(
        UnsupportedModelError, match="The weights of .* take 0.0 GiB, and 0.0 GiB are free on cpu"
    ):
        load_model(directory)


def test_compiled_model_is_traced_as_it_was():
    bare = tiny.hf_model("llama")
    model = load_model(torch.compile(bare))
    assert model.original_model.lm_head.weight.data_ptr() == bare.lm_head.weight.data_ptr()


@pytest.mark.slow
def test_unknown_and_gated_models(hub, tmp_path):
    (found, gated), _ = ask(hub, tmp_path, "someone/else", "someone/secret")
    assert found.startswith("UnknownModelError The hub has no model 'someone/else' that you may")
    assert "There is no folder ./someone/else: check the name, pass a directory" in found
    assert gated.startswith("UnknownModelError The hub asks for permission to read someone/secret.")


@pytest.mark.slow
def test_an_unreachable_hub_fails_fast(tmp_path):
    (found,), seconds = ask(NOWHERE, tmp_path, "someone/small")
    assert found == (
        "HubUnreachableError The model 'someone/small' is not on this machine and the hub cannot "
        "be reached. There is no folder ./someone/small: pass one that holds the model, or use "
        "'demo', which is embedded."
    )
    assert seconds < 30


@pytest.mark.network
def test_the_real_hub():
    assert tk.load_model("distilbert/distilgpt2").cfg.n_layers == 6


def states():
    """The global random states and settings that nothing here may change."""
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()],
        torch.get_float32_matmul_precision(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
    )


@pytest.mark.slow
# Checks of annotations pick list entries at random.
@pytest.mark.usefixtures("unchecked")
def test_global_states_are_left_alone(directory):
    before = states()
    model = load_model(directory)
    assert states() == before
    tracer = tk.Tracer(model, tiny.pairs(6))
    for method in ("pgb-ct", "random", "local-search", "dcm"):
        options = {"pgb-ct": {"epochs": 2, "trials": 2}}.get(method, {})
        tracer.run(method, budget=2, **options)
    tracer.interactions(layers=[0])
    assert states() == before


@pytest.mark.slow
def test_tracers_of_one_model_take_turns_between_threads(directory):
    """Hooks of one would act in the passes of the other, and flags are the model's."""
    model = load_model(directory)
    model.train(True)
    tracers = [
        tk.Tracer(model, tiny.pairs(6, seed=seed), kinds)
        for seed, kinds in ((1, "attention-patterns"), (2, "mlp-outputs"))
    ]
    alone = [tracer.run("top-k", budget=3) for tracer in tracers]
    with ThreadPoolExecutor(2) as pool:
        rounds = list(pool.map(lambda n: tracers[n % 2].run("top-k", budget=3), range(12)))
    for number, result in enumerate(rounds):
        expected = alone[number % 2]
        assert result.labels == expected.labels
        assert torch.equal(result.component_scores, expected.component_scores)
    assert all(module.training for module in model.modules())


NAMES_IN_CONFIGS = """
import json, sys, pathlib
import tracekit as tk
for folder in sys.argv[1:]:
    print(tk.load_model(pathlib.Path(folder)).cfg.n_layers)
"""


@pytest.mark.soak
@pytest.mark.slow
def test_names_beyond_ascii_are_read_in_any_locale(tmp_path):
    import peft

    base, folder = tmp_path / "base", tmp_path / "adapter"
    hf = tiny.hf_model("llama")
    hf.save_pretrained(base)
    config = json.loads((base / "config.json").read_text())
    text = json.dumps({**config, "_name_or_path": "模型→"}, ensure_ascii=False)
    (base / "config.json").write_text(text, encoding="utf-8")
    peft.get_peft_model(hf, peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder)
    entries = json.loads((folder / "adapter_config.json").read_text())
    entries |= {"base_model_name_or_path": str(base), "revision": "模型→"}
    text = json.dumps(entries, ensure_ascii=False)
    (folder / "adapter_config.json").write_text(text, encoding="utf-8-sig")
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NAMES_IN_CONFIGS, base, folder],
        env={**os.environ, **ascii_locale},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["3", "3"], done.stderr[-2000:]
