"""The figures of `README.md` here, each a ratio with the bound it is held to."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import torch

import tracekit as tk
from tools.benchmarks.setting import DATA, Model, Padded, medians, peak_bytes, some, wait
from tracekit.data.registry import DATASETS
from tracekit.engine.engine import Engine
from tracekit.measure.shapley import SetGame, sampled_values
from tracekit.search import Goal
from tracekit.search.learned.reward import LossGradient, make_loss

STEP = 32
"""Examples in a step of PGB-CT."""


@dataclass(frozen=True)
class Figure:
    """One measured figure."""

    name: str
    value: float
    bound: float | None
    """It should be at most this; None: for information."""
    of: str
    """What the value is a ratio to, or its unit."""
    at_least: bool = False
    """Whether the bound is a lower one."""

    @property
    def holds(self) -> bool:
        """Whether the bound is kept."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    device: torch.device
    repeats: int = 5
    quick: bool = False

    def model(self) -> Model:
        """The model that most figures are measured on."""
        return Model.make(self.device)


def step(plan: Plan) -> Iterator[Figure]:
    """Time of a step against the naive floor on the same examples."""
    model = plan.model()
    cases = [("winobias", "attention-patterns"), ("winobias", "mlp-outputs")]
    cases += (
        []
        if plan.quick
        else [("professions", "attention-patterns"), ("professions", "mlp-outputs")]
    )
    cases += [] if plan.quick else [("facts", "attention-patterns"), ("facts", "mlp-outputs")]
    for name, kinds in cases:
        pairs = model.pairs(name)
        examples = some(pairs, STEP)
        padded = Padded.of(pairs, examples, plan.device)
        tasks = {"floor": lambda p=padded: p.floor(model.bare)}
        # One engine on the examples of the step alone: its counterfactual run is not timed.
        engine = model.engine(pairs.subset(examples), kinds)
        tasks["step"] = stepper(engine)
        took = medians(tasks, plan.device, plan.repeats)
        bound = 0.75 if name == "winobias" else 1.15
        yield Figure(f"step, {kinds}, {name}", took["step"] / took["floor"], bound, "floor")
        if plan.device.type == "cuda":
            tokens = padded.tokens.numel() / took["step"]
            yield Figure(f"naive tokens per second, {kinds}, {name}", tokens, None, "1/s")


def stepper(engine) -> Callable[[], object]:
    """A step of PGB-CT on all examples of an engine."""
    target = tk.search.make_target(engine)
    reward = LossGradient(target, make_loss("dataset", target))
    mask = torch.full((engine.n_components,), 0.5, device=engine.device)
    examples = torch.arange(engine.n_examples)
    optimizer = torch.optim.Adam([mask], lr=0.1)

    def run() -> None:
        mask.grad = reward.step(mask, examples)
        optimizer.step()
        mask.clamp_(0, 1)

    return run


def searches(plan: Plan) -> Iterator[Figure]:
    """Searches that count forwards, against as many plain forwards over the data."""
    model = plan.model()
    pairs = model.pairs("winobias")
    examples = some(pairs, 16 if plan.quick else STEP)
    padded = Padded.of(pairs, examples, plan.device)
    engine = model.engine(pairs.subset(examples))
    every = 6 if plan.quick else 3
    singles = [(i,) for i in range(0, 144, every)]
    chosen = (20, 57, 100)
    more = [(*chosen, i) for i in range(1, 144, every)]
    rng = torch.Generator().manual_seed(0)
    drawn = [tuple(torch.randperm(144, generator=rng)[:14].tolist()) for _ in range(24)]
    heads = [i for layer in (6, 8, 9) for i in range(12 * layer, 12 * layer + 12)]
    paired = heads[:: 4 if plan.quick else 1]
    grid = [(i,) for i in paired] + list(combinations(paired, 2))
    plain = medians({"plain": lambda: padded.plain(model.bare)}, plan.device, plan.repeats)["plain"]
    engine.set_effects(singles[:1]).mean(1)
    for name, sets, bound in (
        ("top-k", singles, 0.6),
        ("greedy, a step", more, 0.6),
        ("interaction grid", grid, 0.7),
        ("random sets", drawn, None),
    ):
        task = {name: lambda s=sets: engine.set_effects(s).mean(1)}
        took = medians(task, plan.device, 1, warm_up=False)[name]
        yield Figure(f"{name}, {len(sets)} sets", took / len(sets) / plain, bound, "plain forwards")


