"""Explanations of a set, against brute force on a tiny model and on values made by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations, permutations
from math import factorial
from types import SimpleNamespace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.cost import Cost
from tracekit.engine.engine import Engine
from tracekit.engine.gradients import ExampleCurves
from tracekit.engine.prepared import EngineConfig
from tracekit.errors import (
    ComponentError,
    ConfigError,
    MaskError,
    NonFiniteMetricError,
    NotDifferentiableError,
)
from tracekit.measure.explanation import explain
from tracekit.measure.question import KnownSets, Question
from tracekit.measure.shapley import (
    SetGame,
    _values_with_control_variate,
    _with_reverses,
    exact_values,
    pair_interactions,
    redundant_members,
    sampled_values,
)
from tracekit.results.significance import sign_flip_p_values


def heads(n_layers):
    """Four heads a layer."""
    sizes = SimpleNamespace(n_layers=n_layers, n_heads=4, d_model=8, d_mlp=8)
    return tk.components.ComponentRegistry.build(sizes, "attention-patterns")


class Planted(Engine):
    """An engine whose effects are a function of the set, the same on six examples but for noise."""

    n_examples = 6
    pairs = pairs_given = tiny.pairs(6)
    metric = None
    registry = heads(3)
    cost = Cost()
    config = EngineConfig()
    clean = tk.metrics.ContinuationLogProbs(x=torch.full((6,), -1.0), y=torch.full((6,), -2.0))

    def __init__(self, value, metric=tk.metrics.METRICS["odds-ratio"]):
        # An engine refuses new attributes.
        vars(self).update(value=value, metric=metric)

    @property
    def data(self):
        return self

    def set_effects(self, sets, label="effects"):
        values = torch.tensor([float(self.value(frozenset(members))) for members in sets])
        return values[:, None] * (1 + 0.01 * torch.arange(6)) / (1 + 0.01 * 2.5)


class Question(Question):
    """A question whose engine is at hand."""

    held_out = None
    registry = Planted.registry
    model_name, source = "planted", "counterfactual"
    setup = tk.Setup(components="head-outputs", metric="odds-ratio")

    def __init__(self, engine):
        vars(self).update(search_engine=engine, setup=tk.Setup(), sets=KnownSets())


def subsets(items):
    return chain.from_iterable(combinations(items, size) for size in range(len(items) + 1))


def shapley_by_orders(value, members):
    """By definition: what a member brings when it joins, over all orders."""
    totals = dict.fromkeys(members, 0.0)
    for order in permutations(members):
        for rank, member in enumerate(order):
            totals[member] += value(frozenset(order[: rank + 1])) - value(frozenset(order[:rank]))
    return [totals[member] / factorial(len(members)) for member in members]


GAMES = {
    "and": lambda s: float({1, 2} <= s),
    "or": lambda s: float(bool({1, 2} & s)),
    "xor": lambda s: float(len({1, 2} & s) == 1),
    "majority": lambda s: float(len({1, 2, 3} & s) >= 2),
    "sum": lambda s: 0.5 * (1 in s) + 0.25 * (2 in s) + 0.125 * (3 in s),
    "inhibition": lambda s: float(1 in s and 2 not in s),
}


@pytest.mark.parametrize("name", GAMES)
def test_exact_values_are_averages_over_all_orders(name):
    members = (1, 2, 3, 5)
    values = exact_values(SetGame(Planted(GAMES[name]), members))
    expected = shapley_by_orders(GAMES[name], members)
    assert values.per_example.mean(1).tolist() == pytest.approx(expected, abs=1e-6)
    assert values.sampling_error.tolist() == [0] * 4


@pytest.mark.parametrize(
    ("name", "alone", "within", "averaged"),
    [
        ("and", 1, 1, 1),
        ("or", -1, -1, -1),
        ("xor", -2, -2, -2),
        ("majority", 1, -1, 0),
        ("sum", 0, 0, 0),
    ],
)
def test_pairs_in_three_contexts(name, alone, within, averaged):
    pairs = pair_interactions(SetGame(Planted(GAMES[name]), (1, 2, 3)))
    rank = pairs.pairs.index((0, 1))
    assert pairs.alone[rank].mean().item() == pytest.approx(alone, abs=1e-6)
    assert pairs.within[rank].mean().item() == pytest.approx(within, abs=1e-6)
    assert pairs.averaged[rank].mean().item() == pytest.approx(averaged, abs=1e-6)


def test_drawn_orders_come_near_the_exact_values():
    weights = torch.rand(14, generator=torch.Generator().manual_seed(0)).tolist()

    def value(members):
        return sum(weights[i % 14] for i in members) + float({0, 1} <= members)

    class Wide(Planted):
        registry = heads(7)

    game = SetGame(Wide(value), range(14))
    drawn = sampled_values(game, max_sets=600, seed=3)
    expected = torch.tensor(weights) + torch.tensor([0.5, 0.5, *[0.0] * 12])
    errors = drawn.per_example.mean(1) - expected
    assert errors.abs().max() < 0.15
    # Of a member that adds the same to every subset, every order says the same.
    assert drawn.sampling_error[2:].max() < 1e-5
    assert (errors[:2].abs() < 4 * drawn.sampling_error[:2] + 1e-5).all()
    # The values of any orders sum to the effect of the set.
    assert drawn.per_example.sum(0).tolist() == pytest.approx(
        game.effects([game.all_members])[0].tolist(), rel=1e-5
    )
    assert game.n_measured <= 600
    again = sampled_values(SetGame(Wide(value), range(14)), max_sets=600, seed=3)
    assert torch.equal(again.per_example, drawn.per_example)


class Weighted(Planted):
    """Effects that differ between examples, and an engine of which one can say what it counts."""

    registry = heads(7)

    def set_effects(self, sets, label="effects"):
        return torch.stack([self.value(frozenset(members)) for members in sets])


def saturating(members):
    """A drop of probability that adds up in the log-odds, by slopes of each example."""
    slopes = torch.linspace(0.2, 2.0, 8)[:, None] * torch.linspace(0.5, 1.5, 6)
    log_odds = torch.logit(Weighted.clean.x.exp()) - slopes[list(members)].sum(0)
    return Weighted.clean.x.exp() - torch.sigmoid(log_odds)


def with_metric(value, metric):
    return Weighted(value, tk.metrics.METRICS[metric])


def test_an_additive_model_takes_the_noise_out_of_drawn_orders():
    game = SetGame(with_metric(saturating, "probability-drop"), range(8))
    exact = exact_values(game).per_example
    drawn = sampled_values(game, max_sets=100, seed=0)
    # Of a metric that is taken to be linear, drawn orders are all there is.
    plain = sampled_values(
        SetGame(with_metric(saturating, "logit-difference"), range(8)), max_sets=100, seed=0
    )
    assert drawn.n_orders == plain.n_orders == 14
    errors = (drawn.per_example.mean(1) - exact.mean(1)).abs()
    assert (errors < 4 * drawn.sampling_error + 1e-6).all()
    for values in (drawn, plain):
        assert torch.allclose(values.per_example.sum(0), exact.sum(0), atol=1e-6)
    assert drawn.sampling_error.max() < 0.3 * plain.sampling_error.max()
    assert (drawn.per_example - exact).abs().max() < 0.02


def test_values_are_right_on_average_where_the_model_is_wrong():
    """Members that only work together: nothing adds up, in whatever quantity."""

    def value(members):
        return 0.6 * torch.ones(6) * (len({0, 1, 2} & members) >= 2) + saturating(members) / 4

    game = SetGame(with_metric(value, "probability-drop"), range(8))
    exact = exact_values(game).per_example.mean(1)
    data = game.engine
    curves = ExampleCurves.for_metric(data.metric, data.clean, data.pairs.weights)
    drawn = []
    for seed in range(12):
        orders = _with_reverses(8, 7, torch.Generator().manual_seed(seed))
        effects = torch.stack(
            [
                game.effects([tuple(sorted(o[:k])) for k in range(len(o) + 1)]).double()
                for o in orders.tolist()
            ]
        )
        many = _with_reverses(8, 200, torch.Generator().manual_seed(99))
        drawn.append(_values_with_control_variate(curves, orders, effects, many)[0].mean(1))
    errors = torch.stack(drawn).mean(0) - exact
    assert (errors.abs() < 4 * torch.stack(drawn).std(0) / 12**0.5 + 2e-3).all()


@pytest.mark.parametrize("metric", ["odds-ratio", "probability-drop", "probability-ratio"])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_curves_are_inverted_and_weighted(metric, direction):
    named = tk.metrics.METRICS[metric]
    data = Weighted(saturating, named if direction == "noising" else named.denoising())
    curves = ExampleCurves.for_metric(data.metric, data.clean, data.pairs.weights)
    quantity = torch.linspace(-4, 4, 9, dtype=torch.float64).repeat(6, 1)
    effects = curves.effects(quantity)
    assert torch.allclose(curves.quantity(effects), quantity, atol=1e-4)
    weights = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 1.0], dtype=torch.float64)
    double = replace(curves, weights=weights)
    assert torch.allclose(double.effects(quantity), weights[:, None] * effects)
    change = (curves.effects(quantity + 1e-4) - curves.effects(quantity - 1e-4)) / 2e-4
    assert torch.allclose(curves.steepness(quantity), change, rtol=1e-3, atol=1e-5)


def test_members_that_do_the_same_can_be_left_out_one_at_a_time():
    redundancy = redundant_members(SetGame(Planted(GAMES["or"]), (1, 2, 3)), tolerance=0.02)
    # 3 does nothing; of 1 and 2 one must stay.
    assert len(redundancy.members) == 2
    assert 2 in redundancy.members
    assert redundancy.effects.mean() == pytest.approx(1)
    assert redundant_members(SetGame(Planted(GAMES["and"]), (1, 2)), tolerance=0.02).members == ()


@pytest.mark.slow
def test_every_number_is_measured(tracer, plain_effects):
    """Against effects of every set that were measured the plain way."""
    members = (1, 4, 6, 11)

    def value(subset):
        return plain_effects[tuple(sorted(subset))] if subset else 0.0

    why = tracer.explain([tracer.registry[i] for i in members])
    assert [tracer.registry.index(component) for component in why.components] == list(members)
    whole = value(members)
    by_label = why.table.set_index("component")
    for index, expected in zip(members, shapley_by_orders(value, members), strict=True):
        row = by_label.loc[tracer.registry.label(index)]
        assert row["alone"] == pytest.approx(value((index,)), abs=1e-6)
        assert row["last"] == pytest.approx(whole - value(set(members) - {index}), abs=1e-6)
        assert row["value"] == pytest.approx(expected, abs=1e-6)
        for name in ("alone", "last", "value"):
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
    # Efficiency: the values sum to the effect of the set, example by example.
    assert torch.allclose(why.shapley.per_example.sum(0), why.effect, atol=1e-6)
    added, flat = why.additivity, {tracer.registry.label(i): i for i in range(12)}
    assert added["effect"] == pytest.approx(whole, abs=1e-6)
    singles = sum(value((i,)) for i in members)
    assert added["sum_of_singles"] == pytest.approx(singles, abs=4e-6)
    assert added["interaction"] == pytest.approx(added["effect"] - added["sum_of_singles"])
    for row in why.interactions.to_dict("records"):
        i, j = flat[row["first"]], flat[row["second"]]
        rest = set(members) - {i, j}
        assert row["alone"] == pytest.approx(value((i, j)) - value((i,)) - value((j,)), abs=1e-6)
        within = whole - value(rest | {i}) - value(rest | {j}) + value(rest)
        assert row["within"] == pytest.approx(within, abs=1e-6)
        averaged = sum(
            factorial(len(t))
            * factorial(2 - len(t))
            / factorial(3)
            * (value({*t, i, j}) - value({*t, i}) - value({*t, j}) + value(t))
            for t in subsets(sorted(rest))
        )
        assert row["averaged"] == pytest.approx(averaged, abs=1e-6)


def test_non_members_are_measured(tracer, plain_effects):
    members = (1, 4, 6)

    def value(subset):
        return plain_effects[tuple(sorted(subset))] if subset else 0.0

    why = tracer.explain([tracer.registry[i] for i in members])
    flat = {tracer.registry.label(i): i for i in range(12)}
    assert len(why.replacements) == 3
    for row in why.replacements.to_dict("records"):
        i, j = flat[row["component"]], flat[row["replacement"]]
        rest = set(members) - {i}
        assert j not in members
        assert row["lost"] == pytest.approx(value(members) - value(rest), abs=1e-6)
        assert row["recovered"] == pytest.approx(value(rest | {j}) - value(rest), abs=1e-6)
        # The best of those that were measured.
        measured = [each for each in why.non_members if members[each.member] == i]
        assert row["recovered"] == pytest.approx(max(e.recovered.mean().item() for e in measured))
    for each in why.non_members:
        rest = set(members) - {members[each.member]}
        before = value(rest | {each.non_member}) - value(rest)
        after = value({*members, each.non_member}) - value(members)
        assert each.rise.mean().item() == pytest.approx(after - before, abs=1e-6)
    rising = [e for e in why.non_members if tk.results.effect_interval(e.rise)[0] > 0]
    assert len(why.backups) == len(rising)


def test_a_planted_and_is_told_from_an_or():
    explained = {name: planted_explanation(name) for name in ("and", "or", "sum")}
    assert set(explained["and"].table["verdict"]) == {"with others"}
    assert sorted(explained["or"].table["verdict"]) == ["can be left out", "overlaps"]
    assert set(explained["sum"].table["verdict"]) == {"by itself"}
    assert explained["and"].interactions["within"].item() == pytest.approx(1, abs=1e-6)
    assert explained["or"].interactions["within"].item() == pytest.approx(-1, abs=1e-6)
    assert "interaction brings 1 " in str(explained["and"])


def planted_explanation(name):
    mask = torch.zeros(12)
    mask[[1, 2]] = 1
    return explain(Question(Planted(GAMES[name])), mask, max_sets=100, look_outside=False)


def test_the_text_names_what_was_found(tracer):
    why = tracer.explain(tracer.run("top-k", budget=3))
    text = str(why)
    assert len(text.splitlines()) <= 10
    for label in why.labels:
        assert label in text
    assert f"{why.additivity['effect']:.3g}" in text
    assert repr(why).startswith(
        "Explanation(3 components of GPT2LMHeadModel on pairs, counterfactual patching, effect "
    )


def test_coalitions_as_libraries_for_games_ask(tracer, plain_effects):
    game = tracer.as_game([tracer.registry[i] for i in (2, 5, 9)])
    values = game(torch.tensor([[0, 0, 0], [1, 0, 0], [1, 0, 1], [1, 1, 1]]).bool().numpy())
    expected = [0, plain_effects[2,], plain_effects[2, 9], plain_effects[2, 5, 9]]
    assert values.tolist() == pytest.approx(expected, abs=1e-6)
    assert game.n_members == 3
    with pytest.raises(MaskError, match=r"Coalitions of shape \(2,\) were given. Give a row"):
        game([True, False])


def test_given_components_are_patched_in_every_coalition(tracer, plain_effects):
    game = SetGame(tracer.engine, (2, 5), given=(9,))
    values = game.effects([(), (0,), (0, 1)]).mean(1)
    expected = [plain_effects[9,], plain_effects[2, 9], plain_effects[2, 5, 9]]
    assert values.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("members", "options", "error", "text"),
    [
        ([3], {}, ComponentError, r"1 components \(L0H3\).*nothing to explain.*Give at least"),
        ([], {}, ComponentError, r"0 components \(none\).*nothing to explain.*Give at least"),
        ([1, 2], {"max_sets": 0}, ConfigError, r"max_sets is 0\..*Give a whole number, at least 1"),
        ([1, 2], {"tolerance": 1.5}, ConfigError, r"tolerance is 1\.5\..*from 0 to below"),
    ],
)
def test_bad_input(tracer, members, options, error, text):
    mask = torch.zeros(12)
    mask[members] = 1
    with pytest.raises(error, match=text):
        tracer.explain(mask, **options)


def test_a_metric_that_is_not_finite_on_a_subset_is_named(model):
    def drop(clean, intervened):
        return clean.x - intervened.x

    data = tiny.pairs(6)
    alone = tk.Tracer(model, data, metric=drop).engine.set_effects([(1,)])[0, 0].item()

    def fragile(clean, intervened):
        effects = drop(clean, intervened)
        return torch.where((effects - alone).abs() < 1e-6, torch.nan, effects)

    tracer = tk.Tracer(model, data, metric=fragile)
    with pytest.raises(NonFiniteMetricError, match=r"Of the subset L0H1: .*fragile"):
        tracer.explain([tracer.registry[i] for i in (1, 2)], look_outside=False)


def test_without_a_gradient_nobody_proposes_non_members(model):
    tracer = tk.Tracer(model, tiny.pairs(6), metric="accuracy")
    members = [tracer.registry[i] for i in (1, 4)]
    why = tracer.explain(members)
    assert why.backups is None
    assert why.replacements is None
    with pytest.raises(NotDifferentiableError, match="no gradient for explain"):
        tracer.explain(members, look_outside=True)


def test_sign_flips_against_all_of_them():
    effects = torch.randn(2, 8, generator=torch.Generator().manual_seed(1)) + torch.tensor(
        [[0.0], [1.0]]
    )
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 8)
    exact = ((effects @ signs.T).abs() >= effects.sum(1).abs()[:, None] - 1e-5).float().mean(1)
    measured = [sign_flip_p_values(row[None])[1].item() for row in effects]
    assert measured == pytest.approx(exact.tolist(), abs=1e-6)
