"""The best set of every size: look-ahead, soft top-k, measurements, local search, statistics."""

from __future__ import annotations

import warnings
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit as tk
from tests import tiny
from tracekit.errors import (
    BudgetError,
    CheckpointError,
    ConfigError,
    NonFiniteMetricError,
    NotDifferentiableError,
    NothingMeasuredError,
    SearchStoppedWarning,
    TargetNotReachedError,
)
from tracekit.masks import from_indices
from tracekit.metrics import METRICS, ContinuationLogProbs
from tracekit.results.pareto_statistics import _control, jaccard
from tracekit.search import Goal
from tracekit.search.local.best_sets import BestSets, Moves, in_turn
from tracekit.search.local.measurements import LimitReachedError, Limits, MeasurementCache
from tracekit.search.local.plan import SearchPlan, default_passes, log_spaced_sizes
from tracekit.search.local.soft_topk import soft_mask, soft_topk_logits, through_threshold


@pytest.fixture(scope="module")
def tracer(model):
    """Twelve heads, with interactions: a probability ratio is far from additive."""
    return tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")


@pytest.fixture(scope="module")
def every_set(tracer):
    """Mean effect of every set of twelve heads."""
    sets = [s for size in range(1, 13) for s in combinations(range(12), size)]
    return dict(zip(sets, tracer.engine.set_effects(sets).mean(1).tolist(), strict=True))


@pytest.fixture(scope="module")
def path(tracer):
    return tracer.pareto()


def chosen(result):
    return tuple(result.binary_mask.nonzero()[:, 0].tolist())


def twins():
    """Continuations of one token after the same prompt, x and y exchanged: rows are shared."""
    row = tiny.rows(1, seed=2, longest=1)[0]
    return tk.PromptPairs.from_ids([row, row | {"x_ids": row["y_ids"], "y_ids": row["x_ids"]}])


# ---- looking ahead ------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.linearization])
def test_links_give_the_metric(name):
    generator = torch.Generator().manual_seed(0)
    clean, after = (
        ContinuationLogProbs(*(-3 * torch.rand(2, 9, generator=generator, dtype=torch.float64)))
        for _ in range(2)
    )
    metric = METRICS[name]
    assert metric.linearization is not None
    values = metric.linearization.to_linear(after)
    torch.testing.assert_close(metric.linearization.to_effect(clean, values), metric(clean, after))
    several = metric.linearization.to_effect(clean, values[:, None].repeat(1, 3))
    torch.testing.assert_close(several, metric(clean, after)[:, None].repeat(1, 3))


def test_links_bear_certainty():
    """P(x) = 1 in float32 must not make a gradient that is no number."""
    certain = torch.zeros(2, requires_grad=True)
    link = METRICS["probability-drop"].linearization
    assert link is not None
    values = link.to_linear(ContinuationLogProbs(certain))
    (gradient,) = torch.autograd.grad(values.sum(), certain)
    assert torch.isfinite(values).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("metric", ["odds-ratio", "probability-drop", "logit-difference"])
@pytest.mark.parametrize("members", [(), (1, 4, 7)])
@pytest.mark.parametrize("data", [tiny.pairs(7, seed=5), twins()], ids=["ragged", "shared"])
def test_gains_are_linear_in_the_link_and_exact_in_the_metric(model, data, metric, members):
    """Against one gradient per example, taken apart with engines of single examples."""
    engine = tiny.engine(model, data, metric=metric, max_batch_size=3)
    count = len(data)
    found = engine.predict_changes(members)
    mask = from_indices(members, 12).float()
    _, total = engine.gradient(mask, torch.ones_like)
    torch.testing.assert_close(found.gradient, total / count, rtol=1e-4, atol=1e-6)
    link = METRICS[metric].linearization
    gains = torch.zeros(12)
    for number in range(count):
        alone = engine.with_pairs(data.subset([number]))
        effects, slope = alone.gradient(mask, torch.ones_like)
        if link is None:
            gains += slope
            continue
        value = link.to_linear(alone.log_probs(mask)).detach().requires_grad_(True)
        weight = torch.autograd.grad(link.to_effect(alone.clean, value).sum(), value)[0]
        step = (slope / weight) * (1 - 2 * mask)
        ahead = link.to_effect(alone.clean, value.detach()[:, None] + step)[0]
        gains += (ahead - effects) * (1 - 2 * mask)
    torch.testing.assert_close(found.gains, gains / count, rtol=1e-3, atol=1e-5)


