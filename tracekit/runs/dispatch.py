"""Dispatch: which job goes to which worker, and when; why a worker failed. No job is run twice."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from tqdm.auto import tqdm

from tracekit._util.files import marker_file, remove_leftovers
from tracekit._util.options import short_repr
from tracekit._util.processes import WorkerProcesses
from tracekit._util.progress import report_waiting
from tracekit._util.threads import allowed_threads
from tracekit.errors import ConfigError, NoResultError, WorkerError
from tracekit.runs.jobs import (
    Job,
    ModelSource,
    RunEnvironment,
    device_for_worker,
    models_by_title,
    part_of,
)
from tracekit.runs.store import RUN_FOLDERS, Run, decisive_versions
from tracekit.runs.worker import Failure, Task, Worker, forget_models, run_task, try_job

_MAIN_GUARD = 'if __name__ == "__main__":'
_POLL_SECONDS = 1.0
"""Seconds between two looks at the tasks: `wait` does not report those that were cancelled."""


def run_jobs(
    jobs: Sequence[Job],
    models: Iterable[ModelSource],
    output: Path,
    *,
    data_dir: Path | None = None,
    device: str | None = None,
    max_batch_size: int | None = None,
    loading: Mapping[str, Any] | None = None,
    processes: int | None = None,
    executor: Executor | None = None,
    part: str | None = None,
    progress: bool | None = False,
    on_done: Callable[[Run | Failure], object] = lambda outcome: None,
) -> list[Run | Failure]:
    """Runs jobs, each once. Every finished run is kept in `output/runs` and never repeated.

    Equal jobs count once. A job that fails does not stop the others; Ctrl-C stops them all. Two
    calls on one folder share its runs: each is done by one of them, and the other waits for it.

    `models` say where the models of the jobs are, `loading` has further options of `load_model`,
    `processes` is the number of runs at a time, and `progress` is that of each run, as in `Tracer`.
    All other arguments are as in `tracekit.sweep`.

    Returns:
        A run or a failure for each job of the part.

    Raises:
        ConfigError: Two models have one name, or the part has another form.
        ConfigError, WorkerError: About the executor and its workers.
        NoResultError: All jobs failed; the message gives the first reason.
    """
    _check_executor(executor)
    is_one_of_many = part is not None and executor is None and (processes or 1) == 1
    environment = RunEnvironment(
        sources=models_by_title(models),
        data_dir=data_dir,
        device=device_for_worker(device, loading or {}) if is_one_of_many else device,
        max_batch_size=max_batch_size,
        progress=progress,
        loading=loading or {},
    )
    unique = list({job.identity: job for job in part_of(jobs, part)}.values())
    # Jobs of one model follow each other, so that it is loaded once.
    names = list(dict.fromkeys(job.model for job in unique))
    unique.sort(key=lambda job: names.index(job.model))
    root = output / RUN_FOLDERS
    root.mkdir(parents=True, exist_ok=True)
    # Unfinished runs of killed processes never count.
    remove_leftovers(root)
    outcomes: list[Run | Failure] = []
    if executor is not None or (processes or 1) > 1:
        root = Path(os.path.abspath(root))
        environment = replace(environment, working_dir=Path.cwd())
        with ExitStack() as last:
            # Workers may have been ended while they wrote.
            last.callback(remove_leftovers, root)
            if executor is None:
                executor = last.enter_context(_start_processes(processes or 1))
            mark = last.enter_context(marker_file(root))
            # Threads of a pool are workers in this process.
            last.callback(forget_models, mark.name)
            capacity = processes or getattr(executor, "_max_workers", 1)
            outcomes = _Dispatcher(unique, environment, mark, executor, capacity, on_done).run()
    else:
        worker, missing = Worker(environment, root), dict[str, str]()
        for job in unique:
            with report_waiting(job.description, shown=progress):
                outcomes.append(try_job(worker, job, missing))
            on_done(outcomes[-1])
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if failures and len(failures) == len(outcomes):
        raise NoResultError(f"No run could be done. {failures[0].reason}")
    return outcomes


@dataclass(eq=False)
class _Dispatcher:
    """Sends jobs to workers so that a worker rarely changes its model.

    Each worker has one job. A worker that finishes gets another job of the same model.
    """

    jobs: Sequence[Job]
    environment: RunEnvironment
    marker_path: Path
    executor: Executor
    capacity: int
    """How many jobs run at a time."""
    on_done: Callable[[Run | Failure], object]
    waiting_jobs: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the jobs that no worker has, by model."""
    running_jobs: dict[Future[Run | Failure], int] = field(default_factory=dict)
    idle_models: list[str] = field(default_factory=list)
    """Models of the workers that wait for a job."""
    outcomes: dict[int, Run | Failure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, job in enumerate(self.jobs):
            self.waiting_jobs.setdefault(job.model, []).append(number)

    def run(self) -> list[Run | Failure]:
        try:
            while len(self.outcomes) < len(self.jobs):
                while len(self.running_jobs) < self.capacity and any(self.waiting_jobs.values()):
                    self._send_job(self._next_job())
                wait(self.running_jobs, _POLL_SECONDS, FIRST_COMPLETED)
                for future in [future for future in self.running_jobs if future.done()]:
                    self._receive_outcome(future)
        except BaseException:
            for future in self.running_jobs:
                future.cancel()
            raise
        return [self.outcomes[number] for number in range(len(self.jobs))]

    def _next_job(self) -> int:
        """The number of the job to send next; some job waits."""
        waiting = {model: numbers for model, numbers in self.waiting_jobs.items() if numbers}
        while self.idle_models:
            model = self.idle_models.pop(0)
            if model in waiting:
                break
        else:
            busy = Counter(self.jobs[number].model for number in self.running_jobs.values())
            model = max(waiting, key=lambda name: len(waiting[name]) / (busy[name] + 1))
        return waiting[model].pop(0)

    def _send_job(self, number: int) -> None:
        task = Task(
            job=self.jobs[number],
            environment=self.environment,
            root=self.marker_path.parent,
            token=self.marker_path.name,
            workers=min(self.capacity, len(self.jobs)),
        )
        try:
            future = self.executor.submit(run_task, decisive_versions(), pickle.dumps(task))
        except RuntimeError as error:
            shut_down = f"The executor takes no task: {error}. Give one that is not shut down."
            raise (_explain_error(error, self.executor) or WorkerError(shut_down)) from error
        self.running_jobs[future] = number

    def _receive_outcome(self, future: Future[Run | Failure]) -> None:
        number = self.running_jobs.pop(future)
        try:
            outcome = future.result()
        except Exception as error:
            clearer = _explain_error(error, self.executor)
            if clearer is None:
                raise
            raise clearer from error
        self.idle_models.append(self.jobs[number].model)
        self.outcomes[number] = outcome
        self.on_done(outcome)


def _start_processes(count: int) -> WorkerProcesses:
    """Processes of this machine, which share its threads and end with this process."""
    threads = max(1, allowed_threads() // count)
    return WorkerProcesses(count, start=_set_up, arguments=(threads,))


def _set_up(threads: int) -> None:
    torch.set_num_threads(threads)
    # A lock within this process: ending a worker would leave a shared lock behind.
    tqdm.set_lock(RLock())


def _check_executor(executor: object) -> None:
    """Refuses what is neither None nor an executor of `concurrent.futures`."""
    if executor is not None and not isinstance(executor, Executor):
        raise ConfigError(
            f"The executor is {short_repr(executor)}. Give a concurrent.futures.Executor. A Dask "
            "client has one, client.get_executor(pure=False). On Slurm, leave the executor out "
            "and run one part in each task of a job array, e.g. part='3/16'."
        )


def _explain_error(error: BaseException, executor: Executor) -> WorkerError | None:
    """A clearer error to raise in place of one of an executor; None if that one is clear."""
    cause: BaseException | None = error
    while cause is not None:
        is_import = isinstance(cause, (ModuleNotFoundError, AttributeError))
        if is_import and "tracekit" in str(cause):
            return WorkerError(
                f"A worker cannot load tracekit ({cause}), this process has "
                f"{decisive_versions()['tracekit']}. Install the same version in both, so that all "
                "runs can be compared."
            )
        cause = cause.__cause__
    if isinstance(error, CancelledError):
        return WorkerError(
            "The executor gave up a task that was not cancelled here. What is finished is kept. "
            "Run it again with an executor that works."
        )
    if not isinstance(error, BrokenExecutor):
        return None
    advice = ""
    if not isinstance(executor, WorkerProcesses):
        advice = (
            f" If none began: a script that spawns processes does its work under {_MAIN_GUARD}."
        )
    elif not executor.has_ready_worker:
        return WorkerError(
            "No worker process could start. Each one first runs your main script again, which "
            "must not start the sweep a second time. Put its code, also what comes from stdin, "
            f"into a file, under {_MAIN_GUARD} Or leave jobs out."
        )
    return WorkerError(
        "A worker process was killed; often the memory was full. What is finished is kept. Repeat "
        f"it with fewer processes or a smaller max_batch_size.{advice}"
    )
