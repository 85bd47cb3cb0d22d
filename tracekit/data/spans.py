"""Spans: named parts of a prompt, which split a component by position.

Users name some, by text or by a range of tokens. Two are implied: `last`, the final token, and
`rest`, every token of no other span. Where a counterfactual prompt has another length, its own
spans say which tokens take the place of which, and there is no `rest`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tracekit._util.options import as_ints, short_repr
from tracekit.errors import PairsError

Spans = Mapping[str, tuple[int, ...]]
"""Name of a span -> its token positions, ascending."""
Region = tuple[int, int]
"""Characters of a text: the first, and one past the last."""

LAST, REST = "last", "rest"


def spans_from_text(
    tokenizer: Any,
    prompt: str,
    ids: Sequence[int],
    texts: Any,
    number: int,
    regions: Sequence[Region] = (),
) -> dict[str, list[int]]:
    """Token ranges, [first, one past the last], of named parts of example `number`'s prompt.

    A token belongs to a span if it holds a character of it other than a space before it. Texts are
    looked for in the first of the `regions` of characters, and then in the others.
    """
    if not isinstance(texts, Mapping):
        return texts  # `parse_spans` refuses it.
    ranges: dict[str, list[int]] = {}
    places: dict[str, Region] = {}
    regions = regions or [(0, len(prompt))]
    for name, text in texts.items():
        if not isinstance(text, str):
            # A range of tokens, which `parse_spans` checks.
            ranges[name] = text
            continue
        own, others = (_find_text(text, prompt, part) for part in (regions[:1], regions[1:]))
        starts = own or others
        if len(starts) != 1:
            problem = f"occurs {len(starts)} times" if starts else "does not occur"
            raise PairsError(
                f"The span {name!r} of example {number}, {text!r}, {problem} in "
                f"{prompt[slice(*regions[0])]!r}. Give "
                "a text that occurs once, or a range of tokens [first, one past the last]."
            )
        first = starts[0]
        places[name] = (first + len(text) - len(text.lstrip()), first + len(text))
    if places:
        ranges |= spans_from_places(tokenizer, prompt, ids, places, number)
    return {name: ranges[name] for name in texts}


def _find_text(text: str, prompt: str, regions: Sequence[Region]) -> list[int]:
    return [
        first
        for start, end in regions
        for first in range(start, end - len(text) + 1)
        if text and prompt.startswith(text, first)
    ]


def spans_from_places(
    tokenizer: Any, prompt: str, ids: Sequence[int], places: Mapping[str, Region], number: int
) -> dict[str, list[int]]:
    """Token ranges of parts of a prompt that are given by characters [first, one past the last]."""
    edges = _edges(tokenizer, prompt, ids, number)
    ranges = {}
    for name, (first, stop) in places.items():
        inside = [i for i, (start, end) in enumerate(edges) if start < stop and end > first]
        if not inside:
            raise PairsError(
                f"The span {name!r} of example {number}, {prompt[first:stop]!r}, holds no token. "
                "Give its range of tokens [first, one past the last]."
            )
        ranges[name] = [inside[0], inside[-1] + 1]
    return ranges


def _edges(tokenizer: Any, prompt: str, ids: Sequence[int], number: int) -> list[Region]:
    """First character and one past the last of every token of a prompt."""
    special = set(getattr(tokenizer, "all_special_ids", ()) or ())
    n_special = next((n for n, token in enumerate(ids) if token not in special), len(ids))
    # A beginning-of-sequence token is not part of the text, except in chats.
    for n_extra in (n_special, 0):
        own = list(ids[n_extra:])
        edges = _fast_edges(tokenizer, prompt, own) or _edges_by_decoding(tokenizer, prompt, own)
        if edges is not None:
            return [(0, 0)] * n_extra + edges
    raise PairsError(
        f"The tokenizer does not say which tokens of example {number} ({prompt!r}) stand for "
        "which text. Give ranges of tokens [first, one past the last] instead of texts."
    )


def _fast_edges(tokenizer: Any, prompt: str, ids: Sequence[int]) -> list[Region] | None:
    if not getattr(tokenizer, "is_fast", False):
        return None
    encoded = tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
    if list(encoded["input_ids"]) != list(ids):
        return None
    return [(start, stop) for start, stop in encoded["offset_mapping"]]


def _edges_by_decoding(tokenizer: Any, prompt: str, ids: Sequence[int]) -> list[Region] | None:
    decode = getattr(tokenizer, "decode", None)
    if decode is None:
        return None
    edges, before = [], 0
    for count in range(1, len(ids) + 1):
        text = decode(list(ids[:count]))
        if not prompt.startswith(text):
            return None
        edges.append((before, len(text)))
        before = len(text)
    return edges if before == len(prompt) else None


def parse_spans(given: Any, n_tokens: int, number: int, of: str = "prompt") -> Spans:
    """Spans from token ranges, [first, one past the last], by name."""
    if not isinstance(given, Mapping) or not given:
        raise PairsError(
            f"The spans of example {number} are {short_repr(given)}. Give a mapping from name to "
            "text, e.g. {'subject': 'Space Needle'}, or to a range of tokens [first, one past the "
            "last]."
        )
    spans: dict[str, tuple[int, ...]] = {}
    owner: dict[int, str] = {}
    for name, edges in given.items():
        if not isinstance(name, str) or not name or name in (LAST, REST) or set(name) & set("@,+"):
            raise PairsError(
                f"A span of example {number} is called {name!r}. Give a name without @ , + that is "
                "neither 'last' nor 'rest', which are implied."
            )
        numbers = as_ints(edges)
        if numbers is None or len(numbers) != 2 or not 0 <= numbers[0] < numbers[1] <= n_tokens:
            raise PairsError(
                f"The span {name!r} of example {number} is {short_repr(edges)}. Give a range of "
                f"tokens [first, one past the last] within the {n_tokens} of its {of}."
            )
        spans[name] = tuple(range(*numbers))
        for position in spans[name]:
            if position in owner:
                raise PairsError(
                    f"The spans {owner[position]!r} and {name!r} of example {number} share token "
                    f"{position}. Give spans without a common token."
                )
            owner[position] = name
    return spans


def add_implied_spans(spans: Spans, n_tokens: int, *, rest: bool) -> dict[str, tuple[int, ...]]:
    """Adds `last` and, if `rest` is True, `rest` to spans, where a token is left for them."""
    taken = {position for positions in spans.values() for position in positions}
    complete = dict(spans)
    if n_tokens - 1 not in taken:
        complete[LAST] = (n_tokens - 1,)
    others = tuple(p for p in range(n_tokens - 1) if p not in taken)
    if rest and others:
        complete[REST] = others
    return complete


def select_span(spans: Spans, name: str, number: int) -> Spans:
    """Selects one span of example `number`, or an end of it: `subject:first`, `subject:last`."""
    base, _, end = (name, "", "") if name in spans else name.partition(":")
    parts = {"": slice(None), "first": slice(1), "last": slice(-1, None)}
    if base not in spans or end not in parts:
        raise PairsError(
            f"Components are to act on {name!r}, and example {number} has the spans "
            f"{', '.join(spans)}. Name one of these, or an end of one, such as "
            f"'{next(iter(spans))}:last'; or use split_by='span' or 'position'."
        )
    return {name: spans[base][parts[end]]}


def all_span_names(of_pairs: Iterable[Spans]) -> tuple[str, ...]:
    """Spans that some example has, in order of their first token; `last` and `rest` last."""
    firsts: dict[str, int] = {}
    for spans in of_pairs:
        for name, positions in spans.items():
            firsts.setdefault(name, positions[0])
    named = sorted((n for n in firsts if n not in (LAST, REST)), key=lambda n: firsts[n])
    return (*named, *(name for name in (REST, LAST) if name in firsts))


def position_names(
    prompts: Sequence[Sequence[int]],
    token_text: Callable[[int], str] | None = None,
    spans: Sequence[Spans | None] = (),
) -> tuple[str, ...]:
    """Names for positions: the number, and the token or the span that all prompts have there."""
    covered = [{(p, name) for name, at in (own or {}).items() for p in at} for own in spans]
    fields, names = dict(set.intersection(*covered)) if covered else {}, []
    # As many names as the first prompt has tokens; callers check that lengths are equal.
    for position in range(len(prompts[0])):
        tokens = {prompt[position] for prompt in prompts if position < len(prompt)}
        text = "" if token_text is None or len(tokens) > 1 else token_text(tokens.pop()).strip()
        text = f"{{{fields[position]}}}" if not text and position in fields else text
        is_name = text.isprintable() and not set(text) & set("@,+")
        names.append(f"{position} {text}".strip() if is_name else str(position))
    return tuple(names)