def test_gains_foretell_better_than_the_gradient_where_the_model_is_certain(model):
    data = tk.load_dataset("demo-facts", demo := tk.load_model("demo"))
    registry = tk.ComponentRegistry.build(demo.cfg, "attention-patterns")
    engine = tk.Tracer(demo, data, components=registry, metric="probability-drop").engine
    singles = engine.set_effects([[i] for i in range(32)]).mean(1)
    ahead = engine.predict_changes(())

    def agreement(score):
        ranks = torch.stack([singles.argsort().argsort(), score.argsort().argsort()]).float()
        return torch.corrcoef(ranks)[0, 1].item()

    assert agreement(ahead.gains) > 0.85
    assert agreement(ahead.gradient) < 0.6


# ---- soft top-k ---------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    scores=st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40),
    share=st.floats(0.01, 0.99),
    temperature=st.floats(0.05, 3),
)
def test_soft_masks_sum_to_their_budget(scores, share, temperature):
    budget = share * len(scores)
    mask = soft_mask(torch.tensor(scores), budget, temperature)
    assert mask.sum().item() == pytest.approx(budget, rel=1e-3, abs=1e-3)
    order = torch.tensor(scores).argsort()
    assert (mask[order].diff() >= 0).all()


def test_gradients_pass_through_the_threshold():
    """Against finite differences of the whole map from scores to masks."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(9, generator=generator, dtype=torch.float64)
    weights = torch.randn(9, generator=generator)
    found = through_threshold(soft_mask(scores, 3.3, 0.5), weights, 0.5)
    for place in range(9):
        step = torch.zeros(9, dtype=torch.float64)
        step[place] = 1e-3
        up, down = (soft_mask(scores + sign * step, 3.3, 0.5) for sign in (1, -1))
        slope = ((up - down) * weights).sum().item() / 2e-3
        assert found[place].item() == pytest.approx(slope, abs=2e-3)


@pytest.mark.parametrize("schedule", ["log", "uniform"])
def test_soft_top_k_puts_the_best_components_first(tracer, every_set, schedule):
    measurements = MeasurementCache(tracer.engine, Limits())
    scores, total = soft_topk_logits(
        measurements, largest=12, steps=40, seed=0, budget_sampling=schedule
    )
    assert measurements.spent == 80
    for size in (2, 4, 6):
        best = max(every_set[s] for s in every_set if len(s) == size)
        for score in (scores, total):
            mine = tuple(sorted(score.argsort(descending=True)[:size].tolist()))
            assert every_set[mine] > 0.5 * best
        mine = tuple(sorted(scores.argsort(descending=True)[:size].tolist()))
        assert every_set[mine] > 0.9 * best
    rewarded, _ = soft_topk_logits(
        MeasurementCache(tracer.engine, Limits()), largest=12, steps=5, seed=0, reward="per-example"
    )
    plain, _ = soft_topk_logits(
        MeasurementCache(tracer.engine, Limits()), largest=12, steps=5, seed=0
    )
    shifted, _ = soft_topk_logits(
        MeasurementCache(tracer.engine, Limits()), largest=12, steps=5, seed=1
    )
    assert not torch.equal(plain, rewarded)
    assert not torch.equal(plain, shifted)


# ---- best_sets -----------------------------------------------------------------------------


def test_neighbours_are_those_that_look_best(tracer):
    engine = tracer.engine
    best_sets = BestSets(MeasurementCache(engine, Limits()), 12)
    best_sets.measure([(1, 5, 8)], "start")
    ahead = engine.predict_changes((1, 5, 8))
    inside, outside = [1, 5, 8], [i for i in range(12) if i not in (1, 5, 8)]
    best = [max(outside, key=lambda i: s[i].item()) for s in (ahead.gains, ahead.gradient)]
    worst = [min(inside, key=lambda i: s[i].item()) for s in (ahead.gains, ahead.gradient)]
    for moves, up, down, expected in (
        (Moves(additions=1, removals=0, swaps=0), 4, 2, {1, 5, 8, best[0]}),
        (Moves(additions=0, removals=1, swaps=0), 4, 2, {1, 5, 8} - {worst[0]}),
        (Moves(additions=0, removals=0, swaps=1), 4, 2, {1, 5, 8} - {worst[0]} | {best[0]}),
    ):
        before = set(best_sets.measurements._measured.effects)
        best_sets.explore((1, 5, 8), moves, up=up, down=down)
        (new,) = set(best_sets.measurements._measured.effects) - before
        assert new == tuple(sorted(expected))
    # The only set of three whose neighbours were not measured is the one that the swap made.
    swapped = tuple(sorted({1, 5, 8} - {worst[0]} | {best[0]}))
    assert best_sets.unexplored(3, depth=2, within=float("inf")) == swapped
    best_sets.explore((1, 5, 8), Moves(additions=0, removals=0, swaps=0), up=7, down=1)
    assert {len(one) for one in best_sets.measurements._measured.effects} >= {7, 1}


def test_the_frontier_knows_the_best_of_every_size(tracer, every_set):
    best_sets = BestSets(MeasurementCache(tracer.engine, Limits()), 3)
    sets = [s for s in every_set if len(s) <= 3][::3]
    best_sets.measure(sets, "some")
    for size in (1, 2, 3):
        best = max((s for s in sets if len(s) == size), key=every_set.__getitem__)
        assert best_sets.best(size) == best
        assert best_sets.effect(size) == pytest.approx(every_set[best], rel=1e-5)
    best_sets.measure([range(4)], "too large")
    assert best_sets.sizes == [1, 2, 3]
    target = best_sets.effect(2)
    assert best_sets.reaching(target) == (1 if best_sets.effect(1) >= target else 2)


def test_orders_are_taken_in_turn():
    assert in_turn([3, 1, 2], [1, 2, 3]) == [3, 1, 2]
    assert in_turn([0, 1, 2, 3], [3, 2, 1, 0]) == [0, 3, 1, 2]


@settings(max_examples=60, deadline=None)
@given(last=st.integers(1, 40_000), count=st.integers(2, 90))
def test_sizes_are_spread_from_one_to_the_last(last, count):
    sizes = log_spaced_sizes(1, last, count)
    assert (sizes[0], sizes[-1]) == (1, last)
    assert all(a < b for a, b in pairwise(sizes))
    assert len(sizes) <= max(count, 2)
    if last <= count:
        assert sizes == tuple(range(1, last + 1))


def test_passes_do_not_grow_with_the_model():
    assert default_passes(512, 512) == 512
    assert default_passes(384, 150) == 384
    assert default_passes(36_864, 36_864) == default_passes(300_000, 5) == 800
    assert default_passes(64, 25) == int(0.4 * sum(64 - size for size in range(25)))
    assert default_passes(144, 144) == 600
    large = SearchPlan.make(36_864, 36_864, (5, 921), 800)
    assert {5, 921} <= set(large.sizes)
    assert (large.dense, large.soft_steps) == (False, 100)
    assert SearchPlan.make(32, 12, (3, 12), 128).sizes == tuple(range(1, 13))


# ---- the search ---------------------------------------------------------------------------


def test_a_path_is_the_optimum_at_every_budget(tracer, every_set):
    path = tracer.pareto(statistics=False)
    for size in range(1, 13):
        best = max(effect for one, effect in every_set.items() if len(one) <= size)
        assert path.at(size).effect == pytest.approx(best, rel=1e-4)
        assert tracer.evaluate(path.at(size)) == pytest.approx(path.at(size).effect, rel=1e-4)
    assert path[0].cost.forward_equivalents <= 600


def test_few_passes_still_beat_the_rankings(model):
    """Forty passes for six of twelve: additions, exchanges and removals are all needed."""
    tracer = tk.Tracer(model, tiny.pairs(10, seed=8), metric="odds-ratio")
    for budgets in ([2, 4, 6],):
        found = tracer.run("local-search", budgets=budgets, max_passes=40)
        for rival in ("top-k", "random"):
            theirs = tracer.run(rival, budgets=budgets)
            for ours, other in zip(found, theirs, strict=True):
                assert ours.effect >= other.effect - 1e-6
        assert found[0].cost.forward_equivalents <= 40


def test_many_components_are_ranked_first(model):
    """Neurons: sizes are spread, soft top-k ranks, and the passes stay below top-k's."""
    tracer = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-outputs")
    n = len(tracer.registry)
    search = tk.LocalSearch(max_passes=n // 2, soft_steps=4)
    curve = tracer.run(search, budgets=[3, 0.1, 0.3])
    rivals = [tracer.run(method, budgets=[3, 0.1, 0.3]) for method in ("top-k", "random")]
    for rival in rivals:
        for ours, theirs in zip(curve, rival, strict=True):
            assert ours.effect >= theirs.effect
    assert curve[0].cost.forward_equivalents <= n // 2
    assert curve[0].component_scores is not None
    plain = tracer.run(
        "local-search", budgets=[3, 0.1, 0.3], max_passes=n // 2, refine=False, soft_steps=4
    )
    assert all(ours.effect >= other.effect for ours, other in zip(curve, plain, strict=True))
    assert plain[0].cost.forward_equivalents <= n // 2


def test_targets_are_reached_by_few(tracer, every_set):
    goal = 0.6 * max(every_set.values())
    found = tracer.run("local-search", target_effect=goal)
    assert found.effect >= goal
    assert found.n_selected == min(len(s) for s, effect in every_set.items() if effect >= goal)
    with pytest.raises(TargetNotReachedError, match="No set that was tried reaches an effect of"):
        tracer.run("local-search", target_effect=1e6)


def test_refinement_never_loses_and_keeps_to_its_passes(model):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    gained = 0
    for budget in (2, 4, 6):
        plain = tracer.run(budget=budget, refine=False, trials=1, epochs=6)
        polished = tracer.run(budget=budget, epochs=6)
        assert polished.effect >= plain.effect
        assert polished.n_selected <= budget
        assert polished.cost.forward_equivalents <= 250
        assert torch.equal(polished.soft_mask, plain.soft_mask)
        assert tracer.evaluate(polished) == pytest.approx(polished.effect, rel=1e-4)
        gained += polished.effect > plain.effect * 1.001
    assert gained


def test_given_lambdas_without_a_budget_are_left_alone(tracer):
    plain, same = (tracer.run(lambda1=0.02, epochs=4, refine=r) for r in (False, True))
    assert torch.equal(plain.binary_mask, same.binary_mask)
    assert plain.cost == same.cost


def test_the_same_seed_gives_the_same_path(model):
    runs = []
    for seed in (0, 0, 1):
        tracer = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-outputs")
        runs.append(tracer.pareto(max_budget=30, seed=seed, max_passes=60))
    same, again, other = (run.to_frame() for run in runs)
    assert same.equals(again)
    assert not same.equals(other)


# ---- limits and checkpoints ---------------------------------------------------------------


def test_a_limit_gives_the_best_so_far(tracer):
    short = tracer.run("local-search", budget=6, max_passes=25)
    assert (short.stopped, short.n_selected <= 6) == ("max_passes", True)
    assert short.cost.forward_equivalents <= 25
    hasty = tracer.run("local-search", budget=6, max_seconds=0.2)
    assert hasty.stopped == "max_seconds"
    assert tracer.run("local-search", budget=6).stopped is None
    with pytest.raises(NothingMeasuredError, match="was stopped \\(max_passes\\) before it meas"):
        tracer.run("local-search", budget=6, max_passes=2)


def interrupted_after(engine, calls, monkeypatch):
    """Ctrl-C in the middle of a measurement."""
    left = iter(range(calls))
    original = engine.set_effects

    def measure(sets, label="effects"):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return original(sets, label)

    monkeypatch.setitem(vars(engine), "set_effects", measure)


def test_ctrl_c_gives_the_best_so_far_and_says_so(model, monkeypatch):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    interrupted_after(tracer.engine, 5, monkeypatch)
    with pytest.warns(SearchStoppedWarning, match="Ctrl-C: the front holds the best sets"):
        path = tracer.pareto()
    monkeypatch.undo()
    assert path.stopped == "interrupted"
    assert path.statistics == ()
    assert "stopped by interrupted" in repr(path)
    assert tracer.evaluate(path[-1]) == pytest.approx(path[-1].effect, rel=1e-4)


@pytest.mark.parametrize("components", ["attention-patterns", "mlp-outputs"])
def test_a_checkpoint_goes_on_where_the_search_stopped(model, monkeypatch, tmp_path, components):
    def fresh():
        return tk.Tracer(model, tiny.pairs(6, seed=3), components=components)

    options = {"max_budget": 10, "statistics": False, "max_passes": 90}
    whole = fresh().pareto(**options)
    file = tmp_path / "path.ckpt"
    first = fresh()
    interrupted_after(first.engine, 6, monkeypatch)
    with pytest.warns(SearchStoppedWarning):
        part = first.pareto(checkpoint=file, **options)
    monkeypatch.undo()
    second = fresh()
    full = second.full_effect
    before = second.engine.cost
    resumed = second.pareto(checkpoint=file, **options)
    assert full == second.full_effect
    assert resumed.to_frame().equals(whole.to_frame())
    assert resumed[0].cost == whole[0].cost
    done = (second.engine.cost - before).forward_equivalents
    assert 0 < done <= whole[0].cost.forward_equivalents - 10
    assert part[0].cost.forward_equivalents + done == whole[0].cost.forward_equivalents
    third = fresh()
    assert third.pareto(checkpoint=file, **options).to_frame().equals(whole.to_frame())
    assert (third.engine.cost.forward_equivalents) <= 1


def test_checkpoints_of_other_searches_are_refused(model, tmp_path):
    file = tmp_path / "path.ckpt"
    data = tiny.pairs(6, seed=3)
    tk.Tracer(model, data).pareto(statistics=False, max_passes=40, checkpoint=file)
    text = "is of another search, model or data set. Name another file, or delete it"
    other_model = tk.load_model(tiny.hf_model("gpt2", seed=9))
    for tracer, options in (
        (tk.Tracer(model, tiny.pairs(6, seed=4)), {}),
        (tk.Tracer(model, data, metric="probability-drop"), {}),
        (tk.Tracer(model, data), {"additions": 2}),
        (tk.Tracer(other_model, data), {}),
    ):
        with pytest.raises(CheckpointError, match=text):
            tracer.pareto(statistics=False, max_passes=40, checkpoint=file, **options)
    file.write_bytes(b"cut short")
    with pytest.raises(CheckpointError, match="cannot be read. Delete it to start afresh"):
        tk.Tracer(model, data).pareto(statistics=False, max_passes=40, checkpoint=file)
    with pytest.raises(CheckpointError, match="cannot be written. Name a file in a folder of"):
        tk.Tracer(model, data).pareto(checkpoint=tmp_path)


def test_a_metric_of_the_same_name_does_not_pass_for_another(model, tmp_path):
    def tracer(sign):
        metric = tk.Metric("mine", lambda clean, after: sign * (clean.x - after.x))
        return tk.Tracer(model, tiny.pairs(6, seed=3), metric=metric)

    options = {"statistics": False, "max_passes": 40, "checkpoint": tmp_path / "kept"}
    tracer(1).pareto(**options)
    with pytest.raises(CheckpointError):
        tracer(2).pareto(**options)


def test_ctrl_c_in_the_statistics_keeps_the_path_only(model, monkeypatch):
    tracer = tk.Tracer(model, tiny.pairs(8, seed=3), metric="probability-ratio")
    whole = tracer.pareto(max_budget=3, statistics=False)
    original = tk.LocalSearch.run
    for when in (2, 3):
        calls = []

        def run(self, engine, goal, seed, calls=calls, when=when):
            calls.append(engine)
            if len(calls) == when:
                interrupted_after(engine, 1, monkeypatch)
            return original(self, engine, goal, seed)

        monkeypatch.setattr(tk.LocalSearch, "run", run)
        with pytest.warns(SearchStoppedWarning, match="the front is complete, but has no statis"):
            path = tracer.pareto(max_budget=3)
        monkeypatch.undo()
        assert len(calls) == when
        assert (path.statistics, path.stopped) == ((), None)
        assert path.to_frame().equals(whole.to_frame())


def test_an_interrupted_run_says_so(model, monkeypatch):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    interrupted_after(tracer.engine, 3, monkeypatch)
    with pytest.warns(SearchStoppedWarning, match="the result is the best found so far"):
        assert tracer.run("local-search", budget=6).stopped == "interrupted"
    with pytest.raises(KeyboardInterrupt):
        tracer.run("local-search", target_effect=1e9)


def test_few_passes_are_spread_over_the_sizes(tracer):
    found = tk.Tracer(tracer.model, tracer.pairs, components="mlp-outputs").pareto(
        max_passes=40, statistics=False
    )
    assert len(found) > 3
    soft = tracer.pareto(max_passes=60, soft_steps=300, statistics=False)
    assert len(soft) > 3
    assert soft[0].cost.backward <= 31


def test_the_ledger_measures_once_and_within_its_limits(tracer, monkeypatch):
    seen = []
    original = tracer.engine.set_effects
    monkeypatch.setitem(
        vars(tracer.engine),
        "set_effects",
        lambda sets, label="": seen.extend(sets) or original(sets, label),
    )
    measurements = MeasurementCache(tracer.engine, Limits(max_passes=5))
    assert measurements.measure([(0,), (1,), (0,)], "") == [(0,), (1,)]
    assert measurements.measure([(1,), (2,), (3,), (4,), (5,)], "") == [(2,), (3,), (4,)]
    assert (seen, measurements.room) == ([(0,), (1,), (2,), (3,), (4,)], 0)
    assert measurements.measure([(3,)], "") == []
    with pytest.raises(LimitReachedError):
        measurements.measure([(6,)], "")
    with pytest.raises(LimitReachedError):
        measurements.predict_changes(())
    torch.testing.assert_close(
        measurements.effects((2,)),
        tracer.engine.effects(from_indices([2], 12)),
        rtol=1e-4,
        atol=1e-6,
    )


# ---- what people get ----------------------------------------------------------------------


def test_a_path_answers_every_budget(path, tracer, every_set):
    assert path.effects.shape == (12,)
    assert (path.effects.diff() >= 0).all()
    assert path.at(0.5).budget == 6
    assert path.at(6).effect == pytest.approx(path.effects[5].item())
    assert sorted(path.ranking) == list(range(12))
    n_budgets = [sum(i in chosen(path.at(size)) for size in range(1, 13)) for i in path.ranking]
    assert n_budgets == sorted(n_budgets, reverse=True)
    goal = 0.9 * max(every_set.values())
    small = path.smallest(effect=goal)
    assert small.effect >= goal
    assert small.target_effect == goal
    assert all(r.effect < goal for r in path if r.n_selected < small.n_selected)
    with pytest.raises(TargetNotReachedError):
        path.smallest(effect=1e9)
    with pytest.raises(BudgetError, match="The front goes up to 3 components, and 4 were asked"):
        tracer.pareto(max_budget=3, statistics=False).at(4)
    assert repr(path).startswith("ParetoFront(")


def test_statistics_are_what_they_say(path, tracer):
    """Held-out effects by hand: search on each half, measure on the other."""
    engine = tracer.engine
    assert [one.size for one in path.statistics] == sorted({one.size for one in path.statistics})
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0)).tolist()
    halves = [sorted(order[:6]), sorted(order[6:])]
    sizes = tuple(one.size for one in path.statistics)
    sets = []
    for half in halves:
        part = engine.with_pairs(engine.pairs.subset(half))
        walk = tk.LocalSearch().run(part, Goal(budgets=sizes), 0)
        sets.append([walk.best_sets.best_within(size) for size in sizes])
    for place, one in enumerate(path.statistics):
        mine, theirs = sets[0][place], sets[1][place]
        assert one.stability == pytest.approx(jaccard(mine, theirs))
        first = engine.effects(from_indices(mine, 12))[halves[1]].sum()
        second = engine.effects(from_indices(theirs, 12))[halves[0]].sum()
        assert one.held_out == pytest.approx(((first + second) / 12).item(), rel=1e-4)
        assert one.held_out_low <= one.held_out <= one.held_out_high
        assert one.control_low <= one.control <= one.control_high
    assert path.statistics_cost.forward_equivalents > 0
    assert path[0].cost == tracer.pareto(statistics=False)[0].cost


