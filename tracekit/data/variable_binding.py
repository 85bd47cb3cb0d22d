"""Variable binding: arithmetic on two variables, made up from a seed.

Prompts have the wording of the paper, that of the published code, on three lines, or another one
(`words.json`). Each desideratum of components that carry the values has its examples:

- *value dependence*: the counterfactual changes the value of the first variable, and the model with
  replaced components should give its answer. x is the clean answer, y the counterfactual one.
- *operation invariance*: the counterfactual changes the operation, and the model should keep its
  answer. x is the answer under the other operation, y the clean one.

With `desideratum="both"` they are one objective (`docs/paper.md`). Answers are not negative, and
the first digits of y are balanced. Only the first token of an answer is scored; no example has two
answers that begin with the same token.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import add, sub
from typing import Any, Literal

from tracekit._util.options import check_int
from tracekit.data.generated import WORDS
from tracekit.data.prompts import OnMismatch, PromptPairs, published_pairs
from tracekit.data.tokenization import make_encoder, require_tokenizer
from tracekit.demo import rows as demo_rows
from tracekit.errors import PairsError

Desideratum = Literal["value", "operation", "both"]
Wording = Literal["paper", "code", "sentence", "let", "question", "reverse", "letters"]

_OPERATIONS = {"+": add, "-": sub}
_PARTS = {"value": ("value",), "operation": ("operation",), "both": ("value", "operation")}
_VALUES = range(10, 100)
_TRIES = 4000
"""Questions drawn for an example before giving up."""


def load(
    model: Any,
    *,
    desideratum: Desideratum = "both",
    weights: tuple[float, float] = (5.0, 1.0),
    wording: Wording = "paper",
    split: Literal["train", "test"] = "train",
    n: int = 50,
    seed: int = 0,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Makes examples: the same ones for the same seed, others for the test split.

    There are `n` examples of each desideratum; `weights` are those of the two in their sum. The
    published Llama scripts prepend BOS.
    """
    check_int("n", n)
    parts = []
    for part in _PARTS[desideratum]:
        # Both splits come from one draw without repetitions, which keeps them disjoint.
        drawn = _balanced_rows(random.Random(f"{part} {seed}"), part, wording, 2 * n, model)
        parts.append(drawn[("train", "test").index(split) :: 2])
    rows = _interleave_parts(parts, weights)
    name = f"variable-binding{'' if desideratum == 'both' else f'-{desideratum}'}-{split}"
    pairs = published_pairs(rows, model, name, prepend_bos, on_mismatch)
    # Continuations are cut to their first token.
    cut = (
        replace(pair, x_ids=pair.x_ids[:1], y_ids=pair.y_ids and pair.y_ids[:1]) for pair in pairs
    )
    return replace(pairs, pairs=tuple(cut))


def load_demo(
    model: Any,
    *,
    desideratum: Desideratum = "value",
    weights: tuple[float, float] = (5.0, 1.0),
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Questions that the embedded model answers; arguments are as in `load`."""
    kinds = {"value": ("binding",), "operation": ("operations",), "both": ("binding", "operations")}
    parts = [demo_rows(name) for name in kinds[desideratum]]
    name = f"demo-binding{'' if desideratum == 'value' else f'-{desideratum}'}"
    return published_pairs(_interleave_parts(parts, weights), model, name, None, on_mismatch)


def _interleave_parts(
    parts: Sequence[Sequence[Mapping[str, Any]]], weights: Sequence[float]
) -> list[dict[str, Any]]:
    """Interleaves the rows of equally long parts, each with the weight of its part."""
    if len(parts) == 1:
        return [dict(row) for row in parts[0]]
    return [
        {**row, "weight": weight}
        for rows in zip(*parts, strict=True)
        for row, weight in zip(rows, weights, strict=True)
    ]


def _balanced_rows(
    rng: random.Random, part: str, wording: str, count: int, model: Any
) -> list[dict[str, str]]:
    """`count` different rows of a desideratum; the first digits of y are equally frequent."""
    encode = make_encoder(require_tokenizer(model))
    rows: list[dict[str, str]] = []
    for index in range(count):
        # Two neighbours, one for each split, have the same first digit.
        digit = str(1 + index // 2 % 9)
        for _ in range(_TRIES):
            row = _make_row(rng, part, wording)
            if row is None or row in rows or not row["y"].lstrip().startswith(digit):
                continue
            x, y = (encode(row["prompt"], row[side]) for side in ("x", "y"))
            if x[:1] != y[:1]:
                rows.append(row)
                break
        else:
            raise PairsError(
                "The tokenizer begins all answers to variable-binding questions with the same "
                "token, so their first tokens cannot tell them apart. Use wording='code', whose "
                "prompts end with a space, or another model."
            )
    return rows


def _make_row(rng: random.Random, part: str, wording: str) -> dict[str, str] | None:
    if part == "value":
        op = new_op = rng.choice(list(_OPERATIONS))
        a, new_a, b = (rng.choice(_VALUES) for _ in range(3))
    else:
        op, new_op = rng.sample(list(_OPERATIONS), 2)
        a, b = (rng.choice(_VALUES) for _ in range(2))
        new_a = a
    clean, changed = _OPERATIONS[op](a, b), _OPERATIONS[new_op](new_a, b)
    if min(clean, changed) < 0 or clean == changed:
        return None
    prompt, answer = WORDS["variable-binding"][wording]
    x, y = (clean, changed) if part == "value" else (changed, clean)
    return {
        "prompt": prompt.format(a=a, b=b, op=op),
        "counterfactual": prompt.format(a=new_a, b=b, op=new_op),
        "x": answer.format(x),
        "y": answer.format(y),
    }
