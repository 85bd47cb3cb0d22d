"""Storage: how results are saved, as JSON with a format version beside tensors in safetensors.

`TraceResult.save`, `ParetoFront.save`, `InteractionGrid.save`, `Explanation.save` and
`SideEffects.save` say what is saved; the files are written and read here. Nothing is pickled, so
opening a run from elsewhere executes nothing.

Every JSON file carries a digest of its entries, and holds the digests of the files it belongs
with: `result.json` that of the tensors, `curve.json` those of its runs, `pareto.json` that of
`curve.json`. Files of two saves, or a file that was changed, are refused when they are read.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import Tensor

from tracekit._util.files import digest_of, write_beside, write_csv
from tracekit.errors import ResultFormatError, ResultNotFoundError

FORMAT_VERSION = 3
DOCUMENT = "result.json"
TENSORS = "tensors.safetensors"
_TENSORS_DIGEST = "tensors_sha256"
_DIGEST = "sha256"


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    by_package = {"python": platform.python_version()}
    for package in ("tracekit", "torch", "transformer-lens", "transformers"):
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            by_package[package] = "unknown"
    return by_package


def write_run(
    folder: Path,
    entries: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    files: tuple[str, str] = (DOCUMENT, TENSORS),
) -> str:
    """Writes a run folder: `result.json` and `tensors.safetensors`.

    Each file is written beside its place and moved there.

    Args:
        folder: Made if it is missing.
        entries: What the document holds.
        tensors: What the file of tensors holds.
        files: Names of the document and of the file of tensors.

    Returns:
        The digest of the document.
    """
    from safetensors.torch import save

    document, of_tensors = files
    folder.mkdir(parents=True, exist_ok=True)
    content = save({name: value.contiguous() for name, value in tensors.items()})
    write_beside(folder / of_tensors, content)
    digest = hashlib.sha256(content).hexdigest()
    return write_document(folder / document, {_TENSORS_DIGEST: digest, **entries})


def read_run(
    folder: Path, digest: str | None = None, *, files: tuple[str, str] = (DOCUMENT, TENSORS)
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads a run folder that `write_run` wrote.

    Args:
        folder: The folder.
        digest: What `write_run` returned, where it is known.
        files: Names of the document and of the file of tensors.

    Raises:
        ResultNotFoundError: The folder holds no run.
        ResultFormatError: It was written in another format.
        ResultFormatError: A file is damaged or missing, or the files are not of one run.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    name, of_tensors = files
    document = read_document(folder, name, digest)
    try:
        content = (folder / of_tensors).read_bytes()
        if document.pop(_TENSORS_DIGEST, None) != hashlib.sha256(content).hexdigest():
            raise damaged(folder)
        return document, load(content)
    except (OSError, SafetensorError) as error:
        raise damaged(folder) from error


def write_document(path: Path, entries: Mapping[str, Any]) -> str:
    """Writes a JSON file with the format version and a digest of its entries; returns that."""
    entries = json.loads(json.dumps(entries, default=str))
    digest = digest_of(entries)
    document = {"format_version": FORMAT_VERSION, _DIGEST: digest, **entries}
    write_beside(path, (json.dumps(document, indent=1) + "\n").encode())
    return digest


def write_numbers(path: str | Path, result: Any) -> Path:
    """Writes a dataclass of names and tensors, and returns the path.

    Args:
        path: `.json` for all of its fields, or `.csv` for the table of its method `to_frame`.
        result: The dataclass.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        entries = {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in vars(result).items()
        }
        write_document(path, entries)
    else:
        write_csv(result.to_frame(), path)
    return path


def read_document(folder: Path, name: str, digest: str | None = None) -> dict[str, Any]:
    """Reads a JSON file of this format.

    Args:
        folder: The folder.
        name: Name of the file.
        digest: What `write_document` returned, where it is known.

    Raises:
        ResultNotFoundError: The folder has no such file.
        ResultFormatError: It is damaged or was changed, or is another than the one meant.
        ResultFormatError: It is of another format version.
    """
    path = folder / name
    if not path.is_file():
        raise ResultNotFoundError(
            f"The folder {folder} holds no {name}. Give a folder that a run was saved to."
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(folder) from error
    if not isinstance(document, dict):
        raise damaged(folder)
    format_version = document.pop("format_version", None)
    if format_version != FORMAT_VERSION:
        raise ResultFormatError(
            f"The run in {folder} has format version {format_version}; this tracekit reads version "
            f"{FORMAT_VERSION}. Open it with the tracekit that wrote it, or run it again."
        )
    written = document.pop(_DIGEST, None)
    if written != digest_of(document) or digest not in (None, written):
        raise damaged(folder)
    return document


def damaged(folder: Path) -> ResultFormatError:
    """The error for a saved run that cannot be read."""
    return ResultFormatError(
        f"The run in {folder} is damaged, was changed, or holds files of different runs. "
        "Run it again, or restore all of its files."
    )
