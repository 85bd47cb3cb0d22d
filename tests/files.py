"""Saved files with other contents, whose digests fit: as a stranger may write them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from tracekit.results.result import TraceResult
from tracekit.results.storage import read_document, write_document


def rewrite(
    path: Path,
    change: Callable[[dict[str, Any], dict[str, Tensor]], object],
) -> None:
    """Changes a document and the tensors beside it, if there are any, in place."""
    document: dict[str, Any] = read_document(path)
    beside = path.with_suffix(".safetensors")
    tensors = safetensors.torch.load(beside.read_bytes()) if beside.exists() else {}
    change(document, tensors)
    if beside.exists():
        content = safetensors.torch.save({n: each.contiguous() for n, each in tensors.items()})
        beside.write_bytes(content)
        document["tensors_sha256"] = hashlib.sha256(content).hexdigest()
    write_document(path, document)


def renamed(result: TraceResult, *, metric: str | None = None, **facts: Any) -> TraceResult:
    """A result with other facts of its run, such as `method` or `title`, or another metric."""
    setup = result.setup if metric is None else replace(result.setup, metric=metric)
    return replace(result, setup=setup, run=replace(result.run, **facts))
