"""Speed beside other packages: `python -m tools.studies.peers [CHECKOUT] --lens FOLDER`.

CHECKOUT is one of github.com/hannamw/EAP-IG; without it, this peer is left out. It needs the
HookedTransformer that TransformerLens had up to 3.9. FOLDER is where that lies, apart from the
installed one; without it, only the installed TransformerLens is compared:

    pip install --no-deps --target FOLDER transformer-lens==3.9.0 better-abc

All sides get the same random weights and token ids. Each does its tasks in a process of its own, on
one thread, and the sides take turns. A time is processor time (on a GPU, wall time) from a loaded
model and token ids to the scores. Before it, the process does the same on two other pairs, so that
imports and checks of the model are left out. Work is what torch counts in matrix products, in plain
forward passes over the same pairs. Memory is the peak beyond what the process held before.

EAP-IG is run from a copy in which scores lie on the model's device (the original says "cuda"), and
it gets token ids in place of text. Nothing is downloaded.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from torch.utils.flop_counter import FlopCounterMode

from tools.benchmarks.edges import clock
from tools.studies import peer_sides as sides

SIDES: dict[str, Any] = {
    "tracekit": sides.Tracekit,
    "EAP-IG": sides.EAPIG,
    "HookedTransformer": sides.HookedTransformerSide,
    "TransformerLens": sides.TransformerBridgeSide,
}
OLD = ("EAP-IG", "HookedTransformer")
"""Sides that need TransformerLens 3.9."""


@dataclass(frozen=True)
class Task:
    """What is done, and by which peers."""

    method: str
    peers: tuple[str, ...]
    options: tuple[int, ...] = ()
    is_long: bool = False

    def n_pairs(self, shape: str) -> int:
        """How many pairs are taken."""
        return 4 if self.is_long and shape != "tiny" else 16


TASKS = {
    "EAP, all edges": Task("eap", ("EAP-IG", "TransformerLens")),
    "EAP-IG, all edges, 5 steps": Task("eap_ig", ("EAP-IG",)),
    "attribution patching, heads": Task(
        "head_attribution", ("HookedTransformer", "TransformerLens")
    ),
    "exact patching, each head": Task(
        "head_patching", ("HookedTransformer", "TransformerLens"), is_long=True
    ),
    "a circuit of 70 edges": Task("circuit", ("EAP-IG",), (70,)),
    "a circuit of 700 edges": Task("circuit", ("EAP-IG",), (700,)),
    "a further circuit of 70 edges": Task("next_circuit", ("EAP-IG",), (70,)),
    "a further circuit of 700 edges": Task("next_circuit", ("EAP-IG",), (700,)),
}


@dataclass(frozen=True)
class Measured:
    """One run of a task by one side."""

    task: str
    side: str
    seconds: float
    """For each pair."""
    mebibytes: float
    passes: float
    """Work for a pair, in plain forward passes; 0 if it was not counted."""


def peak_memory(device: str, *, restart: bool = False) -> float:
    """Most MiB that this process held since a restart; at one, what it holds."""
    if device != "cpu":
        if restart:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / 2**20
    if restart:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def operations(run: Callable[[], Any]) -> int:
    """Operations in matrix products."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def counted(method: Callable[..., sides.Job], task: Task, shape: str, device: str) -> float:
    """Work of a task, in plain forward passes over its pairs."""
    rows = sides.Rows.draw(shape, 2, task.n_pairs(shape))
    bare, tokens = sides.random_weights(shape, device), sides.padded(rows.clean, device)
    with torch.no_grad():
        plain = operations(partial(bare, tokens))
    return operations(method(rows, *task.options)[0]) / plain


def measured(
    name: str, side: Any, shape: str, device: str, *, count: bool
) -> tuple[Measured, torch.Tensor]:
    """A task done by a side, and its scores; two other pairs come first."""
    task = TASKS[name]
    method, n_pairs = getattr(side, task.method), task.n_pairs(shape)
    run, _ = method(sides.Rows.draw(shape, 1, 2), *task.options)
    run()
    run, read = method(sides.Rows.draw(shape, 3, n_pairs), *task.options)
    before = peak_memory(device, restart=True)
    begin = clock(device)
    result = run()
    seconds = (clock(device) - begin) / n_pairs
    mebibytes = peak_memory(device) - before
    passes = counted(method, task, shape, device) if count else 0.0
    kind = next(name for name, each in SIDES.items() if isinstance(side, each))
    return Measured(name, kind, seconds, mebibytes, passes), read(result).detach().double().cpu()


