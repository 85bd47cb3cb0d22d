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


def renamed(
    result: TraceResult,
    *,
    metric: str | None = None,
    dataset: str | None = None,
    model: str | None = None,
    **facts: Any,
) -> TraceResult:
    """A result of other names: of its metric, data and model, and facts such as its `method`."""
    metric, dataset = metric or str(result.setup.metric), dataset or result.dataset
    return replace(
        result,
        setup=replace(result.setup, metric=metric),
        run=replace(result.run, **facts),
        searched=replace(result.searched, metric=metric, dataset=dataset),
        model=model or result.model,
    )
