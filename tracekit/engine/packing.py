"""Token sequences that fork: a prompt (the trunk) and its continuations (the branches).

Where a model can be told which tokens see which, several continuations share one computation of
their prompt:

    position in the row    0     1     2    3     4     5    6
    token                  The   nurse said her   turn  his  turn
    depth (position id)    0     1     2    3     4     3    4
    branch                 0     0     0    1     1     2    2

A token sees the earlier ones of its own branch and of the trunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tracekit.models.loading import sent

Ids = tuple[int, ...]

PASS_CHARGE = {"cpu": 64, "cuda": 4096}
"""What one more pass costs, in tokens: weights are read again, kernels launched again. Measured
with GPT-2's sizes on a CPU; an estimate for CUDA. It decides how rows are grouped, nothing else."""


@dataclass(frozen=True, eq=False)
class Sequences:
    """Token sequences that are run together, padded on the right. Each is a trunk with branches."""

    tokens: Int[Tensor, "row pos"]
    """Token ids."""
    depths: Int[Tensor, "row pos"]
    """Position ids: the number of earlier tokens that a token sees."""
    branches: Int[Tensor, "row pos"]
    """0 in the trunk, 1 and 2 in its branches."""
    told: bool = False
    """Whether the model is told depths and which tokens see which. It must be where rows fork."""

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def build(
        cls, trees: Sequence[tuple[Ids, tuple[Ids, ...]]], *, told: bool = False
    ) -> Sequences:
        """Lays out trunks with their branches."""
        tokens, depths, branches = [], [], []
        for trunk, limbs in trees:
            parts = [trunk, *limbs]
            tokens.append([token for part in parts for token in part])
            branches.append([number for number, part in enumerate(parts) for _ in part])
            below = [len(trunk) + step for limb in limbs for step in range(len(limb))]
            depths.append([*range(len(trunk)), *below])
        return cls(pad(tokens), pad(depths), pad(branches), told)

    @property
    def forks(self) -> bool:
        """Whether a row has two branches."""
        return bool((self.branches > 1).any())

    def rows(self, index: Any, width: int) -> Sequences:
        """Some of the sequences, cut to a width."""
        cut = (value[index, :width] for value in (self.tokens, self.depths, self.branches))
        return Sequences(*cut, told=self.told)

    def repeat(self, copies: int) -> Sequences:
        """The sequences `copies` times over."""
        parts = (value.repeat(copies, 1) for value in (self.tokens, self.depths, self.branches))
        return Sequences(*parts, told=self.told)

    def to(self, device: torch.device) -> Sequences:
        """The sequences on a device."""
        parts = (sent(value, device) for value in (self.tokens, self.depths, self.branches))
        return Sequences(*parts, told=self.told)

    def inputs(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """What the model is told besides the tokens, made where they are.

        Args:
            dtype: The model's.
        """
        if not self.told:
            return {}
        device, width = self.branches.device, self.tokens.shape[1]
        earlier = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        query, key = self.branches[:, :, None], self.branches[:, None, :]
        seen = earlier & ((key == 0) | (key == query))
        mask = torch.zeros(seen.shape, dtype=dtype, device=device)
        mask = mask.masked_fill(~seen, torch.finfo(dtype).min)
        return {"attention_mask": mask[:, None], "position_ids": self.depths}


def bucket_sizes(lengths: Sequence[int], batch_size: int, charge: int) -> list[int]:
    """How many of some rows, sorted by length, to run in each pass.

    Every row of a pass costs the length of its longest one, and every pass costs `charge` tokens
    besides. The cuts between lengths that cost least in all are found by dynamic programming.
    """
    counts = [(length, len(list(same))) for length, same in groupby(lengths)]
    best: list[tuple[int, int]] = [(0, 0)]
    for end in range(1, len(counts) + 1):
        options = []
        rows = 0
        for start in range(end - 1, -1, -1):
            rows += counts[start][1]
            passes = -(-rows // batch_size)
            cost = best[start][0] + rows * counts[end - 1][0] + passes * charge
            options.append((cost, start))
        best.append(min(options))
    cuts = [len(counts)]
    while cuts[-1]:
        cuts.append(best[cuts[-1]][1])
    sizes = []
    for start, end in zip(cuts[:0:-1], cuts[-2::-1], strict=True):
        rows = sum(count for _, count in counts[start:end])
        passes = -(-rows // batch_size)
        # Even parts: a last one of a few rows would cost a pass of its own.
        sizes += [rows // passes + (number < rows % passes) for number in range(passes)]
    return sizes


def pad(sequences: Sequence[Sequence[int]]) -> Int[Tensor, "row pos"]:
    """Sequences under one another, filled up with zeros on the right."""
    padded = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = torch.tensor(sequence)
    return padded
