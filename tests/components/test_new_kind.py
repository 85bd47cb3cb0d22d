"""A new kind of component is one entry in `KINDS`: nothing else has to know of it."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components import KINDS, Kind

ATTENTION_OUTPUTS = Kind(
    name="attention-outputs",
    hook="hook_attn_out",
    axes=("batch", "pos", "component"),
    width="d_model",
    label="L{layer}A{index}",
    noun="coordinate of the attention output",
    meaning="one coordinate of what attention adds to the residual stream",
    learning_rate=0.25,
    instead="head-outputs",
)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(KINDS, ATTENTION_OUTPUTS.name, ATTENTION_OUTPUTS)


def test_a_new_kind_is_one_entry(registered, any_model, tmp_path):
    pairs = tiny.pairs(6, seed=4)
    tracer = tk.Tracer(any_model, pairs, "attention-outputs", layers=[1])
    assert len(tracer.registry) == tiny.D_MODEL
    assert str(tracer.registry[3]) == "L1A3"
    result = tracer.run(budget=3, epochs=2)
    assert tk.search.PGBCT()._learning_rate(tk.search.make_target(tracer.engine)) == 0.25
    assert result.labels[0].startswith("L1A")
    loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
    assert loaded.registry == tracer.registry
    assert loaded.components == result.components
    axis = result.heatmap().layout.xaxis.title.text
    assert axis == "coordinate of the attention output"
    hooked = []

    def swap(activation, hook=None):
        hooked.append(activation.shape)
        return activation.roll(1, 0)

    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    any_model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.hook_attn_out", swap)])
    assert hooked == [(2, 3, tiny.D_MODEL)]


def test_the_new_kind_combines_with_others(registered, model):
    tracer = tk.Tracer(model, tiny.pairs(4), "attention-outputs+mlp-blocks", layers=[0, 2])
    assert len(tracer.registry) == 2 * (tiny.D_MODEL + 1)
    everything = tracer.evaluate(torch.ones(len(tracer.registry)))
    assert everything == pytest.approx(tracer.full_effect)
    assert tracer.run("top-k", budget=2).heatmap().data
