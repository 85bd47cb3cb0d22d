"""How many of the strongest pairs are found: `python -m tools.studies.pairs [CASES]`.

Every pair of components is measured, the 20 with the largest absolute interaction are listed, and
`Tracer.strongest_pairs(20)` is asked for as many. Printed are how many of the 20 it has, the share
of their absolute interaction that its 20 have, and its passes beside those of all pairs.

- `demo`: heads, and 80 MLP outputs, on the demo tasks.
- `strong`, `mild`: 64 heads of random GPT-2s (see `tools.studies.solvers`).
"""

from __future__ import annotations

from itertools import combinations
from typing import Annotated

import torch
import typer

import tracekit as tk
from tools.studies.solvers import HEADS, SCALES, random_model, random_pairs
from tracekit.data.registry import DATASETS

COUNT = 20


def recall(name: str, tracer: tk.Tracer, n_looked_at: int, everyone: range) -> None:
    """Prints a line of the table."""
    engine, label = tracer.engine, tracer.registry.label
    pairs = list(combinations(everyone, 2))
    effects = engine.set_effects([*((i,) for i in everyone), *pairs], "all pairs").double().mean(1)
    i_and_j = torch.tensor(list(combinations(range(len(everyone)), 2))).T
    size = (effects[len(everyone) :] - effects[i_and_j[0]] - effects[i_and_j[1]]).abs()
    strongest = {
        frozenset(map(label, pairs[row])): size[row].item()
        for row in size.argsort(descending=True)[:COUNT].tolist()
    }
    before = engine.cost
    asked = [label(i) for i in everyone]
    found = tracer.strongest_pairs(COUNT, components=asked, n_looked_at=n_looked_at)
    cost = (engine.cost - before).forward_equivalents
    names = [frozenset(pair) for pair in zip(found.first, found.second, strict=True)]
    held = found.interactions.abs().sum().item() / sum(strongest.values())
    print(  # noqa: T201
        f"{name:40} {len(everyone):5} {sum(each in strongest for each in names):3} of {COUNT}"
        f" {held:7.3f} {cost:8.0f} {len(everyone) + len(pairs):8}",
        flush=True,
    )


def main(
    family: Annotated[list[str] | None, typer.Argument()] = None,
    first_seed: int = 7000,
    seeds: int = 3,
    looked_at: int = 64,
) -> None:
    """Prints the table."""
    torch.set_num_threads(2)
    for each in family or ["demo", *SCALES]:
        if each == "demo":
            model = tk.load_model("demo")
            for name, entry in DATASETS.items():
                if not name.startswith("demo-"):
                    continue
                rows = tk.load_dataset(name, model)[:32]
                setup = {"metric": entry.metric, "positions": entry.positions}
                heads = tk.Tracer(model, rows, HEADS, **setup)
                recall(f"{name}, heads", heads, looked_at, range(len(heads.registry)))
                outputs = tk.Tracer(model, rows, "mlp-outputs", **setup)
                recall(f"{name}, 80 MLP outputs", outputs, looked_at, range(0, 480, 6))
            continue
        for seed in range(first_seed, first_seed + seeds):
            model = random_model(seed, SCALES[each])
            rows = random_pairs(model, seed, 32)
            tracer = tk.Tracer(model, rows, HEADS, metric="odds-ratio")
            recall(f"{each} {seed}", tracer, looked_at, range(len(tracer.registry)))


if __name__ == "__main__":
    typer.run(main)
