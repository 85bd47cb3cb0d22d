"""Executors: where the jobs of a sweep run, and errors that say why a task did not end there."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, CancelledError, Executor
from threading import RLock

import torch
from tqdm.auto import tqdm

from tracekit._util.options import short_repr
from tracekit._util.processes import WorkerProcesses
from tracekit._util.threads import allowed_threads
from tracekit.errors import ConfigError, WorkerError
from tracekit.runs.store import decisive_versions

_MAIN_GUARD = 'if __name__ == "__main__":'


def start_processes(count: int) -> WorkerProcesses:
    """Processes of this machine, which share its threads and end with this process."""
    threads = max(1, allowed_threads() // count)
    return WorkerProcesses(count, start=_set_up, arguments=(threads,))


def _set_up(threads: int) -> None:
    torch.set_num_threads(threads)
    # A lock within this process: ending a worker would leave a shared lock behind.
    tqdm.set_lock(RLock())


def check_executor(executor: object) -> None:
    """Refuses what is neither None nor an executor of `concurrent.futures`."""
    if executor is not None and not isinstance(executor, Executor):
        raise ConfigError(
            f"The executor is {short_repr(executor)}. Give a concurrent.futures.Executor. A Dask "
            "client has one, client.get_executor(pure=False). On Slurm, leave the executor out "
            "and run one part in each task of a job array, e.g. part='3/16'."
        )


def count_workers(executor: Executor) -> int:
    """How many workers an executor says it has; 1 if it does not say."""
    workers = getattr(executor, "_max_workers", None)
    return workers if isinstance(workers, int) else 1


def explain_error(error: BaseException, executor: Executor) -> WorkerError | None:
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
