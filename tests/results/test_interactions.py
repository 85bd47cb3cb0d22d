"""Pairs of components, against sets that are measured one by one the plain way."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.files import rewrite
from tests.latex import caption_of, check_latex, titles_of
from tests.measure.test_explanation import Planted
from tracekit.errors import ComponentError, ConfigError, PairsError, ResultFormatError
from tracekit.measure import effects as measured_effects
from tracekit.measure.effects import measure_pairs
from tracekit.results import effect_interval
from tracekit.results.interactions import InteractionGrid, kinds_of_pairs
from tracekit.results.intervals import row_intervals
from tracekit.results.significance import (
    PValues,
    few_examples_note,
    least_p,
    most_testable_rows,
    p_values,
    sign_flip_p_values,
    zero_below_rounding,
)

PAIRED = (1, 4, 6, 11)
GIVEN = (0, 7)


@pytest.fixture(scope="module")
def plain(tracer):
    """Effect of a set on every example, by a mask through all layers."""
    engine = tiny.engine(
        tracer.model,
        tracer.pairs,
        metric="probability-ratio",
        capabilities=tk.Capabilities.none(),
    )
    cache = {(): torch.zeros(12)}

    def effects(*members):
        key = tuple(sorted(members))
        if key not in cache:
            mask = torch.zeros(12)
            mask[list(key)] = 1
            cache[key] = engine.effects(mask)
        return cache[key].double()

    return effects


def components(tracer, indices):
    return [tracer.registry[i] for i in indices]


def interaction(plain, i, j, given=()):
    return plain(i, j, *given) - plain(i, *given) - plain(j, *given) + plain(*given)


# ---- pairs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [(), GIVEN])
def test_every_number_of_a_grid_is_measured(tracer, plain, given):
    grid = tracer.interactions(
        components(tracer, PAIRED), given=components(tracer, given) if given else None
    )
    assert grid.given == tuple(tracer.registry.label(i) for i in given)
    assert grid.given_effect == pytest.approx(plain(*given).mean().item(), abs=1e-6)
    frame = grid.to_frame().set_index(["first", "second"])
    pairs = list(combinations(PAIRED, 2))
    measured = torch.stack([interaction(plain, i, j, given) for i, j in pairs])
    scale = [
        sum((plain(*part, *given) - plain(*given)).abs() for part in ((i,), (j,), (i, j)))
        for i, j in pairs
    ]
    tests = p_values(zero_below_rounding(measured, torch.stack(scale)))
    for rank, ((i, j), values) in enumerate(zip(pairs, measured, strict=True)):
        row = frame.loc[(tracer.registry.label(i), tracer.registry.label(j))]
        assert row["interaction"] == pytest.approx(values.mean().item(), abs=1e-6)
        joint = plain(i, j, *given) - plain(*given)
        assert row["effect"] == pytest.approx(joint.mean().item(), abs=1e-6)
        low, high = effect_interval(values.float())
        assert (row["interaction_low"], row["interaction_high"]) == pytest.approx(
            (low, high), rel=2e-3, abs=1e-5
        )
        for name, expected in (("p", tests.row), ("q", tests.q), ("p_family", tests.family)):
            assert row[name] == pytest.approx(expected[rank].item(), abs=2e-3)
        assert row["p"] <= min(row["q"], row["p_family"])
        assert row["significant"] == (row["q"] < 0.05)
    for rank, i in enumerate(PAIRED):
        values = plain(i, *given) - plain(*given)
        assert grid.singles[rank].item() == pytest.approx(values.mean().item(), abs=1e-6)
        expected = effect_interval(values.float())
        assert grid.singles_interval[rank].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_weights_reach_the_intervals(model):
    rows = [{**row, "weight": 1 + 4 * (i % 2)} for i, row in enumerate(tiny.rows(8))]
    tracer = tk.Tracer(model, tk.PromptPairs.from_ids(rows))
    grid = tracer.interactions(components(tracer, (1, 4)))
    effects = tracer.engine.set_effects([(1, 4), (1,), (4,)])
    values = effects[0] - effects[1] - effects[2]
    expected = effect_interval(values, weights=tracer.pairs.weights)
    assert grid.interaction_interval[0].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_both_directions(tracer, model):
    members = components(tracer, PAIRED)
    grid = tracer.interactions(members, both_directions=True)
    back = tk.Tracer(model, tracer.pairs, metric="probability-ratio", direction="denoising")
    expected = back.interactions(components(back, PAIRED))
    assert (grid.direction, grid.opposite.direction) == ("noising", "denoising")
    torch.testing.assert_close(grid.opposite.pairs, expected.pairs)
    torch.testing.assert_close(grid.opposite.tests.q, expected.tests.q)
    frame = grid.to_frame()
    opposite = expected.to_frame().set_index(["first", "second"])
    for row in frame.to_dict("records"):
        other = opposite.loc[(row["first"], row["second"])]
        for name in ("effect", "interaction", "interaction_low", "p"):
            assert row[f"opposite_{name}"] == pytest.approx(other[name], abs=1e-6)
    assert "kind" not in tracer.interactions(members).to_frame()
    # From the other side the words are the same.
    turned = replace(expected, opposite=tracer.interactions(members))
    assert sorted(turned.to_frame()["kind"]) == sorted(frame["kind"])


# The behaviour, from which of three components are clean.
BEHAVIOURS = {
    "and": (lambda clean: {1, 2} <= clean, "and"),
    "or": (lambda clean: bool({1, 2} & clean), "or"),
    "xor": (lambda clean: len({1, 2} & clean) != 1, "xor"),
    "majority": (lambda clean: len({1, 2, 3} & clean) >= 2, "mixed"),
    "sum": (lambda clean: 0.5 * (1 in clean) + 0.25 * (2 in clean), "none"),
    "inhibition": (lambda clean: (1 in clean) * (0.5 if 2 in clean else 1), "inhibition"),
    # 2 does something only where 1 is patched, and its clean value says nothing.
    "backup": (lambda clean: 1 in clean or clean == {2, 3}, "one-sided"),
}


class Behaviour(Planted):
    """Both directions of patching 1, 2 and 3, on ten examples that differ in size."""

    n_examples = 10
    pairs = pairs_given = tiny.pairs(10)

    def __init__(self, behaviour, direction):
        everything = frozenset({1, 2, 3})
        start = everything if direction == "noising" else frozenset()
        super().__init__(lambda patched: self.change(behaviour, start, patched & everything))
        vars(self)["_direction"] = direction

    def change(self, behaviour, start, patched):
        change = float(behaviour(start)) - float(behaviour(start ^ patched))
        return change if start else -change

    @property
    def metric(self):
        metric = tk.metrics.METRICS["odds-ratio"]
        return metric if self._direction == "noising" else metric.denoising()

    def set_effects(self, sets, label="effects", *, examples=None):
        values = torch.tensor([float(self.value(frozenset(members))) for members in sets])
        return values[:, None] * torch.linspace(0.8, 1.2, 10)


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_the_word_for_a_pair(name):
    behaviour, expected = BEHAVIOURS[name]
    grids = [
        measure_pairs(Behaviour(behaviour, direction), (1, 2, 3))
        for direction in ("noising", "denoising")
    ]
    assert kinds_of_pairs(*grids)[0] == expected
    assert kinds_of_pairs(*grids[::-1])[0] == expected


@pytest.mark.parametrize(
    ("signs", "singles", "together", "intervals", "expected"),
    [
        # Less than half of the larger single effect, not of the smaller one.
        ((-1, 1), (1.0, 0.3), 0.4, ((0.9, 1.1), (0.2, 0.4)), "and"),
        ((-1, 1), (1.0, 0.3), 0.1, ((0.9, 1.1), (0.2, 0.4)), "xor"),
        # An effect below 0 whose interval reaches above it is no inhibition.
        ((1, -1), (1.0, -0.1), 1.2, ((0.9, 1.1), (-0.4, 0.2)), "or"),
        ((1, -1), (1.0, -0.3), 1.2, ((0.9, 1.1), (-0.4, -0.2)), "inhibition"),
        ((1, -1), (-0.3, 1.0), 1.2, ((-0.4, -0.2), (0.9, 1.1)), "inhibition"),
        ((1, 1), (-0.3, 1.0), 1.2, ((-0.4, -0.2), (0.9, 1.1)), "mixed"),
        ((0, -1), (-0.3, 1.0), 1.2, ((-0.4, -0.2), (0.9, 1.1)), "one-sided"),
    ],
)
def test_the_rule_for_words(signs, singles, together, intervals, expected):
    grids = []
    for direction, sign, effects, both in (
        ("noising", signs[0], singles, together),
        ("denoising", signs[1], (0.0, 0.0), signs[1]),
    ):
        q = torch.tensor([0.01 if sign else 1.0])
        grid = InteractionGrid(
            labels=("L0H0", "L0H1"),
            singles=torch.tensor(effects),
            pairs=torch.tensor([[effects[0], both], [both, effects[1]]]),
            direction=direction,
            singles_interval=torch.tensor(intervals),
            tests=PValues(row=q, q=q, family=q),
        )
        grids.append(grid)
    assert kinds_of_pairs(*grids) == [expected]


def test_and_or_by_hand():
    """The table of the documentation."""
    for name, noising, denoising in (
        ("and", [1, 1, 1], [0, 0, 1]),
        ("or", [0, 0, 1], [1, 1, 1]),
        ("sum", [0.5, 0.25, 0.75], [0.5, 0.25, 0.75]),
    ):
        for direction, expected in (("noising", noising), ("denoising", denoising)):
            grid = measure_pairs(Behaviour(BEHAVIOURS[name][0], direction), (1, 2))
            values = [*grid.singles.tolist(), grid.pairs[0, 1].item()]
            assert values == pytest.approx(expected, abs=1e-6)


# ---- files and refusals -----------------------------------------------------------------------


def test_grids_keep_their_statistics(tracer, tmp_path):
    grid = tracer.interactions(
        components(tracer, PAIRED), both_directions=True, given=components(tracer, GIVEN)
    )
    again = tk.results.InteractionGrid.load(grid.save(tmp_path / "grid.json"))
    assert again.to_frame().equals(grid.to_frame())
    assert (again.given, again.given_effect) == (grid.given, grid.given_effect)
    assert again.opposite.to_frame().equals(grid.opposite.to_frame())
    # What is patched besides takes the values of each direction.
    assert grid.opposite.given == grid.given
    back = tk.Tracer(tracer.model, tracer.pairs, metric="probability-ratio", direction="denoising")
    expected = back.interactions(components(back, PAIRED), given=components(back, GIVEN))
    torch.testing.assert_close(grid.opposite.pairs, expected.pairs)
    assert grid.opposite.given_effect == pytest.approx(expected.given_effect, abs=1e-6)
    torch.testing.assert_close(again.singles_interval, grid.singles_interval)


def test_statistics_that_are_not_finite_are_refused(tracer, tmp_path):
    path = tracer.interactions(components(tracer, PAIRED)).save(tmp_path / "grid.json")
    rewrite(path, lambda d, _: d["singles_interval"][0].__setitem__(1, float("nan")))
    with pytest.raises(ResultFormatError, match="grid.json cannot be read: singles_interval"):
        tk.results.InteractionGrid.load(path)


def test_bad_input(tracer, monkeypatch, unchecked):
    members = components(tracer, PAIRED)
    with pytest.raises(ComponentError, match="L0H1 is among those to be paired and patched"):
        tracer.interactions(members, given=members[:1])
    monkeypatch.setattr(measured_effects, "_MOST_EFFECTS", 100)
    with pytest.raises(ComponentError, match="10 sets on 12 examples have 120 effects, which are"):
        tracer.interactions(members)


def test_constants_have_one_direction(model):
    tracer = tk.Tracer(model, tiny.pairs(4), source="zero")
    with pytest.raises(PairsError, match="cannot be reversed"):
        tracer.interactions(components(tracer, (1, 4)), both_directions=True)


def test_what_is_patched_besides_is_not_paired(tracer):
    grid = tracer.interactions(layers=[0], given=components(tracer, (1, 7)))
    assert grid.labels == ("L0H0", "L0H2", "L0H3")


# ---- statistics -------------------------------------------------------------------------------


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_correction_against_all_sign_flips():
    """Step-down maxT by its definition, over all 2^9 flips."""
    values = draws(4, 9, seed=3).double() + torch.tensor([[0.0], [0.5], [1.0], [1.4]])
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 9)
    scaled = values / values.square().sum(1, keepdim=True).sqrt()
    statistics, flipped = scaled.sum(1).abs(), (scaled @ signs.T).abs()
    expected, worst = {}, 0.0
    rest = list(range(4))
    while rest:
        first = max(rest, key=lambda row: statistics[row])
        share = (flipped[rest].max(0).values >= statistics[first] - 1e-9).double().mean().item()
        worst = max(worst, share)
        expected[first] = worst
        rest.remove(first)
    measured = sign_flip_p_values(values)[1].tolist()
    assert measured == pytest.approx([expected[row] for row in range(4)], abs=1e-9)


@pytest.mark.slow
def test_of_many_rows_without_effect_hardly_any_is_significant():
    """200 times 30 rows that share half of their variance: at most about 5 % have any below .05."""
    shared = draws(200, 1, 16, seed=1)
    values = shared + draws(200, 30, 16, seed=2)
    for test in (lambda each: sign_flip_p_values(each)[1], lambda each: p_values(each).family):
        wrong = sum(test(each).min().item() < 0.05 for each in values[:100])
        assert wrong <= 11


@pytest.mark.slow
def test_of_many_rows_a_few_are_found():
    values = draws(700, 30, seed=4)
    values[:3] += 1.5
    tests = p_values(values)
    assert (tests.family[:3] < 0.05).all()
    assert (tests.family[3:] > 0.05).all()
    assert (tests.q[:3] < 0.05).all()


def test_no_p_value_is_low_beside_an_interval_that_holds_0():
    """Skewed effects of mean 0, on which sign flips are wrong."""
    wrong = 0
    for seed in range(60):
        values = draws(3, 8, seed=seed).exp() - torch.tensor(0.5).exp()
        low, high = row_intervals(values).T
        holds_0 = (low <= 0) & (high >= 0)
        assert not ((p_values(values).row < 0.05) & holds_0).any()
        wrong += int(((sign_flip_p_values(values)[1] < 0.05) & holds_0).any())
    assert wrong > 3


def test_a_strong_row_leaves_the_others_their_p_values():
    """Singles of 1 and a pair of 5, beside a pair with an effect of a million."""
    weak = 3 + 0.1 * draws(1, 20)
    strong = torch.full((1, 20), 1e6) + draws(1, 20)
    alone = p_values(zero_below_rounding(weak, torch.full((1, 20), 7.0))).family
    both, scale = torch.cat([weak, strong]), torch.tensor([[7.0], [1e6]]).expand(2, 20)
    assert alone.item() == pytest.approx(0.001, abs=2e-4)
    assert p_values(zero_below_rounding(both, scale)).family[0].item() == pytest.approx(
        0.001, abs=2e-4
    )


def test_the_least_p_value_of_few_examples_is_said():
    assert [least_p(n) for n in (1, 4, 6)] == [1.0, 1 / 8, 1 / 32]
    assert least_p(10**6) == 2 / 2001
    assert few_examples_note(6) == ""
    assert re.search(
        r"5 independent examples .*below 0\.062.*none can reach \.05", few_examples_note(5)
    )
    assert few_examples_note(8, 6) == ""
    assert re.search(
        r"8 independent examples .*below 0\.0078.*5 of the 28 rows", few_examples_note(8, 28)
    )
    assert [most_testable_rows(n) for n in (4, 6, 8, 16, 99)] == [1, 1, 6, 500, 500]


def test_p_values_of_groups_are_those_of_as_many_examples():
    values, clusters = draws(3, 9, seed=5) + 0.5, torch.arange(9).repeat(4)
    grouped, summed = (
        p_values(values.repeat(1, 4), clusters=clusters),
        p_values(values.double() * 4),
    )
    for name in ("row", "q", "family"):
        assert torch.equal(getattr(grouped, name), getattr(summed, name))


def test_rows_without_any_effect():
    values = torch.zeros(3, 8)
    values[1] = 1
    assert sign_flip_p_values(values)[1].tolist() == pytest.approx([1, 2 / 256, 1], abs=0.004)


@pytest.mark.parametrize("with_weights", [False, True])
def test_intervals_of_rows_are_those_of_each(with_weights, monkeypatch):
    weights = torch.tensor([5.0, 1.0] * 7)
    weights = weights / weights.mean() if with_weights else None
    values = draws(9, 14).exp()
    values[3] = 0
    values[4] = 1
    expected = [effect_interval(row, weights=weights) for row in values]
    found = row_intervals(values, weights=weights)
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-5)
    # In portions.
    monkeypatch.setattr("tracekit.results.intervals._AT_ONCE", 6000)
    assert torch.allclose(row_intervals(values, weights=weights), found, atol=1e-9)


@pytest.mark.slow
def test_a_set_is_paired_on_held_out_examples_and_all_components_on_searched_ones(demo_model):
    own, fresh = tk.load_dataset("demo-facts", demo_model)[:24].split(0.5)
    question = (demo_model, own, "head-outputs", "logit-difference")
    tracer = tk.Tracer(*question, held_out=fresh)
    heads = ["L0H0", "L1H4"]
    for members in (heads, tracer.as_result(heads)):
        grid = tracer.interactions(members)
        assert grid.examples == "on held-out examples, n = 12"
        assert grid.pairs[0, 1].item() == pytest.approx(tracer.evaluate(heads), rel=1e-5)
    searched = tracer.interactions(layers=[0])
    assert searched.examples == "n = 12 searched"
    alone = tracer.evaluate(["L0H0"], held_out=False)
    assert searched.singles[0].item() == pytest.approx(alone, rel=1e-5)
    assert tk.Tracer(*question).interactions(heads).examples == "n = 12 searched"


def test_a_grid_in_latex_says_what_it_is_of(tracer):
    how = {"metric": "probability-ratio", "positions": "last", "direction": "denoising"}
    tracer = tk.Tracer(tracer.model, tracer.pairs, tracer.registry, **how)
    grid = tracer.interactions(components(tracer, range(1, 8)), given=components(tracer, (0,)))
    text = grid.to_latex()
    check_latex(text)
    assert text.count("\\\n") == 1 + 10
    passed = sum(grid.significant)
    assert caption_of(text).startswith(
        "Interactions of pairs, what both components do together less what each does alone: "
        f"restored effect (probability ratio $-$ 1); {grid.title}; counterfactual patching at the "
        "last token, denoising, n = 12 searched; patched besides: "
        f"{tracer.registry.label(0)}. The 10 strongest of 21 pairs. {passed} of 21 pairs have q < "
        ".05."
    )
    assert caption_of(text).endswith(" Brackets: 95 \\% intervals.")
    unit = "(probability ratio $-$ 1)"
    of_pair = [f"effect of both {unit}", f"interaction {unit}", "p", "q", "family-wise p"]
    assert titles_of(text) == ["first", "second", *of_pair]
    whole = grid.to_latex(rows=None, label="tab:pairs")
    check_latex(whole)
    assert whole.count("\\\n") == 1 + 21
    assert "All 21 pairs. " in caption_of(whole)
    assert "\\label{tab:pairs}" in whole
    assert caption_of(grid.to_latex(caption="Mine.")) == "Mine."
    for rows in (0, -1):
        with pytest.raises(ConfigError, match="rows is .* Give a whole number, at least 1"):
            grid.to_latex(rows=rows)


def test_a_grid_of_both_directions_in_latex_names_them(tracer):
    grid = tracer.interactions(components(tracer, PAIRED), both_directions=True)
    text = grid.to_latex()
    check_latex(text)
    unit = "(probability ratio $-$ 1)"
    assert f"interaction {unit}, denoising" in titles_of(text)
    assert {"q, denoising", "kind"} < {*titles_of(text)}
    swapped = grid.opposite.to_latex()
    assert ", denoising, n = " in caption_of(swapped)


def test_names_of_a_grid_are_no_latex():
    grid = InteractionGrid(
        labels=("a_b", "50 % & more"),
        singles=torch.zeros(2),
        pairs=torch.zeros(2, 2),
        title="my_data.csv \\input{x} data",
    )
    text = grid.to_latex()
    check_latex(text)
    assert r"my\_data.csv \textbackslash{}input\{x\} data" in caption_of(text)
    assert "Brackets" not in caption_of(text)
    assert r"a\_b & 50 \% \& more" in text
    assert titles_of(text) == ["first", "second", "effect of both", "interaction"]
