"""Racing: sets far behind on a part of the examples are dropped before they are measured on all.

All sets of a race are measured on the same few examples first. A set is dropped if its mean
difference to the set that it has to beat, over the examples seen so far, is below zero by several
standard errors; the rest are measured on twice as many, and so on up to all examples (successive
halving). Differences on the same examples vary far less than the effects themselves, so that a few
examples are often enough. What a search selects was measured on all examples.

Where a few examples carry the effect of a set, a random part says little of it; local search looks
at these first (see `carriers.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.engine.engine import Engine
from tracekit.search.targets import Target

_FIRST = 32
"""Examples of the first part."""
FEWEST_EXAMPLES = 3 * _FIRST
"""Examples from which on searches race."""
_ERRORS = 2.5
"""Standard errors that a set must be behind to be dropped."""
_OF_GRADIENTS = 64
"""Examples that a gradient is taken of, at least."""
_SLOPES_OF_MODEL = (49_152, 2**19)
"""Slopes at a set that a model learns from, at most: with races, as promises take time; and
without, as they take memory."""
_OF_MODEL = 256
"""Examples that it learns from at most, with races, where all would have more slopes."""


@dataclass(frozen=True, eq=False)
class Portions:
    """The examples in a random order, of which a race sees more and more."""

    order: Int[Tensor, " example"]
    """Numbers of all examples."""
    stops: tuple[int, ...]
    """How many of them are seen after each round, ascending; all after the last one."""
    may_skip: bool = False
    """Whether gradients may leave out examples that carry little of the effect."""

    @classmethod
    def make(cls, engine: Target, seed: int, *, race: bool = True) -> Portions:
        """Rounds that double what is seen; a single one where nothing can be raced.

        Args:
            engine: What is measured.
            seed: Of the order.
            race: Whether to do with a part of the examples at all.
        """
        n = engine.n_examples
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        stops = [n]
        if race and n >= FEWEST_EXAMPLES and isinstance(engine, Engine):
            # A last round of a few more examples would save little.
            doubled = (_FIRST * 2**k for k in range(n.bit_length()))
            stops = [*(stop for stop in doubled if stop <= 0.75 * n), n]
        return cls(order, tuple(stops), may_skip=race and isinstance(engine, Engine))

    @classmethod
    def whole(cls, engine: Target) -> Portions:
        """A single round of all examples."""
        order = torch.arange(engine.n_examples)
        return cls(order, (engine.n_examples,), may_skip=isinstance(engine, Engine))

    @property
    def is_whole(self) -> bool:
        """Whether there is a single round, in which all examples are seen."""
        return len(self.stops) == 1

    @property
    def rounds(self) -> list[Int[Tensor, " example"]]:
        """Numbers of the examples that each round adds."""
        starts = (0, *self.stops[:-1])
        return [self.order[a:b] for a, b in zip(starts, self.stops, strict=True)]

    def of_model(self, n_components: int) -> Int[Tensor, " example"]:
        """Numbers of the examples that a model of the slopes learns from, ascending.

        Args:
            n_components: Slopes of each of them.
        """
        quick, largest = _SLOPES_OF_MODEL
        count = (largest if self.is_whole else quick) // n_components
        if not self.is_whole and count < len(self.order):
            count = min(count, _OF_MODEL)
        return self.order[: max(1, count)].sort().values

    def of_gradient(self, number: int) -> Int[Tensor, " example"] | None:
        """Examples for the n-th gradient, which take turns; None for all, if nothing is raced."""
        n = len(self.order)
        if self.is_whole:
            return None
        n_turns = max(1, min(n // _OF_GRADIENTS, 8))
        size, turn = ceil(n / n_turns), number % n_turns
        return self.order[turn * size : (turn + 1) * size]


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Sets that race against each other."""

    sets: Sequence[ComponentSet]
    """The sets."""
    rival: ComponentSet | None = None
    """A set that was measured on all examples and that a winner has to beat."""
    n_winners: int = 1
    """How many sets are wanted."""


def still_in(
    effects: Float[Tensor, "set example"],
    n_examples: int,
    *,
    rival: Float[Tensor, " example"] | None = None,
    n_winners: int = 1,
) -> Bool[Tensor, " set"]:
    """Which sets may yet win, by what was seen of them so far.

    Args:
        effects: Of each set on the examples seen.
        n_examples: How many examples there are in all.
        rival: Effects of a set that a winner has to beat, on the same examples.
        n_winners: Number of sets wanted, which have to beat the others.
    """
    means = effects.mean(1)
    last_winner = effects[means.argsort(descending=True, stable=True)[:n_winners][-1]]
    if rival is None or last_winner.mean() > rival.mean():
        rival = last_winner
    n_seen = effects.shape[1]
    differences = effects - rival
    # Of the examples not seen there are ever fewer.
    unseen = 1 - n_seen / n_examples
    errors = differences.std(1) * (unseen / n_seen) ** 0.5
    return differences.mean(1) + _ERRORS * errors >= 0


def raced_effects(
    engine: Target,
    sets: Sequence[ComponentSet],
    portions: Portions,
    label: str,
    *,
    n_winners: int = 1,
) -> Float[Tensor, "set example"]:
    """Effects of sets of which some are wanted: the best few on all examples.

    Args:
        engine: Measures.
        sets: The sets.
        portions: What each round sees.
        label: Names the progress bar.
        n_winners: Number of sets wanted.

    Returns:
        Effects; NaN on the examples that a set was not measured on.
    """
    if portions.is_whole:
        return engine.set_effects(sets, label)
    effects = torch.full((len(sets), engine.n_examples), torch.nan)
    running = torch.arange(len(sets))
    for examples, stop in zip(portions.rounds, portions.stops, strict=True):
        rows = engine.set_effects([sets[i] for i in running.tolist()], label, examples=examples)
        effects[running[:, None], examples] = rows
        seen = effects[running[:, None], portions.order[:stop]]
        running = running[still_in(seen, engine.n_examples, n_winners=n_winners)]
    return effects


def means_of_race(effects: Float[Tensor, "set example"]) -> Float[Tensor, " set"]:
    """Mean effects to rank sets by: those that were dropped come after those that were not.

    Args:
        effects: As `raced_effects` returns them.
    """
    is_dropped = effects.isnan().any(1)
    means = torch.where(is_dropped, effects.nanmean(1), effects.mean(1))
    if not is_dropped.any():
        return means
    # A dropped set may have done well on what it was measured on.
    least = torch.nextafter(means[~is_dropped].min(), means.new_tensor(-torch.inf))
    return torch.where(is_dropped, means.minimum(least), means)
