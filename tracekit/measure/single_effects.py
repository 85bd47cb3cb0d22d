"""Measures what each component does alone."""

from __future__ import annotations

from tracekit.components.members import ComponentsLike, ordered_in
from tracekit.engine.example_curves import ExampleCurves
from tracekit.measure.pair_effects import check_size
from tracekit.measure.question import Question
from tracekit.results.intervals import row_intervals
from tracekit.results.significance import p_values, without_rounding
from tracekit.results.single_effects import SingleEffects


def single_effects(question: Question, components: ComponentsLike | None = None) -> SingleEffects:
    """Measures every component alone, on the tracer's own examples: nothing was selected on them.

    One pass a component; methods that rank by gradients, `attribution` and `mask-ig`, take a few
    passes for thousands.

    Args:
        question: The question.
        components: Only these, as a set of `evaluate`.

    Raises:
        ComponentError: More effects than can be held; or about the components.
    """
    engine, registry = question.search_engine, question.registry
    before = engine.cost
    members = range(len(registry)) if components is None else ordered_in(components, registry)
    check_size(len(members), engine.n_examples)
    effects = engine.set_effects([(member,) for member in members], "single effects").double()
    tested, over = effects, engine.pairs.over
    curves = ExampleCurves.for_metric(engine.metric, engine.clean, engine.pairs.weights)
    if curves is not None:
        tested = curves.changes(effects)
    scale, means = tested.abs().amax(0).expand_as(tested), effects.mean(1)
    return SingleEffects(
        members=tuple(members),
        effects=means.float(),
        intervals=row_intervals(effects, bounds=engine.metric.bounds, **over).float(),
        tests=p_values(without_rounding(tested, scale), **over),
        tested="effect" if curves is None else "log-odds",
        same_sign=(effects.sign() == means.sign()[:, None]).float().mean(1),
        full_effect=engine.full_effects.mean().item(),
        n_measured_on=engine.n_examples,
        selected_on=None,
        **question.facts_of(engine, before),
    )
