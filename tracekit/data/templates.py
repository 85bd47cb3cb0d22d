"""Prompt pairs from a template: sentences with named fields, filled with values."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from string import Formatter
from typing import Any, NamedTuple

from tracekit._util.options import check_int, check_seed, short_repr
from tracekit._util.warn import warn
from tracekit.data.chat import Chat, ChatTemplate, make_chat_template
from tracekit.data.spans import spans_from_places
from tracekit.data.tokenization import bos_ids, is_letter, make_encoder, require_tokenizer
from tracekit.errors import DataWarning, PairsError

_TRIES = 200
"""Examples in a row, or counterfactuals of one, that are drawn in vain before it is given up."""
_MOST_NAMED = 5
"""Dropped examples whose reasons are named."""
_CLOSING = ",.;:!?)"
"""After these, as after a letter, a word begins with a space."""


class _Unusable(Exception):
    """A drawn example cannot be used; the drawn values of `fields` can never be used."""

    def __init__(self, reason: str, fields: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.fields = fields


@dataclass
class _FieldGroup:
    """Fields that are filled together, with their rows of values."""

    names: tuple[str, ...]
    rows: list[tuple[str, ...]]
    uses: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def draw(self, rng: random.Random, taken: Iterable[str], spread: int) -> tuple[str, ...]:
        """Draws a row without a value of `taken`: one of the least used ones if `spread` is 0.

        A larger `spread` adds a random number up to it to the uses of each row.
        """
        free = [row for row in self.rows if set(taken).isdisjoint(row)]
        if not free:
            raise PairsError(
                f"No value is left for the field {self.names[0]!r}: the fields of an example have "
                "different values, and those asked for are one token. Give it more values."
            )
        weights = {row: (self.uses[row] + spread * rng.random(), rng.random()) for row in free}
        return min(free, key=weights.__getitem__)


_Drawn = list[tuple[_FieldGroup, tuple[str, ...]]]


class _FilledPrompt(NamedTuple):
    raw: str
    text: str
    """Text that the model reads: in a chat, with the words of the chat template."""
    ids: list[int]
    spans: dict[str, list[int]]
    """Ranges of tokens, by field; a field that stands twice has numbers, e.g. `A1` and `A2`."""


Filler = Callable[[str, Mapping[str, str]], _FilledPrompt]
"""Fills a template with values, and encodes it."""


@dataclass(kw_only=True)
class Template:
    """A template with its values; see `PromptPairs.from_template`."""

    prompts: Sequence[str]
    counterfactual: Mapping[str, str] | str | Sequence[str] | None
    """Other fields by field, or templates of their own."""
    answers: Mapping[str, Sequence[str]]
    """Templates of `x`, `y`, `x_set` and `y_set`."""
    values: Mapping[Any, Sequence[Any]]
    one_token: bool | Sequence[str]

    def __post_init__(self) -> None:
        given = self.counterfactual
        if isinstance(given, Mapping) and not given:
            raise PairsError(
                "The template has no counterfactual. Give counterfactual={'A': 'C'} to put another "
                "value into the field A, a template of its own, or None for a source that needs "
                "none (zero, mean, noise, resample)."
            )
        replaced, others = (given, None) if isinstance(given, Mapping) else ({}, given)
        others = [others] if isinstance(others, str) else others
        if not self.prompts or (others is not None and len(others) != len(self.prompts)):
            raise PairsError(
                f"There are {len(self.prompts)} templates and {len(others or ())} counterfactuals. "
                "Give each template one."
            )
        self._groups = [_make_group(names, rows) for names, rows in self.values.items()]
        with_values = {name for group in self._groups for name in group.names}
        in_prompts = {name for text in self.prompts for name in _fields(text)}
        for name in replaced:
            # Of fields that belong together, some may stand in x and y only.
            if name not in in_prompts | with_values or in_prompts.isdisjoint(replaced):
                raise PairsError(
                    f"The counterfactual replaces {name!r}, which the template does not have. "
                    f"Its fields: {', '.join(sorted(in_prompts)) or 'none'}."
                )
        for group in tuple(self._groups):
            # A name without values of its own takes those of the field that it replaces.
            fresh = tuple(replaced.get(name, name) for name in group.names)
            if any(name not in with_values for name in fresh):
                self._groups.append(_FieldGroup(fresh, list(group.rows)))
        with_values |= {name for group in self._groups for name in group.names}
        renamed = [_rename_fields(text, replaced) for text in self.prompts]
        self._others: Sequence[Any] | None = renamed if replaced else others
        of_answers = [text for texts in self.answers.values() for text in texts]
        texts = (*self.prompts, *(self._others or ()), *of_answers)
        lacking = sorted({name for text in texts for name in _fields(text)} - with_values)
        if lacking:
            raise PairsError(
                f"The field {lacking[0]!r} has no values. Give some for every field, e.g. "
                f"values={{{lacking[0]!r}: ['...', '...']}}."
            )
        fields = [name for text in of_answers for name in _fields(text)]
        self._short = frozenset(fields if self.one_token is True else self.one_token or ())

    def make_rows(
        self, count: int, model: Any, prepend_bos: bool | None, chat: Chat, *, seed: int
    ) -> tuple[list[dict[str, Any]], Chat, list[str]]:
        """Makes different rows; returns them, the chat with its time, and a line per dropped row.

        Fewer rows than `count` give a warning, no row an error.
        """
        check_seed(seed)
        check_int("n", count)
        tokenizer = require_tokenizer(model)
        writer = make_chat_template(tokenizer, chat)
        fill = make_filler(tokenizer, prepend_bos, writer)
        self._encode, rng = make_encoder(tokenizer), random.Random(seed)
        rows: list[dict[str, Any]] = []
        dropped: list[str] = []
        failures = 0
        while len(rows) < count and failures < _TRIES:
            used: _Drawn = []
            failures += 1
            try:
                row = self._make_row(len(rows) % len(self.prompts), rng, fill, used)
                if row in rows:
                    raise _Unusable(f"{row['prompt']!r} repeats an earlier example")
                rows.append(row)
                failures = 0
            except _Unusable as problem:
                dropped.append(str(problem))
                for group, values in used:
                    if not set(problem.fields).isdisjoint(group.names):
                        group.rows.remove(values)
            for group, values in used:
                group.uses[values] += 1
        reasons = "; ".join(dict.fromkeys(dropped[:_MOST_NAMED]))
        if not rows:
            raise PairsError(
                f"No example can be made of the template: {reasons}. Give other values, or values "
                "that are as many tokens."
            )
        if len(rows) < count:
            warn(
                f"The template gives {len(rows)} of {count} examples; {len(dropped)} drawn ones "
                f"were dropped ({reasons}). Give more values.",
                DataWarning,
            )
        if writer:
            writer.warn_of_clock()
        return rows, writer.arguments if writer else chat, dropped

    def _make_row(
        self, turn: int, rng: random.Random, fill: Filler, used: _Drawn
    ) -> dict[str, Any]:
        own = {name for text in (self.prompts[turn], *self.answers["x"]) for name in _fields(text)}
        rest = [group for group in self._groups if own.isdisjoint(group.names)]
        values: dict[str, str] = {}
        for group in self._groups:
            if group not in rest:
                used.append((group, group.draw(rng, values.values(), 0)))
                values |= zip(group.names, used[-1][1], strict=True)
        prompt = fill(self.prompts[turn], values)
        for span, (first, stop) in prompt.spans.items():
            name = span if span in values else span.rstrip("0123456789")
            if name in self._short and stop - first != 1:
                reason = f"{values[name]!r} in {name!r} is {stop - first} tokens instead of one"
                raise _Unusable(reason, [name])
        row: dict[str, Any] = {"prompt": prompt.raw, "spans": prompt.spans}
        n_own, other = len(used), None
        n_choices = prod(len(group.rows) for group in rest) if self._others else 0
        for spread in range(min(_TRIES, 1 + 3 * n_choices)):
            del used[n_own:]
            for group in rest:
                used.append((group, group.draw(rng, values.values(), spread)))
                values |= zip(group.names, used[-1][1], strict=True)
            other = None if self._others is None else fill(self._others[turn], values)
            if other is None or _are_aligned(prompt, other):
                break
            own = {name for group, _ in used[:n_own] for name in group.names}
            values = {name: text for name, text in values.items() if name in own}
        else:
            raise _Unusable(f"{prompt.raw!r}: no counterfactual of as many tokens was found")
        if other is not None:
            row["counterfactual"] = other.raw
        for part, texts in self.answers.items():
            answers = [_add_space(prompt.text, _fill_template(text, values)[0]) for text in texts]
            for text, answer in zip(texts, answers, strict=True):
                n_tokens, is_set = len(self._encode(prompt.text, answer)), part.endswith("_set")
                short = [name for name in _fields(text) if is_set or name in self._short]
                if n_tokens != 1 and (short or is_set):
                    raise _Unusable(f"{part} {answer!r} is {n_tokens} tokens", short)
            if answers:
                row[part] = answers if part.endswith("_set") else answers[0]
        return row


def _make_group(names: Any, rows: Sequence[Any]) -> _FieldGroup:
    is_several = isinstance(names, tuple)
    listed = () if isinstance(rows, (str, Mapping)) or not isinstance(rows, Sequence) else rows
    given = [tuple(row) if is_several and isinstance(row, Sequence) else (row,) for row in listed]
    names = names if is_several else (names,)
    is_text = all(isinstance(value, (str, int)) for row in given for value in row)
    if not given or not is_text or any(len(row) != len(names) for row in given):
        raise PairsError(
            f"The values of {', '.join(map(str, names))} are {short_repr(rows)}. Give a list of "
            "texts; for several fields that belong together a list of rows, e.g. "
            "values={('country', 'capital'): [('France', 'Paris'), ...]}."
        )
    return _FieldGroup(names, [tuple(map(str, row)) for row in dict.fromkeys(given)])


def _parse_template(text: str) -> list[tuple[str, str | None]]:
    try:
        pieces = list(Formatter().parse(text))
    except (ValueError, TypeError) as error:
        raise PairsError(
            f"The template {short_repr(text)} cannot be read: {error}. Write fields as {{name}}, "
            "and braces of the text twice."
        ) from error
    for _, name, spec, conversion in pieces:
        if name is not None and (not name.isidentifier() or spec or conversion):
            raise PairsError(
                f"The template {short_repr(text)} has the field {name!r}. Write fields as {{name}}."
            )
    return [(literal, name) for literal, name, _, _ in pieces]


def _fields(text: str) -> list[str]:
    return [name for _, name in _parse_template(text) if name is not None]


def _rename_fields(text: str, replaced: Mapping[str, str]) -> str:
    made = ""
    for literal, name in _parse_template(text):
        made += literal.replace("{", "{{").replace("}", "}}")
        made += "" if name is None else f"{{{replaced.get(name, name)}}}"
    return made


def _fill_template(text: str, values: Mapping[str, str]) -> tuple[str, list[tuple[str, int, int]]]:
    filled, places = "", []
    for literal, name in _parse_template(text):
        filled += literal
        if name is not None:
            places.append((name, len(filled), len(filled) + len(values[name])))
            filled += values[name]
    return filled, places


def make_filler(
    tokenizer: Any, prepend_bos: bool | None, chat: ChatTemplate | None = None
) -> Filler:
    """Makes a function that fills a template and encodes it as `PromptPairs.from_text` does."""
    encode = make_encoder(tokenizer)
    bos = bos_ids(tokenizer, False if chat and prepend_bos is None else prepend_bos)

    def fill(template: str, values: Mapping[str, str]) -> _FilledPrompt:
        raw, places = _fill_template(template, values)
        text = raw if chat is None else chat.render_prompt(raw, "prompt", 0)
        start, end = (0, len(text)) if chat is None else chat.locate_messages(raw, text, 0)[0]
        # Chat templates may trim the text.
        shift = start - raw.index(text[start:end])
        ids = encode("", text)
        ids = ids if ids[:1] == bos else bos + ids
        counts, seen = Counter([name for name, _, _ in places]), Counter[str]()
        by_span: dict[str, tuple[int, int]] = {}
        for name, first, stop in places:
            seen[name] += 1
            span = name if counts[name] == 1 else f"{name}{seen[name]}"
            by_span[span] = max(start, first + shift), min(end, stop + shift)
        return _FilledPrompt(raw, text, ids, spans_from_places(tokenizer, text, ids, by_span, 0))

    return fill


def _are_aligned(prompt: _FilledPrompt, other: _FilledPrompt) -> bool:
    places = [list(each.spans.values()) for each in (prompt, other)]
    is_same = len(places[0]) != len(places[1]) or places[0] == places[1]
    return len(prompt.ids) == len(other.ids) and is_same


def _add_space(prompt: str, text: str) -> str:
    """Adds a space before a continuation whose first word would be joined to the prompt."""
    is_end = is_letter(prompt[-1:]) or prompt[-1:] in _CLOSING
    return f" {text}" if is_end and text[:1].isalnum() else text