def test_controls_have_the_same_layers(tracer):
    registry = tk.ComponentRegistry.build(tracer.model.cfg, "attention-patterns+mlp-blocks")
    engine = tk.Tracer(tracer.model, tracer.pairs, components=registry).engine
    members = (0, 1, 6, 12, 14)
    draws = {_control(engine, members, torch.Generator().manual_seed(s)) for s in range(20)}
    assert len(draws) > 5

    def profile(one):
        return sorted((registry[i].kind, registry[i].layer) for i in one)

    assert all(profile(one) == profile(members) for one in draws)


def test_no_control_where_there_is_one_set_only(model):
    path = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-blocks").pareto()
    assert all(one.control is None and one.held_out is not None for one in path.statistics)
    path.curve()


def test_too_few_examples_for_halves(model):
    path = tk.Tracer(model, tiny.pairs(3, seed=3)).pareto(max_budget=2)
    assert path.statistics[0].held_out is None
    assert path.statistics[0].stability is None
    assert path.statistics[0].control is not None
    path.to_frame()
    path.curve()


def test_paths_are_saved_and_loaded(path, tmp_path):
    loaded = tk.ParetoFront.load(path.save(tmp_path / "front"))
    assert loaded.to_frame().equals(path.to_frame())
    assert (loaded.ranking, loaded.largest) == (path.ranking, path.largest)
    assert (loaded.statistics, loaded.statistics_cost) == (path.statistics, path.statistics_cost)
    assert torch.equal(loaded.effects, path.effects)


