"""Packing: x and y of an example share one row, so that their prompt is computed once.

Where a model heeds an attention mask and position ids, a row holds a prompt and several branches,
the continuations:

    position in the row    0     1     2    3     4     5    6
    token                  The   nurse said her   turn  his  turn
    position id            0     1     2    3     4     3    4
    branch                 0     0     0    1     1     2    2

A token sees the earlier ones of its own branch and of the prompt (branch 0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tracekit._util.devices import to_device
from tracekit.data.counterfactuals import Ids

PASS_OVERHEAD_TOKENS = {"cpu": 64, "cuda": 4096}
"""Cost of one more pass in tokens, by which rows are grouped: measured for GPT-2 on a CPU, else an
estimate."""


@dataclass(frozen=True, eq=False)
class PackedSequences:
    """Token sequences that are run together, padded on the right: prompts with their branches."""

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
