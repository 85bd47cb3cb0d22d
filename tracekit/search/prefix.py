"""Rankings of components, and their prefixes as answers to a goal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import TypeVar

import torch

from tracekit._util import progress as _progress
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, members_of_mask, ranking
from tracekit.engine.cost import Cost
from tracekit.errors import NothingFoundError
from tracekit.search.base import Goal, PlannedPasses, Selection, target_not_reached
from tracekit.search.targets import Record, Target

_T = TypeVar("_T")
HALVINGS = 6
"""Sets that are measured at most to bring one near all components, besides the first two."""
_MOST_PREFIXES = 512
"""Up to this many components every prefix is measured if no doubled size reaches a target."""


def best_prefixes(
    target: Target, goal: Goal, scores: Mask, *, by_gradient: bool = False
) -> list[Selection]:
    """Answers a goal with the first components of a ranking, by a gradient or not."""
    order = ranking(scores)
    # How faithful each component is alone gives a ranking, but no effects.
    component_scores = None if target.faithful is not None and not by_gradient else scores
    if goal.target is not None:
        prefix = smallest_prefix(target, order, goal.target)
        record: Record = {"n_selected": prefix.size, "effect": prefix.effect}
        return [replace(prefix, component_scores=component_scores, history=(record,))]
    selections: list[Selection] = []
    history: tuple[Record, ...] = ()
    for budget in goal.budgets:
        prefix = _balanced_prefix(target, order, scores, budget)
        _progress.current_run().report_values(size=budget, effect=prefix.effect)
        history += ({"n_selected": budget, "effect": prefix.effect},)
        ranked = replace(prefix, component_scores=component_scores, history=history, budget=budget)
        selections.append(ranked)
    return selections


def prefix_members(target: Target, order: Sequence[int], size: int) -> ComponentSet:
    """The first components of a ranking; of faithful edges, the first that form paths."""
    return tuple(order[:size]) if target.paths is None else target.paths.first(order, size)


def drop_idle_edges(target: Target, selection: Selection) -> Selection:
    """A selection without edges that lie on no path, measured again.

    If it has a soft mask, the first edges by that mask that form paths replace them.
    """
    members = members_of_mask(selection.mask)
    if target.paths is None:
        return selection
    kept = target.paths.edges_on_paths(members)
    if selection.soft_mask is not None and len(kept) < len(members):
        kept = target.paths.first(ranking(selection.soft_mask), len(members))
    if not kept:
        raise NothingFoundError(
            "The selected edges form no path from the embedding to the logits. Use a larger budget."
        )
    if set(kept) == set(members):
        return selection
    again = Selection.measured(target, kept)
    n_skipped = selection.n_skipped + len(set(members) - set(kept))
    return replace(selection, mask=again.mask, effects=again.effects, n_skipped=n_skipped)


def measured_prefix(target: Target, order: Sequence[int], size: int) -> Selection:
    """The first components of a ranking, measured, with the number of edges passed over."""
    members = prefix_members(target, order, size)
    rank_of = {component: rank for rank, component in enumerate(order)}
    n_read = 1 + max((rank_of[each] for each in members), default=-1)
    return Selection.measured(target, members, n_skipped=n_read - len(members))


def _from_both_ends(order: Sequence[int], size: int, n_last: int) -> list[int]:
    """A ranking whose first `size` components are the first of another and `n_last` of its last.

    It goes on in the same proportion.
    """
    if n_last in (0, size):
        return list(reversed(order) if n_last else order)
    ranks = torch.arange(1, len(order) + 1)
    mixed = torch.cat([ranks / (size - n_last), ranks / n_last]).argsort(stable=True)
    both = torch.tensor([*order, *reversed(order)])
    return list(dict.fromkeys(both[mixed].tolist()))


def _balanced_prefix(target: Target, order: Sequence[int], scores: Mask, size: int) -> Selection:
    """The first components of a ranking; of a faithful set, some of the last where that is better.

    The last components push the metric back. Two sets are measured: the first components, and
    those with the largest absolute scores, which may include some of the last. If the faithfulness
    of one of them is above 1, bisection looks for a number of last components in between; if that
    of both is, for a larger number. The measured set is returned whose mean score, averaged with
    the score of its mean effects, is best.
    """

    def measured(n_last: int) -> Selection:
        return measured_prefix(target, _from_both_ends(order, size, n_last), size)

    tried, faithful = {0: measured(0)}, target.faithful
    if faithful is None or size == len(order):
        return tried[0]
    by_size = int((scores[ranking(scores.abs())[:size]] < 0).sum())
    if by_size:
        tried[by_size] = measured(by_size)
    overshoots, by_size_overshoots = (faithful.overshoots(tried[n].mask) for n in (0, by_size))
    low, high = (0, by_size) if overshoots != by_size_overshoots else (by_size, size * overshoots)
    for _ in range(HALVINGS):
        if high - low > 1:
            middle = (low + high) // 2
            tried[middle] = measured(middle)
            is_like_first = faithful.overshoots(tried[middle].mask) == overshoots
            low, high = (middle, high) if is_like_first else (low, middle)
    return max(tried.values(), key=lambda each: each.effect + faithful.score_of_means(each.mask))


def planned_prefixes(n_components: int, goal: Goal, ranking_cost: Cost) -> PlannedPasses:
    """Passes of ranking components, and of `best_prefixes`."""
    if goal.target is None:
        n = len(goal.budgets)
        cost, more = ranking_cost + Cost(n), Cost((HALVINGS + 1) * n)
        return PlannedPasses(cost=cost, is_exact=True, if_faithful=more)
    return PlannedPasses(cost=ranking_cost + Cost(most_prefixes(n_components)))


def most_prefixes(n_components: int) -> int:
    """Prefixes that `smallest_prefix` measures at most."""
    # Every size once, and the answer again.
    scanned = n_components + 1 if n_components <= _MOST_PREFIXES else 0
    return max(scanned, most_sizes_tried(n_components))


def smallest_prefix(
    target: Target, order: Sequence[int], target_effect: float, *, largest_seen: float = -inf
) -> Selection:
    """The smallest prefix of a ranking whose mean effect reaches an effect.

    Sizes are doubled and halved; if no doubled size reaches the target and there are few
    components, every prefix is measured. A smaller prefix than the returned one may exist. The
    error names the largest mean effect, `largest_seen` among those measured before.
    """

    def measure(size: int) -> Selection:
        return measured_prefix(target, order, size)

    prefix, tried = smallest_size(len(order), measure, lambda each: each.effect >= target_effect)
    if prefix is not None:
        return prefix
    best = max(largest_seen, *(prefix.effect for prefix in tried.values()))
    if len(order) <= _MOST_PREFIXES:
        rest = [size for size in range(1, len(order) + 1) if size not in tried]
        sets = [prefix_members(target, order, size) for size in rest]
        means = target.set_effects(sets, "prefixes").mean(1).tolist()
        reaching = [size for size, mean in zip(rest, means, strict=True) if mean >= target_effect]
        if reaching:
            return measure(min(reaching))
        best = max([best, *means])
    raise target_not_reached(target_effect, best)


def smallest_size(
    n_components: int, try_size: Callable[[int], _T], reaches: Callable[[_T], bool]
) -> tuple[_T | None, dict[int, _T]]:
    """Looks for the smallest size that reaches a target, in about 2 log2(N) tries.

    Sizes are doubled until one reaches the target, then halved in between. A smaller size than the
    returned one may reach it too. Returns the measurement at that size, None if no doubled size
    reaches the target; and all measurements, by size.
    """
    tried: dict[int, _T] = {}
    below, size = 0, 0
    for size in sorted({min(2**k, n_components) for k in range(n_components.bit_length() + 1)}):
        tried[size] = try_size(size)
        if reaches(tried[size]):
            break
        below = size
    else:
        return None, tried
    while size - below > 1:
        middle = (below + size) // 2
        tried[middle] = try_size(middle)
        if reaches(tried[middle]):
            size = middle
        else:
            below = middle
    return tried[size], tried


def most_sizes_tried(n_components: int) -> int:
    """Sizes that `smallest_size` tries at most."""
    return 2 * n_components.bit_length() + 1
