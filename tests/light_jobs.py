"""Jobs for worker processes. Nothing heavy is imported, so that a worker is quick to start."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tracekit.processes import work_in_processes

_prefix = ""


def start(prefix: str) -> None:
    global _prefix
    _prefix = prefix


def work(item: str) -> str:
    if item == "fail":
        raise ValueError("it failed")
    if item == "die":
        os._exit(9)
    if item.startswith("/"):
        # Says that it is at work, and never ends.
        Path(item).write_text(str(os.getpid()))
        while True:
            time.sleep(0.01)
    return _prefix + item


if __name__ == "__main__":
    # The parent of the tests: says what its workers do.
    items = sys.argv[1:]
    jobs = work_in_processes(work, items, processes=len(items), start=start, arguments=("did ",))
    try:
        for _, outcome in jobs:
            print(outcome, flush=True)
    except KeyboardInterrupt:
        jobs.close()
        print("stopped", flush=True)
