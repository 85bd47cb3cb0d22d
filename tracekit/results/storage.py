"""Storage: how results are saved, as JSON with a format version beside tensors in safetensors.

`TraceResult.save`, `ParetoFront.save` and `InteractionGrid.save` say what is saved; the files are
written and read here. Nothing is pickled, so opening a run from elsewhere executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from torch import Tensor

from tracekit.errors import FormatVersionError, ResultFormatError, ResultNotFoundError

FORMAT_VERSION = 2
DOCUMENT = "result.json"
TENSORS = "tensors.safetensors"
_DIGEST = "tensors_sha256"


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    by_package = {"python": platform.python_version()}
    for package in ("tracekit", "torch", "transformer-lens", "transformers"):
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            by_package[package] = "unknown"
    return by_package


def write_run(folder: Path, entries: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes a run folder: `result.json` and `tensors.safetensors`.

    Each file is written beside its place and moved there, and the document holds a hash of the
    tensors: a folder that was cut short over an older run is found out when it is read.
    """
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    content = save({name: value.contiguous() for name, value in tensors.items()})
    _replace(folder / TENSORS, content)
    digest = hashlib.sha256(content).hexdigest()
    write_document(folder / DOCUMENT, {_DIGEST: digest, **entries})


def read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads a run folder that `write_run` wrote.

    Raises:
        ResultNotFoundError: The folder holds no run.
        FormatVersionError: It was written in another format.
        ResultFormatError: A file is damaged or missing, or the two are not of one run.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    document = read_document(folder, DOCUMENT)
    try:
        content = (folder / TENSORS).read_bytes()
        if document.pop(_DIGEST, None) != hashlib.sha256(content).hexdigest():
            raise damaged(folder)
        return document, load(content)
    except (OSError, SafetensorError) as error:
        raise damaged(folder) from error


def _replace(path: Path, content: bytes) -> None:
    """Writes a file beside its place and moves it there, so that it is never half written."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as draft:
        draft.write(content)
    # A temporary file is readable by its owner only.
    os.chmod(draft.name, 0o666 & ~_umask())
    os.replace(draft.name, path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_document(path: Path, entries: Mapping[str, Any]) -> None:
    """Writes a JSON file with the format version."""
    document = {"format_version": FORMAT_VERSION, **entries}
    _replace(path, (json.dumps(document, indent=1, default=str) + "\n").encode())


def read_document(folder: Path, name: str) -> dict[str, Any]:
    """Reads a JSON file of this format.

    Raises:
        ResultNotFoundError: The folder has no such file.
        ResultFormatError: It is damaged.
        FormatVersionError: It is of another format version.
    """
    path = folder / name
    if not path.exists():
        raise ResultNotFoundError(
            f"The folder {folder} holds no {name}. Give a folder that a run was saved to."
        )
    try:
        document = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise damaged(folder) from error
    if not isinstance(document, dict):
        raise damaged(folder)
    format_version = document.pop("format_version", None)
    if format_version != FORMAT_VERSION:
        raise FormatVersionError(
            f"The run in {folder} has format version {format_version}; this tracekit reads version "
            f"{FORMAT_VERSION}. Open it with the tracekit that wrote it, or run it again."
        )
    return document


def damaged(folder: Path) -> ResultFormatError:
    """The error for a saved run that cannot be read."""
    return ResultFormatError(
        f"The run in {folder} is damaged or incomplete. Run it again, or restore "
        f"{DOCUMENT} and {TENSORS}."
    )
