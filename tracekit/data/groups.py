"""Groups of pairs that are no independent evidence, as those of one template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tracekit._util.options import first_few, is_whole, shortened
from tracekit.errors import PairsError


def group_from_row(group: object, number: int) -> str | None:
    """The group of an example, as text; a number is as good as its text."""
    if group is None or isinstance(group, str) or is_whole(group):
        return None if group in (None, "") else str(group)
    hint = (
        " pandas makes 1.0 of every 1 in a column with an empty cell: read it with dtype=str, "
        "keep_default_na=False."
    )
    raise PairsError(
        f"The group of example {number} is {shortened(group)}. Give a text or a whole number, "
        f"the same for examples that share a template, say.{hint * isinstance(group, float)}"
    )


def check_groups(groups: Sequence[str | None]) -> None:
    """Refuses groups that leave nothing independent of anything; of two pairs little is said."""
    if len(groups) > 2 and groups[0] is not None and len(set(groups)) == 1:
        raise PairsError(
            f"All {len(groups)} pairs are of the one group {groups[0]!r}, so no two are "
            "independent, and nothing can be said beyond them. Give pairs of several groups, or "
            "leave the group out."
        )


def independent(pairs: Iterable[Any]) -> list[int]:
    """Number of the independent example that each pair is part of, in order of first pairs."""
    parents: dict[Any, Any] = {}

    def first_of(key: Any) -> Any:
        while parents.setdefault(key, key) != key:
            parents[key] = key = parents[parents[key]]
        return key

    owns = []
    for pair in pairs:
        owns.append((pair.identity,))
        # Equal pairs of two groups make these one.
        parents[first_of(owns[-1])] = first_of(owns[-1] if pair.group is None else pair.group)
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(first_of(own), len(numbers)) for own in owns]


def refuse_shared(own: Sequence[Any], held_out: Sequence[Any]) -> None:
    """Refuses held-out pairs that are also among those searched on, or share a group with some."""
    searched = {pair.identity for pair in own}
    both = [
        f"example {n}: {p.describe()}" for n, p in enumerate(held_out) if p.identity in searched
    ]
    if both:
        raise PairsError(
            f"{len(both)} of {len(held_out)} held-out examples are also among those that are "
            f"searched on ({first_few(both)}). Leave them out of one of the two; "
            "pairs.split(...) makes parts that share none."
        )
    groups = {pair.group for pair in held_out} & {pair.group for pair in own} - {None}
    if groups:
        named = ", ".join(map(repr, sorted(map(str, groups))[:3]))
        raise PairsError(
            f"{len(groups)} groups have pairs among those that are held out and among those "
            f"that are searched on ({named}{', ...' if len(groups) > 3 else ''}). Keep each "
            "group on one side; pairs.split(...) does."
        )
