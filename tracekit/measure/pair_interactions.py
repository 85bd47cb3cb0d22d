"""Interactions of all pairs of members of a set: alone, within the set, and averaged."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from tracekit.measure.set_game import SetGame
from tracekit.measure.shapley import MOST_EXACT


@dataclass(frozen=True, kw_only=True, eq=False)
class PairInteractions:
    """The interaction of every pair of members, on every example."""

    pairs: tuple[tuple[int, int], ...]
    """Numbers of the two members of each pair."""
    alone: Float[Tensor, "pair example"]
    """Nothing else is patched."""
    within: Float[Tensor, "pair example"]
    """All other members are patched too."""
    averaged: Float[Tensor, "pair example"] | None
    """Averaged over subsets of the others; None with more than 12 members."""


def pair_interactions(game: SetGame) -> PairInteractions:
    """Interactions of all pairs of members, of which there are at least two."""
    pairs = tuple(combinations(range(game.n_members), 2))
    all_members = game.all_members

    def without(*left_out: int) -> tuple[int, ...]:
        return tuple(member for member in all_members if member not in left_out)

    alone = [[(i, j), (i,), (j,), ()] for i, j in pairs]
    within = [[all_members, without(j), without(i), without(i, j)] for i, j in pairs]
    corners = game.effects([each for four in (*alone, *within) for each in four], "pairs")
    both, first, second, neither = rearrange(
        corners, "(where pair corner) example -> corner where pair example", where=2, corner=4
    )
    values = both - first - second + neither
    return PairInteractions(
        pairs=pairs,
        alone=values[0],
        within=values[1],
        averaged=_averaged(game, pairs) if game.n_members <= MOST_EXACT else None,
    )


def _averaged(game: SetGame, pairs: tuple[tuple[int, int], ...]) -> Float[Tensor, "pair example"]:
    """Shapley interaction indices, from all subsets."""
    n = game.n_members
    effects = game.every_effect().double()
    numbers = torch.arange(2**n)
    sizes = torch.stack([numbers >> member & 1 for member in range(n)]).sum(0)
    weights = [1 / ((n - 1) * comb(n - 2, size)) for size in range(n - 1)]
    by_size = torch.tensor(weights, dtype=effects.dtype)
    rows = []
    for i, j in pairs:
        both = 1 << i | 1 << j
        rest = numbers[(numbers & both) == 0]
        changes = effects[rest | both] - effects[rest | 1 << i] - effects[rest | 1 << j]
        rows.append(by_size[sizes[rest]] @ (changes + effects[rest]))
    return torch.stack(rows).to(torch.float32)
