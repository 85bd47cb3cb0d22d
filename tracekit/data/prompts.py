"""Prompt pairs: token ids of prompts, continuations and counterfactuals.

A pair is a clean prompt, a counterfactual (see `counterfactuals.py`), the *target*
continuation x and, for metrics that compare two, the *foil* y. This module checks all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.markup import printable
from tracekit._util.options import check_seed, shortened
from tracekit.data.counterfactuals import (
    COUNTERFACTUALS,
    Counterfactual,
    GaussianNoise,
    Ids,
    NoiseCounterfactual,
    PromptCounterfactual,
    as_ids,
    counterfactual_from_row,
)
from tracekit.data.display import MOST_ROWS, ShownPair, pairs_html, shown_pair
from tracekit.data.spans import (
    LAST,
    REST,
    Spans,
    checked_spans,
    position_names,
    spans_from_text,
    with_implied,
)
from tracekit.data.tokenization import (
    bos_of,
    encoder,
    token_texts,
    tokenizer_of,
    warn_of_boundaries,
    width_of,
)
from tracekit.errors import (
    ConfigError,
    PairsError,
)

OnMismatch = Literal["error", "skip"]

TEXT_KEYS = frozenset({"prompt", "counterfactual", "x", "y"})
"""Keys of a row of text, beside `weight` and the token sets."""
SET_KEYS = frozenset({"x_set", "y_set"})
"""Keys of a row of text that hold lists of texts."""
SPAN_KEYS = frozenset({"spans", "counterfactual_spans"})
"""Keys of a row that hold mappings."""
ID_KEYS = frozenset(
    {"prompt_ids", "x_ids", "y_ids", "x_set_ids", "y_set_ids"}
    | {c.row_key for c in COUNTERFACTUALS}
)
"""Keys of a row of token ids, beside `weight` and texts."""
_MOST_NAMED = 5
"""Examples that an error names at most."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PromptPair:
    """One example."""

    prompt_ids: Ids
    """Tokens of the clean prompt."""
    x_ids: Ids
    """Tokens of the target continuation x."""
    y_ids: Ids | None = None
    """Tokens of the foil continuation y, if the example has one."""
    x_set_ids: Ids | None = None
    """First tokens that count as x, for metrics of token sets; None: the first one of x."""
    y_set_ids: Ids | None = None
    """First tokens that count as y; None: the first one of y."""
    counterfactual: Counterfactual
    """Source of the values that an intervention patches in."""
    spans: Spans | None = None
    """Token positions of named parts of the prompt."""
    counterfactual_spans: Spans | None = None
    """Those of the counterfactual prompt that take their place; None: the same positions."""
    prompt_noise: Float[Tensor, "pos d_model"] | None = None
    """Noise on the embeddings of the prompt: what a reversed pair with noise starts from."""
    texts: Mapping[str, str] | None = None
    """The texts that the ids were made from, for messages and tables."""
    weight: float = 1.0
    """Weight of its effect in the mean, relative to the other examples'."""

    def __repr__(self) -> str:
        sides = [f"{key}={text!r}" for key, text in (self.texts or {}).items()]
        if not sides:
            sides = [f"{self.describe()}", f"x={list(self.x_ids)}"]
            sides += [] if self.y_ids is None else [f"y={list(self.y_ids)}"]
        return f"PromptPair({', '.join(sides)}; {type(self.counterfactual).__name__})"

    @property
    def counterfactual_ids(self) -> Ids:
        """Tokens that the counterfactual run reads."""
        return self.counterfactual.reads(self.prompt_ids)

    @property
    def is_aligned(self) -> bool:
        """Whether the counterfactual covers the prompt position by position, or span by span."""
        if self.counterfactual_spans is not None:
            return True
        fits = self.counterfactual.n_tokens in (None, len(self.prompt_ids))
        return fits and len(self.counterfactual_ids) == len(self.prompt_ids)

    @property
    def differs(self) -> bool:
        """Whether the counterfactual run can differ from the clean one."""
        return self.prompt_noise is not None or self.counterfactual.differs_from(self.prompt_ids)

    def reversed(self) -> PromptPair:
        """The pair with prompt and counterfactual exchanged.

        With noise, the prompt has it and the counterfactual is the prompt without.

        Raises:
            PairsError: The counterfactual is no run of the model that could be started from.
        """
        counterfactual = self.counterfactual
        if isinstance(counterfactual, NoiseCounterfactual):
            clean = PromptCounterfactual(self.prompt_ids)
            return replace(self, counterfactual=clean, prompt_noise=counterfactual.noise)
        if not isinstance(counterfactual, PromptCounterfactual):
            raise PairsError(
                "Pairs whose values come from no other run (zero, mean, constants) cannot be "
                "reversed. Use counterfactual prompts, noise or resample."
            )
        if self.prompt_noise is not None:
            noisy = NoiseCounterfactual(self.prompt_noise)
            return replace(self, counterfactual=noisy, prompt_noise=None)
        texts = dict(self.texts or {})
        exchanged = {"prompt": "counterfactual", "counterfactual": "prompt"}
        spans, others = self.spans, self.counterfactual_spans
        return replace(
            self,
            prompt_ids=counterfactual.ids,
            counterfactual=PromptCounterfactual(self.prompt_ids),
            spans=spans if others is None else others,
            counterfactual_spans=None if others is None else spans,
            texts={exchanged.get(key, key): text for key, text in texts.items()} or None,
        )

    def describe(self) -> str:
        """The prompt as text if there is one, else its first ids."""
        if self.texts and self.texts.get("prompt"):
            return repr(self.texts["prompt"])
        first_ids = " ".join(map(str, self.prompt_ids[:12]))
        return f"[{first_ids}{' ...' if len(self.prompt_ids) > 12 else ''}]"

    def shown(self, token_texts: Mapping[int, str]) -> ShownPair:
        """The example with its tokens by their texts.

        Args:
            token_texts: Text of each token; other tokens are shown by their ids.
        """
        return shown_pair(
            self.prompt_ids,
            self.counterfactual,
            (self.x_ids, self.y_ids or ()),
            token_texts,
            has_noise=self.prompt_noise is not None,
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PromptPairs(Sequence[PromptPair]):
    """A data set of pairs, ready to trace. Make one with `from_text` or `from_ids`."""

    pairs: tuple[PromptPair, ...]
    name: str = "pairs"
    """Shown in tables and figures."""
    skipped: tuple[str, ...] = ()
    """One line per example dropped under `on_mismatch="skip"`."""
    is_split: bool = False
    """Whether components are split by span; spans are then a part of the fingerprint."""
    token_texts: Mapping[int, str] = field(default_factory=dict)
    """Text of each token in use, to show; empty where no tokenizer was given."""

    def __post_init__(self) -> None:
        if not self.pairs:
            dropped = f" All {len(self.skipped)} were skipped." if self.skipped else ""
            raise PairsError(f"There are no prompt pairs.{dropped} Give at least one.")
        _check_pairs(self.pairs)
        if self.weights is not None and not (self.weights > 0).all():
            raise PairsError(
                "The weights span so many orders of magnitude that the smallest would count "
                "nothing. Leave out what is to count for nothing."
            )

    def __repr__(self) -> str:
        # Not that of a dataclass, which would print all noise.
        lengths = sorted({len(pair.prompt_ids) for pair in self.pairs})
        tokens = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else str(lengths[0])
        kinds = sorted({type(pair.counterfactual).__name__ for pair in self.pairs})
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return (
            f"PromptPairs({printable(self.name)}: {len(self)} pairs, prompts of {tokens} tokens, "
            f"{', '.join(kinds)}{skipped})"
        )

    def _repr_html_(self) -> str:
        """A table for notebooks: a dozen examples, with changed tokens in bold."""
        shown = [pair.shown(self.token_texts) for pair in self.pairs[:MOST_ROWS]]
        return pairs_html(repr(self), shown, len(self) - len(shown))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, item: Any) -> Any:
        return (
            replace(self, pairs=self.pairs[item]) if isinstance(item, slice) else self.pairs[item]
        )

    def __iter__(self) -> Iterator[PromptPair]:
        return iter(self.pairs)

    def subset(self, indices: Sequence[int]) -> PromptPairs:
        """The pairs at `indices`, in that order."""
        return replace(self, pairs=tuple(self.pairs[i] for i in indices))

    def reversed(self) -> PromptPairs:
        """The pairs with prompts and counterfactuals exchanged: what denoising starts from.

        Raises:
            PairsError: A counterfactual is no run of the model that could be started from.
        """
        return replace(self, pairs=tuple(pair.reversed() for pair in self.pairs))

    def split(self, share: float, *, seed: int = 0) -> tuple[PromptPairs, PromptPairs]:
        """Two disjoint random parts; the first holds `share` of the pairs, rounded.

        Args:
            share: Between 0 and 1.
            seed: Draws the parts.

        Raises:
            ConfigError: A share that leaves a part empty, or an invalid seed.
        """
        check_seed(seed)
        count = round(share * len(self)) if isfinite(share) else 0
        if not 0 < count < len(self):
            raise ConfigError(
                f"A share of {share} leaves one part of the {len(self)} pairs empty. "
                "Use a share strictly between 0 and 1 that gives each part a pair."
            )
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).tolist()
        return self.subset(sorted(order[:count])), self.subset(sorted(order[count:]))

    def by_span(self) -> PromptPairs:
        """The pairs with the implied spans `last` and `rest` added to those that have names.

        Raises:
            PairsError: An example has no spans, or others than the first one.
        """
        pairs = []
        for number, pair in enumerate(self.pairs):
            if pair.spans is None:
                raise PairsError(
                    f"Example {number} ({pair.describe()}) has no spans. Give every example "
                    "spans, e.g. spans={'subject': 'Space Needle'}, or use split_by='position'."
                )
            own, other = pair.spans, pair.counterfactual_spans
            aligned = other is None
            spans = with_implied(own, len(pair.prompt_ids), rest=aligned)
            if other is not None:
                other = with_implied(other, len(pair.counterfactual_ids), rest=False)
                # The last token may belong to a span in one of the two only.
                other = {name: other[name] for name in spans if name in other}
                spans = {name: spans[name] for name in other}
            pairs.append(replace(pair, spans=spans, counterfactual_spans=other))
        # A prompt whose every token has a name has no rest.
        common = [name for name in pairs[0].spans or {} if name not in (LAST, REST)]
        for number, pair in enumerate(pairs):
            names = [name for name in pair.spans or {} if name not in (LAST, REST)]
            if set(names) != set(common):
                raise PairsError(
                    f"Example {number} ({pair.describe()}) has the spans {', '.join(names)}, and "
                    f"example 0 has {', '.join(common)}. Give every example the same ones."
                )
        return replace(self, pairs=tuple(pairs), is_split=True)

    def by_position(self, names: Sequence[str] | None = None) -> PromptPairs:
        """The pairs with a span for every position.

        Args:
            names: What the spans are called, in order. None: by their numbers.

        Raises:
            PairsError: The prompts have several lengths, or another one than there are names.
        """
        names = position_names([pair.prompt_ids for pair in self]) if names is None else names
        for number, pair in enumerate(self):
            n_tokens = {len(pair.prompt_ids), len(pair.counterfactual_ids)}
            if n_tokens != {len(names)}:
                raise PairsError(
                    f"Example {number} ({pair.describe()}) has {len(pair.prompt_ids)} tokens, and "
                    f"there are {len(names)} positions to tell apart. Give prompts of one length, "
                    "or name spans, and use split_by='span'."
                )
        spans = {name: (position,) for position, name in enumerate(names)}
        changed = [replace(pair, spans=spans, counterfactual_spans=None) for pair in self]
        return replace(self, pairs=tuple(changed), is_split=True)

    @property
    def span_names(self) -> tuple[str, ...]:
        """Spans that some example has, in order of their first token; `last` and `rest` last."""
        firsts: dict[str, int] = {}
        for pair in self:
            for name, positions in (pair.spans or {}).items():
                firsts.setdefault(name, positions[0])
        named = sorted((n for n in firsts if n not in (LAST, REST)), key=lambda n: firsts[n])
        return tuple(named) + tuple(name for name in (REST, LAST) if name in firsts)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all ids, counterfactuals and weights; equal data have equal fingerprints."""
        digest = hashlib.sha256()
        for pair in self.pairs:
            digest.update(repr((pair.prompt_ids, pair.x_ids, pair.y_ids)).encode())
            digest.update(pair.counterfactual.content())
            if pair.prompt_noise is not None:
                digest.update(pair.prompt_noise.contiguous().numpy().tobytes())
            if self.is_split:
                digest.update(repr((pair.spans, pair.counterfactual_spans)).encode())
            if pair.x_set_ids or pair.y_set_ids:
                digest.update(repr((pair.x_set_ids, pair.y_set_ids)).encode())
        if self.weights is not None:
            digest.update(self.weights.numpy().tobytes())
        return digest.hexdigest()

    @property
    def weights(self) -> Float[Tensor, " example"] | None:
        """Weights with a mean of 1; None if all are equal."""
        weights = torch.tensor([pair.weight for pair in self.pairs], dtype=torch.float64)
        is_equal = (weights == weights[0]).all()
        # Divided first: the sum of large weights may be infinite.
        weights = weights / weights.max()
        return None if is_equal else (weights / weights.mean()).float()

    @classmethod
    def from_ids(
        cls,
        rows: Sequence[Mapping[str, Any]],
        *,
        name: str = "pairs",
        on_mismatch: OnMismatch = "error",
    ) -> PromptPairs:
        """Pairs from token ids.

        Args:
            rows: Mappings with `prompt_ids`, `x_ids`, and optionally `y_ids`, `weight`,
                `x_set_ids` and `y_set_ids` (first tokens that count as x and y), `spans` (name of
                each -> [first token, one past the last]; `counterfactual_spans` where the
                counterfactual prompt has others) and one of `counterfactual_ids` and `noise` (a
                list or tensor of shape `pos d_model`); without one, only sources that need none
                can be traced (`Tracer(..., source="zero")`).
                Other keys are ignored, but `prompt`, `counterfactual`, `x` and `y` are kept as
                texts.
            name: Name of the data set.
            on_mismatch: `error` refuses examples whose counterfactual has another length than
                the prompt and lists them; `skip` drops them and lists them in `skipped`.

        Raises:
            ConfigError: Another value of `on_mismatch`.
            PairsError: A counterfactual of another length than its prompt, under `error`.
            PairsError: A prompt or continuation without a token.
            PairsError: A missing key, several counterfactuals, or no example at all.
        """
        if on_mismatch not in ("error", "skip"):
            raise ConfigError(f"on_mismatch is {on_mismatch!r}. Use 'error' or 'skip'.")
        pairs = [_pair_from_ids(number, row) for number, row in enumerate(_mappings(rows))]
        misaligned = [
            f"example {number}: {len(pair.prompt_ids)} tokens in {pair.describe()}, "
            f"{pair.counterfactual.n_tokens} in its counterfactual"
            for number, pair in enumerate(pairs)
            if not pair.is_aligned
        ]
        if misaligned and on_mismatch == "error":
            n_unnamed = len(misaligned) - _MOST_NAMED
            more = f"; and {n_unnamed} more" if n_unnamed > 0 else ""
            raise PairsError(
                f"{len(misaligned)} of {len(pairs)} counterfactuals differ in length from their "
                f"prompts ({'; '.join(misaligned[:_MOST_NAMED])}{more}). "
                'Align them token by token, give both spans, or drop them with on_mismatch="skip".'
            )
        aligned = tuple(pair for pair in pairs if pair.is_aligned)
        return cls(pairs=aligned, name=name, skipped=tuple(misaligned))

    @classmethod
    def from_text(
        cls,
        rows: Sequence[Mapping[str, Any]],
        model: Any,
        *,
        noise: GaussianNoise | None = None,
        name: str = "pairs",
        on_mismatch: OnMismatch = "error",
        prepend_bos: bool = False,
        warn: bool = True,
    ) -> PromptPairs:
        """Pairs from text.

        Prompt and continuations are encoded one by one, without special tokens: a continuation
        that starts a new word needs its leading space. Tokenizers of the first Llamas put a space
        before every text; with them a continuation is the tokens that it adds to the prompt's.

        Args:
            rows: Mappings with `prompt`, `x`, optionally `y`, `weight`, `x_set` and `y_set` (lists
                of first tokens that count as x and y), `spans` (name of each -> its text in the
                prompt, or a range of tokens; `counterfactual_spans` where the counterfactual has
                others), and `counterfactual` unless `noise` is given or the source of the Tracer
                needs none.
            model: The model to be traced, for its tokenizer and width; or a tokenizer.
            noise: Draws the counterfactual of every row as noise on the embeddings.
            name: Name of the data set.
            on_mismatch: As in `from_ids`.
            prepend_bos: Start prompts and counterfactuals with the tokenizer's
                beginning-of-sequence token.
            warn: Whether to warn where a prompt and its continuation are encoded otherwise than
                they stand in one text, e.g. as the continuation lacks its leading space.

        Raises:
            UnsupportedModelError: The model has no tokenizer.
            PairsError: As in `from_ids`.
        """
        tokenizer = tokenizer_of(model)
        encode = encoder(tokenizer)
        bos = bos_of(tokenizer) if prepend_bos else []
        encoded: list[dict[str, Any]] = []
        for number, row in enumerate(_mappings(rows)):
            _require_keys(row, number, ("prompt", "x"), TEXT_KEYS, optional="y")
            entry: dict[str, Any] = {key: row[key] for key in sorted(TEXT_KEYS) if row.get(key)}
            _require_text(entry, number)
            if row.get("weight") is not None:
                entry["weight"] = row["weight"]
            for key in sorted(TEXT_KEYS & set(entry)):
                if key in ("prompt", "counterfactual"):
                    entry[f"{key}_ids"] = bos + encode("", row[key])
                else:
                    entry[f"{key}_ids"] = encode(row["prompt"], row[key])
            for key, part in (("spans", "prompt"), ("counterfactual_spans", "counterfactual")):
                if row.get(key) is not None and row.get(part):
                    ids = entry[f"{part}_ids"]
                    entry[key] = spans_from_text(tokenizer, row[part], ids, row[key], number)
            for key in sorted(SET_KEYS & set(row)):
                entry[f"{key}_ids"] = _encode_set(encode, row, key, number)
            # Empty texts have no ids, which `from_ids` refuses.
            entry.setdefault("prompt_ids", [])
            entry.setdefault("x_ids", [])
            if row.get("y") == "":
                entry["y_ids"] = []
            encoded.append(entry)
        if warn:
            warn_of_boundaries(tokenizer, encoded)
        if noise is not None:
            lengths = [len(entry["prompt_ids"]) for entry in encoded]
            draws = noise.draw(lengths, width_of(model))
            for entry, noise_tensor in zip(encoded, draws, strict=True):
                entry["noise"] = noise_tensor
        pairs = cls.from_ids(encoded, name=name, on_mismatch=on_mismatch)
        return replace(pairs, token_texts=token_texts(tokenizer, _ids_of(pairs)))


def _ids_of(pairs: PromptPairs) -> set[int]:
    """Every token of prompts, counterfactuals and continuations."""
    parts = [(p.prompt_ids, p.counterfactual_ids, p.x_ids, p.y_ids or ()) for p in pairs]
    return {token for by_part in parts for ids in by_part for token in ids}


def _mappings(rows: object) -> list[Mapping[str, Any]]:
    """The rows as a list; refuses anything but mappings."""
    if not isinstance(rows, Iterable) or isinstance(rows, (str, Mapping)):
        raise PairsError(f"The rows are {shortened(rows)}. Give a list of mappings.")
    listed = list(rows)
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise PairsError(f"Example {number} is {shortened(row)}. Give a list of mappings.")
    return listed


def _require_keys(
    row: Mapping[str, Any],
    number: int,
    required: Iterable[str],
    allowed: Iterable[str],
    *,
    optional: str,
) -> None:
    """Refuses a row without a required key; the message lists the allowed ones."""
    missing = set(required) - set(row)
    if missing:
        raise PairsError(
            f"Example {number} lacks {' and '.join(sorted(missing))}. "
            f"Give the keys {', '.join(sorted(allowed))} ({optional} may be left out)."
        )


def _require_text(entry: Mapping[str, Any], number: int) -> None:
    """Refuses entries that are not text, or that no tokenizer can read."""
    for key, text in entry.items():
        is_text = isinstance(text, str)
        try:
            is_readable = is_text and bool(text.encode())
        except UnicodeEncodeError:
            is_readable = False
        if not is_readable:
            problem = "holds half a character" if is_text else "is no text"
            raise PairsError(
                f"The {key} of example {number} {problem}: {shortened(text)}. "
                "Give a text, or token ids (prompt_ids, x_ids, ...)."
            )


def _encode_set(
    encode: Callable[[str, str], list[int]], row: Mapping[str, Any], key: str, number: int
) -> list[int]:
    """Token ids of texts that are a token each."""
    texts = row[key]
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise PairsError(
            f"The {key} of example {number} is {shortened(texts)}. Give a list of texts, each of "
            "them one token."
        )
    ids = []
    for text in texts:
        _require_text({key: text}, number)
        tokens = encode(row["prompt"], text)
        if len(tokens) != 1:
            raise PairsError(
                f"The {key} of example {number} holds {text!r}, which is {len(tokens)} tokens. "
                "Token sets are of the first token after the prompt: give texts of one token."
            )
        ids += tokens
    return ids


def _check_sets(ids: Mapping[str, Any], number: int) -> None:
    """Refuses token sets that are empty or share a token."""
    sets = {key: ids[key] for key in ("x_set_ids", "y_set_ids") if key in ids}
    for key, tokens in sets.items():
        if len(set(tokens)) < len(tokens):
            raise PairsError(
                f"The {key} of example {number} name a token twice. Name each token once."
            )
    of_y = set(sets.get("y_set_ids", (ids.get("y_ids") or ())[:1]))
    both = of_y & set(sets.get("x_set_ids", ids["x_ids"][:1]))
    if sets and both:
        raise PairsError(
            f"Token {min(both)} of example {number} counts as x and as y. "
            "Leave it out of one of the two sets."
        )


def _pair_from_ids(number: int, row: Mapping[str, Any]) -> PromptPair:
    """The pair that a row of token ids describes; errors as in `PromptPairs.from_ids`."""
    _require_keys(row, number, ("prompt_ids", "x_ids"), ID_KEYS, optional="y_ids")
    ids: dict[str, Any] = {
        key: as_ids(row[key], key.removesuffix("_ids"), number)
        for key in ("prompt_ids", "x_ids", "y_ids", "x_set_ids", "y_set_ids")
        if row.get(key) is not None
    }
    for key, tokens in ids.items():
        if not tokens:
            part = key.removesuffix("_ids")
            text = f" ({row[part]!r})" if part in row else ""
            raise PairsError(
                f"The {part} of example {number}{text} encodes to no token. "
                "Give it at least one token, or leave the example out."
            )
    _check_sets(ids, number)
    counterfactual = counterfactual_from_row(row, number)
    texts = {key: str(row[key]) for key in sorted(TEXT_KEYS) if key in row}
    try:
        weight = float(row.get("weight", 1.0))
    except (TypeError, ValueError, OverflowError):
        weight = float("nan")
    if not 0 < weight < float("inf"):
        raise PairsError(
            f"The weight of example {number} is {row['weight']!r}. "
            "Weights must be positive numbers; leave out what is to count for nothing."
        )
    pair = PromptPair(**ids, counterfactual=counterfactual, texts=texts or None, weight=weight)
    if row.get("counterfactual_spans") is not None and (
        row.get("spans") is None or not isinstance(counterfactual, PromptCounterfactual)
    ):
        raise PairsError(
            f"Example {number} has counterfactual_spans, and no spans or no counterfactual prompt "
            "that they could be of. Give both."
        )
    return pair if row.get("spans") is None else _with_spans(pair, row, number)


def _with_spans(pair: PromptPair, row: Mapping[str, Any], number: int) -> PromptPair:
    spans = checked_spans(row["spans"], len(pair.prompt_ids), number)
    if row.get("counterfactual_spans") is None:
        return replace(pair, spans=spans)
    others = row["counterfactual_spans"]
    others = checked_spans(others, len(pair.counterfactual_ids), number, "counterfactual")
    if set(spans) != set(others):
        raise PairsError(
            f"Example {number} has the spans {', '.join(spans)}, and its counterfactual has "
            f"{', '.join(others)}. Give both the same ones."
        )
    for name, positions in spans.items():
        if len(positions) != len(others[name]):
            raise PairsError(
                f"The span {name!r} of example {number} has {len(positions)} tokens, and "
                f"{len(others[name])} in the counterfactual. Spans of equal length are exchanged."
            )
    return replace(pair, spans=spans, counterfactual_spans=others)


def _check_pairs(pairs: Sequence[PromptPair]) -> None:
    for number, pair in enumerate(pairs):
        if not pair.is_aligned:
            raise PairsError(
                f"The counterfactual of example {number} has {pair.counterfactual.n_tokens} "
                f"tokens, its prompt {len(pair.prompt_ids)}. Align them token by token."
            )
