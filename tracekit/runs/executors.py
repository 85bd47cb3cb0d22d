"""Executors: where tasks run. This machine's processes, Dask, Slurm, or any other executor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import RLock, Thread
from typing import Any

import torch
from tqdm.auto import tqdm

from tracekit._util.options import check_choice, short_repr
from tracekit._util.processes import WorkerProcesses
from tracekit._util.threads import allowed_threads
from tracekit.errors import ConfigError, MissingExtraError, WorkerError
from tracekit.runs.worker import WorkerReport, forget_models

_DASK, _SUBMITIT = "dask://", "submitit://"
_CLUSTERS = ("slurm", "local", "debug")
_CONNECT_SECONDS = 10
"""How long a scheduler may take to answer."""
_WORKER_SECONDS = 60
"""How long a scheduler may be without any worker."""
_POLL_SECONDS = 0.5
_MAIN_GUARD = 'if __name__ == "__main__":'
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError)
"""Two classes until Python 3.11."""
_MINUTES = 24 * 60
"""Time limit of a submitted job where none was given; submitit's own is five minutes."""


Function = Callable[..., WorkerReport]
Tasks = Sequence[tuple[Any, ...]]
"""Arguments of the function, for each task."""


class Workers:
    """Where tasks run, and how many at a time."""

    default_capacity = 1
    """How many tasks run at a time by default."""
    starts_processes = False
    """Whether every task starts a process, so that a task should hold many jobs."""
    _advice = ""
    """Advice to add to the message about a killed process."""

    def __init__(self, executor: Any, at_most: int | None) -> None:
        """`executor` gets the tasks; `at_most` is how many may run at a time, None by default."""
        self._executor = executor
        self.at_most = at_most

    def capacity(self) -> int:
        """How many tasks can run at a time, now; at least 1."""
        return self.at_most or self.default_capacity

    def submit(self, function: Function, tasks: Tasks) -> list[Future[WorkerReport]]:
        """Calls a function once for each of several tuples of arguments."""
        return [self._executor.submit(function, *task) for task in tasks]

    def is_lost(self, error: BaseException) -> bool:
        """Whether an error says that the worker of one task was lost, and not the others."""
        return False

    def error_to_raise(self, error: BaseException) -> Exception | None:
        """A clearer error to raise in place of one that ends the sweep; None: raise that one."""
        if isinstance(error, BrokenExecutor):
            return WorkerError(
                "A worker process was killed; often the memory was full. What is finished is "
                f"kept. Repeat it with fewer processes or a smaller max_batch_size.{self._advice}"
            )
        if isinstance(error, CancelledError):
            return WorkerError(
                "The executor gave up a task that was not cancelled here. What is finished is "
                "kept. Run it again with an executor that works."
            )
        return None

    def release_models(self, token: str) -> None:
        """Makes workers that stay alive drop the models of a sweep."""
        forget_models(token)

    def close(self) -> None:
        """Ends what was started for the jobs; an executor that was given stays open."""


class FuturesExecutor(Workers):
    """Any executor of `concurrent.futures`, e.g. a pool of processes."""

    _advice = f" If none began: a script that spawns processes does its work under {_MAIN_GUARD}."

    def __init__(self, executor: Executor, at_most: int | None) -> None:
        """`executor` stays open; by default it gets as many tasks as it has workers."""
        super().__init__(executor, at_most)
        workers = getattr(executor, "_max_workers", None)
        self.default_capacity = workers if isinstance(workers, int) else 1

    def submit(self, function: Function, tasks: Tasks) -> list[Future[WorkerReport]]:
        """Submits the tasks one by one."""
        try:
            return super().submit(function, tasks)
        except BrokenExecutor:
            raise
        except RuntimeError as error:
            raise WorkerError(
                f"The executor takes no task: {error}. Give one that is not shut down."
            ) from error


