"""What the faithfulness of a set loses without each member."""

from __future__ import annotations

import pytest

import tracekit as tk
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
    members, fresh = (0, 4, 7, 9), tracer._held_out
    found = tracer.minimality([tracer.registry[i] for i in members])
    full = fresh.full_effects
    assert found.faithfulness == pytest.approx(
        tracer.faithfulness([tracer.registry[i] for i in members]).faithfulness[0], abs=1e-5
    )
    for number, member in enumerate(members):
        rest = tuple(i for i in members if i != member)
        lost = alone(fresh, members) - alone(fresh, rest)
        assert found.losses[number] == pytest.approx((lost.mean() / full.mean()).item(), abs=1e-5)
        assert found.loss_intervals[number] == pytest.approx(ratio_interval(lost, full), abs=1e-4)
    frame = found.to_frame()
    assert frame["loss"].is_monotonic_decreasing
    assert frame["component"].tolist()[0] == max(zip(found.losses, found.labels, strict=True))[1]
    assert found.examples == "on examples that the set was not selected on"
    assert f"Faithfulness {found.faithfulness:.3g} with 4 members" in repr(found)
    assert "<table" in found._repr_html_()


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
        with pytest.raises(ConfigError, match=r"The tolerance is .*\. It must lie in \[0, 1\)"):
            tracer.minimality(["L1H4"], tolerance=value)
    backwards = tk.Tracer(
        demo_model, pairs[0].reversed(), "head-outputs", "logit-difference", layers=[1, 2]
    )
    with pytest.raises(MetricError, match="faithfulness needs a positive one"):
        backwards.minimality(["L1H4"])
