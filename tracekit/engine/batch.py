"""Batches: which token sequences are run, and where in them the continuations are scored.

Each example asks for the log-probabilities of its continuations x and y after its prompt. A *row*
is one sequence the model reads: the prompt, then all but the last token of a continuation (the
last one is only predicted, never read). Where the model heeds it, x and y are two branches of one
row (see `sequences.py`). Rows that would be the same are run once. A *source* is one sequence of
the counterfactual run; examples with the same counterfactual prompt share it. All of this is
worked out once per data set, in `Layout`; a `Batch` is then a few index operations on the CPU, and
is moved to the model's device as a whole.

Rows are padded on the right, which is exact for causal models, and batches hold rows of similar
length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit.data.prompts import PromptPair, PromptPairs
from tracekit.engine.packing import PASS_CHARGE, Ids, Sequences, bucket_sizes
from tracekit.errors import PositionError
from tracekit.metrics import Mean, Scores, continuation_log_prob
from tracekit.models.loading import sent

Positions = Literal["prompt", "last", "all"] | Sequence[int]
"""Where components are intervened on: the prompt, its final token, the prompt and the
continuation, or explicit prompt positions (negative ones count from the prompt's end)."""

_SCOPES = ("prompt", "last", "all")


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows to run together, and how to read their scores."""

    examples: Int[Tensor, " example"]
    """Numbers of the examples in the data set."""
    sequences: Sequences
    """The rows."""
    sources: Int[Tensor, " row"]
    """The counterfactual sequence of each row; always on the CPU."""
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
    slot: Int[Tensor, " scored"]
    """Where it stands in `valid`, flattened."""
    valid: Bool[Tensor, "example side token"]
    """Which tokens of x (side 0) and y (side 1) exist."""
    all_have_y: bool
    """Whether every example of the data set has a y."""

    def to(self, device: torch.device) -> Batch:
        """The batch on a device, but for `sources`."""
        tensors = {
            name: sent(value, device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and name != "sources"
        }
        row, pos = self.place
        place = (sent(row, device), sent(pos, device))
        return replace(self, **tensors, sequences=self.sequences.to(device), place=place)

    def repeat(self, copies: int) -> Batch:
        """The batch `copies` times over, one after the other."""
        if copies == 1:
            return self
        rows, places, slots = len(self.sequences), len(self.place[0]), self.valid.numel()
        shift = torch.arange(copies, device=self.positions.device)[:, None]
        return replace(
            self,
            examples=self.examples.repeat(copies),
            sequences=self.sequences.repeat(copies),
            sources=self.sources.repeat(copies),
            positions=self.positions.repeat(copies, 1),
            place=((self.place[0] + shift * rows).flatten(), self.place[1].repeat(copies)),
            scored_place=(self.scored_place + shift * places).flatten(),
            scored_token=self.scored_token.repeat(copies),
            slot=(self.slot + shift * slots).flatten(),
            valid=self.valid.repeat(copies, 1, 1),
        )

    @property
    def readers(self) -> Bool[Tensor, "example row"]:
        """Which rows the scores of each example are read from."""
        found = torch.zeros(
            len(self.examples), len(self.sequences), dtype=torch.bool, device=self.slot.device
        )
        found[self.slot // self.valid[0].numel(), self.place[0][self.scored_place]] = True
        return found

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
        sides = continuation_log_prob(self._laid_out(scored, 0.0), self.valid, mean)
        chosen = self._chosen(logits) if choices else (None, None)
        if not self.all_have_y:
            return Scores(sides[:, 0], None, chosen[0], None)
        return Scores(sides[:, 0], sides[:, 1], chosen[0], chosen[1])

    def _chosen(self, logits: Float[Tensor, "place d_vocab"]) -> tuple[Tensor, Tensor]:
        chosen = logits.argmax(-1)[self.scored_place] == self.scored_token
        both = self._laid_out(chosen, True).all(-1)
        return both[:, 0], both[:, 1]

    def _laid_out(self, values: Tensor, absent: Any) -> Tensor:
        """Values of the scored tokens by example, side and token."""
        laid = values.new_full((self.valid.numel(),), absent)
        return laid.index_put((self.slot,), values).reshape(self.valid.shape)


@dataclass(frozen=True, eq=False)
class Layout:
    """All rows and sources of a data set, on the CPU."""

    sequences: Sequences
    lengths: Int[Tensor, " row"]
    positions: Bool[Tensor, "row pos"]
    row_sources: Int[Tensor, " row"]
    rows: Int[Tensor, "example side"]
    """Row of each continuation; an absent y points at the row of x."""
    starts: Int[Tensor, " example"]
    """Position that predicts the first token of a continuation: the prompt's last."""
    forks: Int[Tensor, "example side"]
    """Position of the first token of a continuation within its row, if it is read."""
    targets: Int[Tensor, "example side token"]
    valid: Bool[Tensor, "example side token"]
    sources: Sequences
    source_lengths: Int[Tensor, " source"]
    source_positions: Bool[Tensor, "source source_pos"]
    """Where the activations of a source are used."""
    source_noise: Float[Tensor, "source source_pos d_model"] | None
    all_have_y: bool

    @classmethod
    def build(
        cls,
        pairs: PromptPairs,
        positions: Positions = "prompt",
        *,
        packed: bool = False,
        shared: bool = True,
    ) -> Layout:
        """Works out rows and sources.

        Args:
            pairs: The data set.
            positions: Where to intervene.
            packed: Whether x and y share a row, which the model must then be told.
            shared: Whether examples with equal rows share one. The sources are the same in
                either case.

        Raises:
            PositionError: A scope that is unknown, or an index outside a prompt.
        """
        scope = _check_positions(positions, pairs)
        rows: dict[tuple[Ids, tuple[Ids, ...], int, int], int] = {}
        sources: dict[tuple[Ids, tuple[Ids, ...], int | None], int] = {}
        row_of: list[list[int]] = []
        forks: list[list[int]] = []
        for number, pair in enumerate(pairs):
            noise_of = None if pair.noise is None else number
            per_side, forks_of = [], []
            for limbs, read in _limbs(pair, packed):
                also = limbs if scope == "all" else ()
                source = sources.setdefault((pair.source_ids, also, noise_of), len(sources))
                key = (pair.prompt_ids, limbs, source, 0 if shared else number)
                per_side.append(rows.setdefault(key, len(rows)))
                before = limbs[: limbs.index(read)] if read else ()
                forks_of.append(len(pair.prompt_ids) + sum(map(len, before)))
            row_of.append(per_side)
            forks.append(forks_of)
        sequences = Sequences.build([key[:2] for key in rows], told=packed)
        source_sequences = Sequences.build([key[:2] for key in sources], told=packed)
        lengths, source_lengths = _lengths(rows), _lengths(sources)
        targets, valid = _targets(pairs)
        trunks = torch.tensor([len(key[0]) for key in rows])
        source_trunks = torch.tensor([len(key[0]) for key in sources])
        return cls(
            sequences=sequences,
            lengths=lengths,
            positions=_position_mask(scope, trunks, lengths),
            row_sources=torch.tensor([key[2] for key in rows]),
            rows=torch.tensor(row_of),
            starts=torch.tensor([len(pair.prompt_ids) - 1 for pair in pairs]),
            forks=torch.tensor(forks),
            targets=targets,
            valid=valid,
            sources=source_sequences,
            source_lengths=source_lengths,
            source_positions=_position_mask(scope, source_trunks, source_lengths),
            source_noise=_source_noise(pairs, list(sources), int(source_lengths.max())),
            all_have_y=all(pair.y_ids is not None for pair in pairs),
        )

    @property
    def n_examples(self) -> int:
        """Number of examples."""
        return len(self.starts)

    @property
    def longest(self) -> int:
        """Length of the longest row."""
        return int(torch.cat([self.lengths, self.source_lengths]).max())

    def batch(self, examples: Int[Tensor, " example"]) -> Batch:
        """The batch of some examples, in the given order."""
        rows, local = self.rows[examples].unique(return_inverse=True)
        longest = int(self.lengths[rows].max())
        positions = self.positions[rows, :longest]
        valid = self.valid[examples]
        valid = valid[..., : int(valid.sum(-1).max())].contiguous()
        example, side, step = valid.nonzero(as_tuple=True)
        row = local[example, side]
        pos = torch.where(
            step == 0,
            self.starts[examples][example],
            self.forks[examples][example, side] + step - 1,
        )
        place, scored_place = (row * longest + pos).unique(return_inverse=True)
        return Batch(
            examples=examples,
            sequences=self.sequences.rows(rows, longest),
            sources=self.row_sources[rows],
            positions=positions,
            span=int(positions.any(0).nonzero().max()) + 1,
            place=(place // longest, place % longest),
            scored_place=scored_place,
            scored_token=self.targets[examples][example, side, step],
            slot=valid.flatten().nonzero()[:, 0],
            valid=valid,
            all_have_y=self.all_have_y,
        )

    def batches(
        self,
        batch_size: int,
        *,
        device: torch.device,
        examples: Int[Tensor, " example"] | None = None,
    ) -> Iterator[Batch]:
        """Batches of at most `batch_size` examples, similar lengths together."""
        if examples is None:
            examples = torch.arange(self.n_examples)
        lengths = self.lengths[self.rows[examples]].amax(1)
        order = lengths.argsort(stable=True)
        sizes = bucket_sizes(lengths[order].tolist(), batch_size, PASS_CHARGE.get(device.type, 64))
        for part in examples[order].split(sizes):
            yield self.batch(part).to(device)

    def source_batches(self, batch_size: int, device: torch.device) -> Iterator[Tensor]:
        """Numbers of the sources to run together."""
        order = self.source_lengths.argsort(stable=True)
        lengths = self.source_lengths[order].tolist()
        yield from order.split(bucket_sizes(lengths, batch_size, PASS_CHARGE.get(device.type, 64)))


def _limbs(pair: PromptPair, packed: bool) -> list[tuple[tuple[Ids, ...], Ids]]:
    """For x and y, the branches of the row that holds it, and the tokens of it that are read."""
    reads = [side[:-1] for side in (pair.x_ids, pair.x_ids if pair.y_ids is None else pair.y_ids)]
    if packed:
        together = tuple(read for read in dict.fromkeys(reads) if read)
        return [(together, read) for read in reads]
    return [((read,) if read else (), read) for read in reads]


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
    scope: str | tuple[int, ...], trunks: Int[Tensor, " row"], lengths: Int[Tensor, " row"]
) -> Bool[Tensor, "row pos"]:
    place = torch.arange(int(lengths.max()))
    if scope == "prompt":
        return place < trunks[:, None]
    if scope == "all":
        return place < lengths[:, None]
    chosen = (-1,) if isinstance(scope, str) else scope
    mask = torch.zeros(len(lengths), len(place), dtype=torch.bool)
    for index in chosen:
        at = trunks + index if index < 0 else torch.full_like(trunks, index)
        mask[torch.arange(len(lengths)), at] = True
    return mask


def _lengths(trees: Any) -> Int[Tensor, " row"]:
    return torch.tensor([len(key[0]) + sum(map(len, key[1])) for key in trees])


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


def _source_noise(pairs: Sequence[PromptPair], sources: Sequence[Any], width: int) -> Tensor | None:
    noises = [pairs[number].noise if number is not None else None for *_, number in sources]
    given = [noise for noise in noises if noise is not None]
    if not given:
        return None
    padded = torch.zeros(len(sources), width, given[0].shape[1])
    for row, noise in enumerate(noises):
        if noise is not None:
            padded[row, : noise.shape[0]] = noise
    return padded
