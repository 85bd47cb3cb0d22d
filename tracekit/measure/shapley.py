"""A set as a cooperative game: Shapley values of its members, and interactions of pairs.

The value of a member is what it brings when it joins, averaged over all orders in which the members
may join (Shapley, A value for n-person games, 1953). The values of all members sum to the effect
of the set, and members that bring the same to every subset have the same value.

Every example has its own values; their means are the values of the mean effect. The interaction of
a pair is measured alone, within the set, and averaged over subsets (Shapley interaction index).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

import torch
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.components.members import ComponentsLike, members_of
from tracekit.engine.engine import Engine
from tracekit.engine.gradients import ExampleCurves
from tracekit.errors import MaskError, NonFiniteMetricError
from tracekit.measure.question import Question
from tracekit.metrics import Effects

Coalition = tuple[int, ...]
"""Some members, by their numbers in the set, ascending."""


def as_game(question: Question, members: ComponentsLike) -> SetGame:
    """The effect of every subset of a set, as libraries for cooperative games take it.

    ```python
    game = tracer.as_game(result)
    shapiq.KernelSHAPIQ(n=game.n_members, max_order=2).approximate(budget=200, game=game)
    ```
    """
    return SetGame(question.search_engine, members_of(members, question.registry))


class SetGame:
    """The value of every subset of a set: its effect on every example.

    Called with coalitions as rows of booleans (`coalition member`), it gives their mean effects as
    an array, which is what libraries for games such as shapiq take.
    """

    def __init__(
        self, engine: Engine, members: Sequence[int], *, given: Sequence[int] = ()
    ) -> None:
        """Measures nothing yet.

        Args:
            engine: The data set.
            members: Flat indices of the members, in their order.
            given: Flat indices of components that are patched in every coalition.
        """
        self.engine = engine
        self.members: ComponentSet = tuple(members)
        """Flat indices of the members."""
        self.given: ComponentSet = tuple(given)
        """Flat indices of what is patched besides."""
        self._effects: dict[Coalition, Effects] = {}
        if not given:
            self._effects[()] = torch.zeros(engine.n_examples)

    @property
    def n_members(self) -> int:
        """Number of members."""
        return len(self.members)

    @property
    def n_measured(self) -> int:
        """Coalitions measured so far."""
        return len(self._effects)

    @property
    def all_members(self) -> Coalition:
        """The coalition of all members."""
        return tuple(range(self.n_members))

    def effects(
        self, coalitions: Iterable[Coalition], label: str = "subsets"
    ) -> Float[Tensor, "coalition example"]:
        """Effects of coalitions on every example; new ones are measured together, and kept.

        `label` names the progress bar.

        Raises:
            NonFiniteMetricError: Names the examples.
        """
        asked = [tuple(sorted(coalition)) for coalition in coalitions]
        new = [each for each in dict.fromkeys(asked) if each not in self._effects]
        if new:
            members = [[*self.given, *(self.members[number] for number in each)] for each in new]
            sets = [tuple(sorted(each)) for each in members]
            self._effects.update(zip(new, self._measured(sets, label), strict=True))
        return torch.stack([self._effects[each] for each in asked])

    def _measured(self, sets: Sequence[ComponentSet], label: str) -> Float[Tensor, "set example"]:
        try:
            return self.engine.set_effects(sets, label)
        except NonFiniteMetricError:
            # Measured one by one, the first that is not finite is named.
            for members in sets:
                try:
                    self.engine.set_effects([members], label)
                except NonFiniteMetricError as error:
                    names = ", ".join(map(self.engine.registry.label, members))
                    raise NonFiniteMetricError(f"Of the subset {names}: {error}") from error
            raise

    def every_effect(self) -> Float[Tensor, "coalition example"]:
        """Effects of all coalitions; the number of a coalition has a bit for each member."""
        return self.effects(
            tuple(number for number in self.all_members if code >> number & 1)
            for code in range(2**self.n_members)
        )

    def __call__(self, coalitions: Any) -> Any:
        """Mean effects of coalitions, as a NumPy array.

        Args:
            coalitions: Which members are in each: an array of booleans, `coalition member`.

        Raises:
            MaskError: Of another shape.
        """
        rows = torch.as_tensor(coalitions).bool()
        if rows.ndim != 2 or rows.shape[1] != self.n_members:
            raise MaskError(
                f"Coalitions of shape {tuple(rows.shape)} were given. Give a row for each, with a "
                f"boolean for each of the {self.n_members} members."
            )
        chosen = [tuple(row.nonzero()[:, 0].tolist()) for row in rows]
        return self.effects(chosen).mean(1).double().numpy()


MOST_EXACT = 12
"""Members up to which every subset is measured."""
_FEWEST_PAIRS = 5
_FOLDS = 5
"""Parts of the drawn orders, each corrected by a model that is fitted to the others."""
_MODELLED_PAIRS = 1000
"""Orders, with their reverses, over which the values of a model are averaged."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ShapleyValues:
    """Average contribution of each member of a set."""

    per_example: Float[Tensor, "member example"]
    """By member, in the order of the game, and example."""
    sampling_error: Float[Tensor, " member"]
    """Standard error of the mean over examples because only some orders were drawn; 0 if exact."""
    n_orders: int | None
    """Orders drawn; None if all subsets were measured."""