def values(plan: Plan) -> Iterator[Figure]:
    """What `explain` measures: all subsets of ten heads; drawn orders of forty components."""
    model = plan.model()
    pairs = model.pairs("winobias")
    examples = some(pairs, 8)
    padded = Padded.of(pairs, examples, plan.device)
    heads = range(0, 140, 14)
    game = SetGame(model.engine(pairs.subset(examples)), heads)
    plain = medians({"plain": lambda: padded.plain(model.bare)}, plan.device, plan.repeats)["plain"]
    _ = game.engine.clean
    took = medians({"all": lambda: game.every_effect()}, plan.device, 1, warm_up=False)["all"]
    yield Figure("all 1024 subsets of ten heads", took / 1024 / plain, 0.35, "plain forwards")
    demo = tk.load_model("demo", device=plan.device)
    for name in ("demo-facts", "demo-bias"):
        pairs, metric = tk.load_dataset(name, demo)[:32], DATASETS[name].metric
        tracer = tk.Tracer(demo, pairs, "mlp-outputs", metric)
        strongest = tracer.engine.predict_changes(()).gradient.argsort(descending=True)[:40]
        errors = []
        for seed in range(3):
            game = SetGame(tracer.engine, strongest.tolist())
            drawn = sampled_values(game, max_sets=2000, seed=seed)
            errors.append(drawn.sampling_error.max() / drawn.per_example.mean(1).abs().max())
        text = f"{name}, values of 40 MLP outputs by 2000 subsets: largest sampling error, 3 seeds"
        yield Figure(text, max(errors).item(), 0.05, "largest value")


def epoch(plan: Plan) -> Iterator[Figure]:
    """An epoch of PGB-CT over WinoBias dev, with the evaluation of the truncated mask."""
    model = plan.model()
    pairs = model.pairs("winobias")
    order = some(pairs, len(pairs))
    parts = [order[i : i + STEP] for i in range(0, len(order), STEP)]
    batches = [Padded.of(pairs, part, plan.device) for part in parts]
    whole = [
        Padded.of(pairs, range(i, min(i + 64, len(pairs))), plan.device)
        for i in range(0, len(pairs), 64)
    ]
    engine = model.engine(pairs)
    search = tk.search.PGBCT(lambda1=1e-4, epochs=1, example_order=[order])
    tasks = {
        "epoch": lambda: search.search(tk.search.make_target(engine), Goal(), 0),
        "floor": lambda: [batch.floor(model.bare) for batch in batches],
        "plain": lambda: [batch.plain(model.bare) for batch in whole],
    }
    took = medians(tasks, plan.device, 1 if plan.quick else 3)
    yield Figure(
        "epoch, WinoBias dev",
        took["epoch"] / (took["floor"] + took["plain"]),
        0.75,
        "floor + plain forward",
    )
    yield Figure("epoch, WinoBias dev", took["epoch"], None, "s")


def share(plan: Plan) -> Iterator[Figure]:
    """How much of a step is not the model's own work."""
    model = plan.model()
    pairs = model.pairs("winobias")
    examples = some(pairs, STEP)
    for kinds in ("attention-patterns", "mlp-outputs"):
        engine = model.engine(pairs.subset(examples), kinds)
        run = stepper(engine)
        run()
        bare = bare_pass(engine)
        took = medians({"step": run, "bare": bare}, plan.device, plan.repeats)
        yield Figure(
            f"step, {kinds}: outside the model's own operations",
            1 - took["bare"] / took["step"],
            0.10,
            "step",
        )
        if plan.device.type == "cpu":
            yield Figure(f"step, {kinds}: in matrix products", in_products(run), None, "step")


def bare_pass(engine) -> Callable[[], object]:
    """The model's own work in a step: the same rows and scored places, no intervention."""
    batches = engine.batches

    def run() -> None:
        with torch.enable_grad():
            for batch in batches:
                leaves = []

                def hook(activation, hook=None, leaves=leaves):
                    leaves.append(activation.detach().requires_grad_(True))
                    return leaves[0]

                first = [("blocks.0.attn.hook_pattern", hook)]
                scores = engine.forward_pass.log_probs(batch, first)
                torch.autograd.grad(scores.x.sum() + scores.y.sum(), leaves)

    return run


