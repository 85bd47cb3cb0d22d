"""Where runs are done: threads, processes, Dask and submitit, and what happens when they die."""

from __future__ import annotations

import pickle
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from threading import Thread

import psutil
import pytest
import torch

import tracekit as tk
from tracekit.errors import (
    ConfigError,
    MissingExtraError,
    WorkerError,
)
from tracekit.runs import dispatch, executors
from tracekit.runs import jobs as jobs_module
from tracekit.runs import worker as worker_module
from tracekit.runs.store import decisive_versions
from tracekit.runs.worker import Worker, run_task

SLOW = {"methods": [{"name": "random", "draws": 400}], "budgets": [4]}
"""Runs that take a second or so."""


def finished(folder):
    """Runs that are in the store, and when each was written."""
    return {
        path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/[!.]*/run.json")
    }


def wait_for(condition, seconds=180):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


@contextmanager
def when(condition, action):
    """Does something from another thread as soon as a condition holds."""
    errors = []

    def watch():
        try:
            wait_for(condition)
            action()
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not errors, errors


class TestAnyExecutor:
    @pytest.mark.slow
    def test_threads_find_the_same_and_keep_their_model(self, grid, monkeypatch):
        plain = tk.sweep(**{**grid, "output": grid["output"] / "plain"})
        loads, load = Counter(), Worker.load_job_model

        def count(self, job):
            before = self._model
            model = load(self, job)
            loads[job.model] += self._model is not before
            return model

        monkeypatch.setattr(Worker, "load_job_model", count)
        more = {**grid, "seeds": [0, 1, 2]}
        with ThreadPoolExecutor(2) as executor:
            runs = tk.sweep(**more, executor=executor)
            # It stays open.
            assert executor.submit(int, "3").result() == 3
        assert len(runs) == 12
        # Two workers, two models: each has one, but for the worker that is done first. Two that
        # end at the same time may take each other's next job, and then load two models more.
        assert sum(loads.values()) <= 7
        same = runs.to_frame().query("seed == 0")["effect"].tolist()
        assert same == pytest.approx(plain.to_frame()["effect"].tolist(), rel=1e-5)
        assert {run.info.processes for run in runs} == {2}
        assert not worker_module._workers, "models are held"
        assert not list((grid["output"] / "runs").glob(".*"))

    @pytest.mark.slow
    def test_one_worker_does_one_model_after_the_other(self, grid, monkeypatch):
        order, do = [], Worker.run_job
        monkeypatch.setattr(
            Worker, "run_job", lambda self, job: (order.append(job.model), do(self, job))[1]
        )
        with ThreadPoolExecutor(1) as executor:
            tk.sweep(**grid, seeds=[0, 1], executor=executor)
        assert order == ["first"] * 4 + ["second"] * 4

    @pytest.mark.slow
    def test_tasks_at_a_time(self, grid):
        at_once, most = [], []

        class Counting(ThreadPoolExecutor):
            def submit(self, function, *arguments):
                at_once.append(1)
                most.append(len(at_once))
                future = super().submit(function, *arguments)
                future.add_done_callback(lambda done: at_once.pop())
                return future

        for jobs, expected in ((1, 1), (None, 3)):
            most.clear()
            with Counting(3) as executor:
                folder = grid["output"] / str(jobs)
                tk.sweep(**{**grid, "output": folder}, executor=executor, jobs=jobs)
            assert max(most) == expected

    @pytest.mark.slow
    def test_a_pool_of_processes_is_an_executor(self, grid, lab, monkeypatch):
        # Relative paths are those of this process.
        monkeypatch.chdir(lab)
        few = {**grid, "models": ["first"], "datasets": ["pairs.jsonl"], "methods": ["top-k"]}
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
            executor.submit(_go_to, "/").result()
            (run,) = tk.sweep(**few, executor=executor)
        assert run.job.dataset == "pairs.jsonl"
        assert run.fresh

    def test_what_is_no_executor(self, grid):
        for given, text in (
            (3, "Unknown executor 3. Give dask://HOST:PORT, submitit://slurm, submitit://local"),
            ("dsk://here", "Unknown executor 'dsk://here'"),
            ("submitit://pbs", "cluster of submitit is 'pbs'. Use one of slurm, local, debug"),
        ):
            with pytest.raises(ConfigError, match=re.escape(text)):
                tk.sweep(**grid, executor=given)
        with pytest.raises(ConfigError, match="submitit does not take the options .*timeout"):
            tk.sweep(**grid, executor="submitit://local", executor_options={"timeout": 3})
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        with pytest.raises(WorkerError, match="takes no task: cannot schedule new"):
            tk.sweep(**grid, executor=executor)

    @pytest.mark.slow
    def test_executors_that_cannot_be_reached(self, grid, monkeypatch):
        monkeypatch.setattr(executors, "_CONNECT_SECONDS", 1)
        with pytest.raises(WorkerError, match=r"No Dask scheduler answers at 127\."):
            tk.sweep(**grid, executor="dask://127.0.0.1:1")
        with pytest.raises(WorkerError, match="submitit finds no slurm here: Could"):
            tk.sweep(**grid, executor="submitit://slurm")
        for package, extra in (("distributed", "dask"), ("submitit", "submitit")):
            monkeypatch.setitem(sys.modules, package, None)
            with pytest.raises(MissingExtraError, match=rf"pip install 'tracekit-lm\[{extra}\]'"):
                tk.sweep(**grid, executor=f"{extra}://local")

    @pytest.mark.slow
    def test_ctrl_c_cancels_what_is_not_begun(self, grid):
        def stop(outcome):
            raise KeyboardInterrupt

        with ThreadPoolExecutor(1) as executor, pytest.raises(KeyboardInterrupt):
            tk.sweep(**grid, executor=executor, jobs=4, on_done=stop)
        kept = len(finished(grid["output"]))
        # One was done, another one may have been begun.
        assert 1 <= kept <= 2
        again = tk.sweep(**grid)
        assert sum(run.fresh for run in again) == 4 - kept

    @pytest.mark.slow
    def test_a_task_that_somebody_else_cancels(self, grid):
        class Cancelling(Executor):
            def submit(self, function, *arguments):
                future = Future()
                future.cancel()
                return future

        with pytest.raises(WorkerError, match="gave up a task that was not cancelled"):
            tk.sweep(**grid, executor=Cancelling())


