"""Data sets that are generated from a seed and from templates, by wording (`words.json`).

`docs/data.md` describes the tasks.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import add, sub
from pathlib import Path
from typing import Any, Literal

from tracekit._util.options import check_int
from tracekit.data.prompts import OnMismatch, PromptPairs, published_pairs
from tracekit.data.templates import make_filler
from tracekit.data.tokenization import Encode, make_encoder, require_tokenizer
from tracekit.demo import rows as demo_rows
from tracekit.errors import ConfigError, PairsError

WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("words.json").read_text("utf-8"))
FEMALE, MALE = WORDS["female"], WORDS["male"]
IOIWording = Literal["default", "friends", "argument", "discovery", "surprise", "colleagues"]
YearWording = Literal["default", "beginning", "historians", "museum", "diary", "witnesses"]
PronounWording = Literal["default", "reason", "letter", "question", "news", "moment"]
Desideratum = Literal["value", "operation", "both"]
BindingWording = Literal["paper", "code", "sentence", "let", "question", "reverse", "letters"]
_CENTURIES, _EARLY, _LATER, _TENS = range(11, 19), 1, range(2, 99), range(1, 9)
_OPERATIONS = {"+": add, "-": sub}
_VALUES = range(10, 100)
_MOST_QUESTIONS = 4000
"""Questions drawn for an example before giving up."""


def load_ioi(
    model: Any,
    *,
    n: int = 100,
    counterfactual: Literal["abc", "flip"] = "abc",
    wording: IOIWording = "default",
    seed: int = 0,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Makes `n` pairs, drawn by `seed`; every other one names the subject first.

    The spans `IO`, `S1` and `S2` are the indirect object and both mentions of the subject.
    """
    check_int("n", n)
    tokenizer = require_tokenizer(model)
    read = make_filler(tokenizer, prepend_bos)
    names = _token_names(make_encoder(tokenizer), (*FEMALE, *MALE), 5, "ioi")
    rng, rows = random.Random(seed), []
    for number in range(n):
        indirect, subject, *others = rng.sample(names, 5)
        template = rng.choice(WORDS["ioi"][wording])
        words = {"place": rng.choice(WORDS["places"]), "thing": rng.choice(WORDS["things"])}
        order = ("S1", "IO", "S2") if number % 2 else ("IO", "S1", "S2")
        own = [indirect if span == "IO" else subject for span in order]
        changed = {"abc": others, "flip": [*own[:2], indirect]}[counterfactual]
        prompt, other = (
            read(template, words | dict(zip("ABC", each, strict=True))) for each in (own, changed)
        )
        spans = {span: prompt.spans[field] for span, field in zip(order, "ABC", strict=True)}
        row = {"prompt": prompt.raw, "counterfactual": other.raw, "spans": spans}
        rows.append({**row, "x": f" {indirect}", "y": f" {subject}"})
    return published_pairs(rows, model, f"ioi-{counterfactual}", prepend_bos, on_mismatch)