def work(side_name: str, shape: str, device: str, file: str, count: str, *names: str) -> None:
    """Does tasks in this process: scores go into a file, figures are printed as JSON."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    side = SIDES[side_name](shape, device)
    scores = {}
    for name in names:
        figures, scores[name] = measured(name, side, shape, device, count=bool(count))
        typer.echo(json.dumps(asdict(figures)))
    torch.save(scores, file)


def in_a_process(arguments: list[str], path: list[Path]) -> list[Measured]:
    """The same in a process of its own, with folders before the installed packages."""
    own = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, path), own])
    program = "import sys; from tools.studies.peers import work; work(*sys.argv[1:])"
    command = [sys.executable, "-c", program, *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{arguments[0]} did not run:\n{run.stderr[-2000:]}")
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    return [Measured(**json.loads(line)) for line in lines]


def adapted(checkout: Path, folder: Path) -> Path:
    """A copy of EAP-IG whose scores lie on the model's device; the folder to import it from."""
    shutil.copytree(checkout / "src" / "eap", folder / "eap")
    for file in (folder / "eap").glob("*.py"):
        file.write_text(file.read_text().replace("device='cuda'", "device=model.cfg.device"))
    return folder


def reasons_left_out(checkout: Path | None, lens: Path | None) -> dict[str, str]:
    """Why peers are not run, by their names."""
    reasons = {}
    if not (checkout and lens):
        reasons["EAP-IG"] = "It needs CHECKOUT and --lens."
    if not lens:
        reasons["HookedTransformer"] = "It needs --lens."
    return reasons


def rows_of_table(
    runs: list[Measured], scores: dict[str, dict[str, torch.Tensor]]
) -> Iterator[str]:
    """A row for each task and peer; runs are in the order of the turns."""
    figures: dict[tuple[str, str], list[Measured]] = {}
    for run in runs:
        figures.setdefault((run.task, run.side), []).append(run)
    for (task, side), theirs in figures.items():
        if side == "tracekit":
            continue
        own = figures[task, "tracekit"]
        cells = [task, side]
        for each in (theirs, own):
            times = [1000 * run.seconds for run in each]
            cells.append(f"{statistics.median(times):.0f} ({max(times):.0f})")
        ratios = [a.seconds / b.seconds for a, b in zip(theirs, own, strict=True)]
        cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f})")
        passes = [max(run.passes for run in each) for each in (theirs, own)]
        cells.append(", ".join(f"{each:.1f}" for each in passes) if all(passes) else "")
        memory = [max(run.mebibytes for run in each) for each in (theirs, own)]
        cells.append(", ".join(f"{each:.0f}" for each in memory))
        expected = scores[side][task]
        gap = (scores["tracekit"][task] - expected).abs().max() / expected.abs().max()
        cells.append(f"{gap:.0e}")
        yield f"| {' | '.join(cells)} |"


def main(
    checkout: Annotated[Path | None, typer.Argument(help="Of EAP-IG.")] = None,
    lens: Annotated[Path | None, typer.Option(help="Folder of TransformerLens 3.9.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    shape: Annotated[str, typer.Option(help=f"{' or '.join(sides.SHAPES)}.")] = "small",
    turns: Annotated[int, typer.Option(help="Runs of each side.")] = 3,
    only: Annotated[str, typer.Option(help="Tasks whose names start so.")] = "",
    count: Annotated[bool, typer.Option(help="Count passes, in the first turn.")] = True,
) -> None:
    """Prints a table, with medians, and in brackets the worst case."""
    n_edges = len(sides.edge_labels(shape))
    tasks = {
        name: task
        for name, task in TASKS.items()
        if name.startswith(only) and sum(task.options) <= n_edges
    }
    runs: list[Measured] = []
    scores: dict[str, dict[str, torch.Tensor]] = {}
    with TemporaryDirectory() as name:
        folder = Path(name)
        old = [adapted(checkout, folder)] if checkout else []
        old += [lens] if lens else []
        left_out = reasons_left_out(checkout, lens)
        for side, reason in left_out.items():
            typer.echo(f"{side} is left out. {reason}", err=True)
        for side in [*SIDES] * turns:
            chosen = [each for each, task in tasks.items() if side in ("tracekit", *task.peers)]
            if not chosen or side in left_out:
                continue
            file, counts = folder / f"{side}.pt", "count" if count and side not in scores else ""
            arguments = [side, shape, device, str(file), counts, *chosen]
            runs += in_a_process(arguments, old if side in OLD else [])
            scores[side] = torch.load(file)
            typer.echo(f"{side}: {len(runs)} runs", err=True)
    typer.echo(f"{shape}, {device}, torch {torch.__version__}, {turns} runs of each")
    typer.echo(
        "| task | peer | its ms a pair | tracekit's | ratio | passes | MiB | largest difference |"
    )
    typer.echo("| --- " * 8 + "|")
    for row in rows_of_table(runs, scores):
        typer.echo(row)


if __name__ == "__main__":
    typer.run(main)
