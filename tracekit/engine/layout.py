"""The layout of a data set: which rows are run, and where in them continuations are scored.

A *row* is one sequence the model reads: a prompt, then all but the last token of a continuation
(the last one is only predicted, never read). Where the model heeds it, x and y are two branches of
one row (see `PackedSequences`). Equal rows are run once. A *source* is one sequence of the
counterfactual run; examples with the same counterfactual share it. `Layout` is made once per data
set; a `Batch` is then a few index operations on the CPU, and is moved to the device as a whole.

Pairs that do not suit a model, a metric or components are refused before anything is run. Rows are
padded on the right, which is exact for causal models, and batches hold rows of similar
length on one side of a long-rope limit (see `long_rope_limit`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tracekit._util.options import as_ints, short_repr
from tracekit.components import ComponentRegistry
from tracekit.data.counterfactuals import Counterfactual, Ids, NoCounterfactual
from tracekit.data.pair import PromptPair
from tracekit.data.pairs_report import check_padding
from tracekit.data.prompts import PromptPairs
from tracekit.data.spans import LAST, REST
from tracekit.engine.batch import Batch, PackedSequences, length_buckets, pad_ids, pad_noise
from tracekit.errors import ConfigError, MissingContinuationError, PairsError
from tracekit.metrics import Metric
from tracekit.models.architectures import has_dynamic_rope
from tracekit.models.hooked import HookedModel, model_name

Positions = Literal["prompt", "last", "all"] | Sequence[int]
"""Where components are intervened on: the prompt, its final token, the prompt and the
continuation, or explicit prompt positions (negative ones count from the prompt's end)."""

_SCOPES = ("prompt", "last", "all")
_STEP = 8
"""Sizes of filled batches are multiples of it: rows and positions; four times that, tokens."""


@dataclass(frozen=True, eq=False)
class Layout:
    """All rows and sources of a data set, on the CPU."""

    sequences: PackedSequences
    lengths: Int[Tensor, " row"]
    positions: Bool[Tensor, "row pos"]
    """Where components are intervened on."""
    row_sources: Int[Tensor, " row"]
    rows: Int[Tensor, "example side"]
    """Row of each continuation; an absent y points at the row of x."""
    starts: Int[Tensor, " example"]
    """Position that predicts the first token of a continuation: the prompt's last."""
    branch_starts: Int[Tensor, "example side"]
    """Position of the first token of a continuation within its row, if it is read."""
    targets: Int[Tensor, "example side token"]
    """Token ids of x (side 0) and y (side 1)."""
    valid: Bool[Tensor, "example side token"]
    """Which of them exist."""
    sources: PackedSequences
    source_lengths: Int[Tensor, " source"]
    source_positions: Bool[Tensor, "source source_pos"]
    """Where the activations of a source are used."""
    beyond_limit: Bool[Tensor, " row"]
    """Which rows reach beyond the long-rope limit."""
    sources_beyond_limit: Bool[Tensor, " source"]
    counterfactuals: tuple[Counterfactual, ...]
    """Counterfactual that each source is the run of."""
    row_noise: tuple[Tensor | None, ...]
    """Noise on the embeddings of each row's prompt, if it has any."""
    span_numbers: Int[Tensor, "row pos"] | None
    """Number of the span of each position, -1 for none; None: spans are not told apart."""
    source_index: Int[Tensor, "row pos"] | None
    """Position of the source that takes the place of each position; None: the same."""
    all_have_y: bool
    answer_positions: Int[Tensor, " example"]
    """Which token of x readouts of a single token read, as in `PromptPair`."""
    token_sets: Int[Tensor, "example side choice"]
    """First tokens that count as x and as y; -1 where there is no further one."""

    @classmethod
    def build(
        cls,
        pairs: PromptPairs,
        positions: Positions = "prompt",
        *,
        spans: Sequence[str] = (),
        packed: bool = False,
        shared: bool = True,
        long_rope_limit: int | None = None,
    ) -> Layout:
        """Builds the rows and sources of pairs.

        Components act at `positions`, or on `spans`, which every pair has. If `packed`, x and y
        share a row, which then needs an attention mask of its own; if `shared`, examples with equal
        rows share one. Beyond `long_rope_limit` tokens the model reads positions otherwise.
        """
        limit = long_rope_limit or float("inf")
        _check_rotary_limit(pairs, limit)
        scope = _check_positions(positions, pairs)
        _check_spans(pairs, spans)
        rows: dict[tuple[Ids, tuple[Ids, ...], int, int, int, Hashable], int] = {}
        row_pairs: list[PromptPair] = []
        sources: dict[tuple[Ids, tuple[Ids, ...], Hashable], int] = {}
        counterfactuals: list[Counterfactual] = []
        rows_of_examples: list[list[int]] = []
        branch_starts: list[list[int]] = []
        for number, pair in enumerate(pairs):
            rows_of_sides, starts_of_sides = [], []
            for branches, own_branch in _branches_of_sides(pair, packed):
                # The counterfactual run reads the continuations only where they are patched.
                source_branches = branches if scope == "all" else ()
                other, noise = pair.counterfactual, pair.prompt_noise
                source_key = (pair.counterfactual_ids, source_branches, other.sharing_key)
                if source_key not in sources:
                    counterfactuals.append(other)
                source = sources.setdefault(source_key, len(sources))
                own_number = 0 if shared else number
                of_pair = (pair.spans, pair.counterfactual_spans) if spans else ()
                spans_key = tuple(None if each is None else (*each.items(),) for each in of_pair)
                row_key = (pair.prompt_ids, branches, source, own_number, id(noise), spans_key)
                if row_key not in rows:
                    row_pairs.append(pair)
                rows_of_sides.append(rows.setdefault(row_key, len(rows)))
                before = branches[: branches.index(own_branch)] if own_branch else ()
                starts_of_sides.append(len(pair.prompt_ids) + sum(map(len, before)))
            rows_of_examples.append(rows_of_sides)
            branch_starts.append(starts_of_sides)
        source_rows = [key[:2] for key in sources]
        targets = _ids_by_side([(pair.x_ids, pair.y_ids or ()) for pair in pairs])
        position_mask = _position_mask(scope, rows)
        span_numbers, source_index = _span_numbers(row_pairs, spans, position_mask.shape)
        if span_numbers is not None:
            position_mask = span_numbers >= 0
        return cls(
            sequences=PackedSequences.build([key[:2] for key in rows], needs_attention_mask=packed),
            lengths=_row_lengths(rows),
            positions=position_mask,
            row_sources=torch.tensor([key[2] for key in rows]),
            rows=torch.tensor(rows_of_examples),
            starts=torch.tensor([len(pair.prompt_ids) - 1 for pair in pairs]),
            branch_starts=torch.tensor(branch_starts),
            targets=targets.clamp(min=0),
            valid=targets >= 0,
            sources=PackedSequences.build(source_rows, needs_attention_mask=packed),
            source_lengths=_row_lengths(sources),
            source_positions=_position_mask("prompt" if spans else scope, sources),
            beyond_limit=_count_positions(rows) > limit,
            sources_beyond_limit=_count_positions(sources) > limit,
            counterfactuals=tuple(counterfactuals),
            row_noise=tuple(pair.prompt_noise for pair in row_pairs),
            span_numbers=span_numbers,
            source_index=source_index,
            all_have_y=all(pair.y_ids is not None for pair in pairs),
            answer_positions=torch.tensor([pair.answer_position for pair in pairs]),
            token_sets=_ids_by_side([pair.token_sets for pair in pairs]),
        )

    @property
    def n_examples(self) -> int:
        """Number of examples."""
        return len(self.starts)

    @property
    def longest_row(self) -> int:
        """Length of the longest row."""
        return int(torch.cat([self.lengths, self.source_lengths]).max())

    def make_batch(self, examples: Int[Tensor, " example"], *, filled: bool = False) -> Batch:
        """Makes the batch of some examples in order; `filled` pads it to sizes that recur."""

        def size(n: int, most: int, step: int = _STEP) -> int:
            return min(-(-n // step) * step, most) if filled else n

        rows, local = self.rows[examples].unique(return_inverse=True)
        rows = _fill_up(rows, size(len(rows), 2 * len(examples)))
        # No longer than another row on the same side of the limit.
        alike = self.lengths[self.beyond_limit == self.beyond_limit[rows[0]]]
        longest = size(int(self.lengths[rows].max()), int(alike.max()))
        positions = self.positions[rows, :longest]
        used = positions.any(0).nonzero()
        first = int(used.min())
        valid = self.valid[examples]
        n_tokens = size(int(valid.sum(-1).max()), valid.shape[-1], valid.shape[-1])
        valid = valid[..., :n_tokens].contiguous()
        read_at = self.answer_positions[examples]
        tokens = torch.where(self.valid, self.targets, -1)[examples, :, read_at]
        example, side, step = valid.nonzero(as_tuple=True)
        row = local[example, side]
        # Token `step` of a continuation is predicted one position before its own: the first one by
        # the last token of the prompt, the others from within their branch.
        within = self.branch_starts[examples][example, side] + step - 1
        pos = torch.where(step == 0, self.starts[examples][example], within)
        # x and y may be predicted at the same position, which is then read once.
        readouts, scored_readout = (row * longest + pos).unique(return_inverse=True)
        most = size(len(row), valid.numel(), 4 * _STEP)
        readouts = _fill_up(readouts, size(len(readouts), most, 4 * _STEP))
        return Batch(
            examples=examples,
            sequences=self.sequences.select_rows(rows, longest),
            sources=self.row_sources[rows],
            positions=positions,
            first_position=first // _STEP * _STEP if filled else first,
            n_positions=size(int(used.max()) + 1, longest),
            span_numbers=None if self.span_numbers is None else self.span_numbers[rows, :longest],
            source_index=None if self.source_index is None else self.source_index[rows, :longest],
            readout_positions=(readouts // longest, readouts % longest),
            scored_readout=_fill_up(scored_readout, most),
            scored_token=_fill_up(self.targets[examples][example, side, step], most),
            slot=_fill_up(valid.flatten().nonzero()[:, 0], most, -1),
            valid=valid,
            first_readout=scored_readout[(side == 0) & (step == 0)],
            single_readout=scored_readout[(side == 0) & (step == read_at[example])],
            single_tokens=tokens,
            token_sets=self.token_sets[examples],
            all_have_y=self.all_have_y,
            all_have_y_set=bool((self.token_sets[:, 1, 0] >= 0).all()),
            noise=pad_noise([self.row_noise[row] for row in rows.tolist()], longest),
        )

    def make_batches(
        self,
        max_batch_size: int,
        *,
        device: torch.device,
        examples: Int[Tensor, " example"] | None = None,
        filled: bool = False,
    ) -> Iterator[Batch]:
        """Batches of at most `max_batch_size` examples, similar lengths together."""
        if examples is None:
            examples = torch.arange(self.n_examples)
        lengths = self.lengths_of(examples)
        beyond = self.beyond_limit[self.rows[examples, 0]]
        for part in length_buckets(lengths, beyond, max_batch_size, device):
            yield self.make_batch(examples[part], filled=filled).to(device)

    def lengths_of(self, examples: Int[Tensor, " example"]) -> Int[Tensor, " example"]:
        """Length of the longest row of each example."""
        return self.lengths[self.rows[examples]].amax(1)


def _fill_up(values: Int[Tensor, " value"], size: int, value: int | None = None) -> Tensor:
    filler = values[:1] if value is None else values.new_tensor([value])
    return torch.cat([values, filler.expand(size - len(values))])


def _branches_of_sides(pair: PromptPair, packed: bool) -> list[tuple[tuple[Ids, ...], Ids]]:
    """For x and y, the branches of the row that holds it, and its own branch (the tokens read)."""
    continuations = (pair.x_ids, pair.x_ids if pair.y_ids is None else pair.y_ids)
    branches = [ids[:-1] for ids in continuations]
    if packed:
        together = tuple(branch for branch in dict.fromkeys(branches) if branch)
        return [(together, branch) for branch in branches]
    return [((branch,) if branch else (), branch) for branch in branches]


def _check_positions(positions: Positions, pairs: PromptPairs) -> str | tuple[int, ...]:
    if isinstance(positions, str) and positions in _SCOPES:
        return positions
    indices = as_ints(positions)
    if indices is None:
        raise PairsError(
            f"The positions are {short_repr(positions)}. "
            f"Use one of {', '.join(_SCOPES)}, or a list of prompt positions."
        )
    shortest = min(range(len(pairs)), key=lambda number: len(pairs[number].prompt_ids))
    length = len(pairs[shortest].prompt_ids)
    outside = [i for i in indices if not -length <= i < length]
    if outside or not indices:
        problem = f"Positions {outside} lie outside" if outside else "No position was given for"
        raise PairsError(
            f"{problem} the prompt of example {shortest}, which has {length} tokens. "
            f"Use {-length} to {length - 1}."
        )
    return indices


def _position_mask(scope: str | tuple[int, ...], rows: Any) -> Bool[Tensor, "row pos"]:
    lengths, prompt_lengths = _row_lengths(rows), torch.tensor([len(row[0]) for row in rows])
    positions = torch.arange(int(lengths.max()))
    if scope in ("prompt", "all"):
        return positions < (lengths if scope == "all" else prompt_lengths)[:, None]
    scope = (-1,) if scope == "last" else scope
    if isinstance(scope, str):
        raise ConfigError(f"Nothing says which positions {scope!r} are.")
    given = torch.tensor(scope)
    # Negative ones count from the end of the prompt, not of the row.
    indices = torch.where(given < 0, prompt_lengths[:, None] + given, given)
    return (positions == indices[:, :, None]).any(1)


def _check_spans(pairs: PromptPairs, spans: Sequence[str]) -> None:
    implied = {LAST, REST}
    for number, pair in enumerate(pairs):
        own = set(pair.spans or ())
        is_other = own - implied != set(spans) - implied or own - set(spans)
        if spans and (is_other or not pairs.is_split):
            raise PairsError(
                f"Example {number} ({pair.describe()}) has the spans "
                f"{', '.join(sorted(own)) or 'of none'}, and the components are of "
                f"{', '.join(spans)}. Give every example the same spans."
            )
        if not spans and len(pair.counterfactual_ids) != len(pair.prompt_ids):
            raise PairsError(
                f"The counterfactual of example {number} ({pair.describe()}) has "
                f"{len(pair.counterfactual_ids)} tokens, its prompt {len(pair.prompt_ids)}. Only "
                "spans of them can be exchanged: use split_by='span'."
            )


def _span_numbers(
    row_pairs: Sequence[PromptPair], names: Sequence[str], shape: torch.Size
) -> tuple[Int[Tensor, "row pos"] | None, Int[Tensor, "row pos"] | None]:
    """Number of the span of every position, and the source position that replaces it."""
    if not names:
        return None, None
    numbers = torch.full(shape, -1)
    index = torch.arange(shape[1]).repeat(shape[0], 1)
    for row, pair in enumerate(row_pairs):
        for number, name in enumerate(names):
            own = list((pair.spans or {}).get(name, ()))
            numbers[row, own] = number
            if own and pair.counterfactual_spans is not None:
                index[row, own] = torch.tensor(pair.counterfactual_spans[name])
    is_same = all(pair.counterfactual_spans is None for pair in row_pairs)
    return numbers, None if is_same else index


def _row_lengths(rows: Any) -> Int[Tensor, " row"]:
    return torch.tensor([len(key[0]) + sum(map(len, key[1])) for key in rows])


def _count_positions(rows: Any) -> Int[Tensor, " row"]:
    """Positions that each row reaches; its branches begin at the same one."""
    return torch.tensor([len(key[0]) + max(map(len, key[1]), default=0) for key in rows])


def _check_rotary_limit(pairs: PromptPairs, limit: float) -> None:
    for number, pair in enumerate(pairs):
        continuations = (pair.x_ids, pair.y_ids or pair.x_ids)
        ends = [len(pair.prompt_ids) + len(ids) - 1 for ids in continuations]
        if min(ends) <= limit < max(ends):
            raise PairsError(
                f"x and y of example {number} lie on both sides of {limit} tokens, beyond which "
                "this model reads positions by other rotary factors. Shorten its prompt or the "
                "longer continuation, or leave it out."
            )


def _ids_by_side(sides: Sequence[tuple[Ids, Ids]]) -> Int[Tensor, "example side token"]:
    """Token ids of x and y of every example, -1 where there is no further one."""
    return pad_ids([ids for pair in sides for ids in pair], filler=-1).unflatten(0, (-1, 2))


def check_traceable(
    pairs: PromptPairs, model: HookedModel, registry: ComponentRegistry, metric: Metric
) -> None:
    """Refuses pairs that cannot be traced."""
    check_continuations(pairs, metric)
    check_padding(pairs, getattr(model, "tokenizer", None))
    by_key = [kind.name for kind in registry.kinds_by_hook.values() if kind.key_dim is not None]
    vocabulary, d_model = int(model.cfg.d_vocab), int(model.cfg.d_model)
    context = int(getattr(model.cfg, "n_ctx", 0) or 0)
    for number, pair in enumerate(pairs):
        if by_key and pair.counterfactual_spans is not None:
            raise PairsError(
                f"Example {number} ({pair.describe()}) exchanges spans at different positions, and "
                f"{by_key[0]} are over the keys of one prompt. Use head-outputs."
            )
        ids = pair.prompt_ids + pair.counterfactual_ids + pair.x_ids + (pair.y_ids or ())
        ids += (pair.x_set_ids or ()) + (pair.y_set_ids or ())
        if not 0 <= min(ids) <= max(ids) < vocabulary:
            raise PairsError(
                f"Example {number} ({pair.describe()}) has a token id outside the vocabulary. "
                f"Ids must be 0 to {vocabulary - 1}; encode with the model's own tokenizer."
            )
        read = max(len(pair.prompt_ids), len(pair.counterfactual_ids))
        longest = read + max(len(pair.x_ids), len(pair.y_ids or ())) - 1
        if context and longest > context:
            start = f"Example {number} ({pair.describe()}) needs {longest} positions. The model "
            if has_dynamic_rope(model):
                raise PairsError(
                    f"{start}reads more than {context} by rotary factors that the longest row of a "
                    "batch decides (rope type 'dynamic'), so an example's effect would depend on "
                    "the others. Shorten it, or give the model another rope type, such as 'yarn'."
                )
            raise PairsError(f"{start}has {context}; shorten it.")
        if isinstance(pair.counterfactual, NoCounterfactual):
            raise PairsError(
                f"Example {number} ({pair.describe()}) has no counterfactual. Give it one "
                "(counterfactual, counterfactual_ids or noise), or trace with source='zero', "
                "'mean', 'resample' or 'noise'."
            )
        noise = pair.counterfactual.added_to_embeddings()
        if noise is not None and noise.shape[1] != d_model:
            raise PairsError(
                f"{model_name(model)} cannot run the counterfactual of example {number}: its noise "
                f"is {noise.shape[1]} wide, the model's embeddings {d_model}. Make it for this "
                "model."
            )


def check_continuations(pairs: PromptPairs, metric: Metric) -> None:
    """Refuses a metric whose continuations an example lacks."""
    for number, pair in enumerate(pairs):
        if metric.needs_y and pair.y_ids is None:
            raise MissingContinuationError(
                f"The metric {metric.name!r} compares x with y, and example {number} "
                f"({pair.describe()}) has no y. Give every example a continuation y, or use "
                "probability-drop or probability-ratio."
            )
        if "answer-tokens" in metric.reads:
            check_distinguishable(number, pair, f"the metric {metric.name!r}")
        if "token-sets" in metric.reads:
            of_x, of_y = pair.token_sets
            both = sorted({*of_x} & {*of_y})
            if both:
                raise PairsError(
                    f"Token {both[0]} counts as x and as y in example {number} "
                    f"({pair.describe()}), whose x and y begin alike. Give it token sets (x_set, "
                    "y_set), or use logit-difference."
                )


def check_distinguishable(number: int, pair: PromptPair, asking: str) -> None:
    """Refuses a pair in which no token of x differs from that of y in its place."""
    if not pair.has_distinguishing_token:
        raise PairsError(
            f"In example {number} ({pair.describe()}) one of x and y is the beginning of the other "
            f"or equal to it, so no token tells them apart, and {asking} cannot be computed. Leave "
            "the example out, or end both with the same sign, such as a full stop."
        )
