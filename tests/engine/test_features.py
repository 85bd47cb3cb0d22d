"""Autoencoders: how much of the activation they explain is said; any type is taken or refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from einops import rearrange

import tracekit as tk
from tests import tiny
from tracekit.errors import HookPointError, ModelWarning

LAYER = 1


class Autoencoder(torch.nn.Module):
    """The directions of most variance, each by two features of one sign."""

    def __init__(self, values, n_features=32):
        super().__init__()
        self.bias = torch.nn.Parameter(values.mean(0))
        directions = torch.linalg.svd(values - values.mean(0), full_matrices=False).Vh
        directions = directions[: n_features // 2]
        self.into = torch.nn.Parameter(torch.cat([directions, -directions]).T.clone())
        self.out = torch.nn.Parameter(torch.cat([directions, -directions]).clone())

    def encode(self, activation):
        return ((activation - self.bias) @ self.into).relu()

    def decode(self, features):
        return features @ self.out + self.bias


class TopK(Autoencoder):
    """Keeps the largest feature only."""

    def encode(self, activation):
        features = super().encode(activation)
        return torch.where(features == features.amax(-1, keepdim=True), features, 0.0)


class Typed(Autoencoder):
    """Weights in a type of their own, and the cast of the input that goes with it."""

    def encode(self, activation):
        return super().encode(activation.to(self.into.dtype))


@pytest.fixture(scope="module")
def facts(demo_model):
    return tk.load_dataset("demo-facts", demo_model)[:8]


@pytest.fixture(scope="module")
def values(demo_model, facts):
    """Activations behind each layer, of all tokens but the first of each prompt."""
    by_layer = {LAYER: [], LAYER + 2: []}
    for pair in facts:
        _, cache = demo_model.run_with_cache(torch.tensor([pair.prompt_ids]))
        for layer, seen in by_layer.items():
            seen.append(cache[f"blocks.{layer}.hook_resid_post"][0, 1:].detach())
    return {layer: torch.cat(seen) for layer, seen in by_layer.items()}


def tracer_of(model, pairs, autoencoder):
    kind = tk.Kind(
        name="features",
        hook="hook_resid_post",
        axes=("batch", "pos", "component"),
        width=32,
        label="L{layer}F{index}",
        features={LAYER: autoencoder.requires_grad_(False)},
    )
    return tk.Tracer(model, pairs, kind, "logit-difference")


def by_hand(autoencoder, values):
    missed = values - autoencoder.decode(autoencoder.encode(values)).float()
    return 1 - (missed.square().sum() / (values - values.mean(0)).square().sum()).item()


def changed(cls, values, *, of=LAYER, change=lambda each: None):
    with torch.no_grad():
        change(made := cls(values[of]))
    return made


FAULTS = {
    "none": dict(cls=Autoencoder),
    "decoder x10": dict(cls=Autoencoder, change=lambda each: each.out.mul_(10)),
    "decoder x-1": dict(cls=Autoencoder, change=lambda each: each.out.neg_()),
    "another layer": dict(cls=Autoencoder, of=LAYER + 2),
    "TopK for ReLU": dict(cls=TopK),
    "bias dropped": dict(cls=Autoencoder, change=lambda each: each.bias.zero_()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_features_explain_is_said_saved_and_warned_of(
    demo_model, facts, values, fault, tmp_path
):
    autoencoder = changed(values=values, **FAULTS[fault])
    expected = by_hand(autoencoder, values[LAYER])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tracer = tracer_of(demo_model, facts, autoencoder)
    said = [str(each.message) for each in caught if each.category is ModelWarning]
    name = f"features, layer {LAYER}"
    assert tracer.explained_variance == {name: pytest.approx(expected, abs=1e-4)}
    assert f"explained variance of {name}: {expected:.2f}" in repr(tracer)
    assert f"{expected:.2f}" in tracer._repr_html_()
    assert any(f"{name}, explain {expected:.2g} of" in each for each in said) == (expected < 0.5)
    good = by_hand(Autoencoder(values[LAYER]), values[LAYER])
    assert good > 0.8
    assert (expected < good - 0.02) == (fault != "none")
    result = tracer.run("top-k", budget=2)
    result.save(tmp_path)
    facts_of_model = tk.TraceResult.load(tmp_path).model_facts
    assert facts_of_model.explained_variance == tracer.explained_variance


def test_other_kinds_have_no_features(demo_model, facts):
    assert tk.Tracer(demo_model, facts, "head-outputs").explained_variance == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_features_of_another_type_are_cast(demo_model, facts, values, dtype):
    plain = tracer_of(demo_model, facts, Autoencoder(values[LAYER]))
    other = tracer_of(demo_model, facts, Typed(values[LAYER]).to(dtype))
    close = 1e-5 if dtype == torch.float64 else 0.1
    for method in ("top-k", "attribution"):
        mask = plain.run(method, budget=3).binary_mask
        effects = [each.evaluate(mask) for each in (plain, other)]
        assert effects[0] == pytest.approx(effects[1], rel=close)
        assert other.run(method, budget=3).n_selected == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_features_that_read_another_type_only_are_refused(demo_model, facts, values, dtype):
    with pytest.raises(HookPointError, match=r"fail with: .*that reads float32.*\.float\(\)"):
        tracer_of(demo_model, facts, Autoencoder(values[LAYER]).to(dtype))


@pytest.mark.parametrize(
    "change",
    [
        lambda features: features > 0,
        lambda features: features.long(),
        lambda features: features + 0j,
        lambda features: features / 0,
        lambda features: features.numpy(),
        lambda features: (features, features),
        lambda features: None,
    ],
)
@pytest.mark.parametrize("way", ["encode", "decode"])
def test_what_is_no_tensor_of_finite_numbers_is_refused(demo_model, facts, values, way, change):
    autoencoder = Autoencoder(values[LAYER])
    own = getattr(autoencoder, way)
    setattr(autoencoder, way, lambda given: change(own(given).detach()))
    with pytest.raises(HookPointError, match="do not fit layer 1 of .*fail with"):
        tracer_of(demo_model, facts, autoencoder)


# ---- attention autoencoders, which read all heads laid end to end ----------------------------


class OfHeads(torch.nn.Module):
    """An autoencoder of all heads of the tiny models, laid end to end."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.into = torch.nn.Parameter(torch.randn(tiny.D_MODEL, 40, generator=generator))
        self.out = torch.nn.Parameter(torch.randn(40, tiny.D_MODEL, generator=generator) / 10)

    def encode(self, activation):
        return (activation @ self.into).relu()

    def decode(self, features):
        return features @ self.out


