"""Loading: a model by name, from a directory, or from memory, wrapped by TransformerLens.

TransformerLens is imported when a model is loaded, not before.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracekit._util.control_groups import granted_bytes
from tracekit._util.threads import threads_for
from tracekit.demo import DEMO, MODEL_DIR
from tracekit.errors import (
    ConfigError,
    HubUnreachableError,
    MissingExtraError,
    TracekitError,
    UnknownModelError,
    UnsupportedModelError,
)
from tracekit.models.hooked import HookedModel, refuse_settings, refuse_without_weights
from tracekit.models.tokenizers import remember_own
from tracekit.models.untrusted import nothing_installed, refusal
from tracekit.models.verification import (
    check_same_numbers,
    reference_of,
    verified_loading,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_HUB_TIMEOUT = 5.0
_ADAPTER = "adapter_config.json"
"""A file of the folders that peft writes."""
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
        model: `demo` (embedded), a directory in Hugging Face layout, a hub name such as
            `gpt2`, a Hugging Face model in memory, or a `TransformerBridge` or
            `HookedTransformer`, which is returned as it is. A Hugging Face model is wrapped in
            place: its parameters stop taking gradients and it is set to evaluation mode. Adapters
            of PEFT, in memory or a folder, are merged into a copy; of a compiled model the
            original is taken.
        tokenizer: Used instead of the model's own; needed for a Hugging Face model in memory if
            its data come as text.
        device: Where to put the model; the first CUDA device if there is one, else the CPU.
            A model in memory stays where it is and as it is.
        dtype: `auto` (default: float32 where twice that fits into the free memory of `device`, else
            what the checkpoint's configuration names; quantised weights keep their own types),
            `float32`, `bfloat16`, `float16`, or a torch dtype. In bfloat16 effects depend on the
            batch size, by about `Tracer.noise_floor`.
        **options: `revision`, a branch, tag or commit of a hub name; the rest is passed on to
            `TransformerBridge.boot_transformers`, e.g. `device_map`, `n_devices`.

    Raises:
        ConfigError: An option that does not suit the model, or a setting of torch that no trace
            can have (`torch.inference_mode`, another default dtype).
        UnknownModelError: It is none of these, or the hub has no such model or revision.
        HubUnreachableError: A hub name, not cached, and no connection. Comes within seconds.
        MissingExtraError: An adapter's folder, and peft is not installed.
        UnsupportedModelError: The model cannot be loaded or wrapped, lacks weights, is computed
            differently by TransformerLens, or would run code or install something.
    """
    refuse_settings()
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
    checkpoint = locate(str(model), revision=options.pop("revision", None))
    directory = checkpoint.folder
    if (directory / _ADAPTER).exists() and not (directory / "config.json").exists():
        return _with_adapter(directory, tokenizer, {**options, "dtype": asked})
    with _loading_errors(model):
        options["dtype"] = asked or _chosen_dtype(directory, options["device"])
    target = options["device"]
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
    bridge.cfg.model_name = str(model)
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
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(0, device=resolved)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"The device {str(device)!r} cannot be used: {first}. "
            "Use cpu, or cuda where there is one."
        ) from None
    return resolved


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The type asked for; None to choose one."""
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
    weights = [*directory.glob("*.safetensors"), *directory.glob("*.bin")]
    # Twice the weights of the checkpoint, and as much again to load and to run it.
    needed = 4 * sum(file.stat().st_size for file in weights)
    return torch.float32 if needed <= _free_bytes(device) else named


def _free_bytes(device: torch.device) -> int:
    """Memory that is free on a device; of the CPU, as the system and a container have it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with suppress(OSError, ValueError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return min(1024 * int(lines["MemAvailable"].split()[0]), granted_bytes())
    return _SMALL_MODEL


def checkpoint_dtype(checkpoint: str | Path) -> torch.dtype:
    """The floating type that a checkpoint's configuration names; float32 if it names none."""
    from transformers import PretrainedConfig

    # The file as it is: building a configuration may need code of the checkpoint's own.
    entries, _ = PretrainedConfig.get_config_dict(str(checkpoint))
    parts = [entries, *(part for part in entries.values() if isinstance(part, Mapping))]
    # Releases of transformers differ in the name; multimodal models say it of each part.
    names = [part.get(key) for part in parts for key in ("dtype", "torch_dtype")]
    named = next((name for name in names if isinstance(name, str)), "float32")
    dtype = getattr(torch, named.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(
            f"The configuration of {checkpoint} names the dtype {named!r}, which no weights have. "
            "Give a dtype."
        )
    return dtype


def _in_memory(model: Any, tokenizer: Any, options: Mapping[str, Any]) -> HookedModel:
    """A model of memory, wrapped if it is not hooked; adapters are merged on a copy."""
    model = getattr(model, "_orig_mod", model)
    if hasattr(model, "merge_and_unload"):
        model = deepcopy(model).merge_and_unload()
    if not isinstance(model, HookedModel):
        model = _wrap(model, tokenizer, options)
    return model


def _with_adapter(directory: Path, tokenizer: Any, options: Mapping[str, Any]) -> HookedModel:
    """The base model that an adapter's folder names, with the adapter merged into it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        peft = import_module("peft")
    except ImportError as error:
        raise MissingExtraError(
            f"{directory} holds an adapter, which the package peft reads. Install peft, or give a "
            "directory into which the adapter was merged."
        ) from error
    named = json.loads((directory / _ADAPTER).read_text()).get("base_model_name_or_path")
    if not isinstance(named, str):
        raise UnknownModelError(
            f"The adapter {directory} names no base model. Give the PeftModel in memory, or write "
            f"the base model's folder or name as base_model_name_or_path into its {_ADAPTER}."
        )
    base = locate(named).folder
    dtype = options["dtype"] or _chosen_dtype(base, options["device"])
    with _loading_errors(directory), nothing_installed(directory):
        bare = AutoModelForCausalLM.from_pretrained(base, dtype=dtype).to(options["device"])
        merged = peft.PeftModel.from_pretrained(bare, directory).merge_and_unload()
        home = directory if _has_tokenizer(directory) else base
        if tokenizer is None and _has_tokenizer(home):
            tokenizer = AutoTokenizer.from_pretrained(home, trust_remote_code=False)
    model = _wrap(merged, tokenizer, {})
    model.cfg.model_name = str(directory)
    return model


def _wrap(model: Any, tokenizer: Any, options: Mapping[str, Any]) -> HookedModel:
    """A bridge around a Hugging Face model in memory."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise UnknownModelError(
            f"Cannot trace a {type(model).__name__}. Give a name, a directory, a Hugging Face "
            "model, a TransformerBridge or a HookedTransformer."
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
            reference = reference_of(model, name)
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


class Checkpoint(NamedTuple):
    """Files of a model on this machine."""

    folder: Path
    commit: str | None = None
    """Of the hub's repository; None for a directory."""


def locate(
    name: str, *, revision: str | None = None, files: Sequence[str] | None = None
) -> Checkpoint:
    """Files of a model: a directory, or those that the hub has, or else its cache.

    `revision` is a branch, tag or commit of the hub's repository. By default the files are those
    that the model is loaded from.
    """
    path = MODEL_DIR if name == DEMO else Path(name).expanduser()
    if not path.is_dir():
        if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
            raise UnknownModelError(
                f"There is no directory {name}. Give an existing one, a hub name, or {DEMO!r}."
            )
        return _ask_hub(name, revision, files)
    if revision is not None:
        raise ConfigError(
            f"The revision {revision!r} was given for the directory {name}, which holds one state. "
            "Leave it out, or give a hub name."
        )
    if not any((path / each).exists() for each in ("config.json", _ADAPTER)):
        raise UnknownModelError(
            f"The directory {name} holds no config.json. "
            "Give a model in Hugging Face layout (config.json, weights, tokenizer)."
        )
    return Checkpoint(path)


def _ask_hub(name: str, revision: str | None, files: Sequence[str] | None) -> Checkpoint:
    """The snapshot of a revision, fetched if the hub can be reached, else from the cache."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RevisionNotFoundError,
    )

    named = f"revision {revision!r} of model {name!r}" if revision else f"model {name!r}"
    try:
        about = HfApi().model_info(name, revision=revision, timeout=_HUB_TIMEOUT)
        wanted = files or _files_to_load([each.rfilename for each in about.siblings or ()])
        folder = snapshot_download(name, revision=revision, allow_patterns=list(wanted))
        return Checkpoint(Path(folder), Path(folder).name)
    except GatedRepoError as error:
        raise UnknownModelError(
            f"The hub asks for permission to read {name}. "
            "Accept its terms there and log in, or pass a directory that holds the model."
        ) from error
    except HFValidationError as error:
        raise UnknownModelError(
            f"{name!r} is neither a directory nor a possible hub name. "
            f"Use a directory, a name such as 'gpt2', or {DEMO!r}."
        ) from error
    except RevisionNotFoundError as error:
        raise UnknownModelError(
            f"The hub has no revision {revision!r} of the model {name!r}. "
            "Give one of its branches, tags or commits."
        ) from error
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (401, 404):
            raise UnknownModelError(
                f"The hub has no model {name!r} that you may read. "
                f"Check the name, pass a directory, or use {DEMO!r}, which is embedded."
            ) from error
    except (OSError, OfflineModeIsEnabled, *_connection_errors()):
        pass
    try:
        # Without a list of files it asks for all that the repository has.
        least = ["config.json", _ADAPTER]
        folder = snapshot_download(
            name, revision=revision, allow_patterns=least, local_files_only=True
        )
        return Checkpoint(Path(folder), Path(folder).name)
    except (LocalEntryNotFoundError, OSError) as error:
        raise HubUnreachableError(
            f"The {named} is not on this machine and the hub cannot be reached. "
            f"Pass a directory that holds the model, or use {DEMO!r}, which is embedded."
        ) from error


def _files_to_load(names: Sequence[str]) -> list[str]:
    """What a model is loaded from: configuration, tokenizer, code, and weights in one format."""
    small = (".json", ".txt", ".model", ".jinja", ".py", ".tiktoken")
    chosen = [name for name in names if name.endswith(small)]
    for weights in (r"[^/.]*\.safetensors", r"pytorch_model[^/.]*\.bin"):
        in_format = [name for name in names if re.fullmatch(weights, name)]
        if in_format:
            return chosen + in_format
    return chosen


def _connection_errors() -> list[type[Exception]]:
    """Connection failures of the HTTP clients that releases of huggingface_hub have used.

    Those of requests are OSErrors already.
    """
    clients = [name for name in ("httpx", "httpx2") if find_spec(name) is not None]
    return [import_module(name).HTTPError for name in clients]
