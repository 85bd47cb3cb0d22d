"""Loading: a model by name, from a directory, or from memory, wrapped by TransformerLens.

TransformerLens is imported when a model is loaded, not before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tracekit._util.threads import threads_for
from tracekit.demo import MODEL_DIR
from tracekit.errors import (
    ConfigError,
    HubUnreachableError,
    TracekitError,
    UnknownModelError,
    UnsupportedModelError,
)
from tracekit.models.hooked import HookedModel
from tracekit.models.untrusted import nothing_installed, refusal
from tracekit.models.verification import (
    check_same_numbers,
    reference_of,
    verified_loading,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEMO = "demo"
"""Name of the embedded model."""

_HUB_TIMEOUT = 5.0
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
AUTO = "auto"
"""The dtype that a checkpoint names."""
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
            place: its parameters stop taking gradients and it is set to evaluation mode.
        tokenizer: Used instead of the model's own; needed for a Hugging Face model in memory if
            its data come as text.
        device: Where to put the model; the first CUDA device if there is one, else the CPU.
            A model in memory stays where it is and as it is.
        dtype: `auto` (default: as the checkpoint says in its configuration, float32 if it says
            nothing; quantised weights keep their own types), `float32`, `bfloat16`, `float16`, or a
            torch dtype.
        **options: Passed on to `TransformerBridge.boot_transformers`, e.g. `device_map`,
            `n_devices`, `revision`.

    Raises:
        UnknownModelError: It is none of these, or the hub has no model of that name.
        HubUnreachableError: A hub name, not cached, and no connection. Comes within seconds.
        UnsupportedModelError: The model cannot be loaded or wrapped, lacks weights, is computed
            differently by TransformerLens, or would run code or install something.
    """
    if not isinstance(model, (str, Path)):
        if device is not None or dtype is not None:
            raise ConfigError(
                "device and dtype were given for a model in memory, which stays as it is. "
                "Move or convert it first, and leave them out."
            )
        return model if isinstance(model, HookedModel) else _wrap(model, tokenizer, options)
    asked = _dtype(dtype)
    options = {"device": _device(device, options), **options}
    directory = Path(locate(str(model)))
    with _loading_errors(model):
        options["dtype"] = asked or checkpoint_dtype(directory, options.get("revision"))
    target = options["device"]
    # transformers draws weights before it reads them; the user's random numbers stay as they were.
    with (
        torch.random.fork_rng(devices=[]),
        threads_for(),
        _loading_errors(model),
        nothing_installed(model),
        verified_loading(model, target) as record,
    ):
        if tokenizer is None and (not directory.is_dir() or _has_tokenizer(directory)):
            bridge = _bridge().boot_transformers(str(directory), **options)
        else:
            bridge = _boot(str(directory), tokenizer, options)
    bridge.cfg.model_name = str(model)
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
    """The type asked for; None for that of the checkpoint."""
    if dtype is None or dtype == AUTO:
        return None
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in _DTYPES:
        raise ConfigError(f"Unknown dtype {dtype!r}. Use one of {', '.join((AUTO, *_DTYPES))}.")
    return _DTYPES[dtype]


def checkpoint_dtype(checkpoint: str | Path, revision: str | None = None) -> torch.dtype:
    """The floating type that a checkpoint's configuration names; float32 if it names none."""
    from transformers import PretrainedConfig

    # The file as it is: building a configuration may need code of the checkpoint's own.
    entries, _ = PretrainedConfig.get_config_dict(str(checkpoint), revision=revision)
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


def _wrap(model: Any, tokenizer: Any, options: Mapping[str, Any]) -> HookedModel:
    """A bridge around a Hugging Face model in memory."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise UnknownModelError(
            f"Cannot trace a {type(model).__name__}. Give a name, a directory, a Hugging Face "
            "model, a TransformerBridge or a HookedTransformer."
        )
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
        return _bridge().boot_transformers(path, tokenizer=copy, **options)


def _placeholder_tokenizer() -> Any:
    """A tokenizer for a bridge that would otherwise make a broken one up, or fail."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def _has_tokenizer(directory: Path) -> bool:
    return any((directory / name).exists() for name in _TOKENIZER_FILES)


def locate(name: str) -> str:
    """A directory to load from, or a hub name that the hub has confirmed.

    Raises:
        UnknownModelError: No directory with a model, and the hub has none of that name.
        HubUnreachableError: A hub name, not cached, and no connection.
    """
    if name == DEMO:
        return str(MODEL_DIR)
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").exists():
            raise UnknownModelError(
                f"The directory {name} holds no config.json. "
                "Give a model in Hugging Face layout (config.json, weights, tokenizer)."
            )
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise UnknownModelError(
            f"There is no directory {name}. Give an existing one, a hub name, or {DEMO!r}."
        )
    return _ask_hub(name)


def _ask_hub(name: str) -> str:
    """The name if the hub has it, the cached snapshot if the hub cannot be reached."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=_HUB_TIMEOUT)
        return name
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
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (401, 404):
            raise UnknownModelError(
                f"The hub has no model {name!r} that you may read. "
                f"Check the name, pass a directory, or use {DEMO!r}, which is embedded."
            ) from error
    except (OSError, OfflineModeIsEnabled, *_connection_errors()):
        pass
    try:
        return snapshot_download(name, local_files_only=True)
    except (LocalEntryNotFoundError, OSError) as error:
        raise HubUnreachableError(
            f"The model {name!r} is not on this machine and the hub cannot be reached. "
            f"Pass a directory that holds the model, or use {DEMO!r}, which is embedded."
        ) from error


def _connection_errors() -> list[type[Exception]]:
    """Connection failures of the HTTP clients that releases of huggingface_hub have used.

    Those of requests are OSErrors already.
    """
    clients = [name for name in ("httpx", "httpx2") if find_spec(name) is not None]
    return [import_module(name).HTTPError for name in clients]