class ReshapesItself(OfHeads):
    """Lays the heads end to end by itself, and apart again, as SAELens does."""

    def encode(self, activation):
        return super().encode(rearrange(activation, "... head e -> ... (head e)", head=4))

    def decode(self, features):
        return rearrange(super().decode(features), "... (head e) -> ... head e", head=4)


def of_heads(autoencoder, width=40):
    return tk.Kind(
        name="features of heads",
        hook="attn.hook_z",
        axes=("batch", "pos", "component"),
        width=width,
        label="L{layer}F{index}",
        features={LAYER: autoencoder.requires_grad_(False)},
    )


@pytest.mark.lens
@pytest.mark.filterwarnings("ignore:The features:tracekit.errors.ModelWarning")
@pytest.mark.parametrize("positions", ["all", "last"])
@pytest.mark.parametrize("made", [OfHeads, ReshapesItself])
def test_features_of_all_heads_act_as_plain_hooks_do(made, positions):
    plain, autoencoder, chosen = tiny.hf_model("llama"), OfHeads(), [0, 3, 17, 39]
    pairs = tk.PromptPairs.from_ids(tiny.rows(6, longest=1))
    tracer = tk.Tracer(
        tk.load_model(tiny.hf_model("llama")),
        pairs,
        of_heads(made()),
        "logit-difference",
        positions=positions,
    )
    out, seen = plain.model.layers[LAYER].self_attn.o_proj, []

    def difference(ids, pair):
        logits = plain(torch.tensor([ids])).logits[0, -1]
        return (logits[pair.x_ids[0]] - logits[pair.y_ids[0]]).item()

    def patch(module, args):
        own, other = (autoencoder.encode(each) for each in (args[0], seen[-1]))
        mixed = own.clone()
        at = slice(None) if positions == "all" else slice(-1, None)
        mixed[:, at, chosen] = other[:, at, chosen]
        return (args[0] + autoencoder.decode(mixed) - autoencoder.decode(own),)

    expected = []
    with torch.no_grad():
        for pair in pairs:
            clean = difference(pair.prompt_ids, pair)
            handle = out.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
            plain(torch.tensor([pair.counterfactual.ids]))
            handle.remove()
            handle = out.register_forward_pre_hook(patch)
            expected.append(clean - difference(pair.prompt_ids, pair))
            handle.remove()
    effects = tracer.evaluate({LAYER: chosen}, per_example=True)
    torch.testing.assert_close(effects, torch.tensor(expected), atol=1e-4, rtol=1e-4)
    assert effects.abs().max() > 0.01
    assert tracer.run("attribution", budget=2).labels


def test_features_of_heads_with_another_width_are_refused():
    model = tk.load_model(tiny.hf_model("llama"))
    with pytest.raises(HookPointError, match=r"shape \(2, \d+, 40\) for activations of shape"):
        tk.Tracer(model, tiny.pairs(), of_heads(OfHeads(), width=24), "logit-difference")
