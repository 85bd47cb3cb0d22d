"""One batch: rows that are run together, and how the continuations are read out of their logits.

Rows of similar length are run together (`length_buckets`). A batch reads next-token distributions
only where a token of a continuation is predicted (the *readout positions*), and scores every such
token there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tracekit.data.counterfactuals import Ids
from tracekit.metrics import ContinuationLogProbs, ContinuationMean, Reading, continuation_log_prob

PASS_OVERHEAD_TOKENS = {"cpu": 64, "cuda": 4096}
"""Cost of a further pass in tokens, to group rows by: of GPT-2 on a CPU, else an estimate."""


@dataclass(frozen=True, eq=False)
class PackedSequences:
    """Token sequences that are run together, padded on the right: prompts with their branches.

    x and y of an example share one row, so that their prompt is computed once, where a model heeds
    an attention mask and position ids. A row then holds a prompt and several branches, the
    continuations:

        position in the row    0     1     2    3     4     5    6
        token                  The   nurse said her   turn  his  turn
        position id            0     1     2    3     4     3    4
        branch                 0     0     0    1     1     2    2

    A token sees the earlier ones of its own branch and of the prompt (branch 0).
    """

    tokens: Int[Tensor, "row pos"]
    position_ids: Int[Tensor, "row pos"]
    """The number of earlier tokens that a token sees."""
    branches: Int[Tensor, "row pos"]
    """0 in the prompt, 1 and 2 in its continuations."""
    needs_attention_mask: bool = False
    """Whether to pass an attention mask and position ids. Required where a row has two branches."""

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def build(
        cls, rows: Sequence[tuple[Ids, tuple[Ids, ...]]], *, needs_attention_mask: bool = False
    ) -> PackedSequences:
        """Lays out prompts with their branches."""
        tokens, position_ids, branches = [], [], []
        for prompt, continuations in rows:
            parts = [prompt, *continuations]
            tokens.append([token for part in parts for token in part])
            branches.append([number for number, part in enumerate(parts) for _ in part])
            # Every branch counts on from the end of the prompt, not from the branch before it.
            after = [len(prompt) + step for branch in continuations for step in range(len(branch))]
            position_ids.append([*range(len(prompt)), *after])
        return cls(pad_ids(tokens), pad_ids(position_ids), pad_ids(branches), needs_attention_mask)

    @property
    def has_branches(self) -> bool:
        """Whether a row has two branches."""
        return bool((self.branches > 1).any())

    def select_rows(self, index: Any, width: int) -> PackedSequences:
        """Selects rows, cut to a width."""
        return self._map_tensors(lambda value: value[index, :width])

    def repeat(self, copies: int) -> PackedSequences:
        """Repeats the rows `copies` times."""
        return self._map_tensors(lambda value: value.repeat(copies, 1))

    def to(self, device: torch.device) -> PackedSequences:
        """The rows on a device."""
        return self._map_tensors(lambda value: to_device(value, device))

    def _map_tensors(self, change: Any) -> PackedSequences:
        parts = (self.tokens, self.position_ids, self.branches)
        tokens, position_ids, branches = map(change, parts)
        return PackedSequences(tokens, position_ids, branches, self.needs_attention_mask)

    def model_inputs(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Attention mask and position ids for a model of this type, on the device of the rows."""
        if not self.needs_attention_mask:
            return {}
        device, width = self.branches.device, self.tokens.shape[1]
        is_earlier = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        query, key = self.branches[:, :, None], self.branches[:, None, :]
        is_seen = is_earlier & ((key == 0) | (key == query))
        mask = torch.zeros(is_seen.shape, dtype=dtype, device=device)
        mask = mask.masked_fill(~is_seen, torch.finfo(dtype).min)
        return {"attention_mask": mask[:, None], "position_ids": self.position_ids}


def length_buckets(
    lengths: Int[Tensor, " item"],
    beyond: Bool[Tensor, " item"],
    max_batch_size: int,
    device: torch.device,
) -> Iterator[Int[Tensor, " part"]]:
    """Groups items to run together: of similar length, and on one side of the limit."""
    overhead = PASS_OVERHEAD_TOKENS.get(device.type, PASS_OVERHEAD_TOKENS["cpu"])
    order = lengths.argsort(stable=True)
    for side in (order[~beyond[order]], order[beyond[order]]):
        if len(side):
            yield from side.split(bucket_sizes(lengths[side].tolist(), max_batch_size, overhead))


