"""Trains the demonstration model from scratch: `python -m tools.demo_model.train --output DIR`."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from tqdm.auto import tqdm
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tools.demo_model.config import DemoConfig
from tools.demo_model.evaluate import BehaviourScores, evaluate
from tools.demo_model.model_card import Outcome, model_card
from tools.demo_model.sentences import sentences, vocabulary

UNKNOWN, END, PADDING = "<unk>", "<eos>", "<pad>"
IGNORED = -100
"""Label of positions that the loss leaves out."""

# No token types: for each of them GPT-2 would add the embedding of word 0 to the token's.
_MODEL_INPUTS = ["input_ids", "attention_mask"]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the word-level tokenizer; it adds no token at the beginning of a text."""
    words = [UNKNOWN, END, PADDING, *vocabulary()]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, UNKNOWN))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token=UNKNOWN,
        eos_token=END,
        pad_token=PADDING,
        model_input_names=_MODEL_INPUTS,
    )


def build_model(config: DemoConfig, tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """Builds the untrained model; of random states only the config's seed decides its weights."""
    ids = tokenizer.get_vocab()
    gpt2_config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=config.positions,
        n_embd=config.width,
        n_layer=config.layers,
        n_head=config.heads,
        # No sentence is repeated on purpose: dropout would only blur the shares.
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=ids[END],
        eos_token_id=ids[END],
        pad_token_id=ids[PADDING],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return GPT2LMHeadModel(gpt2_config)


def _padded(rows: list[list[int]], end: int) -> tuple[Tensor, Tensor]:
    """Returns inputs and labels of shape (rows, longest length); labels are shifted by one."""
    width = max(len(row) for row in rows)
    inputs = torch.full((len(rows), width), end)
    labels = torch.full((len(rows), width), IGNORED)
    for index, row in enumerate(rows):
        inputs[index, : len(row)] = torch.tensor(row)
        labels[index, : len(row)] = torch.tensor([*row[1:], end])
    return inputs, labels


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: int, batch_size: int
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yields training batches without end.

    A batch holds one sentence per row from position 0. Its shorter and its longer sentences are
    two halves, which saves padding. Every update still sees all behaviours.

    Args:
        tokenizer: Splits the sentences.
        seed: Determines the sentences.
        batch_size: Sentences in a batch, at least 2.

    Yields:
        Two pairs of inputs and labels, each an integer tensor of shape (rows, longest length).
    """
    stream = sentences(seed)
    end = tokenizer.get_vocab()[END]
    while True:
        rows = sorted(tokenizer(list(islice(stream, batch_size)))["input_ids"], key=len)
        half = batch_size // 2
        yield [_padded(rows[:half], end), _padded(rows[half:], end)]


def _rate_factor(step: int, config: DemoConfig) -> float:
    """Returns the learning rate of an update as a share of the peak: warm-up, then cosine."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


def _optimizer(model: GPT2LMHeadModel, config: DemoConfig) -> torch.optim.AdamW:
    """Returns AdamW that decays matrices but neither biases nor layer-norm gains."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.peak_rate, betas=(0.9, 0.98))


def _update(
    model: Any, optimizer: torch.optim.Optimizer, batch: list[tuple[Tensor, Tensor]]
) -> float:
    """Makes one update and returns the mean loss per token before it."""
    count = sum(int((labels != IGNORED).sum()) for _, labels in batch)
    total = 0.0
    optimizer.zero_grad()
    for inputs, labels in batch:
        logits = model(input_ids=inputs, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / count
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


@contextmanager
def _reproducible(threads: int) -> Iterator[None]:
    """Fixes the number of threads and the algorithms, and restores both afterwards."""
    threads_before = torch.get_num_threads()
    strict_before = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        torch.use_deterministic_algorithms(strict_before)


def train(
    config: DemoConfig, tokenizer: PreTrainedTokenizerFast
) -> tuple[GPT2LMHeadModel, list[float]]:
    """Trains a model from scratch, the same one every time for the same config.

    Args:
        config: Its size and training.
        tokenizer: From `build_tokenizer`.

    Returns:
        The trained model in evaluation mode, and the mean loss per token of each update in nats.
    """
    losses: list[float] = []
    with _reproducible(config.threads):
        model = build_model(config, tokenizer).train()
        optimizer = _optimizer(model, config)
        schedule = LambdaLR(optimizer, lambda step: _rate_factor(step, config))
        stream = islice(batches(tokenizer, config.seed, config.batch_size), config.steps)
        progress = tqdm(stream, total=config.steps, unit="step")
        for batch in progress:
            losses.append(_update(model, optimizer, batch))
            schedule.step()
            progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    return model.eval(), losses


def _write_tokenizer(tokenizer: PreTrainedTokenizerFast, positions: int, folder: Path) -> None:
    """Writes the tokenizer in the layout that every version of `transformers` reads."""
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "eos_token": END,
        "pad_token": PADDING,
        "model_input_names": _MODEL_INPUTS,
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(tokenizer_config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _make_folder(config: DemoConfig, folder: Path) -> BehaviourScores:
    """Trains, measures and writes the model with its card; returns the scores."""
    tokenizer = build_tokenizer()
    started = time.perf_counter()
    model, losses = train(config, tokenizer)
    minutes = (time.perf_counter() - started) / 60
    scores = evaluate(model, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    _write_tokenizer(tokenizer, config.positions, folder)
    outcome = Outcome(scores, minutes, losses[-1], model.num_parameters(), len(tokenizer))
    (folder / "README.md").write_text(model_card(config, outcome), encoding="utf-8")
    return scores


def main(
    output: Annotated[Path, typer.Option(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option(help="Determines the weights.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Number of updates.", min=1)] = DemoConfig.steps,
    threads: Annotated[int, typer.Option(help="Processor threads.", min=1)] = DemoConfig.threads,
) -> None:
    """Trains the demonstration model from scratch and writes it with its model card."""
    scores = _make_folder(DemoConfig(seed=seed, steps=steps, threads=threads), output)
    for behaviour, score in asdict(scores).items():
        typer.echo(f"{behaviour}: {score:.4f}")


if __name__ == "__main__":
    typer.run(main)
