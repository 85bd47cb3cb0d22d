"""Measured effects of components alone and in pairs, and what sets add to others.

`strongest_pairs` measures the few of N (N - 1) / 2 pairs that matter, chosen by gradients in two
steps (`docs/interactions.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util import progress
from tracekit._util.clusters import EvidenceOptions, count_text
from tracekit._util.options import check_int
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.masks import Mask, from_indices
from tracekit.components.members import ComponentsLike, flat_indices_in_order, members_of
from tracekit.data.pair import split_disjoint
from tracekit.engine.engine import Engine
from tracekit.engine.gradients import ExampleCurves
from tracekit.errors import ComponentError
from tracekit.measure.question import Question, examples_of
from tracekit.metrics import Bounds
from tracekit.results.by_component import SingleEffects
from tracekit.results.interactions import InteractionGrid, StrongestPairs
from tracekit.results.intervals import FEWEST, row_intervals
from tracekit.results.significance import most_testable_rows, p_values, zero_below_rounding
from tracekit.search.targets import require_gradient

_MOST_EFFECTS = 2**29
"""Effects of sets on examples that are held at once: 2 GiB in float32."""
MOST_IN_GRID = 256
"""Components whose pairs a grid shows at most."""


def single_effects(question: Question, components: ComponentsLike | None = None) -> SingleEffects:
    """Measures every component alone, on the tracer's own examples: nothing was selected on them.

    It takes a pass for each component. `attribution` and `mask-ig` rank thousands in a few passes.

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
        both_directions: Whether to measure the pairs by noising and by denoising, which tells AND
            from OR (column `kind`). `given` takes the values of each direction.

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


_STEP = 0.02
"""Value of the soft masks at which gradients are compared."""
_PROBES = 32
"""Vectors of random signs."""
_LEAST_SPLIT = 8
"""Examples from which one half proposes pairs and the other half tests them."""
_LEAST_MEASURED = 100
_MEASURED_PER_PAIR = 5
"""Pairs that are measured: so many for each one asked for, and at least the number above."""
_Proposal = tuple[tuple[int, int], float]
"""A pair to measure, and its predicted interaction."""


