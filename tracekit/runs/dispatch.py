"""Dispatch: which job goes to which worker, and when. No job is run twice."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracekit._util.files import marker_file, remove_leftovers
from tracekit._util.progress import report_waiting
from tracekit.errors import NoResultError, WorkerError
from tracekit.runs.executors import Workers, make_workers
from tracekit.runs.jobs import (
    Job,
    ModelSource,
    RunEnvironment,
    device_for_worker,
    models_by_title,
    part_of,
)
from tracekit.runs.store import RUN_FOLDERS, Run, decisive_versions
from tracekit.runs.worker import Failure, Task, Worker, WorkerReport, run_task, try_job

_POLL_SECONDS = 1.0
"""Seconds between two looks for new workers."""


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
    executor: Any = None,
    executor_options: Mapping[str, Any] | None = None,
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
        ConfigError, WorkerError, MissingExtraError: About the executor and its workers.
        NoResultError: All jobs failed; the message gives the first reason.
    """
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
    if executor is not None or (processes or 1) > 1 or executor_options:
        root = Path(os.path.abspath(root))
        environment = replace(environment, working_dir=Path.cwd())
        folder = root.parent / "submitit"
        workers = make_workers(executor, processes, executor_options or {}, folder)
        with ExitStack() as last:
            # Workers may have been ended while they wrote.
            last.callback(remove_leftovers, root)
            last.callback(workers.close)
            mark = last.enter_context(marker_file(root))
            last.callback(workers.release_models, mark.name)
            outcomes = _Dispatcher(unique, environment, mark, workers, on_done).run()
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

    Each worker has one task. A worker that finishes gets another task of the same model.
    """

    jobs: Sequence[Job]
    environment: RunEnvironment
    marker_path: Path
    workers: Workers
    on_done: Callable[[Run | Failure], object]
    waiting_jobs: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the jobs that no worker has, by model."""
    lost_jobs: list[int] = field(default_factory=list)
    """Jobs whose worker was lost; each is repeated by itself."""
    running_jobs: dict[Future[WorkerReport], list[int]] = field(default_factory=dict)
    idle_models: list[str] = field(default_factory=list)
    """Models of the workers that wait for a task."""
    outcomes: dict[int, Run | Failure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, job in enumerate(self.jobs):
            self.waiting_jobs.setdefault(job.model, []).append(number)

    def run(self) -> list[Run | Failure]:
        try:
            while len(self.outcomes) < len(self.jobs):
                self._send_tasks()
                wait(self.running_jobs, _POLL_SECONDS, FIRST_COMPLETED)
                # `wait` does not yet report tasks that an executor has cancelled.
                for future in [future for future in self.running_jobs if future.done()]:
                    self._receive_report(future)
        except BaseException:
            for future in self.running_jobs:
                future.cancel()
            raise
        return [self.outcomes[number] for number in range(len(self.jobs))]

    def _send_tasks(self) -> None:
        capacity = self.workers.capacity()
        tasks: list[list[int]] = []
        while len(self.running_jobs) + len(tasks) < capacity:
            numbers = self._next_jobs(tasks)
            if not numbers:
                break
            tasks.append(numbers)
        if not tasks:
            return
        versions, packed = decisive_versions(), []
        for numbers in tasks:
            task = Task(
                jobs=tuple(self.jobs[number] for number in numbers),
                environment=self.environment,
                root=self.marker_path.parent,
                token=self.marker_path.name,
                workers=min(capacity, len(self.jobs)),
            )
            packed.append((versions, pickle.dumps(task)))
        try:
            futures = self.workers.submit(run_task, packed)
        except BrokenExecutor as error:
            raise self._error_to_raise(error) from error
        self.running_jobs.update(zip(futures, tasks, strict=True))

    def _next_jobs(self, tasks: Sequence[Sequence[int]]) -> list[int]:
        """The jobs of the next task; none if no job waits. `tasks` are about to be sent."""
        waiting = {model: numbers for model, numbers in self.waiting_jobs.items() if numbers}
        if not waiting:
            return [self.lost_jobs.pop(0)] if self.lost_jobs else []
        while self.idle_models:
            model = self.idle_models.pop(0)
            if model in waiting:
                break
        else:
            busy = Counter(self.jobs[n[0]].model for n in (*self.running_jobs.values(), *tasks))
            model = max(waiting, key=lambda name: len(waiting[name]) / (busy[name] + 1))
        count = 1
        if self.workers.starts_processes:
            # Every task starts a process. It does all jobs of a model, or a part of them where more
            # workers were asked for than there are models.
            parts = max(1, (self.workers.at_most or 1) // len(self.waiting_jobs))
            count = -(-sum(job.model == model for job in self.jobs) // parts)
        numbers, self.waiting_jobs[model] = waiting[model][:count], waiting[model][count:]
        return numbers

    def _receive_report(self, future: Future[WorkerReport]) -> None:
        numbers = self.running_jobs.pop(future)
        try:
            report = future.result()
        except Exception as error:
            if not self.workers.is_lost(error):
                raise self._error_to_raise(error) from error
            if len(numbers) > 1:
                # Each is repeated by itself; those that are finished are read from the store.
                self.lost_jobs += numbers
            else:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                reason = f"Its worker was lost: {lines[-1]}"
                self._record_outcome(numbers[0], Failure(self.jobs[numbers[0]], reason))
            return
        if report.refused is not None:
            raise report.refused
        self.idle_models.append(self.jobs[numbers[0]].model)
        for number, outcome in zip(numbers, report.outcomes, strict=True):
            self._record_outcome(number, outcome)

    def _record_outcome(self, number: int, outcome: Run | Failure) -> None:
        self.outcomes[number] = outcome
        self.on_done(outcome)

    def _error_to_raise(self, error: BaseException) -> BaseException:
        cause: BaseException | None = error
        while cause is not None:
            is_import = isinstance(cause, (ModuleNotFoundError, AttributeError))
            if is_import and "tracekit" in str(cause):
                version = decisive_versions()["tracekit"]
                return WorkerError(
                    f"A worker cannot load tracekit ({cause}), this process has {version}. Install "
                    "the same version in both, so that all runs can be compared."
                )
            cause = cause.__cause__
        return self.workers.error_to_raise(error) or error
