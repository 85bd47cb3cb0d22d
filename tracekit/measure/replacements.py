"""Members that can be left out, non-members that would replace a member, and backups.

A *replacement* j of a member i makes up for it: the set with j in the place of i does about what
the set does. A *backup* j of i does more once i is patched than while i is not (self-repair, the
Hydra effect: McGrath et al., 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask
from tracekit.engine.engine import Engine
from tracekit.measure.shapley import SetGame
from tracekit.metrics import Effects

_PROPOSED = 5
"""Non-members that are measured for each member, by either prediction."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Redundancy:
    """Members that can be left out together at little cost."""

    members: tuple[int, ...]
    """Their numbers in the set, the one that costs least first."""
    effects: Effects
    """Effect of the set without them, on every example."""


def redundant_members(game: SetGame, *, tolerance: float) -> Redundancy:
    """Leaves out the cheapest member, again and again, up to a share of the set's effect in all."""
    left: tuple[int, ...] = ()
    rest = game.all_members
    effects = game.effects([rest])[0]
    whole = effects.mean().item()
    while len(rest) > 1:
        smaller = [tuple(member for member in rest if member != gone) for gone in rest]
        of_smaller = game.effects(smaller, "left out")
        best = int(of_smaller.mean(1).argmax())
        if of_smaller[best].mean().item() < whole - tolerance * abs(whole):
            break
        left, rest, effects = (*left, rest[best]), smaller[best], of_smaller[best]
    return Redundancy(members=left, effects=effects)


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredNonMember:
    """A non-member beside a member, with measured effects on every example."""

    member: int
    """Number of the member in the set."""
    non_member: int
    """Flat index of the non-member."""
    without: Effects
    """Effects of the set without the member."""
    instead: Effects
    """Effects of the set with the non-member in the place of the member."""
    whole: Effects
    """Effects of the set."""
    joined: Effects
    """Effects of the set and the non-member together."""

    @property
    def recovered(self) -> Effects:
        """Effect of the non-member while the member is not patched."""
        return self.instead - self.without

    @property
    def scale(self) -> Effects:
        """Size of the effects that the rise is a difference of, on each example."""
        parts = (self.without, self.instead, self.whole, self.joined)
        return torch.stack(parts).abs().max(0).values

    @property
    def rise(self) -> Effects:
        """How much more it brings once the member is patched."""
        return (self.joined - self.whole) - self.recovered


def measured_non_members(
    engine: Engine, members: ComponentSet, proposing: Engine
) -> list[MeasuredNonMember]:
    """Non-members that may replace or back up each member, measured beside it.

    For every member, the five that the gradient of `proposing` ranks first at the set without it,
    and the five whose predicted gain rises most when it is patched.
    """
    outside = [index for index in range(engine.n_components) if index not in set(members)]
    if not outside:
        return []
    at_set = proposing.predict_changes(members).predicted_effects.nan_to_num()
    proposals: list[tuple[int, int, tuple[ComponentSet, ComponentSet, ComponentSet]]] = []
    for member, index in enumerate(members):
        without = tuple(other for other in members if other != index)
        gains = proposing.predict_changes(without).predicted_effects.nan_to_num()
        chosen = [*_highest_scored(outside, gains), *_highest_scored(outside, at_set - gains)]
        for non_member in dict.fromkeys(chosen):
            instead, joined = (tuple(sorted((*each, non_member))) for each in (without, members))
            proposals.append((member, non_member, (without, instead, joined)))
    sets = list(dict.fromkeys([members, *(each for *_, three in proposals for each in three)]))
    effects = dict(zip(sets, engine.set_effects(sets, "non-members"), strict=True))
    return [
        MeasuredNonMember(
            member=member,
            non_member=non_member,
            without=effects[without],
            instead=effects[instead],
            whole=effects[members],
            joined=effects[joined],
        )
        for member, non_member, (without, instead, joined) in proposals
    ]


def n_sets_of_non_members(n_members: int, n_components: int) -> int:
    """Sets that `measured_non_members` measures at most, after a gradient a member and one."""
    outside = n_components - n_members
    instead = n_members * min(2 * _PROPOSED, outside)
    # A non-member joins the whole set once, whoever it was proposed for.
    return 1 + n_members + instead + min(instead, outside) if outside else 0


def _highest_scored(outside: Sequence[int], scores: Mask) -> list[int]:
    return sorted(outside, key=lambda index: -scores[index].item())[:_PROPOSED]