def in_products(run: Callable[[], object]) -> float:
    """Share of the operators' own time that matrix products take."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    events = profile.key_averages()
    own = {event.key: event.self_cpu_time_total for event in events}
    names = ("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm")
    return sum(own.get(name, 0) for name in names) / sum(own.values())


def memory(plan: Plan) -> Iterator[Figure]:
    """Peak memory of a step against the floor's, and of a large noise run."""
    model = plan.model()
    pairs = model.pairs("winobias")
    examples = some(pairs, STEP)
    padded = Padded.of(pairs, examples, plan.device)
    padded.floor(model.bare)
    floor = peak_bytes(lambda: padded.floor(model.bare), plan.device)
    for kinds in ("attention-patterns", "mlp-outputs"):
        engine = model.engine(pairs.subset(examples), kinds)
        run = stepper(engine)
        run()
        peak = peak_bytes(run, plan.device)
        yield Figure(f"peak memory of a step, {kinds}", peak / floor, 1.3, "floor")
    if plan.quick:
        return
    del model, engine, run
    large = Model.make(plan.device, "gpt2-xl", bare=False)
    pairs = large.pairs("facts")[:200]

    def trace() -> None:
        engine = large.engine(pairs, "mlp-outputs", max_batch_size=8)
        mask = torch.full((engine.n_components,), 0.5, device=plan.device)
        engine.gradient(mask, torch.ones_like, torch.arange(STEP))

    yield Figure("200 facts with noise, GPT-2 xl", peak_bytes(trace, plan.device) / 2**30, 2, "GiB")


def real(plan: Plan) -> Iterator[Figure]:
    """SmolLM2-135M against its own plain forward over the same rows, logits at all positions."""
    model = tk.load_model("smollm2-135m", device=plan.device)
    pairs = tk.load_dataset("winobias", model, data_dir=DATA / "winobias")
    pairs = pairs.subset(some(pairs, STEP))
    begin = time.perf_counter()
    tracer = tk.Tracer(model, pairs, "attention-patterns", "odds-ratio")
    wait(plan.device)
    took = {"tracer": time.perf_counter() - begin}
    begin = time.perf_counter()
    tk.Tracer(model, pairs, "attention-patterns", "odds-ratio")
    wait(plan.device)
    took["another tracer on the same model"] = time.perf_counter() - begin
    begin = time.perf_counter()
    _ = tracer.full_effect
    wait(plan.device)
    took["first effect, with clean and counterfactual runs"] = time.perf_counter() - begin
    engine = tracer.engine
    bare = model.original_model
    ones = torch.ones(engine.n_components)
    singles = [(9 * layer + head,) for layer in (4, 14, 24) for head in range(9)]

    def plain() -> None:
        with torch.no_grad():
            for batch in engine.batches:
                bare(batch.sequences.tokens, use_cache=False)

    tasks = {
        "plain": plain,
        "evaluation of a mask": lambda: tracer.evaluate(ones),
        "epoch of PGB-CT, with its evaluation": lambda: _step_and_evaluation(engine),
        "top-k, a set": lambda: engine.set_effects(singles),
    }
    took |= medians(tasks, plan.device, 1 if plan.quick else 3)
    took["top-k, a set"] /= len(singles)
    bounds = {
        "tracer": 3,
        "another tracer on the same model": 1,
        "evaluation of a mask": 1.2,
        "top-k, a set": 0.45,
    }
    plain_seconds = took.pop("plain")
    yield Figure("plain forward of 32 examples", plain_seconds, None, "s")
    for name, seconds in took.items():
        yield Figure(name, seconds / plain_seconds, bounds.get(name), "plain forwards")
    if not plan.quick:
        yield real_memory(model, plan.device)
        yield from real_paths(model, plan)


def _step_and_evaluation(engine: Engine) -> None:
    """An epoch of PGB-CT over the first examples, with the evaluation of its mask."""
    order = [list(range(STEP))]
    tk.search.PGBCT(lambda1=1e-4, epochs=1, example_order=order).search(
        tk.search.make_target(engine), Goal(), 0
    )


