"""Examples as they are shown: tokens by their texts, and which the counterfactual changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from tracekit._util.markup import MAX_ROWS, html_card, render_html
from tracekit.data import counterfactuals
from tracekit.data.pair import PromptPair

ShownTokens = tuple[tuple[str, bool], ...]
"""Tokens of a prompt: the text of each, or its id where no tokenizer is known, and whether it
differs from that of the other prompt."""


@dataclass(frozen=True)
class ShownPair:
    """An example, ready to be shown."""

    prompt: ShownTokens
    counterfactual: ShownTokens | None
    """Tokens of the counterfactual prompt; None for other counterfactuals."""
    source: str
    """Description of the counterfactual, if it is not a prompt."""
    x: tuple[str, ...]
    """Texts of the tokens of x."""
    y: tuple[str, ...]
    """Texts of the tokens of y; empty without a y."""


def make_shown_pair(pair: PromptPair, token_texts: Mapping[int, str]) -> ShownPair:
    """An example with its tokens by their texts; tokens without one are shown by their ids."""

    def texts_of(ids: counterfactuals.Ids) -> tuple[str, ...]:
        return tuple(token_texts.get(token, str(token)) for token in ids)

    own, other = pair.prompt_ids, pair.counterfactual_ids
    is_prompt = isinstance(pair.counterfactual, counterfactuals.PromptCounterfactual)
    changes, other_changes = _changed_tokens(own, other)
    other_tokens = tuple(zip(texts_of(other), other_changes, strict=True))
    return ShownPair(
        prompt=tuple(zip(texts_of(own), changes, strict=True)),
        counterfactual=other_tokens if is_prompt else None,
        source=_source_text(pair),
        x=texts_of(pair.x_ids),
        y=texts_of(pair.y_ids or ()),
    )


def _source_text(pair: PromptPair) -> str:
    counterfactual = pair.counterfactual
    if pair.prompt_noise is not None:
        return "the prompt with noise on its embeddings; the counterfactual is without"
    if isinstance(counterfactual, counterfactuals.PromptCounterfactual):
        return ""
    if isinstance(counterfactual, counterfactuals.NoiseCounterfactual):
        return "the prompt with noise on its embeddings"
    if isinstance(counterfactual, counterfactuals.ConstantCounterfactual):
        return f"no prompt, but {counterfactual.constants.name} values"
    return "none"


def _changed_tokens(own: Sequence[int], other: Sequence[int]) -> tuple[tuple[bool, ...], ...]:
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


def pairs_html(title: str, pairs: Sequence[PromptPair], token_texts: Mapping[int, str]) -> str:
    """The first examples as a table of HTML: all tokens visible, changed ones bold."""
    table = render_html(
        Path(__file__).with_name("pairs.html"),
        rows=[make_shown_pair(pair, token_texts) for pair in pairs[:MAX_ROWS]],
        n_more=len(pairs[MAX_ROWS:]),
    )
    return html_card(title, table)
