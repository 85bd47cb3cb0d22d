"""WinoBias, WinoGender and Professions (Vig et al. 2020), as `docs/data.md` describes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from tracekit.data.download import check_size, read_lines
from tracekit.data.prompts import OnMismatch, PromptPairs, published_pairs
from tracekit.demo import rows as demo_rows
from tracekit.errors import DataFormatError

_N_WINOBIAS = {"dev": 160, "test": 130}
_N_WINOGENDER, _N_PROFESSIONS = 44, 2873
_BRACKETED_PRONOUN = re.compile(r"\[(he|she|him|his|her|himself|herself)\]")
_PRONOUNS = {word: pair for pair in (("she", "he"), ("her", "his")) for word in pair}
"""Pronoun -> the female and the male one of the same case."""
_TEMPLATES = "winogender_templates_structurefilter.tsv"
_FIELDS = {
    "$NOM_PRONOUN": ("she", "he"),
    "$POSS_PRONOUN": ("her", "his"),
    "$ACC_PRONOUN": ("her", "him"),
}
"""Field of a template -> the female and the male pronoun."""
_FIELD = re.compile("|".join(re.escape(name) for name in _FIELDS))


def load_winobias(
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
    rows = [row for pair in pairs if (row := _winobias_row(*pair, keep_case=keep_case))]
    check_size(f"winobias {split}", len(rows), _N_WINOBIAS[split])
    return published_pairs(rows, model, f"winobias-{split}", prepend_bos, on_mismatch)


def _winobias_row(first: str, second: str, *, keep_case: bool) -> dict[str, str] | None:
    by_pronoun, contexts = {}, []
    for line in (first, second):
        numberless = line.partition(" ")[2]
        pronouns = _BRACKETED_PRONOUN.findall(numberless)
        if len(pronouns) != 1 or pronouns[0] not in _PRONOUNS:
            return None
        parts = numberless.split(f"[{pronouns[0]}]")
        before, after = (part.replace("[", "").replace("]", "") for part in parts)
        contexts.append(before.strip())
        by_pronoun[pronouns[0]] = after.rstrip()
    context = contexts[0]
    female, male = _PRONOUNS[next(iter(by_pronoun))]
    if contexts[1] != context or set(by_pronoun) != {female, male}:
        return None
    in_prompt, in_counterfactual = (female, male) if keep_case else ("she", "he")
    return {
        "prompt": f"{context} {in_prompt}",
        "counterfactual": f"{context} {in_counterfactual}",
        "x": by_pronoun[female],
        "y": by_pronoun[male],
        "group": context,
    }


def load_winogender(
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
    statistics = read_lines("winogender", data_dir, "winogender_occupation_stats.tsv")
    header, *table = (line.split("\t") for line in statistics)
    column = header.index(f"{statistic}_pct_female")
    shares = {cells[0]: float(cells[column]) for cells in table}
    lines = [line.split("\t") for line in read_lines("winogender", data_dir, _TEMPLATES)[1:]]
    if len(lines) % 2 or any(len(line) != 4 for line in lines):
        raise DataFormatError(
            f"{_TEMPLATES} does not hold pairs of rows with four columns. Get it again."
        )
    pairs = zip(lines[::2], lines[1::2], strict=True)
    rows = [_winogender_row(*pair, shares, keep_case=keep_case) for pair in pairs]
    check_size("winogender", len(rows), _N_WINOGENDER)
    return published_pairs(rows, model, f"winogender-{statistic}", prepend_bos, on_mismatch)


def _winogender_row(
    first: list[str], second: list[str], shares: dict[str, float], *, keep_case: bool
) -> dict[str, str]:
    occupation, participant = first[0], first[1]
    continuations = {}
    prompts = set()
    for _, _, answer, sentence in (first, second):
        filled = sentence.replace("$OCCUPATION", occupation).replace("$PARTICIPANT", participant)
        match = _FIELD.search(filled)
        if match is None:
            raise DataFormatError(f"The template {sentence!r} has no pronoun. Get the file again.")
        pronouns = _FIELDS[match.group() if keep_case else "$NOM_PRONOUN"]
        prompts.add(tuple(filled[: match.start()] + pronoun for pronoun in pronouns))
        continuations[answer] = filled[match.end() :]
    if len(prompts) != 1 or set(continuations) != {"0", "1"}:
        raise DataFormatError(
            f"The two rows for {occupation} and {participant} do not share the text before the "
            "pronoun, or resolve alike. Get the file again."
        )
    prompt, counterfactual = prompts.pop()
    to_occupation, to_participant = continuations["0"], continuations["1"]
    is_female = shares[occupation] > 50
    return {
        "prompt": prompt,
        "counterfactual": counterfactual,
        "x": to_occupation if is_female else to_participant,
        "y": to_participant if is_female else to_occupation,
        "group": _FIELD.split(first[3])[0].strip(),
    }


def load_professions(
    model: Any,
    *,
    data_dir: Path | None = None,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Loads 17 templates x 159 occupations = 2703 examples.

    The published files hold only occupations that GPT-2 encodes as one token, like `man` and
    `woman`; other tokenizers may split some, which `on_mismatch` is about. `data_dir` holds
    `templates.txt`, `male_occupations.txt` and `female_occupations.txt`.
    """
    templates = read_lines("professions", data_dir, "templates.txt")
    rows = []
    for gender, other, x, y in (("male", "woman", " he", " she"), ("female", "man", " she", " he")):
        occupations = read_lines("professions", data_dir, f"{gender}_occupations.txt")
        rows += [
            {"prompt": template.format(occupation), "counterfactual": template.format(other)}
            | {"x": x, "y": y, "group": template}
            for template in templates
            for occupation in occupations
        ]
    reason = "169 occupations, of which the published files have 159"
    check_size("professions", len(rows), _N_PROFESSIONS, reason)
    return published_pairs(rows, model, "professions", prepend_bos, on_mismatch)


def load_demo(name: str, model: Any, *, on_mismatch: OnMismatch = "error") -> PromptPairs:
    """Loads `bias` or `professions`, which are like WinoBias and Professions."""
    return published_pairs(demo_rows(name), model, f"demo-{name}", None, on_mismatch)