def load_greater_than(
    model: Any,
    *,
    n: int = 100,
    wording: YearWording = "default",
    seed: int = 0,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Makes `n` pairs; `seed` draws nouns and years."""
    check_int("n", n)
    encode = make_encoder(require_tokenizer(model))
    by_digit = _are_single(encode, map(str, range(10))) and not _are_single(encode, ["32"])
    later = [year for year in _LATER if not by_digit or year // 10 in _TENS]
    years: dict[int, list[int]] = {}
    for century in _CENTURIES:
        numbers = [year for year in later if _splits(encode, century, year, by_digit)]
        if numbers and _splits(encode, century, _EARLY, by_digit):
            years[century] = numbers
    if not years or not (by_digit or _are_single(encode, (f"{n:02d}" for n in range(100)))):
        raise ConfigError(
            "The data set greater-than needs a tokenizer that writes a year as two tokens of two "
            "digits, as that of GPT-2 does, or digit by digit. This one writes 1732 as "
            f"{len(encode('', ' 1732'))} tokens."
        )
    rng, rows, templates = random.Random(seed), [], WORDS["greater-than"][wording]
    for number in range(n):
        century = rng.choice(sorted(years))
        year, noun = rng.choice(years[century]), rng.choice(WORDS["events"])
        prompt, early = (
            templates[number % len(templates)].format(noun=noun, century=century, year=each)
            for each in (year, _EARLY)
        )
        rows.append({"prompt": prompt, "counterfactual": early, **_number_sets(year, by_digit)})
    return published_pairs(rows, model, "greater-than", prepend_bos, on_mismatch)


def load_gendered_pronouns(
    model: Any,
    *,
    n: int = 100,
    wording: PronounWording = "default",
    seed: int = 0,
    prepend_bos: bool | None = None,
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Makes `n` pairs, women and men in turn, with the span `name`; `seed` draws them."""
    check_int("n", n)
    encode = make_encoder(require_tokenizer(model))
    women, men = (_token_names(encode, each, 2, "gendered-pronouns") for each in (FEMALE, MALE))
    rng, rows, templates = random.Random(seed), [], WORDS["gendered-pronouns"][wording]
    for number in range(n):
        names, others = (men, women) if number % 2 else (women, men)
        x, y = (" he", " she") if number % 2 else (" she", " he")
        template, noun = rng.choice(templates), rng.choice(WORDS["people"])
        name, other = rng.choice(names), rng.choice(others)
        prompt, changed = (template.format(name=each, noun=noun) for each in (name, other))
        row = {"prompt": prompt, "counterfactual": changed, "x": x, "y": y}
        rows.append({**row, "spans": {"name": name}})
    return published_pairs(rows, model, "gendered-pronouns", prepend_bos, on_mismatch)


def _token_names(encode: Encode, names: Sequence[str], at_least: int, dataset: str) -> list[str]:
    ids = {name: tuple(encode("and", f" {name}")) for name in names}
    counts = Counter(ids.values())
    # Names that a vocabulary lacks may all be one and the same unknown token.
    short = [name for name in names if len(ids[name]) == 1 and counts[ids[name]] == 1]
    if len(short) < at_least:
        raise ConfigError(
            f"The data set {dataset} needs {at_least} names that are one token each, and this "
            f"tokenizer has {len(short)} of {len(names)}. Use a model whose vocabulary holds "
            "common first names."
        )
    return short


def _number_sets(year: int, by_digit: bool) -> dict[str, Any]:
    """Right and wrong numbers after a year: of two digits, or by digit the tens."""
    own, numbers = year, [f"{number:02d}" for number in range(100)]
    if by_digit:
        own, numbers = year // 10, list(map(str, range(10)))
    # The year itself is wrong; its tens may begin a later year.
    right, wrong = numbers[own + 1 :], numbers[: own if by_digit else own + 1]
    return {"x": right[0], "y": numbers[own - 1], "x_set": right, "y_set": wrong}


def _are_single(encode: Encode, numbers: Iterable[str]) -> bool:
    return all(len(encode("17", number)) == 1 for number in numbers)


def _splits(encode: Encode, century: int, year: int, by_digit: bool) -> bool:
    whole, begins = encode("year", f" {century}{year:02d}"), encode("year", f" {century}")
    if by_digit:
        return whole[: len(begins)] == begins and len(whole) == len(begins) + 2
    return whole == begins + encode(str(century), f"{year:02d}")


def load_variable_binding(
    model: Any,
    *,
    desideratum: Desideratum = "both",
    weights: tuple[float, float] = (5.0, 1.0),
    wording: BindingWording = "paper",
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
    for part in ("value", "operation") if desideratum == "both" else (desideratum,):
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


def load_demo_binding(
    model: Any,
    *,
    desideratum: Desideratum = "value",
    weights: tuple[float, float] = (5.0, 1.0),
    on_mismatch: OnMismatch = "error",
) -> PromptPairs:
    """Questions to the embedded model; arguments are as in `load_variable_binding`."""
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
        for _ in range(_MOST_QUESTIONS):
            row = _question_row(rng, part, wording)
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


def _question_row(rng: random.Random, part: str, wording: str) -> dict[str, str] | None:
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
