"""Evidence for a Pareto front: cross-fitted effects, random controls, stability.

A set that was selected for its effect on some examples does better on those than on others, and a
search may find another set next time. So at some sizes a front is measured against what
`SizeStatistics` has: sets of halves of the examples (`search/auto.py`), random ones, and one of a
walk from all components downwards, which knows nothing of the front (`search/backward.py`). Where
that is as good and shares few components, the examples do not single out one set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, isnan, prod
from typing import Any, Literal, get_args

import torch
from einops import rearrange

from tracekit._util.markup import with_ends
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.engine.engine import Engine
from tracekit.results.intervals import effect_interval, standard_error
from tracekit.search.auto import CrossFit
from tracekit.search.backward import most_passes
from tracekit.search.base import log_spaced_sizes
from tracekit.search.targets import Target

_AT_MOST = 12
"""Sizes at which statistics are taken."""
Like = Literal["layers", "kinds", "size"]
LIKE: tuple[Like, ...] = get_args(Like)
STATISTICS = (
    "Cross-fitted: sets that one half of the searched examples selects, measured on the other. "
    "Random: as many components of every kind in every layer, on the searched examples. Stability: "
    "Jaccard similarity of the sets that the halves select."
)
"""What the words mean."""
MOST_CONTROLS = 5
"""Random sets of each size, at most."""


@dataclass(frozen=True, kw_only=True)
class SizeStatistics:
    """Statistics of the sets of one size."""

    size: int
    """Largest number of components."""
    cross_fitted: float | None = None
    """Mean effect of the sets that each half of the searched examples selects, on the other half;
    None with fewer than 4 examples."""
    cross_fitted_low: float | None = None
    cross_fitted_high: float | None = None
    """Its 95 % confidence interval, by a studentised bootstrap over examples; None with fewer than
    three independent ones."""
    cross_fitted_error: float | None = None
    """Its standard error over examples."""
    cross_fitted_by: Mapping[str, float] | None = None
    """Mean cross-fitted effect of each search that the front chose from, by name."""
    control: float | None = None
    """Mean effect of random sets with as many components of every kind in every layer; None if
    there is only one such set."""
    control_low: float | None = None
    control_high: float | None = None
    """Least and greatest of them."""
    controls: int = 0
    """Other sets of this form, of which up to five were drawn."""
    control_overlap: float | None = None
    """Share of the components of the front's set that such a set has too, on average."""
    stability: float | None = None
    """Jaccard similarity, in [0, 1], of the sets that the two halves selected."""
    from_all: float | None = None
    """Mean effect of the set found from all components downwards."""
    from_all_similarity: float | None = None
    """Jaccard similarity, in [0, 1], of this set and the front's."""
    from_all_gain: float | None = None
    """How much better this set is than the front's by what was maximised, as a share of the
    latter; below 0 where it is worse."""


def sizes_of_statistics(sizes: Sequence[int]) -> list[int]:
    """Up to 12 of the sizes of a front, spread on a logarithmic scale."""
    wanted = log_spaced_sizes(sizes[0], sizes[-1], _AT_MOST)
    return sorted({min(sizes, key=lambda size: abs(size - at)) for at in wanted})


def measure_statistics(
    engine: Engine,
    sets: Mapping[int, ComponentSet],
    seed: int,
    *,
    maximised: Target,
    others: Mapping[int, ComponentSet],
    fit: CrossFit | None,
    names: Sequence[str],
) -> tuple[SizeStatistics, ...]:
    """Statistics of a front, whose set is given for each size that they are taken at.

    `maximised` is the engine's data as the search saw it. `others` are sets of a walk from all
    components downwards, at some sizes. `fit` says what the searches of these
    names do on halves of the examples; None with too few examples.
    """
    generator = torch.Generator().manual_seed(seed)
    cross_fitted = [{}] * len(sets) if fit is None else _cross_fitted(fit, names, engine)
    from_all = _from_all(engine, maximised, sets, others)
    statistics = []
    for (size, members), *parts in zip(sets.items(), cross_fitted, from_all, strict=True):
        fields = {**parts[0], **parts[1]}
        drawn = control_sets(engine.registry, members, MOST_CONTROLS, generator)
        if drawn:
            controls = engine.set_effects(drawn, f"controls of {size}").mean(1)
            fields["controls"] = n_controls(engine.registry, members)
            fields["control_overlap"] = control_overlap(engine.registry, members)
            fields |= with_ends("control", controls.mean().item(), map(float, controls.aminmax()))
        statistics.append(SizeStatistics(size=size, **fields))
    return tuple(statistics)


