"""A first look: does the model do the task, where does it happen, who does it, what to try next.

A look measures what `pairs.check`, `single_effects`, `mask-ig` and `estimate` measure: of a few
pairs, of the residual stream and of heads and MLP blocks, whatever the tracer's components are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import nan
from typing import Any

import torch

from tracekit._util.options import check_seed, check_whole
from tracekit.components.members import members_of
from tracekit.data.pair import independent, of_own_prompts
from tracekit.data.prompts import PromptPairs
from tracekit.engine import checks
from tracekit.engine.engine import Engine
from tracekit.errors import NotDifferentiableError, TracekitError
from tracekit.measure.known_sets import KnownSets
from tracekit.measure.look import Look, LookPart, Row
from tracekit.measure.question import Question, bind
from tracekit.measure.random_sets import control_sets
from tracekit.measure.single_effects import single_effects
from tracekit.results.on_examples import rows_of
from tracekit.results.result import TraceResult
from tracekit.results.single_effects import SingleEffects
from tracekit.results.tables import result_table
from tracekit.search import MaskIG
from tracekit.tracer.diagnostics import FEWEST_TO_SHARE, TOO_LARGE_A_SHARE, largest_share
from tracekit.tracer.display import tracer_text
from tracekit.tracer.estimate import estimate, estimate_pareto
from tracekit.tracer.plan import plan
from tracekit.tracer.request import Request, resolve_request
from tracekit.tracer.search import search

_LAYERS, _POSITIONS = 9, 12
"""The most layers and token positions of the map of the residual stream."""
_SIZES, _DRAWS, _NAMED = (1, 3, 10), 5, 8
"""Sizes of sets, times a hundredth of the components where these are more; random sets beside each;
components that are named."""
_ADDITIVE, _MUCH = (0.8, 1.25), 1.1
"""What a set does, over the sum of its scores, while ranking is enough; over what all do, while
the set is no other mechanism."""
_FEWEST_TO_SPLIT = 6
"""Independent examples of which half can be held out."""


def look(
    question: Question,
    *,
    examples: int = 16,
    seed: int = 0,
    say: Callable[[LookPart], Any] | None = None,
) -> Look:
    """A first look: does the model do the task, where, by which heads and MLP blocks, what next.

    A few examples are looked at; half of them select sets, the others are held out. It takes about
    50 passes over a half: a minute for 16 pairs of a model of 30 layers on two cores. Metric,
    source, direction and positions are the tracer's, and its components are not asked for.

    Args:
        question: The question.
        examples: The most pairs that are looked at, spread over the data set; where there are
            held-out examples, as many of these again, and no pairs are halved.
        seed: Draws the halves and the random sets.
        say: Is told each part as soon as it is known: `say=print`.

    Raises:
        ConfigError: About the number of examples, or the seed.
    """
    check_seed(seed)
    check_whole("examples", examples)
    few, fresh = question.pairs, question.held_out_pairs
    own = few = few[:: -(-len(few) // examples)]
    fresh = None if fresh is None else fresh[:: -(-len(fresh) // examples)]
    by_prompt = question.source != "counterfactual"
    n_distinct = len({*independent(of_own_prompts(few) if by_prompt else few)})
    if fresh is None and n_distinct >= _FEWEST_TO_SPLIT:
        own, fresh = few.split(0.5, seed=seed, by_prompt=by_prompt)
    parts: list[LookPart] = []

    def tell(name: str, *lines: str, rows: Any = ()) -> None:
        parts.append(LookPart(name=name, lines=lines, rows=tuple(rows)))
        if say is not None:
            say(parts[-1])

    checked = few.check(question.model, progress=question.config.progress)
    asked = _asked(question, question.pairs, own, fresh, components="head-outputs+mlp-blocks")
    title = tracer_text(asked).removeprefix("Tracer(").removesuffix(")")
    odd = [each for each in checked.lines[1:] if each.color != "green"]
    tell("pairs", title, *(f"{each.color:<6} {each.text}" for each in (checked.lines[0], *odd)))
    said = (
        "Task: where every token of x, or of y, is the first choice; mean log-odds of x against y; "
        "KL from clean at the first token that differs"
    )
    tell("task", said, rows=rows_of(replace(asked, pairs=few).choices(), len(few)))
    where, sets = None, list[TraceResult]()
    try:
        where = single_effects(_residual(question, own))
        unit, n = f"share of the effect of all ({where.full_effect:.3g})", where.n_independent
        tell("where", f"Where: residual stream, {unit}, n = {n}", rows=_map(where))
    except TracekitError as error:
        tell("where", f"The map of the residual stream is left out. {error}")
    try:
        n = len(asked.registry)
        sizes = sorted({max(1, min(n - 1, size * max(1, n // 100))) for size in _SIZES})
        request = Request(search=MaskIG(), budgets=sizes, objective="mean", sign="full", seed=seed)
        resolved = resolve_request(asked, request)
        sets = search(asked, resolved, plan(asked, resolved))
        passes, n_text = sets[0].cost.forward_equivalents, sets[0].searched.n_text
        ranked = sets[-1].to_frame().sort_values("score", key=abs, ascending=False).head(_NAMED)
        rows = ranked[["component", "score"]].to_dict("records")
        head = f"Who: gradients along the line, n = {n_text} searched, {passes:.0f} passes"
        tell("who", head, rows=rows)
        brackets = "effect: spread; held out: 95 % interval; random sets of the same kinds: all"
        tell("sets", f"Sets ({brackets})", rows=_with_random(asked, sets, seed))
    except NotDifferentiableError as error:
        tell("who", f"Scores by gradients are left out. {error}")
    options, advice = _advice(asked.search_engine, sets)
    advice.append(f"Next, with tracer = tk.Tracer(model, pairs, {asked.named_setup!r}):")
    tell("next", *advice, rows=_next(question, asked, sets, options))
    return Look(parts=tuple(parts), where=where, sets=tuple(sets))


def _asked(
    question: Question,
    pairs: PromptPairs,
    own: PromptPairs,
    fresh: PromptPairs | None,
    **changes: Any,
) -> Question:
    """The question of other components on some of the pairs; means are over all of them."""
    usual: dict[str, Any] = {"layers": None, "indices": None, "split_by": None, "layer_window": 1}
    setup = replace(question.setup, **(usual | changes))
    asked = replace(
        bind(setup, question.model, pairs, question.config), pairs=own, held_out_pairs=fresh
    )
    checks.check_engine(asked.search_engine)
    return asked


def _residual(question: Question, own: PromptPairs) -> Question:
    """The residual stream of some layers by span, or by positions that all prompts share."""
    n, pairs = int(question.model.cfg.n_layers), question.pairs
    lengths = {len(ids) for pair in pairs for ids in (pair.prompt_ids, pair.counterfactual_ids)}
    split = "span"
    if any(pair.spans is None for pair in pairs):
        if len(lengths) == 1 and max(lengths) <= _POSITIONS:
            split = "position"
        else:
            shared = min(*lengths, _POSITIONS // 2)
            pairs, own = (_from_the_end(each, shared) for each in (pairs, own))
    steps = max(1, min(_LAYERS, n) - 1)
    layers = sorted({round(step * (n - 1) / steps) for step in range(steps + 1)})
    options = {"layers": layers, "split_by": split, "positions": "prompt"}
    return _asked(question, pairs, own, None, components="residual", **options)


def _from_the_end(pairs: PromptPairs, count: int) -> PromptPairs:
    """Pairs with a span for each of their last tokens, named by its place from the end."""
    placed = []
    for pair in pairs:
        n, other = len(pair.prompt_ids), len(pair.counterfactual_ids)
        mine, theirs = ({str(-k): (of - k,) for k in range(count, 1, -1)} for of in (n, other))
        others = None if n == other else theirs
        placed.append(replace(pair, spans=mine, counterfactual_spans=others))
    return replace(pairs, pairs=tuple(placed))


def _map(where: SingleEffects) -> list[Row]:
    """A row a layer, a column a span."""
    rows: dict[int, Row] = {}
    shares = (where.effects / (where.full_effect or nan)).tolist()
    for each, share in zip(where.components, shares, strict=True):
        rows.setdefault(each.layer, {"layer": each.layer})[str(each.span)] = round(share, 3) + 0.0
    return [*rows.values()]


def _with_random(asked: Question, sets: list[TraceResult], seed: int) -> Iterator[Row]:
    """Sets beside random sets of the same kinds: a layer has but one MLP block."""
    drawn = torch.Generator().manual_seed(seed)
    share = "share, searched" if asked.held_out_engine is None else "share, held out"
    effects = ("effect, searched", "95 % spread", "effect, held out", "95 % interval")
    table = result_table(sets).only("n_selected", *effects, share)
    for each, row in zip(sets, table.records(), strict=True):
        members = members_of(each, each.registry)
        others = control_sets(asked.registry, members, _DRAWS, drawn, "kinds")
        means = asked.eval_engine.set_effects(others, "random sets").mean(1).tolist() or [None]
        row |= {"random": sum(means) / len(means) if others else None}
        row |= {"random_low": min(means), "random_high": max(means)}
        yield row | {"components": each.labels}


def _advice(engine: Engine, sets: list[TraceResult]) -> tuple[dict[str, Any], list[str]]:
    """Options of a search that suit, and why."""
    metric, effects = engine.metric, engine.full_effects
    mean, options, said = effects.mean().item(), dict[str, Any](), []
    if mean < 0:
        options["sign"] = "negative"
        said.append(f"The effect of all is {mean:.3g}, below 0: search with sign='negative'.")
    number, share = largest_share(effects)
    if len(effects) >= FEWEST_TO_SHARE and share > TOO_LARGE_A_SHARE:
        options["objective"] = "median" if metric.linearization is None else "log-odds"
        which = f"Example {number} ({engine.pairs[number].describe()})"
        carries = f"{which} carries {100 * share:.0f} % of the effect of all components"
        carries += f", summed in size over {len(effects)} examples"
        said.append(f"{carries}: search with objective={options['objective']!r}.")
    elif any(each.share_of_full_effect > _MUCH for each in sets):
        options["objective"] = "faithful"
        said.append("Sets have more effect than all together: objective='faithful' seeks circuits.")
    if metric.upper_bound is not None:
        said.append(f"{metric.name} is bounded, where sets look alike: try logit-difference.")
    return options, said


def _next(
    question: Question, asked: Question, sets: list[TraceResult], options: dict[str, Any]
) -> Iterator[Row]:
    """Calls to try, with their cost on all of the tracer's pairs."""
    pairs: Any = {"pairs": question.pairs, "held_out_pairs": question.held_out_pairs}
    whole = replace(asked, **pairs, sets=KnownSets(), results=[])
    more = "".join(f", {name}={value!r}" for name, value in options.items())
    size, method, why = 1, "top-k", "the metric has no gradient"
    if sets:
        middle, (low, high) = sets[len(sets) // 2], _ADDITIVE
        size, total = middle.n_selected, middle.ranked_by[middle.binary_mask].sum().item()
        is_enough = low < middle.effect / (total or nan) < high
        method = "mask-ig" if is_enough else "local-search"
        why = f"scores sum to {total:.3g}, together they do {middle.effect:.3g}: "
        why += "ranking is enough" if is_enough else "search"
    most = max(1, len(asked.registry) // 10)
    calls = [(f"run({method!r}, budget={size}{more})", why)]
    costs = [estimate(whole, method, budget=size, **options)]
    if sets:
        calls.append((f"pareto(max_budget={most}{more})", "the best set of every size"))
        costs.append(estimate_pareto(whole, max_budget=most, **options))
    calls.append(("single_effects()", "each alone, with q"))
    costs.append(estimate(whole, "top-k", budget=1))
    for (call, reason), cost in zip(calls, costs, strict=True):
        passes, minutes = cost.passes + cost.further, cost.seconds / 60
        yield {"call": f"tracer.{call}", "why": reason, "passes": passes, "minutes": minutes}