def exact_values(game: SetGame) -> ShapleyValues:
    """Values from all subsets."""
    n = game.n_members
    values = _interaction_indices(game, [(member,) for member in range(n)])
    return ShapleyValues(per_example=values, sampling_error=torch.zeros(n), n_orders=None)


def _interaction_indices(
    game: SetGame, groups: Sequence[tuple[int, ...]]
) -> Float[Tensor, "group example"]:
    """Shapley interaction index of each group of members; that of one member is its value."""
    n, effects = game.n_members, game.every_effect().double()
    # The number of a coalition has a bit for each member.
    numbers = torch.arange(2**n)
    sizes = torch.stack([numbers >> member & 1 for member in range(n)]).sum(0)
    rows = []
    for group in groups:
        rest = numbers[(numbers & sum(1 << member for member in group)) == 0]
        # How often the group joins a coalition of each size, as one, among all orders.
        n_others = n - len(group)
        weights = [1 / ((n_others + 1) * comb(n_others, size)) for size in range(n_others + 1)]
        changes = torch.zeros(len(rest), effects.shape[1], dtype=effects.dtype)
        for size in range(len(group) + 1):
            for joined in combinations(group, size):
                sign = (-1) ** (len(group) - size)
                changes += sign * effects[rest | sum(1 << member for member in joined)]
        rows.append(torch.tensor(weights, dtype=effects.dtype)[sizes[rest]] @ changes)
    return torch.stack(rows).float()


def sampled_values(game: SetGame, *, max_sets: int, seed: int) -> ShapleyValues:
    """Values from drawn orders, each along with its reverse (antithetic; Mitchell et al., 2022).

    At least two such pairs are drawn. An order needs n - 1 subsets for n members. Where the metric
    has a linearization, an additive model of its quantity, such as the log-odds, is a control
    variate: the values are those of the model, averaged over thousands of orders, plus the mean
    difference between measured and modelled contributions in the drawn orders. A model is fitted to
    other orders than those that correct it, so the values are unbiased even if it is bad, and it is
    used only where it lowers the variance.
    """
    n = game.n_members
    n_pairs = _pairs_of_orders(n, max_sets)
    generator = torch.Generator().manual_seed(seed)
    orders = _with_reverses(n, n_pairs, generator)
    # Measured together, subsets share what is below the layer in which they part.
    sizes = range(n + 1)
    prefixes = [tuple(sorted(order[:size])) for order in orders.tolist() for size in sizes]
    effects = game.effects(prefixes, "orders").double()
    effects = rearrange(effects, "(order size) example -> order size example", size=n + 1)
    mean, means = _gains_by_member(orders, effects.diff(dim=1))
    variance = means.var(0) / n_pairs
    data, curves = game.engine, None
    if n_pairs >= _FEWEST_PAIRS:
        curves = ExampleCurves.for_metric(data.metric, data.clean, data.pairs.weights)
    if curves is not None:
        many = _with_reverses(n, _MODELLED_PAIRS, generator)
        by_model = _values_with_control_variate(curves, orders, effects, many)
        if by_model[1].max() < variance.max():
            mean, variance = by_model
    values, error = mean.float(), variance.sqrt().float()
    return ShapleyValues(per_example=values, sampling_error=error, n_orders=len(orders))


def n_subsets_of_orders(n_members: int, max_sets: int) -> int:
    """Subsets that `sampled_values` takes at most."""
    return 2 * _pairs_of_orders(n_members, max_sets) * (n_members - 1) + 1


