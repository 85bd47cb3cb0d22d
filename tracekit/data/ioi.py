"""Indirect object identification (the task of Wang et al. 2023), generated from our own templates.

In "When Mary and John went to the office, John gave a letter to", the model should name the
indirect object, Mary (the target continuation x), and not the subject, John (the foil y). Names are
drawn among those that are one token of the model. The counterfactual is, as in the literature,

- `abc`: the same sentence with three other names, so that no name is repeated;
- `flip`: the second mention of the subject becomes the indirect object, so that y is right.
"""

from __future__ import annotations

import random
from typing import Any, Literal

from tracekit.data.names import FEMALE, MALE, one_token
from tracekit.data.prompts import OnMismatch, PromptPairs
from tracekit.data.tokenization import bos_of, encoder, tokenizer_of
from tracekit.errors import ConfigError

IoiCounterfactual = Literal["abc", "flip"]

_TEMPLATES = (
    "When {0} and {1} went to the {place}, {2} gave a {thing} to",
    "After {0} and {1} arrived at the {place}, {2} handed a {thing} to",
    "While {0} and {1} were sitting in the {place}, {2} passed a {thing} to",
    "Yesterday {0} and {1} met at the {place}, and {2} offered a {thing} to",
    "Once {0} and {1} had left the {place}, {2} sent a {thing} to",
)
_PLACES = ("office", "garden", "station", "market", "library", "kitchen", "museum", "harbor")
_THINGS = ("letter", "book", "ticket", "key", "flower", "basket", "map", "coin")
_AT_LEAST = 5
"""Names that a pair of prompts needs."""


def load(
    model: Any,
    *,
    n: int = 100,
    counterfactual: IoiCounterfactual = "abc",
    seed: int = 0,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Makes `n` pairs, drawn by `seed`; every other one names the subject first.

    They have the spans `IO`, `S1` and `S2`: the indirect object, and both mentions of the subject.
    `counterfactual` is `abc` or `flip`.
    """
    if counterfactual not in ("abc", "flip"):
        raise ConfigError(f"Unknown counterfactual {counterfactual!r} of ioi. Use abc or flip.")
    if n < 1:
        raise ConfigError(f"n is {n}. It must be at least 1.")
    tokenizer = tokenizer_of(model)
    encode, shift = encoder(tokenizer), len(bos_of(tokenizer, prepend_bos))
    names = one_token(encode, (*FEMALE, *MALE), _AT_LEAST, "ioi")
    rng = random.Random(seed)
    rows = []
    for number in range(n):
        indirect, subject, *others = rng.sample(names, 5)
        template = rng.choice(_TEMPLATES)
        words = {"place": rng.choice(_PLACES), "thing": rng.choice(_THINGS)}
        first, second = (subject, indirect) if number % 2 else (indirect, subject)
        prompt = template.format(first, second, subject, **words)
        changed = (
            template.format(first, second, indirect, **words)
            if counterfactual == "flip"
            else template.format(*others, **words)
        )
        order = ("S1", "IO", "S2") if number % 2 else ("IO", "S1", "S2")
        starts = _starts(encode, template, (first, second, subject), words)
        spans = {
            name: [start + shift, start + shift + 1]
            for name, start in zip(order, starts, strict=True)
        }
        rows.append(
            {
                "prompt": prompt,
                "counterfactual": changed,
                "x": f" {indirect}",
                "y": f" {subject}",
                "spans": spans,
            }
        )
    return PromptPairs.from_text(
        rows,
        model,
        name=f"ioi-{counterfactual}",
        on_mismatch=on_mismatch,
        prepend_bos=prepend_bos,
        warn=False,
    )


def _starts(encode: Any, template: str, names: tuple[str, str, str], words: Any) -> list[int]:
    """Token at which each of the three names stands."""
    starts = []
    for number in range(3):
        # The sentence up to the name; the space before a name belongs to its token.
        before = template.split(f"{{{number}}}")[0].rstrip(" ").format(*names, **words)
        starts.append(len(encode("", before)))
    return starts
