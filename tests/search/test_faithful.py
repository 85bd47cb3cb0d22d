"""The objective `faithful`: a set and its complement, side by side."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import complement_of, from_indices
from tracekit.errors import ConfigError, MetricError
from tracekit.search.constraint import make_target
from tracekit.search.objectives import Faithful, resolve_objective
from tracekit.search.prefix import HALVINGS
from tracekit.search.targets import require_full_effect

SETS = [(), (3,), (0, 7), (1, 2, 5, 11), tuple(range(12))]


def traced(model, *, exchange=False, weights=None, **options):
    """Eleven pairs of which all heads together lower the logit difference, or raise it."""
    rows = tiny.rows(11, seed=3)
    for number, row in enumerate(rows):
        if exchange:
            row["x_ids"], row["y_ids"] = row["y_ids"], row["x_ids"]
        if weights is not None:
            row["weight"] = weights[number]
    pairs = tk.PromptPairs.from_ids(rows)
    return tk.Tracer(model, pairs, "head-outputs", "logit-difference", **options)


@pytest.fixture(scope="module")
def is_exchanged(model):
    return traced(model).full_effect < 0


@pytest.fixture(params=["noising", "denoising"])
def tracer(request, model, is_exchanged):
    return traced(model, exchange=is_exchanged, direction=request.param)


def scores_by_hand(tracer, members, weight):
    engine = tracer.engine
    own = engine.effects(from_indices(members, 12).float())
    others = engine.effects(1 - from_indices(members, 12).float())
    full = engine.effects(torch.ones(12))
    return full.abs() - (1 - weight) * (full - own).abs() - weight * others.abs()


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_scores_are_of_the_set_and_its_complement(tracer, weight):
    target = make_target(tracer.engine, Faithful(complement=weight))
    by_hand = torch.stack([scores_by_hand(tracer, members, weight) for members in SETS])
    assert torch.allclose(target.set_effects(SETS), by_hand, atol=1e-5)
    masks = torch.stack([from_indices(members, 12).float() for members in SETS])
    assert torch.allclose(target.effects(masks), by_hand, atol=1e-5)
    some = torch.tensor([6, 2, 9])
    assert torch.allclose(target.set_effects(SETS, examples=some), by_hand[:, some], atol=1e-5)
    assert by_hand[0].abs().max() < 1e-5
    assert torch.allclose(by_hand[-1], target.full_effects, atol=1e-5)
    assert target.faithful is target
    for members, means in target.measured.items():
        effects = tracer.engine.set_effects([members, complement_of(members, 12)]).mean(1)
        assert means == pytest.approx(effects.tolist(), abs=1e-5)
    assert set(target.measured) == {*SETS, *(complement_of(members, 12) for members in SETS)}


@pytest.mark.parametrize("part", [None, [0, 7, 3, 9, 4, 1]])
def test_the_gradient_is_that_of_the_scores(model, is_exchanged, part):
    tracer = traced(model, exchange=is_exchanged, max_batch_size=5, weights=range(1, 12))
    target = make_target(tracer.engine, Faithful(complement=0.3))
    examples = torch.arange(11) if part is None else torch.tensor(part)
    mask, weights = torch.linspace(0.2, 0.9, 12), torch.linspace(0.5, 2, 11)
    batches = iter(target.engine.batches_of(examples, n_masks=2))
    scores, gradient = target.gradient(mask, lambda _: weights[next(batches).examples], examples)
    assert torch.allclose(scores, target.effects(mask)[examples], atol=1e-4)
    for index in (0, 6, 11):
        step = torch.zeros(12)
        step[index] = 1e-2
        change = target.effects(mask + step) - target.effects(mask - step)
        slope = (change * weights)[examples].sum().item() / 2e-2
        assert gradient[index].item() == pytest.approx(slope, rel=0.02, abs=2e-3)


@pytest.mark.slow
def test_predicted_changes_are_of_both_sets(tracer):
    """Slopes along small steps, and gains from the slopes of every example by itself."""
    objective, members = Faithful(complement=0.4), (0, 7)
    target, base = make_target(tracer.engine, objective), from_indices(members, 12).float()
    prediction = target.predict_changes(members)
    engine, full = tracer.engine, tracer.engine.full_effects
    own, others = (
        torch.stack([engine.gradient(m, torch.ones_like, torch.tensor([e]))[1] for e in range(11)])
        for m in (base, 1 - base)
    )
    effects, rest = engine.effects(torch.stack([base, 1 - base]))
    for index in (0, 1, 7, 10):
        step = -1e-3 if base[index] else 1e-3
        nudged = base.clone()
        nudged[index] += step
        slope = (target.effects(nudged) - target.effects(base)).mean().item() / step
        assert prediction.gradient[index].item() == pytest.approx(slope, rel=0.05, abs=1e-3)
        sign = -1 if base[index] else 1
        changed = objective.scores(
            effects + sign * own[:, index], rest - sign * others[:, index], full
        )
        gain = sign * (changed - objective.scores(effects, rest, full)).mean().item()
        assert prediction.predicted_effects[index].item() == pytest.approx(gain, abs=1e-4)


@pytest.fixture(scope="module")
def scores(model, is_exchanged):
    """Of every set of at most three, those of one first."""
    target = make_target(traced(model, exchange=is_exchanged).engine, resolve_objective("faithful"))
    sets = [each for k in (1, 2, 3) for each in combinations(range(12), k)]
    return target.set_effects(sets).mean(1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exhaustive", "local-search", "mask-ig", "pgb-ct"])
def test_every_search_maximises_it_and_reports_effects(model, is_exchanged, scores, method):
    tracer = traced(model, exchange=is_exchanged)
    method = tk.search.PGBCT(epochs=4, trials=2) if method == "pgb-ct" else method
    result = tracer.run(method, budget=3, objective="faithful")
    assert result.run.objective == "faithful"
    assert result.effect == pytest.approx(tracer.evaluate(result), abs=1e-5)
    target = make_target(tracer.engine, resolve_objective("faithful"))
    chosen = target.set_effects([tiny.members_of(result)]).mean().item()
    if method in ("exhaustive", "local-search"):
        assert chosen == pytest.approx(scores.max().item(), abs=1e-5)
    # Rankings choose between sets by their mean effects as well.
    measure = target.mean_scores if method == "mask-ig" else target.set_effects
    alone = measure([tiny.members_of(result), *((index,) for index in range(12))], "sets")
    chosen, *singles = alone.reshape(13, -1).mean(1).tolist()
    assert chosen > max(singles)


@pytest.mark.slow
def test_it_is_no_search_by_effect(model, is_exchanged):
    tracer = traced(model, exchange=is_exchanged)
    by_effect, faithful = (
        tracer.run("exhaustive", budget=4, objective=objective)
        for objective in ("mean", "faithful")
    )
    full = tracer.full_effect
    distances = [
        abs(1 - tracer.faithfulness(result).faithfulness[0]) + abs(full - result.effect) / full
        for result in (by_effect, faithful)
    ]
    assert by_effect.effect > faithful.effect
    assert distances[1] < distances[0]


@pytest.mark.slow
def test_a_faithful_search_takes_at_most_twice_the_passes_and_those_of_balancing(
    model, is_exchanged
):
    tracer = traced(model, exchange=is_exchanged)
    for method in ("top-k", "mask-ig", "local-search"):
        passes = [
            tracer.run(method, budget=3, objective=objective).cost.forward_equivalents
            for objective in ("mean", "faithful")
        ]
        assert passes[1] <= 2.2 * passes[0] + 2 * (HALVINGS + 1), method


@pytest.mark.slow
def test_it_stays_within_a_constraint(model, is_exchanged):
    tracer = traced(model, exchange=is_exchanged)
    free = tracer.run("exhaustive", budget=3, objective="faithful")
    kl = float(tracer.evaluate(free, metrics=["kl"]).loc["effect", "kl"])
    bound = tk.Constraint(metric="kl", at_most=0.8 * kl)
    found = tracer.run("exhaustive", budget=3, objective="faithful", constraint=bound)
    assert found.constraint is not None
    assert found.constraint.is_within
    assert found.components != free.components


def test_what_was_measured_before_an_interruption_is_told(model, is_exchanged, monkeypatch):
    tracer, told = traced(model, exchange=is_exchanged), []
    target = make_target(tracer.engine, Faithful(), record=lambda sets, scores: told.extend(sets))
    measure = type(tracer.engine).set_effects

    def cut_short(engine, sets, label="effects", *, examples=None):
        first = measure(engine, [(0,), (1,), complement_of((1,), 12)], label)
        assert len(first) == 3
        raise KeyboardInterrupt

    monkeypatch.setattr(type(tracer.engine), "set_effects", cut_short)
    with pytest.raises(KeyboardInterrupt):
        target.set_effects([(0,), (1,)])
    assert told == [(1,), complement_of((1,), 12)]


def test_errors(model, is_exchanged):
    for value in (-0.1, 1.5, float("nan"), True):
        with pytest.raises(ConfigError, match=r"The option complement is .*\. (Input|Give)"):
            Faithful(complement=value)
    wrong = traced(model, exchange=not is_exchanged)
    with pytest.raises(MetricError, match=r"an effect of -\d.*Exchange x and y, or the prompts"):
        wrong.run("top-k", budget=2, objective="faithful")
    flat = replace(wrong.engine.metric, function=lambda clean, intervened: 0 * intervened.x)
    with pytest.raises(MetricError, match="have no effect, so no set can be faithful to it"):
        require_full_effect(wrong.engine.with_metric(flat))


@pytest.mark.slow
def test_halves_of_the_wrong_sign_lose_no_front(model, is_exchanged):
    """Statistics search halves of the examples, which may have a full effect below 0."""
    tracer = traced(model, exchange=is_exchanged)
    lowest = tracer.engine.full_effects.argsort()[:4].tolist()
    target = make_target(tracer.engine, Faithful())
    half = target.with_pairs(tracer.pairs.subset(lowest))
    assert half.full_effects.mean() > 0
    assert tracer.engine.full_effects[lowest].mean() < 0
    front = tracer.pareto(objective="faithful", max_budget=3, max_passes=60)
    assert front.statistics


def test_fronts_by_effect_know_what_a_faithful_search_measured(model, is_exchanged):
    tracer = traced(model, exchange=is_exchanged)
    trades = tracer.pareto(
        objective="faithful", max_budget=4, max_passes=60, statistics=False
    ).trade_offs
    front = tracer.pareto(objective="mean", max_budget=4, max_passes=14, statistics=False)
    for each in trades:
        if len(each.members) >= front.sizes[0]:
            assert front.at(len(each.members)).effect >= each.effect - 1e-5


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_sets_are_compared_by_their_examples_and_by_their_means(tracer, weight):
    target, numbers = make_target(tracer.engine, Faithful(complement=weight)), torch.arange(11)

    def by_hand(members, some):
        sides = (members, complement_of(members, 12))
        own, others = (tracer.engine.effects(from_indices(each, 12).float()) for each in sides)
        own, others, full = (each[some] for each in (own, others, tracer.engine.full_effects))
        each = full.abs() - (1 - weight) * (full - own).abs() - weight * others.abs()
        means = own.mean(), others.mean(), full.mean()
        of_means = means[2].abs() - (1 - weight) * (means[2] - means[0]).abs()
        return each.mean(), of_means - weight * means[1].abs()

    for some in (numbers, numbers[2:7]):
        expected = torch.stack([sum(by_hand(members, some)) / 2 for members in SETS])
        scores = target.mean_scores(SETS, "sets", examples=some)
        assert torch.allclose(scores, expected, atol=1e-5)
    target.effects(from_indices(SETS[2], 12))
    expected = by_hand(SETS[2], numbers)[1].item()
    assert target.score_of_means(from_indices(SETS[2], 12)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_sampled_gradients_are_those_of_the_score_on_average(tracer, weight):
    target = make_target(tracer.engine, Faithful(complement=weight))
    mask, some = torch.linspace(0.1, 0.9, 12), torch.tensor([1, 4, 8])
    _, whole = target.gradient(mask, torch.ones_like, some)
    generator, before = torch.Generator().manual_seed(0), target.cost
    sampled = [target.sampled_gradient(mask, some, generator) for _ in range(40)]
    # Each of them runs one mask, and is of one of the two sides.
    assert (target.cost - before).backward == pytest.approx(40 * 3 / 11, abs=1e-3)
    sides = torch.stack(sampled).unique(dim=0)
    assert len(sides) == (1 if weight in (0.0, 1.0) else 2)
    first = torch.tensor([torch.equal(each, sides[0]) for each in sampled]).float().mean().item()
    if len(sides) == 2:
        assert min(abs(first - weight), abs(1 - first - weight)) < 0.2
        mixes = [w * sides[0] + (1 - w) * sides[1] for w in (weight, 1 - weight)]
        assert min((mix - whole).abs().max().item() for mix in mixes) < 1e-5
    else:
        assert torch.allclose(sides[0], whole, atol=1e-5)