def _pairs_of_orders(n: int, max_sets: int) -> int:
    """Orders, each with its reverse, whose subsets are no more; the whole set is one of all."""
    return max(2, (max_sets - 1) // (2 * (n - 1)))


def _values_with_control_variate(
    curves: ExampleCurves,
    orders: Int[Tensor, "order member"],
    effects: Float[Tensor, "order size example"],
    many: Int[Tensor, "modelled member"],
) -> tuple[Float[Tensor, "member example"], Float[Tensor, " member"]]:
    """Values with additive models as control variates, and their sampling variance."""
    n_pairs = len(orders) // 2
    fold = torch.arange(len(orders)) // 2 % _FOLDS
    # The coalitions of 0 to all members that each order builds up.
    coalitions = orders.argsort(1)[:, None] < torch.arange(orders.shape[1] + 1)[:, None]
    total = torch.zeros(orders.shape[1], effects.shape[2], dtype=torch.float64)
    residuals = torch.zeros(n_pairs, orders.shape[1], dtype=torch.float64)
    modelled = torch.zeros(len(many) // 2, orders.shape[1], dtype=torch.float64)
    for number in range(_FOLDS):
        rest, own = fold != number, fold == number
        model = fit_additive_model(
            curves, coalitions[rest].flatten(0, 1), effects[rest].flatten(0, 1)
        )
        share = own.sum().item() / len(orders)
        for examples, gains in model.gains_in_orders(many):
            total[:, examples] += share * gains.mean(0)
            modelled += share * _average_with_reverse(gains.sum(2)) / effects.shape[2]
        expected = model.effects(coalitions[own].flatten(0, 1)).reshape(effects[own].shape)
        missed, means = _gains_by_member(orders[own], (effects[own] - expected).diff(dim=1))
        total += share * missed
        residuals[own[::2]] = means
    return total, residuals.var(0) / n_pairs + modelled.var(0) / len(modelled)


def _with_reverses(n: int, n_pairs: int, generator: torch.Generator) -> Int[Tensor, "order member"]:
    """Drawn orders, each followed by its reverse."""
    drawn = [torch.randperm(n, generator=generator) for _ in range(n_pairs)]
    return torch.stack([each for order in drawn for each in (order, order.flip(0))])


def _gains_by_member(
    orders: Int[Tensor, "order member"], gains: Float[Tensor, "order member example"]
) -> tuple[Float[Tensor, "member example"], Float[Tensor, "pair member"]]:
    """Gains by place in an order as the mean of each member, and its mean in each pair."""
    of_members = gains.gather(1, orders.argsort(1)[..., None].expand_as(gains))
    return of_members.mean(0), _average_with_reverse(of_members.mean(2))


def _average_with_reverse(values: Float[Tensor, "order member"]) -> Float[Tensor, "pair member"]:
    """Means over an order and its reverse."""
    return reduce(values, "(pair order) member -> pair member", "mean", order=2)


_PENALTY = 1e-2
"""On squared slopes, for members that hardly ever decide an effect."""
_STEEP_ENOUGH = 1e-4
"""Least weight of a measured effect, where the curve is flat."""
_TOGETHER = 4_000_000
"""Values of prefixes of orders that are computed at a time."""


@dataclass(frozen=True, eq=False)
class AdditiveModel:
    """The quantity of every example, as a sum over members; and its curve to the effect."""

    start: Float[Tensor, " example"]
    """The quantity with no member patched."""
    slopes: Float[Tensor, "member example"]
    """Contribution of each member to it."""
    curves: ExampleCurves

    def effects(
        self, coalitions: Bool[Tensor, "coalition member"]
    ) -> Float[Tensor, "coalition example"]:
        """Effects that the model expects, of coalitions of patched members."""
        return self.curves.effects((self.start + coalitions.double() @ self.slopes).T).T

    def gains_in_orders(
        self, orders: Int[Tensor, "order member"]
    ) -> Iterator[tuple[slice, Float[Tensor, "order member example"]]]:
        """Contribution of each member as it joins in each order, some examples at a time."""
        n_examples, at = len(self.start), orders[..., None]
        together = max(1, _TOGETHER // orders.numel())
        for first in range(0, n_examples, together):
            some = slice(first, min(first + together, n_examples))
            joined = self.slopes[:, some][orders].cumsum(1)
            quantity = torch.cat([torch.zeros_like(joined[:, :1]), joined], 1) + self.start[some]
            effects = self.curves.select(some).effects(quantity.movedim(-1, 0)).movedim(0, -1)
            gains = effects.diff(dim=1)
            yield some, torch.zeros_like(gains).scatter(1, at.expand_as(gains), gains)


def fit_additive_model(
    curves: ExampleCurves,
    coalitions: Bool[Tensor, "coalition member"],
    effects: Float[Tensor, "coalition example"],
) -> AdditiveModel:
    """The model that fits measured effects: least squares in the effect, to first order."""
    quantity = curves.quantity(effects.T)
    # A difference of the quantity counts for what it changes in the effect.
    importance = curves.steepness(quantity).square()
    importance = importance / importance.amax(1, keepdim=True).clamp(min=1e-30) + _STEEP_ENOUGH
    inputs = torch.cat([torch.ones(len(coalitions), 1), coalitions], 1).double()
    penalty = torch.full((inputs.shape[1],), _PENALTY, dtype=torch.float64)
    penalty[0] = 1e-12
    rows = []
    for values, counts in zip(quantity, importance, strict=True):
        weighted = inputs * counts[:, None]
        rows.append(torch.linalg.solve(weighted.T @ inputs + penalty.diag(), weighted.T @ values))
    solution = torch.stack(rows, 1)
    return AdditiveModel(solution[0], solution[1:], curves)


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
    averaged = _interaction_indices(game, pairs) if game.n_members <= MOST_EXACT else None
    return PairInteractions(pairs=pairs, alone=values[0], within=values[1], averaged=averaged)


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