def _go_to(folder):
    import os

    os.chdir(folder)


class TestWorkersThatDoNotFit:
    def test_other_versions_are_refused_naming_both(self, grid, monkeypatch):
        def elsewhere():
            return {**decisive_versions(), "tracekit": "9.9"}

        here = decisive_versions()["tracekit"]
        # What the other version sends need not be readable here.
        report = run_task({**decisive_versions(), "tracekit": "9.9"}, b"of another version")
        assert isinstance(report.refused, WorkerError)
        monkeypatch.setattr(worker_module, "decisive_versions", elsewhere)
        text = rf"has tracekit 9\.9, this process has {re.escape(here)}\. Install the same"
        with ThreadPoolExecutor(1) as executor, pytest.raises(WorkerError, match=text):
            tk.sweep(**grid, executor=executor)
        assert not finished(grid["output"])

    def test_a_worker_without_tracekit(self, grid):
        class Bare(Executor):
            def submit(self, function, *arguments):
                future = Future()
                future.set_exception(ModuleNotFoundError("No module named 'tracekit'"))
                return future

        text = "A worker cannot load tracekit .No module named 'tracekit'., this process has"
        with pytest.raises(WorkerError, match=text):
            tk.sweep(**grid, executor=Bare())

    def test_a_folder_that_workers_do_not_share(self, grid, tmp_path, monkeypatch):
        monkeypatch.setattr(worker_module, "_SHARED_SECONDS", 0.2)
        # A folder of the same path on another machine.
        (other := tmp_path / "elsewhere").mkdir()

        class Elsewhere(ThreadPoolExecutor):
            def submit(self, function, versions, packed):
                task = replace(pickle.loads(packed), root=other)
                return super().submit(function, versions, pickle.dumps(task))

        text = rf"does not see the output folder {other}\. Give a folder that all workers share"
        with Elsewhere(1) as executor, pytest.raises(WorkerError, match=text):
            tk.sweep(**grid, executor=executor)
        assert not list(other.iterdir())

    def test_errors_pass_between_processes(self):
        report = run_task({**decisive_versions(), "torch": "0.1"}, b"")
        again = pickle.loads(pickle.dumps(report))
        assert type(again.refused) is WorkerError
        assert str(again.refused) == str(report.refused)
        assert "this process has 0.1" in str(again.refused)


