"""Jobs for worker processes. Nothing heavy is imported, so that a worker is quick to start."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import as_completed
from pathlib import Path

from tracekit._util.processes import WorkerProcesses

_prefix = ""


def start(prefix: str) -> None:
    global _prefix
    _prefix = prefix


def work(item: str) -> str:
    if item == "fail":
        raise ValueError("it failed")
    if item == "die":
        os._exit(9)
    if item == "signals":
        held_back = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        return " ".join(number.name for number in held_back)
    if item.startswith("/"):
        # Says that it is at work, and never ends.
        Path(item).write_text(str(os.getpid()))
        while True:
            time.sleep(0.01)
    return _prefix + item


if __name__ == "__main__":
    # The parent of the tests: says what its workers do.
    items = sys.argv[1:]
    # A shell that starts the tests in the background has Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with WorkerProcesses(len(items), start=start, arguments=("did ",)) as workers:
            for future in as_completed([workers.submit(work, item) for item in items]):
                sys.stdout.write(f"{future.result()}\n")
    except KeyboardInterrupt:
        sys.stdout.write("stopped\n")