def bucket_sizes(lengths: Sequence[int], max_batch_size: int, overhead: int) -> list[int]:
    """How many rows, sorted by length, to run in each pass.

    Each row costs the length of the longest row of its pass; each pass adds `overhead` tokens.
    Dynamic programming finds the cuts between lengths that cost least in all.
    """
    counts = [(length, len(list(same))) for length, same in groupby(lengths)]
    # cheapest[i]: least cost of the first i different lengths, and where their last bucket begins.
    cheapest: list[tuple[int, int]] = [(0, 0)]
    for end in range(1, len(counts) + 1):
        options = []
        rows = 0
        for start in range(end - 1, -1, -1):
            rows += counts[start][1]
            passes = -(-rows // max_batch_size)
            cost = cheapest[start][0] + rows * counts[end - 1][0] + passes * overhead
            options.append((cost, start))
        cheapest.append(min(options))
    cuts = [len(counts)]
    while cuts[-1]:
        cuts.append(cheapest[cuts[-1]][1])
    sizes = []
    for start, end in zip(cuts[:0:-1], cuts[-2::-1], strict=True):
        rows = sum(count for _, count in counts[start:end])
        passes = -(-rows // max_batch_size)
        # Even parts: a last one of a few rows would cost a pass of its own.
        sizes += [rows // passes + (number < rows % passes) for number in range(passes)]
    return sizes


def pad_ids(sequences: Sequence[Sequence[int]], filler: int = 0) -> Int[Tensor, "row pos"]:
    """Sequences under one another, filled up on the right."""
    if not sequences:
        raise ValueError("There are no sequences to pad.")
    rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
    return pad_sequence(rows, batch_first=True, padding_value=filler)


def pad_noise(rows: Sequence[Tensor | None], width: int) -> Float[Tensor, "row pos d_model"] | None:
    """Noise on the embeddings of rows, with zeros where there is none; None if no row has any."""
    given = [noise for noise in rows if noise is not None]
    if not given:
        return None
    padded = torch.zeros(len(rows), width, given[0].shape[1])
    for row, noise in enumerate(rows):
        if noise is not None:
            padded[row, : len(noise)] = noise
    return padded


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to run together, and how to read them; `Layout` explains fields of the same names."""

    examples: Int[Tensor, " example"]
    sequences: PackedSequences
    sources: Int[Tensor, " row"]
    """The counterfactual sequence of each row; always on the CPU."""
    positions: Bool[Tensor, "row pos"]
    first_position: int
    """The first position that is intervened on in any row."""
    n_positions: int
    """One past the last position that is intervened on in any row."""
    span_numbers: Int[Tensor, "row pos"] | None
    source_index: Int[Tensor, "row pos"] | None
    readout_positions: tuple[Int[Tensor, " readout"], Int[Tensor, " readout"]]
    """Row and position of every next-token distribution that is read."""
    scored_readout: Int[Tensor, " scored"]
    """For every scored token, the readout that predicts it."""
    scored_token: Int[Tensor, " scored"]
    """Token id of every scored token."""
    slot: Int[Tensor, " scored"]
    """Index of every scored token in `valid`, flattened; -1 for tokens that only fill up."""
    valid: Bool[Tensor, "example side token"]
    first_readout: Int[Tensor, " example"]
    """The readout that predicts the first token after the prompt, where token sets are read."""
    single_readout: Int[Tensor, " example"]
    """The readout that predicts the first token of x that differs from that of y."""
    single_tokens: Int[Tensor, "example side"]
    """The tokens of x and y there; -1 where there is none."""
    token_sets: Int[Tensor, "example side choice"]
    all_have_y: bool
    all_have_y_set: bool
    """Whether every example has a y or a set of tokens that count as y."""
    noise: Float[Tensor, "row pos d_model"] | None = None
    """Added to the input of the first block, if anything is."""

    def to(self, device: torch.device) -> Batch:
        """Moves the batch, except `sources`, to a device."""
        tensors = {
            name: to_device(value, device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and name != "sources"
        }
        read = tuple(to_device(each, device) for each in self.readout_positions)
        return replace(self, **tensors, sequences=self.sequences.to(device), readout_positions=read)

    def repeat(self, copies: int) -> Batch:
        """Repeats the batch `copies` times, one copy after the other."""
        if copies == 1:
            return self
        row, pos = self.readout_positions
        # Indices of the n-th copy lie n times the number of rows, readouts or slots further on.
        shift = torch.arange(copies, device=self.positions.device)[:, None]
        slots = torch.where(self.slot < 0, self.slot, self.slot + shift * self.valid.numel())
        indices = {
            "scored_readout": (self.scored_readout + shift * len(row)).flatten(),
            "first_readout": (self.first_readout + shift * len(row)).flatten(),
            "single_readout": (self.single_readout + shift * len(row)).flatten(),
            "slot": slots.flatten(),
        }
        others = {
            name: value.repeat(copies, *[1] * (value.ndim - 1))
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and name not in indices
        }
        readouts = (row + shift * len(self.sequences)).flatten(), pos.repeat(copies)
        sequences = self.sequences.repeat(copies)
        return replace(self, sequences=sequences, readout_positions=readouts, **indices, **others)

    @property
    def rows_by_example(self) -> Bool[Tensor, "example row"]:
        """Which rows the log-probabilities of each example are read from."""
        shape = len(self.examples) + 1, len(self.sequences)
        reads = torch.zeros(shape, dtype=torch.bool, device=self.slot.device)
        # Slots count the sides and tokens of one example, then those of the next. Tokens that only
        # fill up go to an extra row behind the last example.
        example = self.slot.div(self.valid[0].numel(), rounding_mode="floor")
        reads[example, self.readout_positions[0][self.scored_readout]] = True
        return reads[:-1]

    def read_log_probs(
        self,
        logits: Float[Tensor, "readout d_vocab"],
        mean: ContinuationMean,
        reads: Sequence[Reading] = (),
    ) -> ContinuationLogProbs:
        """Log-probabilities of the continuations, in float32, from the logits at the readouts."""
        logits = logits.float()
        log_probs = logits[self.scored_readout, self.scored_token]
        log_probs = log_probs - logits.logsumexp(-1)[self.scored_readout]
        sides = continuation_log_prob(self._arrange_by_example(log_probs, 0.0), self.valid, mean)
        more: dict[str, Tensor | None] = {}
        if "argmax" in reads:
            is_argmax = logits.argmax(-1)[self.scored_readout] == self.scored_token
            both = self._arrange_by_example(is_argmax, True).all(-1)
            more["x_is_argmax"] = both[:, 0]
            more["y_is_argmax"] = both[:, 1] if self.all_have_y else None
        if set(reads) - {"argmax"}:
            more |= self._read_single_tokens(logits, reads)
        return ContinuationLogProbs(sides[:, 0], sides[:, 1] if self.all_have_y else None, **more)

    def _read_single_tokens(
        self, logits: Float[Tensor, "readout d_vocab"], reads: Sequence[Reading]
    ) -> dict[str, Tensor | None]:
        """Reads single tokens: the first that differs, or for token sets the first of all."""
        more: dict[str, Tensor | None] = {}
        logs = logits[self.single_readout].log_softmax(-1)
        tokens = self.single_tokens
        if "distribution" in reads:
            more["distribution"] = logs
        if "token-sets" in reads:
            sets, of_first = self.token_sets, logits[self.first_readout].log_softmax(-1)
            more["set_choice"] = of_first.argmax(1)
            chosen = of_first[:, None].expand(-1, 2, -1).gather(2, sets.clamp(min=0))
            of_sides = chosen.masked_fill(sets < 0, -torch.inf)
            more["x_set"] = of_sides[:, 0].logsumexp(-1)
            if self.all_have_y_set:
                more["y_set"] = of_sides[:, 1].logsumexp(-1)
        if "answer-tokens" in reads:
            more["answer_tokens"] = tokens[:, : 1 + self.all_have_y]
        if "rank" in reads:
            more["x_rank"] = (logs > logs.gather(1, tokens[:, :1])).sum(1) + 1
            more["first_choice"] = logs.argmax(1)
        return more

    def _arrange_by_example(self, values: Tensor, absent: Any) -> Tensor:
        """Values of the scored tokens by example, side and token."""
        laid = values.new_full((self.valid.numel() + 1,), absent)
        return laid.index_put((self.slot,), values)[:-1].reshape(self.valid.shape)


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Moves a tensor to a device; from the CPU to CUDA without waiting for the copy."""
    if value.device.type == "cpu" and device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("A CUDA graph cannot capture a copy from host memory.")
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)
