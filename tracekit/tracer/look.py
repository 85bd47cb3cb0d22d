"""A first look: does the model do the task, where does it happen, who does it, what to try next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import nan
from typing import Any

import torch

from tracekit._util.options import check_int, check_seed
from tracekit.components.members import members_of
from tracekit.data.pair import cluster_ids, identify_by_prompt
from tracekit.data.prompts import PromptPairs
from tracekit.engine import checks
from tracekit.engine.engine import Engine
from tracekit.errors import NotDifferentiableError, TracekitError
from tracekit.measure.controls import control_sets
from tracekit.measure.effects import single_effects
from tracekit.measure.look import Look, LookPart, LookRow
from tracekit.measure.question import KnownSets, Question, bind
from tracekit.results.by_component import SingleEffects
from tracekit.results.on_examples import choice_rows
from tracekit.results.result import TraceResult
from tracekit.results.tables import result_table
from tracekit.search import MaskIG
from tracekit.tracer.diagnostics import FEWEST_TO_SHARE, TOO_LARGE_A_SHARE, largest_share
from tracekit.tracer.display import tracer_text
from tracekit.tracer.estimate import estimate, estimate_pareto
from tracekit.tracer.request import Request, plan, resolve_request
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

    Half of the examples select sets, the others are held out. It takes about 50 passes over a half:
    a minute for 16 pairs of a model of 30 layers on two cores. Components are all heads and MLPs.

    Args:
        question: The question.
        examples: The most pairs to use, spread over the data set. With held-out examples, as many
            of these are used too, and the pairs are not halved.
        seed: Draws the halves and the random sets.
        say: Is called with each part as soon as it is known, e.g. `print`.

    Raises:
        ConfigError: About the number of examples, or the seed.
    """
    check_seed(seed)
    check_int("examples", examples)
    pairs, searched, held_out = _split(question, examples, seed)
    parts: list[LookPart] = []

    def add_part(name: str, *lines: str, rows: Any = ()) -> None:
        parts.append(LookPart(name=name, lines=lines, rows=tuple(rows)))
        if say is not None:
            say(parts[-1])

    check = pairs.check(question.model, progress=question.config.progress)
    of_parts = _question_of(
        question, question.pairs, searched, held_out, components="head-outputs+mlp-blocks"
    )
    title = tracer_text(of_parts).removeprefix("Tracer(").removesuffix(")")
    problems = [line for line in check.lines[1:] if line.color != "green"]
    lines = [f"{line.color:<6} {line.text}" for line in (check.lines[0], *problems)]
    add_part("pairs", title, *lines)
    add_part(
        "task",
        "Task: where every token of x, or of y, is the first choice; mean log-odds of x against y; "
        "KL from clean at the first token that differs",
        rows=choice_rows(replace(of_parts, pairs=pairs).choices(), len(pairs)),
    )
    where, sets = None, list[TraceResult]()
    try:
        where = single_effects(_residual_question(question, searched))
        unit, n = f"share of the effect of all ({where.full_effect:.3g})", where.n_independent
        add_part("where", f"Where: residual stream, {unit}, n = {n}", rows=_residual_rows(where))
    except TracekitError as error:
        add_part("where", f"The map of the residual stream is left out. {error}")
    try:
        sets = _ranked_sets(of_parts, seed)
        passes, n_text = sets[0].cost.forward_equivalents, sets[0].searched.n_text
        ranking = sets[-1].to_frame().sort_values("score", key=abs, ascending=False).head(_NAMED)
        add_part(
            "who",
            f"Who: gradients along the line, n = {n_text} searched, {passes:.0f} passes",
            rows=ranking[["component", "score"]].to_dict("records"),
        )
        brackets = "effect: spread; held out: 95 % interval; random sets of the same kinds: all"
        add_part("sets", f"Sets ({brackets})", rows=_rows_of_sets(of_parts, sets, seed))
    except NotDifferentiableError as error:
        add_part("who", f"Scores by gradients are left out. {error}")
    options, advice = _advice(of_parts.search_engine, sets)
    advice.append(f"Next, with tracer = tk.Tracer(model, pairs, {of_parts.named_setup!r}):")
    add_part("next", *advice, rows=_suggestions(question, of_parts, sets, options))
    return Look(parts=tuple(parts), where=where, sets=tuple(sets))


