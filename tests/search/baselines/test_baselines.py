"""Top-k, greedy, random and exhaustive search, against sets measured the plain way."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    BudgetError,
)


@pytest.mark.soak
@pytest.mark.slow
def test_exhaustive_is_the_best_of_all(tracer, plain_effects):
    result = tracer.run("exhaustive", budget=3)
    best = max(effect for members, effect in plain_effects.items() if len(members) <= 3)
    assert result.effect == pytest.approx(best, rel=1e-4)
    assert result.cost.forward == 12 + 66 + 220 + 1
    for method in ("pgb-ct", "local-search", "top-k", "greedy", "random"):
        assert (
            tracer.run(method, budget=3, **tiny.METHOD_OPTIONS[method]).effect
            <= result.effect + 1e-6
        )


def test_top_k_takes_the_best_singles(tracer, plain_effects):
    order = sorted(range(12), key=lambda i: -plain_effects[(i,)])
    result = tracer.run("top-k", budget=3)
    assert tiny.members_of(result) == tuple(sorted(order[:3]))
    assert result.component_scores.tolist() == pytest.approx(
        [plain_effects[(i,)] for i in range(12)], rel=1e-4, abs=1e-6
    )
    assert result.cost.forward == 12 + 1


def test_greedy_adds_the_best_next_component(tracer, plain_effects):
    result = tracer.run("greedy", budget=3)
    first = max(range(12), key=lambda i: plain_effects[(i,)])
    second = max(
        (i for i in range(12) if i != first), key=lambda i: plain_effects[tuple(sorted((first, i)))]
    )
    labels = [record["component"] for record in result.history]
    assert labels[:2] == [tracer.registry.label(first), tracer.registry.label(second)]
    assert result.cost.forward == 12 + 11 + 10 + 1
    path = tracer.run("greedy", budget=1.0)
    assert [record["n_selected"] for record in path.history] == list(range(1, 13))
    assert path.effect == pytest.approx(tracer.full_effect, rel=1e-4)


def test_random_keeps_the_best_draw_and_its_spread(tracer):
    result = tracer.run("random", budget=3, draws=50, seed=1)
    record = result.history[0]
    assert record["draws"] == 50
    assert record["mean"] < record["effect"] == pytest.approx(result.effect, rel=1e-4)
    assert record["std"] > 0
    again = tracer.run("random", budget=3, draws=50, seed=1)
    assert tiny.members_of(again) == tiny.members_of(result)
    assert tracer.run("random", budget=3, draws=50, seed=2).history != result.history
    assert tk.search.Random().draws == 1000


def test_random_is_content_with_exactly_the_target(tracer):
    """A draw that has the target as its effect reaches it."""
    sizes = [1, 2, 4, 8, 12]
    effects = [result.effect for result in tracer.run("random", budgets=sizes, draws=6)]
    # The largest of them: no draw of these sizes has more.
    reached = tracer.run("random", target_effect=max(effects), draws=6)
    assert reached.effect == max(effects)
    assert reached.n_selected <= sizes[effects.index(max(effects))]


def test_exhaustive_refuses_large_spaces(tracer):
    with pytest.raises(BudgetError, match="There are 2,509 sets of at most 6 of 12 components"):
        tracer.run("exhaustive", budget=6, max_sets=100)


def test_random_draws_of_a_size_do_not_depend_on_the_other_sizes(tracer):
    alone = tracer.run("random", budget=4, draws=6)
    assert torch.equal(
        tracer.run("random", budgets=[2, 4], draws=6).at(4).binary_mask, alone.binary_mask
    )
