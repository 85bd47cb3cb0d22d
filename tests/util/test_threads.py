"""How many threads a pass runs on, and that they are the user's afterwards."""

import os

import pytest
import torch

from tracekit._util import threads
from tracekit.models.hooked import freeze


@pytest.fixture
def two_threads(monkeypatch):
    """Torch's own choice on a machine of two cores, whatever this one has."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_AT_IMPORT", 2)
    monkeypatch.setattr(threads, "_count_available_cores", lambda: 2)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def within(width):
    with threads.limit_threads(width):
        return torch.get_num_threads()


def test_threads_small_model_runs_on_one_thread_and_restores_them(two_threads):
    assert within(128) == 1
    assert within(768) == within(None) == 2
    assert torch.get_num_threads() == 2


def test_threads_are_restored_after_an_error(two_threads):
    with pytest.raises(KeyError), threads.limit_threads(8):
        raise KeyError
    assert torch.get_num_threads() == 2


def test_threads_passes_of_a_small_model_are_on_one(two_threads, model):
    with freeze(model):
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
    with threads.limit_threads(8):
        assert within(768) == 1


def test_threads_set_before_the_import_are_the_users(two_threads, monkeypatch):
    monkeypatch.setattr(threads, "_AT_IMPORT", 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    torch.set_num_threads(3)
    assert within(8) == 3


def test_threads_usable_cores_by_affinity_and_quota(monkeypatch):
    monkeypatch.setattr(threads, "_count_available_cores", lambda: 3)
    monkeypatch.setattr(threads, "cgroup_cores", lambda: 8)
    assert threads.usable_cores() == 3
    monkeypatch.setattr(threads, "cgroup_cores", lambda: 1)
    assert threads.usable_cores() == 1
