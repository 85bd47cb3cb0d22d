"""One batch: rows that are run together, and how the continuations are read out of their logits.

A batch reads next-token distributions only where a token of a continuation is predicted (the
*readout positions*), and scores every such token there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit._util.devices import to_device
from tracekit.engine.packing import PackedSequences
from tracekit.metrics import ContinuationLogProbs, ContinuationMean, Reading, continuation_log_prob


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to run together, and how to read log-probabilities from them.

    Fields that a `Layout` has too are explained there.
    """

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
        """Log-probabilities of the continuations from the logits at the readout positions.

        Logits may have any floating type; logarithms are taken in float32.
        """
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
