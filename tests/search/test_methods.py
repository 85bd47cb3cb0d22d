"""What every search method promises."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit import search
from tracekit.components.masks import from_indices
from tracekit.errors import (
    BudgetError,
    ConfigError,
    NotDifferentiableError,
    TargetNotReachedError,
    UnknownNameError,
)
from tracekit.search.base import Goal, as_count


def test_a_share_is_a_budget_among_others(tracer):
    curve = tracer.run("top-k", budgets=[1, 3, 0.5])
    assert [result.budget for result in curve] == [1, 3, 6]
    assert all(result.full_effect == pytest.approx(tracer.full_effect) for result in curve)
    assert curve.at(3) is curve[1]


def test_one_component_the_optimum_for_greedy_top_k_and_exhaustive(tracer, plain_effects):
    best = max((s for s in plain_effects if len(s) == 1), key=plain_effects.__getitem__)
    for method in ("greedy", "top-k", "exhaustive"):
        assert tiny.members_of(tracer.run(method, budget=1)) == best


@pytest.mark.slow
def test_targets_are_reached_with_few_components(tracer):
    goal = 0.5 * tracer.full_effect
    sizes = {
        method: tracer.run(method, target_effect=goal, **options).n_selected
        for method, options in tiny.METHOD_OPTIONS.items()
    }
    assert sizes["exhaustive"] == min(sizes.values())
    with pytest.raises(
        TargetNotReachedError, match="No set that was tried reaches an effect of 1e"
    ):
        tracer.run("top-k", target_effect=1e6)


@pytest.mark.parametrize(
    ("budget", "count"), [(3, 3), (0.2, 2), (0.3, 3), (1.0, 10), (10, 10), (5.0, 5), (0.19, 1)]
)
def test_budgets_are_counts_or_shares(budget, count):
    assert as_count(budget, 10) == count


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "budget", [0, -1, 11, 0.05, 1.5, 0.0, float("nan"), float("inf"), "0.2", [1, 2]]
)
def test_budgets_that_are_refused(budget):
    named = re.escape(f"A budget of {budget!r}")
    with pytest.raises(BudgetError, match=f"{named} .*Give a count from 1 to 10, or a share"):
        as_count(budget, 10)


@pytest.mark.parametrize("budgets", [np.array([0.2, 0.4]), torch.tensor([2, 4]), {2, 4}])
def test_arrays_of_budgets_are_lists_of_them(tracer, unchecked, budgets):
    assert Goal.make(10, budgets=budgets).budgets == (2, 4)
    assert tracer.run("top-k", budgets=budgets) is not None


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("method", "options", "error", "text"),
    [
        (
            "pgb-ct",
            {"budget": 2, "target_effect": 0.1},
            BudgetError,
            "one goal.* Use one of budget",
        ),
        ("pgb-ct", {"budgets": []}, BudgetError, "budgets is empty. Give at least one"),
        ("top-k", {"budgets": 1}, BudgetError, "budgets is 1. Give a list, or budget="),
        ("top-k", {"budgets": 0.2}, BudgetError, "budgets is 0.2. Give a list, or budget="),
        ("top-k", {"budgets": "1,2"}, BudgetError, "budgets is '1,2'. Give a list, or budget="),
        *((m, {}, BudgetError, f"'{re.escape(m)}' .* Give budget,") for m in tiny.METHOD_OPTIONS),
        ("topk", {"budget": 2}, UnknownNameError, "'topk'. Did you mean 'top-k'"),
        ("pgb-ct", {"budget": 2, "lamda1": 1.0}, UnknownNameError, "'lamda1'. .* 'lambda1'"),
        ("pgb-ct", {"bugdet": 2}, UnknownNameError, "'bugdet'. Did you mean 'budget'"),
        (tk.search.Random(), {"budget": 2, "draws": 6}, UnknownNameError, "'draws'. .* ready-made"),
        ("pgb-ct", {"budget": 2, "epochs": "many"}, ConfigError, "epochs is 'many'. .* integer"),
        ("pgb-ct", {"budget": 2, "epochs": 2.5}, ConfigError, "epochs is 2.5. .* integer"),
        ("pgb-ct", {"budget": 2, "inclusive": "perhaps"}, ConfigError, "inclusive is 'perhaps'. "),
        ("pgb-ct", {"budget": 2, "lambda1": "big"}, ConfigError, "lambda1 is 'big'. "),
    ],
)
def test_runs_that_are_refused(tracer, method, options, error, text):
    with pytest.raises(error, match=text):
        tracer.run(method, **options)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("search", "option", "value", "text"),
    [
        (tk.search.PGBCT, "epochs", "3", "'3'. Give a number"),
        (tk.search.PGBCT, "epochs", 2.5, "2.5. Input should be a valid integer"),
        (tk.search.PGBCT, "threshold", None, "None. Input should be a valid number"),
        (tk.search.PGBCT, "example_order", 0.9, "0.9. Input should be"),
        (tk.search.LocalSearch, "max_passes", [], r"\[\]. Input should be a valid"),
        (tk.search.Random, "draws", "x", "'x'. Input should be a valid integer"),
        (tk.search.Random, "draws", 0, "0. Input should be greater than 0"),
        (tk.search.MaskIG, "steps", 0, "0. Input should be greater than 0"),
        (tk.search.LocalSearch, "max_passes", 0, "0. Input should be greater than 0"),
        (tk.search.LocalSearch, "max_seconds", -1.0, "-1.0. Input should be greater than 0"),
    ],
)
def test_options_of_a_class_that_are_refused(search, option, value, text):
    with pytest.raises(ConfigError, match=f"The option {option} is {text}"):
        search(**{option: value})
    assert search(**{option: getattr(search(), option)}) == search()


def test_a_search_may_be_given_ready_made(tracer):
    assert tracer.run(tk.search.Random(draws=5), budget=2).config == {"draws": 5}


def test_a_callable_without_gradient_is_an_error_for_gradient_methods(model, pairs):
    def counted(clean, intervened):
        return (intervened.x < clean.x).float()

    tracer = tk.Tracer(model, pairs, metric=counted)
    with pytest.raises(NotDifferentiableError, match="No gradient reaches the mask through the"):
        tracer.run(budget=2)
    assert tracer.run("top-k", budget=2).n_selected == 2


@pytest.mark.slow
def test_a_target_that_the_full_set_misses_can_still_be_reached(model):
    tracer = tk.Tracer(model, tiny.pairs(6, seed=4), metric="logit-difference")
    best = max(tracer.engine.set_effects([[i] for i in range(12)]).mean(1).tolist())
    assert tracer.full_effect < best
    target = (max(tracer.full_effect, 0) + best) / 2
    for method in ("top-k", "greedy", "random", "pgb-ct"):
        assert (
            tracer.run(method, target_effect=target, **tiny.METHOD_OPTIONS[method]).effect >= target
        )


def test_options_as_typed_on_a_command_line(tracer):
    made = search.make("pgb-ct", {"inclusive": "False", "epochs": "3", "lambda1": "1e-3"})
    assert made == tk.search.PGBCT(inclusive=False, epochs=3, lambda1=1e-3)


def test_search_classes_and_a_search_of_your_own(tracer):
    class First:
        """The first components, in flat order."""

        name = "first"

        def search(self, engine, goal, seed):
            masks = [from_indices(range(size), engine.n_components) for size in goal.budgets]
            return [
                search.Selection(mask=mask, effects=engine.effects(mask), budget=int(mask.sum()))
                for mask in masks
            ]

    result = tracer.run(First(), budget=3)
    assert (result.method, tiny.members_of(result), result.config) == ("first", (0, 1, 2), {})
    assert tracer.run(tk.search.TopK, budget=2).method == "top-k"
    assert tracer.run(tk.search.Random, budget=2, draws=4).config == {"draws": 4}
