"""A model of what sets do, fitted to the gradients that a search takes anyway.

The gradient at a set gives, for every example, the slope of the quantity that is about linear (see
`engine/look_ahead.py`) along each component. At other sets the slopes are predicted by kernel ridge
regression: the fewer components two sets differ in, the more alike their slopes are. From a set
whose gradient is known the quantity at another one follows by the trapezoid rule, and the exact
curve of the metric makes it an effect. So thousands of sets are judged without a pass, each on
every example, and the best of them are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.engine.engine import Engine
from tracekit.engine.example_curves import ExampleCurves
from tracekit.engine.look_ahead import Expansion
from tracekit.masks import from_indices

Rows = Float[Tensor, "row component"]
"""Sets as rows of 0 and 1."""

_REACH = 0.25
"""Share of all components that two sets differ in when their slopes are alike by 1/e."""
_RIDGE = 1e-2
_ROUNDS = 3
"""How often the set for an example follows the slopes at itself."""


class SlopeModel:
    """Slopes of the quantity on some examples, at any set."""

    def __init__(self, engine: Engine, examples: Int[Tensor, " example"]) -> None:
        """Knows no set yet.

        Args:
            engine: What is searched.
            examples: Numbers of the examples that gradients were taken on.
        """
        curves = ExampleCurves.of(engine)
        self.n_components = engine.n_components
        """Of the search."""
        self._engine = engine
        self._examples = examples
        self._curves = None if curves is None else curves.some(examples)
        self._numbers: dict[ComponentSet, int] = {}
        self._quantities: list[Float[Tensor, " example"]] = []
        self._slopes: list[Float[Tensor, "component example"]] = []
        self._fit: _Fit | None = None

    def __contains__(self, members: object) -> bool:
        return members in self._numbers

    def add(self, members: ComponentSet, expansion: Expansion) -> None:
        """Learns from the gradient at a set.

        Args:
            members: The set.
            expansion: On these examples, or more.
        """
        if members in self:
            return
        rows = torch.full((self._engine.n_examples,), -1)
        rows[expansion.examples] = torch.arange(len(expansion.examples))
        rows = rows[self._examples]
        self._learn(members, expansion.quantity[rows], expansion.slopes[rows].T.contiguous())

    def _learn(
        self,
        members: ComponentSet,
        quantity: Float[Tensor, " example"],
        slopes: Float[Tensor, "component example"],
    ) -> None:
        self._numbers[members] = len(self._quantities)
        self._quantities.append(quantity)
        self._slopes.append(slopes)
        self._fit = None

    def only(self, sets: Iterable[ComponentSet]) -> SlopeModel:
        """A model that learned from some of these sets and no others.

        Args:
            sets: Those.
        """
        model = SlopeModel(self._engine, self._examples)
        for members in sets:
            number = self._numbers[members]
            model._learn(members, self._quantities[number], self._slopes[number])
        return model

    def objectives(self, members: ComponentSet, rows: Rows) -> Float[Tensor, " row"]:
        """What the search would measure of sets, on these examples.

        Args:
            members: A set that it learned from, to start from.
            rows: The sets.
        """
        number = self._numbers[members]
        quantity = self._quantities[number][:, None] + self._fitted().changes(
            self._row(members), self._slopes[number], rows
        )
        effects = quantity if self._curves is None else self._curves.effects(quantity)
        # A prediction that is no number is none at all.
        return self._engine.objective_of(effects).float().nan_to_num(nan=-float("inf"))

    def sets_for_examples(self, members: ComponentSet, size: int) -> Rows:
        """The set of a size that promises most for each example alone, without repetitions.

        Args:
            members: A set that it learned from, to start from.
            size: How many components there shall be.
        """
        start, fit = self._slopes[self._numbers[members]].T, self._fitted()
        rows = _largest(start + fit.mean.T, size)
        for _ in range(_ROUNDS):
            rows = _largest(start + fit.own_slopes(rows), size)
        return rows.unique(dim=0)

    def best(
        self,
        members: ComponentSet,
        rows: Rows,
        count: int,
        is_known: Callable[[ComponentSet], bool],
    ) -> list[ComponentSet]:
        """The sets that promise most, the best first.

        Args:
            members: A set that it learned from, to start from.
            rows: The sets to choose from.
            count: How many.
            is_known: Whether a set is of no interest, as it was measured.
        """
        chosen: list[ComponentSet] = []
        for row in self.objectives(members, rows).argsort(descending=True, stable=True):
            if len(chosen) >= count:
                break
            candidate = _members(rows[row])
            if not is_known(candidate):
                chosen.append(candidate)
        return chosen

    def climb(
        self, members: ComponentSet, start: ComponentSet, steps: int
    ) -> Iterator[ComponentSet]:
        """Sets that promise more and more, each with one component of the last one exchanged.

        Args:
            members: A set that it learned from.
            start: The set to start at.
            steps: How many at most.
        """
        current = self._row(start)
        (promised,) = self.objectives(members, current[None]).tolist()
        for _ in range(steps):
            rows = exchanges(current)
            if not len(rows):
                return
            promises = self.objectives(members, rows)
            best = int(promises.argmax())
            if promises[best] <= promised:
                return
            promised, current = promises[best].item(), rows[best]
            yield _members(current)

    def _fitted(self) -> _Fit:
        if self._fit is None:
            sets = torch.stack([self._row(each) for each in self._numbers])
            self._fit = _Fit(sets, torch.stack(self._slopes, 1))
        return self._fit

    def _row(self, members: ComponentSet) -> Float[Tensor, " component"]:
        return from_indices(members, self.n_components).float()


class _Fit:
    """Kernel ridge regression of slopes on sets."""

    def __init__(
        self, sets: Float[Tensor, "set component"], slopes: Float[Tensor, "component set example"]
    ) -> None:
        self._sets = sets
        self.mean = slopes.mean(1)
        """Over all sets, of every component on every example."""
        n_components, n_sets, n_examples = slopes.shape
        centred = (slopes - self.mean[:, None]).transpose(0, 1).reshape(n_sets, -1)
        gram = self._kernel(sets) + _RIDGE * torch.eye(n_sets)
        solved = torch.linalg.solve(gram, centred)
        self._solved = solved.reshape(n_sets, n_components, n_examples).transpose(0, 1)

    def _kernel(self, rows: Rows) -> Float[Tensor, "row set"]:
        sets = self._sets
        differing = rows.sum(1)[:, None] + sets.sum(1) - 2 * rows @ sets.T
        return (-differing / (_REACH * sets.shape[1])).exp()

    def own_slopes(self, rows: Rows) -> Float[Tensor, "row component"]:
        """Slopes of an example at its own set.

        Args:
            rows: A set for every example.
        """
        alike = self._kernel(rows)
        return self.mean.T + torch.einsum("es,cse->ec", alike, self._solved)

    def changes(
        self,
        row: Float[Tensor, " component"],
        slopes: Float[Tensor, "component example"],
        rows: Rows,
    ) -> Float[Tensor, "example row"]:
        """What the quantity changes by from one set to others.

        Args:
            row: The one.
            slopes: At it.
            rows: The others.
        """
        alike, steps = self._kernel(rows), rows - row
        changes = torch.zeros(len(rows), slopes.shape[1])
        for component in steps.any(0).nonzero()[:, 0].tolist():
            moved = steps[:, component].nonzero()[:, 0]
            there = self.mean[component] + alike[moved] @ self._solved[component]
            mean = (slopes[component] + there) / 2
            changes[moved] += steps[moved, component, None] * mean
        return changes.T


def exchanges(row: Float[Tensor, " component"]) -> Rows:
    """A set with one component exchanged, in every way."""
    eye = torch.eye(len(row))
    return (row + eye[row == 0][:, None] - eye[row == 1]).flatten(0, 1)


def _members(row: Float[Tensor, " component"]) -> ComponentSet:
    return tuple(row.nonzero()[:, 0].tolist())


def _largest(values: Float[Tensor, "row component"], size: int) -> Rows:
    """The components with the largest values of each row, as sets."""
    chosen = values.topk(size, dim=1).indices
    return torch.zeros_like(values).scatter(1, chosen, 1.0)