class TestDevices:
    @pytest.fixture
    def two_devices(self, monkeypatch, tmp_path):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(jobs_module.tempfile, "gettempdir", lambda: str(tmp_path))
        monkeypatch.setattr(jobs_module, "_worker_locks", {})

    def test_each_worker_takes_one_of_its_own(self, two_devices):
        with ExitStack() as stack:
            pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(4)]
            taken = [
                pool.submit(jobs_module.device_for_worker, "cuda", {}).result()
                for pool in [*pools, pools[0]]
            ]
        # With more workers than devices, they are shared evenly.
        assert taken == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]

    def test_what_is_named_is_kept(self, two_devices, monkeypatch):
        assert jobs_module.device_for_worker("cuda:1", {}) == "cuda:1"
        assert jobs_module.device_for_worker("cpu", {}) == "cpu"
        assert jobs_module.device_for_worker(None, {"device_map": "auto"}) is None
        assert jobs_module.device_for_worker(None, {}) == "cuda:0"
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        assert jobs_module.device_for_worker("cuda", {}) == "cuda"

    @pytest.mark.slow
    def test_processes_do_too_and_those_that_end_give_theirs_back(self, tmp_path):
        script = (
            "import sys, torch; from tracekit.runs import jobs\n"
            "torch.cuda.is_available = lambda: True\n"
            "torch.cuda.device_count = lambda: 4\n"
            f"jobs.tempfile.gettempdir = lambda: {str(tmp_path)!r}\n"
            "print(jobs.device_for_worker('cuda', {}), flush=True)\n"
            "sys.stdin.read()"
        )

        def start():
            process = subprocess.Popen(
                [sys.executable, "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            return process, process.stdout.readline().strip()

        (first, taken), (second, other) = start(), start()
        assert (taken, other) == ("cuda:0", "cuda:1")
        first.kill()
        first.wait()
        third, again = start()
        assert again == "cuda:0"
        for process in (second, third):
            process.communicate("")

    @pytest.mark.slow
    def test_workers_load_their_models_there(self, grid, two_devices, monkeypatch):
        loaded = []

        def load(source, *, device, **options):
            loaded.append(device)
            return tk.load_model(source, device="cpu", **options)

        monkeypatch.setattr(worker_module, "load_model", load)
        with ThreadPoolExecutor(2) as executor:
            tk.sweep(**grid, executor=executor, device="cuda")
        assert set(loaded) == {"cuda:0", "cuda:1"}
        loaded.clear()
        tk.sweep(**{**grid, "output": grid["output"] / "part"}, part="1/2")
        # This thread is a worker beside those of other parts.
        assert set(loaded) <= {"cuda:0", "cuda:1"}
        assert loaded


class TestLocalProcesses:
    @pytest.mark.slow
    def test_a_worker_that_is_killed_ends_the_sweep_and_costs_its_run(self, grid):
        before = set(psutil.Process().children(recursive=True))

        def kill(outcome):
            for process in set(psutil.Process().children(recursive=True)) - before:
                if "spawn_main" in " ".join(process.cmdline()):
                    process.kill()

        with pytest.raises(WorkerError, match="was killed; often the memory was full. What is"):
            tk.sweep(**{**grid, **SLOW}, seeds=[0, 1], jobs=2, on_done=kill)
        kept = finished(grid["output"])
        assert 1 <= len(kept) < 4
        again = tk.sweep(**{**grid, **SLOW}, seeds=[0, 1])
        assert sum(run.fresh for run in again) == 4 - len(kept)
        assert kept.items() <= finished(grid["output"]).items()
        assert not list((grid["output"] / "runs").glob(".*"))


# ---- Dask -------------------------------------------------------------------------------------


class Cluster:
    """A scheduler and workers of Dask on the loopback interface, each a process of its own."""

    def __init__(self, folder: Path, n_workers: int = 2) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen] = []
        self.scheduler = self._start("scheduler", "--port", "0")
        self.address = self._address()
        self.workers = [self.add_worker() for _ in range(n_workers)]

    def _start(self, *arguments: str) -> subprocess.Popen:
        log = self._folder / f"{arguments[0]}-{len(self._processes)}.log"
        # One thread, as CI has set for all processes.
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments, "--host", "127.0.0.1", "--no-dashboard"],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        self._processes.append(process)
        return process

    def _address(self) -> str:
        log = self._folder / "scheduler-0.log"
        wait_for(lambda: re.search(r"tcp://127\.0\.0\.1:\d+", log.read_text()))
        return re.search(r"tcp://(127\.0\.0\.1:\d+)", log.read_text())[1]

    def add_worker(self) -> subprocess.Popen:
        return self._start(
            *("worker", self.address, "--nthreads", "1", "--no-nanny"),
            *("--local-directory", str(self._folder)),
        )

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path):
    (folder := tmp_path / "dask").mkdir()
    cluster = Cluster(folder)
    yield cluster
    cluster.close()


