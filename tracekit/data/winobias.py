"""WinoBias, type 1 (Zhao et al. 2018): which occupation does a pronoun refer to?

Rows come in pairs that share the text before the pronoun, which is the prompt with the female
pronoun and the counterfactual with the male one. The target x is the rest of the row with the
stereotypically female referent, the foil y that of the other. Pairs are left out if a row brackets
several pronouns, if one is `him` (whose counterpart `her` is ambiguous), or if the texts before the
pronouns, or their cases, differ. By default, as in the published code, every prompt has `she` or
`he`, also the few (6 of 160, 5 of 130) whose rows have `her` and `his`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from tracekit.data.download import check_size, read_lines
from tracekit.data.prompts import OnMismatch, PromptPairs, published_pairs
from tracekit.errors import DataFormatError

_N_PUBLISHED = {"dev": 160, "test": 130}
_BRACKETED_PRONOUN = re.compile(r"\[(he|she|him|his|her|himself|herself)\]")
_PRONOUNS = {word: pair for pair in (("she", "he"), ("her", "his")) for word in pair}
"""Pronoun -> the female and the male one of the same case."""


def load(
    model: Any,
    *,
    data_dir: Path | None = None,
    split: Literal["dev", "test"] = "dev",
    keep_case: bool = False,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads 160 (`split="dev"`) or 130 (`split="test"`) examples.

    `data_dir` holds `pro_stereotyped_type1.txt.dev` and `.test`. `keep_case` keeps possessive
    pronouns possessive in the prompts.
    """
    name = f"pro_stereotyped_type1.txt.{split}"
    lines = read_lines("winobias", data_dir, name)
    if len(lines) % 2:
        raise DataFormatError(f"{name} has {len(lines)} rows. Rows come in pairs; get it again.")
    pairs = zip(lines[::2], lines[1::2], strict=True)
    examples = [_make_row(*pair, keep_case=keep_case) for pair in pairs]
    rows = [example for example in examples if example is not None]
    check_size(f"winobias {split}", len(rows), _N_PUBLISHED[split])
    return published_pairs(rows, model, f"winobias-{split}", prepend_bos, on_mismatch)


def _make_row(first: str, second: str, *, keep_case: bool) -> dict[str, str] | None:
    parts = [_parse_line(line) for line in (first, second)]
    if parts[0] is None or parts[1] is None:
        return None
    by_pronoun = {pronoun: (context, rest) for context, pronoun, rest in (parts[0], parts[1])}
    (context, pronoun, _), (other_context, _, _) = parts[0], parts[1]
    female, male = _PRONOUNS[pronoun]
    if context != other_context or set(by_pronoun) != {female, male}:
        return None
    in_prompt, in_counterfactual = (female, male) if keep_case else ("she", "he")
    return {
        "prompt": f"{context} {in_prompt}",
        "counterfactual": f"{context} {in_counterfactual}",
        "x": by_pronoun[female][1],
        "y": by_pronoun[male][1],
        "group": context,
    }


def _parse_line(line: str) -> tuple[str, str, str] | None:
    numberless = line.partition(" ")[2]
    pronouns = _BRACKETED_PRONOUN.findall(numberless)
    if len(pronouns) != 1 or pronouns[0] not in _PRONOUNS:
        return None
    before, after = numberless.split(f"[{pronouns[0]}]")
    return _unbracket(before).strip(), pronouns[0], _unbracket(after).rstrip()


def _unbracket(text: str) -> str:
    return text.replace("[", "").replace("]", "")
