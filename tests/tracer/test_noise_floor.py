"""What the rounding of a model in low precision can do, measured and warned of."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine import effects
from tracekit.engine.forward import ForwardPass
from tracekit.errors import ModelWarning, UnreliableResultWarning


def test_noise_floor_is_zero_in_float32(tracer):
    assert tracer.noise_floor == 0


@pytest.mark.slow
def test_noise_floor_is_the_effect_of_the_batch_shape_on_the_clean_run():
    model = tk.load_model("demo", dtype="bfloat16")
    direction = torch.randn(128, generator=torch.Generator().manual_seed(0)).bfloat16()

    def round_by_shape(value, hook=None):
        # As a kernel does that sums in another order when there are more rows.
        return value + direction * value.shape[0] / 20

    model.add_hook("blocks.3.hook_resid_post", round_by_shape, is_permanent=True)
    pairs = tk.load_dataset("demo-bias", model)[:12]
    with pytest.warns(ModelWarning, match="Hooks were left"):
        whole, alone = (tk.Tracer(model, pairs, max_batch_size=size) for size in (64, 1))
    shifts = whole.engine.metric(whole.engine.clean, alone.engine.clean)
    mean, spread = shifts.mean().abs(), 2 * shifts.square().mean().sqrt() / 12**0.5
    assert whole.noise_floor >= 0.999 * max(mean, spread) > 0.01
    assert alone.noise_floor > 0


@pytest.mark.slow
def test_noise_floor_draws_the_rounding_where_batch_shapes_agree():
    model = tk.load_model("demo", dtype="bfloat16")
    tracer = tk.Tracer(model, tk.load_dataset("demo-bias", model)[:12], max_batch_size=1)
    before = torch.get_rng_state()
    assert 1e-4 < tracer.noise_floor < 1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 8, 20, 48])
def test_noise_floor_of_few_examples_is_that_of_many(first):
    """A last bit changes the scores of a rare example, so one draw of eight may show nothing."""
    model = tk.load_model("demo", dtype="bfloat16")
    pairs = tk.load_dataset("demo-bias", model)
    few, many = (
        tk.Tracer(model, each, "head-outputs", "logit-difference").noise_floor * len(each) ** 0.5
        for each in (pairs[first : first + 8], pairs[:64])
    )
    assert few == pytest.approx(many, rel=0.7)


@pytest.mark.slow
def test_noise_floor_runs_few_of_many_rows_alone(monkeypatch):
    model = tk.load_model("demo", dtype="bfloat16")
    tracer = tk.Tracer(model, tk.load_dataset("demo-bias", model)[:20], max_batch_size=8)
    every, n_alone = tracer.noise_floor, []
    log_probs = ForwardPass.log_probs

    def counted(self, batch, *rest, **options):
        n_alone.append(len(batch.examples) == 1)
        return log_probs(self, batch, *rest, **options)

    monkeypatch.setattr(ForwardPass, "log_probs", counted)
    monkeypatch.setattr(effects, "_MAX_ALONE", 10)
    few = effects.noise_floor(tracer.engine)
    assert sum(n_alone) == 10
    assert few == pytest.approx(every, rel=0.5)


@pytest.mark.parametrize(("floor", "is_warned"), [(0.0, False), (1e9, True)])
def test_noise_floor_above_an_effect_is_warned_of(model, floor, is_warned):
    tracer = tk.Tracer(model, tiny.pairs(12, seed=3), metric="probability-ratio")
    vars(tracer.question)["noise_floor"] = floor
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnreliableResultWarning)
        tracer.run("top-k", budget=2)
    said = [str(w.message) for w in caught if "rounding alone" in str(w.message)]
    assert len(said) == is_warned
    for text in said:
        pattern = (
            r"The effect of the set of 2 is \S+\. That of most single components is \S+\. "
            r"The model's rounding alone can make one of 1e\+09 \(noise_floor\)"
        )
        assert re.match(pattern, text), text
