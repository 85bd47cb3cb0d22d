"""Sets between the largest effect and the most faithful one, size by size.

The set with the largest effect need not be the most faithful. Of the sets of a size that a faithful
search measured, those are kept that no other one beats both in effect and in the distance of its
faithfulness from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracekit.components import ComponentSet
from tracekit.search.faithful import EffectAndComplement


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """A set that no measured set of its size beats in both; on the examples of the search."""

    members: ComponentSet
    """Flat indices of its components."""
    effect: float
    """Mean effect."""
    faithfulness: float
    completeness: float


def trade_offs(
    measured: Mapping[ComponentSet, EffectAndComplement],
    sizes: Iterable[int],
    *,
    full: float,
    is_denoising: bool,
) -> tuple[TradeOff, ...]:
    """The sets of each of some sizes that none beats in both, from the largest effect on."""
    by_size: dict[int, list[TradeOff]] = {size: [] for size in sizes}
    for members, means in measured.items():
        if len(members) in by_size:
            shares = means.own / full, means.others / full
            faithful = shares[0] if is_denoising else 1 - shares[1]
            complete = shares[1] if is_denoising else 1 - shares[0]
            each = TradeOff(
                members=members, effect=means.own, faithfulness=faithful, completeness=complete
            )
            by_size[len(members)].append(each)
    kept = []
    for size in sorted(by_size):
        nearest = float("inf")
        for each in sorted(by_size[size], key=lambda each: (-each.effect, _distance(each))):
            if _distance(each) < nearest:
                kept.append(each)
                nearest = _distance(each)
    return tuple(kept)


def _distance(each: TradeOff) -> float:
    return abs(1 - each.faithfulness)
