"""Options beyond all use are refused, or give a right number: never NaN, never a foreign error."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import get_type_hints

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import BudgetError, ConfigError
from tracekit.search import METHODS

QUICK = {
    "pgb-ct": {"trials": 1, "epochs": 2},
    "pgb-ct+local": {"trials": 1, "epochs": 2},
    "dcm": {"trials": 1, "epochs": 2},
    "learned-ranking": {"epochs": 2, "steps": 2},
    "local-search": {"max_passes": 30},
    "random": {"draws": 3},
    "mask-ig": {"steps": 2},
    "empirical-bayes-top-k": {"by_gradients": True, "steps": 2},
}
BEYOND = [math.nan, math.inf, -math.inf, 1e300, 1e38, 10**400, 2**63]
UNUSUAL = [1e-300, 0.0, -0.5, -1.0, 1e11]
OPTIONS = [
    (name, field.name, "tuple" in str(hint))
    for name, method in METHODS.items()
    for field in fields(method)
    if "float" in str(hint := get_type_hints(method)[field.name]) or "int" in str(hint)
    if field.name != "example_order"
]


@pytest.fixture(scope="module")
def tracer(model):
    return tk.Tracer(model, tiny.pairs(6, seed=3), metric="probability-drop")


@pytest.mark.parametrize(("method", "option", "is_pair"), OPTIONS)
def test_beyond_all_use(tracer, method, option, is_pair):
    for value in BEYOND:
        given = (value, value) if is_pair else value
        with pytest.raises(ConfigError, match=option):
            tracer.run(method, budget=3, **{**QUICK.get(method, {}), option: given})


@pytest.mark.parametrize(("method", "option", "is_pair"), OPTIONS)
def test_unusual(tracer, method, option, is_pair):
    for value in UNUSUAL:
        if value == 1e11 and option in ("epochs", "draws", "steps"):
            continue  # That many would be done.
        given = (value, value) if is_pair else value
        try:
            result = tracer.run(method, budget=3, **{**QUICK.get(method, {}), option: given})
        except tk.errors.TracekitError:
            continue
        assert tracer.evaluate(result.binary_mask) == pytest.approx(result.effect, abs=1e-6)
        for scores in (result.soft_mask, result.component_scores):
            assert scores is None or torch.isfinite(scores).all()
        numbers = [n for record in result.history for n in record.values() if isinstance(n, float)]
        assert all(map(math.isfinite, numbers))


@dataclass(frozen=True)
class Mine:
    """A search of one's own."""

    name = "mine"
    strength: float = 1.0

    def search(self, engine, goal, seed):
        raise AssertionError


@pytest.mark.parametrize(
    ("method", "option", "value", "text"),
    [
        ("local-search", "max_seconds", "inf", r"inf\. .*finite numbers, of at most 1e\+12"),
        (tk.search.PGBCT, "learning_rate", 1e300, r"1e\+300\. Give finite numbers"),
        (Mine, "strength", math.inf, r"inf\. Give finite numbers"),
        (tk.search.PGBCT, "lambda1", math.nan, "nan. .* greater than"),
        (tk.search.PGBCT, "learning_rate", math.nan, "nan. .* greater than"),
        (tk.search.LocalSearch, "max_seconds", math.nan, "nan. .* greater than"),
    ],
)
def test_the_message_says_what_is_allowed(tracer, method, option, value, text):
    with pytest.raises(ConfigError, match=f"The option {option} is {text}"):
        if isinstance(method, str):
            tracer.run(method, budget=2, **{option: value})
        else:
            tracer.run(method(**{option: value}), budget=2)


@pytest.mark.parametrize(
    "schedule",
    [lambda epoch: math.nan, lambda epoch: 1e30, lambda epoch: 10.0 ** (400 * epoch)],
    ids=["nan", "large", "overflow"],
)
def test_schedules_that_overflow(tracer, schedule):
    with pytest.raises(ConfigError, match="The penalty_schedule gives .* in epoch [01]. Give one"):
        tracer.run("pgb-ct", lambda1=1e-3, epochs=3, init=0.9, penalty_schedule=schedule)


@pytest.mark.parametrize(
    ("method", "seed"),
    [
        ("random", 2**53),
        ("random", 2**62),
        *(
            (method, 2**63 - 1)
            for method in ("random", "pgb-ct", "dcm", "local-search", "pgb-ct+local")
        ),
    ],
)
def test_every_seed_that_is_allowed_draws(tracer, method, seed):
    labels = [tracer.run(method, budget=2, seed=seed, **QUICK[method]).labels for _ in range(2)]
    assert labels[0] == labels[1]


def start_of(value):
    """How a message begins that names the value, which it may cut short."""
    return re.escape(repr(value)[:16])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", [-1, 2**63, 2**64, 10**400, 1.5, True, "0", None])
def test_other_seeds_are_refused(tracer, seed):
    text = f"seed is {start_of(seed)}.*. Give a whole number from 0 to 2\\^63 - 1"
    with pytest.raises(ConfigError, match=text):
        tracer.run("random", budget=2, seed=seed)
    with pytest.raises(ConfigError, match=text):
        tracer.pareto(seed=seed)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "value", [10**400, -(10**400), math.inf, -math.inf, math.nan, "1", "a", [0.1], True]
)
def test_goals_that_are_no_numbers_are_refused(tracer, value):
    start = start_of(value)
    with pytest.raises(BudgetError, match=f"target_effect is {start}.*. Give a finite number"):
        tracer.run("top-k", target_effect=value)
    with pytest.raises(BudgetError, match=f"budget of {start}.*. Give a count from 1 to 12"):
        tracer.run("top-k", budget=value)
