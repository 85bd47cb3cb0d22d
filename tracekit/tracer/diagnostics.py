"""Warnings about effects that say little: weak, of one example only, or gone on fresh examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import copysign
from weakref import WeakSet

from tracekit._util.warn import warn
from tracekit.data.pairs_report import describe_bias, make_report
from tracekit.data.prompts import PromptPairs
from tracekit.engine.engine import Engine
from tracekit.errors import SearchStoppedWarning, UnreliableResultWarning
from tracekit.measure.question import Question
from tracekit.metrics import METRICS
from tracekit.results.on_examples import largest_share
from tracekit.results.pareto_front import ParetoFront
from tracekit.results.result import TraceResult
from tracekit.search.auto import FEWEST_EXAMPLES
from tracekit.search.objectives import Faithful
from tracekit.tracer.request import Plan, ResolvedRequest

_NEAR_ZERO = 0.01
"""Effect below which a built-in metric (ratio, probability, nats) shows next to nothing."""
TOO_LARGE_A_SHARE = 1 / 3
"""Share of an effect beyond which one example speaks for all."""
FEWEST_TO_SHARE = 8
"""Examples below which one may well carry half of the mean."""
_AS_GOOD = 0.05
"""Share of a value by which another set may be worse and still is as good; beyond it, better."""
_HALF = 0.5
"""Faithfulness below which a set that was sought to be faithful does not do the task."""
_SIMILAR = 1 / 3
"""Jaccard similarity below which two sets of a size share less than half of their components."""

_WARNED: WeakSet[Engine] = WeakSet()
_warn_unreliable = partial(warn, category=UnreliableResultWarning)


def warn_of_pairs(question: Question) -> None:
    """Warns, once for each kind, of pairs that show nothing, or something else than was meant."""
    metric, tokenizer = question.search_engine.metric, getattr(question.model, "tokenizer", None)
    for pairs, title in ((question.pairs, ""), (question.held_out_pairs, "Held-out pairs: ")):
        if pairs is None:
            continue
        report = make_report(pairs, pairs.token_texts, tokenizer)
        if question.source != "counterfactual":
            report = report.without("equal-prompts", "shifted")
        if not metric.needs_y:
            report = report.without("equal-continuations")
        if not metric.needs_y or metric.reads:
            report = report.without("token-counts")
        report.warn(title)


def warn_before(request: ResolvedRequest, requested_sign: str | None, planned: Plan | None) -> None:
    """Warns of effects that say little, and of what the limits of a search do not bound."""
    warn_of_effects(request.question.search_engine)
    warn_of_sign(request, requested_sign)
    if planned is not None and planned.limit_warning is not None:
        warn(planned.limit_warning, SearchStoppedWarning)


def warn_of_effects(engine: Engine) -> None:
    """Warns, once, where the effect of all components says little about the data set."""
    if engine in _WARNED:
        return
    _WARNED.add(engine)
    clean, n = engine.clean, engine.n_examples
    if engine.metric.needs_y and engine.metric.direction == "noising" and clean.y is not None:
        n_y = int((clean.x <= clean.y).sum())
        many = f"all {n}" if n_y == n else f"{n_y} of {n}"
        todo = "exchange x and y, or the prompts, unless that is meant"
        todo = todo if n_y == n else "keep the pairs that the model knows, by pairs.known(model)"
        if bias := describe_bias(engine.pairs, (clean.x > clean.y).tolist()):
            _warn_unreliable(bias)
        elif n_y > n / 2:
            _warn_unreliable(
                f"The clean model finds y at least as probable as x on {many} examples. x is the "
                f"continuation that the clean prompt favours: {todo}."
            )
    effects = engine.full_effects
    mean = effects.mean().item()
    if engine.metric.name in METRICS and abs(mean) < _NEAR_ZERO:
        _warn_unreliable(
            f"All components together have an effect of only {mean:.3g}. Either the model does not "
            "do this task, or these components and positions have no part in it."
        )
    largest, share = largest_share(effects)
    if n >= FEWEST_TO_SHARE and share > 0.5:
        _warn_unreliable(
            f"Example {largest} ({engine.pairs[largest].describe()}) carries {100 * share:.0f} % "
            f"of the effect of all components, summed in size over all {n} examples. What is found "
            "holds for this one; use a metric in nats such as logit-difference, or leave the "
            "example out."
        )


def warn_of_sign(request: ResolvedRequest, requested_sign: str | None) -> None:
    """Warns where all components together have another sign than what a search seeks.

    Not where a positive one was asked for, nor where only what all do is sought. A target effect
    has its own sign, so with one no other sign is advised.
    """
    engine, sought = request.question.search_engine, request.sign
    mean = engine.full_effects.mean().item()
    has_target = request.goal.target is not None
    is_faithful = isinstance(request.objective, Faithful)
    is_some = engine.metric.name not in METRICS or abs(mean) >= _NEAR_ZERO
    if mean * sought < 0 and is_some and requested_sign != "positive" and not is_faithful:
        todo = "or exchange x and y, or the prompts"
        todo = f"Give a target_effect of the other sign, {todo}" if has_target else todo
        todo = todo if has_target else f"Give sign='full' for sets that do what all do, {todo}"
        is_away = (mean > 0) == (engine.metric.direction == "noising")
        _warn_unreliable(
            f"All components together have an effect of {mean:.3g}: they move the metric "
            f"{'away from x' if is_away else 'towards x'}, and the search seeks sets that move it "
            f"the other way, with effects {'above' if sought > 0 else 'below'} 0. {todo}."
        )


def warn_of_results(
    results: Sequence[TraceResult], pairs: PromptPairs, noise_floor: float = 0.0
) -> None:
    """Warns of sets that one example carries or that fail held out, noise, interruptions."""
    _warn_of_noise(results, noise_floor)
    _warn_of_other_sign(results)
    worst = max(results, key=lambda result: largest_share(result.per_example)[1])
    number, share = largest_share(worst.per_example)
    n = len(worst.per_example)
    if n >= FEWEST_TO_SHARE and share > TOO_LARGE_A_SHARE:
        _warn_unreliable(
            f"Example {number} ({pairs[number].describe()}) carries {100 * share:.0f} % of the "
            f"effect of the selected set (size {worst.n_selected}) on all {n} examples. Search "
            f"with {_robust_search_options(worst)}, or leave the example out."
        )
    rows = [(r.n_selected, r.effect, r.held_out_effect) for r in results]
    _warn_of_held_out(rows, _robust_search_options(results[0]))
    warn_of_circuits(results)
    if any(result.stopped == "interrupted" for result in results):
        warn("Stopped by Ctrl-C: the result is the best found so far.", SearchStoppedWarning)


def warn_of_circuits(results: Sequence[TraceResult]) -> None:
    """Warns of the set that overshoots most, and of the one whose complement does most.

    It also warns of the largest set that was sought to be faithful, if that does not do half of the
    task. The intervals decide, of the held-out examples if there are some.
    """
    measured = [
        (result, result.faithfulness())
        for result in results
        if result.full_effect * (-1 if result.run.sign == "negative" else 1) > 0
        and result.searched.complement is not None
    ]
    beyond = [each for each in measured if each[1].overshoots[0]]
    if beyond:
        result, scores = max(beyond, key=lambda each: each[1].shares_of_full[0])
        _warn_unreliable(
            f"The set of {result.n_selected} has {scores.shares_of_full[0]:.2f} times the effect "
            "of all components: it leaves out those that push back. Its faithfulness is "
            f"{scores.faithfulness[0]:.2f}, where 1 is what the model does."
            + _faithful_instead(result)
        )
    sought = [each for each in measured if each[0].run.objective.startswith("faithful")]
    if sought:
        result, scores = max(sought, key=lambda each: each[0].n_selected)
        if scores.faithfulness_intervals[0][1] < _HALF:
            _warn_unreliable(
                f"The set of {result.n_selected} was sought to be faithful, and does "
                f"{scores.faithfulness[0]:.2f} of the task alone, where 1 is what the model does: "
                "it is no circuit yet. Give a larger budget, or several (budgets=...)."
            )
    both = [each for each in measured if each[1].incomplete[0]]
    # Of the residual stream, any layer carries what all others do.
    both = [
        each for each in both if not any("hook_resid" in n for n in each[0].registry.hook_names)
    ]
    if both:
        result, scores = max(both, key=lambda each: each[1].completeness[0])
        _warn_unreliable(
            f"The set of {result.n_selected} does {scores.faithfulness[0]:.2f} of the task alone, "
            f"and all other components without it do {scores.completeness[0]:.2f}: it is not "
            "complete. Look for what stands in for it: tracer.explain(result)."
        )


def _robust_search_options(result: TraceResult, *, is_front: bool = False) -> str:
    """Options of a search like that of a result, which few examples decide less."""
    metric, objectives = METRICS.get(str(result.setup.metric)), []
    if result.constraint is None and len(result.per_example) >= FEWEST_EXAMPLES:
        objectives.append("auto")
    has_log_odds = metric is not None and metric.linearization is not None
    objectives.append("log-odds" if has_log_odds else "median")
    named = " or ".join(repr(each) for each in objectives if each != result.run.objective)
    text = f"objective={named}" if named else "a smaller budget"
    return text if is_front or result.budget is not None or not named else f"a budget and {text}"


def _faithful_instead(result: TraceResult) -> str:
    if result.run.objective.startswith("faithful"):
        return ""
    budget = "a budget and " if result.budget is None else ""
    return f" Search with {budget}objective='faithful' for that."


def _warn_of_other_sign(results: Sequence[TraceResult]) -> None:
    sought = -1 if results[0].run.sign == "negative" else 1
    least = min(results, key=lambda result: sought * result.effect)
    if sought * least.effect < 0 and not least.run.objective.startswith("faithful"):
        _warn_unreliable(
            f"Effects {'below' if sought < 0 else 'above'} 0 were sought, and the selected set of "
            f"{least.n_selected} has an effect of {least.effect:+.3g}: {least.run.title} found no "
            "set of that sign. Try local-search, which measures sets together, or another size."
        )


def _warn_of_noise(results: Sequence[TraceResult], floor: float) -> None:
    least = min(results, key=lambda result: abs(result.effect))
    sizes = {f"The effect of the set of {least.n_selected}": abs(least.effect)}
    if (scores := results[0].component_scores) is not None:
        sizes["That of most single components"] = scores.abs().median().item()
    text = " ".join(f"{of} is {size:.2g}." for of, size in sizes.items())
    if min(sizes.values()) < floor:
        _warn_unreliable(
            f"{text} The model's rounding alone can make one of {floor:.2g} (noise_floor). Load "
            "the model with dtype='float32', or give more examples."
        )


def warn_of_front(front: ParetoFront) -> None:
    """Warns if the effect at some size is less than half as large on other examples.

    Warns also if a set that is as good as one of the front, found by elimination from all
    components, shares less than half of its components.
    """
    sets = {each.n_selected: each for each in front}
    rows = [(row.size, sets[row.size].effect, row.cross_fitted) for row in front.statistics]
    _warn_of_held_out(rows, _robust_search_options(front[0], is_front=True))
    # Where the front took components ranked one by one, it knows of sets with larger effects.
    rows = [
        row
        for row in front.statistics
        if row.from_all_gain is not None
        and row.from_all_gain >= -_AS_GOOD
        and sets[row.size].component_scores is None
    ]
    if not rows:
        return
    row = min(rows, key=lambda row: row.from_all_similarity or 0.0)
    if (row.from_all_similarity or 0.0) < _SIMILAR:
        _warn_unreliable(
            f"Another set of size {row.size}, found from all components downwards, has an effect "
            f"of {row.from_all:.3g} beside {sets[row.size].effect:.3g}, and the two share less "
            f"than half of their components (Jaccard similarity {row.from_all_similarity:.2f}). "
            "The examples do not single out one set: say so, or give more examples."
        )


def _warn_of_held_out(rows: Sequence[tuple[int, float, float | None]], options: str) -> None:
    """Warns of the least held-out effect; rows are size, effect and held-out effect of sets."""
    measured = [(size, effect, fresh) for size, effect, fresh in rows if fresh is not None]
    if not measured:
        return
    shares = [copysign(1, row[1]) * row[2] / max(abs(row[1]), 1e-12) for row in measured]
    size, effect, held_out = measured[shares.index(min(shares))]
    if min(shares) < 1 / 2:
        _warn_unreliable(
            f"On examples that had no part in choosing it, a set of size {size} has an effect of "
            f"{held_out:.3g}, less than half of the {effect:.3g} on those that had. Give more "
            f"examples, or search with {options}."
        )
