"""WinoGender (Rudinger et al. 2018), the structure-filtered list of Vig et al. 2020.

In one row of a pair the pronoun refers to the occupation, in the other to the other participant.
The text before it, with `she`, is the prompt, with `he` the counterfactual: as in the published
training, also where the sentence has `her` (5 of 44). The target x is the stereotypically female
continuation (of the occupation, if more than half of those in it are women), the foil y the other.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from tracekit.data.download import check_size, read_lines
from tracekit.data.prompts import OnMismatch, PromptPairs, published_pairs
from tracekit.errors import DataFormatError

_N_PUBLISHED = 44
_TEMPLATES = "winogender_templates_structurefilter.tsv"
_STATISTICS = "winogender_occupation_stats.tsv"
_PRONOUNS = {
    "$NOM_PRONOUN": ("she", "he"),
    "$POSS_PRONOUN": ("her", "his"),
    "$ACC_PRONOUN": ("her", "him"),
}
_PRONOUN = re.compile("|".join(re.escape(name) for name in _PRONOUNS))


def load(
    model: Any,
    *,
    data_dir: Path | None = None,
    statistic: Literal["bergsma", "bls"] = "bergsma",
    keep_case: bool = False,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads 44 examples.

    `data_dir` holds the templates and the occupation statistics. `statistic` is the share of women
    by text counts (`bergsma`) or labour statistics (`bls`). `keep_case` keeps the case of
    possessive and object pronouns in the prompts, as in the published single-head effects.
    """
    header, *table = (line.split("\t") for line in read_lines("winogender", data_dir, _STATISTICS))
    column = header.index(f"{statistic}_pct_female")
    shares = {cells[0]: float(cells[column]) for cells in table}
    lines = [line.split("\t") for line in read_lines("winogender", data_dir, _TEMPLATES)[1:]]
    if len(lines) % 2 or any(len(line) != 4 for line in lines):
        raise DataFormatError(
            f"{_TEMPLATES} does not hold pairs of rows with four columns. Get it again."
        )
    pairs = zip(lines[::2], lines[1::2], strict=True)
    rows = [_make_row(*pair, shares, keep_case=keep_case) for pair in pairs]
    check_size("winogender", len(rows), _N_PUBLISHED)
    return published_pairs(rows, model, f"winogender-{statistic}", prepend_bos, on_mismatch)


def _make_row(
    first: list[str], second: list[str], shares: dict[str, float], *, keep_case: bool
) -> dict[str, str]:
    occupation, participant = first[0], first[1]
    continuations = {}
    prompts = set()
    for _, _, answer, sentence in (first, second):
        filled = sentence.replace("$OCCUPATION", occupation).replace("$PARTICIPANT", participant)
        match = _PRONOUN.search(filled)
        if match is None:
            raise DataFormatError(f"The template {sentence!r} has no pronoun. Get the file again.")
        female, male = _PRONOUNS[match.group() if keep_case else "$NOM_PRONOUN"]
        prompts.add((filled[: match.start()] + female, filled[: match.start()] + male))
        continuations[answer] = filled[match.end() :]
    if len(prompts) != 1 or set(continuations) != {"0", "1"}:
        raise DataFormatError(
            f"The two rows for {occupation} and {participant} do not share the text before the "
            "pronoun, or resolve alike. Get the file again."
        )
    prompt, counterfactual = prompts.pop()
    sentence = _PRONOUN.split(first[3])[0].strip()
    to_occupation, to_participant = continuations["0"], continuations["1"]
    is_female = shares[occupation] > 50
    return {
        "prompt": prompt,
        "counterfactual": counterfactual,
        "x": to_occupation if is_female else to_participant,
        "y": to_participant if is_female else to_occupation,
        "group": sentence,
    }
