"""Examples as they are shown: tokens by their texts, and which the counterfactual changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from tracekit._util.markup import html_text
from tracekit.data.counterfactuals import (
    ConstantCounterfactual,
    Counterfactual,
    Ids,
    NoiseCounterfactual,
    PromptCounterfactual,
)

MOST_ROWS = 12
"""Examples that a table shows."""


@dataclass(frozen=True)
class ShownTokens:
    """Tokens of a prompt."""

    texts: tuple[str, ...]
    """Text of each, or its id where no tokenizer is known."""
    changed: tuple[bool, ...]
    """Which of them differ from those of the other prompt."""


@dataclass(frozen=True)
class ShownPair:
    """An example, ready to be shown."""

    prompt: ShownTokens
    counterfactual: ShownTokens | None
    """Tokens of the counterfactual prompt; None if it is none."""
    source: str
    """Description of the counterfactual, where it is no other prompt."""
    x: tuple[str, ...]
    """Texts of the tokens of x."""
    y: tuple[str, ...]
    """Those of y; empty if there is none."""


def shown_pair(
    prompt: Ids,
    counterfactual: Counterfactual,
    continuations: tuple[Ids, Ids],
    token_texts: Mapping[int, str],
    *,
    has_noise: bool,
) -> ShownPair:
    """An example with its tokens by their texts; tokens without one are shown by their ids."""

    def texts_of(ids: Ids) -> tuple[str, ...]:
        return tuple(token_texts.get(token, str(token)) for token in ids)

    other = counterfactual.reads(prompt)
    is_prompt = isinstance(counterfactual, PromptCounterfactual)
    changed, other_changed = _changed(prompt, other)
    return ShownPair(
        prompt=ShownTokens(texts_of(prompt), changed),
        counterfactual=ShownTokens(texts_of(other), other_changed) if is_prompt else None,
        source="the prompt with noise on its embeddings; the counterfactual is without"
        if has_noise
        else _source(counterfactual),
        x=texts_of(continuations[0]),
        y=texts_of(continuations[1]),
    )


def _source(counterfactual: Counterfactual) -> str:
    if isinstance(counterfactual, PromptCounterfactual):
        return ""
    if isinstance(counterfactual, NoiseCounterfactual):
        return "the prompt with noise on its embeddings"
    if isinstance(counterfactual, ConstantCounterfactual):
        return f"no prompt, but {counterfactual.constants.name} values"
    return "none"


def _changed(own: Sequence[int], other: Sequence[int]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Which tokens of two prompts differ: by position, or as in a diff if lengths differ."""
    if len(own) == len(other):
        flags = tuple(a != b for a, b in zip(own, other, strict=True))
        return flags, flags
    changed = [True] * len(own), [True] * len(other)
    blocks = SequenceMatcher(None, list(own), list(other), autojunk=False).get_matching_blocks()
    for block in blocks:
        for step in range(block.size):
            changed[0][block.a + step] = changed[1][block.b + step] = False
    return tuple(changed[0]), tuple(changed[1])


def pairs_html(title: str, examples: Sequence[ShownPair], n_more: int) -> str:
    """Examples as a table of HTML: all tokens visible, changed ones bold; `n_more` are left out."""
    rows = []
    for number, shown in enumerate(examples):
        other = shown.counterfactual
        cells = [
            str(number),
            _tokens_html(shown.prompt.texts, shown.prompt.changed if other else ()),
            html_text(shown.source) if other is None else _tokens_html(other.texts, other.changed),
            _tokens_html(shown.x),
            _tokens_html(shown.y),
        ]
        rows.append("".join(f'<td style="text-align:left">{cell}</td>' for cell in cells))
    names = ("", "prompt", "counterfactual", "x", "y")
    head = "".join(f'<th style="text-align:left">{name}</th>' for name in names)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    more = f"<p>and {n_more} more</p>" if n_more else ""
    return (
        f'<div style="overflow-x:auto"><p><b>{html_text(title)}</b></p>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>"
    )


def _tokens_html(texts: Sequence[str], changed: Sequence[bool] = ()) -> str:
    """Tokens side by side, each underlined, so that the spaces within them are seen."""
    flags = changed or (False,) * len(texts)
    return "".join(
        f'<span style="white-space:pre-wrap;border-bottom:1px solid;margin-right:3px">'
        f"{f'<b>{html_text(text)}</b>' if flag else html_text(text)}</span>"
        for text, flag in zip(texts, flags, strict=True)
    )
