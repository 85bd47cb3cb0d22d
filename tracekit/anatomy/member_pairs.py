"""How pairs of members interact: alone, within the set, and averaged over its subsets.

Two members i and j interact by v(T + i + j) - v(T + i) - v(T + j) + v(T), where v is the effect of
a set and T what is patched besides: nothing (*alone*), all other members (*within*), or every
subset of them (*averaged*: the Shapley interaction index of Grabisch and Roubens, 1999). It is 0
where the two add up, positive where together they do more than the sum of what each does, negative
where each does what the other does too.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.anatomy.set_game import SetGame
from tracekit.anatomy.shapley import MOST_EXACT


@dataclass(frozen=True, kw_only=True, eq=False)
class PairInteractions:
    """The interaction of every pair of members, on every example."""

    pairs: tuple[tuple[int, int], ...]
    """Players of the members of each pair."""
    alone: Float[Tensor, "pair example"]
    """Nothing else is patched."""
    within: Float[Tensor, "pair example"]
    """All other members are patched too."""
    averaged: Float[Tensor, "pair example"] | None
    """Averaged over subsets of the others; None with more than 12 members."""


def pair_interactions(game: SetGame) -> PairInteractions:
    """Interactions of all pairs of members, of which there are at least two."""
    pairs = tuple(combinations(range(game.n_players), 2))
    everybody = game.everybody

    def without(*players: int) -> tuple[int, ...]:
        return tuple(player for player in everybody if player not in players)

    alone = [[(i, j), (i,), (j,), ()] for i, j in pairs]
    within = [[everybody, without(j), without(i), without(i, j)] for i, j in pairs]
    corners = game.effects([each for four in (*alone, *within) for each in four], "pairs")
    four = corners.reshape(2, len(pairs), 4, -1)
    values = four[:, :, 0] - four[:, :, 1] - four[:, :, 2] + four[:, :, 3]
    is_exact = game.n_players <= MOST_EXACT
    return PairInteractions(
        pairs=pairs,
        alone=values[0],
        within=values[1],
        averaged=_averaged(game, pairs) if is_exact else None,
    )


def _averaged(game: SetGame, pairs: tuple[tuple[int, int], ...]) -> Float[Tensor, "pair example"]:
    """Shapley interaction indices, from all subsets."""
    n = game.n_players
    effects = game.every_effect().double()
    numbers = torch.arange(2**n)
    sizes = torch.stack([numbers >> player & 1 for player in range(n)]).sum(0)
    weights = [1 / ((n - 1) * comb(n - 2, size)) for size in range(n - 1)]
    by_size = torch.tensor(weights, dtype=effects.dtype)
    rows = []
    for i, j in pairs:
        both = 1 << i | 1 << j
        rest = numbers[(numbers & both) == 0]
        changes = effects[rest | both] - effects[rest | 1 << i] - effects[rest | 1 << j]
        rows.append(by_size[sizes[rest]] @ (changes + effects[rest]))
    return torch.stack(rows).to(torch.float32)
