"""How long `pareto` would take on many H100s: `python -m tests.benchmarks.scaling --project`.

Nothing here runs on an H100. A real search is recorded on a small model: which sets it measures on
how many examples, and where it takes gradients. What each of these calls costs on a large model
follows from its operations and bytes:

- A rank has its share of the examples, or of the sets where there are fewer than eight examples a
  rank, as in `Engine.set_effects`.
- Operations: two for each weight and token, times the share of the layers that a set runs
  (measured: 0.38 of plain forwards, docs/performance.md); a gradient costs as much again.
- A pass is never shorter than reading the weights once.
- A model that does not fit one device lies on several, layer after layer, as `device_map` puts it:
  one of them works at a time.
- Sums go round once a call, through the hosts.

The numbers of the hardware are constants below. The search on N examples makes the rounds of the
recorded one, and then those up to N with all sets that were left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

import tracekit as tk
from tests.benchmarks.solvers import SCALES, random_engine
from tracekit.search import Goal
from tracekit.search.racing import Portions

PEAK = 989e12
"""Operations a second of an H100 in bfloat16, dense."""
EFFICIENCY = 0.4
"""Share of them that matrix products of this size reach."""
BANDWIDTH = 3.35e12
"""Bytes a second from its memory."""
MEMORY = 80e9
"""Bytes."""
NETWORK = 2e9
"""Bytes a second between hosts, by TCP."""
LATENCY = 1e-4
"""Seconds for a message between hosts."""
LAYERS_RUN = 0.38
"""Cost of a set as a share of a plain forward pass, as measured (top-k, docs/performance.md)."""
TOKENS = 20
"""Of an example: a shared prompt and two continuations, as in WinoBias."""
N_EXAMPLES = 10_000
_RECORDED = 512


@dataclass(frozen=True)
class LargeModel:
    """What of a model matters here."""

    name: str
    parameters: float
    devices: int
    """Devices that one copy in bfloat16 needs, with room for activations."""


MODELS = (LargeModel("Llama-3-8B", 8.0e9, 1), LargeModel("Llama-3-70B", 70.6e9, 4))


@dataclass(frozen=True)
class Call:
    """What a search asks of the engine at once."""

    sets: int
    examples: int
    passes: int
    """1 forward, 2 with a gradient."""


@dataclass(frozen=True)
class Projected:
    """Seconds of a search, by what they go to."""

    compute: float
    """Operations, evenly shared."""
    idle: float
    """Ranks that have less to do than the slowest, and devices that wait for others' layers."""
    weights: float
    """Beyond the operations: passes so small that reading the weights takes longer."""
    messages: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.idle + self.weights + self.messages


def recorded(seed: int = 0) -> list[Call]:
    """The calls of local search over a random model, up to 30 % of 64 heads."""
    engine = random_engine(seed, SCALES["mild"], pairs=_RECORDED)
    calls = []
    measure, predict, expanded = engine.set_effects, engine.predict_changes, engine.expand

    def set_effects(sets, label="sets", *, examples=None):
        calls.append(Call(len(sets), _RECORDED if examples is None else len(examples), 1))
        return measure(sets, label, examples=examples)

    def predict_changes(members, *, examples=None):
        calls.append(Call(1, _RECORDED if examples is None else len(examples), 2))
        return predict(members, examples=examples)

    def expand(masks, examples):
        calls.append(Call(1, len(examples), 2))
        return expanded(masks, examples)

    object.__setattr__(engine, "set_effects", set_effects)
    object.__setattr__(engine, "expand", expand)
    object.__setattr__(engine, "predict_changes", predict_changes)
    tk.LocalSearch().search(engine, Goal(budgets=(19,)), seed)
    return calls


def for_all_examples(calls: Sequence[Call], n_examples: int) -> list[Call]:
    """The same search on more examples: whatever was measured on all of them goes on to all."""
    engine = random_engine(0, SCALES["mild"], pairs=_RECORDED)
    last = _RECORDED - Portions.make(engine, 0).stops[-2]
    longer = []
    for call in calls:
        is_last_round = call.passes == 1 and call.examples == last
        is_whole = call.examples == _RECORDED
        n = n_examples if is_whole else call.examples
        if call.passes == 2:
            # Gradients take turns on as many parts.
            n = ceil(call.examples / _RECORDED * n_examples)
        longer.append(Call(call.sets, n, call.passes))
        if is_last_round:
            stop = _RECORDED
            while stop < n_examples:
                longer.append(Call(call.sets, min(stop, n_examples - stop), 1))
                stop *= 2
    return longer


def projected(calls: Sequence[Call], model: LargeModel, devices: int, *, split: bool) -> Projected:
    """What the calls take.

    Args:
        calls: Of a search.
        model: The model.
        devices: H100s in all.
        split: Whether devices that share a copy work at the same time, each on a part of every
            matrix (tensor parallelism), which tracekit does not do.
    """
    ranks = devices // model.devices
    at_once = model.devices if split else 1
    flops = 2 * model.parameters * TOKENS
    compute = idle = weights = messages = 0.0
    for call in calls:
        share = LAYERS_RUN if call.passes == 1 else 1.0
        work = call.sets * call.examples * flops * share * call.passes
        ideal = work / (devices * PEAK * EFFICIENCY)
        if call.examples >= 8 * ranks:
            part = call.sets * ceil(call.examples / ranks)
        else:
            part = ceil(call.sets / ranks) * call.examples
        slowest = part * flops * share * call.passes / (at_once * PEAK * EFFICIENCY)
        least = 2 * model.parameters * share * call.passes / (at_once * BANDWIDTH)
        compute += ideal
        idle += slowest - ideal
        weights += max(0.0, least - slowest)
        if ranks > 1:
            n_bytes = 8 * call.sets * call.examples
            messages += 2 * n_bytes / NETWORK + 2 * ceil(log2(ranks)) * LATENCY
    return Projected(compute, idle, weights, messages)


def main() -> None:
    """Prints the table."""
    calls = for_all_examples(recorded(), N_EXAMPLES)
    # The statistics of a front repeat the search on both halves.
    print("model, H100s, minutes: all = compute + idle + small passes + messages")  # noqa: T201
    for model in MODELS:
        for devices in (8, 64):
            for split in (False, True) if model.devices > 1 else (False,):
                took = projected(calls, model, devices, split=split)
                parts = (took.total, took.compute, took.idle, took.weights, took.messages)
                shown = " ".join(f"{2 * seconds / 60:8.2f}" for seconds in parts)
                note = ", with tensor parallelism" if split else ""
                print(f"{model.name}, {devices:2}: {shown}{note}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
