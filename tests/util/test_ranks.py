"""Several processes that share a trace, against one process alone."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tracekit._util import ranks as ranks_module
from tracekit._util.ranks import Ranks
from tracekit.errors import WorkerError

WAIT = 240
"""Seconds that processes get to end."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def started(count: int, *command: str) -> list[subprocess.Popen]:
    """One process for each rank, told of the others as a launcher tells it."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            [sys.executable, "-m", *command],
            env={
                **os.environ,
                **address,
                "WORLD_SIZE": str(count),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def ended(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    """Exit code, output and messages of each."""
    answers = []
    for process in processes:
        output, messages = process.communicate(timeout=WAIT)
        answers.append((process.returncode, output, messages))
    return answers


def answers_of(job: str, count: int, folder: Path) -> list[dict]:
    """What each of so many ranks answers."""
    file = folder / f"{job}-{count}"
    outcomes = ended(started(count, "tests.rank_jobs", job, str(file)))
    assert [code for code, _, _ in outcomes] == [0] * count, outcomes[0][2][-2000:]
    return [json.loads(file.with_suffix(f".{rank}").read_text()) for rank in range(count)]


class TestAlone:
    """One process needs no others."""

    def test_a_single_rank_does_everything_itself(self):
        ranks = Ranks.current()
        assert (ranks.rank, ranks.count, ranks.is_first) == (0, 1, True)
        items = torch.arange(7)
        assert ranks.take_share(items).tolist() == items.tolist()
        part = torch.rand(3)
        assert ranks.sum_ranks(part)[0] is part
        assert ranks.broadcast(lambda: 5) == 5
        ranks.check_same(anything=1)

    def test_parts_of_several_make_the_whole(self):
        items = torch.arange(23)
        parts = [Ranks(rank, 4).take_share(items).tolist() for rank in range(4)]
        assert sorted(item for part in parts for item in part) == items.tolist()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1

    def test_a_launcher_names_the_device(self, monkeypatch):
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        assert ranks_module.launched_device() is None
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert ranks_module.launched_device() is None
        for rank, device in (("0", "cuda:0"), ("1", "cuda:1"), ("2", "cuda:0")):
            monkeypatch.setenv("LOCAL_RANK", rank)
            assert ranks_module.launched_device() == device


@pytest.mark.slow
class TestSharing:
    """Two and three processes answer as one does."""

    @pytest.fixture(scope="class")
    def alone(self, tmp_path_factory) -> dict:
        return answers_of("searches", 1, tmp_path_factory.mktemp("alone"))[0]

    @pytest.mark.soak
    @pytest.mark.parametrize(
        ("job", "count"),
        [
            ("searches", 2),
            pytest.param("searches", 3, marks=pytest.mark.soak),
            pytest.param("bounded", 2, marks=pytest.mark.soak),
        ],
    )
    def test_every_search_selects_the_same(self, alone, job, count, tmp_path):
        first, *others = answers_of(job, count, tmp_path)
        assert all(other == first for other in others)
        assert first.keys() == alone.keys()
        for name, expected in alone.items():
            if isinstance(expected, dict):
                found = first[name]
                for key in ("components", "forward", "backward"):
                    assert found[key] == expected[key], (name, key)
                effects = torch.tensor([found["effects"], expected["effects"]])
                torch.testing.assert_close(*effects, rtol=1e-5, atol=5e-6)
                torch.testing.assert_close(*effects.mean(1), rtol=2e-6, atol=1e-7)
            elif name in ("front", "kept"):
                assert first[name] == expected
            else:
                found = torch.tensor([first[name], expected])
                torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6, equal_nan=True)

    @pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.soak)])
    def test_with_few_examples_they_share_the_sets_out(self, count, tmp_path):
        (alone,) = answers_of("sets", 1, tmp_path)
        together = answers_of("sets", count, tmp_path)
        assert alone["measured"] == [66, 66]
        assert sum(answer["measured"][0] for answer in together) == 66
        assert max(answer["measured"][0] for answer in together) == 66 // count
        for answer in together:
            for name in ("effects", "part"):
                found, expected = torch.tensor(answer[name]), torch.tensor(alone[name])
                torch.testing.assert_close(found, expected, rtol=1e-5, atol=5e-6)

    @pytest.mark.soak
    def test_ranks_give_the_same_results_again(self, tmp_path):
        once = answers_of("front", 2, tmp_path)
        assert answers_of("front", 2, tmp_path) == once


@pytest.mark.slow
class TestRefusals:
    """Ranks that do not fit together."""

    @pytest.mark.soak
    @pytest.mark.parametrize(
        ("job", "text"),
        [
            (
                "different",
                r"The ranks of this trace differ in data set: rank 0 has pairs \(\w+\), rank 1 has "
                r"pairs \(\w+\). Start all of them with the same command, data and version.",
            ),
            ("few", "2 processes share 1 examples. Start at most as many processes as there are"),
        ],
    )
    def test_wrong_input_is_refused_on_all_ranks(self, job, text, tmp_path):
        for code, _, messages in ended(started(2, "tests.rank_jobs", job, str(tmp_path / "x"))):
            assert code == 1, messages[-1500:]
            assert re.search(text, " ".join(messages.split())), messages[-1500:]
            assert "WorkerError" in messages


@pytest.mark.slow
class TestEnding:
    """A process that is killed or interrupted."""

    @pytest.mark.soak
    @pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.soak)])
    def test_a_killed_rank_ends_the_others_and_the_search_goes_on(self, victim, tmp_path):
        whole = answers_of("checkpointed", 2, self._folder(tmp_path, "whole"))[0]
        file = self._folder(tmp_path, "part") / "checkpointed-2"
        processes = started(2, "tests.rank_jobs", "checkpointed", str(file))
        self._wait_for(file.with_suffix(".started").exists)
        processes[victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        code, _, messages = ended([processes[1 - victim]])[0]
        assert time.monotonic() - killed < 30
        assert code not in (0, -signal.SIGKILL)
        assert "WorkerError: Another process of this trace has ended or cannot be" in messages
        processes[victim].communicate(timeout=WAIT)
        resumed = answers_of("checkpointed", 2, file.parent)
        assert resumed == [whole, whole]

    @pytest.mark.soak
    @pytest.mark.parametrize(
        ("job", "held"),
        [("full", "[False]"), ("script", "[False]"), ("again", "[False, False]")],
    )
    def test_nothing_holds_the_group_when_python_ends(self, tmp_path, job, held):
        """One of its threads might still hold a tensor then, which aborts the process."""
        for code, _, messages in ended(started(2, "tests.rank_jobs", job, str(tmp_path / job))):
            assert (code, "Traceback" in messages) == (0, False), messages[-1500:]
        for rank in (0, 1):
            assert (tmp_path / f"{job}.held-{rank}").read_text() == held

    def test_a_process_may_join_others_again(self, tmp_path):
        assert answers_of("again", 2, tmp_path) == [{"sum": 2.0, "is another": True}] * 2

    @pytest.mark.soak
    @pytest.mark.parametrize("count", [2, 3])
    def test_at_random_moments_too(self, count, tmp_path):
        """Five kills of one of two ranks, and of three, at any moment from joining to the end."""
        began = time.monotonic()
        wholes = answers_of("checkpointed", count, self._folder(tmp_path, "whole"))
        longest = time.monotonic() - began
        moments = random.Random(count)
        for number in range(5):
            file = self._folder(tmp_path, f"part-{number}") / f"checkpointed-{count}"
            processes = started(count, "tests.rank_jobs", "checkpointed", str(file))
            victim, moment = moments.randrange(count), moments.uniform(0, longest)
            joined = [file.with_suffix(f".joined-{rank}") for rank in range(count)]
            self._wait_for(lambda files=joined: all(path.exists() for path in files))
            self._wait_until(time.monotonic() + moment, processes)
            processes[victim].send_signal(signal.SIGKILL)
            killed = time.monotonic()
            others = [process for process in processes if process is not processes[victim]]
            outcomes = ended(others)
            assert time.monotonic() - killed < 30
            processes[victim].communicate(timeout=WAIT)
            for code, _, messages in outcomes:
                # What was killed after its last word is missed by nobody.
                if code != 0:
                    assert "WorkerError: Another process of this trace has ended" in messages
            assert answers_of("checkpointed", count, file.parent) == wholes

    @staticmethod
    def _wait_until(moment: float, processes: list[subprocess.Popen]) -> None:
        """Until then, or until all have ended."""
        while time.monotonic() < moment and any(each.poll() is None for each in processes):
            time.sleep(0.02)

    def test_ctrl_c_on_one_rank_ends_all_with_the_best_so_far(self, tmp_path):
        file = tmp_path / "checkpointed-2"
        processes = started(2, "tests.rank_jobs", "checkpointed", str(file))
        self._wait_for(file.with_suffix(".started").exists)
        processes[1].send_signal(signal.SIGINT)
        outcomes = ended(processes)
        assert [code for code, _, _ in outcomes] == [0, 0], outcomes[0][2][-1500:]
        answers = [json.loads(file.with_suffix(f".{rank}").read_text()) for rank in (0, 1)]
        assert answers[0] == answers[1]
        assert answers[0]["stopped"] == "interrupted"

    @staticmethod
    def _folder(folder: Path, name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    @staticmethod
    def _wait_for(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.slow
class TestCommandLine:
    """`tracekit` under a launcher."""

    @pytest.mark.soak
    def test_only_the_first_rank_prints_and_writes(self, tmp_path):
        command = ["tracekit", "trace", "--model", "demo", "--dataset", "demo-bias"]
        command += ["--method", "top-k", "--budget", "3"]
        alone = tmp_path / "alone"
        ((code, printed, messages),) = ended(started(1, *command, "--output", str(alone)))
        assert code == 0, messages
        shared = tmp_path / "shared"
        first, second = ended(started(2, *command, "--output", str(shared)))
        assert (first[0], second[0]) == (0, 0), first[2] + second[2]
        assert second[1] == ""
        table = printed.replace(str(alone), str(shared)).splitlines()
        assert first[1].splitlines()[:5] == table[:5]
        import tracekit as tk

        one, two = (tk.TraceResult.load(folder / "top-k-3") for folder in (alone, shared))
        assert one.components == two.components
        torch.testing.assert_close(one.per_example, two.per_example, rtol=1e-5, atol=1e-6)


def test_a_lost_process_is_one_clear_error(monkeypatch):
    def lost(*_, **__):
        raise RuntimeError("[../third_party/gloo] Connection closed by peer")

    monkeypatch.setattr(torch.distributed, "all_reduce", lost)
    with pytest.raises(WorkerError, match="Another process of this trace has ended or cannot be"):
        Ranks(0, 2).sum_ranks(torch.zeros(1))
