"""Storage: JSON documents with a format version, beside tensors in safetensors files.

Nothing is pickled, so opening a run from elsewhere executes nothing.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tracekit.errors import FormatVersionError, ResultFormatError, ResultNotFoundError

FORMAT_VERSION = 2


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    by_package = {"python": platform.python_version()}
    for package in ("tracekit", "torch", "transformer-lens", "transformers"):
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            by_package[package] = "unknown"
    return by_package


def write_document(path: Path, entries: Mapping[str, Any]) -> None:
    """Writes a JSON file with the format version."""
    document = {"format_version": FORMAT_VERSION, **entries}
    path.write_text(json.dumps(document, indent=1, default=str) + "\n")


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
    except ValueError as error:
        raise damaged(folder) from error
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
        "result.json and tensors.safetensors."
    )
