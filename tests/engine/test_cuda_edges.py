"""Edges on a GPU have the effects, gradients and searches that they have on the CPU.

Without a GPU, the same tests run with a second model on the CPU in its place.
"""

from __future__ import annotations

import functools

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.engine.test_part_skipping import masks_of
from tracekit.components.edges import EDGE_KINDS
from tracekit.components.masks import complement_of
from tracekit.engine import Capabilities
from tracekit.engine.gradients import expand

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
on_devices = pytest.mark.parametrize("device", ["cpu", GPU])
on_devices_slowly = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), GPU]
)
CASES = [*(("llama", kind) for kind in EDGE_KINDS), ("gpt2", "edges"), ("gemma2", "edges")]
METRIC = "logit-difference"
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
SLOPES_CLOSE = {"rtol": 1e-2, "atol": 1e-3}


@functools.cache
def model_on(device, architecture):
    """A model of its own on a device; the one that it is compared with is shared."""
    return tk.load_model(tiny.hf_model(architecture).to(device))


def engines(device, architecture, kind, **options):
    """An engine on the CPU that computes all parts in every pass, and one on the device."""
    pairs = tiny.pairs(6, longest=1)
    plain = Capabilities.none()
    here = tiny.engine(tiny.shared_model(architecture), pairs, kind, METRIC, capabilities=plain)
    there = tiny.engine(model_on(device, architecture), pairs, kind, METRIC, **options)
    assert there.device.type == device
    return here, there


@functools.cache
def tracers(device):
    """The same question on the CPU and on the device."""
    fresh = tiny.pairs(6, seed=1, longest=1)
    return tuple(
        tk.Tracer(model, tiny.pairs(12, longest=1), "edges", METRIC, held_out=fresh)
        for model in (tiny.shared_model("llama"), model_on(device, "llama"))
    )


def random_mask(engine):
    """Entries between 0 and 1, of which a tenth is 0 and a tenth is 1."""
    entries = torch.rand(engine.n_components, generator=torch.Generator().manual_seed(0))
    return (1.25 * entries - 0.125).clamp(0, 1)


@on_devices
@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_masks_have_the_effects_and_gradients_of_the_cpu(device, architecture, kind):
    here, there = engines(device, architecture, kind)
    mask = random_mask(here)
    expected = here.effects(mask)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(there.effects(mask), expected, **CLOSE)
    slopes = [engine.gradient(mask, torch.ones_like)[1] for engine in (here, there)]
    assert slopes[0].abs().max() > 1e-2
    torch.testing.assert_close(slopes[1], slopes[0], **SLOPES_CLOSE)
    every = torch.arange(here.n_examples)
    masks = mask.expand(here.n_examples, -1)
    by_example = [expand(engine, masks, every).gradients for engine in (here, there)]
    torch.testing.assert_close(by_example[1], by_example[0], **SLOPES_CLOSE)


@on_devices
@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_sparse_passes_have_the_effects_of_the_cpu(device, architecture, kind):
    here, there = engines(device, architecture, kind)
    assert there._edge_skipper is not None
    masks = masks_of(here)
    expected = torch.stack([here.effects(mask) for mask in masks])
    torch.testing.assert_close(there.effects(masks), expected, **CLOSE)
    sets = [tuple(mask.nonzero()[:, 0].tolist()) for mask in masks]
    torch.testing.assert_close(there.set_effects(sets), expected, **CLOSE)


@on_devices
def test_connected_circuits_have_the_effects_of_the_cpu(device):
    """Also where the counterfactual run lies in host memory, or is repeated for every batch."""
    here, there = engines(device, "llama", "edges")
    _, bounded = engines(device, "llama", "edges", max_memory=0)
    order = torch.randperm(here.n_components, generator=torch.Generator().manual_seed(0)).tolist()
    for size in (4, 12, 40):
        members = here.edge_paths.first(order, size)
        sets = [members, complement_of(members, here.n_components)]
        expected = here.set_effects(sets)
        torch.testing.assert_close(there.set_effects(sets), expected, **CLOSE)
        torch.testing.assert_close(bounded.set_effects(sets), expected, **CLOSE)
    stored = bounded.counterfactual_cache.storage
    assert stored == ("host" if device == "cuda" else "recomputed")


@on_devices_slowly
@pytest.mark.parametrize("method", ["attribution", "eap-ig", "mask-ig"])
def test_tracers_rank_as_on_the_cpu(device, method):
    here, there = (tracer.run(method, budget=20) for tracer in tracers(device))
    torch.testing.assert_close(there.component_scores, here.component_scores, **SLOPES_CLOSE)
    assert there.effect == pytest.approx(here.effect, rel=1e-2, abs=1e-3)
    values = [torch.tensor(result.faithfulness().faithfulness) for result in (here, there)]
    torch.testing.assert_close(values[1], values[0], **SLOPES_CLOSE)


@on_devices_slowly
def test_a_learned_ranking_is_that_of_the_cpu(device):
    """Its steps are recorded and replayed on a GPU."""
    search = tk.search.make("learned-ranking", {"epochs": 2, "batch_size": 4})
    here, there = (tracer.run(search, budgets=[8, 30], seed=0) for tracer in tracers(device))
    # Rounding grows from step to step, and near scores may change places.
    for own, expected in zip(there, here, strict=True):
        assert own.effect == pytest.approx(expected.effect, abs=0.1)
        assert (own.binary_mask != expected.binary_mask).sum() <= 4
