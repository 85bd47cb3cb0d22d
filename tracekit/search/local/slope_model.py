"""A model of what sets do, fitted to the gradients that a search takes anyway.

The gradient at a set gives, for every example, the slope of the quantity that is about linear (see
`engine/gradients.py`) along each component. At other sets the slopes are predicted by kernel ridge
regression: the fewer components two sets differ in, the more alike their slopes are. From a set
whose gradient is known the quantity at another one follows by the trapezoid rule, and the exact
curve of the metric makes it an effect. So hundreds of exchanges are judged without a pass, each on
every example, and the best of them are measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices
from tracekit.engine.example_curves import ExampleCurves
from tracekit.engine.gradients import Expansion
from tracekit.search.carriers import few_carriers
from tracekit.search.local.older_face import scores_of
from tracekit.search.targets import Target

Rows = Float[Tensor, "row component"]
"""Sets as rows of 0 and 1."""

_REACH = 0.25
"""Share of all components that two sets differ in when their slopes are alike by 1/e."""
_RIDGE = 1e-2
"""Added to the likeness of a set to itself."""
_SCREENED = 16
"""Components on either side that exchanges are made of: those that promise most by themselves."""
_EXCHANGES = 8
"""Exchanges one after the other, at most."""
_STEPS = 8
"""In each step to another size an eighth of the components that are left to it join or leave."""


class SlopeModel:
    """Slopes of the quantity on some examples, at any set."""

    def __init__(self, engine: Target, examples: Int[Tensor, " example"]) -> None:
        """Knows no set yet.

        Args:
            engine: What is searched; what it maximises follows from effects alone.
            examples: Numbers of the examples that gradients are taken on.
        """
        curves = ExampleCurves.of(engine.data)
        self._engine = engine
        self._curves = None if curves is None else curves.some(examples)
        self._numbers: dict[ComponentSet, int] = {}
        self._sets = torch.zeros(0, engine.n_components)
        self._quantities: list[Float[Tensor, " example"]] = []
        self._slopes: list[Float[Tensor, "example component"]] = []
        self._fit: _Fit | None = None

    def __contains__(self, members: object) -> bool:
        return members in self._numbers

    def add(
        self,
        members: ComponentSet,
        expansion: Expansion,
        seen: Int[Tensor, " row"] | None = None,
    ) -> None:
        """Learns from the gradient at a set.

        Args:
            members: The set.
            expansion: There, on the examples that were seen.
            seen: Which of the examples these are; all by default. Of the others the model keeps
                what it predicts, which leaves its predictions about as they were.
        """
        if members in self:
            return
        if seen is not None:
            predicted = self.expansion(members)
            expansion = Expansion(
                predicted.quantity.index_copy(
                    0, seen, expansion.quantity.to(predicted.quantity.dtype)
                ),
                predicted.slopes.index_copy(0, seen, expansion.slopes),
            )
        self._numbers[members] = len(self._quantities)
        self._sets = torch.cat([self._sets, self._row(members)[None]])
        self._quantities.append(expansion.quantity)
        self._slopes.append(expansion.slopes)
        self._fit = None

    def expansion(self, members: ComponentSet) -> Expansion:
        """What the model knows of a set on every example, or predicts of one that it does not."""
        if members in self:
            slopes = self._slopes[self._numbers[members]]
        else:
            slopes = self._fitted().slopes(self._row(members))
        return Expansion(self._quantity(members), slopes)

    def carriers(self, sets: Sequence[ComponentSet]) -> Int[Tensor, " row"] | None:
        """The examples that make up most of what sets do, as far as it can tell; None if many.

        Args:
            sets: The sets.
        """
        quantities = torch.stack([self._quantity(members) for members in sets])
        return few_carriers(self._scores(quantities))

    def objective(self, members: ComponentSet) -> float:
        """What the search maximises, at a set that it learned from, on these examples."""
        quantity = self._quantities[self._numbers[members]]
        return self._objectives(quantity[None]).item()

    def promises(self, row: Mask, flips: Int[Tensor, "row flip"]) -> Float[Tensor, " row"]:
        """What the search would measure of the neighbours of a set, on these examples.

        All predictions start from the set that is nearest to it of those that were learned from, so
        that they can be compared.

        Args:
            row: The set.
            flips: Components that join or leave, for each neighbour; the same number for all.
        """
        start = self._nearest(row)
        changes = self._fitted().changes(self._sets[start], self._slopes[start], row, flips)
        return self._objectives(self._quantities[start] + changes)

    def resized(self, members: ComponentSet, size: int) -> ComponentSet:
        """A set that components joined or left, each time those that promise most.

        Args:
            members: The set.
            size: How many components there shall be.
        """
        row = self._row(members)
        while (more := size - int(row.sum())) != 0:
            free = (row == (0 if more > 0 else 1)).nonzero()
            best = self.promises(row, free).topk(max(1, abs(more) // _STEPS)).indices
            row = row.index_fill(0, free[best, 0], float(more > 0))
        return _members(row)

    def extended(self, members: ComponentSet, count: int) -> list[ComponentSet]:
        """A set with one component more, for each of those that promise most.

        Args:
            members: The set.
            count: How many sets at most.
        """
        row = self._row(members)
        free = (row == 0).nonzero()
        best = self.promises(row, free).topk(min(count, len(free))).indices
        return [_members(row.index_fill(0, joining, 1.0)) for joining in free[best]]

    def climbed(self, members: ComponentSet) -> tuple[ComponentSet, float]:
        """A set after exchanges of one component each that promise more and more.

        Args:
            members: The set.

        Returns:
            The set, and what it promises.
        """
        row = self._row(members)
        promise = self._promise(row)
        for _ in range(_EXCHANGES):
            leaving, joining = self._screened(row, held=1), self._screened(row, held=0)
            if not len(leaving) or not len(joining):
                break
            flips = torch.cartesian_prod(leaving, joining)
            promises = self.promises(row, flips)
            best = int(promises.argmax())
            # The nearest set may be another one than before.
            if not promises[best] > self._promise(row):
                break
            promise = promises[best].item()
            row = row.index_fill(0, flips[best, :1], 0.0).index_fill(0, flips[best, 1:], 1.0)
        return _members(row), promise

    def _quantity(self, members: ComponentSet) -> Float[Tensor, " example"]:
        """Known or predicted."""
        if members in self:
            return self._quantities[self._numbers[members]]
        row, none = self._row(members), torch.zeros(1, 0, dtype=torch.long)
        start = self._nearest(row)
        changes = self._fitted().changes(self._sets[start], self._slopes[start], row, none)
        return self._quantities[start] + changes[0]

    def _fitted(self) -> _Fit:
        if self._fit is None:
            self._fit = _Fit(self._sets, torch.stack(self._slopes))
        return self._fit

    def _nearest(self, row: Mask) -> int:
        """Number of the set that differs in the fewest components of those it learned from."""
        return int((self._sets - row).abs().sum(1).argmin())

    def _promise(self, row: Mask) -> float:
        """What the search would measure of a set."""
        return self.promises(row, torch.zeros(1, 0, dtype=torch.long)).item()

    def _screened(self, row: Mask, *, held: int) -> Int[Tensor, " some"]:
        """Components of a set, or outside it, that promise most when they alone leave or join."""
        components = (row == held).nonzero()
        if len(components) > _SCREENED:
            components = components[self.promises(row, components).topk(_SCREENED).indices]
        return components[:, 0]

    def _objectives(self, quantity: Float[Tensor, "row example"]) -> Float[Tensor, " row"]:
        # A prediction that is no number is none at all.
        return self._scores(quantity).mean(-1).nan_to_num(nan=-torch.inf)

    def _scores(self, quantity: Float[Tensor, "row example"]) -> Float[Tensor, "row example"]:
        """What the search maximises the mean of."""
        curves = self._curves
        effects = quantity if curves is None else curves.effects(quantity.T).T
        return scores_of(self._engine, effects.float())

    def _row(self, members: ComponentSet) -> Mask:
        return from_indices(members, self._engine.n_components).float()


class _Fit:
    """Kernel ridge regression of slopes on sets."""

    def __init__(self, sets: Rows, slopes: Float[Tensor, "set example component"]) -> None:
        self._sets = sets
        self._mean = slopes.mean(0)
        gram = self._likeness(sets) + _RIDGE * torch.eye(len(sets))
        inverse = torch.linalg.inv(gram.double()).float()
        # By component, which predictions run through.
        self._solved = torch.einsum("kj,jec->cke", inverse, slopes - self._mean).contiguous()

    def _likeness(self, rows: Rows) -> Float[Tensor, "row set"]:
        sets = self._sets
        n_different = rows.sum(1)[:, None] + sets.sum(1) - 2 * rows @ sets.T
        return (-n_different / (_REACH * sets.shape[1])).exp()

    def slopes(self, row: Mask) -> Float[Tensor, "example component"]:
        """The slopes that are predicted at a set."""
        likeness = self._likeness(row[None])[0]
        return self._mean + torch.einsum("k,cke->ec", likeness, self._solved)

    def changes(
        self,
        start: Mask,
        slopes: Float[Tensor, "example component"],
        row: Mask,
        flips: Int[Tensor, "row flip"],
    ) -> Float[Tensor, "row example"]:
        """What the quantity changes by from a set to the neighbours of another one.

        By the trapezoid rule: half of the slopes at the one, half of those predicted at the
        neighbour.

        Args:
            start: The one.
            slopes: At it.
            row: The other.
            flips: Components that join it or leave it, for each neighbour.
        """
        rows = row.repeat(len(flips), 1).scatter(1, flips, 1 - row[flips])
        likeness, halves = self._likeness(rows), ((slopes + self._mean) / 2).T
        # All neighbours share the steps to the set that they are neighbours of.
        shared = (row - start).nonzero()[:, 0]
        steps = (row - start)[shared]
        towards = torch.einsum("c,cke->ke", steps, self._solved[shared])
        changes = steps @ halves[shared] + likeness @ towards / 2
        for flip in flips.T:
            predicted = self._deviations(likeness, flip) / 2
            changes += (1 - 2 * row[flip])[:, None] * (halves[flip] + predicted)
        return changes

    def _deviations(
        self, likeness: Float[Tensor, "row set"], components: Int[Tensor, " row"]
    ) -> Float[Tensor, "row example"]:
        """By how much slopes differ from their mean, of one component at each of some sets."""
        distinct, rows = components.unique(return_inverse=True)
        if len(distinct) == len(components):
            each = torch.zeros(len(self._solved), likeness.shape[1]).index_copy(
                0, components, likeness
            )
            # All at once: the few that are not asked for cost less than a copy of the others.
            return torch.bmm(each[:, None], self._solved)[components, 0]
        deviations = torch.empty(len(components), self._mean.shape[0])
        for number, component in enumerate(distinct.tolist()):
            is_own = rows == number
            deviations[is_own] = likeness[is_own] @ self._solved[component]
        return deviations


def _members(row: Mask) -> ComponentSet:
    return tuple(row.nonzero()[:, 0].tolist())
