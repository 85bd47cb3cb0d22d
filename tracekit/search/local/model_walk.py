"""A walk up and down through sizes along a model of the slopes.

At each size the model starts from the best set of this size and from that of the size before, and
exchanges components as long as that promises more. The gradient at what it arrives at tells what
the set really does, and the model learns from it. So every pass serves all sizes: the model knows
more with each, and a set is measured only where its gradient says that it is the best of its size.

Where a few examples make up the effects, the gradient reads only these after the first round: those
that carry the best set of the size, and those that carry the new one by what the model predicts. Of
the others the model goes on predicting.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracekit._util import progress as _progress
from tracekit.components import ComponentSet
from tracekit.search.local.best_sets import BestSets, relative_gains
from tracekit.search.local.plan import JOINING
from tracekit.search.local.slope_model import SlopeModel

_LEARNED = 2
"""Sets of a size whose gradients are taken in a round, at most."""
_GAIN = 1e-3
"""Mean relative gain of a round that is worth another."""
_IDLE = 2
"""Rounds that gain less than this in turn, after which the walk ends: one up and one down."""


class ModelWalk:
    """Walks through sizes, each round in the other direction."""

    def __init__(self, best_sets: BestSets, sizes: Sequence[int]) -> None:
        """Knows nothing yet.

        Args:
            best_sets: The best sets that were measured, which the walk starts from and adds to.
            sizes: To visit, ascending.
        """
        self._best_sets = best_sets
        self._sizes = sizes
        self._examples = best_sets.measurements.examples_of_model
        self._model = SlopeModel(best_sets.engine, self._examples)
        self._upwards = self._is_first_round = True
        self._learn(())

    def go(
        self, target: float | None, *, passes: float = float("inf"), rounds: int | None = None
    ) -> None:
        """Rounds, up and down in turn, until two in turn gain little.

        Args:
            target: Effect beyond which larger sets are of no interest.
            passes: Passes that a new round may begin within.
            rounds: How many at most.

        Raises:
            LimitReachedError: There is no room for more.
        """
        measurements = self._best_sets.measurements
        end, n_idle = measurements.planned + passes, 0
        while rounds != 0 and n_idle < _IDLE and measurements.planned < end:
            before = self._best_sets.effects_at(self._sizes)
            for size in self._sizes if self._upwards else reversed(self._sizes):
                if size <= self._best_sets.largest:
                    self._visit(size)
            self._best_sets.stop_beyond(target)
            gains = relative_gains(before, self._best_sets.effects_at(self._sizes))
            n_idle = n_idle + 1 if gains.mean() < _GAIN else 0
            self._upwards, self._is_first_round = not self._upwards, False
            rounds = None if rounds is None else rounds - 1

    def fill(self, sizes: Sequence[int]) -> None:
        """Measures one set of each size of which none was, as the model makes it from those near.

        Args:
            sizes: The sizes.

        Raises:
            LimitReachedError: There is no room for all; those that could be measured are kept.
        """
        best_sets, model = self._best_sets, self._model
        missing = [size for size in sizes if size not in best_sets.sizes]
        made = []
        for size in missing:
            near = [max(own for own in (0, *best_sets.sizes) if own < size)]
            near += [own for own in best_sets.sizes if own > size][:1]
            climbed = [model.climbed(model.resized(best_sets.best(own), size)) for own in near]
            made.append(max(climbed, key=lambda each: each[1])[0])
        best_sets.measure(made, "sizes between")

    def go_like_greedy(self, passes: float) -> None:
        """Goes up from the best single component; each time the one joins that then does most.

        The rounds go on from the best set of a size, this from its own, which may come to sets that
        lie far from those.

        Args:
            passes: Passes that it may take at most.

        Raises:
            LimitReachedError: There is no room for it.
        """
        best_sets, measurements = self._best_sets, self._best_sets.measurements
        members: ComponentSet = best_sets.best(1) if 1 in best_sets.sizes else ()
        end = measurements.planned + passes
        while len(members) < best_sets.largest and measurements.planned + JOINING <= end:
            size = len(members) + 1
            sets = self._model.extended(members, JOINING)
            best_sets.measure(sets, f"greedy to {size}")
            members = measurements.ranked(sets, best_sets.best(size))[0]

    def _visit(self, size: int) -> None:
        """Goes on from the best set of a size, and from that of the size before."""
        best_sets, model = self._best_sets, self._model
        starts: list[ComponentSet] = []
        own = best_sets.best(size) if size in best_sets.sizes else None
        if own is not None:
            self._learn(own, own)
            starts.append(own)
        visited = [0, *(each for each in self._sizes if each in best_sets.sizes)]
        near = [each for each in visited if (each < size if self._upwards else each > size)]
        if near:
            before = best_sets.best(max(near) if self._upwards else min(near))
            starts.append(model.resized(before, size))
        promises = dict(model.climbed(start) for start in starts)
        new = [each for each in promises if each not in model]
        for members in sorted(new, key=lambda each: -promises[each])[:_LEARNED]:
            self._learn(members, own)
            if own is None or model.objective(members) > model.objective(own):
                best_sets.measure([members], f"sets of {size}")
                own = best_sets.best(size)
                self._learn(own, own)
        if own is not None:
            _progress.current().note(size=size, effect=best_sets.effect(size))

    def _learn(self, members: ComponentSet, own: ComponentSet | None = None) -> None:
        """Takes the gradient at a set.

        Args:
            members: The set.
            own: The best set of its size, if there is one; then the examples will do that carry the
                two.
        """
        model, best_sets, examples = self._model, self._best_sets, self._examples
        if members in model:
            return
        seen = None
        may_skip = best_sets.measurements.may_skip_examples
        if may_skip and own is not None and not self._is_first_round:
            seen = model.carriers([members, own])
        if seen is None:
            model.add(members, best_sets.expand(members, examples))
            return
        model.add(members, best_sets.expand(members, examples[seen]), seen)
        if len(examples) == best_sets.engine.n_examples:
            best_sets.measurements.predict_from(members, model.expansion(members))
