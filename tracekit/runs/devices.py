"""Devices: each worker of a machine takes one of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from filelock import FileLock, Timeout

_worker_locks: dict[int, tuple[int, FileLock]] = {}
"""The number of each thread that is a worker, and its lock, held until the process ends."""


def device_for_worker(device: str | None, loading: Mapping[str, Any]) -> str | None:
    """A device for this thread that no other worker of this machine uses, if there are enough.

    The workers are those of all sweeps of the same user. With more workers than devices, devices
    are shared evenly. A device with a number, e.g. `cuda:1`, is kept; options of `load_model` that
    spread a model over devices leave every device to it.
    """
    if device not in (None, "cuda") or {"device_map", "n_devices"} & set(loading):
        return device
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return device if n_devices < 2 else f"cuda:{_worker_number() % n_devices}"


def _worker_number() -> int:
    """The smallest number that no other worker of this user and machine holds."""
    thread = get_ident()
    if thread in _worker_locks:
        return _worker_locks[thread][0]
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"tracekit-workers-{user}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    number = 0
    while True:  # The system lets go of a lock when the process ends, however that ends.
        lock = FileLock(folder / f"{number}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            number += 1
            continue
        except (NotImplementedError, OSError):
            return 0  # Without locks, all workers take the first device.
        _worker_locks[thread] = number, lock
        return number
