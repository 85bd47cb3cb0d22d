"""Heads of SmolLM2-135M that carry the gender of a pronoun, and the names of IOI: a recorded table.

24 examples of one half of each data set, and 32 of the other, which no search saw.
"""

from __future__ import annotations

import pytest

import tracekit as tk

pytestmark = pytest.mark.real

ATTRIBUTION = {"gendered-pronouns": (9.498, 8.120), "ioi": (4.60, 4.53)}
"""Mean effects of the three heads with the largest attribution."""
JOINT = {
    "gendered-pronouns": {3: (10.155, 8.699), 6: (10.547, 9.099), 14: (10.915, 9.430)},
    "ioi": {3: (5.67, 5.29), 6: (8.12, 7.34), 14: (11.40, 9.65)},
}
"""By number of heads, those of sets that were searched jointly."""


@pytest.fixture(scope="module", params=ATTRIBUTION)
def tracer(request, real_model, halves):
    searched, fresh = halves(request.param)
    return tk.Tracer(real_model, searched, "head-outputs", "logit-difference", held_out=fresh)


@pytest.mark.soak
def test_real_heads_by_attribution(tracer):
    found = tracer.run("attribution", budget=3)
    effect, held_out = ATTRIBUTION[tracer.pairs.name.removesuffix("-abc")]
    assert found.effect == pytest.approx(effect, abs=0.01)
    assert found.held_out_effect == pytest.approx(held_out, abs=0.01)


@pytest.mark.soak
def test_real_heads_that_act_together(real_model, halves):
    """Top-k takes L27H5 in place of L25H1, which adds more beside the two others."""
    searched, fresh = halves("gendered-pronouns")
    for pairs, together, by_rank in ((searched, 10.155, 9.498), (fresh, 8.699, 8.120)):
        tracer = tk.Tracer(real_model, pairs, "head-outputs", "logit-difference")
        assert tracer.evaluate(["L25H1", "L25H2", "L26H2"]) == pytest.approx(together, abs=0.001)
        assert tracer.evaluate(["L25H2", "L26H2", "L27H5"]) == pytest.approx(by_rank, abs=0.001)
    assert tracer.full_effect > 9


@pytest.mark.soak
def test_real_heads_by_local_search(tracer):
    table = JOINT[tracer.pairs.name.removesuffix("-abc")]
    for size, result in zip(table, tracer.run("local-search", budgets=list(table)), strict=True):
        effect, held_out = table[size]
        assert result.effect >= 0.99 * effect
        assert result.held_out_effect >= 0.95 * held_out
