"""Commands in processes of their own, and what signals leave of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

ROOT: Path = Path(__file__).resolve().parents[1]
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # `paper` is only in the checkout.
    "PYTHONPATH": str(ROOT),
}


class Command:
    """A command in a session of its own, as a terminal starts it, and all that it starts."""

    def __init__(
        self, *arguments: object, log: Path, folder: Path | None = None, module: str = "tracekit"
    ) -> None:
        self._log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_ENVIRONMENT},
                cwd=folder,
                start_new_session=True,
                # A shell that starts the tests in the background has Ctrl-C ignored.
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def family(self) -> list[psutil.Process]:
        """The process and all processes that belong to it, in the session or out of it."""
        own = self.process.pid
        members = []
        for process in psutil.process_iter():
            try:
                elders = [elder.pid for elder in process.parents()]
                if os.getsid(process.pid) == own or own in elders:
                    members.append(process)
            except (psutil.Error, OSError):
                continue
        return members

    def wait_until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it ended too early: {self.output}"
            assert time.monotonic() < end, f"nothing happened: {self.output}"
            time.sleep(0.02)

    def stop(self, number: signal.Signals, *, group: bool = False) -> float:
        """Sends a signal; gives the seconds until no process of the command was left."""
        members = self.family()
        start = time.monotonic()
        (os.killpg if group else os.kill)(self.process.pid, number)
        try:
            self.process.wait(60)
            while any(map(_is_alive, members)):
                assert time.monotonic() - start < 60, "processes are left"
                time.sleep(0.02)
        finally:
            for member in members:
                if _is_alive(member):
                    member.kill()
        return time.monotonic() - start


def _is_alive(process: psutil.Process) -> bool:
    try:
        # Objects of psutil know their process by its start as well as its number.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
