"""What the faithfulness of a set loses without each member."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.masks import complement_of
from tracekit.errors import ConfigError, MetricError
from tracekit.results.intervals import ratio_interval


@pytest.fixture(scope="module")
def pairs(demo_model):
    return tk.load_dataset("demo-facts", demo_model)[:20].split(0.5)


def traced(demo_model, pairs, direction="noising", held_out=True):
    return tk.Tracer(
        demo_model,
        pairs[0],
        "head-outputs",
        "logit-difference",
        layers=[1, 2],
        direction=direction,
        held_out=pairs[1] if held_out else None,
    )


def alone(engine, members):
    """What a set does by itself, example by example."""
    if engine.metric.direction == "denoising":
        return engine.set_effects([members])[0]
    return engine.full_effects - engine.set_effects([complement_of(members, 16)])[0]


@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_losses_are_differences_of_faithfulness(demo_model, pairs, direction):
    tracer = traced(demo_model, pairs, direction)
    result = tracer.run("attribution", budget=4)
    members, fresh = tiny.members_of(result), tracer.question.held_out_engine
    found = tracer.minimality(result)
    full = fresh.full_effects
    assert found.faithfulness == pytest.approx(
        tracer.faithfulness(result).faithfulness[0], abs=1e-5
    )
    for number, member in enumerate(members):
        rest = tuple(i for i in members if i != member)
        lost = alone(fresh, members) - alone(fresh, rest)
        assert found.losses[number] == pytest.approx((lost.mean() / full.mean()).item(), abs=1e-5)
        assert found.loss_intervals[number] == pytest.approx(ratio_interval(lost, full), abs=1e-4)
    frame = found.to_frame()
    assert frame["loss"].is_monotonic_decreasing
    assert frame["component"].tolist()[0] == max(zip(found.losses, found.labels, strict=True))[1]
    assert found.decided_on == f"the {len(tracer.pairs)} searched examples"
    assert found.examples == f"the {len(tracer.held_out)} held-out examples"
    said = f"Measured on {found.examples}; {found.decided_on} decided who is dropped."
    assert repr(found).splitlines()[-1] == said
    assert f"Faithfulness {found.faithfulness:.3g} with 4 members" in repr(found)
    assert "<table" in found._repr_html_()
    assert ":}" not in found.to_latex(), "a caption ends in a colon"


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_nobody_selected_a_set_of_ones_own(demo_model, pairs, direction):
    """All examples decide, and are measured."""
    tracer = traced(demo_model, pairs, direction)
    both = [tracer.engine, tracer.question.held_out_engine]
    members = (0, 4, 7, 9)
    found = tracer.minimality([tracer.registry[i] for i in members])
    assert found.decided_on == found.examples == f"all {len(pairs[0]) + len(pairs[1])} examples"
    full = torch.cat([engine.full_effects for engine in both])
    for number, member in enumerate(members):
        rest = tuple(i for i in members if i != member)
        lost = torch.cat([alone(engine, members) - alone(engine, rest) for engine in both])
        assert found.losses[number] == pytest.approx((lost.mean() / full.mean()).item(), abs=1e-5)
        assert found.loss_intervals[number] == pytest.approx(ratio_interval(lost, full), abs=1e-4)
    without = traced(demo_model, pairs, direction, held_out=False)
    assert without.minimality(["L1H4"]).decided_on == f"all {len(without.pairs)} examples"
    # A result of it is no selection either, and neither is its loaded copy.
    by_hand = tracer.as_result([tracer.registry[i] for i in members])
    assert tracer.minimality(by_hand).losses == found.losses
    # What is left of a set that was searched was chosen by the searched examples.
    searched = tracer.minimality(tracer.run("attribution", budget=4), tolerance=0.9)
    left = tracer.minimality(tracer.as_result(searched))
    assert left.decided_on == f"the {len(tracer.pairs)} searched examples"


def test_searched_and_held_out_examples_count_by_their_weights(demo_model, pairs):
    """Which are around 1 in each part, and around 1 and 6 as they were given."""
    weights = [[1.0, 2.0, 3.0] + [0.5] * 7, [5.0] * 4 + [7.0] * 6]
    parts = [
        replace(part, pairs=tuple(replace(p, weight=w) for p, w in zip(part, own, strict=True)))
        for part, own in zip(pairs, weights, strict=True)
    ]
    tracer, members = traced(demo_model, parts), (0, 3, 5, 12)
    found = tracer.minimality([tracer.registry[i] for i in members])
    plain = traced(demo_model, pairs)
    both = [plain.engine, plain.question.held_out_engine]
    own = torch.cat([alone(engine, members) for engine in both])
    full = torch.cat([engine.full_effects for engine in both])
    given = torch.tensor([*weights[0], *weights[1]])
    assert found.faithfulness == pytest.approx(((own @ given) / (full @ given)).item(), abs=1e-5)
    grouped = traced(demo_model, [pairs[0].grouped([0, 0, *range(1, 9)])], held_out=False)
    said = grouped.minimality(["L1H4"]).examples
    assert said == "all 10 (9 independent) examples"


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.01, 0.3, 0.9])
def test_whom_the_measured_examples_miss_is_not_dropped(demo_model, pairs, tolerance):
    """Whatever the examples say that decide."""
    generator = torch.Generator().manual_seed(0)
    tracer = traced(demo_model, pairs)
    dropped = 0
    for _ in range(6):
        members = sorted(torch.randperm(16, generator=generator)[:6].tolist())
        tracer.question.sets.selected.add(tuple(members))
        found = tracer.minimality([tracer.registry[i] for i in members], tolerance=tolerance)
        frame = found.to_frame()
        assert (frame["loss_low"] <= 0)[~frame["stays"]].all()
        dropped += len(found.dropped)
    assert dropped


@pytest.mark.slow
def test_members_that_add_nothing_leave(demo_model, pairs):
    """A set with all that is idle: what stays is as faithful, and each of it is missed."""
    tracer = traced(demo_model, pairs, held_out=False)
    result, tolerance = tracer.as_result("all"), 0.05
    found = tracer.minimality(result, tolerance=tolerance)
    assert found.dropped
    assert len(found.members) + len(found.dropped) == 16
    engine = tracer.engine
    full = engine.full_effects.mean()

    def distance(members):
        return abs(1 - (alone(engine, members).mean() / full).item())

    assert distance(found.members) <= tolerance + 1e-5
    assert found.minimal_faithfulness == pytest.approx(
        (alone(engine, found.members).mean() / full).item(), abs=1e-5
    )
    labels = [tracer.registry.label(i) for i in range(16)]
    # In the order in which they left, every one could.
    left = set(range(16))
    for label in found.dropped:
        left -= {labels.index(label)}
        assert distance(tuple(sorted(left))) <= tolerance + 1e-5
    minimal = tracer.as_result(found)
    assert [labels.index(label) for label in minimal.labels] == list(found.members)
    assert minimal.method == "by-hand"
    assert minimal.effect == pytest.approx(tracer.evaluate(minimal), abs=1e-5)
    assert minimal.faithfulness().faithfulness[0] == pytest.approx(
        found.minimal_faithfulness, abs=1e-5
    )
    # One is left whatever may be lost.
    assert len(tracer.minimality([tracer.registry[3]], tolerance=0.99).members) == 1


def test_errors(demo_model, pairs):
    tracer = traced(demo_model, pairs, held_out=False)
    for value in (-0.1, 1.0, float("nan"), True):
        with pytest.raises(ConfigError, match=r"tolerance is .*\. Give a share from 0 to below 1"):
            tracer.minimality(["L1H4"], tolerance=value)
    backwards = tk.Tracer(
        demo_model, pairs[0].reversed(), "head-outputs", "logit-difference", layers=[1, 2]
    )
    with pytest.raises(MetricError, match="faithfulness needs a positive one"):
        backwards.minimality(["L1H4"])
