"""Gendered pronouns (the task of Mathwin et al. 2023), generated from our own templates.

After "Laura is a wonderful teacher, isn't" the model should say "she" (the target continuation x),
and not "he" (the foil y). The counterfactual has a name of the other gender.
"""

from __future__ import annotations

import random
from typing import Any

from tracekit.data.names import FEMALE, MALE, one_token
from tracekit.data.prompts import OnMismatch, PromptPairs
from tracekit.data.tokenization import encoder, tokenizer_of
from tracekit.errors import ConfigError

_TEMPLATES = (
    "So {name} is a wonderful {noun}, isn't",
    "Well, {name} was such a kind {noun}, wasn't",
    "I think {name} is our best {noun}, isn't",
    "Surely {name} was a famous {noun}, wasn't",
)
_NOUNS = ("teacher", "neighbor", "friend", "singer", "doctor", "writer", "student", "player")


def load(
    model: Any,
    *,
    n: int = 100,
    seed: int = 0,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Makes `n` pairs, women and men in turn, with the span `name`; `seed` draws them."""
    if n < 1:
        raise ConfigError(f"n is {n}. It must be at least 1.")
    encode = encoder(tokenizer_of(model))
    women, men = (one_token(encode, names, 2, "gendered-pronouns") for names in (FEMALE, MALE))
    rng = random.Random(seed)
    rows = []
    for number in range(n):
        names, others = (men, women) if number % 2 else (women, men)
        pronouns = (" he", " she") if number % 2 else (" she", " he")
        template, noun, name = rng.choice(_TEMPLATES), rng.choice(_NOUNS), rng.choice(names)
        rows.append(
            {
                "prompt": template.format(name=name, noun=noun),
                "counterfactual": template.format(name=rng.choice(others), noun=noun),
                "x": pronouns[0],
                "y": pronouns[1],
                "spans": {"name": name},
            }
        )
    return PromptPairs.from_text(
        rows,
        model,
        name="gendered-pronouns",
        on_mismatch=on_mismatch,
        prepend_bos=prepend_bos,
        warn=False,
    )
