"""Variable binding: arithmetic on two variables, made up from a seed.

The data set `variable-binding` has the prompts of the paper, `x = a, y = b, x {op} y =`
(`form="paper"`), or those of the published code, on three lines (`form="code"`). It states two
desiderata for a set of components that carries the values of variables. Each example has a target
continuation x and a foil y, both of them answers.

- *value dependence*: the counterfactual changes the value of the first variable; with the
  components replaced the model should give the counterfactual's answer. x is the clean answer, y
  the counterfactual one.
- *operation invariance*: the counterfactual changes the operation; the model should keep its
  answer. x is the answer under the other operation, y the clean one. The effect falls as the
  components carry the operation.

With `desideratum="both"` they are one objective: the effects are weighted 5 to 1, as the published
code weights its two losses. Operations are + and -, values 10 to 99, answers are not negative, and
their first digits (of the counterfactual answers for values, the clean ones for operations) are
balanced. Only the first token of an answer is scored. Unlike in the published code, examples whose
two answers begin with the same token are not drawn, since they can show nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from tracekit.data.prompts import OnMismatch, PromptPairs
from tracekit.data.tokenization import encoder, tokenizer_of
from tracekit.errors import ConfigError, PairsError

Desideratum = Literal["value", "operation", "both"]
Form = Literal["paper", "code"]

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
}
"""Operator -> result."""
_FORMS = {
    "paper": ("x = {a}, y = {b}, x {op} y =", " {}"),
    "code": ("x = {a}\ny = {b}\nx {op} y = ", "{}"),
}
"""Form -> prompt and answer."""
_VALUES = range(10, 100)
"""Values of the variables."""
_TRIES = 4000
"""Questions drawn for an example before giving up."""


def load(
    model: Any,
    *,
    desideratum: Desideratum = "both",
    weights: tuple[float, float] = (5.0, 1.0),
    form: Form = "paper",
    split: Literal["train", "test"] = "train",
    n: int = 50,
    seed: int = 0,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Makes examples: the same ones for the same seed, others for the test split.

    `desideratum` is `value`, `operation`, or `both`, with the `weights` of the two in their sum.
    `form` is `paper` or `code`. There are `n` examples of each desideratum. The published Llama
    scripts prepend BOS.
    """
    for option, value, allowed in (
        ("desideratum", desideratum, ("value", "operation", "both")),
        ("form", form, tuple(_FORMS)),
        ("split", split, ("train", "test")),
    ):
        if value not in allowed:
            raise ConfigError(
                f"Unknown {option} {value!r} of variable-binding. Use one of {', '.join(allowed)}."
            )
    if n < 1:
        raise ConfigError(f"n is {n}. It must be at least 1.")
    drawers = {"value": _value_row, "operation": _operation_row}
    desiderata = list(drawers) if desideratum == "both" else [desideratum]
    parts = []
    for part in desiderata:
        rng = random.Random(f"{part} {seed}")
        # Both splits come from one draw without repetitions, which keeps them disjoint.
        both_splits = _balanced(rng, drawers[part], form, 2 * n, model)
        parts.append(both_splits[::2] if split == "train" else both_splits[1::2])
    rows = weighted(parts, weights) if len(parts) > 1 else parts[0]
    name = "variable-binding" if desideratum == "both" else f"variable-binding-{desideratum}"
    pairs = PromptPairs.from_text(
        rows,
        model,
        name=f"{name}-{split}",
        on_mismatch=on_mismatch,
        prepend_bos=prepend_bos,
        warn=False,
    )
    return first_tokens(pairs)


def weighted(
    parts: Sequence[Sequence[Mapping[str, Any]]], weights: Sequence[float]
) -> list[dict[str, Any]]:
    """Rows of equally long parts in turn, each with the weight of its part.

    Taking turns keeps the first examples of the data set balanced between the parts.
    """
    return [
        {**row, "weight": weight}
        for rows in zip(*parts, strict=True)
        for row, weight in zip(rows, weights, strict=True)
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
    draw_row: Callable[[random.Random, str], tuple[dict[str, str], int] | None],
    form: str,
    count: int,
    model: Any,
) -> list[dict[str, str]]:
    """`count` different rows; the first digits of their answers are equally frequent.

    `draw_row` gives a row and the answer whose first digit counts, or None for an unfit question.
    """
    rows: list[dict[str, str]] = []
    seen: set[tuple[str, ...]] = set()
    for index in range(count):
        # Two neighbours, one for each split, have the same first digit.
        digit = str(1 + index // 2 % 9)
        for _ in range(_TRIES):
            candidate = draw_row(rng, form)
            if candidate is None:
                continue
            row, answer = candidate
            is_new = tuple(row.values()) not in seen
            if str(answer).startswith(digit) and is_new and _begin_differently(row, model):
                break
        else:
            raise PairsError(
                "The tokenizer begins all answers to variable-binding questions with the same "
                "token, so their first tokens cannot tell them apart. Use form='code', whose "
                "prompts end with a space, or another model."
            )
        rows.append(row)
        seen.add(tuple(row.values()))
    return rows


def _begin_differently(row: dict[str, str], model: Any) -> bool:
    """Whether the tokenizer begins the two answers with different tokens."""
    encode = encoder(tokenizer_of(model))
    return encode(row["prompt"], row["x"])[:1] != encode(row["prompt"], row["y"])[:1]


def _value_row(rng: random.Random, form: str) -> tuple[dict[str, str], int] | None:
    """A row with another value of the first variable, and the counterfactual answer."""
    op = rng.choice(list(_OPERATIONS))
    a, new_a, b = (rng.choice(_VALUES) for _ in range(3))
    clean, changed = _OPERATIONS[op](a, b), _OPERATIONS[op](new_a, b)
    if min(clean, changed) < 0 or clean == changed:
        return None
    return _row(form, (a, b, op), (new_a, b, op), clean, changed), changed


def _operation_row(rng: random.Random, form: str) -> tuple[dict[str, str], int] | None:
    """A row with the other operation, and the clean answer."""
    op, new_op = rng.sample(list(_OPERATIONS), 2)
    a, b = (rng.choice(_VALUES) for _ in range(2))
    clean, changed = _OPERATIONS[op](a, b), _OPERATIONS[new_op](a, b)
    if min(clean, changed) < 0 or clean == changed:
        return None
    return _row(form, (a, b, op), (a, b, new_op), changed, clean), clean


def _row(
    form: str, clean: tuple[int, int, str], counterfactual: tuple[int, int, str], x: int, y: int
) -> dict[str, str]:
    """A row of text; the questions are given as (a, b, operator)."""
    prompt, answer = _FORMS[form]

    def write(question: tuple[int, int, str]) -> str:
        a, b, op = question
        return prompt.format(a=a, b=b, op=op)

    return {
        "prompt": write(clean),
        "counterfactual": write(counterfactual),
        "x": answer.format(x),
        "y": answer.format(y),
    }
