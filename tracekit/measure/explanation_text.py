"""An explanation in words: the findings in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracekit._util.markup import clean_text, number_text

CONTEXTS = {
    "averaged": "averaged over subsets of the other members",
    "within": "all other members patched",
}
"""Contexts of interactions in words."""
_LEFT_OUT = "can be left out"
_VERDICTS = {
    "with others": "Bring more with all other members patched than alone",
    "overlaps": "Bring less with all other members patched than alone, as these do the same",
    "with some": "Bring more with some of the other members patched than alone or with all",
    "by itself": "Show no difference between alone and with the other members patched",
    _LEFT_OUT: "Can be left out together, as the set without them does as much",
    "works against": "Work against the others",
}
_MOST_NAMED = 3
"""Pairs and backups that the text names, at most."""


def explanation_text(why: Any) -> str:
    """Returns the findings of an `Explanation`, a line for each."""
    sums, n_orders = why.additivity, why.shapley.n_orders
    method = "all subsets" if n_orders is None else f"{n_orders} orders"
    values = zip(why.table["component"], why.table["value"], strict=True)
    shares = ", ".join(f"{label} {value:.3g}" for label, value in values)
    lines = [
        f"{len(why.members)} components of {why.model} on {why.dataset}: "
        f"{number_text(sums, 'effect')}, {why.axis_label}, {why.setting}. Brackets: 95 % "
        "intervals.",
        f"Alone they sum to {number_text(sums, 'sum_of_singles')}; interaction brings "
        f"{number_text(sums, 'interaction')}.",
        f"Shapley values ({method}): {shares}.",
        *_verdict_texts(why),
        _pairs_text(why),
        *why.notes_on_p,
    ]
    if why.backups is not None:
        lines += _backup_texts(why)
    return clean_text("\n".join(lines))


def _verdict_texts(why: Any) -> Iterator[str]:
    for verdict, text in _VERDICTS.items():
        labels = list(why.table["component"][why.table["verdict"] == verdict])
        if verdict == _LEFT_OUT:
            labels = [_left_out_text(why, label) for label in labels]
        if labels:
            yield f"{text}: {', '.join(labels)}."


def _left_out_text(why: Any, label: str) -> str:
    """A member that can be left out: its effect alone, and which member makes up for it."""
    alone = why.table.set_index("component")["alone"][label]
    staying = {*why.labels} - {str(member) for member in why.redundant}
    for row in why.interactions.to_dict("records"):
        pair = [row["first"], row["second"]]
        if label not in pair:
            continue
        other = pair[1] if pair[0] == label else pair[0]
        if other in staying and row[f"{why.tested_context}_high"] < -why.rounding:
            return f"{label} ({alone:.3g} alone; {other} makes up for it)"
    return f"{label} ({alone:.3g} alone)"


def _pairs_text(why: Any) -> str:
    """How many pairs interact, and the strongest of them."""
    frame, context = why.interactions, why.tested_context
    if why.is_tested:
        criterion, counts = "p < .05", frame["significant"]
    else:
        criterion = "interval apart from 0"
        low, high = frame[f"{context}_low"], frame[f"{context}_high"]
        counts = (low > why.rounding) | (high < -why.rounding)
    pairs = [
        f"{row['first']} and {row['second']} {row[context]:+.3g}"
        for row in frame[counts].to_dict("records")
    ]
    text = (
        f"{len(pairs)} of {len(frame)} pairs do more (+) or less (-) together than each by itself, "
        f"{why.context_text} ({criterion})"
    )
    return f"{text}: {', '.join(pairs[:_MOST_NAMED])}." if pairs else f"{text}."


def _backup_texts(why: Any) -> Iterator[str]:
    """The strongest backups, and a caution where their q is not reliable."""
    backups, criterion = why.backups, "interval above 0, on the examples that proposed them"
    if why.proposed_on != why.dataset_fingerprint:
        backups, criterion = backups[backups["significant"].astype(bool)], "q < .05"
    named = [
        f"{row['backup']} {row['rise']:+.3g} once {row['component']} is"
        for row in backups.head(_MOST_NAMED).to_dict("records")
    ]
    yield (
        "Backups, which are outside the set and do more once a member is patched "
        f"({criterion}): {', '.join(named) if named else 'none'}."
    )
    if named and why.tests_of_backups.caution:
        yield why.tests_of_backups.caution
