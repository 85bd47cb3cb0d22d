"""The plan of a local search: how many passes it may take, and which sizes it visits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FEW = 16
"""Up to this many components, passes are cheap enough to search almost exhaustively."""
MOST_OF_WALK = 1024
"""Up to this many the search walks along a model of the slopes, whose promises take time."""
MANY = 384
"""From this many on, the search takes no more passes than top-k."""
_CAPS = (600, 800)
"""Passes at most, below and above."""
_OF_GREEDY = 0.4
"""Share of greedy's passes."""
_MOST_OF_GREEDY = 1.4
_LEAST = 450
"""Passes that are allowed in any case, up to 1.4 of greedy's. With fewer, the search misses up to a
sixth of the probability drop on tasks of the embedded model, and greedy's set on one."""
_FOR_SOFT_TOPK = 100
"""Passes below which soft top-k learns nothing worth its steps."""
_GROUPS = 16
GROUPS_HALVED = 4
"""Groups that all components are dealt into, and how many of them are halved in each round."""
_PER_DENSE_SIZE = 6
_PER_SPREAD_SIZE = 4
"""Passes that the first sweep takes at a size, about, where most sizes are visited and where few
are."""
_PER_PREFIX = 18
"""Passes for each size at which prefixes of rankings are measured, where soft top-k ranks."""
_FEWEST_PREFIXES = 16
"""These sizes at least, where the passes suffice."""
_PREFIXES = 8
"""And where soft top-k does not rank."""
_ADDITIONS = (3, 8)
_SPREAD_ADDITIONS = 2
"""Sets with one component more that the first sweep measures at each size: where most sizes are
visited as a rule, and where there are many passes for each size; and where few sizes are."""
_FOR_MANY_ADDITIONS = 15
"""Passes for each size from which on there are."""
_BISECTIONS = 40
_OF_EXAMPLES = (0.25, 0.4)
"""Share of the passes that go into sets for single examples, where most sizes are visited and where
few are: there, the sweeps are short."""
_FOR_EXAMPLES = (160, 120)
"""Passes below which there are none, likewise."""
_OF_EXAMPLES_OF_MANY = 0.05
"""This share from 384 components on, where the sweeps need their passes."""
_EXAMPLES_OF_MANY = 256
"""Examples from which on that is enough, as a gradient of one of them is a small part of a pass."""
_WALK_SIZES = 16
_PER_WALK_SIZE = 8
"""Sizes that a walk along a model of the slopes visits, at most, and passes for each."""
_REFINED_SIZES = 10
"""The same where sets of some sizes are improved."""
_OF_WALK = 0.6
"""Share of the passes for its rounds."""
_EXAMPLES_OF_WALK = (0.075, 40, 0.2)
"""Share for sets for single examples; or so many passes if these are more, up to another share."""
_PER_FILLED_SIZE = 50
"""Passes for each size between."""
_OF_SINGLES = 1 / 6
"""Share of the passes within which all single components are measured before the walk."""
_FEWEST_SINGLES = 16
"""Components that are, where that takes more."""
JOINING = 4
"""Components that are measured at each size of greedy's way."""
_OF_GREEDYS_WAY = 1 / 8
"""Share of the passes that it may take."""
_EXAMPLE_SIZES = 8
"""Sizes of sets for single examples, at least; more where these would be much further apart than
by 2."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What sweeps along first-order predictions will do."""

    sizes: tuple[int, ...]
    """Sizes to visit."""
    dense: bool
    """Whether these are most sizes, so that few neighbours of each are enough."""
    additions: int
    """Sets with one component more that the first sweep measures at each size."""
    additions_to_small: int
    """The same for sets of one component and of two. With three, the best set of three heads of
    demo-binding had 0.94 of greedy's effect, with eight it has 0.995."""
    swaps: int
    """Sets with one component exchanged that it measures there."""


