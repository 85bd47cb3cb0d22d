"""Searches that leave another metric within bounds."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit._util import progress as _progress
from tracekit.components.masks import from_indices
from tracekit.errors import (
    BudgetError,
    ConfigError,
    NotDifferentiableError,
    NothingFoundError,
    UnknownNameError,
)
from tracekit.tracer.request import Request, resolve_request

METHODS = (
    *("exhaustive", "greedy", "top-k", "random", "local-search", "mask-ig", "attribution"),
    *("pgb-ct", "dcm", "learned-ranking"),
)


@pytest.fixture
def tracer(model):
    return tk.Tracer(model, tiny.pairs(10, seed=3), "head-outputs", "logit-difference")


@pytest.fixture
def neutral():
    return tiny.pairs(7, seed=8)


def keeping_engine(tracer, keep):
    request = Request(search=tk.search.TopK(), budget=1, constraint=keep)
    return resolve_request(tracer.question, request).target()


def kept_by(model, neutral, members, metric="kl"):
    """Measured by a tracer that knows nothing of keeping."""
    other = tk.Tracer(model, neutral, "head-outputs", metric)
    return other.evaluate(from_indices(members, 12).float())


@pytest.fixture(scope="module")
def every_set(model):
    """All sets of up to four components, their effects, and what they do to the neutral pairs."""
    sets = [each for k in range(1, 5) for each in combinations(range(12), k)]
    traced = tk.Tracer(model, tiny.pairs(10, seed=3), "head-outputs", "logit-difference")
    other = tk.Tracer(model, tiny.pairs(7, seed=8), "head-outputs", "kl")
    effects, kept = (each.engine.set_effects(sets).mean(1) for each in (traced, other))
    return list(zip(sets, effects.tolist(), kept.tolist(), strict=True))


def best_by_trying(every_set, size, bound):
    return max(e for s, e, k in every_set if len(s) <= size and k <= bound)


@pytest.mark.pairwise
@pytest.mark.parametrize("method", METHODS)
def test_every_search_stays_within_the_bound(model, tracer, neutral, every_set, method):
    _, _, unbound = max((row for row in every_set if len(row[0]) <= 3), key=lambda row: row[1])
    bound = 0.6 * unbound
    options = {"epochs": 4} if method in ("pgb-ct", "dcm", "learned-ranking") else {}
    options |= {"trials": 1} if method == "pgb-ct" else {}
    options |= {"draws": 40} if method == "random" else {}
    keep = tk.Constraint(pairs=neutral, metric="kl", at_most=bound)
    result = tracer.run(method, budget=3, constraint=keep, **options)
    assert kept_by(model, neutral, tiny.members_of(result)) <= bound * 1.0001
    assert result.constraint.effect == pytest.approx(
        kept_by(model, neutral, tiny.members_of(result)), rel=1e-3, abs=1e-6
    )
    assert result.effect == pytest.approx(tracer.evaluate(result), abs=1e-5)
    best = best_by_trying(every_set, 3, bound)
    assert result.effect <= best + 1e-5
    if method in ("exhaustive", "local-search"):
        assert result.effect == pytest.approx(best, abs=1e-5)
    assert result.cost.forward > 0


@pytest.mark.slow
@pytest.mark.pairwise
@pytest.mark.parametrize("method", ["greedy", "top-k", "random", "exhaustive", "local-search"])
def test_a_bound_that_nothing_reaches_changes_no_search(tracer, neutral, method):
    options = {"draws": 20} if method == "random" else {}
    free = tracer.run(method, budget=3, **options)
    keep = tk.Constraint(pairs=neutral, metric="kl", at_most=1e6)
    kept = tracer.run(method, budget=3, constraint=keep, **options)
    assert kept.components == free.components
    assert kept.effect == pytest.approx(free.effect, abs=1e-6)


def test_the_gradient_is_that_of_the_effects(tracer, neutral):
    mask = torch.linspace(0.2, 0.9, 12)
    for bound in (1e-3, 1e3):
        engine = keeping_engine(tracer, tk.Constraint(pairs=neutral, metric="kl", at_most=bound))
        effects, gradient = engine.gradient(mask, torch.ones_like)
        gradient = gradient / engine.n_examples
        penalty = tracer.engine.effects(mask).mean() - effects.mean()
        assert (penalty > 1e-3) == (bound < 1)
        step = 1e-2
        for index in (0, 5, 11):
            moved = [mask.clone(), mask.clone()]
            moved[0][index] -= step
            moved[1][index] += step
            low, high = (engine.gradient(each, torch.ones_like)[0].mean() for each in moved)
            slope = (high - low) / (2 * step)
            assert gradient[index].item() == pytest.approx(slope.item(), rel=2e-2, abs=1e-2)


def test_measured_sets_within_the_bound_have_their_own_effects(tracer, neutral):
    keep = tk.Constraint(pairs=neutral, metric="kl", at_most=0.05)
    engine = keeping_engine(tracer, keep)
    sets = [(i,) for i in range(12)] + [tuple(range(12))]
    own, given = tracer.engine.set_effects(sets), engine.set_effects(sets)
    within = [engine.report(members).is_within for members in sets]
    assert len(set(within)) == 2
    least = min(given[k].mean() for k, ok in enumerate(within) if ok)
    for k, ok in enumerate(within):
        if ok:
            assert torch.equal(own[k], given[k])
        else:
            assert given[k].mean() < least


def test_predictions_count_what_they_do_to_what_is_kept(tracer, neutral):
    keep = tk.Constraint(pairs=neutral, metric="kl", at_most=1e-4)
    engine = keeping_engine(tracer, keep)
    strict, free = engine.predict_changes((0, 3)), tracer.engine.predict_changes((0, 3))
    assert not torch.allclose(strict.predicted_effects, free.predicted_effects)
    loose = keeping_engine(tracer, tk.Constraint(pairs=neutral, metric="kl", at_most=1e6))
    torch.testing.assert_close(
        loose.predict_changes((0, 3)).predicted_effects, free.predicted_effects
    )


@pytest.mark.soak
@pytest.mark.slow
def test_a_front_of_sets_within_the_bound(model, tracer, neutral, every_set, tmp_path):
    bound = 0.5 * kept_by(model, neutral, range(12))
    keep = tk.Constraint(pairs=neutral, metric="kl", at_most=bound)
    # The kept pairs' passes count, too: about half of these go to the pairs that are traced.
    options = {"max_budget": 4, "max_passes": 200, "checkpoint": tmp_path / "search.ckpt"}
    front = tracer.pareto(constraint=keep, **options)
    for result in front:
        assert kept_by(model, neutral, tiny.members_of(result)) <= bound * 1.0001
        best = best_by_trying(every_set, result.n_selected, bound)
        assert result.effect >= 0.95 * best
    assert {row.size for row in front.statistics} <= set(front.sizes)
    loaded = tk.ParetoFront.load(front.save(tmp_path / "front"))
    assert loaded[0].constraint == front[0].constraint
    assert loaded[0].constraint.at_most == bound
    # The checkpoint of a search that kept something is of no use to one that does not.
    with pytest.raises(tk.errors.ResultFormatError):
        tracer.pareto(**options)


@pytest.mark.slow
@pytest.mark.parametrize("max_passes", [12, 40, 160])
def test_a_limit_on_passes_counts_what_is_kept(tracer, neutral, max_passes):
    """Whatever is run: a set that is measured is measured on the kept pairs, too."""
    n, n_kept = len(tracer.pairs), len(neutral)
    keep = tk.Constraint(pairs=neutral, metric="kl", at_most=1e3)
    _ = tracer.full_effect
    with _progress.open_bar("counts", None, 1, shown=False) as counted:
        front = tracer.pareto(
            max_budget=6, statistics=False, max_passes=max_passes, constraint=keep
        )
    # Beside the search, what answers do to what is kept, their complements and first choices.
    assert counted.done <= max_passes * n + len(front) * (2 * n_kept + 2 * n)
    # All of it is used, but for less than a gradient takes.
    assert front[0].cost.forward_equivalents > max_passes - (2 + 3 * n_kept / n)
    assert front.stopped == "max_passes"


@pytest.mark.slow
def test_a_metric_of_the_traced_examples_is_kept(model, tracer):
    keep = tk.Constraint(metric="entropy-change", at_most=0.05)
    result = tracer.run("exhaustive", budget=2, constraint=keep)
    other = tk.Tracer(model, tracer.pairs, "head-outputs", "entropy-change")
    assert abs(other.evaluate(result)) <= 0.05 + 1e-6
    assert result.constraint.dataset == tracer.pairs.name


@pytest.mark.parametrize("options", [{"direction": "denoising"}, {"source": "mean"}])
def test_keeping_asks_as_the_tracer_does(model, neutral, options):
    tracer = tk.Tracer(model, tiny.pairs(8), "head-outputs", "logit-difference", **options)
    result = tracer.run("greedy", budget=2, constraint=tk.Constraint(pairs=neutral, at_most=10.0))
    other = tk.Tracer(model, neutral, "head-outputs", "kl", **options)
    if "source" not in options:
        assert result.constraint.effect == pytest.approx(other.evaluate(result), abs=1e-5)
    else:
        # The means are over the traced prompts.
        source = tk.Mean(pairs=tracer.pairs)
        other = tk.Tracer(model, neutral, "head-outputs", "kl", source=source)
        assert result.constraint.effect == pytest.approx(other.evaluate(result), abs=1e-5)


@pytest.mark.slow
def test_what_is_refused(tracer, neutral):
    with pytest.raises(NothingFoundError, match="No set that was tried keeps kl within 1e-09"):
        tracer.run("greedy", budget=2, constraint=tk.Constraint(pairs=neutral, at_most=1e-9))
    with pytest.raises(NothingFoundError, match="ask for fewer components"):
        tracer.pareto(max_budget=2, constraint=tk.Constraint(pairs=neutral, at_most=1e-9))


@pytest.mark.slow
def test_a_front_that_begins_later_says_so(tracer, neutral):
    front = tracer.pareto(max_budget=4, statistics=False)
    later = tk.ParetoFront(front.results[1:], front.largest, front.ranking)
    with pytest.raises(BudgetError, match="The smallest set of the front has 2 components"):
        later.at(1)


@pytest.mark.slow
def test_sets_within_the_bound_come_first_however_small_the_whole_effect(model):
    """All components together may do next to nothing where single ones do much."""
    pairs, neutral = tiny.pairs(4, seed=0), tiny.pairs(7, seed=8)
    tracer = tk.Tracer(model, pairs, "head-outputs", "logit-difference")
    singles = tracer.engine.set_effects([(i,) for i in range(12)]).mean(1)
    kept = [kept_by(model, neutral, (i,)) for i in range(12)]
    bound = sorted(kept)[8]
    for method in ("exhaustive", "local-search", "top-k"):
        keep = tk.Constraint(pairs=neutral, metric="kl", at_most=bound * 1.001)
        result = tracer.run(method, budget=1, constraint=keep)
        best = max(e for e, k in zip(singles.tolist(), kept, strict=True) if k <= bound * 1.001)
        assert result.effect == pytest.approx(best, abs=1e-5)


@pytest.mark.slow
def test_histories_hold_effects_only(tracer, neutral):
    keep = tk.Constraint(pairs=neutral, metric="kl", at_most=0.05)
    result = tracer.run("local-search", budget=4, constraint=keep)
    assert all(abs(record["effect"]) < 1e3 for record in result.history)


@pytest.mark.parametrize("method", ["pgb-ct", "dcm", "learned-ranking", "local-search", "mask-ig"])
def test_what_is_kept_needs_a_gradient_where_the_search_follows_one(tracer, method):
    text = f"keeping accuracy on pairs at most 0.5 .* has no gradient for {method} to follow"
    with pytest.raises(NotDifferentiableError, match=text):
        tracer.run(method, budget=2, constraint=tk.Constraint(metric="accuracy", at_most=0.5))
    assert tracer.run(
        "top-k", budget=2, constraint=tk.Constraint(metric="accuracy", at_most=0.5)
    ).constraint


BOUNDS = (0.0, -1.0, float("nan"), float("inf"))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        *(({"at_most": bound}, ConfigError, f"is {bound}. Input should be") for bound in BOUNDS),
        ({"at_most": "0.05"}, ConfigError, "at_most is '0.05'. Give a number"),
        ({"at_most": 0.05, "pairs": [1]}, ConfigError, r"pairs .* \[1\]. Give PromptPairs"),
        ({"at_most": 0.05, "metric": "kll"}, UnknownNameError, "'kll'. Did you mean 'kl'"),
    ],
)
def test_options_that_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        tk.Constraint(**options)


def test_a_number_is_no_constraint(tracer, unchecked):
    with pytest.raises(ConfigError, match="constraint is 0.05. Give a tk.Constraint"):
        tracer.run("greedy", budget=2, constraint=0.05)


@pytest.mark.parametrize("by", ["span", "position"])
def test_what_is_kept_has_the_same_spans(model, by):
    rows = [
        {**row, "prompt_ids": row["prompt_ids"][:3], "spans": {"first": [0, 1]}}
        for row in tiny.rows(12, seed=5)
    ]
    rows = [{**row, "counterfactual_ids": row["counterfactual_ids"][:3]} for row in rows]
    pairs, other = (tk.PromptPairs.from_ids(part) for part in (rows[:6], rows[6:]))
    tracer = tk.Tracer(model, pairs, "residual", "logit-difference", split_by=by)
    kept = tk.Tracer(model, other, tracer.registry, "kl", split_by=by)
    bound = 0.7 * kept.full_effect
    result = tracer.run("greedy", budget=3, constraint=tk.Constraint(pairs=other, at_most=bound))
    assert result.constraint.effect == pytest.approx(kept.evaluate(result), rel=1e-4, abs=1e-7)
    assert kept.evaluate(result) <= bound
