"""Bounds by betting: how often they are wrong if looked at after every example, and how soon right.

`python -m pytest -m soak tests/measure/test_betting.py --log-cli-level=info` prints both numbers.
"""

from __future__ import annotations

import logging

import numpy as np
import pytest
from scipy.stats import norm

from tracekit.measure.certificate import Bets

LEVEL = 0.95


def grouped(rng, shape):
    """Means over examples of one to four pairs that have half of their variance in common."""
    n_pairs = rng.integers(1, 5, shape)
    return rng.normal(size=shape) * np.sqrt(0.5 + 0.5 / n_pairs)


DRAWS = {
    # Values with a mean of 0, and the bound that they are known to have.
    "normal": (lambda rng, shape: rng.normal(size=shape), None),
    "skewed": (lambda rng, shape: rng.exponential(size=shape) - 1, None),
    "log-normal": (lambda rng, shape: rng.lognormal(size=shape) - np.exp(0.5), None),
    "grouped": (grouped, None),
    "bounded": (lambda rng, shape: (rng.random(shape) < 0.1) - 0.1, 1.0),
}


def bet(values, bound):
    """Bets on each row; when its mean was first said to be above and below 0, infinite if never."""
    n_draws, n_examples = values.shape
    bets = Bets(np.zeros(n_draws), None if bound is None else np.full(n_draws, bound))
    first = np.full((2, n_draws), np.inf)
    for n in range(n_examples):
        bets.observe(values[:, n], 0.0)
        decided = bets.most >= np.log(2 / (1 - LEVEL))
        first = np.where(decided & np.isinf(first), n + 1, first)
    return first


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize(
    "n_draws", [400, pytest.param(2000, marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_bounds_are_seldom_wrong_at_any_look(name, n_draws):
    draw, bound = DRAWS[name]
    values = draw(np.random.default_rng(29), (n_draws, 1000))
    share = np.isfinite(bet(values, bound)).any(0).mean()
    logging.info("%s: wrong in %.4f of %d draws", name, share, n_draws)
    allowed = 0.06 if name == "log-normal" else 0.05
    # Few draws may be above it by chance.
    assert share <= allowed + (3 * np.sqrt(allowed / n_draws) if n_draws < 2000 else 0)


@pytest.mark.parametrize("name", ["normal", "skewed", "grouped", "bounded"])
@pytest.mark.parametrize("distance", [0.25, 0.5])
def test_decisions_take_few_more_examples_than_a_test_of_a_size_known_in_advance(name, distance):
    draw, bound = DRAWS[name]
    values = draw(np.random.default_rng(31), (400, 1000))
    values += distance * values.std()
    above, _ = bet(values, None if bound is None else bound + distance)
    fixed = ((norm.ppf(1 - (1 - LEVEL) / 2) + norm.ppf(0.8)) / distance) ** 2
    logging.info("%s, %g: %.2f times as many", name, distance, np.median(above) / fixed)
    assert np.median(above) <= 2.5 * fixed


def test_an_interval_has_the_ratio_of_means_and_narrows():
    rng = np.random.default_rng(3)
    bets = Bets(np.linspace(0, 1, 200))
    widths = []
    for n in range(1, 401):
        full = rng.normal(3, 1)
        bets.observe(0.7 * full + rng.normal(0, 0.3), full)
        low, high = bets.interval(0.05)
        assert low is None or low <= 0.7
        assert high is None or high >= 0.7
        if n % 100 == 0:
            widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.15


@pytest.mark.parametrize(("sign", "interval"), [(1, (1.0, None)), (-1, (None, 0.0))])
def test_a_mean_beyond_all_tried_values_has_a_bound_on_one_side(sign, interval):
    bets = Bets(np.array([0.5, 0, 1]))
    for _ in range(100):
        bets.observe(9.0 * sign, 1.0)
    assert bets.interval(0.05) == interval


def test_a_bet_by_hand():
    bets = Bets(np.array([0.0]))
    for value in range(1, 11):
        bets.observe(float(value), 1.0)
    assert bets.most.max() == 0
    bets.observe(4.0, 1.0)
    # Mean over mean square is 5.5 / 38.5; a value of -20 may lose at most 0.9 of the capital.
    assert bets.log_capital[:, 0] == pytest.approx([np.log(1 + 0.9 / 20 * 4), 0])
