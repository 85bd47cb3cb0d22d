"""Sets for single examples: a local search for each of them, all side by side.

Where effects grow like odds, a few examples carry most of the mean, and a walk along the gradient
of the mean settles early on which ones. A set for one example is found at a fraction of the cost,
as its gradient reads one example and not all. So every example first gets sets of its own: on a
walk up from the empty set, along the gradient at its current set, and on one down from the set of
all components. The third that promises most goes on: up and down through the sizes, where the set
of the next size is extended or reduced and a few exchanges are tried. Then a third of these does,
for longer, and so on. In each pass every example has another mask (`Engine.expand`).

An example promises its own share of the mean effect. These sets are proposals: those that promise
most are measured on all examples, and the search goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.engine.example_curves import ExampleCurves
from tracekit.engine.gradients import Expansion
from tracekit.search.local.measurements import MeasurementCache

_MOST_EXAMPLES = 32
"""Examples that get sets of their own, at most: those whose slopes promise most. The fewer, the
longer each is searched."""
_MOST_ENTRIES = 2**18
"""Entries of the masks of these examples, at a size, at most; bounds memory."""
_MOST_SLOPES = 2**27
"""Slopes of all examples, beyond which no sets are made; bounds memory."""
_PER_EXAMPLE = (48, 1 / 20)
"""Gradients for each of these examples, at most; or so many times the number of components, if that
is more."""
_OF_WALKS = 1 / 3
"""Share of the gradients for the first two walks; the stages after them share the rest."""
_STAGES = 3
_FEWER = 3
"""Each stage has a third of the examples of the one before."""
_SWAPS = 2
"""Exchanges that are tried at every size that a sweep comes to."""
_SWAPPED = 8
"""Components that an exchange may take in, and that it may give away, by their slopes."""
_STEPS_FROM_ALL = 3
"""Steps of the walk from all components to the largest size."""
_MEASURED = 3
"""Sets of a size that are measured on all examples, at most."""
_CLOSE = 0.3
"""Share of the mean effect of the most promising set of a size that the example of another one must
make up for that to be measured, too."""
_CARRIED = 0.5
"""Share of the mean effect of its set that one example carries where the search goes on."""
_WIDEST = 60.0
"""How far the quantity of an example may move, in nats."""
_LEAST_SHARE = 0.1
"""Share of the mean effect that one example must be able to make up, for all this to pay."""

Rows = Int[Tensor, " row"]


def is_small_enough(n_examples: int, n_components: int) -> bool:
    """Whether the slopes of all examples can be held at once."""
    return n_examples * n_components <= _MOST_SLOPES


def can_one_example_matter(curves: ExampleCurves, mean_effect: float) -> bool:
    """Whether one example alone could make up a good part of the mean effect.

    Args:
        curves: Of all examples.
        mean_effect: The best that was measured so far.
    """
    now = curves.linearization.to_linear(curves.clean)
    ends = torch.stack([curves.effects(now + side) for side in (-_WIDEST, _WIDEST)])
    return bool((ends.amax(0) / len(now) >= _LEAST_SHARE * abs(mean_effect)).any())


def promised_shares(
    curves: ExampleCurves, at_empty: Expansion, size: int
) -> Float[Tensor, " example"]:
    """What each example would add to the mean by a set of its own, if slopes stayed as they are.

    Args:
        curves: Of all examples.
        at_empty: The expansion of all examples at the empty set.
        size: Of the sets.
    """
    signs = curves.signs()
    gains = (at_empty.slopes * signs[:, None]).topk(size, dim=1).values.clamp(min=0).sum(1)
    effects = curves.effects(at_empty.quantity + gains * signs)
    return (effects / len(signs)).float().nan_to_num(nan=-torch.inf)


class OwnSets:
    """For each of some examples, the best set of every size that was seen for it alone."""

    def __init__(
        self,
        measurements: MeasurementCache,
        curves: ExampleCurves,
        sizes: Sequence[int],
        passes: float,
    ) -> None:
        """Chooses the examples: those whose slopes at the empty set promise most.

        Args:
            measurements: Takes the gradients.
            curves: Of the metric, for all examples.
            sizes: Of the sets, ascending; below the number of components.
            passes: Passes over all examples that may be spent, about.

        Raises:
            LimitReachedError: There is no room for a gradient of every example.
        """
        engine = measurements.engine
        self._measurements, self._sizes, self._curves = measurements, list(sizes), curves
        self._n_components = n_components = engine.n_components
        # The effect may fall with the quantity; what is followed is what it rises with.
        self._signs = curves.signs()
        n_examples = engine.n_examples
        # A gradient of an example is a pass there and one back.
        n_gradients = int(passes * n_examples / 2)
        n_of_walks = 2 * len(sizes) + _STEPS_FROM_ALL
        count = max(1, int(_OF_WALKS * (n_gradients - n_examples) / n_of_walks))
        fitting = max(1, _MOST_ENTRIES // n_components)
        count = min(_MOST_EXAMPLES, n_examples, count, fitting)
        least, of_components = _PER_EXAMPLE
        per_example = max(least, round(of_components * n_components))
        self._n_affordable = min(n_gradients, n_examples + per_example * count)
        at_empty, self._n_gradients = measurements.expand_at_empty()
        shares = promised_shares(curves, at_empty, self._sizes[-1])
        self.examples = shares.topk(count).indices.sort().values
        """Their numbers."""
        self._at_empty = at_empty.slopes[self.examples] * self._signs[self.examples, None]
        self._quantity = torch.full((len(self._sizes), count), -torch.inf)
        self._masks = torch.zeros(len(self._sizes), count, n_components)
        self._slopes = torch.zeros_like(self._masks)
        self._n_tried = torch.zeros(len(self._sizes), count, dtype=torch.long)

    def walk(self) -> None:
        """Gives every example its first sets, by a walk up and one down.

        Raises:
            LimitReachedError: There is no room for it.
        """
        rows = torch.arange(len(self.examples))
        self._sweep_up(rows, 0)
        self._walk_from_all(rows)

    def improve(self) -> None:
        """Improves the sets of fewer and fewer examples, those that promise most.

        Raises:
            LimitReachedError: There is no room for it.
        """
        left = self._n_affordable - self._n_gradients
        for stage in range(1, _STAGES + 1):
            rows = self._most_promising(max(1, len(self.examples) // _FEWER**stage))
            end, before = self._n_gradients + left // _STAGES, -1
            # A sweep that takes no gradient has nothing left to try.
            while before < self._n_gradients < end:
                before = self._n_gradients
                self._sweep_up(rows, _SWAPS)
                self._sweep_down(rows, _SWAPS)

    def best(self) -> list[ComponentSet]:
        """The set of every size that promises most."""
        return self._some([[row] for row in self._own_shares().argmax(1).tolist()])

    def rivals(self, means: Sequence[float]) -> list[ComponentSet]:
        """The sets next to these, as far as their examples may make up what these do.

        Args:
            means: Mean effects over all examples of the most promising set of each size.
        """
        shares = self._own_shares()
        top = shares.topk(min(_MEASURED, shares.shape[1])).indices.tolist()
        return self._some(
            [
                [row for row in rows if shares[number, row] > _CLOSE * mean]
                for number, (rows, mean) in enumerate(zip(top, means, strict=True))
            ]
        )

    def _some(self, rows: Sequence[Sequence[int]]) -> list[ComponentSet]:
        """Sets of some examples, given the rows for each size."""
        each = ((number, row) for number, of_size in enumerate(rows) for row in of_size)
        return list(dict.fromkeys(_members(self._masks[number, row]) for number, row in each))

    def carry(self, means: Sequence[float]) -> bool:
        """Whether an example carries most of the mean effect of its set, where sets are large.

        Sets of other origin may have larger means at this point: what is made for the example from
        here on has often several times the effect.

        Args:
            means: Mean effect over all examples of the most promising set of each of the larger
                sizes.
        """
        shares = self._own_shares().amax(1).tolist()[-len(means) :]
        return any(share > _CARRIED * mean > 0 for share, mean in zip(shares, means, strict=True))

    # ---- walks ----------------------------------------------------------------------------

    def _sweep_up(self, rows: Rows, n_swaps: int) -> None:
        """Extends the set of every size to the next one, from the empty set."""
        masks, slopes = torch.zeros(len(rows), self._n_components), self._at_empty[rows]
        for number, size in enumerate(self._sizes):
            self._try(number, rows, resized(masks, slopes, size))
            self._swap(number, rows, n_swaps)
            masks, slopes = self._masks[number, rows], self._slopes[number, rows]

    def _sweep_down(self, rows: Rows, n_swaps: int) -> None:
        """Reduces the set of every size to the next smaller one."""
        for number in range(len(self._sizes) - 2, -1, -1):
            masks, slopes = self._masks[number + 1, rows], self._slopes[number + 1, rows]
            self._try(number, rows, resized(masks, slopes, self._sizes[number]))
            self._swap(number, rows, n_swaps)

    def _walk_from_all(self, rows: Rows) -> None:
        """Walks down from the set of all components."""
        masks, last = torch.ones(len(rows), self._n_components), self._sizes[-1]
        for step in range(_STEPS_FROM_ALL):
            _, slopes = self._expand(masks, self.examples[rows])
            # The number that is left falls by the same factor in each step.
            share = (step + 1) / _STEPS_FROM_ALL
            size = round(self._n_components * (last / self._n_components) ** share)
            masks = resized(masks, slopes, size)
        for number in range(len(self._sizes) - 1, -1, -1):
            slopes = self._try(number, rows, masks)
            if number:
                masks = resized(masks, slopes, self._sizes[number - 1])

    # ---- promises -------------------------------------------------------------------------

    def _most_promising(self, count: int) -> Rows:
        """Rows of the examples that promise most, at the size where each does best."""
        shares = self._own_shares()
        relative = shares / shares.amax(1, keepdim=True).clamp(min=torch.finfo().tiny)
        return relative.amax(0).topk(min(count, shares.shape[1])).indices.sort().values

    def _own_shares(self) -> Float[Tensor, "size row"]:
        """What each example adds to the mean by itself, at the best set of each size."""
        return torch.stack([self._shares(quantity) for quantity in self._quantity])

    def _shares(self, quantity: Float[Tensor, " row"]) -> Float[Tensor, " row"]:
        curves = self._curves.some(self.examples)
        effects = curves.effects(quantity * self._signs[self.examples])
        return (effects / len(self._signs)).float().nan_to_num(nan=-torch.inf)

    # ---- steps ----------------------------------------------------------------------------

    def _try(
        self, number: int, rows: Rows, masks: Float[Tensor, "row component"]
    ) -> Float[Tensor, "row component"]:
        """Slopes at sets of a size; those that are better than the present ones are kept."""
        quantity, slopes = self._expand(masks, self.examples[rows])
        is_better = quantity > self._quantity[number, rows]
        better = rows[is_better]
        self._quantity[number, better] = quantity[is_better]
        self._masks[number, better] = masks[is_better]
        self._slopes[number, better] = slopes[is_better]
        self._n_tried[number, better] = 0
        return slopes

    def _swap(self, number: int, rows: Rows, times: int) -> None:
        """Tries the exchange of one component that promises most of those not tried yet."""
        size = self._sizes[number]
        taken, given = min(_SWAPPED, self._n_components - size), min(_SWAPPED, size)
        for _ in range(times):
            rows = rows[self._n_tried[number, rows] < taken * given]
            if not len(rows):
                return
            masks, slopes = self._masks[number, rows], self._slopes[number, rows]
            outside = slopes.masked_fill(masks > 0, -torch.inf).topk(taken, dim=1)
            inside = slopes.masked_fill(masks == 0, torch.inf).topk(given, dim=1, largest=False)
            gains = outside.values[:, :, None] - inside.values[:, None]
            order = gains.flatten(1).argsort(dim=1, descending=True, stable=True)
            pair = order.gather(1, self._n_tried[number, rows][:, None])
            masks = masks.scatter(1, outside.indices.gather(1, pair // given), 1.0)
            masks = masks.scatter(1, inside.indices.gather(1, pair % given), 0.0)
            self._n_tried[number, rows] += 1
            self._try(number, rows, masks)

    def _expand(
        self, masks: Float[Tensor, "row component"], examples: Int[Tensor, " row"]
    ) -> tuple[Float[Tensor, " row"], Float[Tensor, "row component"]]:
        """The quantity that the effect rises with, and its slopes, at a set for each example."""
        expansion, n_new = self._measurements.expand(masks, examples)
        self._n_gradients += n_new
        signs = self._signs[examples]
        return expansion.quantity * signs, expansion.slopes * signs[:, None]


def resized(
    masks: Float[Tensor, "row component"], slopes: Float[Tensor, "row component"], size: int
) -> Float[Tensor, "row component"]:
    """Sets of another size: with the largest slopes added, or the smallest taken away.

    Args:
        masks: Sets, all of one size.
        slopes: Of each component, at each set.
        size: How many components there shall be.
    """
    more = size - int(masks[0].sum())
    if more >= 0:
        added = slopes.masked_fill(masks > 0, -torch.inf).topk(more, dim=1).indices
        return masks.scatter(1, added, 1.0)
    taken = slopes.masked_fill(masks == 0, torch.inf).topk(-more, dim=1, largest=False).indices
    return masks.scatter(1, taken, 0.0)


def _members(mask: Float[Tensor, " component"]) -> ComponentSet:
    return tuple(mask.nonzero()[:, 0].tolist())