def _cross_fitted(fit: CrossFit, names: Sequence[str], engine: Engine) -> list[dict[str, Any]]:
    """Cross-fitted effects and stability at each size."""
    rows, pairs = [], engine.pairs
    for rank, search in enumerate(fit.choice()):
        effects = fit.sign * fit.effects[search, rank]
        ends = effect_interval(effects, bounds=engine.metric.bounds, **pairs.over)
        ends = [None if isnan(end) else end for end in ends]
        first, second = fit.sets[search]
        by_search = (fit.sign * fit.effects[:, rank].mean(-1)).tolist()
        rows.append(
            {
                **with_ends("cross_fitted", effects.mean().item(), ends),
                "cross_fitted_error": standard_error(effects, pairs.weights, pairs.clusters),
                "cross_fitted_by": dict(zip(names, by_search, strict=True)),
                "stability": jaccard(first[rank], second[rank]),
            }
        )
    return rows


def _from_all(
    engine: Engine,
    maximised: Target,
    sets: Mapping[int, ComponentSet],
    others: Mapping[int, ComponentSet],
) -> list[dict[str, Any]]:
    """What sets of a walk from all components are beside those of a front; nothing without one."""
    sizes = [size for size in sets if size in others]
    pairs = [each for size in sizes for each in (sets[size], others[size])]
    means = maximised.set_effects(pairs, "from all").mean(1)
    values = rearrange(means, "(size side) -> size side", side=2).tolist()
    effects = engine.set_effects([others[size] for size in sizes], "from all").mean(1).tolist()
    rows = {
        size: {
            "from_all": effect,
            "from_all_similarity": jaccard(sets[size], others[size]),
            "from_all_gain": (other - own) / max(abs(own), 1e-12),
        }
        for size, (own, other), effect in zip(sizes, values, effects, strict=True)
    }
    return [rows.get(size, {}) for size in sets]


def passes_from_all(n_components: int, sizes: Sequence[int]) -> float:
    """Passes that this takes at most."""
    return most_passes(n_components, sizes) + 4 * len(sizes)


def jaccard(first: Sequence[int], second: Sequence[int]) -> float:
    """Size of the intersection of two sets over that of their union; 1 if both are empty."""
    union = {*first} | {*second}
    return len({*first} & {*second}) / len(union) if union else 1.0


def control_sets(
    registry: ComponentRegistry,
    members: ComponentSet,
    draws: int,
    generator: torch.Generator,
    like: Like = "layers",
) -> list[ComponentSet]:
    """Different random sets with as many components of every kind in every layer as a set has.

    With `like="kinds"` as many of every kind, with `size` as many in all. Each is ascending, and
    none is the set itself. There are fewer than `draws` if no more have this form: all of them.
    """
    groups, counts = _groups(registry, like), _counts(registry, members, like)
    count = min(draws, n_controls(registry, members, like))
    drawn = dict.fromkeys([tuple(sorted(members))])
    while len(drawn) <= count:
        picks = [
            group[pick]
            for group, (size, n_members) in zip(groups, counts, strict=True)
            for pick in torch.randperm(size, generator=generator)[:n_members].tolist()
        ]
        drawn[tuple(sorted(picks))] = None
    return list(drawn)[1:]


def n_controls(registry: ComponentRegistry, members: ComponentSet, like: Like = "layers") -> int:
    """How many other sets have the form of `control_sets`; 10^15 if more."""
    return min(prod(comb(n, count) for n, count in _counts(registry, members, like)) - 1, 10**15)


def control_overlap(registry: ComponentRegistry, members: ComponentSet) -> float:
    """Share of the members that such another set has on average; NaN if there is none."""
    others = n_controls(registry, members)
    if not others:
        return float("nan")
    shared = sum(count * count / n for n, count in _counts(registry, members)) / len(members)
    # Of all such sets one is the set itself.
    return shared - (1 - shared) / others


def _groups(registry: ComponentRegistry, like: Like) -> list[list[int]]:
    """Components among which members may be exchanged."""
    groups: dict[Any, list[int]] = {}
    for number, site in enumerate(registry.sites):
        key = {"layers": number, "kinds": site.kind.name, "size": None}[like]
        groups.setdefault(key, []).extend(range(site.start, site.stop))
    return list(groups.values())


def _counts(
    registry: ComponentRegistry, members: ComponentSet, like: Like = "layers"
) -> list[tuple[int, int]]:
    """Components of every group, and how many of them are members."""
    chosen = {*members}
    return [(len(group), len(chosen.intersection(group))) for group in _groups(registry, like)]
