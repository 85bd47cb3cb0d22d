"""Problems x methods x objectives, against the scores of all sets.

Each method meets each objective, each method each problem, and each objective each problem.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations, product

import pytest

import tracekit as tk
from tests import tiny
from tests.search.test_search_case import OPTIONS
from tracekit.search import METHODS, Target
from tracekit.tracer.request import Request, resolve_request

PROBLEMS = {
    "heads": {"components": "head-outputs"},
    "patterns, denoising": {"direction": "denoising"},
    "blocks, means, held-out examples": {
        "components": "attention-blocks+mlp-blocks",
        "source": "mean",
        "held_out": tiny.pairs(5, seed=40),
    },
}
OBJECTIVES = ("mean", "log-odds", "trimmed-mean", "lower-bound", "median", "faithful")
METHOD_NAMES = [name for name in METHODS if name != "eap-ig"]
TABLE = [
    pytest.param(
        [*PROBLEMS][(m + o) % len(PROBLEMS)],
        method,
        objective,
        marks=pytest.mark.slow if (m + o) % len(PROBLEMS) else (),
    )
    for (m, method), (o, objective) in product(enumerate(METHOD_NAMES), enumerate(OBJECTIVES))
]
BUDGET = 2


@cache
def tracer_of(problem: str) -> tk.Tracer:
    model = tiny.shared_model("gpt2")
    return tk.Tracer(model, tiny.pairs(11, seed=3), metric="odds-ratio", **PROBLEMS[problem])


@cache
def best_score(problem: str, objective: str) -> tuple[Target, float]:
    """The target of an objective, and the best mean score of a set within the budget."""
    question = tracer_of(problem).question
    request = Request(search=tk.search.TopK(), budget=BUDGET, objective=objective, sign="full")
    target = resolve_request(question, request).target()
    sets = [each for k in (1, BUDGET) for each in combinations(range(target.n_components), k)]
    return target, target.set_effects(sets).mean(1).max().item()


@pytest.mark.parametrize(("problem", "method", "objective"), TABLE)
def test_a_search_maximises_the_objective_and_reports_effects(problem, method, objective):
    tracer = tracer_of(problem)
    result = tracer.run(
        method, budget=BUDGET, objective=objective, sign="full", **OPTIONS.get(method, {})
    )
    assert 1 <= result.n_selected == len(result.components) <= BUDGET
    assert result.effect == pytest.approx(
        tracer.engine.effects(result.binary_mask).mean().item(), abs=1e-5
    )
    assert (result.method, result.run.objective) == (method, objective)
    assert result.cost.forward >= 1
    assert result.run.seconds > 0
    has_effects = objective == "mean" and result.run.sign == "positive"
    assert result.history[-1].keys() >= {"n_selected", "effect" if has_effects else "score"}
    assert all(("effect" in record) == has_effects for record in result.history)
    target, best = best_score(problem, objective)
    score = target.set_effects([tiny.members_of(result)]).mean().item()
    assert score <= best + 1e-5
    if method == "exhaustive":
        assert score == pytest.approx(best, abs=1e-5)
