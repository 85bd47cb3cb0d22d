"""Shapley values: the effect of a set shared out among its members.

The value of a member is what it brings when it joins, averaged over all orders in which the members
may join (Shapley, A value for n-person games, 1953). The values of all members sum to the effect
of the set, and members that bring the same to every subset have the same value.

Every example has its own values; their means are the values of the mean effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.anatomy.set_game import Coalition, SetGame

MOST_EXACT = 12
"""Members up to which every subset is measured."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ShapleyValues:
    """What each member of a set brings on average."""

    per_example: Float[Tensor, "member example"]
    """By member, in the order of the game, and example."""
    sampling_error: Float[Tensor, " member"]
    """Standard error of the mean over examples because only some orders were drawn; 0 if exact."""
    n_orders: int | None
    """Orders drawn; None if all subsets were measured."""


def shapley_values(game: SetGame, *, max_sets: int, seed: int) -> ShapleyValues:
    """Values of all members: exact for up to 12, else from drawn orders.

    Args:
        game: The set.
        max_sets: Subsets to measure at most, where there are more than 12 members.
        seed: Draws the orders.
    """
    if game.n_players <= MOST_EXACT:
        return exact_values(game)
    return sampled_values(game, max_sets=max_sets, seed=seed)


def exact_values(game: SetGame) -> ShapleyValues:
    """Values from all subsets."""
    n = game.n_players
    effects = game.every_effect().double()
    numbers = torch.arange(2**n)
    sizes = torch.stack([numbers >> player & 1 for player in range(n)]).sum(0)
    # How often a member joins a coalition of each size, among all orders.
    weights = torch.tensor([1 / (n * comb(n - 1, size)) for size in range(n)], dtype=effects.dtype)
    rows = []
    for player in range(n):
        without = numbers[(numbers >> player & 1) == 0]
        gains = effects[without | 1 << player] - effects[without]
        rows.append(weights[sizes[without]] @ gains)
    return ShapleyValues(
        per_example=torch.stack(rows).to(torch.float32),
        sampling_error=torch.zeros(n),
        n_orders=None,
    )


def sampled_values(game: SetGame, *, max_sets: int, seed: int) -> ShapleyValues:
    """Values from drawn orders, each along with its reverse (antithetic; Mitchell et al., 2022).

    At least two such pairs are drawn. An order takes as many subsets as the set has members, less
    one.

    Args:
        game: The set.
        max_sets: Subsets to measure at most.
        seed: Draws the orders.
    """
    n = game.n_players
    n_pairs = max(2, (max_sets - 1) // (2 * (n - 1)))
    generator = torch.Generator().manual_seed(seed)
    orders = []
    for _ in range(n_pairs):
        order = torch.randperm(n, generator=generator).tolist()
        orders += [order, order[::-1]]
    # Measured together, subsets share what is below the layer in which they part.
    game.effects([prefix for order in orders for prefix in _prefixes(order)], "orders")
    total = torch.zeros(n, game.engine.n_examples, dtype=torch.float64)
    means = torch.zeros(n_pairs, n, dtype=torch.float64)
    for number, order in enumerate(orders):
        effects = game.effects(_prefixes(order)).double()
        gains = effects.diff(dim=0)
        total[order] += gains / len(orders)
        means[number // 2, order] += gains.mean(1) / 2
    return ShapleyValues(
        per_example=total.to(torch.float32),
        sampling_error=(means.std(0) / n_pairs**0.5).to(torch.float32),
        n_orders=len(orders),
    )


def _prefixes(order: list[int]) -> Iterator[Coalition]:
    return (tuple(sorted(order[:size])) for size in range(len(order) + 1))
