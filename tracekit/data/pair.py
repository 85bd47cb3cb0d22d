"""A prompt pair: one example, and how a row of token ids describes it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from tracekit._util.clusters import FEWEST
from tracekit._util.options import is_int, join_first, short_repr
from tracekit._util.warn import warn
from tracekit.data import counterfactuals
from tracekit.data.counterfactuals import Ids, NoiseCounterfactual, PromptCounterfactual
from tracekit.data.spans import LAST, REST, Spans, add_implied_spans, parse_spans, select_span
from tracekit.errors import DataWarning, PairsError, near_miss

_TEXTS = ("prompt", "counterfactual", "x", "y")
TEXT_KEYS = frozenset(_TEXTS)
"""Keys of a row of text, beside `weight`, `group` and the token sets."""
SET_KEYS = frozenset({"x_set", "y_set"})
"""Keys of a row of text that hold lists of texts."""
OWN_KEYS = frozenset({"weight", "group", "spans", "counterfactual_spans"})
"""Keys of rows of both kinds."""
_OWN_IDS = ("prompt_ids", "x_ids", "y_ids", "x_set_ids", "y_set_ids")
"""Keys of a row of token ids that hold tokens of the example itself."""
_HINTS = dict.fromkeys(
    ("attention_mask", "special_tokens_mask", "token_type_ids"),
    "Give prompt_ids without padding, and leave masks out.",
)
"""What to do instead, by a key that people give."""
_LONGEST = 80
"""Characters of a prompt that a message shows at most."""


def id_keys() -> frozenset[str]:
    """Keys of rows of token ids, without the keys that rows of text have too."""
    return frozenset(each.row_key for each in counterfactuals.COUNTERFACTUALS).union(_OWN_IDS)


def draw_tokens(values: Mapping[str, Any]) -> tuple[Ids, ...]:
    """The tokens of an example, on which its random draws depend."""
    return tuple(tuple(values.get(name) or ()) for name in _OWN_IDS)


def count_shared(first: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of the common beginning of two sequences."""
    different = (n for n, (a, b) in enumerate(zip(first, other, strict=False)) if a != b)
    return next(different, min(len(first), len(other)))