def test_curves_of_paths_draw_their_data(path):
    frame = path.to_frame()
    figure = path.curve()
    named = {trace.name: trace for trace in figure.data if trace.name}
    assert list(named) == ["best set", "held out", "random, same layers"]
    assert list(named["best set"].y) == frame["effect"].tolist()
    taken = frame.dropna(subset=["held_out"])
    assert list(named["held out"].y) == taken["held_out"].tolist()
    bars = named["held out"].error_y
    assert list(bars.array) == pytest.approx((taken["held_out_high"] - taken["held_out"]).tolist())
    band = figure.data[0]
    assert list(band.y) == [*frame["effect_high"], *frame["effect_low"][::-1]]
    assert figure.layout.shapes[0].y0 == pytest.approx(path[0].full_effect)
    assert "Jaccard" in named["held out"].customdata[0][2]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_passes": 0}, "max_passes is 0. It must be positive."),
        ({"max_seconds": -1.0}, "max_seconds is -1.0. It must be positive."),
        ({"temperature": 0.0}, "temperature is 0.0. It must be positive."),
        ({"additions": 0}, "additions is 0. It must be positive."),
        ({"soft_steps": -1}, "soft_steps is -1. It must be at least 0."),
        ({"budget_sampling": "cubic"}, "Unknown budget_sampling 'cubic'. Use 'log' or 'uniform'."),
        ({"reward": "each"}, "Unknown reward 'each'. Use 'dataset' or 'per-example'."),
        ({"refine": False, "soft_steps": 0}, "Neither refinement nor soft top-k is left."),
    ],
)
def test_bad_options(options, text, unchecked):
    with pytest.raises(ConfigError) as caught:
        tk.LocalSearch(**options)
    assert text in str(caught.value)


