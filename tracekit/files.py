"""Files: written beside their place and moved there, and digests of their content.

A file that a reader finds is a whole one: the old one, or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of what a spreadsheet takes as a formula."""


def write_beside(path: Path, content: bytes) -> None:
    """Writes a file beside its place and moves it there, so that it is never half written.

    Raises:
        OSError: The folder cannot be written to, or the disk is full. An old file stays as it was.
    """
    # Every process has a file of its own, whose name nobody can foresee.
    draft = NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)  # noqa: SIM115
    try:
        with draft:
            draft.write(content)
        # A temporary file is readable by its owner only.
        os.chmod(draft.name, 0o666 & ~_umask())
        os.replace(draft.name, path)
    except BaseException:
        os.unlink(draft.name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Writes a table as CSV; texts that a spreadsheet would run as formulas get a quote in front.

    Names come from files, and `=HYPERLINK(...)` may be one.
    """
    texts = frame.select_dtypes(include=["object", "string", "category"]).columns
    safe = frame.assign(**{str(column): frame[column].map(_without_formula) for column in texts})
    safe.to_csv(path, index=False)


def _without_formula(cell: object) -> object:
    is_formula = isinstance(cell, str) and cell[:1] in _FORMULA
    return f"'{cell}" if is_formula else cell


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes, types and values, the same in whatever order they are."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        # By its bytes: NumPy has no bfloat16.
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def digest_of(entries: Mapping[str, Any]) -> str:
    """SHA-256 of a mapping as JSON, the same in whatever order its entries are."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True, default=str).encode()).hexdigest()
