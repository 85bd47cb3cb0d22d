"""What a GPU gives, for `README.md` here: `python -m tools.benchmarks.gpu_figures [--out FILE]`.

On WinoBias and random weights of the sizes of GPT-2 small, Llama-3-8B (bfloat16) and SmolLM2-135M:
an evaluation, a step of PGB-CT, top-k, local search and edges, as ratios to the plain forward or
the naive floor of the same rows; each as it was (64 rows a pass, nothing recorded), and with
either. First what is worth most. What FILE holds already is not measured again, so that a run that
was stopped goes on. On the CPU it runs to the end on tiny shapes. `gpu.py` runs it, and all other
checks that need a GPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from math import inf
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import tracekit as tk
from tools.benchmarks.__main__ import machine
from tools.benchmarks.figures import STEP, stepper
from tools.benchmarks.setting import Model, Padded, medians, peak_bytes, some
from tracekit.engine.engine import Engine
from tracekit.search import Goal

SIZES = {"gpt2": torch.float32, "llama-3-8b": torch.bfloat16, "smollm2-135m": torch.float32}
TINY: Mapping[str, dict[str, int]] = {
    "gpt2": {"n_layer": 2, "n_embd": 48},
    "smollm2-135m": {"hidden_size": 36, "intermediate_size": 64, "num_hidden_layers": 2},
    "llama-3-8b": {
        "vocab_size": 50_257,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}
WAYS = {"before": (64, False), "more rows": (None, False), "both": (None, True)}
"""Rows in a pass (None: as the device holds), and whether passes are recorded."""
EVALUATION = "evaluation, both, plain forwards"
SEARCHES = {
    "local-search": {},
    "mask-ig": {},
    "pgb-ct": {"lambda1": 1e-4, "batch_size": 8, "epochs": 15},
}


def main(
    out: Annotated[Path, typer.Option(help="JSON; is gone on with.")] = Path("card.json"),
    minutes: Annotated[float, typer.Option(help="No section begins later.")] = 12.0,
    only: Annotated[str, typer.Option(help="Sizes, separated by commas.")] = "",
    sections: Annotated[str, typer.Option(help="Separated by commas.")] = "",
    device_name: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "",
    repeats: Annotated[int, typer.Option(help="Runs that medians are taken of.")] = 5,
    most_forwards: Annotated[
        float, typer.Option(help="Fail if an evaluation takes more plain forward passes.")
    ] = inf,
) -> None:
    """Measures what FILE lacks, and prints it."""
    start = time.monotonic()
    device = torch.device(device_name or ("cuda" if torch.cuda.is_available() else "cpu"))
    kept = json.loads(out.read_text()) if out.exists() else {"machine": machine(device)}
    chosen = sections.split(",") if sections else [each.__name__ for each in SECTIONS]
    for size in only.split(",") if only else SIZES:
        sections_of_size = {
            f"{size}, {section.__name__}": section
            for section in SECTIONS
            if section.__name__ in chosen
        }
        lacking = {name: each for name, each in sections_of_size.items() if name not in kept}
        if not lacking or time.monotonic() - start > 60 * minutes:
            continue
        setting = Setting(size, device, repeats)
        for name, section in lacking.items():
            if time.monotonic() - start <= 60 * minutes:
                figures = {}
                for figure, value in section(setting):
                    figures[figure] = value
                    typer.echo(f"{name}, {figure}: {value:.3g}")
                kept[name] = figures  # Only as a whole: what was cut off is measured again.
                out.write_text(json.dumps(kept, indent=1) + "\n")
        del setting
        if device.type == "cuda":
            torch.cuda.empty_cache()
    check_evaluations(kept, most_forwards)


def check_evaluations(kept: Mapping[str, Any], most_forwards: float) -> None:
    """Ends with an error if an evaluation, as tracekit does it, takes too long."""
    for section, figures in kept.items():
        took = figures.get(EVALUATION, 0)
        if section != "machine" and took > most_forwards:
            raise SystemExit(
                f"{section}: an evaluation takes {took:.2f} plain forward passes, and should take "
                f"at most {most_forwards:g}."
            )


class Setting:
    """A model, the examples of a step, and what takes as long as nothing but the model."""

    def __init__(self, size: str, device: torch.device, repeats: int) -> None:
        """Builds the model, and times plain passes over the examples."""
        tiny = {} if device.type == "cuda" else TINY[size]
        self.model = Model.make(device, size, dtype=SIZES[size], **tiny)
        self.device, self.repeats = device, repeats
        pairs = self.model.pairs("winobias")
        examples = some(pairs, STEP if device.type == "cuda" else 4)
        self.pairs = pairs.subset(examples)
        padded = Padded.of(pairs, examples, device)
        self.plain = self.seconds(lambda: padded.plain(self.model.bare))
        self.floor = self.seconds(lambda: padded.floor(self.model.bare))

    def seconds(self, task: Callable[[], object]) -> float:
        """Median time of a task, after one that warms up."""
        return medians({"it": task}, self.device, self.repeats)["it"]

    def ways(self, kinds: str = "attention-patterns") -> Iterator[tuple[str, Engine, Any]]:
        """An engine for each way, and a context in which it goes that way."""
        for way, (rows, is_recorded) in WAYS.items():
            engine = self.model.engine(self.pairs, kinds, max_batch_size=rows)
            cuda_graphs = engine.cuda_graphs
            yield way, engine, cuda_graphs.recording if is_recorded else nullcontext


Figures = Iterator[tuple[str, float]]


def step(setting: Setting) -> Figures:
    """An evaluation and a step, and the memory that a step takes."""
    yield "plain forward, ms", 1000 * setting.plain
    yield "floor, ms", 1000 * setting.floor
    for way, engine, context in setting.ways():
        mask, run = torch.full((engine.n_components,), 0.5), stepper(engine)
        with context():
            for _ in range(2):  # What is recorded is seen twice before.
                run(), engine.effects(mask)
            if way != "more rows":  # So few examples fit into a pass either way.
                effect = setting.seconds(lambda e=engine, m=mask: e.effects(m))
                yield f"evaluation, {way}, plain forwards", effect / setting.plain
                yield f"step, {way}, floors", setting.seconds(run) / setting.floor
            if setting.device.type == "cuda":
                yield f"examples a pass, {way}", engine.rows
                if way == "before":
                    yield "step, GiB", peak_bytes(run, setting.device) / 2**30


def topk(setting: Setting) -> Figures:
    """All heads of three layers, each by itself."""
    for way, engine, context in setting.ways():
        layers = engine.registry.sites
        wide = [layers[len(layers) * part // 7] for part in (1, 3, 6)]
        sets = [(number,) for site in wide for number in range(site.start, site.stop)]
        with context():
            took = setting.seconds(lambda e=engine, s=sets: e.set_effects(s).mean(1))
        yield f"{len(sets)} sets, {way}, plain forwards a set", took / len(sets) / setting.plain


def search(setting: Setting) -> Figures:
    """Local search, and mean gradients along a line, for ten heads."""
    for way, engine, context in setting.ways():
        for name, options in SEARCHES.items():
            target, made = tk.search.make_target(engine), tk.search.make(name, options)
            _, begin = engine.full_effects, time.perf_counter()
            with context():
                made.search(target, Goal() if "lambda1" in options else Goal(budgets=(10,)), 0)
            passes = target.cost.forward_equivalents
            took = (time.perf_counter() - begin) / passes / setting.plain
            yield f"{name}, {passes:.0f} passes, {way}, plain forwards a pass", took


def edges(setting: Setting) -> Figures:
    """A mask over edges, and its gradient."""
    for way, engine, context in setting.ways("edges-by-head"):
        mask = torch.rand(engine.n_components, generator=torch.Generator().manual_seed(0))
        with context():
            for _ in range(2):
                engine.effects(mask), engine.gradient(mask, torch.ones_like)
            effect = setting.seconds(lambda e=engine, m=mask: e.effects(m))
            slopes = setting.seconds(lambda e=engine, m=mask: e.gradient(m, torch.ones_like))
        yield f"{engine.n_components} edges, {way}, plain forwards", effect / setting.plain
        yield f"their gradient, {way}, floors", slopes / setting.floor


SECTIONS = (step, topk, search, edges)

if __name__ == "__main__":
    typer.run(main)
