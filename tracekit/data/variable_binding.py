"""Variable binding: arithmetic on two variables, made up from a seed.

`x = a, y = b, x {op} y =` (`form="paper"`), or the published code's form on three lines
(`form="code"`). Two desiderata for a set of components that carries the values of variables:

- *value dependence*: the counterfactual changes the value of the first variable; with the
  components replaced the model should give the counterfactual's answer. x is the clean answer, y
  the counterfactual one.
- *operation invariance*: the counterfactual changes the operation; the model should keep its
  answer. x is the answer under the other operation, y the clean one, so the effect falls as the
  components carry the operation.

Together (`desideratum="both"`) they are one objective: the effects are weighted 5 to 1, as the
published code weights its two losses. Operations are + and -, values 10 to 99, answers are not
negative, and their first digits (of the counterfactual answers for values, the clean ones for
operations) are balanced. Only the first token of an answer is scored; unlike in the published
code, examples whose two answers begin with the same token are not drawn, as they can show nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from tracekit.data.prompts import OnMismatch, PromptPairs, encoder, tokenizer_of
from tracekit.errors import ConfigError, PairsError

Desideratum = Literal["value", "operation", "both"]
Form = Literal["paper", "code"]

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
}
_FORMS = {
    "paper": ("x = {a}, y = {b}, x {op} y =", " {}"),
    "code": ("x = {a}\ny = {b}\nx {op} y = ", "{}"),
}
_VALUES = range(10, 100)
_TRIES = 4000


def load(
    model: Any,
    *,
    desideratum: Desideratum = "both",
    weights: tuple[float, float] = (5.0, 1.0),
    form: Form = "paper",
    split: Literal["train", "test"] = "train",
    n: int = 50,
    seed: int = 0,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Makes examples up: the same for the same seed, others for the test split.

    Args:
        model: Its tokenizer encodes the text.
        desideratum: `value`, `operation`, or `both`.
        weights: Of the two desiderata in their sum.
        form: `paper` or `code`.
        split: `train` or `test`; they share no example.
        n: Examples of each desideratum.
        seed: Draws them.
        on_mismatch: As in `PromptPairs.from_text`.

    Raises:
        ConfigError: An unknown desideratum, form or split, or no examples.
        PairsError: The tokenizer begins all answers with the same token.
    """
    for what, value, known in (
        ("desideratum", desideratum, ("value", "operation", "both")),
        ("form", form, tuple(_FORMS)),
        ("split", split, ("train", "test")),
    ):
        if value not in known:
            raise ConfigError(f"Unknown {what} {value!r} of vbd. Use one of {', '.join(known)}.")
    if n < 1:
        raise ConfigError(f"n is {n}. It must be at least 1.")
    named = {"value": _value_row, "operation": _operation_row}
    wanted = list(named) if desideratum == "both" else [desideratum]
    parts = []
    for what in wanted:
        rng = random.Random(f"{what} {seed}")
        # Both splits are drawn, so that none of their examples can be the same.
        made = _balanced(rng, named[what], form, 2 * n, model)
        parts.append(made[::2] if split == "train" else made[1::2])
    rows = weighted(parts, weights) if len(parts) > 1 else parts[0]
    name = "vbd" if desideratum == "both" else f"vbd-{desideratum}"
    pairs = PromptPairs.from_text(rows, model, name=f"{name}-{split}", on_mismatch=on_mismatch)
    return first_tokens(pairs)


def weighted(
    parts: Sequence[Sequence[Mapping[str, Any]]], weights: Sequence[float]
) -> list[dict[str, Any]]:
    """Rows of several parts in turn, so that any first few have some of each, with weights."""
    return [
        {**row, "weight": weight}
        for some in zip(*parts, strict=True)
        for row, weight in zip(some, weights, strict=True)
    ]


def first_tokens(pairs: PromptPairs) -> PromptPairs:
    """The same pairs with continuations cut to their first token."""
    cut = [
        replace(pair, x_ids=pair.x_ids[:1], y_ids=None if pair.y_ids is None else pair.y_ids[:1])
        for pair in pairs
    ]
    return replace(pairs, pairs=tuple(cut))


def _balanced(
    rng: random.Random,
    row: Callable[[random.Random, str], tuple[dict[str, str], int] | None],
    form: str,
    count: int,
    model: Any,
) -> list[dict[str, str]]:
    """Different rows, as many for each first digit as can be."""
    rows: list[dict[str, str]] = []
    seen: set[str] = set()
    for place in range(count):
        # Two neighbours, one for each split, have the same first digit.
        digit = str(1 + place // 2 % 9)
        for _ in range(_TRIES):
            made = row(rng, form)
            if made is None or not str(made[1]).startswith(digit) or str(made[0]) in seen:
                continue
            if _tell_apart(made[0], model):
                break
        else:
            raise PairsError(
                "The tokenizer begins all answers to variable-binding questions with the same "
                "token, so their first tokens cannot tell them apart. Use form='code', whose "
                "prompts end with a space, or another model."
            )
        seen.add(str(made[0]))
        rows.append(made[0])
    return rows


def _tell_apart(row: dict[str, str], model: Any) -> bool:
    """Whether the two answers begin with different tokens."""
    encode = encoder(tokenizer_of(model))
    return encode(row["prompt"], row["x"])[:1] != encode(row["prompt"], row["y"])[:1]


def _value_row(rng: random.Random, form: str) -> tuple[dict[str, str], int] | None:
    op = rng.choice(list(_OPERATIONS))
    a, other, b = (rng.choice(_VALUES) for _ in range(3))
    clean, changed = _OPERATIONS[op](a, b), _OPERATIONS[op](other, b)
    if min(clean, changed) < 0 or clean == changed:
        return None
    return _row(form, (a, b, op), (other, b, op), clean, changed), changed


def _operation_row(rng: random.Random, form: str) -> tuple[dict[str, str], int] | None:
    op, other = rng.sample(list(_OPERATIONS), 2)
    a, b = (rng.choice(_VALUES) for _ in range(2))
    clean, changed = _OPERATIONS[op](a, b), _OPERATIONS[other](a, b)
    if min(clean, changed) < 0 or clean == changed:
        return None
    return _row(form, (a, b, op), (a, b, other), changed, clean), clean


def _row(
    form: str, clean: tuple[int, int, str], counterfactual: tuple[int, int, str], x: int, y: int
) -> dict[str, str]:
    prompt, answer = _FORMS[form]

    def written(question: tuple[int, int, str]) -> str:
        a, b, op = question
        return prompt.format(a=a, b=b, op=op)

    return {
        "prompt": written(clean),
        "counterfactual": written(counterfactual),
        "x": answer.format(x),
        "y": answer.format(y),
    }
