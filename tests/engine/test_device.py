"""Nothing inside a step waits for an accelerator."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tracekit as tk
from tests import tiny
from tracekit.engine.capabilities import Capabilities
from tracekit.search.learned.reward import LossGradient, make_loss

SCOPES = ["prompt", "last", "all", [0, -2]]


class NoWait(TorchDispatchMode):
    """Refuses what would make an accelerator's queue run dry, or mixes devices."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        places = {t.device.type for t in tensors if t.ndim}
        assert len(places) < 2 or name in ("_to_copy", "copy_"), f"{name} mixes {places}"
        if "meta" in places:
            assert name not in ("_local_scalar_dense", "nonzero", "_unique2", "masked_select")
            boolean = name in ("index", "index_put", "index_put_") and any(
                t.dtype == torch.bool for t in tensors[1:]
            )
            assert not boolean, f"{name} by a boolean mask"
            target = (kwargs or {}).get("device")
            assert target is None or target.type == "meta", f"{name} reads from the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.pairwise
@pytest.mark.parametrize("positions", SCOPES, ids=str)
@pytest.mark.parametrize("reward", ["dataset", "per-example"])
@pytest.mark.parametrize("longest", [1, 4])
def test_nothing_is_read_from_the_device_inside_a_step(positions, reward, longest):
    """A device without data stands in for an accelerator: nothing can be read from it."""
    here = tk.load_model(tiny.hf_model("llama"))
    here.original_model.to("meta")
    here.original_model.hf_device_map = {
        "": "meta"
    }  # As if its weights were fetched from elsewhere.
    pairs = tiny.pairs(8, longest=longest)
    engine = tiny.engine(
        here,
        pairs,
        "attention-patterns+mlp-outputs",
        positions=positions,
        indices=[0, 3],
        capabilities=Capabilities(None, packing=True),
    )
    assert engine.device.type == "meta"
    step = LossGradient(
        tk.search.make_target(engine), make_loss(reward, tk.search.make_target(engine))
    )
    mask = torch.full((engine.n_components,), 0.5, device="meta")
    with NoWait():
        gradient = step.step(mask, torch.tensor([3, 1, 7]))
    assert gradient.device.type == "meta"


def test_a_read_would_be_noticed():
    there = torch.zeros(3, device="meta")
    for wait in (lambda: there[there > 0], lambda: there.nonzero(), lambda: there.cpu()):
        with pytest.raises((AssertionError, NotImplementedError)), NoWait():
            wait()
    with pytest.raises((AssertionError, RuntimeError)), NoWait():
        there + torch.zeros(3)


@pytest.mark.gpu
@pytest.mark.parametrize("longest", [1, 4])
def test_cuda_does_not_wait_inside_a_step(longest):
    model = tk.load_model(tiny.hf_model("llama").to("cuda"))
    engine = tiny.engine(
        model, tiny.pairs(8, longest=longest), "attention-patterns+mlp-outputs", indices=[0, 3]
    )
    target = tk.search.make_target(engine)
    step = LossGradient(target, make_loss("dataset", target))
    mask = torch.full((engine.n_components,), 0.5, device="cuda")
    step.step(mask, torch.arange(8))
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.step(mask, torch.arange(8))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    step.check()
