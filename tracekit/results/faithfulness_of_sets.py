"""Measured faithfulness and completeness of sets, in every form in which sets are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, complement_of
from tracekit.components.masks import ranking as ranked
from tracekit.components.members import members_of, scores_of
from tracekit.engine.engine import Engine
from tracekit.errors import ConfigError
from tracekit.results.curve import TraceCurve
from tracekit.results.faithfulness import MIB_SHARES, Faithfulness, Ranking
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
    return Faithfulness.of(
        effects[: len(sets)],
        effects[len(sets) :],
        engine.full_effects,
        sizes=list(map(len, sets)),
        n_components=engine.n_components,
        metric=engine.metric.name,
        direction=engine.metric.direction,
        weights=engine.pairs.weights,
        clusters=engine.pairs.clusters,
        shares=shares,
        ranking=how,
        method=method,
    )
