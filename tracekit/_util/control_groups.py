"""Control groups: the cores and the memory that a container grants to this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MOUNTED, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where Linux mounts control groups, and where it names those of this process."""


def granted_cores(mounted: Path = MOUNTED, own: Path = OWN) -> int:
    """Whole cores, at least 1; very many if nothing limits them."""
    quotas = [sys.maxsize]
    for group in _groups("cpu", mounted, own):
        with suppress(OSError, ValueError):
            if (group / "cpu.max").exists():
                quota, period = map(int, (group / "cpu.max").read_text().split())
            else:
                quota, period = _numbers(group, "cpu.cfs_quota_us", "cpu.cfs_period_us")
            if quota > 0:
                quotas.append(max(1, quota // period))
    return min(quotas)


def granted_bytes(mounted: Path = MOUNTED, own: Path = OWN) -> int:
    """Memory that is left, files in the cache counted as free; very much if nothing limits it."""
    left = [sys.maxsize]
    for group in _groups("memory", mounted, own):
        is_new = (group / "memory.max").exists()
        with suppress(OSError, ValueError, KeyError):
            names = ("max", "current") if is_new else ("limit_in_bytes", "usage_in_bytes")
            limit, used = _numbers(group, *(f"memory.{name}" for name in names))
            lines = (group / "memory.stat").read_text().splitlines()
            cached = dict(line.split() for line in lines)["file" if is_new else "total_cache"]
            left.append(max(0, limit - used + int(cached)))
    return min(left)


def _numbers(group: Path, *names: str) -> list[int]:
    return [int((group / name).read_text()) for name in names]


def _groups(controller: str, mounted: Path, own: Path) -> Iterator[Path]:
    """Each control group above this process, of version 1 or 2."""
    with suppress(OSError):
        for line in own.read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = mounted / controller if controllers else mounted
            inner = root / path.lstrip("/")
            # In a container its own group is the root, and the path is the host's.
            for folder in (inner, *inner.parents):
                if folder == root or root in folder.parents:
                    yield folder
