"""How much faster two processes are than one: `python -m tools.benchmarks.ranks [--ranks 2]`.

Each process has one thread, or a device with `--device cuda`. Timed, at GPT-2 small's sizes: an
epoch of PGB-CT over WinoBias dev with its evaluation, and top-k of heads spread over all layers.
The machine must do nothing else, and have a core for each process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import tracekit as tk
from tools.benchmarks.setting import Model
from tracekit._util.ranks import Ranks, join_launched, launched_device
from tracekit.search import Goal

QUICK: dict[str, Any] = {"n_layer": 4, "n_embd": 48}
"""Sizes that `--quick` changes."""
TASKS = ("an epoch of PGB-CT", "top-k, 24 heads")


class Timed:
    """Time spent in waiting for other ranks, and in adding parts up."""

    waited = added = 0.0

    @classmethod
    def watch(cls) -> None:
        """Counts from now on."""
        add = Ranks.sum_ranks

        def timed(ranks: Ranks, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
            start = time.perf_counter()
            if ranks.count > 1:
                dist.barrier(ranks._group)
            met = time.perf_counter()
            try:
                return add(ranks, *parts)
            finally:
                cls.waited += met - start
                cls.added += time.perf_counter() - met

        Ranks.sum_ranks = timed


def work(file: Path, device: str | None, *, quick: bool) -> None:
    """Times the tasks in this process; the first rank writes what they took."""
    torch.set_num_threads(1)
    ranks = join_launched()
    where = torch.device((launched_device() or "cuda") if device == "cuda" else "cpu")
    model = Model.make(where, bare=False, **(QUICK if quick else {}))
    pairs = model.pairs("winobias")
    pairs = pairs.subset(range(64)) if quick else pairs
    engine = model.engine(pairs)
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    search = tk.search.PGBCT(lambda1=1e-4, epochs=1, example_order=[order])
    part = model.engine(pairs.subset(order[: 16 if quick else 64]))
    singles = [(head,) for head in range(0, engine.n_components, engine.n_components // 24)]
    # Clean and counterfactual runs are done once, whatever follows; PGB-CT needs all of the latter.
    search.search(tk.search.make_target(engine), Goal(), 0)
    _ = part.full_effects
    took = {}
    Timed.watch()
    for name, task in zip(
        TASKS,
        (
            lambda: search.search(tk.search.make_target(engine), Goal(), 0),
            lambda: part.set_effects(singles),
        ),
        strict=True,
    ):
        ranks.sum_ranks(torch.zeros(1))  # All begin together.
        Timed.waited = Timed.added = 0.0
        start = time.perf_counter()
        task()
        took[name] = (time.perf_counter() - start, Timed.waited, Timed.added)
    if ranks.is_first:
        file.write_text(json.dumps(took))


def timed(
    ranks: int, device: str, *, copies: int = 1, quick: bool = False
) -> dict[str, tuple[float, float, float]]:
    """What the tasks take, and what of it goes to waiting and adding up, by so many processes.

    Args:
        ranks: Processes that share a trace.
        device: Where.
        copies: How many such traces run at the same time; the slowest counts.
        quick: Whether the model is narrow, and the pairs are few.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.json" for number in range(copies)]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        program = ["-m", "tools.benchmarks.ranks", "--device", device]
        program += ["--quick"] if quick else []
        program += ["--work"]
        running = [
            subprocess.Popen([sys.executable, *launcher, *program, str(file)]) for file in files
        ]
        if any([process.wait() for process in running]):
            raise SystemExit("A process failed.")
        answers = [json.loads(file.read_text()) for file in files]
    return {name: max(answer[name] for answer in answers) for name in TASKS}


def main() -> None:
    """Compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="a narrow model and few pairs")
    parser.add_argument("--work", type=Path, help="used by the launched processes")
    given = parser.parse_args()
    if given.work is not None:
        work(given.work, given.device, quick=given.quick)
        return
    alone, together = (timed(count, given.device, quick=given.quick) for count in (1, given.ranks))
    beside = timed(1, given.device, copies=given.ranks, quick=given.quick)
    for name in TASKS:
        ratio = alone[name][0] / together[name][0]
        possible = given.ranks * alone[name][0] / beside[name][0]
        waited, added = (100 * part / together[name][0] for part in together[name][1:])
        print(  # noqa: T201
            f"{name}: {alone[name][0]:.1f} s by one, {together[name][0]:.1f} s by {given.ranks}: "
            f"{ratio:.2f} times as fast; {added:.1f} % of it adding up, {waited:.1f} % waiting "
            "for the slower process. "
            f"{given.ranks} processes that share nothing do {possible:.2f} times the work of one"
        )


if __name__ == "__main__":
    main()
