"""Members that can be left out, outsiders that would replace a member, and backups.

A *replacement* j of a member i makes up for it: the set with j in the player of i does about what
the set does. A *backup* j of i does more once i is patched than while i is not (self-repair, the
Hydra effect: McGrath et al., 2023). Outsiders are proposed by the gradient at the set without the
member, and measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask
from tracekit.engine.engine import Engine
from tracekit.measure.set_game import SetGame
from tracekit.metrics import Effects

_PROPOSED = 5
"""Outsiders that are measured for each member, by either prediction."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Redundancy:
    """Members that can be left out together at little cost."""

    players: tuple[int, ...]
    """Their numbers in the set, the one that costs least first."""
    effects: Effects
    """Effect of the set without them, on every example."""


def redundant_members(game: SetGame, *, tolerance: float) -> Redundancy:
    """Leaves out the cheapest member, again and again, up to a share of the set's effect in all."""
    left: tuple[int, ...] = ()
    rest = game.everybody
    effects = game.effects([rest])[0]
    whole = effects.mean().item()
    while len(rest) > 1:
        smaller = [tuple(player for player in rest if player != gone) for gone in rest]
        of_smaller = game.effects(smaller, "left out")
        best = int(of_smaller.mean(1).argmax())
        if of_smaller[best].mean().item() < whole - tolerance * abs(whole):
            break
        left, rest, effects = (*left, rest[best]), smaller[best], of_smaller[best]
    return Redundancy(players=left, effects=effects)


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredOutsider:
    """An outsider beside a member, with measured effects on every example."""

    player: int
    """Player of the member in the set."""
    outsider: int
    """Flat index of the outsider."""
    without: Effects
    """Effects of the set without the member."""
    instead: Effects
    """Effects of the set with the outsider in the place of the member."""
    whole: Effects
    """Effects of the set."""
    joined: Effects
    """Effects of the set and the outsider together."""

    @property
    def recovered(self) -> Effects:
        """Effect of the outsider while the member is not patched."""
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


def measured_outsiders(
    engine: Engine, members: ComponentSet, proposing: Engine
) -> list[MeasuredOutsider]:
    """Outsiders that may replace or back up each member, measured beside it.

    For every member, the five that the gradient of `proposing` ranks first at the set without it,
    and the five whose predicted gain rises most when it is patched.
    """
    outside = [index for index in range(engine.n_components) if index not in set(members)]
    if not outside:
        return []
    at_set = proposing.predict_changes(members).predicted_effects.nan_to_num()
    proposals = []
    for player in range(len(members)):
        without = tuple(index for index in members if index != members[player])
        gains = proposing.predict_changes(without).predicted_effects.nan_to_num()
        chosen = [*_first(outside, gains), *_first(outside, at_set - gains)]
        proposals += [(player, without, outsider) for outsider in dict.fromkeys(chosen)]
    sets = {members: 0}
    for _, without, outsider in proposals:
        for each in (without, _with(without, outsider), _with(members, outsider)):
            sets.setdefault(each, len(sets))
    effects = engine.set_effects(list(sets), "outsiders")
    return [
        MeasuredOutsider(
            player=player,
            outsider=outsider,
            without=effects[sets[without]],
            instead=effects[sets[_with(without, outsider)]],
            whole=effects[0],
            joined=effects[sets[_with(members, outsider)]],
        )
        for player, without, outsider in proposals
    ]


def n_sets_of_outsiders(n_members: int, n_components: int) -> int:
    """Sets that `measured_outsiders` measures at most, after a gradient a member and one."""
    outside = n_components - n_members
    instead = n_members * min(2 * _PROPOSED, outside)
    # An outsider joins the whole set once, whoever it was proposed for.
    return 1 + n_members + instead + min(instead, outside) if outside else 0


def _first(outside: Sequence[int], scores: Mask) -> list[int]:
    return sorted(outside, key=lambda index: -scores[index].item())[:_PROPOSED]


def _with(members: ComponentSet, outsider: int) -> ComponentSet:
    return tuple(sorted((*members, outsider)))
