"""Batches: which token sequences are run, and where in them the continuations are scored.

Each example asks for the log-probabilities of its continuations x and y after its prompt. A *row*
is one sequence the model reads: the prompt and all but the last token of a continuation (the last
one is only predicted, never read). Rows that would be the same are run once, so x and y of a
single token share one row. A *source* is one sequence of the counterfactual run; examples with
the same counterfactual prompt share it. All of this is worked out once per data set, in
`Layout`; a `Batch` is then a few index operations.

Rows are padded on the right, which is exact for causal models without an attention mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit.errors import PositionError
from tracekit.metrics import Mean, Scores, continuation_log_prob
from tracekit.prompts import PromptPair, PromptPairs

Positions = Literal["prompt", "last", "all"] | Sequence[int]
"""Where components are intervened on: the prompt, its final token, the prompt and the
continuation, or explicit prompt positions (negative ones count from the prompt's end)."""

_SCOPES = ("prompt", "last", "all")


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to run together, and how to read their scores."""

    examples: Int[Tensor, " example"]
    """Numbers of the examples in the data set."""
    tokens: Int[Tensor, "row pos"]
    """Token ids, padded on the right."""
    sources: Int[Tensor, " row"]
    """The counterfactual sequence of each row."""
    positions: Bool[Tensor, "row pos"]
    """Where components are intervened on."""
    span: int
    """One past the last position that is intervened on in any row."""
    place: tuple[Int[Tensor, " place"], Int[Tensor, " place"]]
    """Row and position of every place whose next-token distribution is read."""
    scored_place: Int[Tensor, " scored"]
    """For every scored token, the place that predicts it."""
    scored_token: Int[Tensor, " scored"]
    """Its token id."""
    valid: Bool[Tensor, "example side token"]
    """Which tokens of x (side 0) and y (side 1) exist, in the order of `scored_token`."""
    all_have_y: bool
    """Whether every example of the data set has a y."""

    def repeat(self, copies: int) -> Batch:
        """The batch `copies` times over, one after the other."""
        if copies == 1:
            return self
        rows, places = len(self.tokens), len(self.place[0])
        shift = torch.arange(copies, device=self.tokens.device)[:, None]
        return replace(
            self,
            examples=self.examples.repeat(copies),
            tokens=self.tokens.repeat(copies, 1),
            sources=self.sources.repeat(copies),
            positions=self.positions.repeat(copies, 1),
            place=((self.place[0] + shift * rows).flatten(), self.place[1].repeat(copies)),
            scored_place=(self.scored_place + shift * places).flatten(),
            scored_token=self.scored_token.repeat(copies),
            valid=self.valid.repeat(copies, 1, 1),
        )

    def read(
        self, logits: Float[Tensor, "place d_vocab"], mean: Mean, *, choices: bool = True
    ) -> Scores:
        """Scores of the examples from the logits at `place`.

        Args:
            logits: In any floating type; logarithms are taken in float32.
            mean: How token probabilities make the probability of a continuation.
            choices: Whether to work out `x_chosen` and `y_chosen`, which takes another pass over
                the logits.
        """
        logits = logits.float()
        scored = logits[self.scored_place, self.scored_token]
        scored = scored - logits.logsumexp(-1)[self.scored_place]
        tokens = torch.zeros(self.valid.shape, device=scored.device)
        sides = continuation_log_prob(tokens.masked_scatter(self.valid, scored), self.valid, mean)
        chosen = self._chosen(logits) if choices else (None, None)
        if not self.all_have_y:
            return Scores(sides[:, 0], None, chosen[0], None)
        return Scores(sides[:, 0], sides[:, 1], chosen[0], chosen[1])

    def _chosen(self, logits: Float[Tensor, "place d_vocab"]) -> tuple[Tensor, Tensor]:
        chosen = logits.argmax(-1)[self.scored_place] == self.scored_token
        both = (~self.valid).masked_scatter(self.valid, chosen).all(-1)
        return both[:, 0], both[:, 1]


@dataclass(frozen=True, eq=False)
class Layout:
    """All rows and sources of a data set."""

    tokens: Int[Tensor, "row pos"]
    lengths: Int[Tensor, " row"]
    positions: Bool[Tensor, "row pos"]
    sources: Int[Tensor, " row"]
    rows: Int[Tensor, "example side"]
    """Row of each continuation; an absent y points at the row of x."""
    starts: Int[Tensor, " example"]
    """Position that predicts the first token of a continuation: the prompt's last."""
    targets: Int[Tensor, "example side token"]
    valid: Bool[Tensor, "example side token"]
    source_tokens: Int[Tensor, "source source_pos"]
    source_lengths: Int[Tensor, " source"]
    source_noise: Float[Tensor, "source source_pos d_model"] | None
    all_have_y: bool

    @classmethod
    def build(
        cls, pairs: PromptPairs, positions: Positions = "prompt", *, device: torch.device | str
    ) -> Layout:
        """Works out rows and sources.

        Raises:
            PositionError: A scope that is unknown, or an index outside a prompt.
        """
        scope = _check_positions(positions, pairs)
        rows: dict[tuple[tuple[int, ...], int, int], int] = {}
        sources: dict[tuple[tuple[int, ...], int | None], int] = {}
        row_of: list[list[int]] = []
        for number, pair in enumerate(pairs):
            per_side = []
            for side in (pair.x_ids, pair.y_ids if pair.y_ids is not None else pair.x_ids):
                read = side[:-1]
                source = pair.source_ids + (read if scope == "all" else ())
                noise_of = None if pair.noise is None else number
                source_id = sources.setdefault((source, noise_of), len(sources))
                key = (pair.prompt_ids + read, len(pair.prompt_ids), source_id)
                per_side.append(rows.setdefault(key, len(rows)))
            row_of.append(per_side)
        sequences = [key[0] for key in rows]
        tokens, lengths = _pad(sequences)
        source_tokens, source_lengths = _pad([key[0] for key in sources])
        targets, valid = _targets(pairs)
        prompt_lengths = torch.tensor([key[1] for key in rows])
        layout = cls(
            tokens=tokens,
            lengths=lengths,
            positions=_position_mask(scope, prompt_lengths, lengths, tokens.shape[1]),
            sources=torch.tensor([key[2] for key in rows]),
            rows=torch.tensor(row_of),
            starts=torch.tensor([len(pair.prompt_ids) - 1 for pair in pairs]),
            targets=targets,
            valid=valid,
            source_tokens=source_tokens,
            source_lengths=source_lengths,
            source_noise=_source_noise(pairs, list(sources), source_tokens.shape[1]),
            all_have_y=all(pair.y_ids is not None for pair in pairs),
        )
        return layout._to(device)

    def _to(self, device: torch.device | str) -> Layout:
        return replace(
            self,
            **{
                name: value.to(device)
                for name, value in vars(self).items()
                if isinstance(value, Tensor)
            },
        )

    @property
    def n_examples(self) -> int:
        """Number of examples."""
        return len(self.starts)

    def batch(self, examples: Int[Tensor, " example"]) -> Batch:
        """The batch of some examples, in the given order."""
        examples = examples.to(self.starts.device)
        rows, local = self.rows[examples].unique(return_inverse=True)
        longest = int(self.lengths[rows].max())
        positions = self.positions[rows, :longest]
        valid = self.valid[examples]
        valid = valid[..., : int(valid.sum(-1).max())]
        example, side, step = valid.nonzero(as_tuple=True)
        row = local[example, side]
        pos = self.starts[examples][example] + step
        place, scored_place = (row * longest + pos).unique(return_inverse=True)
        return Batch(
            examples=examples,
            tokens=self.tokens[rows, :longest],
            sources=self.sources[rows],
            positions=positions,
            span=int(positions.any(0).nonzero().max()) + 1,
            place=(place // longest, place % longest),
            scored_place=scored_place,
            scored_token=self.targets[examples][example, side, step],
            valid=valid,
            all_have_y=self.all_have_y,
        )

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """All examples, similar lengths together, `batch_size` examples at a time."""
        order = self.lengths[self.rows].amax(1).argsort(stable=True)
        for examples in order.split(batch_size):
            yield self.batch(examples)


def _check_positions(positions: Positions, pairs: PromptPairs) -> str | tuple[int, ...]:
    if isinstance(positions, str):
        if positions not in _SCOPES:
            raise PositionError(
                f"Unknown positions {positions!r}. "
                f"Use one of {', '.join(_SCOPES)}, or a list of prompt positions."
            )
        return positions
    indices = tuple(int(position) for position in positions)
    shortest = min(range(len(pairs)), key=lambda number: len(pairs[number].prompt_ids))
    length = len(pairs[shortest].prompt_ids)
    outside = [i for i in indices if not -length <= i < length]
    if outside or not indices:
        what = f"Positions {outside} lie outside" if outside else "No position was given for"
        raise PositionError(
            f"{what} the prompt of example {shortest}, which has {length} tokens. "
            f"Use {-length} to {length - 1}."
        )
    return indices


def _position_mask(
    scope: str | tuple[int, ...],
    prompt_lengths: Int[Tensor, " row"],
    lengths: Int[Tensor, " row"],
    width: int,
) -> Bool[Tensor, "row pos"]:
    place = torch.arange(width)
    if scope == "prompt":
        return place < prompt_lengths[:, None]
    if scope == "all":
        return place < lengths[:, None]
    chosen = (-1,) if isinstance(scope, str) else scope
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for index in chosen:
        at = prompt_lengths + index if index < 0 else torch.full_like(prompt_lengths, index)
        mask[torch.arange(len(lengths)), at] = True
    return mask


def _pad(sequences: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    tokens = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    return tokens, lengths


def _targets(pairs: PromptPairs) -> tuple[Tensor, Tensor]:
    sides = [(pair.x_ids, pair.y_ids or ()) for pair in pairs]
    longest = max(len(ids) for pair in sides for ids in pair)
    targets = torch.zeros(len(pairs), 2, longest, dtype=torch.long)
    valid = torch.zeros(len(pairs), 2, longest, dtype=torch.bool)
    for number, pair in enumerate(sides):
        for side, ids in enumerate(pair):
            targets[number, side, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            valid[number, side, : len(ids)] = True
    return targets, valid


def _source_noise(
    pairs: Sequence[PromptPair], sources: Sequence[tuple[tuple[int, ...], int | None]], width: int
) -> Tensor | None:
    noises = [pairs[number].noise if number is not None else None for _, number in sources]
    given = [noise for noise in noises if noise is not None]
    if not given:
        return None
    padded = torch.zeros(len(sources), width, given[0].shape[1])
    for row, noise in enumerate(noises):
        if noise is not None:
            padded[row, : noise.shape[0]] = noise
    return padded
