"""Control groups: the limits of containers, in files as Linux writes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tracekit._util.threads import cgroup_cores, cgroup_free_bytes

CORES = {
    "version 2": ("0::/pod", {"pod/cpu.max": "150000 100000"}, 1),
    "version 2, of a parent": (
        "0::/a/b",
        {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 1"},
        3,
    ),
    "version 2, path of the host": ("0::/host/x", {"cpu.max": "200000 100000"}, 2),
    "version 1": (
        "4:cpu,cpuacct:/pod\n3:memory:/pod",
        {"cpu/pod/cpu.cfs_quota_us": "200000", "cpu/pod/cpu.cfs_period_us": "100000"},
        2,
    ),
    "no quota": ("0::/", {"cpu.max": "max 100000"}, sys.maxsize),
    "version 1, no quota": (
        "4:cpu:/",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        sys.maxsize,
    ),
    "unreadable": ("0::/", {"cpu.max": "nonsense"}, sys.maxsize),
    "below one core": ("0::/", {"cpu.max": "50000 100000"}, 1),
}


MEMORY = {
    "version 2": (
        "0::/pod",
        {
            "pod/memory.max": "1000",
            "pod/memory.current": "700",
            "pod/memory.stat": "anon 500\nfile 200",
        },
        500,
    ),
    "version 2, of a parent": (
        "0::/a/b",
        {
            "a/memory.max": "800",
            "a/memory.current": "300",
            "a/memory.stat": "file 0",
            "a/b/memory.max": "max",
        },
        500,
    ),
    "version 1": (
        "4:cpu:/\n3:memory:/pod",
        {
            "memory/pod/memory.limit_in_bytes": "1000",
            "memory/pod/memory.usage_in_bytes": "900",
            "memory/pod/memory.stat": "cache 1\ntotal_cache 300",
        },
        400,
    ),
    "over its limit": (
        "0::/",
        {"memory.max": "10", "memory.current": "20", "memory.stat": "file 0"},
        0,
    ),
    "no limit": ("0::/", {"memory.max": "max", "memory.current": "20"}, sys.maxsize),
    "unreadable": ("0::/", {"memory.max": "nonsense"}, sys.maxsize),
}


def write(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    (folder / "own").write_text(own + "\n")
    for name, text in files.items():
        file = folder / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return folder / "groups", folder / "own"


@pytest.mark.parametrize(("own", "files", "expected"), CORES.values(), ids=CORES)
def test_control_groups_cores(tmp_path, own, files, expected):
    assert cgroup_cores(*write(tmp_path, own, files)) == expected


@pytest.mark.parametrize(("own", "files", "expected"), MEMORY.values(), ids=MEMORY)
def test_control_groups_memory(tmp_path, own, files, expected):
    assert cgroup_free_bytes(*write(tmp_path, own, files)) == expected


def test_control_groups_where_there_are_none():
    assert cgroup_cores(Path("/nowhere"), Path("/nowhere")) == sys.maxsize
