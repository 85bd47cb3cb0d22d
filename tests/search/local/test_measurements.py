"""The measurements of a search: once, and within limits."""

from __future__ import annotations

import pytest
import torch

from tracekit.components.masks import from_indices
from tracekit.search.local.measurements import LimitReachedError, Limits, MeasurementCache
from tracekit.search.racing import Heat


def test_sets_are_measured_once_and_within_limits(tracer, monkeypatch):
    seen = []
    original = tracer.engine.set_effects
    monkeypatch.setitem(
        vars(tracer.engine),
        "set_effects",
        lambda sets, label="", **rest: seen.extend(sets) or original(sets, label, **rest),
    )
    measurements = MeasurementCache(tracer.engine, Limits(max_passes=5))
    assert measurements.measure([Heat(sets=[(0,), (1,), (0,)])], "") == [(0,), (1,)]
    more = Heat(sets=[(1,), (2,), (3,), (4,), (5,)])
    assert measurements.measure([more], "") == [(2,), (3,), (4,)]
    assert (seen, measurements.spent) == ([(0,), (1,), (2,), (3,), (4,)], 5)
    assert measurements.measure([Heat(sets=[(3,)])], "") == []
    with pytest.raises(LimitReachedError):
        measurements.measure([Heat(sets=[(6,)])], "")
    with pytest.raises(LimitReachedError):
        measurements.predict_changes(())
    torch.testing.assert_close(
        measurements.effects((2,)),
        tracer.engine.effects(from_indices([2], 12)),
        rtol=1e-4,
        atol=1e-6,
    )
