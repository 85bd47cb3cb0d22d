"""Values from another model's run on the same tokens."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import PairsError, SourceError

ROWS = [
    {key: value for key, value in row.items() if key != "counterfactual_ids"}
    for row in tiny.rows(6)
]


@pytest.fixture(scope="module")
def models():
    """A model, and a copy of which the MLP of layer 1 was trained further."""
    base = tiny.hf_model("gpt2")
    tuned = deepcopy(base)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        weight = tuned.transformer.h[1].mlp.c_proj.weight
        weight += 0.2 * torch.randn(weight.shape, generator=generator)
    return tk.load_model(base), tk.load_model(tuned)


@pytest.fixture(scope="module")
def pairs():
    return tk.PromptPairs.from_ids(ROWS)


def traced(models, pairs, kind, **options):
    base, tuned = models
    options = {"metric": "logit-difference", "source": tk.OtherModel(base), **options}
    return tk.Tracer(tuned, pairs, kind, **{"positions": "all", **options})


@pytest.mark.slow
def test_the_last_stream_of_the_other_gives_its_output(models, pairs):
    last = traced(models, pairs, "residual", layers=[-1])
    effects = last.evaluate("all", per_example=True)
    clean, other = (
        tk.Tracer(model, pairs, "residual", "logit-difference", source="zero").engine.clean
        for model in models[::-1]
    )
    expected = (clean.x - clean.y) - (other.x - other.y)
    torch.testing.assert_close(effects, expected, rtol=1e-4, atol=1e-5)
    assert effects.abs().max() > 0.01


@pytest.mark.slow
def test_only_what_training_changed_carries_the_difference(models, pairs):
    tracer = traced(models, pairs, "mlp-blocks")
    # Below the change both models are equal.
    assert abs(tracer.evaluate("MLP0")) < 1e-6
    whole = traced(models, pairs, "residual", layers=[-1]).evaluate("all", per_example=True)
    effects = tracer.evaluate("MLP1", per_example=True)
    torch.testing.assert_close(effects, whole, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["edges", "edges-by-block"])
def test_all_edges_carry_the_difference(models, pairs, kind):
    whole = traced(models, pairs, "residual", layers=[-1]).evaluate("all", per_example=True)
    tracer = traced(models, pairs, kind)
    effects = tracer.evaluate("all", per_example=True)
    torch.testing.assert_close(effects, whole, rtol=1e-3, atol=1e-4)
    edges = [edge for edge in tracer.registry if edge.ends.startswith("MLP1>")]
    torch.testing.assert_close(
        tracer.evaluate(edges, per_example=True), whole, rtol=1e-3, atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["edges", "edges-by-block"])
@pytest.mark.parametrize(
    "name",
    ["h.1.attn.c_proj.weight", "h.0.attn.c_proj.bias", "ln_f.weight", "h.1.attn.c_attn.bias"],
)
def test_what_no_edge_carries_is_refused(models, pairs, kind, name):
    """Heads are read before their output projection, which an edge takes from the traced model."""
    changed = tiny.hf_model("gpt2")
    with torch.no_grad():
        weight = changed.transformer.get_parameter(name)
        weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    both = models[0], tk.load_model(changed)
    if "c_attn" in name:
        whole = traced(both, pairs, "residual", layers=[-1]).full_effect
        assert traced(both, pairs, kind).full_effect == pytest.approx(whole, rel=1e-3, abs=1e-5)
        return
    with pytest.raises(
        SourceError, match=r"(?s)all edges patched does not do what .* no edge carri"
    ):
        traced(both, pairs, kind)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_changes_that_no_edge_carries_are_refused_too(pairs, dtype):
    base = tiny.hf_model("gpt2")
    tuned, same = deepcopy(base), deepcopy(base)
    with torch.no_grad():
        for block in tuned.transformer.h:
            weight = block.attn.c_proj.weight
            change = 2e-4 if dtype == torch.float32 else 0.05
            weight += change * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    base, tuned, same = (tk.load_model(each.to(dtype)) for each in (base, tuned, same))
    with pytest.raises(SourceError, match="no edge carries"):
        traced((base, tuned), pairs, "edges")
    # Of the same weights in another precision only rounding is left.
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    rounded = tk.load_model(deepcopy(tiny.hf_model("gpt2")).to(other))
    assert abs(traced((rounded, same), pairs, "edges").full_effect) < 0.05


def test_results_name_the_other_model(models, pairs, tmp_path):
    result = traced(models, pairs, "mlp-blocks").run("attribution", budget=1)
    assert result.labels == ["MLP1"]
    assert result.setup.source.startswith("model GPT2LMHeadModel")
    result.save(tmp_path)
    assert tk.TraceResult.load(tmp_path).setup.source == result.setup.source
    with pytest.raises(SourceError, match="takes more than its name"):
        tk.Tracer(models[1], pairs, "mlp-blocks", source=result.setup.source)


def test_the_other_model_is_loaded_by_name(demo_model):
    assert tk.OtherModel("demo").model.cfg.d_vocab == demo_model.cfg.d_vocab


def test_another_architecture_is_refused(models, pairs):
    other = tk.OtherModel("demo")
    with pytest.raises(SourceError, match="demo has other sizes than .*: its values do not fit"):
        tk.Tracer(models[1], pairs, "mlp-blocks", source=other)


def test_it_cannot_be_denoised(models, pairs):
    with pytest.raises(PairsError, match="cannot be reversed"):
        traced(models, pairs, "mlp-blocks", direction="denoising")
