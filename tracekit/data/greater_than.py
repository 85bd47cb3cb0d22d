"""Greater-than (the task of Hanna et al. 2023), generated from our own templates.

After "The siege lasted from the year 1732 to the year 17" every number above 32 is right. The token
set x holds the years that are right, y those that are wrong; the continuations x and y are the two
next to the first year. The counterfactual begins in a year of 01, after which almost any is right.

Where a tokenizer writes digits one by one, the tens are asked for: after 1732 the digits above 3
are right, and those below it wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from tracekit.data.prompts import OnMismatch, PromptPairs
from tracekit.data.tokenization import encoder, tokenizer_of
from tracekit.errors import ConfigError

_TEMPLATE = "The {noun} lasted from the year {century}{year:02d} to the year {century}"
_NOUNS = ("siege", "war", "journey", "famine", "reign", "drought", "treaty", "project")
_CENTURIES = range(11, 19)
_LOW, _HIGH = 2, 98
_EARLY = 1
_TENS = range(1, 9)


def load(
    model: Any,
    *,
    n: int = 100,
    seed: int = 0,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Makes `n` pairs; `seed` draws nouns and years."""
    if n < 1:
        raise ConfigError(f"n is {n}. It must be at least 1.")
    encode = encoder(tokenizer_of(model))
    by_digit = _are_tokens(encode, map(str, range(10))) and not _are_tokens(encode, ["32"])
    is_split = _is_split_into_digits if by_digit else _is_split
    years = {
        century: [year for year in range(_LOW, _HIGH + 1) if is_split(encode, century, year)]
        for century in _CENTURIES
        if is_split(encode, century, _EARLY)
    }
    if by_digit:
        years = {key: [y for y in each if y // 10 in _TENS] for key, each in years.items()}
    years = {century: numbers for century, numbers in years.items() if numbers}
    if not years or not (by_digit or _are_tokens(encode, (f"{n:02d}" for n in range(100)))):
        raise ConfigError(
            "The data set greater-than needs a tokenizer that writes a year as two tokens of two "
            "digits, as that of GPT-2 does, or digit by digit. This one writes 1732 as "
            f"{len(encode('', ' 1732'))} tokens."
        )
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        century = rng.choice(sorted(years))
        year, noun = rng.choice(years[century]), rng.choice(_NOUNS)
        prompt = _TEMPLATE.format(noun=noun, century=century, year=year)
        early = _TEMPLATE.format(noun=noun, century=century, year=_EARLY)
        rows.append({"prompt": prompt, "counterfactual": early, **_choices(year, by_digit)})
    return PromptPairs.from_text(
        rows,
        model,
        name="greater-than",
        on_mismatch=on_mismatch,
        prepend_bos=prepend_bos,
        warn=False,
    )


def _choices(year: int, by_digit: bool) -> dict[str, Any]:
    """Numbers that are right after a year, and that are wrong: its two digits, or its tens."""
    if by_digit:
        tens = year // 10
        right, wrong = list(map(str, range(tens + 1, 10))), list(map(str, range(tens)))
    else:
        right = [f"{later:02d}" for later in range(year + 1, 100)]
        wrong = [f"{earlier:02d}" for earlier in range(year + 1)]
    y = wrong[-1] if by_digit else f"{year - 1:02d}"
    return {"x": right[0], "y": y, "x_set": right, "y_set": wrong}


def _are_tokens(encode: Callable[[str, str], list[int]], numbers: Iterable[str]) -> bool:
    """Whether each number is one token after a century."""
    return all(len(encode("17", number)) == 1 for number in numbers)


def _is_split(encode: Callable[[str, str], list[int]], century: int, year: int) -> bool:
    """Whether a year is the tokens of its century and of two digits."""
    whole = encode("year", f" {century}{year:02d}")
    return whole == encode("year", f" {century}") + encode(str(century), f"{year:02d}")


def _is_split_into_digits(encode: Callable[[str, str], list[int]], century: int, year: int) -> bool:
    """Whether a year is the tokens of its century and one for each further digit."""
    whole, begins = encode("year", f" {century}{year:02d}"), encode("year", f" {century}")
    return whole[: len(begins)] == begins and len(whole) == len(begins) + 2
