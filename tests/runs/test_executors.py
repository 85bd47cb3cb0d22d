"""Where runs are done: threads, processes and other executors, and what happens when they die."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context

import psutil
import pytest
import torch

import tracekit as tk
from tracekit._util.options import short_repr
from tracekit.errors import ConfigError, WorkerError
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

    @pytest.mark.soak
    @pytest.mark.slow
    def test_a_pool_of_processes_is_an_executor(self, grid, lab, monkeypatch):
        # Relative paths are those of this process.
        monkeypatch.chdir(lab)
        few = {**grid, "models": ["first"], "datasets": ["pairs.jsonl"], "methods": ["top-k"]}
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
            executor.submit(_go_to, "/").result()
            (run,) = tk.sweep(**few, executor=executor)
            (other,) = tk.sweep(**few, executor=executor, seeds=[1])
            # A worker keeps the model of the last sweep only.
            assert executor.submit(_models_held).result() == 1
        assert run.job.dataset == "pairs.jsonl"
        assert run.fresh
        assert other.fresh

    @pytest.mark.parametrize("given", [3, "dask://head-node:8786"])
    def test_what_is_no_executor(self, grid, given):
        text = (
            f"The executor is {short_repr(given)}. Give a concurrent.futures.Executor. A Dask "
            "client has one, client.get_executor(pure=False). On Slurm, leave the executor out and "
            "run one part in each task of a job array, e.g. part='3/16'."
        )
        with pytest.raises(ConfigError, match=re.escape(text)):
            tk.sweep(**grid, executor=given)
        assert not grid["output"].exists()

    def test_an_executor_that_is_shut_down(self, grid):
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        with pytest.raises(WorkerError, match="takes no task: cannot schedule new"):
            tk.sweep(**grid, executor=executor)

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


def _models_held():
    return len(worker_module._workers)


class TestWorkersThatDoNotFit:
    def test_other_versions_are_refused_naming_both(self, grid, monkeypatch):
        def elsewhere():
            return {**decisive_versions(), "tracekit": "9.9"}

        here = decisive_versions()["tracekit"]
        # What the other version sends need not be readable here.
        with pytest.raises(WorkerError, match=r"this process has 9\.9"):
            run_task({**decisive_versions(), "tracekit": "9.9"}, b"of another version")
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
        with pytest.raises(WorkerError, match=r"this process has 0\.1") as refusal:
            run_task({**decisive_versions(), "torch": "0.1"}, b"")
        again = pickle.loads(pickle.dumps(refusal.value))
        assert type(again) is WorkerError
        assert str(again) == str(refusal.value)


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
    @pytest.mark.soak
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
