"""All that is to be run on the next GPU, step by step: `python -m tools.benchmarks.gpu`.

    python -m tools.benchmarks.gpu --out gpu.jsonl [--peers CHECKOUT] [--lens FOLDER]
    python -m tools.benchmarks.gpu --device cpu --quick     # the same in small, without a GPU

Each step is a process with a time limit below ten minutes; with `--quick` it is four minutes for
all but the last. When it ends, a line of JSON with its outcome and the end of its output is added
to FILE. The same command goes on where the last one ended: it leaves out the steps that FILE has,
unless `--retry` repeats those that did not pass. A step that fails or takes too long does not stop
the others. `--minutes` is the time that one call may take: a step that might take longer than what
is left is not begun.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Literal

import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
LIMIT, QUICK_LIMIT = 540.0, 240.0
"""Seconds that a step may take; with `--quick` fewer, so that a call has room for several steps."""
TAIL = 6000
"""Characters of its output that are kept."""
GRACE = 10.0
"""Seconds that a step has to end by itself after its limit."""
MOST_FORWARDS = 1.3
"""Plain forward passes that an evaluation at GPT-2's sizes is to take at most."""
Outcome = Literal["passed", "failed", "out of time", "left out"]


@dataclass(frozen=True)
class Step:
    """A program of Python."""

    name: str
    arguments: tuple[str, ...]
    limit: float = LIMIT
    reason_left_out: str = ""
    """Why it cannot be run here; empty if it can."""


@dataclass(frozen=True)
class Record:
    """What became of a step."""

    step: str
    arguments: tuple[str, ...]
    outcome: Outcome
    error: str
    """The last line of what it wrote, or why it ended; empty if it passed."""
    seconds: float
    output: str
    """The end of what it wrote."""
    device: str

    def is_final(self, *, retry: bool) -> bool:
        """Whether the step is not run again."""
        return self.outcome == "passed" or (self.outcome != "left out" and not retry)


@dataclass(frozen=True)
class Plan:
    """What is run, and where."""

    device: str = "cuda"
    quick: bool = False
    peers: Path | None = None
    lens: Path | None = None
    folder: Path = Path()
    """Where steps keep files of their own."""

    def steps(self) -> Iterator[Step]:
        """All steps, in their order."""
        limit = QUICK_LIMIT if self.quick else LIMIT
        for step in (
            *self._tests(),
            *self._evaluations(),
            *self._edges(),
            self._peers(),
            *self._figures(),
        ):
            yield replace(step, limit=min(step.limit, limit))
        # It starts three rounds of processes, so it is slow in small, too.
        yield from self._several()

    def _tests(self) -> Iterator[Step]:
        pytest = ("-m", "pytest", "-q", "-n", "0", "--durations=5")
        edges = "tests/engine/test_cuda_edges.py"
        if self.device == "cpu":
            quick = ("-k", "connected") if self.quick else ()
            yield Step("tests of edges", (*pytest, "-m", "not gpu", edges, *quick))
            return
        yield Step("tests of edges", (*pytest, "-m", "gpu", edges))
        yield Step("other tests", (*pytest, "-m", "gpu", "tests", f"--ignore={edges}"))

    def _evaluations(self) -> Iterator[Step]:
        size = "gpt2"
        for number in (1, 2, 3):
            file = self.folder / f"evaluation-{number}.json"
            arguments = [*self._gpu_figures(size, file), "--sections", "step"]
            if not self.quick:
                arguments += ["--most-forwards", str(MOST_FORWARDS)]
            yield Step(f"evaluation at GPT-2's sizes, run {number}", tuple(arguments), 240)

    def _edges(self) -> Iterator[Step]:
        device = ("--device", self.device)
        sparse = ("-m", "tools.benchmarks.edges", *device)
        learned = ("-m", "tools.studies.edge_circuits", "measure")
        file = str(self.folder / "edge-circuits.jsonl")
        methods = ("--methods", "mask-ig,given")
        memory = ("-m", "tools.studies.large_models", "measure", *device)
        if self.quick:
            demo = ("--model", "demo", "--pairs", "4", "--repeats", "1")
            yield Step("sparse passes over edges", (*sparse, *demo, "--task", "demo-facts"))
            few = ("--model", "demo", "--examples", "8", "--fresh", "4")
            yield Step("learned rankings", (*learned, "demo-facts", file, *few, *methods, *device))
            small = ("--sizes", "gpt2", "--layers", "2", "--pairs", "2", "--repeats", "1")
            yield Step("edges in large models", (*memory, *small))
            return
        yield Step("sparse passes over edges", (*sparse, "--pairs", "64"))
        for draw in ("1", "2"):
            options = ("--methods", "mask-ig,drawn,eap-ig", "--draw", draw, *device)
            yield Step(f"learned rankings, draw {draw}", (*learned, "ioi", file, *options))
        for size in ("gpt2-xl", "llama-3-8b"):
            options = ("--sizes", size, "--dtype", "bfloat16", "--pairs", "32")
            yield Step(f"edges at the sizes of {size}", (*memory, *options))

    def _peers(self) -> Step:
        shape = ("--shape", "tiny", "--turns", "1") if self.quick else ("--shape", "small")
        arguments = ["-m", "tools.studies.peers", "--device", self.device, *shape, "--no-count"]
        arguments += [str(self.peers)] if self.peers else []
        arguments += ["--lens", str(self.lens)] if self.lens else []
        return Step("peers", tuple(arguments))

    def _figures(self) -> Iterator[Step]:
        for size in ("gpt2",) if self.quick else ("gpt2", "smollm2-135m", "llama-3-8b"):
            file = self.folder / "figures.json"
            sections = ("--sections", "edges") if self.quick else ("--minutes", "8")
            yield Step(f"figures of {size}", (*self._gpu_figures(size, file), *sections))

    def _several(self) -> Iterator[Step]:
        count = 2 if self.device == "cpu" else torch.cuda.device_count()
        reason = "" if count > 1 else f"There is only {count} GPU."
        arguments = ["-m", "tools.benchmarks.ranks", "--device", self.device]
        arguments += ["--ranks", str(count), *(["--quick"] if self.quick else [])]
        yield Step("several GPUs", tuple(arguments), reason_left_out=reason)

    def _gpu_figures(self, size: str, file: Path) -> tuple[str, ...]:
        module = ("-m", "tools.benchmarks.gpu_figures", "--only", size, "--device", self.device)
        return (*module, "--out", str(file), *(("--repeats", "1") if self.quick else ()))