@pytest.mark.slow
def test_the_workers_of_a_dask_scheduler_find_the_same(grid, cluster, lab, monkeypatch):
    plain = tk.sweep(**{**grid, "output": grid["output"] / "plain"}).to_frame()
    monkeypatch.chdir(lab)
    relative = {**grid, "models": ["first", "second"]}
    runs = tk.sweep(**relative, executor=f"dask://{cluster.address}")
    assert [run.fresh for run in runs] == [True] * 4
    frame = runs.to_frame()
    assert frame["components"].tolist() == plain["components"].tolist()
    assert frame["effect"].tolist() == pytest.approx(plain["effect"].tolist(), rel=1e-5)
    assert {run.info.processes for run in runs} <= {1, 2}
    # A client, and the executor of one, stay open.
    from distributed import Client

    with Client(f"tcp://{cluster.address}", set_as_default=False) as client:
        for executor in (client, client.get_executor()):
            again = tk.sweep(**relative, executor=executor)
            assert [run.fresh for run in again] == [False] * 4
        assert client.submit(int, "3").result() == 3
        assert client.run(_models_held) == dict.fromkeys(client.nthreads(), 0)


def _models_held():
    return len(worker_module._workers)


@pytest.mark.slow
def test_a_killed_dask_worker_costs_its_running_job_which_is_done_elsewhere(grid, cluster):
    folder, kept = grid["output"], {}

    def kill():
        kept.update(finished(folder))
        cluster.workers[0].kill()

    with when(lambda: len(finished(folder)) >= 2, kill):
        runs = tk.sweep(**{**grid, **SLOW}, seeds=range(4), executor=f"dask://{cluster.address}")
    assert len(runs) == 8
    assert not runs.failures
    assert kept.items() <= finished(folder).items()
    assert not list((folder / "runs").glob(".*"))
    assert len(list((folder / "runs").iterdir())) == 8


@pytest.mark.soak
def test_a_killed_dask_scheduler_costs_nothing_that_was_finished(grid, cluster, tmp_path):
    folder, kept = grid["output"], {}

    def kill():
        kept.update(finished(folder))
        cluster.scheduler.kill()

    text = "The Dask scheduler is gone. What is finished is kept. Start a scheduler and workers"
    with (
        when(lambda: len(finished(folder)) >= 2, kill),
        pytest.raises(WorkerError, match=text),
    ):
        tk.sweep(**{**grid, **SLOW}, seeds=range(4), executor=f"dask://{cluster.address}")
    for worker in cluster.workers:
        worker.kill()
        worker.wait()
    assert 2 <= len(kept) < 8
    (again := tmp_path / "again").mkdir()
    other = Cluster(again, n_workers=1)
    try:
        done = finished(folder)
        runs = tk.sweep(**{**grid, **SLOW}, seeds=range(4), executor=f"dask://{other.address}")
    finally:
        other.close()
    assert sum(run.fresh for run in runs) == 8 - len(done)
    assert kept.items() <= done.items() <= finished(folder).items()


