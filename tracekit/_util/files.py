"""Writes files to a temporary name and renames them; computes digests of their content."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from tracekit._util.deferred import pd

_LOCK = ".lock"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of what a spreadsheet takes as a formula."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Writes a temporary file and renames it, so that the file is never half written.

    Makes its folder if needed. A question mark replaces characters that UTF-8 cannot encode.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        # A device such as /dev/stdout is written to, not replaced.
        path.write_bytes(content)
        return
    remove_abandoned(path.parent)
    # Each process writes its own file, whose name cannot be guessed.
    handle, draft = tempfile.mkstemp(f"-{os.getpid()}", _draft_prefix(path), path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(content)
        # A temporary file is readable by its owner only.
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


@contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """Makes a folder beside a path, to be renamed to it; removes it if it was not renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    draft = Path(tempfile.mkdtemp(f"-{os.getpid()}", _draft_prefix(path), path.parent))
    try:
        os.chmod(draft, 0o777 & ~_umask())
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def marker_file(folder: Path) -> Iterator[Path]:
    """Keeps a hidden empty file in a folder for the length of the block."""
    prefix = _draft_prefix(folder / "marker")
    handle, path = tempfile.mkstemp(f"-{os.getpid()}", prefix, folder)
    os.close(handle)
    try:
        os.chmod(path, 0o666 & ~_umask())
        yield Path(path)
    finally:
        with suppress(OSError):
            os.unlink(path)


def remove_abandoned(folder: Path) -> None:
    """Removes the drafts in a folder that killed processes of this machine left."""
    for draft in folder.glob(f".*-{glob.escape(socket.gethostname())}-*"):
        process = draft.name.rpartition("-")[2]
        if not process.isdecimal() or _is_running(int(process)):
            continue
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            with suppress(OSError):
                draft.unlink()


def _draft_prefix(path: Path) -> str:
    # Names of files have at most 255 bytes.
    return f".{path.name[:20]}-{socket.gethostname()}-"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


@contextmanager
def hold_lock(path: Path, *, wait: bool | float = True) -> Iterator[None]:
    """Holds the lock of a path for the block; other processes and threads wait or fail.

    The lock is a hidden file beside the path, released when its process ends; some systems have
    none. After `wait` seconds, or at once if `wait` is False, a `BlockingIOError` is raised.
    """
    lock = FileLock(path.with_name(f".{path.name}{_LOCK}"))
    try:
        lock.acquire(timeout=-1 if wait is True else float(wait))
    except Timeout:
        raise BlockingIOError(errno.EWOULDBLOCK, "It is in use", str(path)) from None
    except (NotImplementedError, OSError):
        # Without a lock, two processes may do the same work; each still writes whole files.
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            # Remove the file while the lock is held: a process that waits then makes a new one.
            with suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release()


def remove_leftovers(folder: Path) -> None:
    """Removes the drafts in a folder that killed processes left, and locks that nobody holds."""
    remove_abandoned(folder)
    for path in folder.glob(f".*{_LOCK}"):
        locked_path = path.with_name(path.name[1 : -len(_LOCK)])
        with suppress(BlockingIOError), hold_lock(locked_path, wait=False):
            pass


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Writes a table as CSV; a quote keeps spreadsheets from running texts as formulas."""
    texts = frame.select_dtypes(include=["object", "string", "category"]).columns
    safe = frame.assign(**{str(column): frame[column].map(_escape_formula) for column in texts})
    write_atomically(path, safe.to_csv(index=False, lineterminator="\n"))


def _escape_formula(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in _FORMULA else cell


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes, types and values, whatever the order of the tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        # Hash the bytes, because NumPy has no bfloat16.
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def json_digest(entries: Mapping[str, Any]) -> str:
    """SHA-256 of a mapping as JSON, whatever the order of its entries."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True, default=str).encode()).hexdigest()
