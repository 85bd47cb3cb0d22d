"""Searches against greedy: `python -m tests.benchmarks.solvers [--method climb] [--seeds 10]`.

On the demo tasks, and on random GPT-2s with strong and mild interactions (8 layers of 8 heads,
width 64, vocabulary 600, weights by the recipe of the recorded numbers at scale 1.3 and 0.85; 64
pairs of 9 + 3 random tokens with one prompt token changed, oriented so that the full intervention
moves each towards y). Effects at 10, 20, 30 and 40 % of the heads as multiples of greedy's; cost
in passes, forward and backward alike.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Annotated

import torch
import transformers
import typer

import tracekit as tk
from tests.benchmarks.setting import DATA
from tracekit.datasets import DATASETS
from tracekit.metrics import resolve
from tracekit.runs import Engine
from tracekit.search import Goal, make

SHARES = (0.1, 0.2, 0.3, 0.4)
SCALES = {"strong": 1.3, "mild": 0.85}
VOCABULARY = 600


def random_engine(seed: int, scale: float) -> Engine:
    """A random GPT-2 with random pairs."""
    config = transformers.GPT2Config(
        n_layer=8, n_head=8, n_embd=64, n_positions=64, vocab_size=VOCABULARY
    )
    hf = transformers.AutoModelForCausalLM.from_config(config)
    model = tk.load_model(recipe().fill(hf, seed, scale))
    generator = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        return torch.randint(VOCABULARY, (count,), generator=generator).tolist()

    rows = []
    for _ in range(64):
        prompt = ids(9)
        other, (at,) = list(prompt), torch.randint(9, (1,), generator=generator).tolist()
        (other[at],) = ids(1)
        rows.append(
            {"prompt_ids": prompt, "counterfactual_ids": other, "x_ids": ids(3), "y_ids": ids(3)}
        )
    for row, effect in zip(rows, engine(model, rows).full_effects.tolist(), strict=True):
        if effect < 0:
            row["x_ids"], row["y_ids"] = row["y_ids"], row["x_ids"]
    return engine(model, rows)


def engine(model, rows: list[dict]) -> Engine:
    """All heads, odds ratio."""
    registry = tk.ComponentRegistry.build(model.cfg, "heads")
    return Engine(model, tk.PromptPairs.from_ids(rows), registry, resolve("odds-ratio"))


def recipe():
    """The module that fills models with reproducible weights."""
    path = Path(DATA).parent / "oracle" / "recipe.py"
    spec = importlib.util.spec_from_file_location("recipe", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def engines(seeds: int) -> Iterator[tuple[str, str, Engine]]:
    """Family, name and engine of every case."""
    demo = tk.load_model("demo")
    registry = tk.ComponentRegistry.build(demo.cfg, "heads")
    for name, entry in DATASETS.items():
        if name.startswith("demo-"):
            pairs = tk.load_dataset(name, demo)
            metric = resolve(entry.metric)
            yield "demo", name, Engine(demo, pairs, registry, metric, positions=entry.positions)
    for family, scale in SCALES.items():
        for seed in range(seeds):
            yield family, f"{family} {seed}", random_engine(seed, scale)


def main(
    method: Annotated[str, typer.Option(help="The search to compare.")] = "climb",
    seeds: Annotated[int, typer.Option(help="Random models of each kind.")] = 10,
) -> None:
    """Compares a search with greedy."""
    ratios: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    for family, name, case in engines(seeds):
        goal = Goal.make(case.n_components, budgets=SHARES)
        effects, costs = [], []
        for search in (make(method, {}), make("greedy", {})):
            before = case.cost
            found = search.search(case, goal, 0)
            effects.append([one.effects.mean().item() for one in found])
            costs.append((case.cost - before).forward_equivalents)
        against = [ours / theirs for ours, theirs in zip(*effects, strict=True)]
        ratios.setdefault(family, []).extend(against)
        shares.setdefault(family, []).append(costs[0] / costs[1])
        shown = " ".join(f"{ratio:.3f}" for ratio in against)
        print(f"{name}: {shown} of greedy's effect at {costs[0]:.0f} of {costs[1]:.0f} passes")  # noqa: T201
    for family, found in ratios.items():
        low = sum(ratio < 0.995 for ratio in found)
        print(  # noqa: T201
            f"{family}: mean {mean(found):.3f}, least {min(found):.3f}, below 0.995 in {low} of "
            f"{len(found)}; {mean(shares[family]):.2f} of the passes on average, "
            f"{max(shares[family]):.2f} at most"
        )


if __name__ == "__main__":
    typer.run(main)
