"""Subsets of a set as a cooperative game: its members join, and the value is their effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.components.members import ComponentsLike, members_of
from tracekit.engine.engine import Engine
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