def real_memory(model: Any, device: torch.device) -> Figure:
    """Peak memory of a tracer of 160 examples and of a step, with the weights."""
    pairs = tk.load_dataset("winobias", model, data_dir=DATA / "winobias")[:160]

    def trace() -> None:
        tracer = tk.Tracer(model, pairs, "attention-patterns", "odds-ratio")
        _ = tracer.full_effect
        _step_and_evaluation(tracer.engine)

    weights = sum(each.nbytes for each in model.original_model.parameters())
    peak = peak_bytes(trace, device)
    return Figure(f"peak memory, {len(pairs)} examples", 1 + peak / weights, 1.5, "weights")


def real_paths(model: Any, plan: Plan) -> Iterator[Figure]:
    """Paths among ten heads of every third layer, in plain forwards for each of their 100 pairs."""
    pairs = tk.load_dataset("ioi", model)[:16]
    tracer = tk.Tracer(model, pairs, "head-outputs", "logit-difference")
    heads = [(layer, 4) for layer in range(0, 30, 3)]

    def plain() -> None:
        with torch.no_grad():
            for batch in tracer.engine.batches:
                model.original_model(batch.sequences.tokens, use_cache=False)

    tasks = {
        "plain": plain,
        "paths of ten heads": lambda: tracer.paths(heads, by_input=False),
        "the same by query, key and value": lambda: tracer.paths(heads),
    }
    took = medians(tasks, plan.device, 1)
    for name in list(tasks)[1:]:
        share = took[name] / took["plain"] / len(heads) ** 2
        yield Figure(name, share, 0.5, "k^2 plain forwards")


def start(plan: Plan) -> Iterator[Figure]:
    """Importing, the command's help, and the demonstration."""
    commands = {
        "import tracekit": ([sys.executable, "-c", "import tracekit"], 0.3),
        "tracekit --help": ([sys.executable, "-m", "tracekit", "--help"], 0.6),
    }
    if not plan.quick:
        commands["tracekit demo"] = ([sys.executable, "-m", "tracekit", "demo"], 45)
    for name, (command, bound) in commands.items():
        taken = []
        for _ in range(1 if name == "tracekit demo" else 5):
            begin = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            taken.append(time.perf_counter() - begin)
        yield Figure(name, sorted(taken)[len(taken) // 2], bound, "s")


def compiled(plan: Plan) -> Iterator[Figure]:
    """What torch.compile would bring: to the bare trunk, and to the activation function alone.

    A hook ends a compiled graph, so of a traced model only the parts between hooks can be
    compiled, and of those only the activation function is more than a matrix product.
    """
    model = plan.model()
    pairs = model.pairs("winobias")
    examples = some(pairs, STEP)
    padded = Padded.of(pairs, examples, plan.device)
    plain, fused = model.bare, SimpleNamespace(lm_head=model.bare.lm_head)
    trunk = torch.compile(plain.transformer)
    fused.transformer = CompiledTrunk(trunk, plain.transformer.wte)
    begin = time.perf_counter()
    padded.floor(fused)
    yield Figure("compiling the bare trunk for one shape", time.perf_counter() - begin, None, "s")
    tasks = {"plain": lambda: padded.floor(plain), "fused": lambda: padded.floor(fused)}
    took = medians(tasks, plan.device, plan.repeats)
    yield Figure("floor, compiled", took["fused"] / took["plain"], None, "floor")
    run = stepper(model.engine(pairs.subset(examples)))
    mlps = [block.mlp.original_component for block in model.traced.blocks]
    plain_act, fused_act = mlps[0].act, torch.compile(mlps[0].act, dynamic=True)

    def using(act: Callable) -> Callable[[], object]:
        def task() -> None:
            for mlp in mlps:
                mlp.act = act
            run()

        return task

    tasks = {"plain": using(plain_act), "fused": using(fused_act)}
    took = medians(tasks, plan.device, plan.repeats)
    yield Figure("step, compiled activation", took["fused"] / took["plain"], None, "step")


@dataclass(frozen=True)
class CompiledTrunk:
    """A compiled trunk that still shows its embedding."""

    call: Callable
    wte: torch.nn.Module

    def __call__(self, **inputs: object) -> object:
        """Runs it."""
        return self.call(**inputs)


FIGURES = {
    "step": step,
    "searches": searches,
    "values": values,
    "epoch": epoch,
    "share": share,
    "memory": memory,
    "start": start,
    "real": real,
    "compiled": compiled,
}
