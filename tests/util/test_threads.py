"""How many threads a pass runs on, and that they are the user's afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tracekit._util import threads
from tracekit.models.hooked import frozen


@pytest.fixture
def two_threads(monkeypatch):
    """Torch's own choice on a machine of two cores, whatever this one has."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_AT_IMPORT", 2)
    monkeypatch.setattr(threads, "_affinity", lambda: 2)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def within(width):
    with threads.threads_for(width):
        return torch.get_num_threads()


def test_threads_small_model_runs_on_one_thread_and_restores_them(two_threads):
    assert within(128) == 1
    assert within(768) == within(None) == 2
    assert torch.get_num_threads() == 2


def test_threads_are_restored_after_an_error(two_threads):
    with pytest.raises(KeyError), threads.threads_for(8):
        raise KeyError
    assert torch.get_num_threads() == 2


def test_threads_passes_of_a_small_model_are_on_one(two_threads, model):
    with frozen(model):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_threads_within_a_quota(two_threads, monkeypatch):
    monkeypatch.setattr(threads, "usable_cores", lambda: 1)
    assert within(768) == 1
    assert threads.allowed_threads() == 1


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_threads_environment_variables_are_respected(two_threads, monkeypatch, name):
    monkeypatch.setenv(name, "2")
    monkeypatch.setattr(threads, "usable_cores", lambda: 1)
    assert within(8) == 2
    assert threads.allowed_threads() == 2


def test_threads_of_the_user_are_respected(two_threads):
    torch.set_num_threads(3)
    assert within(8) == within(768) == 3
    assert threads.allowed_threads() == 3


def test_threads_of_an_outer_block_hold(two_threads):
    with threads.threads_for(8):
        assert within(768) == 1


def test_threads_set_before_the_import_are_the_users(two_threads, monkeypatch):
    monkeypatch.setattr(threads, "_AT_IMPORT", 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    torch.set_num_threads(3)
    assert within(8) == 3


GROUPS = {
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
    "no quota": ("0::/", {"cpu.max": "max 100000"}, 8),
    "version 1, no quota": (
        "4:cpu:/",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        8,
    ),
    "unreadable": ("0::/", {"cpu.max": "nonsense"}, 8),
    "below one core": ("0::/", {"cpu.max": "50000 100000"}, 1),
}


@pytest.mark.parametrize(("own", "files", "expected"), GROUPS.values(), ids=GROUPS)
def test_threads_usable_cores_by_control_group(tmp_path, monkeypatch, own, files, expected):
    monkeypatch.setattr(threads, "_affinity", lambda: 8)
    named = tmp_path / "own"
    named.write_text(own + "\n")
    for name, text in files.items():
        file = tmp_path / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert threads.usable_cores(tmp_path / "groups", named) == expected


def test_threads_usable_cores_by_affinity(monkeypatch):
    monkeypatch.setattr(threads, "_affinity", lambda: 3)
    assert threads.usable_cores(Path("/nowhere"), Path("/nowhere")) == 3


def test_threads_parked_thread_lets_the_program_end():
    code = "from tracekit._util import threads; threads._sleep_soon(2); print('done')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, text=True)
    assert (ran.returncode, ran.stdout) == (0, "done\n")
