"""Worker processes, locks and drafts: whoever is killed, nothing stays and nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import psutil
import pytest

import tracekit as tk
from tests import light_jobs, tiny
from tests.processes import Command
from tracekit._util import files
from tracekit._util.processes import WorkerProcesses
from tracekit.engine.engine import Engine
from tracekit.errors import ResultFormatError
from tracekit.runs import worker
from tracekit.runs.jobs import Job, ModelSource, RunEnvironment
from tracekit.runs.worker import Worker

ROOT = Path(__file__).resolve().parent.parent


def workers(processes=2):
    return WorkerProcesses(processes, start=light_jobs.start, arguments=("did ",))


def work(*items, processes=2):
    with workers(processes) as pool:
        return list(pool.map(light_jobs.work, items))


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def gone(numbers):
    def is_gone(number):
        try:
            return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(map(is_gone, numbers))


class TestWorkers:
    def test_every_worker_is_started_with_the_arguments(self):
        assert work("a", "b", "c") == ["did a", "did b", "did c"]

    def test_workers_leave_the_signals_of_a_terminal_to_their_parent(self):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        [held_back] = work("signals", processes=1)
        assert set(held_back.split()) == {"SIGHUP", "SIGINT", "SIGTERM"}
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before

    def test_an_error_of_a_worker_is_raised_here(self):
        with pytest.raises(ValueError, match="it failed"):
            work("a", "fail")

    def test_a_worker_that_is_killed_is_an_error(self):
        with pytest.raises(BrokenProcessPool):
            work("die", processes=1)

    def test_leaving_ends_workers_in_the_middle_of_their_work(self, tmp_path):
        busy = tmp_path / "busy"
        with workers() as pool:
            assert pool.submit(light_jobs.work, "a").result() == "did a"
            pool.submit(light_jobs.work, str(busy))
            wait_for(lambda: busy.exists() and busy.read_text())
            number = int(busy.read_text())
            assert psutil.pid_exists(number)
            start = time.monotonic()
        assert time.monotonic() - start < 5
        assert gone([number])

    @pytest.mark.pairwise
    @pytest.mark.parametrize(
        ("stop", "group"),
        [
            (signal.SIGKILL, False),
            (signal.SIGTERM, False),
            (signal.SIGINT, False),
            (signal.SIGINT, True),
        ],
    )
    def test_workers_end_with_their_parent(self, tmp_path, stop, group):
        busy = [tmp_path / "one", tmp_path / "two"]
        with open(tmp_path / "log", "w") as log:
            parent = subprocess.Popen(
                [sys.executable, "-m", "tests.light_jobs", *map(str, busy)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_for(lambda: all(path.exists() and path.read_text() for path in busy))
            numbers = [int(path.read_text()) for path in busy]
            (os.killpg if group else os.kill)(parent.pid, stop)
            # A machine that does much else is slow; commands are held to 5 s below.
            wait_for(lambda: gone(numbers), seconds=30)
            parent.wait(30)
        finally:
            parent.kill()
        log_text = (tmp_path / "log").read_text()
        assert "Traceback" not in log_text
        assert ("stopped" in log_text) == (stop == signal.SIGINT)


class TestDrafts:
    def killed(self) -> int:
        """The number of a process that has ended."""
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        return ended.pid

    def test_drafts_of_killed_processes_are_removed_by_the_next_write(self, tmp_path):
        machine, ended = socket.gethostname(), self.killed()
        (tmp_path / f".front.ckpt-{machine}-abc-{ended}").write_text("half of it")
        (tmp_path / f".0123-{machine}-{ended}").mkdir()
        kept = [f".a-{machine}-x-{os.getppid()}", f".a-elsewhere-x-{ended}", f"a-{machine}-{ended}"]
        for name in kept:
            (tmp_path / name).write_text("of a process at work, of another machine, of a user")
        files.write_atomically(tmp_path / "file", b"content")
        assert {path.name for path in tmp_path.iterdir()} == {"file", *kept}

    @pytest.mark.slow
    def test_a_kill_in_the_middle_of_writing_leaves_the_old_file(self, tmp_path):
        path = tmp_path / "file"
        path.write_text("old")
        script = (
            "import os, sys; from pathlib import Path; from tracekit._util import files;"
            "os.replace = lambda *given: os.kill(os.getpid(), 9);"
            "files.write_atomically(Path(sys.argv[1]), b'new')"
        )
        done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert path.read_text() == "old"
        assert len(list(tmp_path.iterdir())) == 2
        files.write_atomically(path, b"newer")
        assert path.read_text() == "newer"
        assert list(tmp_path.iterdir()) == [path]

    def test_names_as_long_as_the_system_allows(self, tmp_path):
        path = tmp_path / ("ü" * 127)
        files.write_atomically(path, b"content")
        assert list(tmp_path.iterdir()) == [path]

    def test_devices_and_links_stay_what_they_are(self, tmp_path):
        pipe, link = tmp_path / "pipe", tmp_path / "link"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        files.write_atomically(pipe, b"content")
        assert os.read(reader, 100) == b"content"
        os.close(reader)
        assert pipe.is_fifo()
        link.symlink_to(tmp_path / "file")
        files.write_atomically(link, b"content")
        assert link.is_symlink()
        assert (tmp_path / "file").read_bytes() == b"content"


class TestLocks:
    def test_two_never_hold_a_lock(self, tmp_path):
        path, held = tmp_path / "path", []

        def hold():
            for _ in range(20):
                with files.hold_lock(path):
                    held.append(1)
                    assert len(held) == 1
                    time.sleep(0.001)
                    held.pop()

        threads = [threading.Thread(target=hold) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not held
        assert not list(tmp_path.iterdir())
        with (
            files.hold_lock(path),
            pytest.raises(BlockingIOError),
            files.hold_lock(path, wait=False),
        ):
            pass

    @pytest.mark.slow
    def test_a_lock_ends_with_its_process(self, tmp_path):
        script = (
            "import os, sys; from pathlib import Path; from tracekit._util import files\n"
            "with files.hold_lock(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", script, str(tmp_path / "path")], check=False)
        assert [path.name for path in tmp_path.iterdir()] == [".path.lock"]
        with files.hold_lock(tmp_path / "other"):
            files.remove_leftovers(tmp_path)
            assert [path.name for path in tmp_path.iterdir()] == [".other.lock"]
        assert not list(tmp_path.iterdir())

    def test_a_file_system_without_locks_has_none(self, tmp_path, monkeypatch):
        import filelock

        def fail(self, **options):
            raise NotImplementedError

        monkeypatch.setattr(filelock.FileLock, "acquire", fail)
        with files.hold_lock(tmp_path / "path"), files.hold_lock(tmp_path / "path", wait=False):
            pass

    def test_a_checkpoint_is_of_one_search_at_a_time(self, model, tmp_path):
        file = tmp_path / "front.ckpt"

        def search():
            tracer = tk.Tracer(model, tiny.pairs(6, seed=3))
            return tracer.pareto(statistics=False, max_passes=40, checkpoint=file)

        text = "front.ckpt is in use by another search. Wait until that ends, or name another file."
        with files.hold_lock(file), pytest.raises(ResultFormatError, match=text):
            search()
        assert not file.exists()
        search()
        assert list(tmp_path.iterdir()) == [file]

    def test_a_search_holds_its_checkpoint(self, model, tmp_path, monkeypatch):
        file, measured, refused = tmp_path / "front.ckpt", [], []
        tracer = tk.Tracer(model, tiny.pairs(6, seed=3))
        measure = Engine.set_effects

        def look(self, sets, label="effects", **rest):
            measured.append(label)
            try:
                with files.hold_lock(file, wait=False):
                    pass
            except BlockingIOError:
                refused.append(label)
            return measure(self, sets, label, **rest)

        monkeypatch.setattr(Engine, "set_effects", look)
        tracer.pareto(statistics=False, max_passes=40, checkpoint=file)
        # Complements are measured when the search has ended.
        assert refused == [label for label in measured if label != "complements"]
        assert len(measured) >= 2

    @pytest.mark.slow
    def test_a_run_that_another_process_is_at_is_waited_for(self, tmp_path, monkeypatch):
        job = Job(
            model="demo",
            dataset="demo-bias",
            setup=tk.Setup(),
            method="top-k",
            budgets=(2,),
            limit=6,
        )
        ran, run_search = [], worker.run_search

        def slowly(question, request):
            ran.append(threading.get_ident())
            time.sleep(0.5)
            return run_search(question, request)

        monkeypatch.setattr(worker, "run_search", slowly)
        environment = RunEnvironment(sources={"demo": ModelSource.parse("demo")})
        done = []
        threads = [
            threading.Thread(target=lambda: done.append(Worker(environment, tmp_path).run_job(job)))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ran) == 1
        assert sorted(run.fresh for run in done) == [False, True]
        assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.soak
@pytest.mark.slow
def test_sigterm_writes_the_checkpoint(tmp_path):
    kept = tmp_path / "kept"
    command = Command(
        *("pareto", "--components", "mlp-outputs", "--limit", 32, "--checkpoint", kept),
        *("--output", tmp_path / "run", "--quiet"),
        log=tmp_path / "log",
    )
    command.wait_until(lambda: "Effect of all components" in command.output)
    time.sleep(2)
    assert command.stop(signal.SIGTERM) < 5
    assert command.process.returncode == -signal.SIGTERM
    assert command.output.rstrip().endswith("Stopped.")
    assert "Traceback" not in command.output
    assert kept.exists()
    assert not list(tmp_path.glob(".*"))
