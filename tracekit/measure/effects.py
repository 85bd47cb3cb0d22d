"""Measured effects of components alone and in pairs, and what sets add to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.members import ComponentsLike, flat_indices_in_order, members_of
from tracekit.engine.engine import Engine
from tracekit.engine.gradients import ExampleCurves
from tracekit.errors import ComponentError
from tracekit.measure.question import Question, examples_of
from tracekit.metrics import Bounds
from tracekit.results.interactions import InteractionGrid
from tracekit.results.intervals import FEWEST, row_intervals
from tracekit.results.significance import p_values, zero_below_rounding
from tracekit.results.single_effects import SingleEffects

_MOST_EFFECTS = 2**29
"""Effects of sets on examples that are held at once: 2 GiB in float32."""
MOST_IN_GRID = 256
"""Components whose pairs a grid shows at most."""


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
    members = (
        range(len(registry)) if components is None else flat_indices_in_order(components, registry)
    )
    check_size(len(members), engine.n_examples)
    effects = engine.set_effects([(member,) for member in members], "single effects").double()
    tested, over = effects, engine.pairs.statistics_options
    curves = ExampleCurves.for_metric(engine.metric, engine.clean, engine.pairs.weights)
    if curves is not None:
        tested = curves.changes(effects)
    scale, means = tested.abs().amax(0).expand_as(tested), effects.mean(1)
    return SingleEffects(
        members=tuple(members),
        effects=means.float(),
        intervals=row_intervals(effects, bounds=engine.metric.bounds, **over).float(),
        tests=p_values(zero_below_rounding(tested, scale), **over),
        tested="effect" if curves is None else "log-odds",
        same_sign=(effects.sign() == means.sign()[:, None]).float().mean(1),
        full_effect=engine.full_effects.mean().item(),
        n_measured_on=engine.n_examples,
        selected_on=None,
        **question.facts_of(engine, before),
    )


def chosen_for_pairs(
    registry: ComponentRegistry,
    components: ComponentsLike | None,
    *,
    given: ComponentSet,
    layers: Sequence[int] | None = None,
    most: int | None = None,
) -> list[int]:
    """Flat indices of the components whose pairs are asked for, of `layers` only if given.

    By default all that are not `given`, which is patched besides. `most` is how many there may be.
    """
    paired = [i for i in range(len(registry)) if i not in set(given)]
    if components is not None:
        paired = flat_indices_in_order(components, registry)
    if len(set(paired)) < len(paired):
        raise ComponentError(
            "A component is named twice among those to be paired. Name each one once."
        )
    both = sorted(set(paired) & set(given))
    if both:
        raise ComponentError(
            f"{registry.label(both[0])} is among those to be paired and patched in every "
            "set by given. Leave it out of one of them."
        )
    if layers is not None:
        paired = [i for i in paired if registry[i].layer in layers]
    if len(paired) < 2 and most is None:
        raise ComponentError(f"{len(paired)} components were chosen for pairs. Choose at least 2.")
    if most is not None and not 2 <= len(paired) <= most:
        raise ComponentError(
            f"{len(paired)} components were chosen for pairs. Choose 2 to {most}, for instance by "
            f"layers; there are components in layers {', '.join(map(str, registry.layers))}. Of "
            "more components, strongest_pairs finds the pairs that interact most."
        )
    return paired


def interactions(
    question: Question,
    components: ComponentsLike | None = None,
    *,
    layers: Sequence[int] | None = None,
    given: ComponentsLike | None = None,
    both_directions: bool = False,
) -> InteractionGrid:
    """Measures every pair of components: l({i, j}) - l({i}) - l({j}).

    Every interaction has a 95 % interval over examples, a p value, and a false discovery rate
    over all pairs. The components of a set are paired on the held-out examples, if the tracer has
    some; all components, or those of layers, on the searched ones. There are no p values on the
    examples that a set was selected on.

    Args:
        question: The question.
        components: The components, as a set of `evaluate`; all by default.
        layers: Only those in these layers.
        given: A set that is patched besides, in every set. Then l is what a set adds to it.
        both_directions: Whether to measure the pairs by noising and by denoising, which tells
            AND from OR: the column `kind` of the table. `given` takes the values of each
            direction.

    Raises:
        ComponentError: Fewer than two components, or so many that the grid would be
            unreadable and its passes countless; or one that is patched besides.
        PairsError: The source is no run of the model that denoising could start from.
    """
    registry, context = question.registry, members_of(given, question.registry, allow_empty=True)
    selected_on = None if components is None else question.selected_on(components)
    asked = [question, question.opposite] if both_directions else [question]
    if layers is not None:
        n_layers = question.model.cfg.n_layers
        layers = [layer + n_layers if layer < 0 else layer for layer in layers]
    paired = chosen_for_pairs(registry, components, given=context, layers=layers, most=MOST_IN_GRID)
    engines = [each.search_engine if components is None else each.eval_engine for each in asked]
    is_own = selected_on in {engine.fingerprint for engine in engines}
    grids = [
        measure_pairs(
            engine,
            paired,
            title=question.title,
            intervention=each.setup.intervention,
            given=context,
            selected_on=engine.fingerprint if is_own else selected_on,
        )
        for each, engine in zip(asked, engines, strict=True)
    ]
    return replace(grids[0], opposite=grids[1]) if both_directions else grids[0]


def measure_pairs(
    engine: Engine,
    components: Sequence[int],
    *,
    title: str = "",
    intervention: str = "",
    given: ComponentSet = (),
    selected_on: str | None = None,
) -> InteractionGrid:
    """Measures every component and every pair of components, in the order wanted on the axes.

    `given` is patched besides, in every set. `selected_on` is the fingerprint of the examples that
    the components were selected on, if a search found them: on these there are no p values.
    """
    n = len(components)
    sets = [*((member,) for member in components), *combinations(components, 2)]
    check_size(len(sets), engine.n_examples)
    effects, context = added_effects(engine, sets, given, "pairs")
    means, (i, j) = effects.mean(1), torch.triu_indices(n, n, offset=1)
    grid = torch.diag(means[:n])
    grid[i, j] = grid[j, i] = means[n:]
    over, bounds = engine.pairs.statistics_options, engine.metric.bounds
    is_few = engine.pairs.n_distinct < FEWEST
    interactions = effects[n:].double() - effects[i].double() - effects[j].double()
    scale = effects[n:].abs() + effects[i].abs() + effects[j].abs()

    def intervals(rows: Tensor, bounds: Bounds) -> Tensor | None:
        return None if is_few else row_intervals(rows, bounds=bounds, **over).float()

    return InteractionGrid(
        labels=tuple(map(engine.registry.label, components)),
        components=tuple(engine.registry[member] for member in components),
        singles=means[:n],
        pairs=grid,
        axis_label=engine.metric.axis_label,
        title=title,
        intervention=intervention,
        given=tuple(map(engine.registry.label, given)),
        given_effect=context,
        direction=engine.metric.direction,
        singles_interval=intervals(effects[:n], bounds.of_sum(1, 1) if given else bounds),
        interaction_interval=intervals(interactions, bounds.of_sum(2, 2)),
        tests=None
        if selected_on == engine.fingerprint
        else p_values(zero_below_rounding(interactions, scale.double()), **over),
        examples=examples_of(engine, selected_on) + (" searched" if selected_on is None else ""),
        n_independent=engine.pairs.n_distinct,
    )


def added_effects(
    engine: Engine, sets: Sequence[ComponentSet], given: ComponentSet, label: str
) -> tuple[Float[Tensor, "set example"], float]:
    """Effects that sets add to a disjoint patched set, by example, and that set's mean effect."""
    if not given:
        return engine.set_effects(sets, label), 0.0
    joined = [given, *(tuple(sorted((*given, *members))) for members in sets)]
    effects = engine.set_effects(joined, label)
    return effects[1:] - effects[0], effects[0].mean().item()


def check_size(n_sets: int, n_examples: int) -> None:
    """Refuses so many sets that their effects on all examples would take over 2 GiB."""
    if n_sets * n_examples > _MOST_EFFECTS:
        raise ComponentError(
            f"{n_sets} sets on {n_examples} examples have {n_sets * n_examples} effects, which are "
            f"held at once; at most {_MOST_EFFECTS} are. Choose fewer components or examples."
        )