def _split(
    question: Question, examples: int, seed: int
) -> tuple[PromptPairs, PromptPairs, PromptPairs | None]:
    """Some of the pairs, spread over the data set; those to search on; those that are held out."""
    pairs, held_out = question.pairs, question.held_out_pairs
    pairs = pairs[:: -(-len(pairs) // examples)]
    if held_out is not None:
        return pairs, pairs, held_out[:: -(-len(held_out) // examples)]
    by_prompt = question.source != "counterfactual"
    n_distinct = len({*cluster_ids(identify_by_prompt(pairs) if by_prompt else pairs)})
    if n_distinct < _FEWEST_TO_SPLIT:
        return pairs, pairs, None
    return pairs, *pairs.split(0.5, seed=seed, by_prompt=by_prompt)


def _question_of(
    question: Question,
    pairs: PromptPairs,
    searched: PromptPairs,
    held_out: PromptPairs | None,
    **changes: Any,
) -> Question:
    """The question of other components on some of the pairs; means are over all `pairs`."""
    usual: dict[str, Any] = {"layers": None, "indices": None, "split_by": None, "layer_window": 1}
    setup = replace(question.setup, **(usual | changes))
    bound = bind(setup, question.model, pairs, question.config)
    other = replace(bound, pairs=searched, held_out_pairs=held_out)
    checks.check_engine(other.search_engine)
    return other


def _ranked_sets(question: Question, seed: int) -> list[TraceResult]:
    """Sets of a few sizes, of the components that gradients along the line rank first."""
    n = len(question.registry)
    sizes = sorted({max(1, min(n - 1, size * max(1, n // 100))) for size in _SIZES})
    request = Request(search=MaskIG(), budgets=sizes, objective="mean", sign="full", seed=seed)
    resolved = resolve_request(question, request)
    return search(resolved, plan(resolved))


def _residual_question(question: Question, searched: PromptPairs) -> Question:
    """The residual stream of some layers by span, or by positions that all prompts share."""
    n, pairs = int(question.model.cfg.n_layers), question.pairs
    lengths = {len(ids) for pair in pairs for ids in (pair.prompt_ids, pair.counterfactual_ids)}
    split = "span"
    if any(pair.spans is None for pair in pairs):
        if len(lengths) == 1 and max(lengths) <= _POSITIONS:
            split = "position"
        else:
            n_shared = min(*lengths, _POSITIONS // 2)
            pairs = _with_last_spans(pairs, n_shared)
            searched = _with_last_spans(searched, n_shared)
    steps = max(1, min(_LAYERS, n) - 1)
    layers = sorted({round(step * (n - 1) / steps) for step in range(steps + 1)})
    options = {"layers": layers, "split_by": split, "positions": "prompt"}
    return _question_of(question, pairs, searched, None, components="residual", **options)


def _with_last_spans(pairs: PromptPairs, count: int) -> PromptPairs:
    """Pairs with a span for each of their last tokens, named by its place from the end."""

    def last_spans(n_tokens: int) -> dict[str, tuple[int, ...]]:
        return {str(-k): (n_tokens - k,) for k in range(count, 1, -1)}

    with_spans = []
    for pair in pairs:
        n, n_counterfactual = len(pair.prompt_ids), len(pair.counterfactual_ids)
        spans = None if n == n_counterfactual else last_spans(n_counterfactual)
        with_spans.append(replace(pair, spans=last_spans(n), counterfactual_spans=spans))
    return replace(pairs, pairs=tuple(with_spans))


def _residual_rows(where: SingleEffects) -> list[LookRow]:
    rows: dict[int, LookRow] = {}
    shares = (where.effects / (where.full_effect or nan)).tolist()
    for each, share in zip(where.components, shares, strict=True):
        # Adding 0 makes 0 of -0.
        rows.setdefault(each.layer, {"layer": each.layer})[str(each.span)] = round(share, 3) + 0.0
    return list(rows.values())


def _rows_of_sets(question: Question, sets: list[TraceResult], seed: int) -> Iterator[LookRow]:
    """Sets beside random sets of the same kinds: a layer has but one MLP block."""
    generator = torch.Generator().manual_seed(seed)
    share = "share, searched" if question.held_out_engine is None else "share, held out"
    effects = ("effect, searched", "95 % spread", "effect, held out", "95 % interval")
    table = result_table(sets).only("n_selected", *effects, share)
    for each, row in zip(sets, table.records(), strict=True):
        members = members_of(each, each.registry)
        others = control_sets(question.registry, members, _DRAWS, generator, "kinds")
        means = question.eval_engine.set_effects(others, "random sets").mean(1).tolist() or [None]
        row |= {"random": sum(means) / len(means) if others else None}
        row |= {"random_low": min(means), "random_high": max(means)}
        yield row | {"components": each.labels}


def _advice(engine: Engine, sets: list[TraceResult]) -> tuple[dict[str, Any], list[str]]:
    metric, effects = engine.metric, engine.full_effects
    mean, options, advice = effects.mean().item(), dict[str, Any](), []
    if mean < 0:
        options["sign"] = "negative"
        advice.append(f"The effect of all is {mean:.3g}, below 0: search with sign='negative'.")
    number, share = largest_share(effects)
    if len(effects) >= FEWEST_TO_SHARE and share > TOO_LARGE_A_SHARE:
        options["objective"] = "median" if metric.linearization is None else "log-odds"
        which = f"Example {number} ({engine.pairs[number].describe()})"
        carries = f"{which} carries {100 * share:.0f} % of the effect of all components"
        carries += f", summed in size over {len(effects)} examples"
        advice.append(f"{carries}: search with objective={options['objective']!r}.")
    elif any(each.share_of_full_effect > _MUCH for each in sets):
        options["objective"] = "faithful"
        advice.append(
            "Sets have more effect than all components: objective='faithful' looks for circuits."
        )
    if metric.upper_bound is not None:
        advice.append(f"{metric.name} is bounded, where sets look alike: try logit-difference.")
    return options, advice


def _suggestions(
    question: Question, of_parts: Question, sets: list[TraceResult], options: dict[str, Any]
) -> Iterator[LookRow]:
    """Calls to try, with their cost on all of the tracer's pairs."""
    pairs: Any = {"pairs": question.pairs, "held_out_pairs": question.held_out_pairs}
    whole = replace(of_parts, **pairs, sets=KnownSets(), results=[])
    more = "".join(f", {name}={value!r}" for name, value in options.items())
    size, method, why = 1, "top-k", "the metric has no gradient"
    if sets:
        middle, (low, high) = sets[len(sets) // 2], _ADDITIVE
        size, total = middle.n_selected, middle.ranked_by[middle.binary_mask].sum().item()
        is_enough = low < middle.effect / (total or nan) < high
        method = "mask-ig" if is_enough else "local-search"
        why = f"scores sum to {total:.3g}, together they do {middle.effect:.3g}: "
        why += "ranking is enough" if is_enough else "search"
    most = max(1, len(of_parts.registry) // 10)
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
