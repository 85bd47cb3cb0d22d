"""What the benchmarks run on: models of known sizes, real text, and the naive floor.

The floor is what a step costs that does nothing but the model's own work, and shares nothing: the
plain Hugging Face model with frozen weights, forward and backward over padded rows (one for each
continuation), and the log-softmax with its backward at the scored positions only.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import tracekit as tk
from tracekit.data.prompts import GaussianNoise, PromptPairs
from tracekit.engine.engine import Engine
from tracekit.engine.prepared import EngineConfig
from tracekit.metrics import resolve_metric

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
METRICS = {"facts": "probability-ratio"}
NOISE = GaussianNoise(std=3 * 0.2015)
SIZES: Mapping[str, transformers.PretrainedConfig] = {
    "gpt2": transformers.GPT2Config(),
    "gpt2-medium": transformers.GPT2Config(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-xl": transformers.GPT2Config(n_layer=48, n_head=25, n_embd=1600),
    "smollm2-135m": transformers.LlamaConfig(
        vocab_size=50_257,  # Of GPT-2's tokenizer; its own has 49,152.
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    ),
    "qwen2.5-0.5b": transformers.Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "llama-3.2-1b": transformers.LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    ),
    "llama-3-8b": transformers.LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    ),
}


@dataclass(frozen=True)
class Model:
    """The same random weights twice: traced, and bare for the floor."""

    traced: Any
    bare: Any
    device: torch.device

    @classmethod
    def make(
        cls,
        device: torch.device,
        size: str = "gpt2",
        *,
        bare: bool = True,
        dtype: torch.dtype = torch.float32,
        **changes: int,
    ) -> Model:
        """A model of a size, with GPT-2's tokenizer."""
        built = []
        for _ in range(1 + bare):
            torch.manual_seed(0)
            config = type(SIZES[size])(**{**SIZES[size].to_dict(), **changes})
            with device:  # Large ones are drawn faster on a card.
                made = transformers.AutoModelForCausalLM.from_config(config).eval().to(device)
            for parameter in made.parameters():
                parameter.requires_grad_(False)
            # Wrapped in float32: random weights of many layers are told apart by rounding.
            wrapped = made if built else tk.load_model(made, tokenizer=tokenizer())
            built.append(wrapped.to(dtype))
        return cls(*built, device) if bare else cls(*built, None, device)

    def engine(
        self, pairs: PromptPairs, kinds: str = "attention-patterns", **options: Any
    ) -> Engine:
        """An engine as a tracer would build it."""
        names = {key: options.pop(key) for key in ("layers", "indices") if key in options}
        registry = tk.components.ComponentRegistry.build(self.traced.cfg, kinds, **names)
        metric = resolve_metric(METRICS.get(pairs.name, "odds-ratio"))
        return Engine.build(self.traced, pairs, registry, metric, EngineConfig(**options))

    def pairs(self, name: str) -> PromptPairs:
        """A data set of the paper."""
        if name == "facts":
            records = json.loads((DATA / "known_facts" / "known_1000.json").read_text())
            rows = [{"prompt": r["prompt"], "x": " " + r["attribute"]} for r in records]
            return PromptPairs.from_text(rows, self.traced, noise=NOISE, name=name)
        return tk.load_dataset(name, self.traced, data_dir=DATA / name)


@dataclass(frozen=True, eq=False)
class Padded:
    """Examples as a straightforward implementation would run them."""

    tokens: Tensor
    row: Tensor
    pos: Tensor
    target: Tensor

    @classmethod
    def of(cls, pairs: PromptPairs, examples: Sequence[int], device: torch.device) -> Padded:
        """One row for each continuation (one for both if they are single tokens), padded."""
        rows: dict[tuple[int, ...], int] = {}
        places = []
        for number, pair in ((n, pairs[n]) for n in examples):
            for side in (pair.x_ids, pair.y_ids):
                if side is not None:
                    key = (number, *pair.prompt_ids, *side[:-1])
                    row = rows.setdefault(key, len(rows))
                    first = len(pair.prompt_ids) - 1
                    places += [(row, first + step, token) for step, token in enumerate(side)]
        width = max(map(len, rows)) - 1
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        for key, row in rows.items():
            tokens[row, : len(key) - 1] = torch.tensor(key[1:])
        row, pos, target = torch.tensor(places).T
        return cls(*(value.to(device) for value in (tokens, row, pos, target)))

    def forward(self, bare: Any, embedded: Tensor | None = None) -> Tensor:
        """Log-probabilities of the scored tokens."""
        given = {"input_ids": self.tokens} if embedded is None else {"inputs_embeds": embedded}
        hidden = bare.base_model(**given, use_cache=False).last_hidden_state
        logits = bare.get_output_embeddings()(hidden[self.row, self.pos])
        return logits.float().log_softmax(-1).gather(-1, self.target[:, None])

    def plain(self, bare: Any) -> None:
        """One plain forward."""
        with torch.no_grad():
            self.forward(bare)

    def floor(self, bare: Any) -> None:
        """The naive floor: forward and backward."""
        embedded = bare.get_input_embeddings()(self.tokens).requires_grad_(True)
        torch.autograd.grad(self.forward(bare, embedded).sum(), embedded)


def tokenizer() -> Any:
    """GPT-2's own."""
    folder = DATA / "gpt2_tokenizer"
    return transformers.GPT2TokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))


def some(pairs: PromptPairs, count: int, seed: int = 0) -> list[int]:
    """Numbers of random examples: what one step of PGB-CT takes."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    return order[:count].tolist()


def medians(
    tasks: Mapping[str, Callable[[], object]],
    device: torch.device,
    repeats: int,
    *,
    warm_up: bool = True,
) -> dict[str, float]:
    """Median seconds of each task; they take turns, after a warm-up each unless told otherwise."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(repeats + warm_up):
        for name, task in tasks.items():
            wait(device)
            start = time.perf_counter()
            task()
            wait(device)
            if turn >= warm_up:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(task: Callable[[], object], device: torch.device) -> int:
    """Most memory that a task holds at once, beyond what was held before."""
    if device.type == "cuda":
        wait(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        task()
        wait(device)
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        task()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak
