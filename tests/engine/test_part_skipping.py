"""Passes that leave parts of the model out give what whole passes do."""

from __future__ import annotations

import functools
from contextlib import ExitStack, nullcontext

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.components.edges import EDGE_KINDS
from tracekit.engine import Capabilities, skipping
from tracekit.errors import ModelWarning, UnreliableResultWarning

pytestmark = pytest.mark.lens

SHARES = (0.001, 0.02, 0.1, 0.3, 0.5)
ADDS_STREAM = ("bloom", "mpt")
"""Their MLPs add the stream to what they return."""
NODES = ("head-outputs+mlp-blocks", "attention-blocks+mlp-blocks", "head-outputs", "mlp-blocks")


def expect_warning(is_expected):
    text = "only rounding is left of the stream"
    return pytest.warns(UnreliableResultWarning, match=text) if is_expected else nullcontext()


def masks_of(engine, shares=SHARES, seed=0):
    """Random sets of some shares of the components, their complements, and none and all of them."""
    size = (len(shares), engine.n_components)
    draws = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    sets = torch.zeros(size, dtype=torch.bool)
    for row, draw, share in zip(sets, draws, shares, strict=True):
        row[draw.argsort()[: max(1, round(share * engine.n_components))]] = True
    ends = torch.tensor([[False], [True]]).expand(-1, engine.n_components)
    return torch.cat([sets, ~sets, ends]).float()


def both_ways(model, pairs, kinds, metric="logit-difference", **options):
    """Two engines: one that leaves parts out, and one that computes all of them."""
    fast = tiny.engine(model, pairs, kinds, metric, **options)
    return fast, tiny.engine(
        model, pairs, kinds, metric, capabilities=Capabilities.none(), **options
    )


def assert_equal(fast, plain):
    masks = masks_of(plain)
    expected = torch.stack([plain.effects(mask) for mask in masks])
    size = expected.abs().max().item()
    close = {"rtol": 1e-4, "atol": 1e-5 * size}
    torch.testing.assert_close(
        torch.stack([fast.effects(mask) for mask in masks]), expected, **close
    )
    # Sets that start from either run, side by side in a pass.
    torch.testing.assert_close(fast.effects(masks), expected, **close)
    sets = [tuple(mask.nonzero()[:, 0].tolist()) for mask in masks]
    torch.testing.assert_close(fast.set_effects(sets), expected, **close)


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", EDGE_KINDS)
@pytest.mark.parametrize("architecture", tiny.ARCHITECTURE_CASES)
def test_sparse_passes_are_the_plain_ones(architecture, kind):
    fast, plain = both_ways(tiny.shared_model(architecture), tiny.pairs(5, longest=1), kind)
    assert (fast._edge_skipper is None) == (architecture in ADDS_STREAM)
    assert_equal(fast, plain)


@pytest.mark.pairwise
@pytest.mark.parametrize("setting", ["mean", "noise", "denoising", "kl", "longer", "last", "all"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_settings_change_nothing(architecture, setting):
    model = tiny.shared_model(architecture)
    pairs = tiny.pairs(5, longest=1 if setting not in ("longer", "all") else 4)
    options = {
        "kl": {"metric": "kl"},
        "last": {"positions": "last"},
        "all": {"positions": "all"},
        "denoising": {"direction": "denoising"},
        "longer": {},
    }.get(setting, {"source": setting})
    tracer = tk.Tracer(model, pairs, "edges", **{"metric": "logit-difference"} | options)
    config = {"positions": options.get("positions", "prompt")}
    data, metric = tracer.engine.pairs, tracer.engine.metric
    fast, plain = both_ways(model, data, "edges", metric, **config)
    assert fast._edge_skipper is not None
    assert_equal(fast, plain)


@pytest.mark.pairwise
@pytest.mark.parametrize("positions", ["prompt", "last", "all"])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "glm4"])
def test_rounding_does_not_decide_what_zero_ablation_of_most_edges_does(architecture, positions):
    """All that whole passes leave of the stream is rounding, which norms make as large as a run."""
    model, pairs = tiny.shared_model(architecture), tiny.pairs(5, longest=3)
    with expect_warning(architecture != "llama"):
        data = tk.Tracer(model, pairs, "edges", source="zero", positions=positions).engine.pairs
    in_double = tk.load_model(tiny.hf_model(architecture).double())
    how = {"metric": "logit-difference", "positions": positions}
    fast = tiny.engine(model, data, "edges", **how)
    whole = tiny.engine(in_double, data, "edges", capabilities=Capabilities.none(), **how)
    for mask in masks_of(fast):
        torch.testing.assert_close(fast.effects(mask), whole.effects(mask), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["edges", "edges-by-head"])
def test_edges_of_spans(kind):
    rows = [
        row
        | {
            "prompt_ids": row["prompt_ids"][:3],
            "counterfactual_ids": [*row["counterfactual_ids"][:2], row["prompt_ids"][2]],
        }
        for row in tiny.rows(4, longest=1)
    ]
    pairs = tk.PromptPairs.from_ids(rows).by_position(("0", "1", "2"))
    spans = ("0", "1", "2")
    fast, plain = both_ways(tiny.shared_model("llama"), pairs, kind, spans=spans)
    assert fast._edge_skipper is not None
    assert_equal(fast, plain)


def test_some_edges_of_a_model():
    model, pairs = tiny.shared_model("gpt2"), tiny.pairs(4, longest=1)
    fast, plain = both_ways(model, pairs, "edges", layers=[0, 1])
    assert fast._edge_skipper is None
    assert_equal(fast, plain)


def computed_parts(engine, mask):
    """Which attentions and MLPs an evaluation of a mask computes."""
    engine.effects(mask)
    runs = []
    with ExitStack() as handles:
        for layer, block in enumerate(engine.model.blocks):
            for part, module in (("ATT", block.attn.q), ("MLP", block.mlp)):
                run = functools.partial(lambda *_, name: runs.append(name), name=f"{part}{layer}")
                hook = module.original_component.register_forward_pre_hook(run)
                handles.callback(hook.remove)
        engine.effects(mask)
    return runs


def test_parts_that_no_kept_edge_leaves_are_not_computed():
    model = tiny.shared_model("llama")
    engine = tiny.engine(model, tiny.pairs(4, longest=1), "edges", "logit-difference")

    def computed(*kept):
        mask = torch.ones(engine.n_components)
        mask[[engine.registry.index(each) for each in kept]] = 0
        return computed_parts(engine, mask)

    assert computed() == []
    assert computed("E>logits") == []
    # An edge that leads nowhere changes nothing.
    assert computed("E>MLP1", "L0H1>L2Q0", "E>logits") == ["ATT0"]
    assert computed("E>L1K0", "L1H1>MLP2", "MLP2>logits") == ["ATT1", "MLP2"]
    assert computed("E>MLP0", "MLP0>L2Q3", "L2H3>logits") == ["MLP0", "ATT2"]


@pytest.mark.pairwise
@pytest.mark.parametrize("source", ["counterfactual", "zero", "noise"])
@pytest.mark.parametrize("kinds", NODES)
@pytest.mark.parametrize("architecture", tiny.ARCHITECTURE_CASES)
def test_sets_of_nodes_are_the_same_in_whole_passes(architecture, kinds, source):
    model, pairs = tiny.shared_model(architecture), tiny.pairs(5, longest=1)
    data = tk.Tracer(model, pairs, kinds, "logit-difference", source=source).engine.pairs
    fast, plain = both_ways(model, data, kinds)
    assert_equal(fast, plain)


def test_parts_that_a_mask_replaces_are_not_computed():
    model, pairs = tiny.shared_model("llama"), tiny.pairs(4, longest=1)
    engine = tiny.engine(model, pairs, "head-outputs+mlp-blocks", "logit-difference")

    def computed(*kept):
        mask = torch.ones(engine.n_components)
        mask[[engine.registry.index(each) for each in kept]] = 0
        return computed_parts(engine, mask)

    assert computed() == []
    assert computed("L1H2", "MLP0") == ["MLP0", "ATT1"]
    at_last = tiny.engine(model, pairs, "mlp-blocks", "logit-difference", positions="last")
    assert len(computed_parts(at_last, torch.ones(3))) == 6


def test_a_model_in_which_parts_cannot_be_left_out_is_run_as_a_whole(monkeypatch):
    model = tk.load_model(tiny.hf_model("llama"))
    original = skipping._return_output

    def too_large(*args, output, **how):
        return original(*args, output=lambda read: 1.5 * output(read), **how)

    monkeypatch.setattr(skipping, "_return_output", too_large)
    fast, plain = both_ways(model, tiny.pairs(5, longest=1), "edges")
    with pytest.warns(ModelWarning, match="that no kept edge leaves are computed all the same"):
        assert fast._edge_skipper is None
    assert_equal(fast, plain)