@dataclass(frozen=True, kw_only=True)
class SearchPlan(SweepPlan):
    """What a local search will do, or what is left of it after a walk."""

    n_components: int
    """Number of components."""
    passes: int
    """Forward and backward passes at most."""
    singles: int
    """Single components that are measured."""
    prefix_sizes: tuple[int, ...]
    """Sizes of the prefixes of rankings that are measured."""
    soft_steps: int
    """Steps of soft top-k."""
    example_passes: float = 0
    """Passes that go into sets for single examples."""
    example_sizes: tuple[int, ...] = ()
    """Sizes of these, ascending."""
    groups: int = 0
    """Groups of components that are halved, to find single ones that no gradient points to."""

    @classmethod
    def make(
        cls,
        n_components: int,
        last: int,
        budgets: Sequence[int],
        passes: int,
        *,
        every_size: bool = True,
        from_examples: bool = True,
    ) -> SearchPlan:
        """Most sizes if there are passes enough, else some; spread on a logarithmic scale.

        Args:
            n_components: Number of components.
            last: Largest size.
            budgets: Sizes to visit in any case.
            passes: Passes at most.
            every_size: Whether to visit most sizes if possible. Without, rankings alone are used.
            from_examples: Whether to start from sets for single examples if possible.
        """
        singles = _n_singles(n_components, passes)
        groups = _n_groups(n_components, singles, passes)
        of_dense, of_spread = _for_examples(n_components, passes)
        for_examples = of_dense if every_size and from_examples else 0
        left = passes - singles - for_examples
        affordable = int(left / _PER_DENSE_SIZE)
        dense = every_size and last <= 2 * affordable
        # A search for every budget asks for none in particular.
        asked = budgets if len(budgets) < last else ()
        # Where a walk comes to a good part of the sizes, no ranking of all components is as good.
        ranks = not dense and (n_components >= MANY or not every_size)
        soft_steps = passes // 8 if ranks and passes >= _FOR_SOFT_TOPK else 0
        prefix_sizes = _with(asked, log_spaced_sizes(1, last, _n_prefixes(passes, ranks=ranks)))
        if not dense:
            for_examples = of_spread if every_size and from_examples else 0
            n_rankings = 4 if soft_steps else 2
            left = passes - singles - for_examples
            left -= 2 * soft_steps + n_rankings * len(prefix_sizes)
            left -= _for_groups(n_components) if groups else 0
            affordable = max(len(prefix_sizes) if every_size else 0, int(left / _PER_SPREAD_SIZE))
        sizes = _with(asked, log_spaced_sizes(1, last, max(2, affordable)))
        additions = _additions(sizes, left, dense=dense)
        return cls(
            n_components=n_components,
            passes=passes,
            singles=singles,
            sizes=sizes,
            prefix_sizes=prefix_sizes,
            dense=dense,
            example_passes=for_examples,
            example_sizes=_example_sizes(n_components, last) if for_examples else (),
            soft_steps=soft_steps,
            additions=additions,
            additions_to_small=additions,
            swaps=int(dense),
            groups=groups,
        )


