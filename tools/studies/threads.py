"""Speed beside one busy program: `python -m tools.studies.threads [--model FOLDER]`.

Threads that wait for each other lose much more to a busy neighbour than the half of a core that it
takes. Each of the two works is timed quiet and beside a busy process, and quiet as torch would have
it by itself (`OMP_NUM_THREADS` of all cores). Run it on a quiet machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tracekit._util.threads import usable_cores

_REAL = """
import sys, warnings, tracekit as tk
warnings.simplefilter("ignore")
model = tk.load_model(sys.argv[1], dtype="float32")
tracer = tk.Tracer(model, tk.load_dataset("ioi", model, n=16), "head-outputs", "logit-difference")
tracer.run("attribution", budget=8)
tk.Tracer(model, tracer.pairs, "head-outputs", "logit-difference", layers=[12, 21]).run(
    "top-k", budget=4
)
"""
_BUSY = [sys.executable, "-c", "while True: pass"]


@contextmanager
def busy() -> Iterator[None]:
    """A busy process, while the block lasts."""
    process = subprocess.Popen(_BUSY)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def seconds(command: list[str], **environment: str) -> float:
    """Wall time of a command."""
    kept = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**kept, **environment})
    return time.perf_counter() - begin


def main(
    model: Annotated[Path | None, typer.Option(help="Folder of a model of 30 layers.")] = None,
    repeats: Annotated[int, typer.Option(help="Runs of which the fastest counts.")] = 2,
) -> None:
    """Prints seconds and ratios, each beside its bound."""
    works = {"demo": ([sys.executable, "-m", "tracekit", "demo"], 1.15, 1.3)}
    if model is not None:
        works["real"] = ([sys.executable, "-c", _REAL, str(model)], 1.0, 2.2)
    all_cores = str(usable_cores())
    for name, (command, quiet_bound, busy_bound) in works.items():
        # In turns, so that a change of the machine's speed hits all alike.
        quiet, by_itself, beside = [], [], []
        for _ in range(repeats):
            quiet.append(seconds(command))
            by_itself.append(seconds(command, OMP_NUM_THREADS=all_cores))
            with busy():
                beside.append(seconds(command))
        typer.echo(
            f"{name}, quiet: {min(quiet):.1f} s; on all cores, spinning: {min(by_itself):.1f} s"
        )
        for label, value, bound in (
            ("quiet / on all cores", min(quiet) / min(by_itself), quiet_bound),
            ("beside a busy process / quiet", min(beside) / min(quiet), busy_bound),
        ):
            typer.echo(f"{name}, {label}: {value:.2f} (at most {bound:g})")


if __name__ == "__main__":
    typer.run(main)
