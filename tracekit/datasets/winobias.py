"""WinoBias, type 1 (Zhao et al. 2018): which occupation does a pronoun refer to?

Rows come in pairs that share everything up to the pronoun: in one it refers to a stereotypically
female occupation, in the other to a male one. The shared text with the female pronoun is the
prompt, with the male pronoun the counterfactual; what follows the female referent is x, the male
one y. Pairs are left out if a row brackets several pronouns, if one is `him` (whose counterpart
`her` is ambiguous), or if the texts before the pronouns, or their cases, differ.

The published code writes `she` and `he` into every prompt, also into the few (6 of 160, 5 of 130)
where the rows have `her` and `his`. That is the default here, so that numbers can be compared;
`keep_case=True` writes what the rows have.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from tracekit.datasets.files import read_lines
from tracekit.errors import ConfigError, DataFormatError
from tracekit.prompts import OnMismatch, PromptPairs

_ORIGIN = "the repository of Zhao et al. 2018, corefBias (WinoBias/wino/data)"
_PRONOUN = re.compile(r"\[(he|she|him|his|her|himself|herself)\]")
_CASES = {"she": ("she", "he"), "he": ("she", "he"), "her": ("her", "his"), "his": ("her", "his")}


def load(
    model: Any,
    *,
    data_dir: Path | None = None,
    split: Literal["dev", "test"] = "dev",
    keep_case: bool = False,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads 160 (dev) or 130 (test) examples.

    Args:
        model: Its tokenizer encodes the text.
        data_dir: Folder with `pro_stereotyped_type1.txt.dev` and `.test`.
        split: `dev` or `test`.
        keep_case: Whether possessive pronouns stay possessive in the prompts.
        on_mismatch: As in `PromptPairs.from_text`.

    Raises:
        DataNotFoundError: The file is missing.
        DataFormatError: It does not hold pairs of rows.
    """
    if split not in ("dev", "test"):
        raise ConfigError(f"Unknown split {split!r} of winobias. Use 'dev' or 'test'.")
    name = f"pro_stereotyped_type1.txt.{split}"
    lines = read_lines(data_dir, name, "winobias", _ORIGIN)
    if len(lines) % 2:
        raise DataFormatError(f"{name} has {len(lines)} rows. Rows come in pairs; get it again.")
    pairs = zip(lines[::2], lines[1::2], strict=True)
    rows = [row for pair in pairs if (row := _example(*pair, keep_case=keep_case)) is not None]
    return PromptPairs.from_text(rows, model, name=f"winobias-{split}", on_mismatch=on_mismatch)


def _example(first: str, second: str, *, keep_case: bool) -> dict[str, str] | None:
    parts = [_parse(line) for line in (first, second)]
    if parts[0] is None or parts[1] is None:
        return None
    by_pronoun = {pronoun: (context, rest) for context, pronoun, rest in (parts[0], parts[1])}
    (context, pronoun, _), (other_context, _, _) = parts[0], parts[1]
    female, male = _CASES[pronoun]
    if context != other_context or set(by_pronoun) != {female, male}:
        return None
    written = (female, male) if keep_case else ("she", "he")
    return {
        "prompt": f"{context} {written[0]}",
        "counterfactual": f"{context} {written[1]}",
        "x": by_pronoun[female][1],
        "y": by_pronoun[male][1],
    }


def _parse(line: str) -> tuple[str, str, str] | None:
    """Text before the pronoun, the pronoun, text after it (with its leading space)."""
    numberless = line.partition(" ")[2]
    pronouns = _PRONOUN.findall(numberless)
    if len(pronouns) != 1 or pronouns[0] not in _CASES:
        return None
    before, after = numberless.split(f"[{pronouns[0]}]")
    return _unbracket(before).strip(), pronouns[0], _unbracket(after).rstrip()


def _unbracket(text: str) -> str:
    return text.replace("[", "").replace("]", "")