@dataclass(frozen=True, kw_only=True)
class WalkPlan:
    """What a walk along a model of the slopes will do."""

    n_components: int
    """Number of components."""
    singles: int
    """Single components that are measured before it."""
    sizes: tuple[int, ...]
    """Sizes to visit."""
    reserved: int
    """Passes kept for measuring the best set of each by itself in the end."""
    passes: float
    """Passes that its rounds may begin within."""
    example_passes: float
    """Passes that go into sets for single examples."""
    example_sizes: tuple[int, ...]
    """Sizes of these, ascending."""
    groups: int
    """Groups of components that are halved before it, to find single ones that no gradient points
    to."""
    filled: tuple[int, ...]
    """Sizes of which one set is measured after it, if none was before."""
    look: SweepPlan
    """The sweep that looks for what the model does not see."""
    greedy_passes: float
    """Passes that greedy's way may take after it."""

    def goes_like_greedy(self, largest: int) -> bool:
        """Whether the search takes greedy's way although not all passes are asked for.

        Where its passes suffice up to the largest size; and with many components, of which only
        some were measured alone.
        """
        return self.n_components >= MANY or JOINING * largest <= self.greedy_passes

    @classmethod
    def make(cls, n_components: int, last: int, budgets: Sequence[int], passes: int) -> WalkPlan:
        """Few sizes, spread on a logarithmic scale.

        Args:
            n_components: Number of components.
            last: Largest size.
            budgets: Sizes to visit, if they are few.
            passes: Passes at most.
        """
        count = max(2, min(_WALK_SIZES, passes // _PER_WALK_SIZE))
        asked = budgets if len(budgets) <= count else ()
        sizes = _with(asked, log_spaced_sizes(1, last, count))
        more = log_spaced_sizes(1, last, count + passes // _PER_FILLED_SIZE)
        dense = len(sizes) == last
        share, least, most = _EXAMPLES_OF_WALK
        singles = _n_singles_before_walk(n_components, passes)
        return cls(
            n_components=n_components,
            singles=singles,
            groups=_n_groups(n_components, singles, passes) if n_components >= MANY else 0,
            sizes=sizes,
            reserved=reserved_passes(sizes, passes),
            passes=_OF_WALK * passes,
            example_passes=min(most * passes, max(share * passes, least)),
            example_sizes=_example_sizes(n_components, last),
            # A search for every budget asks for none in particular.
            filled=_with(budgets if len(budgets) < last else (), more),
            # From half of many sizes the walk carries on to the others what a look finds.
            look=SweepPlan(
                sizes=sizes if dense else sizes[::-2][::-1],
                dense=dense,
                additions=_additions(sizes, passes, dense=dense),
                additions_to_small=_ADDITIONS[-1] if dense else _SPREAD_ADDITIONS,
                swaps=1,
            ),
            greedy_passes=_OF_GREEDYS_WAY * passes,
        )


def reserved_passes(sizes: Sequence[int], passes: int) -> int:
    """Passes to keep for measuring a set of each size by itself."""
    return min(len(sizes), passes // 4)


def sizes_of_refinement(last: int, budgets: Sequence[int]) -> tuple[int, ...]:
    """Sizes of a walk that improves sets of some sizes."""
    return _with(budgets, log_spaced_sizes(1, last, _REFINED_SIZES))


def may_start_from_examples(n_components: int, n_examples: int) -> bool:
    """Whether sets for single examples leave enough passes to the sweeps."""
    return n_components < MANY or n_examples >= _EXAMPLES_OF_MANY


def prefixes(orders: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[Sequence[int]]:
    """The first components of every ranking, at every size."""
    return [order[:size] for size in sizes for order in orders]


def default_passes(n_components: int, last: int) -> int:
    """Passes that a search of all sizes up to `last` takes at most."""
    if n_components >= MANY:
        return min(n_components, _CAPS[1])
    if n_components <= FEW:
        return _CAPS[0]
    greedy = sum(n_components - size for size in range(last))
    least = max(n_components + 2 * last, min(int(_MOST_OF_GREEDY * greedy), _LEAST))
    return min(max(int(_OF_GREEDY * greedy), least), _CAPS[0])


def log_spaced_sizes(first: int, last: int, count: int) -> tuple[int, ...]:
    """At most `count` whole numbers (at least two) from `first` to `last`.

    They are spread on a logarithmic scale, as far as whole numbers can be.
    """
    close, wide = 1.0, float(max(2, last))
    # The smallest factor between neighbours that gives few enough sizes.
    for _ in range(_BISECTIONS):
        factor = (close * wide) ** 0.5
        if len(_steps(first, last, factor)) > count:
            close = factor
        else:
            wide = factor
    return _steps(first, last, wide)


def _n_singles(n_components: int, passes: int) -> int:
    """Single components to measure: no gradient points to some that do much alone."""
    cheap = n_components if n_components <= passes // 3 else passes // 8
    return min(n_components, max(min(_FEWEST_SINGLES, passes // 3), cheap))


def _for_examples(n_components: int, passes: int) -> tuple[float, float]:
    """Passes for sets for single examples, where most sizes are visited and where few are."""
    shares = _OF_EXAMPLES if n_components < MANY else (_OF_EXAMPLES_OF_MANY,) * 2
    dense, spread = (
        share * passes if passes >= least else 0
        for share, least in zip(shares, _FOR_EXAMPLES, strict=True)
    )
    return dense, spread


def _example_sizes(n_components: int, last: int) -> tuple[int, ...]:
    """Sizes of sets for single examples, each about twice the one before or less (2.5 at most)."""
    largest = min(last, n_components - 1)
    return log_spaced_sizes(1, largest, max(_EXAMPLE_SIZES, largest.bit_length()))


def _n_prefixes(passes: int, *, ranks: bool) -> int:
    """Sizes at which prefixes of rankings are measured; more where soft top-k ranks."""
    most = max(passes // _PER_PREFIX, _FEWEST_PREFIXES) if ranks else _PREFIXES
    return max(2, min(most, passes // 8))


def _n_groups(n_components: int, singles: int, passes: int) -> int:
    """Groups of components to halve, where not all are measured alone and it takes few passes."""
    is_cheap = _for_groups(n_components) <= passes // 6
    return _GROUPS if singles < n_components and is_cheap else 0


def _for_groups(n_components: int) -> int:
    """Passes that group testing takes."""
    return _GROUPS + 2 * GROUPS_HALVED * max(1, n_components // _GROUPS).bit_length()


def _n_singles_before_walk(n_components: int, passes: int) -> int:
    """The same where a walk follows, whose gradients point to most of them."""
    if n_components <= _OF_SINGLES * passes:
        return n_components
    if n_components >= MANY:
        return _n_singles(n_components, passes)
    return min(n_components, _FEWEST_SINGLES, passes // 3)


def _additions(sizes: Sequence[int], passes: float, *, dense: bool) -> int:
    """Sets with one component more that a first sweep measures at each of some sizes.

    Args:
        sizes: Sizes to visit.
        passes: That may go into them.
        dense: Whether these are most sizes.
    """
    if not dense:
        return _SPREAD_ADDITIONS
    return _ADDITIONS[passes >= _FOR_MANY_ADDITIONS * len(sizes)]


def _with(asked: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*sizes, *asked}))


def _steps(first: int, last: int, factor: float) -> tuple[int, ...]:
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(min(last, max(sizes[-1] + 1, round(sizes[-1] * factor))))
    return tuple(sizes)
