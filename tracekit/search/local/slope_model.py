"""A model of what sets do, fitted to the gradients that a search takes anyway.

The gradient at a set gives, for every example, the slope of the quantity that is about linear (see
`engine/look_ahead.py`) along each component. At other sets the slopes are predicted by kernel ridge
regression: the fewer components two sets differ in, the more alike their slopes are. From a set
whose gradient is known the quantity at another one follows by the trapezoid rule, and the exact
curve of the metric makes it an effect. So thousands of exchanges are judged without a pass, each on
every example, and the best of them are measured.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.engine.engine import Engine
from tracekit.engine.example_curves import ExampleCurves
from tracekit.engine.look_ahead import Expansion
from tracekit.masks import Mask, from_indices

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

    def __init__(self, engine: Engine, examples: Int[Tensor, " example"]) -> None:
        """Knows no set yet.

        Args:
            engine: What is searched; what it maximises follows from effects alone.
            examples: Numbers of the examples that gradients are taken on.
        """
        curves = ExampleCurves.of(engine)
        self._engine = engine
        self._curves = None if curves is None else curves.some(examples)
        self._numbers: dict[ComponentSet, int] = {}
        self._sets = torch.zeros(0, engine.n_components)
        self._quantities: list[Float[Tensor, " example"]] = []
        self._slopes: list[Float[Tensor, "example component"]] = []
        self._fit: _Fit | None = None

    def __contains__(self, members: object) -> bool:
        return members in self._numbers

    def add(self, members: ComponentSet, expansion: Expansion) -> None:
        """Learns from the gradient at a set.

        Args:
            members: The set.
            expansion: There, on these examples.
        """
        if members in self:
            return
        self._numbers[members] = len(self._quantities)
        self._sets = torch.cat([self._sets, self._row(members)[None]])
        self._quantities.append(expansion.quantity)
        self._slopes.append(expansion.slopes)
        self._fit = None

    def objective(self, members: ComponentSet) -> float:
        """What the search maximises, at a set that it learned from, on these examples."""
        quantity = self._quantities[self._numbers[members]]
        return self._objectives(quantity[None]).item()

    def promises(self, rows: Rows, near: Mask) -> Float[Tensor, " row"]:
        """What the search would measure of sets, on these examples.

        Args:
            rows: The sets.
            near: A set that they are neighbours of, as a row. All predictions start from the known
                set that is nearest to it, so that they can be compared.
        """
        if self._fit is None:
            self._fit = _Fit(self._sets, torch.stack(self._slopes))
        known = int((self._sets - near).abs().sum(1).argmin())
        changes = self._fit.changes(self._sets[known], self._slopes[known], rows)
        return self._objectives(self._quantities[known] + changes)

    def resized(self, members: ComponentSet, size: int) -> ComponentSet:
        """A set that components joined or left, each time those that promise most.

        Args:
            members: The set.
            size: How many components there shall be.
        """
        row = self._row(members)
        while (more := size - int(row.sum())) != 0:
            free = (row == (0 if more > 0 else 1)).nonzero()[:, 0]
            promises = self.promises(_flipped(row, free), row)
            best = promises.topk(max(1, abs(more) // _STEPS)).indices
            row = row.index_fill(0, free[best], float(more > 0))
        return _members(row)

    def climbed(self, members: ComponentSet) -> tuple[ComponentSet, float]:
        """A set after exchanges of one component each that promise more and more.

        Args:
            members: The set.

        Returns:
            The set, and what it promises.
        """
        row = self._row(members)
        promise = self.promises(row[None], row).item()
        for _ in range(_EXCHANGES):
            leaving, joining = (
                self._screened(row, (row == held).nonzero()[:, 0]) for held in (1, 0)
            )
            if not len(leaving) or not len(joining):
                break
            rows = _flipped(row, joining)[:, None] - _unit(row, leaving)
            promises = self.promises(torch.cat([row[None], rows.flatten(0, 1)]), row)
            best = int(promises[1:].argmax())
            if not promises[1 + best] > promises[0]:
                break
            promise, row = promises[1 + best].item(), rows.flatten(0, 1)[best]
        return _members(row), promise

    def _screened(self, row: Mask, components: Int[Tensor, " some"]) -> Int[Tensor, " fewer"]:
        """Those of the components that promise most when they alone join or leave."""
        if len(components) <= _SCREENED:
            return components
        return components[self.promises(_flipped(row, components), row).topk(_SCREENED).indices]

    def _objectives(self, quantity: Float[Tensor, "row example"]) -> Float[Tensor, " row"]:
        curves = self._curves
        effects = quantity if curves is None else curves.effects(quantity.T).T
        # A prediction that is no number is none at all.
        return self._engine.scores_of(effects.float()).mean(-1).nan_to_num(nan=-torch.inf)

    def _row(self, members: ComponentSet) -> Mask:
        return from_indices(members, self._engine.n_components).float()


class _Fit:
    """Kernel ridge regression of slopes on sets."""

    def __init__(self, sets: Rows, slopes: Float[Tensor, "set example component"]) -> None:
        self._sets = sets
        self._mean = slopes.mean(0)
        gram = self._likeness(sets) + _RIDGE * torch.eye(len(sets))
        centred = (slopes - self._mean).flatten(1)
        solved = torch.linalg.solve(gram.double(), centred.double()).float()
        # By component, which predictions run through.
        self._solved = solved.unflatten(1, slopes.shape[1:]).permute(2, 0, 1).contiguous()

    def _likeness(self, rows: Rows) -> Float[Tensor, "row set"]:
        sets = self._sets
        n_different = rows.sum(1)[:, None] + sets.sum(1) - 2 * rows @ sets.T
        return (-n_different / (_REACH * sets.shape[1])).exp()

    def changes(
        self, start: Mask, slopes: Float[Tensor, "example component"], rows: Rows
    ) -> Float[Tensor, "row example"]:
        """What the quantity changes by from one set to others, by the trapezoid rule.

        Args:
            start: The one.
            slopes: At it.
            rows: The others.
        """
        steps, likeness = rows - start, self._likeness(rows)
        changes = steps @ ((slopes + self._mean) / 2).T
        for component in steps.any(0).nonzero()[:, 0].tolist():
            moved = steps[:, component].nonzero()[:, 0]
            deviations = likeness[moved] @ self._solved[component]
            changes[moved] += steps[moved, component, None] * deviations / 2
        return changes


def _unit(row: Mask, components: Int[Tensor, " some"]) -> Rows:
    """A row for each component, which is 1 there and 0 elsewhere."""
    return torch.eye(len(row))[components]


def _flipped(row: Mask, components: Int[Tensor, " some"]) -> Rows:
    """A set with each of some components that joined, or left, alone."""
    return (row - _unit(row, components)).abs()


def _members(row: Mask) -> ComponentSet:
    return tuple(row.nonzero()[:, 0].tolist())
