"""Threads of torch, as many as the work needs and the process may use.

The threads of one operation wait for each other, which makes small models ten times slower beside
one busy program. So a small model runs on one thread, a larger one on the usable cores, unless
OMP_NUM_THREADS, MKL_NUM_THREADS or `torch.set_num_threads` was set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

_AT_IMPORT = torch.get_num_threads()
_SMALL = 384
"""Width of the residual stream below which a second thread gains next to nothing."""


def usable_cores() -> int:
    """Cores that this process may use, by its affinity and by a container's quota; at least 1."""
    return max(1, min(_count_available_cores(), cgroup_cores()))


def _count_available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def allowed_threads() -> int:
    """Threads that the user set for torch; else torch's default, within the usable cores."""
    current = torch.get_num_threads()
    return current if _is_user_choice() else min(current, usable_cores())


@contextmanager
def limit_threads(width: int | None = None) -> Iterator[None]:
    """Limits torch within the block to the threads that a model of this width needs."""
    before = torch.get_num_threads()
    if _is_user_choice():
        yield
        return
    count = 1 if width is not None and width < _SMALL else min(before, usable_cores())
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def _is_user_choice() -> bool:
    """Whether the user, or a block around this one, chose the number of threads."""
    if any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")):
        return True
    cores = (os.cpu_count() or 1, _count_available_cores())
    # By default torch takes all cores, or one of two hyperthreads.
    by_itself = {share for number in cores for share in (number, max(1, number // 2))}
    return torch.get_num_threads() != _AT_IMPORT or _AT_IMPORT not in by_itself


CGROUP_ROOT, PROCESS_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where Linux mounts control groups, and where it names those of this process."""


def cgroup_cores(mounted: Path = CGROUP_ROOT, own: Path = PROCESS_CGROUPS) -> int:
    """Whole cores that control groups allow, at least 1; `sys.maxsize` without a limit."""
    quotas = [sys.maxsize]
    for group in _control_groups("cpu", mounted, own):
        with suppress(OSError, ValueError):
            if (group / "cpu.max").exists():
                quota, period = map(int, (group / "cpu.max").read_text().split())
            else:
                quota, period = _read_numbers(group, "cpu.cfs_quota_us", "cpu.cfs_period_us")
            if quota > 0:
                quotas.append(max(1, quota // period))
    return min(quotas)


def cgroup_free_bytes(mounted: Path = CGROUP_ROOT, own: Path = PROCESS_CGROUPS) -> int:
    """Free bytes that control groups allow, with cached files; `sys.maxsize` without a limit."""
    left = [sys.maxsize]
    for group in _control_groups("memory", mounted, own):
        is_new = (group / "memory.max").exists()
        with suppress(OSError, ValueError, KeyError):
            names = ("max", "current") if is_new else ("limit_in_bytes", "usage_in_bytes")
            limit, used = _read_numbers(group, *(f"memory.{name}" for name in names))
            lines = (group / "memory.stat").read_text().splitlines()
            cached = dict(line.split() for line in lines)["file" if is_new else "total_cache"]
            left.append(max(0, limit - used + int(cached)))
    return min(left)


def _read_numbers(group: Path, *names: str) -> list[int]:
    return [int((group / name).read_text()) for name in names]


def _control_groups(controller: str, mounted: Path, own: Path) -> Iterator[Path]:
    """Each control group above this process, of version 1 or 2."""
    with suppress(OSError):
        for line in own.read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = mounted / controller if controllers else mounted
            inner = root / path.lstrip("/")
            # In a container, its own group is mounted as the root, and the path is the host's.
            for folder in (inner, *inner.parents):
                if folder == root or root in folder.parents:
                    yield folder
