"""How well the workers of a sweep use their cores: `python -m tools.benchmarks.sweeps`.

Runs the same sweep by one process and by as many as there are models, each with one thread, and
prints the speed-up over the number of workers: 1 is perfect. Starting the processes and loading the
models counts. The machine must do nothing else, and have a core for each worker.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

import tracekit as tk


def seconds(folder: Path, models: int, jobs: int, seeds: int, draws: int) -> float:
    """Wall time of a sweep of the demo model under several names.

    Args:
        folder: For its runs.
        models: Number of names, each of which a worker loads for itself.
        jobs: Number of workers.
        seeds: Runs for each model.
        draws: Random sets for each run, which make it longer.
    """
    start = time.perf_counter()
    tk.sweep(
        models=[f"model-{number}=demo" for number in range(models)],
        datasets=["demo-facts"],
        methods=[tk.search.Random(draws=draws)],
        budgets=[8],
        seeds=range(seeds),
        output=folder,
        jobs=jobs,
        progress=False,
    )
    return time.perf_counter() - start


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=8, help="runs for each model")
    parser.add_argument("--draws", type=int, default=500, help="random sets for each run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Libraries are imported, and files are in memory.
    tk.load_model("demo")
    sizes = (options.seeds, options.draws)
    with tempfile.TemporaryDirectory() as folder:
        one = seconds(Path(folder, "one"), options.workers, 1, *sizes)
        several = seconds(Path(folder, "several"), options.workers, options.workers, *sizes)
    share = one / several / options.workers
    print(f"one worker: {one:.1f} s, {options.workers} workers: {several:.1f} s")  # noqa: T201
    print(f"of perfect: {share:.2f}")  # noqa: T201


if __name__ == "__main__":
    main()