@pytest.mark.slow
def test_a_scheduler_without_workers(grid, tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "_WORKER_SECONDS", 1)
    cluster = Cluster(tmp_path, n_workers=0)
    try:
        with pytest.raises(WorkerError, match="has had no worker for 1 seconds"):
            tk.sweep(**grid, executor=f"dask://{cluster.address}")
    finally:
        cluster.close()
    assert not grid["output"].exists()


# ---- submitit ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_submitit_does_the_jobs_of_a_model_in_one_process(grid):
    one = {**grid, "models": grid["models"][:1]}
    runs = tk.sweep(**one, executor="submitit://local", executor_options={"timeout_min": 5})
    assert len(runs) == 2
    assert len(list((grid["output"] / "submitit").glob("*_log.out"))) == 1
    assert [run.fresh for run in tk.sweep(**one)] == [False] * 2


@pytest.mark.slow
def test_a_requeued_job_goes_on_from_the_store(grid):
    """As Slurm does at a time limit or a preemption: a signal, then the same job again."""
    folder, kept = grid["output"], {}

    def preempt():
        kept.update(finished(folder))
        (task,) = [
            process
            for process in psutil.Process().children(recursive=True)
            if "submitit.core._submit" in " ".join(process.cmdline())
        ]
        task.send_signal(signal.SIGUSR2)

    one = {**grid, **SLOW, "models": grid["models"][:1]}
    with when(lambda: len(finished(folder)) >= 2, preempt):
        runs = tk.sweep(**one, seeds=range(4), executor="submitit://local")
    assert len(runs) == 4
    # The second process read what the first one had finished.
    assert sum(not run.fresh for run in runs) >= len(kept) >= 2
    assert kept.items() <= finished(folder).items()
    logs = "".join(log.read_text() for log in (folder / "submitit").glob("*_log.*"))
    assert logs.count("Requeued job") == 1


@pytest.mark.soak
def test_a_submitted_job_that_is_killed_costs_its_run(grid):
    folder = grid["output"]

    def kill():
        for process in psutil.Process().children(recursive=True):
            if "submitit.core._submit" in " ".join(process.cmdline()):
                process.kill()

    one = {**grid, **SLOW, "models": grid["models"][:1]}
    with when(lambda: len(finished(folder)) >= 1, kill):
        runs = tk.sweep(**one, seeds=range(2), executor="submitit://local")
    # Each of its jobs was done again for itself, or read from the store.
    assert len(runs) == 2
    assert not runs.failures


class TestLostWorkers:
    """What is sent again, without processes."""

    class Dying(executors.FuturesExecutor):
        starts_processes = True

        def __init__(self, executor, dies):
            super().__init__(executor, None)
            self._dies, self.sent = dies, []

        def submit(self, function, tasks):
            futures = []
            for versions, packed in tasks:
                seeds = [job.seed for job in pickle.loads(packed).jobs]
                self.sent.append(seeds)
                if self._dies(seeds):
                    future = Future()
                    future.set_exception(OSError("slurmstepd: error: Detected 1 oom_kill event"))
                    futures.append(future)
                else:
                    futures += super().submit(function, [(versions, packed)])
            return futures

        def is_lost(self, error):
            return "oom_kill" in str(error)

    def test_jobs_of_a_lost_task_are_done_each_for_itself(self, grid, monkeypatch):
        with ThreadPoolExecutor(1) as executor:
            dying = self.Dying(executor, lambda seeds: 1 in seeds)
            monkeypatch.setattr(dispatch, "make_workers", lambda *given: dying)
            one = {**grid, "models": grid["models"][:1], "methods": ["top-k"], "seeds": [0, 1, 2]}
            runs = tk.sweep(**one, executor=executor)
        assert dying.sent == [[0, 1, 2], [0], [1], [2]]
        assert [run.job.seed for run in runs] == [0, 2]
        (failure,) = runs.failures
        assert failure.job.seed == 1
        assert failure.reason == (
            "Its worker was lost: slurmstepd: error: Detected 1 oom_kill event"
        )
