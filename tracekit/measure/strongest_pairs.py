"""The strongest interactions among thousands of components, without measuring every pair.

N components have N (N - 1) / 2 pairs. Two cheaper questions find the few that matter:

1. *Which components interact with anything?* Let H be the matrix of second derivatives of the mean
   effect at the clean run. Its product with a vector of random signs r is the difference of two
   gradients at soft masks near 0, and the mean of (H r)_i^2 over random r is the sum of H_ij^2 over
   all j (Hutchinson, 1990), by which all components are ranked.
2. *With which?* For the first of them, one look-ahead each: what the other components would add
   once component i is patched, less what they would add to the clean run. For every j at once that
   is l({i, j}) - l({i}) - l({j}) to first order in j. The patch of i is a real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tracekit._util import progress
from tracekit._util.clusters import EvidenceOptions, count_text
from tracekit._util.options import check_int
from tracekit.components import ComponentSet
from tracekit.components.masks import Mask, from_indices
from tracekit.components.members import ComponentsLike, members_of
from tracekit.data.pair import split_disjoint
from tracekit.engine.engine import Engine
from tracekit.measure.effects import added_effects, check_size, chosen_for_pairs
from tracekit.measure.question import Question
from tracekit.results.interactions import StrongestPairs
from tracekit.results.intervals import row_intervals
from tracekit.results.significance import most_testable_rows, p_values, zero_below_rounding
from tracekit.search.targets import require_gradient

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
    the first of them on examples that had no part in this: the held-out ones, or where there are
    none one half of the examples. See `docs/interactions.md` for how many of the strongest pairs it
    finds.

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