def read_records(file: Path) -> dict[tuple[str, tuple[str, ...]], Record]:
    """The last record of each step with its arguments; a line that was cut off does not count."""
    records = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        record = Record(**{**values, "arguments": tuple(values["arguments"])})
        records[record.step, record.arguments] = record
    return records


def add_record(record: Record, file: Path) -> None:
    """Adds a line, behind one that may have been cut off."""
    text = file.read_text() if file.exists() else ""
    end_of_line = "\n" if text and not text.endswith("\n") else ""
    with file.open("a") as stream:
        stream.write(f"{end_of_line}{json.dumps(asdict(record))}\n")


def run_steps(
    steps: Sequence[Step], file: Path, device: str, seconds: float, *, retry: bool = False
) -> bool:
    """Runs the steps that a file lacks, and adds their records; returns whether none is left."""
    start, records = time.monotonic(), read_records(file)
    is_begun = False
    for step in steps:
        earlier = records.get((step.name, step.arguments))
        if earlier is not None and earlier.is_final(retry=retry):
            typer.echo(f"{step.name}: {earlier.outcome} before")
            continue
        left = seconds - (time.monotonic() - start)
        if is_begun and step.limit > left:
            typer.echo(f"{step.name}: may take {step.limit:.0f} s, {max(left, 0):.0f} s are left")
            return False
        is_begun |= not step.reason_left_out
        record = run_step(step, device)
        add_record(record, file)
        typer.echo(f"{step.name}: {record.outcome} after {record.seconds:.0f} s. {record.error}")
    return True


def run_step(step: Step, device: str) -> Record:
    """Runs a step in a process of its own."""
    if step.reason_left_out:
        return Record(step.name, step.arguments, "left out", step.reason_left_out, 0.0, "", device)
    typer.echo(f"{step.name}: python {' '.join(step.arguments)}")
    start = time.monotonic()
    # Unbuffered and without a frame, so that an error is the last line that is written.
    plain = {"PYTHONUNBUFFERED": "1", "TYPER_STANDARD_TRACEBACK": "1"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **plain}
    outcome: Outcome = "passed"
    with TemporaryFile("w+", errors="replace") as stream:
        process = subprocess.Popen(
            [sys.executable, *step.arguments],
            cwd=ROOT,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            # Processes that it starts end with it.
            start_new_session=True,
        )
        try:
            outcome = "failed" if process.wait(step.limit) else "passed"
        except subprocess.TimeoutExpired:
            outcome = "out of time"
        finally:
            end_group(process)
        stream.seek(0)
        output = stream.read()
    lines = [line for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else f"It wrote nothing and returned {process.returncode}."
    errors = {
        "passed": "",
        "failed": last,
        "out of time": f"It did not end within {step.limit:.0f} s. The last it wrote: {last}",
    }
    seconds = time.monotonic() - start
    return Record(
        step.name, step.arguments, outcome, errors[outcome], seconds, output[-TAIL:], device
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that still runs, and all that it started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(GRACE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def summary(records: Sequence[Record]) -> Iterator[str]:
    """A line for each step, and how many evaluations were as fast as they are to be."""
    for record in records:
        yield f"{record.step}: {record.outcome}. {record.error}"
    evaluations = [record for record in records if "--most-forwards" in record.arguments]
    n_passed = sum(record.outcome == "passed" for record in evaluations)
    if evaluations:
        yield f"evaluations in at most {MOST_FORWARDS} forward passes: {n_passed} of 3 runs"


def main(
    out: Annotated[Path, typer.Option(help="JSON lines; is gone on with.")] = Path("gpu.jsonl"),
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    quick: Annotated[bool, typer.Option(help="Everything in small.")] = False,
    minutes: Annotated[float, typer.Option(help="That one call may take.")] = 9.5,
    retry: Annotated[bool, typer.Option(help="Repeat the steps that did not pass.")] = False,
    peers: Annotated[Path | None, typer.Option(help="A checkout of EAP-IG.")] = None,
    lens: Annotated[Path | None, typer.Option(help="Folder of TransformerLens 3.9.")] = None,
    only: Annotated[str, typer.Option(help="Steps whose names start so.")] = "",
) -> None:
    """Runs the steps that FILE lacks."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("There is no GPU here. Use --device cpu --quick to try the steps.")
    # So that the step that runs is ended, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = out.resolve().parent / f"{out.stem}-files"
    folder.mkdir(parents=True, exist_ok=True)
    steps = [
        step
        for step in Plan(device, quick, peers, lens, folder).steps()
        if step.name.startswith(only)
    ]
    named = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    is_done = run_steps(steps, out, named, 60 * minutes, retry=retry)
    records = read_records(out)
    finished = [records.get((step.name, step.arguments)) for step in steps]
    for line in summary([record for record in finished if record is not None]):
        typer.echo(line)
    if not is_done:
        typer.echo("Run the same command again to go on.")


if __name__ == "__main__":
    typer.run(main)
