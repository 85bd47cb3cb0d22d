"""Worker processes that end with the process that started them; imports nothing heavy."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, TypeVar

_R = TypeVar("_R")
_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that a terminal or a batch system may send to a command and all of its workers."""


class WorkerProcesses(Executor):
    """Runs functions in several processes.

    The workers ignore Ctrl-C and its like, which this process answers: they end as soon as the
    executor is shut down, in the middle of their work, and as soon as this process is gone.
    """

    def __init__(
        self, processes: int, *, start: Callable[..., None], arguments: tuple[Any, ...] = ()
    ) -> None:
        """Starts no process yet; every worker first calls `start`, a function of a module, once."""
        # Forked processes cannot use CUDA.
        context = multiprocessing.get_context("spawn")
        self._end, self._lifeline = context.Pipe(duplex=False)
        self._begun, begin = context.Pipe(duplex=False)
        # Packed: unpacking it in the worker imports the libraries that `start` needs.
        packed = pickle.dumps((start, arguments))
        self._pool = ProcessPoolExecutor(
            processes,
            mp_context=context,
            initializer=_start_worker,
            initargs=(self._end, begin, packed),
        )

    @property
    def has_ready_worker(self) -> bool:
        """Whether any worker was made ready; until then it runs the main script, as far as that."""
        return self._begun.poll()

    def submit(self, function: Callable[..., _R], /, *arguments: Any, **options: Any) -> Future[_R]:
        """Calls a function of a module in a worker; `BrokenProcessPool` if any worker is killed."""
        # A worker may be started here.
        with _block_signals(_STOPPING):
            return self._pool.submit(function, *arguments, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Ends the workers at once."""
        self._lifeline.close()
        self._end.close()
        self._begun.close()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


@contextmanager
def _block_signals(names: Iterable[str]) -> Iterator[None]:
    """Signals within the block wait for its end; processes started in it inherit that."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held_back = {getattr(signal, name) for name in names}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_if_restarted() -> None:
    """Ends a worker that runs the main script again and comes to where workers are started."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # Quietly: the process that started it says what to do.


def _start_worker(end: Connection, begin: Connection, packed: bytes) -> None:
    """Makes a worker end with its parent, then makes it ready for work."""
    Thread(target=_exit_when_closed, args=(end,), daemon=True).start()
    start, arguments = pickle.loads(packed)
    start(*arguments)
    begin.send_bytes(b"1")


def _exit_when_closed(end: Connection) -> None:
    """Waits until the other end of the pipe is closed, then ends this process at once."""
    try:
        end.recv_bytes()
    finally:
        # Not sys.exit: that would end this thread only. The system closes what is open.
        os._exit(1)