def quote_briefly(text: str) -> str:
    """A text in quotes, without its middle where it is long."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return repr(text)


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
    counterfactual: counterfactuals.Counterfactual
    """Source of the values that an intervention patches in."""
    spans: Spans | None = None
    """Token positions of named parts of the prompt."""
    counterfactual_spans: Spans | None = None
    """Spans of the counterfactual prompt that take their place; None: the same positions."""
    prompt_noise: Float[Tensor, "pos d_model"] | None = None
    """Noise on the embeddings of the prompt: what a reversed pair with noise starts from."""
    texts: Mapping[str, str] | None = None
    """The texts that the ids were made from, for messages and tables."""
    weight: float = 1.0
    """Weight of its effect in the mean, relative to the other examples'."""
    group: str | None = None
    """Label of dependent examples, e.g. of one template; None if it depends on no other."""
    drawn_for: Ids | None = None
    """The prompt that its counterfactual was drawn or made for, if the data had another."""

    def __repr__(self) -> str:
        names = ("texts",) if self.texts else ("prompt_ids", "x_ids", "y_ids")
        values = {name: getattr(self, name) for name in (*names, "spans")}
        named = ", ".join(f"{name}={value!r}" for name, value in values.items() if value)
        return f"PromptPair({named}; {type(self.counterfactual).__name__})"

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

    @property
    def identity(self) -> Hashable:
        """Equal for examples with equal tokens and spans; weights and noise do not count."""
        other = self.counterfactual
        return (
            *(getattr(self, name) for name in _OWN_IDS),
            other.ids if isinstance(other, PromptCounterfactual) else None,
            *map(tuple, self._sorted_spans),
        )

    @property
    def _sorted_spans(self) -> list[list[tuple[str, tuple[int, ...]]]]:
        return [sorted((each or {}).items()) for each in (self.spans, self.counterfactual_spans)]

    @property
    def independence_key(self) -> Hashable:
        """Equal for pairs of the same two prompts, in any order and whatever x, y and spans are.

        Where values come from elsewhere, such as zeros, all pairs of one prompt are one example.
        """
        is_run = isinstance(self.counterfactual, PromptCounterfactual) and self.prompt_noise is None
        both = frozenset((self.prompt_ids, is_run and self.counterfactual_ids))
        return both if self.drawn_for is None else self.drawn_for

    @property
    def tokens(self) -> set[int]:
        """Every token of prompt, counterfactual and continuations."""
        return {*self.prompt_ids, *self.counterfactual_ids, *self.x_ids, *(self.y_ids or ())}

    @property
    def n_shared(self) -> int:
        """Number of tokens at which x and y begin alike; 0 without a y."""
        return count_shared(self.x_ids, self.y_ids or ())

    @property
    def answer_position(self) -> int:
        """Place of the first token of x that differs from y's, or of its last one if none does."""
        return min(self.n_shared, len(self.x_ids) - 1)

    @property
    def has_distinguishing_token(self) -> bool:
        """Whether some token of x differs from that of y in its place; True without a y."""
        return self.y_ids is None or self.n_shared < min(len(self.x_ids), len(self.y_ids))

    @property
    def token_sets(self) -> tuple[Ids, Ids]:
        """First tokens that count as x, and as y; without a y, none count as y."""
        return self.x_set_ids or self.x_ids[:1], self.y_set_ids or (self.y_ids or ())[:1]

    def content(self) -> bytes:
        """Bytes that are equal for equal pairs, apart from weights; part of the fingerprint."""
        noise = self.prompt_noise
        values = (
            *(getattr(self, name) for name in _OWN_IDS),
            self.group,
            *self._sorted_spans,
            type(self.counterfactual).__name__,
            self.counterfactual.content(),
            None if noise is None else noise.contiguous().numpy().tobytes(),
        )
        # A digest has a fixed length, so pairs cannot run into each other.
        return hashlib.sha256(repr(values).encode()).digest()

    @property
    def prompts_digest(self) -> str:
        """Digest of `independence_key`, which results save."""
        key = self.independence_key
        prompts = sorted(key, key=repr) if isinstance(key, frozenset) else key
        return hashlib.sha256(repr(prompts).encode()).hexdigest()[:16]

    def reversed(self) -> PromptPair:
        """The pair with prompt and counterfactual exchanged; noise moves to the prompt.

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
        """The prompt as text if there is one, else its first ids; both shortened."""
        if self.texts and self.texts.get("prompt"):
            return quote_briefly(self.texts["prompt"])
        first_ids = " ".join(map(str, self.prompt_ids[:12]))
        return f"[{first_ids}{' ...' if len(self.prompt_ids) > 12 else ''}]"


def describe_pairs(pairs: Sequence[PromptPair]) -> str:
    """How many pairs there are, of how many tokens, and their kinds of counterfactual."""
    lengths = sorted({len(pair.prompt_ids) for pair in pairs})
    tokens = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else str(lengths[0])
    kinds = sorted({type(pair.counterfactual).__name__ for pair in pairs})
    return f"{len(pairs)} pairs, prompts of {tokens} tokens, {', '.join(kinds)}"


def check_keys(
    row: Mapping[str, Any],
    number: int,
    required: Iterable[str],
    allowed: Iterable[str],
    *,
    optional: str,
    is_strict: bool = True,
) -> None:
    """Refuses a row that lacks a required key, or has an unknown one.

    Without `is_strict`, only keys similar to known ones are refused.
    """
    allowed = sorted(allowed)
    known_keys = {*allowed, *OWN_KEYS}
    hints = {**dict.fromkeys(id_keys(), "Give rows of token ids to from_ids."), **_HINTS}
    for key in [key for key in row if key not in known_keys]:
        hint = hints.get(key) or near_miss(key, known_keys)
        if is_strict or hint:
            raise PairsError(
                f"Example {number} has the key {short_repr(key)}, which nobody reads. "
                f"{hint}".rstrip()
                + f" Keys: {', '.join(sorted(known_keys))}."
            )
    missing = set(required) - set(row)
    if missing:
        raise PairsError(
            f"Example {number} lacks {' and '.join(sorted(missing))}. "
            f"Give the keys {', '.join(allowed)} ({optional} may be left out)."
        )


def _check_token_sets(ids: Mapping[str, Any], number: int) -> None:
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


def pair_from_ids(number: int, row: Mapping[str, Any]) -> PromptPair:
    """The pair that a row of token ids describes; errors as in `PromptPairs.from_ids`."""
    allowed = id_keys() | TEXT_KEYS
    check_keys(row, number, ("prompt_ids", "x_ids"), allowed, optional="y_ids", is_strict=False)
    ids: dict[str, Any] = {
        key: counterfactuals.as_ids(row[key], key.removesuffix("_ids"), number)
        for key in _OWN_IDS
        if row.get(key) is not None
    }
    counterfactual = counterfactuals.counterfactual_from_row(row, number)
    read = {**ids, "counterfactual_ids": counterfactual.reads(ids["prompt_ids"])}
    for key, tokens in read.items():
        if not tokens:
            part = key.removesuffix("_ids")
            text = f" ({short_repr(row[part])})" if part in row else ""
            raise PairsError(
                f"The {part} of example {number}{text} encodes to no token. "
                "Give it at least one token, or leave the example out."
            )
    _check_token_sets(ids, number)
    texts = {key: str(row[key]) for key in _TEXTS if row.get(key) is not None}
    try:
        weight = float(row.get("weight", 1.0))
    except (TypeError, ValueError, OverflowError):
        weight = float("nan")
    if not 0 < weight < float("inf"):
        raise PairsError(
            f"The weight of example {number} is {short_repr(row['weight'])}. "
            "Weights must be positive numbers; leave out what is to count for nothing."
        )
    group = parse_group(row.get("group"), number)
    spans, others = row.get("spans"), row.get("counterfactual_spans")
    if others is not None and (
        spans is None or not isinstance(counterfactual, PromptCounterfactual)
    ):
        raise PairsError(
            f"Example {number} has counterfactual_spans, and no spans or no counterfactual prompt "
            "that they could be of. Give both."
        )
    if spans is not None:
        spans = parse_spans(spans, len(ids["prompt_ids"]), number)
    if spans is not None and others is not None:
        others = parse_spans(others, len(read["counterfactual_ids"]), number, "counterfactual")
        lengths, other_lengths = (
            {name: len(positions) for name, positions in each.items()} for each in (spans, others)
        )
        if lengths != other_lengths:
            raise PairsError(
                f"The spans of example {number} have {lengths} tokens, and {other_lengths} in the "
                "counterfactual. Give both the same ones: spans of equal length are exchanged."
            )
    return PromptPair(
        **ids,
        counterfactual=counterfactual,
        spans=spans,
        counterfactual_spans=others,
        texts=texts or None,
        weight=weight,
        group=group,
    )


def check_mappings(rows: object) -> list[Mapping[str, Any]]:
    """Returns the rows as a list; refuses anything but mappings."""
    if not isinstance(rows, Iterable) or isinstance(rows, (str, Mapping)):
        raise PairsError(f"The rows are {short_repr(rows)}. Give a list of mappings.")
    listed = list(rows)
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise PairsError(f"Example {number} is {short_repr(row)}. Give a list of mappings.")
    return listed


def pairs_from_ids(rows: object) -> list[PromptPair]:
    """The pairs that rows of token ids describe, of equal lengths or not."""
    rows = check_mappings(rows)
    pairs = [pair_from_ids(number, row) for number, row in enumerate(rows)]
    unread = {str(key) for row in rows for key in row} - id_keys() - TEXT_KEYS - OWN_KEYS
    if unread:
        n = sum(not unread.isdisjoint(map(str, row)) for row in rows)
        shown = ", ".join(map(repr, sorted(unread)[:3])) + (", ..." if len(unread) > 3 else "")
        warn(f"{n} of {len(rows)} rows have keys that nobody reads: {shown}.", DataWarning)
    return pairs


def describe_misaligned(pairs: Iterable[PromptPair]) -> tuple[str, ...]:
    """A line for each pair whose counterfactual does not cover the prompt."""
    return tuple(
        f"example {number}: {len(pair.prompt_ids)} tokens in {pair.describe()}, "
        f"{pair.counterfactual.n_tokens} in its counterfactual"
        for number, pair in enumerate(pairs)
        if not pair.is_aligned
    )


def split_by_span(pairs: Iterable[PromptPair], only: str | None) -> tuple[PromptPair, ...]:
    """Adds implied spans, or keeps `only` one; refuses pairs with different spans."""
    split: list[PromptPair] = []
    common: list[str] = []
    for number, pair in enumerate(pairs):
        own, other = pair.spans, pair.counterfactual_spans
        if own is None:
            raise PairsError(
                f"Example {number} ({pair.describe()}) has no spans. Give every example "
                "spans, e.g. spans={'subject': 'Space Needle'}, or use split_by='position'."
            )
        spans = add_implied_spans(own, len(pair.prompt_ids), rest=other is None)
        if other is not None:
            other = add_implied_spans(other, len(pair.counterfactual_ids), rest=False)
            # The last token may belong to a span in one of the two only.
            other = {name: other[name] for name in spans if name in other}
            spans = {name: spans[name] for name in other}
        if only is not None:
            spans = select_span(spans, only, number)
            other = None if other is None else select_span(other, only, number)
        # A prompt whose every token has a name has no rest.
        names = [name for name in spans if name not in (LAST, REST)]
        common = common if split else names
        if set(names) != set(common):
            raise PairsError(
                f"Example {number} ({pair.describe()}) has the spans {', '.join(names)}, and "
                f"example 0 has {', '.join(common)}. Give every example the same ones."
            )
        split.append(replace(pair, spans=spans, counterfactual_spans=other))
    return tuple(split)


def parse_group(group: object, number: int) -> str | None:
    """The group of an example as text; converts numbers."""
    if group is None or isinstance(group, str) or is_int(group):
        return None if group in (None, "") else str(group)
    text = (
        f"The group of example {number} is {short_repr(group)}. Give a text or a whole number, "
        "the same for examples that share a template, say."
    )
    if isinstance(group, float):
        text += (
            " pandas makes 1.0 of every 1 in a column with an empty cell: read it with dtype=str, "
            "keep_default_na=False."
        )
    raise PairsError(text)


def check_groups(pairs: Sequence[PromptPair]) -> None:
    """Refuses more than two pairs of a single group; warns if there are too few groups."""
    if len(pairs) > 2 and pairs[0].group is not None and len({pair.group for pair in pairs}) == 1:
        raise PairsError(
            f"All {len(pairs)} pairs are of the one group {pairs[0].group!r}, so no two are "
            "independent, and no statistics are possible. Give pairs of several groups, or leave "
            "the group out."
        )
    warn_of_groups(pairs)


def warn_of_groups(pairs: Sequence[PromptPair], of: str = "") -> None:
    """Warns if groups leave too few independent examples; `of` names the pairs."""
    if len(set(cluster_ids(pairs))) < FEWEST <= len({pair.independence_key for pair in pairs}):
        text = f"{describe_independent(pairs)}{of}: an interval needs {FEWEST}, so there is none."
        warn(f"{text} Give pairs of more groups.", DataWarning)


def warn_of_overlap(pairs: Sequence[PromptPair], token_texts: Mapping[int, str]) -> None:
    """Warns where x and y begin alike, so that their first token does not tell them apart."""
    for text in overlap_texts(pairs, token_texts):
        warn(text, DataWarning)


def overlap_texts(pairs: Sequence[PromptPair], token_texts: Mapping[int, str]) -> list[str]:
    """Texts on pairs whose x and y begin alike, and on pairs where one begins the other."""
    texts: list[str] = []
    n = len(pairs)
    beginnings = Counter(
        pair.x_ids[: pair.n_shared]
        for pair in pairs
        if pair.has_distinguishing_token and pair.n_shared
    )
    if beginnings:
        shown = [
            " ".join(repr(token_texts.get(token, token)) for token in ids)
            for ids, _ in beginnings.most_common(3)
        ]
        more = ", ..." if len(beginnings) > 3 else ""
        is_one = all(len(ids) == 1 for ids in beginnings)
        token, pronoun = ("token", "it") if is_one else ("tokens", "them")
        texts.append(
            f"x and y begin with the same {token} {', '.join(shown)}{more} in "
            f"{sum(beginnings.values())} of {n} pairs: move {pronoun} into the prompt. Means over "
            "tokens count what is shared too; what is read of a single token (kl, ranks, "
            "contributions of heads) is read at the first token that differs."
        )
    parts = [
        number
        for number, pair in enumerate(pairs)
        if not pair.has_distinguishing_token and pair.x_ids != pair.y_ids
    ]
    if parts:
        texts.append(
            f"One of x and y is the beginning of the other in {len(parts)} of {n} pairs (example "
            f"{parts[0]}: {pairs[parts[0]].describe()}), so both can be the first choice, and no "
            "token tells them apart. What is read of a single token (kl, ranks) is read at the "
            "first token of x behind y, or at the last one of x. End both with the same sign, such "
            "as a full stop, or leave these pairs out."
        )
    return texts


def describe_independent(pairs: Sequence[PromptPair]) -> str:
    """How many independent examples pairs are, in words."""
    n, are_grouped = (len(set(cluster_ids(pairs))), any(pair.group is not None for pair in pairs))
    noun = "group" if are_grouped else "example"
    plural = "" if n == 1 else "s"
    return f"{n} independent {noun}{plural} in {len(pairs)} examples"


def cluster_ids(pairs: Sequence[Any]) -> list[int]:
    """Numbers the independent examples by their first pairs; returns a number per pair."""
    parents: dict[Any, Any] = {}

    def first_of(key: Any) -> Any:
        while parents.setdefault(key, key) != key:
            parents[key] = key = parents[parents[key]]
        return key

    keys = [pair.independence_key for pair in pairs]
    for pair, key in zip(pairs, keys, strict=True):
        if pair.group is not None:
            # Two groups that share an example become one.
            parents[first_of(key)] = first_of(pair.group)
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(first_of(key), len(numbers)) for key in keys]


def identify_by_prompt(pairs: Iterable[PromptPair]) -> list[PromptPair]:
    """Identifies pairs by their prompt alone, for sources that read no counterfactuals."""
    return [replace(pair, drawn_for=pair.prompt_ids) for pair in pairs]


def split_disjoint(
    pairs: Sequence[Any], order: Sequence[int], count: int
) -> tuple[list[int], list[int]]:
    """Numbers of the pairs in two parts that share no example and no group, ascending.

    The first part has the first `count` in `order`, or fewer where groups do not fit.
    """
    examples = cluster_ids(pairs)
    by_example: dict[int, list[int]] = {}
    for number in order:
        by_example.setdefault(examples[number], []).append(number)
    first: list[int] = []
    for equal in by_example.values():
        first += equal if len(first) + len(equal) <= count else []
    return sorted(first), sorted(set(order) - set(first))


def check_disjoint(searched: Sequence[Any], held_out: Sequence[Any]) -> None:
    """Refuses held-out pairs that are also searched, or share a group with searched ones."""
    searched_keys = {pair.independence_key for pair in searched}
    both = [n for n, pair in enumerate(held_out) if pair.independence_key in searched_keys]
    if both:
        named = join_first([f"example {n}: {held_out[n].describe()}" for n in both])
        raise PairsError(
            f"{len(both)} of {len(held_out)} held-out examples are also searched, or are mirrors "
            f"of searched ones, or have the same prompt ({named}). Leave them out of one part. "
            "pairs.split(...) makes disjoint parts and keeps groups whole; pass by_prompt=True if "
            "the source does not read the counterfactuals of the pairs."
        )
    groups = {pair.group for pair in held_out} & {pair.group for pair in searched} - {None}
    if groups:
        named = ", ".join(map(repr, sorted(map(str, groups))[:3]))
        raise PairsError(
            f"{len(groups)} groups have both held-out and searched pairs "
            f"({named}{', ...' if len(groups) > 3 else ''}). Keep each group on one side, as "
            "pairs.split(...) does."
        )


MOST_STALE = 100
"""Batches in a row without a fresh pair after which a source of pairs has run out."""


class SeenPrompts:
    """The prompts, counterfactuals and groups of pairs that were used, to find fresh pairs."""

    def __init__(self, pairs: Iterable[PromptPair] = ()) -> None:
        """Notes pairs."""
        self.digests: set[str] = set()
        """Of each prompt, counterfactual and group; results save them."""
        self.add(pairs)

    def add(self, pairs: Iterable[PromptPair]) -> None:
        """Notes further pairs."""
        for pair in pairs:
            self.digests.add(_digest("prompt", pair.prompt_ids))
            self.digests.add(_digest("counterfactual", pair.counterfactual_ids))
            self.digests |= {_digest("group", pair.group)} - {_digest("group", None)}

    def has(self, pair: PromptPair) -> bool:
        """Whether a pair shares its prompt or its group, or has a prompt as its counterfactual."""
        own, other = pair.prompt_ids, pair.counterfactual_ids
        used = ("prompt", own), ("counterfactual", own), ("prompt", other), ("group", pair.group)
        return any(_digest(*each) in self.digests for each in used)

    def has_group(self, pair: PromptPair) -> bool:
        """Whether a pair shares its group."""
        return _digest("group", pair.group) in self.digests


def _digest(kind: str, value: object) -> str:
    return hashlib.sha256(f"{kind} {value!r}".encode()).hexdigest()[:12]