def test_what_cannot_be_followed_is_refused(model):
    def rooted(clean, intervened):
        return (intervened.x - intervened.x.detach()).clamp(min=0).sqrt()

    data = tiny.pairs(6)
    with pytest.raises(NonFiniteMetricError, match="The gradient of the metric 'rooted' is not"):
        tk.Tracer(model, data, metric=rooted).pareto()
    with pytest.raises(
        NotDifferentiableError, match="'accuracy' has no gradient for local-search to"
    ):
        tk.Tracer(model, data, metric="accuracy").pareto()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tk.Tracer(model, data).pareto(max_budget=2)


class TestHalving:
    """Groups of components are halved, to find single ones that no gradient points to."""

    def test_every_round_halves_the_best_groups(self, model):
        engine = tiny.engine(model, tiny.pairs(4), "mlp-outputs")
        n = engine.n_components
        best_sets = BestSets(MeasurementCache(engine, Limits()), 5)
        rounds = []
        measure = best_sets.measurements.measure

        def note(sets, label):
            rounds.append(list(sets))
            return measure(sets, label)

        best_sets.measurements.measure = note
        best_sets.group_testing(4, 2)
        assert sorted(i for group in rounds[0] for i in group) == list(range(n))
        for before, after in pairwise(rounds):
            means = {one: engine.set_effects([one]).mean(1).item() for one in before}
            best = sorted(before, key=lambda one: -means[one])[:2]
            assert sorted(i for one in after for i in one) == sorted(i for one in best for i in one)
            assert all(any({*half} < {*one} for one in best) for half in after)
        assert {len(one) for one in rounds[-1]} <= {1, 2}
        assert best_sets.sizes[0] == 1
        assert best_sets.sizes[-1] <= 5

    def test_it_heeds_limits(self, model):
        engine = tiny.engine(model, tiny.pairs(4), "mlp-outputs")
        best_sets = BestSets(MeasurementCache(engine, Limits(max_passes=6)), 72)
        with pytest.raises(LimitReachedError):
            best_sets.group_testing(4, 2)
        assert engine.cost.forward_equivalents == 6

    @pytest.mark.slow
    def test_a_neuron_that_the_gradient_does_not_see_is_found(self, demo_model):
        """Its effect is a single fact tipped over; the gradient ranks it last but a few."""
        pairs = tk.load_dataset("demo-facts", demo_model)
        tracer = tk.Tracer(demo_model, pairs, "mlp-outputs", "probability-drop")
        best = tracer.run("top-k", budget=1)
        gains = tracer.engine.predict_changes(()).gains
        (chosen,) = best.binary_mask.nonzero()[:, 0].tolist()
        assert (gains > gains[chosen]).sum() > len(gains) / 2
        path = tracer.pareto(max_budget=8, statistics=False)
        assert path.at(1).effect == pytest.approx(best.effect, rel=1e-4)
