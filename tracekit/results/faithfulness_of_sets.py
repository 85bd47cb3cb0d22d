"""Measured faithfulness and completeness of sets, in every form in which sets are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from tracekit.results.result import TraceResult
from tracekit.results.significance import said_of_examples
from tracekit.results.traced import Traced


def faithfulness(traced: Traced, members: Any, *, ranking: Ranking | None = None) -> Faithfulness:
    """How much sets of components do alone, and how much is left without them.

    It is measured on the held-out examples, if the tracer has some.

    Args:
        traced: The question, laid out.
        members: A set or a mask, as in `evaluate`; a curve or a front, for all of its sets; or,
            with `ranking`, a score for each component.
        ranking: Take the components with the highest scores at each share of the MIB benchmark: by
            the scores themselves (`signed`) or their absolute values (`absolute`). Of a result, by
            what its method ranked by.

    Raises:
        ConfigError: Another ranking.
        MaskError, ComponentError: About the set, or soft masks.
    """
    first = members[0] if isinstance(members, (ParetoFront, TraceCurve)) else members
    found_on = first.own.fingerprint if isinstance(first, TraceResult) else None
    examples = said_of_examples(found_on, traced.fresh.pairs.fingerprint)
    return replace(_measured(traced.fresh, members, ranking), examples=examples)


def _measured(engine: Engine, given: Any, ranking: Ranking | None) -> Faithfulness:
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