def strongest_pairs(
    question: Question,
    count: int = 20,
    *,
    components: ComponentsLike | None = None,
    given: ComponentsLike | None = None,
    n_looked_at: int = 64,
    seed: int = 0,
) -> StrongestPairs:
    """Finds the pairs that interact most among any number of components.

    `interactions` measures every pair. Of thousands of components, this method proposes pairs from
    gradients, measures five times as many as asked for (at least 100), and ranks these. It tests
    the first of them on examples that had no part in this: the held-out ones, or else half of the
    examples. See `docs/interactions.md` for how many of the strongest pairs it finds.

    Args:
        question: The question.
        count: Pairs wanted.
        components: The components, as a set of `evaluate`; all by default.
        given: What is patched besides, in every set, as in `interactions`.
        n_looked_at: Components whose interactions with all others are predicted, one by one;
            the more, the more passes, and the fewer pairs are missed.
        seed: Draws the halves, and the random signs that choose these components.

    Raises:
        ComponentError: Fewer than two components, or one that is patched besides.
        ConfigError: A number of pairs or components that cannot be.
        NotDifferentiableError: The metric has no gradient.
    """
    require_gradient(question.search_engine.metric, "strongest_pairs")
    context = members_of(given, question.registry, allow_empty=True)
    engine = question.search_engine
    paired = chosen_for_pairs(question.registry, components, given=context)
    check_int("count", count)
    check_int("n_looked_at", n_looked_at)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(engine.n_examples, generator=generator).tolist()
    # Whoever chooses pairs by some examples cannot test them by the same ones.
    proposing, testing, fresh = None, None, question.held_out_engine
    examples = "the examples that proposed them" if fresh is None else "held-out examples"
    if fresh is None and engine.pairs.n_distinct >= _LEAST_SPLIT:
        proposing, testing = map(torch.tensor, split_disjoint(engine.pairs, order, len(order) // 2))
        examples = "the half of the examples that proposed nothing"
    most, shown = max(_LEAST_MEASURED, _MEASURED_PER_PAIR * count), engine.config.progress
    with progress.open_bar("proposals of pairs", None, engine.n_examples, shown=shown):
        looked_at = _interacting(engine, paired, context, proposing, n_looked_at, generator)
        proposals = _proposals(engine, paired, looked_at, context, proposing, most)
    together, parts = _measured(engine, proposals, context)
    interactions = together - parts.sum(1)
    own = (interactions if proposing is None else interactions[:, proposing]).mean(1)
    strongest = own.abs().argsort(descending=True)[:count]
    chosen = [proposals[row] for row in strongest.tolist()]
    together, parts = together[strongest], parts[strongest]
    measured, over = engine.pairs, engine.pairs.statistics_options
    if fresh is not None:
        together, parts = _measured(fresh, chosen, context)
        measured, over = fresh.pairs, fresh.pairs.statistics_options
    elif testing is not None:
        together, parts = together[:, testing], parts[..., testing]
        measured, weights = engine.pairs.subset(testing.tolist()), engine.pairs.weights
        # Effects are times the weights among all examples.
        weights = None if weights is None else weights[testing]
        over = EvidenceOptions(weights=weights, clusters=measured.clusters)
    interactions = together - parts.sum(1)
    intervals = tests = None
    if fresh is not None or testing is not None:
        bounds, n = engine.metric.bounds.of_sum(2, 2), most_testable_rows(measured.n_distinct)
        intervals = row_intervals(interactions, bounds=bounds, **over).float()
        scale = together.abs() + parts.abs().sum(1)
        tests = p_values(zero_below_rounding(interactions[:n], scale[:n]), **over)
    label = engine.registry.label
    return StrongestPairs(
        first=tuple(label(i) for (i, _), _ in chosen),
        second=tuple(label(j) for (_, j), _ in chosen),
        effects=together.mean(1).float(),
        interactions=interactions.mean(1).float(),
        proposed=own[strongest].float(),
        predicted=torch.tensor([predicted for _, predicted in chosen]),
        intervals=intervals,
        tests=tests,
        examples=f"{examples}, n = {count_text(len(measured), measured.clusters)}",
        n_components=len(paired),
        n_measured=len(proposals),
        given=tuple(label(i) for i in context),
        axis_label=engine.metric.axis_label,
        intervention=question.setup.intervention,
        title=question.title,
    )


def _interacting(
    engine: Engine,
    components: Sequence[int],
    given: ComponentSet,
    examples: Int[Tensor, " some"] | None,
    count: int,
    generator: torch.Generator,
) -> list[int]:
    """The components with the largest second derivatives, as random signs tell them."""
    if len(components) <= count:
        return list(components)
    base, chosen = from_indices(given, engine.n_components).float(), torch.tensor(components)
    squares, own = torch.zeros(2, len(components), dtype=torch.float64)

    def gradient(values: Float[Tensor, " component"]) -> Float[Tensor, " component"]:
        mask = base.index_put((chosen,), values)
        return engine.gradient(mask, torch.ones_like, examples)[1].cpu()[chosen].double()

    middle = gradient(torch.full((len(components),), _STEP / 2))
    for _ in range(_PROBES):
        signs = torch.randint(2, (len(components),), generator=generator) * 2.0 - 1
        product = gradient(_STEP / 2 * (1 + signs)) - middle
        squares += product.square()
        own += signs * product
    # The mean of r_i (H r)_i is H_ii: how a component bends by itself, which is no interaction.
    others = squares / _PROBES - (own / _PROBES).square()
    return chosen[others.argsort(descending=True)[:count]].tolist()


def _proposals(
    engine: Engine,
    components: Sequence[int],
    looked_at: Sequence[int],
    given: ComponentSet,
    examples: Int[Tensor, " some"] | None,
    most: int,
) -> list[_Proposal]:
    """Pairs to measure: in turn the largest that either prediction of `engine/gradients.py` has."""
    base = engine.predict_changes(given, examples=examples)
    of_base = [base.predicted_effects, base.gradient]
    if engine.metric.is_flat_at_clean and not given:
        # The gradient of a distance is 0 at the clean run; the look-ahead there is another one.
        of_base = [torch.zeros_like(part) for part in of_base]
    rows: list[list[Mask]] = [[], []]
    for member in looked_at:
        there = engine.predict_changes(tuple(sorted((*given, member))), examples=examples)
        for number, value in enumerate((there.predicted_effects, there.gradient)):
            rows[number].append((value - of_base[number]).nan_to_num())
    ranked = [_ranked(torch.stack(of_one), components, looked_at, most) for of_one in rows]
    merged: dict[tuple[int, int], float] = {}
    for pair, predicted in chain.from_iterable(zip(*ranked, strict=True)):
        merged.setdefault(pair, predicted)
    return list(merged.items())[:most]


def _measured(
    engine: Engine, proposals: Sequence[_Proposal], given: ComponentSet
) -> tuple[Float[Tensor, "pair example"], Float[Tensor, "pair 2 example"]]:
    """Effects of both components of each pair together, and of each of them."""
    pairs = [pair for pair, _ in proposals]
    members = sorted({*chain.from_iterable(pairs)})
    sets: list[ComponentSet] = [*((member,) for member in members), *pairs]
    check_size(len(sets), engine.n_examples)
    effects, _ = added_effects(engine, sets, given, "strongest pairs")
    row_of = {member: row for row, member in enumerate(members)}
    rows = torch.tensor([[row_of[i], row_of[j]] for i, j in pairs])
    return effects[len(members) :].double(), effects[rows].double()


def _ranked(
    rows: Float[Tensor, "row component"],
    components: Sequence[int],
    looked_at: Sequence[int],
    most: int,
) -> list[_Proposal]:
    """Pairs of a component that was looked at and any in question, by predicted interaction.

    Each row is of one that was looked at: predicted interactions with all components of the model.
    """
    at, predicted = torch.tensor(looked_at), rows.clone()
    # Of two that were looked at there are two predictions: their mean counts, once.
    between = rows[:, at]
    predicted[:, at] = (between + between.T) / 2
    is_in_question = torch.zeros(rows.shape[1], dtype=torch.bool)
    is_in_question[torch.tensor(components)] = True
    size = predicted.abs().masked_fill(~is_in_question, -1)
    size[:, at] = size[:, at].masked_fill(torch.ones_like(between).tril().bool(), -1)
    best = size.flatten().topk(min(int((size >= 0).sum()), most)).indices
    pairs = zip((best // rows.shape[1]).tolist(), (best % rows.shape[1]).tolist(), strict=True)
    return [
        ((min(looked_at[row], other), max(looked_at[row], other)), predicted[row, other].item())
        for row, other in pairs
    ]
