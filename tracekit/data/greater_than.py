"""Greater-than (the task of Hanna et al. 2023), generated from our own templates.

After "The siege lasted from the year 1732 to the year 17" every number above 32 is right. The token
set x holds the years that are right, y those that are wrong; the continuations x and y are the two
next to the first year. The counterfactual begins in a year of 01, after which almost any is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tracekit.data.prompts import OnMismatch, PromptPairs
from tracekit.data.tokenization import encoder, tokenizer_of
from tracekit.errors import ConfigError

_TEMPLATE = "The {noun} lasted from the year {century}{year:02d} to the year {century}"
_NOUNS = ("siege", "war", "journey", "famine", "reign", "drought", "treaty", "project")
_CENTURIES = range(11, 19)
_LOW, _HIGH = 2, 98
_EARLY = 1


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
    is_one_token = [len(encode("17", f"{year:02d}")) == 1 for year in range(100)]
    years = {
        century: [year for year in range(_LOW, _HIGH + 1) if _is_split(encode, century, year)]
        for century in _CENTURIES
        if _is_split(encode, century, _EARLY)
    }
    years = {century: numbers for century, numbers in years.items() if numbers}
    if not years or not all(is_one_token):
        raise ConfigError(
            "The data set greater-than needs a tokenizer that writes a year as two tokens of two "
            "digits, as that of GPT-2 does. This one writes 1732 as "
            f"{len(encode('', ' 1732'))} tokens."
        )
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        century = rng.choice(sorted(years))
        year, noun = rng.choice(years[century]), rng.choice(_NOUNS)
        prompt = _TEMPLATE.format(noun=noun, century=century, year=year)
        early = _TEMPLATE.format(noun=noun, century=century, year=_EARLY)
        rows.append(
            {
                "prompt": prompt,
                "counterfactual": early,
                "x": f"{year + 1:02d}",
                "y": f"{year - 1:02d}",
                "x_set": [f"{later:02d}" for later in range(year + 1, 100)],
                "y_set": [f"{earlier:02d}" for earlier in range(year + 1)],
            }
        )
    return PromptPairs.from_text(
        rows,
        model,
        name="greater-than",
        on_mismatch=on_mismatch,
        prepend_bos=prepend_bos,
        warn=False,
    )


def _is_split(encode: Callable[[str, str], list[int]], century: int, year: int) -> bool:
    """Whether a year is the tokens of its century and of two digits."""
    whole = encode("year", f" {century}{year:02d}")
    return whole == encode("year", f" {century}") + encode(str(century), f"{year:02d}")