class _LocalProcesses(Workers):
    """Processes of this machine, which end with this one."""

    def __init__(self, processes: int) -> None:
        threads = max(1, allowed_threads() // processes)
        super().__init__(WorkerProcesses(processes, start=_set_up, arguments=(threads,)), processes)

    def error_to_raise(self, error: BaseException) -> Exception | None:
        if isinstance(error, BrokenExecutor) and not self._executor.has_ready_worker:
            return WorkerError(
                "No worker process could start. Each one first runs your main script again, which "
                "must not start the sweep a second time. Put its code, also what comes from stdin, "
                f"into a file, under {_MAIN_GUARD} Or leave jobs out."
            )
        return super().error_to_raise(error)

    def close(self) -> None:
        self._executor.shutdown()


def _set_up(threads: int) -> None:
    torch.set_num_threads(threads)
    # A lock within this process: ending a worker would leave a shared lock behind.
    tqdm.set_lock(RLock())


class _DaskWorkers(Workers):
    """The workers of a Dask scheduler, also later ones; tasks of a killed worker go to others."""

    def __init__(self, client: Any, at_most: int | None, *, owned: bool) -> None:
        super().__init__(client.get_executor(pure=False), at_most)
        self._client, self._owned = client, owned
        self._seen = time.monotonic()

    @classmethod
    def connect(cls, address: str, at_most: int | None) -> _DaskWorkers:
        try:
            from distributed import Client
        except ModuleNotFoundError as error:
            raise MissingExtraError.of("This executor", error, "dask") from error
        try:
            client = Client(f"tcp://{address}", timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, *_TIMEOUTS, ValueError) as error:
            raise WorkerError(
                f"No Dask scheduler answers at {address}. Start one by `dask scheduler`, and give "
                "the address that it prints, as dask://HOST:PORT."
            ) from error
        return cls(client, at_most, owned=True)

    def capacity(self) -> int:
        while True:
            if self._client.status != "running":
                raise _no_scheduler()
            try:
                count = len(self._client.nthreads())
            except (OSError, *_TIMEOUTS) as error:
                raise _no_scheduler() from error
            now = time.monotonic()
            if count:
                self._seen = now
                return min(count, self.at_most or count)
            if now > self._seen + _WORKER_SECONDS:
                raise WorkerError(
                    f"The Dask scheduler has had no worker for {_WORKER_SECONDS} seconds. What is "
                    "finished is kept. Start workers by `dask worker`, and run it again."
                )
            time.sleep(_POLL_SECONDS)

    def is_lost(self, error: BaseException) -> bool:
        """Whether the scheduler gave up a task after several of its workers died."""
        from distributed import KilledWorker

        return isinstance(error, KilledWorker)

    def error_to_raise(self, error: BaseException) -> Exception | None:
        """A task that nobody cancelled is lost with its scheduler."""
        is_cancelled = isinstance(error, CancelledError)
        return _no_scheduler() if is_cancelled else super().error_to_raise(error)

    def release_models(self, token: str) -> None:
        with suppress(Exception):
            self._client.run(forget_models, token)

    def close(self) -> None:
        if self._owned:
            with suppress(Exception):  # Do not wait for a scheduler that is gone.
                self._client.close(timeout=2)


def _no_scheduler() -> WorkerError:
    return WorkerError(
        "The Dask scheduler is gone. What is finished is kept. Start a scheduler and workers, and "
        "run it again."
    )


class _SubmittedTask(partial[WorkerReport]):
    """A task for submitit. A requeued job begins it again; finished runs come from the store."""

    def checkpoint(self) -> Any:
        """The same call, which submitit submits again after a time limit or a preemption."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _SubmititWorkers(Workers):
    """Jobs of Slurm, or processes that submitit starts on this machine."""

    default_capacity = 10_000  # The cluster has a limit of its own.
    starts_processes = True

    def __init__(self, executor: Any, at_most: int | None) -> None:
        super().__init__(executor, at_most)
        self._submitted: dict[Future[WorkerReport], Any] = {}
        self._open = True
        self._poller = Thread(target=self._poll_jobs, daemon=True)
        self._poller.start()

    @classmethod
    def for_cluster(
        cls, cluster: str, folder: Path, options: Mapping[str, Any], at_most: int | None
    ) -> _SubmititWorkers:
        """Makes an executor of a cluster, with its scripts and logs in a shared folder."""
        try:
            import submitit
        except ModuleNotFoundError as error:
            raise MissingExtraError.of("This executor", error, "submitit") from error
        check_choice("cluster of submitit", cluster, _CLUSTERS)
        try:
            executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        except RuntimeError as error:
            raise WorkerError(
                f"submitit finds no {cluster} here: {error}. Run it where jobs can be submitted."
            ) from error
        try:
            executor.update_parameters(**{"timeout_min": _MINUTES, "name": "tracekit", **options})
        except (NameError, AssertionError, ValueError, TypeError) as error:
            raise ConfigError(
                f"submitit does not take the options {short_repr(dict(options))}: "
                f"{' '.join(str(error).split())}"
            ) from error
        return cls(executor, at_most)

    def submit(self, function: Function, tasks: Tasks) -> list[Future[WorkerReport]]:
        calls = [_SubmittedTask(function, *task) for task in tasks]
        try:
            if len(calls) == 1:
                jobs = [self._executor.submit(calls[0])]
            else:
                jobs = self._executor.submit_array(calls)
        except Exception as error:
            raise WorkerError(
                f"submitit cannot submit a job: {error} Run it where jobs can be submitted."
            ) from error
        futures: list[Future[WorkerReport]] = [Future() for _ in jobs]
        self._submitted.update(zip(futures, jobs, strict=True))
        return futures

    def is_lost(self, error: BaseException) -> bool:
        """Whether a job ended without an answer, or with a traceback."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        return isinstance(error, (FailedJobError, UncompletedJobError))

    def close(self) -> None:
        self._open = False
        for job in self._submitted.values():
            with suppress(Exception):
                job.cancel(check=False)

    def _poll_jobs(self) -> None:
        while self._open:
            for future, job in list(self._submitted.items()):
                if not job.done():
                    continue
                del self._submitted[future]
                try:
                    future.set_result(job.result())
                except Exception as error:
                    future.set_exception(error)
            time.sleep(_POLL_SECONDS)


def make_workers(
    executor: Any, jobs: int | None, options: Mapping[str, Any], folder: Path
) -> Workers:
    """The workers of an executor (as in `tracekit.sweep`), which are to be closed in the end.

    `jobs` run at a time, by default as many as it has. `options` are those of a submitit executor
    that an address stands for, whose files are in the shared folder.
    """
    home = type(executor).__module__.partition(".")[0]
    address = executor if isinstance(executor, str) else ""
    if options and not address.startswith(_SUBMITIT):
        raise ConfigError(
            f"Options of an executor were given ({', '.join(options)}), and it takes none here. "
            f"They are for {_SUBMITIT}slurm."
        )
    if executor is None:
        return _LocalProcesses(jobs or 1)
    if address.startswith(_DASK):
        return _DaskWorkers.connect(address.removeprefix(_DASK).rstrip("/"), jobs)
    if address.startswith(_SUBMITIT):
        cluster = address.removeprefix(_SUBMITIT).rstrip("/")
        return _SubmititWorkers.for_cluster(cluster, folder, options, jobs)
    if home == "distributed":
        # The executor of a client has no public way back to it.
        return _DaskWorkers(getattr(executor, "_client", executor), jobs, owned=False)
    if home == "submitit":
        return _SubmititWorkers(executor, jobs)
    if isinstance(executor, Executor):
        return FuturesExecutor(executor, jobs)
    raise ConfigError(
        f"Unknown executor {short_repr(executor)}. Give {_DASK}HOST:PORT, {_SUBMITIT}slurm, "
        f"{_SUBMITIT}local, or in Python a concurrent.futures.Executor, a Dask client or a "
        "submitit executor."
    )
