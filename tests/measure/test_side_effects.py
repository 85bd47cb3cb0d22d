"""Side effects of a set, against effects that are measured one mask at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import false_discovery_control

import tracekit as tk
from tests import tiny
from tests.files import rewrite
from tracekit.components.masks import from_indices
from tracekit.errors import (
    ConfigError,
    MissingContinuationError,
    PairsError,
    ResultFormatError,
    ResultNotFoundError,
)
from tracekit.measure.controls import control_sets

MEMBERS = (1, 4, 6)
OTHER = tiny.pairs(9, seed=8)


@pytest.fixture(scope="module")
def side(tracer):
    others = {"fresh": OTHER, "kl": (OTHER, "kl"), "same": (tracer.pairs, "logit-difference")}
    members = [tracer.registry[i] for i in MEMBERS]
    return tracer.side_effects(members, others, draws=6, seed=2)


def plain_effects(model, pairs, metric, members):
    """Effects of a mask on every example, by an engine that shares nothing."""
    engine = tiny.engine(model, pairs, metric=metric, capabilities=tk.Capabilities.none())
    return engine.effects(from_indices(members, 12).float())


@pytest.mark.slow
def test_every_number_is_measured(tracer, side):
    controls = control_sets(tracer.registry, MEMBERS, 6, torch.Generator().manual_seed(2))
    rows = side.table.set_index("name")
    strengths = {}
    for name, pairs, metric in (
        ("target", tracer.pairs, "probability-ratio"),
        ("fresh", OTHER, "probability-ratio"),
        ("kl", OTHER, "kl"),
        ("same", tracer.pairs, "logit-difference"),
    ):
        full = plain_effects(tracer.model, pairs, metric, range(12)).abs().mean()
        effects = plain_effects(tracer.model, pairs, metric, MEMBERS)
        row = rows.loc[name]
        assert row["effect"] == pytest.approx(effects.mean().item(), abs=1e-5)
        strengths[name] = (effects.abs().mean() / full).item()
        assert row["strength"] == pytest.approx(strengths[name], rel=1e-4)
        assert row["strength_low"] <= row["strength"] <= row["strength_high"]
        random = [plain_effects(tracer.model, pairs, metric, c).abs().mean() for c in controls]
        random = torch.stack(random) / full
        assert row["control"] == pytest.approx(random.mean().item(), rel=1e-3)
        assert row["control_low"] == pytest.approx(random.min().item(), rel=1e-3)
        assert row["control_high"] == pytest.approx(random.max().item(), rel=1e-3)
        hits = sum(each >= strengths[name] - 1e-6 for each in random.tolist())
        assert row["p"] == pytest.approx((1 + hits) / 7)
        assert (row["examples"], row["metric"]) == (len(pairs), metric)
    p = side.table["p"].to_numpy()
    assert side.table["q"].to_numpy() == pytest.approx(false_discovery_control(p))
    for name in ("fresh", "kl", "same"):
        here, there = strengths["target"], strengths[name]
        row = rows.loc[name]
        assert row["selectivity"] == pytest.approx((here - there) / (here + there), abs=1e-4)
        assert row["selectivity_low"] <= row["selectivity"] <= row["selectivity_high"]
        assert -1 <= row["selectivity_low"] <= row["selectivity_high"] <= 1
        assert row["control_selectivity"] == side.control_selectivity(name).median()
    assert rows.loc["target", "selectivity"] != rows.loc["target", "selectivity"]
    # The set and six random ones on each of four; all components, unless that was done before.
    assert side.cost.forward in (4 * 7 + 3, 4 * 7 + 4)


def made(side, **changes):
    """Side effects whose target or only other has effects made by hand."""
    target, other = side.target, side.others[0]
    target = replace(target, **changes.get("target", {}))
    return replace(side, target=target, others=(replace(other, **changes.get("other", {})),))


def alike(n, value, fingerprint="a"):
    return {
        "effects": torch.full((n,), value),
        "full_effects": torch.ones(n),
        "controls": torch.zeros(0, n),
        "dataset_fingerprint": fingerprint,
    }


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [(0.5, 0.0, 1.0), (0.5, 0.5, 0.0), (0.5, -0.5, 0.0), (0.0, 0.3, -1.0), (0.6, 0.2, 0.5)],
)
def test_the_index_by_hand(side, here, there, expected):
    changed = made(side, target=alike(8, here), other=alike(5, there, "b"))
    assert changed.selectivity("fresh") == pytest.approx(expected, abs=1e-6)
    assert changed.selectivity_interval("fresh") == pytest.approx((expected, expected), abs=1e-6)
    # Without random sets there is no p.
    assert changed.table[["p", "q"]].isna().all(None)
    assert "random" not in str(changed)


def test_a_set_without_any_effect_has_no_selectivity(side):
    changed = made(side, target=alike(8, 0.0), other=alike(5, 0.0, "b"))
    assert changed.selectivity("fresh") != changed.selectivity("fresh")
    assert changed.table["selectivity"].isna().all()


def test_opposite_effects_do_not_cancel(side):
    flipping = torch.tensor([0.5, -0.5] * 4)
    there = alike(8, 0.5) | {"effects": flipping}
    changed = made(side, target=alike(8, 0.5), other=there)
    assert changed.table["effect"][1] == 0
    assert changed.table["strength"][1] == pytest.approx(0.5)


def test_the_same_examples_are_resampled_together(side):
    """By a metric that is twice the other, the index does not depend on the examples drawn."""
    effects = torch.rand(30, generator=torch.Generator().manual_seed(0))
    here = alike(30, 1.0) | {"effects": effects}
    there = alike(30, 1.0) | {"effects": effects / 3}
    low, high = made(side, target=here, other=there).selectivity_interval("fresh")
    assert low == pytest.approx(0.5, abs=1e-6)
    assert high == pytest.approx(0.5, abs=1e-6)
    apart = made(side, target=here, other=there | {"dataset_fingerprint": "b"})
    low, high = apart.selectivity_interval("fresh")
    assert high - low > 0.1


def test_coverage_of_the_interval(side):
    """100 draws of 40 examples: the true index lies in a 95 % interval in about 95 % of them."""
    generator = torch.Generator().manual_seed(0)
    truth, covered = (0.5 - 0.25) / 0.75, 0
    for _ in range(100):
        drawn = [
            alike(40, 1.0, name) | {"effects": mean * (0.5 + torch.rand(40, generator=generator))}
            for name, mean in (("a", 0.5), ("b", 0.25))
        ]
        low, high = made(side, target=drawn[0], other=drawn[1]).selectivity_interval("fresh")
        covered += low <= truth <= high
    assert 88 <= covered <= 99


def test_the_text_has_a_line_for_each(side):
    lines = str(side).splitlines()
    assert lines[0] == (
        "3 components of GPT2LMHeadModel, counterfactual patching: L0H1, L1H0, L1H2."
    )
    row = side.table.iloc[2]
    assert lines[3].startswith(f"kl (kl on pairs): strength {row['strength']:.3g} (")
    assert f"; selectivity {row['selectivity']:.3g} (" in lines[3]
    assert f"p = {row['p']:.2g}" in lines[3]
    what = "3 components of GPT2LMHeadModel on pairs, counterfactual patching"
    assert repr(side).startswith(f"SideEffects({what}; selectivity ")
    assert "\n" not in repr(side)


def test_saved_and_loaded(side, tmp_path):
    again = tk.measure.SideEffects.load(side.save(tmp_path / "deep" / "run"))
    assert again.to_frame().equals(side.to_frame())
    assert str(again) == str(side)
    assert (again.labels, again.cost, again.seed) == (side.labels, side.cost, 2)
    with pytest.raises(ResultNotFoundError, match=r"holds no side_effects\.json"):
        tk.measure.SideEffects.load(tmp_path)


def test_a_file_without_a_tensor_is_refused(side, tmp_path):
    rewrite(side.save(tmp_path) / side.FILE, lambda d, t: t.pop("others.1.full_effects"))
    with pytest.raises(ResultFormatError, match=r"others\.1\.full_effects is missing"):
        tk.measure.SideEffects.load(tmp_path)


def test_whole_layers_have_no_random_sets(model):
    tracer = tk.Tracer(model, tiny.pairs(6, seed=3), components="mlp-blocks")
    side = tracer.side_effects([tracer.registry[0]], {"fresh": OTHER})
    assert side.table["control"].isna().all()
    assert "random sets" not in str(side)
    side.figure()


def test_weights_and_direction_are_kept(model):
    rows = [{**row, "weight": 1 + 4 * (i % 2)} for i, row in enumerate(tiny.rows(8))]
    heavy = tk.PromptPairs.from_ids(rows)
    tracer = tk.Tracer(model, tiny.pairs(6), direction="denoising")
    side = tracer.side_effects([tracer.registry[i] for i in MEMBERS], {"heavy": heavy}, draws=2)
    there = tk.Tracer(model, heavy, direction="denoising")
    expected = there.engine.effects(from_indices(MEMBERS, 12).float())
    assert torch.allclose(side.others[0].effects, expected, atol=1e-6)
    assert torch.equal(side.others[0].weights, heavy.weights)
    assert side.direction == "denoising"


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ({}, r"others are \{\}.*mapping from names to pairs"),
        (OTHER, r"others are .*mapping from names to pairs.*\{'neutral': pairs\}"),
        ({"neutral": "kl"}, "'neutral' stands 'kl'.*pairs with a metric"),
        ({"target": OTHER}, "under a name other than 'target'"),
        ({3: OTHER}, "Under 3 stands "),
    ],
)
def test_others_that_are_none(tracer, others, text, unchecked):
    with pytest.raises(PairsError, match=text):
        tracer.side_effects([tracer.registry[1]], others)


def test_bad_input(tracer, unchecked):
    members = [tracer.registry[1]]
    with pytest.raises(ConfigError, match=r"draws is -1. Give a whole number, at least 0"):
        tracer.side_effects(members, {"fresh": OTHER}, draws=-1)
    with pytest.raises(PairsError, match="An empty set has no side effects. Give at least"):
        tracer.side_effects(torch.zeros(12), {"fresh": OTHER})
    rows = [{k: v for k, v in row.items() if k != "y_ids"} for row in tiny.rows(4)]
    with pytest.raises(MissingContinuationError):
        tracer.side_effects(members, {"no y": (tk.PromptPairs.from_ids(rows), "odds-ratio")})

    def nothing(clean, intervened):
        return 0 * intervened.x

    with pytest.raises(PairsError, match="change nothing on 'none' by nothing, so there is"):
        tracer.side_effects(members, {"none": (OTHER, nothing)})


def test_asking_for_others_that_were_not_measured(side):
    with pytest.raises(PairsError, match="measured on 'x'. Give one of fresh, kl, same."):
        side.selectivity("x")
