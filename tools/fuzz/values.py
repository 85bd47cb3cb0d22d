"""What is put in: plausible values, and values that nobody should get away with."""

from __future__ import annotations

import json
import math

import torch
from hypothesis import strategies as st

from tests.tiny import METHOD_OPTIONS, VOCABULARY
from tracekit.components import KINDS
from tracekit.metrics import METRICS
from tracekit.search import METHODS

numbers = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([0.0, 0.5, 1.0, -0.1, 1e-30, 1e300, math.nan, math.inf, -math.inf, 2**63]),
    st.floats(-2, 2),
)
words = st.one_of(st.text(max_size=6), st.sampled_from(["", "[/red]", "\x1b[31m", "nan", "0-1"]))
scalars = st.one_of(numbers, words, st.none(), st.booleans())
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=6,
)

kinds = st.sampled_from([*KINDS, "head-outputs+mlp-outputs"])
metrics = st.sampled_from(list(METRICS))
methods = st.sampled_from(list(METHODS))
ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5)
wrong_ids = st.one_of(ids, st.lists(st.integers(-2, VOCABULARY + 2), max_size=4), junk)


def option_names() -> list[str]:
    """Options of all search methods."""
    from dataclasses import fields

    return sorted({field.name for method in METHODS.values() for field in fields(method)})


# What would only take long, and says nothing about what is refused.
_LONG = {"epochs", "draws", "steps", "trials", "max_passes", "checkpoint"}
options = st.dictionaries(
    st.sampled_from([name for name in option_names() if name not in _LONG]),
    scalars,
    min_size=1,
    max_size=2,
)
goals = st.one_of(
    st.fixed_dictionaries({"budget": st.integers(1, 6)}),
    st.fixed_dictionaries({"budget": st.floats(0.1, 1)}),
    st.fixed_dictionaries({"budgets": st.lists(st.integers(1, 12), min_size=1, max_size=3)}),
    st.fixed_dictionaries({"target_effect": st.floats(-0.5, 0.1)}),
)
wrong_goals = st.one_of(
    st.fixed_dictionaries({"budget": st.one_of(numbers, junk)}),
    st.fixed_dictionaries({"budgets": st.one_of(st.lists(numbers, max_size=3), junk)}),
    st.fixed_dictionaries({"target_effect": junk}),
    st.just({}),
)
QUICK = {**METHOD_OPTIONS, "pgb-ct": {"trials": 1, "epochs": 2}, "dcm": {"trials": 1, "epochs": 2}}
QUICK["local-search"] = {"max_passes": 20}


@st.composite
def mostly(draw: st.DrawFn, plausible: dict, wrong: dict) -> dict:
    """Plausible arguments, in every other case with one of them replaced."""
    given = {name: draw(strategy) for name, strategy in plausible.items()}
    if draw(st.booleans()):
        name = draw(st.sampled_from(list(wrong)))
        given[name] = draw(wrong[name])
    return given


@st.composite
def row(draw: st.DrawFn, *, plausible: bool) -> dict:
    """A row of token ids."""
    prompt = draw(ids)
    made = {
        "prompt_ids": prompt,
        "counterfactual_ids": draw(st.lists(st.integers(0, VOCABULARY - 1)).filter(bool))[:5],
        "x_ids": draw(ids),
        "y_ids": draw(ids),
    }
    if draw(st.booleans()):
        changed = draw(st.permutations(prompt))
        made["counterfactual_ids"] = [(token + 1) % VOCABULARY for token in changed]
    if draw(st.integers(0, 3)) == 0:
        made["weight"] = draw(st.one_of(st.floats(0.1, 5), numbers))
    if draw(st.integers(0, 3)) == 0:
        first = draw(st.integers(0, len(prompt)))
        made["spans"] = draw(
            st.one_of(st.just({"subject": [first, first + draw(st.integers(0, 2))]}), junk)
        )
    if not plausible:
        key = draw(st.sampled_from([*made, "noise", "x_set_ids", "counterfactual"]))
        made[key] = draw(st.one_of(wrong_ids, junk))
        if draw(st.booleans()):
            del made[draw(st.sampled_from(list(made)))]
    return made


rows = st.one_of(
    st.lists(row(plausible=True), min_size=1, max_size=4),
    st.lists(row(plausible=False), max_size=3),
)
sound_rows = st.lists(row(plausible=True), min_size=2, max_size=5)


def masks(size: int) -> st.SearchStrategy:
    """Masks of a size, and what is none."""
    entry = st.one_of(st.floats(0, 1), st.sampled_from([0, 1, 0.0, 1.0]))
    return st.one_of(
        st.lists(entry, min_size=size, max_size=size),
        st.lists(entry, min_size=size, max_size=size).map(torch.tensor),
        st.lists(st.booleans(), min_size=size, max_size=size),
        st.lists(scalars, min_size=size - 1, max_size=size + 1),
        junk,
    )


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """A file with bits flipped, a part cut off, doubled, or put in."""
    how = draw(st.sampled_from(["flip", "cut", "insert", "repeat", "empty"]))
    at = draw(st.integers(0, max(len(content) - 1, 0)))
    if how == "flip" and content:
        flipped = content[at] ^ (1 << draw(st.integers(0, 7)))
        return content[:at] + bytes([flipped]) + content[at + 1 :]
    if how == "cut":
        return content[:at]
    if how == "insert":
        return content[:at] + draw(st.binary(min_size=1, max_size=4)) + content[at:]
    if how == "repeat":
        return content + content[at:]
    return b""


@st.composite
def changed_document(draw: st.DrawFn, document: dict) -> dict:
    """A JSON document with an entry, at any depth, replaced, removed or doubled."""
    document = json.loads(json.dumps(document))
    place, path = document, []
    while isinstance(place, (dict, list)) and place:
        key = draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        path.append((place, key))
        if draw(st.booleans()):
            break
        place = place[key]
    owner, key = path[-1]
    if draw(st.integers(0, 3)):
        owner[key] = draw(junk)
    else:
        del owner[key]
    return document
