"""Worker processes that end with the process that started them; imports nothing heavy."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator
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

    The workers ignore Ctrl-C and similar signals, which this process handles. They end at once,
    even in the middle of their work, when the executor is shut down or this process is gone.
    """

    def __init__(
        self, processes: int, *, start: Callable[..., None], arguments: tuple[Any, ...] = ()
    ) -> None:
        """Starts no process yet; every worker first calls `start`, a function of a module, once."""
        # Forked processes cannot use CUDA.
        context = multiprocessing.get_context("spawn")
        self._end, self._lifeline = context.Pipe(duplex=False)
        self._begun, begin = context.Pipe(duplex=False)
        # Unpickling this in the worker imports the libraries that `start` needs.
        packed = pickle.dumps((start, arguments))
        self._pool = ProcessPoolExecutor(
            processes, mp_context=context, initializer=_start, initargs=(self._end, begin, packed)
        )

    @property
    def has_ready_worker(self) -> bool:
        """Whether any worker has finished `start`; before that, workers run the main script."""
        return self._begun.poll()

    def submit(self, function: Callable[..., _R], /, *arguments: Any, **options: Any) -> Future[_R]:
        """Calls a function of a module in a worker; `BrokenProcessPool` if any worker is killed."""
        # A worker may be started here.
        with _block_stopping_signals():
            return self._pool.submit(function, *arguments, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Ends the workers at once."""
        self._lifeline.close()
        self._end.close()
        self._begun.close()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


@contextmanager
def _block_stopping_signals() -> Iterator[None]:
    """Delays signals to the end of the block; processes that are started in it inherit this."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held_back = {getattr(signal, name) for name in _STOPPING}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_if_restarted() -> None:
    """Ends a worker that runs the main script again and is about to start workers itself."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # Without a message: the parent process says what to do.


def _start(end: Connection, begin: Connection, packed: bytes) -> None:
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
        # sys.exit would end this thread only. The system closes open files.
        os._exit(1)
