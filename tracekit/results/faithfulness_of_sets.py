"""Measured faithfulness and completeness of sets, in every form in which sets are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from jaxtyping import Float
from torch import Tensor

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, complement_of
from tracekit.components.masks import ranking as ranked
from tracekit.components.members import members_of, scores_of
from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError
from tracekit.results.curve import TraceCurve
from tracekit.results.faithfulness import MIB_SHARES, Faithfulness, Ranking
from tracekit.results.intervals import ratio_interval
from tracekit.results.pareto_front import ParetoFront


def faithfulness_of(engine: Engine, given: Any, ranking: Ranking | None = None) -> Faithfulness:
    """Faithfulness of sets in every form in which they are given; see `Tracer.faithfulness`."""
    registry, n = engine.registry, engine.n_components
    if ranking is not None:
        if ranking not in get_args(Ranking):
            raise ConfigError(f"Unknown ranking {ranking!r}. Use 'signed' or 'absolute'.")
        sets = prefix_sets(scores_of(given, registry), ranking)
        method = getattr(given, "method", "")
        return measure_faithfulness(engine, sets, shares=MIB_SHARES, how=ranking, method=method)
    if isinstance(given, ParetoFront) and given.largest == n:
        sets = [
            members_of(given.at(int(share * n)), registry) if share * n >= given.sizes[0] else ()
            for share in MIB_SHARES
        ]
        # All components, of which no set of fewer may do better.
        sets[-1] = tuple(range(n))
        return measure_faithfulness(engine, sets, shares=MIB_SHARES, method=given[0].method)
    results = given if isinstance(given, (ParetoFront, TraceCurve)) else [given]
    sets = [members_of(result, registry) for result in results]
    return measure_faithfulness(engine, sets, method=getattr(results[0], "method", ""))


def prefix_sets(scores: Mask, how: Ranking) -> list[ComponentSet]:
    """Components with the highest scores or absolute scores, at each of the shares of MIB."""
    order = ranked(scores if how == "signed" else scores.abs())
    n = len(order)
    return [tuple(sorted(order[: int(share * n)])) for share in MIB_SHARES]


def measure_faithfulness(
    engine: Engine,
    sets: Sequence[ComponentSet],
    *,
    shares: tuple[float, ...] = (),
    how: str = "sets",
    method: str = "",
) -> Faithfulness:
    """Measures sets of flat indices and their complements.

    `shares` says what each was made for, `how` they were made, `method` what found them.
    """
    complements = [complement_of(members, engine.n_components) for members in sets]
    effects = engine.set_effects([*sets, *complements], "faithfulness")
    of_sets, of_others = effects[: len(sets)], effects[len(sets) :]
    full, clusters = engine.full_effects, engine.pairs.clusters
    if engine.metric.direction == "noising":
        faithful, complete = full - of_others, full - of_sets
    else:
        faithful, complete = of_sets, of_others
    return Faithfulness(
        sizes=tuple(map(len, sets)),
        n_components=engine.n_components,
        faithfulness=_ratios(faithful, full),
        faithfulness_intervals=tuple(
            ratio_interval(row, full, clusters=clusters) for row in faithful
        ),
        completeness=_ratios(complete, full),
        completeness_intervals=tuple(
            ratio_interval(row, full, clusters=clusters) for row in complete
        ),
        shares=shares,
        ranking=how,
        metric=engine.metric.name,
        method=method,
        direction=engine.metric.direction,
    )


def _ratios(
    effects: Float[Tensor, "set example"], full: Float[Tensor, " example"]
) -> tuple[float, ...]:
    return tuple((effects.mean(1) / full.mean()).tolist())
