"""Shrunken top-k: the components with the largest effects alone, as far as examples can tell.

Top-k takes the largest mean effects at hand, and many of them are large by chance. Here each mean
is shrunken to what all components have in common (see `search/shrinkage.py`), which ranks better
for examples that had no part in the ranking. Beyond a few hundred components gradients along the
line from the empty to the full mask stand for single effects, example by example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit._util.options import check_at_least, check_types
from tracekit.engine.cost import Cost
from tracekit.engine.gradients import expand
from tracekit.search.base import Goal, Planned, Selection, require_finite_gradient, require_gradient
from tracekit.search.baselines.attribution import weights_along_line
from tracekit.search.prefix import best_prefixes, planned_prefixes
from tracekit.search.shrinkage import shrunken_effects, shrunken_effects_by_slopes
from tracekit.search.targets import Target

MOST_ALONE = 384
"""Beyond this many components gradients rank them, not their single effects."""
_ENTRIES = 2**24
"""Slopes that are computed together; bounds memory."""


@dataclass(frozen=True, kw_only=True)
class ShrunkenTopK:
    """The k components with the largest single effects, shrunken to what all have in common."""

    name: ClassVar[str] = "shrunken-top-k"
    title: ClassVar[str] = "shrunken top-k"
    records_every_size: ClassVar[bool] = True
    by_gradients: bool | None = None
    """Whether gradients stand for single effects. None: beyond 384 components."""
    steps: int = 10
    """Intervals of the line from the empty to the full mask, where gradients are taken: steps + 1
    of them, the two ends counting half."""

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "steps")

    def planned(self, n_components: int, goal: Goal) -> Planned:
        """A pass for each component or two for each gradient, and one for each budget."""
        points = self.steps + 1
        takes_gradients = self._takes_gradients(n_components)
        cost = Cost(points, points) if takes_gradients else Cost(n_components)
        return planned_prefixes(n_components, goal, cost, is_exact=True)

    def search(self, engine: Target, goal: Goal, seed: int) -> list[Selection]:
        """Ranks all components, then measures the union of the best at each budget."""
        goal.require(self.name)
        if self._takes_gradients(engine.n_components):
            scores = shrunken_effects_by_slopes(engine, self._slopes(engine))
        else:
            sets = [(i,) for i in range(engine.n_components)]
            scores = shrunken_effects(engine, engine.set_effects(sets, self.title))
        return best_prefixes(engine, goal, scores)

    def _takes_gradients(self, n_components: int) -> bool:
        return n_components > MOST_ALONE if self.by_gradients is None else self.by_gradients

    def _slopes(self, engine: Target) -> Float[Tensor, "component example"]:
        """Mean slopes of every example along the line."""
        require_gradient(engine.metric, self.name)
        n_examples, n_components = engine.n_examples, engine.n_components
        slopes = torch.zeros(n_examples, n_components)
        for examples in torch.arange(n_examples).split(max(1, _ENTRIES // n_components)):
            for level, weight in weights_along_line(self.steps).items():
                masks = torch.full((len(examples), n_components), level)
                slopes[examples] += weight * expand(engine.data, masks, examples).slopes
        require_finite_gradient(slopes, engine.metric)
        return slopes.T
