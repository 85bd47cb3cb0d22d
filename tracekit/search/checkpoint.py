"""A file that holds the work of a search, by which the same search goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialised
from torch import Tensor

from tracekit._util.files import hold_lock, json_digest, tensors_digest, write_atomically
from tracekit._util.options import as_path
from tracekit._util.warn import warn
from tracekit.errors import RecordWarning, ResultFormatError
from tracekit.search.targets import Target

_T = TypeVar("_T")
_FORMAT = 5
"""Of the tensors in the file; files of other formats belong to no search of this one."""


class SearchCheckpoint:
    """A file that holds the work of one search on one data set and model."""

    def __init__(self, path: Path, target: Target, config: Mapping[str, Any]) -> None:
        """Tries whether the file can be written; it is for this target and `config` only."""
        self._path = as_path("checkpoint", path)
        self._target = target
        settings = target.engine.config
        self._key = json_digest(
            {
                # With the values of the source: what was measured with others is of no use.
                "data": target.pairs.fingerprint,
                "components": target.registry.spec(),
                "metric": target.metric.name,
                "direction": target.metric.direction,
                "positions": settings.positions,
                "continuation_mean": settings.continuation_mean,
                "config": dict(config),
                "format": _FORMAT,
            }
        )
        # All ranks compute these here, together: later only one of them reads the file.
        clean = target.engine.clean
        log_probs = [clean.x] if clean.y is None else [clean.x, clean.y]
        # These tell models and metrics apart: the clean run, and effects of all components.
        self._proof = torch.stack([*(row.cpu() for row in log_probs), target.full_effects])
        target.engine.ranks.broadcast(self._check_writable)

    @contextmanager
    def in_use(self) -> Iterator[SearchCheckpoint]:
        """Keeps other searches, of this and of other processes, off the file."""
        with ExitStack() as lock:
            self._target.engine.ranks.broadcast(lambda: self._lock(lock))
            yield self

    def _lock(self, lock: ExitStack) -> None:
        try:
            lock.enter_context(hold_lock(self._path, wait=False))
        except BlockingIOError:
            raise self.error(
                "is in use by another search. Wait until that ends, or name another file."
            ) from None

    @property
    def exists(self) -> bool:
        """Whether there is such a file."""
        return self._target.engine.ranks.broadcast(self._path.exists)

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Writes the file, whole; one that cannot be written is a `RecordWarning` only."""
        if not self._target.engine.ranks.is_first:
            return
        tensors = {"proof": self._proof, **tensors}
        metadata = {"key": self._key, "sha256": tensors_digest(tensors)}
        try:
            write_atomically(self._path, serialised(tensors, metadata=metadata))
        except OSError as error:
            warn(
                f"The checkpoint {self._path} cannot be written ({error.strerror or error}). The "
                "search goes on without; if it is cut short, it starts from the last one written.",
                RecordWarning,
            )

    def load(self, read: Callable[[Mapping[str, Tensor]], _T]) -> _T:
        """What `read` makes of the tensors; refuses a file of another search, model or data set."""
        return self._target.engine.ranks.broadcast(lambda: self._load(read))

    def _load(self, read: Callable[[Mapping[str, Tensor]], _T]) -> _T:
        unreadable = self.error("cannot be read. Delete it to start afresh.")
        try:
            with safe_open(self._path, framework="pt") as file:
                metadata = file.metadata() or {}
                names = file.keys()
                tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise unreadable from error
        if metadata.get("sha256") != tensors_digest(tensors):
            raise unreadable
        if metadata.get("key") == self._key:
            try:
                # Another machine may round differently; another model or metric differs by more.
                is_same = torch.allclose(tensors["proof"], self._proof, rtol=1e-3, atol=1e-4)
                work = read(tensors)
            except (KeyError, ValueError, RuntimeError, TypeError) as error:
                raise unreadable from error
            if is_same:
                return work
        raise self.error(
            "is of another search, model or data set. Name another file, or delete it to start "
            "afresh."
        )

    def error(self, text: str) -> ResultFormatError:
        """The error of this file that a text says of it."""
        return ResultFormatError(f"The checkpoint {self._path} {text}")

    def _check_writable(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.is_dir():
                raise IsADirectoryError
            with TemporaryFile(dir=self._path.parent):
                pass
        except OSError as error:
            raise self.error("cannot be written. Name a file in a folder of yours.") from error
