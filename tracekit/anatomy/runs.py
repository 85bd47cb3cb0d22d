"""Explanations and side effects as a tracer asks for them: checked, and with one progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from tracekit._util import progress
from tracekit._util.options import shortened
from tracekit.anatomy.explanation import Explanation, explain_set, planned_explanation
from tracekit.anatomy.side_effects import TARGET, SideEffects, measure_side_effects
from tracekit.components import ComponentSet
from tracekit.data.prompts import PromptPairs
from tracekit.engine.engine import Engine
from tracekit.engine.setup import BoundSetup
from tracekit.errors import PairsError
from tracekit.search.base import Planned, require_gradient


def run_explanation(
    engine: Engine,
    members: ComponentSet,
    *,
    max_sets: int,
    look_outside: bool | None,
    **options: Any,
) -> Explanation:
    """Explains a set; see `Tracer.explain`. `options` are those of `explain_set`."""
    planned = plan_explanation(engine, members, max_sets=max_sets, look_outside=look_outside)
    with _bar(engine, "explain", planned.cost.forward_equivalents):
        return explain_set(
            engine,
            members,
            max_sets=max_sets,
            look_outside=_looks_outside(engine, look_outside),
            **options,
        )


def plan_explanation(
    engine: Engine, members: ComponentSet, *, max_sets: int, look_outside: bool | None
) -> Planned:
    """The passes that an explanation will take."""
    outside = _looks_outside(engine, look_outside)
    return planned_explanation(engine.registry, members, max_sets=max_sets, look_outside=outside)


def _looks_outside(engine: Engine, asked: bool | None) -> bool:
    """Whether an explanation looks for outsiders, which takes a metric with a gradient."""
    if asked:
        require_gradient(engine.metric, "explain(look_outside=True)")
    return engine.metric.differentiable if asked is None else asked


def engines_of(bound: BoundSetup, others: Mapping[str, Any]) -> dict[str, Engine]:
    """Engines of other data, or by other metrics, by name: pairs, or pairs and a metric."""
    if not isinstance(others, Mapping) or not others:
        raise PairsError(
            f"The others are {shortened(others)}. Give a mapping from names to pairs, e.g. "
            "{'neutral': pairs} or {'neutral': (pairs, 'kl')}."
        )
    engines = {}
    for name, given in others.items():
        pairs, metric = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if name == TARGET or not isinstance(name, str) or not isinstance(pairs, PromptPairs):
            raise PairsError(
                f"Under {name!r} stands {shortened(given)}. Give pairs, or pairs with a "
                f"metric, under a name other than {TARGET!r}."
            )
        engines[name] = bound.engine(pairs, metric=metric)
    return engines


def run_side_effects(
    engine: Engine, others: Mapping[str, Engine], members: ComponentSet, **options: Any
) -> SideEffects:
    """Measures side effects; see `Tracer.side_effects`. `options` as of `measure_side_effects`."""
    with _bar(engine, "side effects"):
        return measure_side_effects(engine, others, members, **options)


def _bar(engine: Engine, label: str, passes: float | None = None) -> AbstractContextManager[Any]:
    """The one progress bar of work, with an end where its passes are known before."""
    return progress.run(label, passes, engine.n_examples, shown=engine.config.progress)
