"""Worker processes that end with the process that started them, however that ends.

Imports nothing heavy: a worker is ready to end before it has loaded a library.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, TypeVar

from tracekit.errors import WorkerLostError

_T = TypeVar("_T")
_R = TypeVar("_R")

_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that a terminal or a batch system may send to a command and all of its workers."""


def work_in_processes(
    function: Callable[[_T], _R],
    items: Iterable[_T],
    *,
    processes: int,
    start: Callable[..., None],
    arguments: tuple[Any, ...],
) -> Generator[tuple[int, _R], None, None]:
    """Calls a function on items, each once, in several processes.

    The workers ignore Ctrl-C and its like, which this process answers: they end as soon as the
    iterator is closed, by an exception or otherwise, and as soon as this process is gone.

    Args:
        function: Of a module; called in a worker.
        items: What it is called on.
        processes: Number of workers.
        start: Of a module; called once in every worker, before the first item.
        arguments: What it is called with.

    Yields:
        The number of an item and its outcome, in the order in which they are done.

    Raises:
        WorkerLostError: A worker was killed.
    """
    # Forked processes cannot use CUDA.
    context = multiprocessing.get_context("spawn")
    end, lifeline = context.Pipe(duplex=False)
    # Packed: unpacking it in the worker imports the libraries that `start` needs.
    packed = pickle.dumps((start, arguments))
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_start, initargs=(end, packed)
    )
    try:
        # Here the workers are started, as many as there are items to do.
        with _held_back(_STOPPING):
            numbers = {pool.submit(function, item): n for n, item in enumerate(items)}
        end.close()
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    except BrokenProcessPool as error:
        raise WorkerLostError(
            "A worker process was killed; often the memory was full. What is finished is kept. "
            "Run it again, with fewer processes or a smaller max_batch_size."
        ) from error
    finally:
        lifeline.close()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _held_back(names: Iterable[str]) -> Iterator[None]:
    """Signals that come within the block wait for its end; processes started in it never see them.

    A new process inherits which signals its parent holds back.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    held_back = {getattr(signal, name) for name in names}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(end: Connection, packed: bytes) -> None:
    """Makes a worker end with its parent, then makes it ready for work."""
    Thread(target=_end_with, args=(end,), daemon=True).start()
    start, arguments = pickle.loads(packed)
    start(*arguments)


def _end_with(end: Connection) -> None:
    """Waits until the other end of the pipe is closed, then ends this process at once."""
    try:
        end.recv_bytes()
    finally:
        # Not sys.exit: that would end this thread only. The system closes what is open.
        os._exit(1)
