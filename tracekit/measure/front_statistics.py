"""Evidence for a Pareto front, of which `SizeStatistics` says what each number means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import torch
from einops import rearrange

from tracekit._util.markup import as_cells
from tracekit.components import ComponentSet
from tracekit.engine.engine import Engine
from tracekit.measure.controls import control_overlap, control_sets, n_controls
from tracekit.results.comparison import jaccard
from tracekit.results.intervals import effect_interval, standard_error
from tracekit.results.pareto_front import SizeStatistics
from tracekit.search.auto import CrossFit
from tracekit.search.base import log_spaced_sizes
from tracekit.search.targets import Target

_AT_MOST = 12
"""Sizes at which statistics are taken."""
MOST_CONTROLS = 5
"""Random sets of each size, at most."""


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
    components downwards, at some sizes. `fit` says what the searches of these names do on halves of
    the examples; None with too few examples.
    """
    generator = torch.Generator().manual_seed(seed)
    cross_fitted = [{}] * len(sets) if fit is None else _cross_fitted(fit, names, engine)
    from_all = _from_all(engine, maximised, sets, others)
    statistics = []
    for (size, members), *parts in zip(sets.items(), cross_fitted, from_all, strict=True):
        fields = parts[0] | parts[1]
        drawn = control_sets(engine.registry, members, MOST_CONTROLS, generator)
        if drawn:
            controls = engine.set_effects(drawn, f"controls of {size}").mean(1)
            fields["controls"] = n_controls(engine.registry, members)
            fields["control_overlap"] = control_overlap(engine.registry, members)
            fields |= as_cells("control", controls.mean().item(), map(float, controls.aminmax()))
        statistics.append(SizeStatistics(size=size, **fields))
    return tuple(statistics)


def _cross_fitted(fit: CrossFit, names: Sequence[str], engine: Engine) -> list[dict[str, Any]]:
    rows, pairs = [], engine.pairs
    for rank, search in enumerate(fit.choice()):
        effects = fit.sign * fit.effects[search, rank]
        ends = effect_interval(effects, bounds=engine.metric.bounds, **pairs.statistics_options)
        ends = [None if isnan(end) else end for end in ends]
        first, second = fit.sets[search]
        by_search = (fit.sign * fit.effects[:, rank].mean(-1)).tolist()
        rows.append(
            {
                **as_cells("cross_fitted", effects.mean().item(), ends),
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
