"""Block skipping leaves a model as it was."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.capabilities import capabilities_of
from tracekit.engine.skipping import BlockSkipper
from tracekit.models.architectures import residual_hook

pytestmark = pytest.mark.lens


def test_blocks_are_whole_again_after_an_error(model):
    blocks = capabilities_of(model).block_skipper
    tokens = torch.tensor([[1, 2, 3]])
    before = model.run_with_hooks(tokens, fwd_hooks=[])
    with pytest.raises(RuntimeError, match="on purpose"), blocks.run_blocks(2, None, before):
        raise RuntimeError("on purpose")
    assert all("forward" not in vars(block) for block in model.blocks)
    assert torch.equal(model.run_with_hooks(tokens, fwd_hooks=[]), before)


def test_a_model_whose_passes_differ_a_little_is_refused():
    """Its last block reads a thousandth of the first one's output beside the residual stream."""
    model = tk.load_model(tiny.hf_model("gpt2"))
    first_output = []

    def stream_of(output):
        return output[0] if isinstance(output, tuple) else output

    def remember(module, args, output):
        first_output[:] = [stream_of(output)]

    def leak(module, args, output):
        leaked = stream_of(output) + 1e-3 * first_output[0]
        return (leaked, *output[1:]) if isinstance(output, tuple) else leaked

    tokens = torch.tensor([[1, 2, 3]])
    assert BlockSkipper(model).reason_unsupported(model, tokens) == ""
    model.blocks[0].register_forward_hook(remember)
    model.blocks[-1].register_forward_hook(leak)
    assert (
        BlockSkipper(model).reason_unsupported(model, tokens) == "a pass resumed at block 2 differs"
    )


def test_a_model_whose_blocks_read_something_else_is_refused():
    """What one block is called with is cut off before it is the residual stream."""
    model = tk.load_model(tiny.hf_model("gpt2"))
    tokens = torch.tensor([[1, 2, 3]])

    def cut_off(module, args, output):
        return output.clamp(-0.01, 0.01)

    # Cut off twice it is the same, so a pass that is resumed there does not show it.
    model.hook_dict[residual_hook(1)].register_forward_hook(cut_off, prepend=True)
    reason = BlockSkipper(model).reason_unsupported(model, tokens)
    assert reason == "block 1 reads something else than the residual stream"


@pytest.mark.parametrize(
    ("source", "target"), [(0, 1), (1, 2), (4, 5), (0, 11), (2, 9), (10, 11), (5, 11)]
)
def test_state_beside_the_residual_stream_of_a_deep_model_is_found(source, target):
    """As layers that share keys in pairs, skips across the middle, or one for the last block."""
    model = tk.load_model(tiny.hf_model("llama", num_hidden_layers=12))
    kept = {}
    step = target - source

    def remember(module, args, output, *, number):
        kept[number] = output[0] if isinstance(output, tuple) else output

    def leak(module, args, output, *, number):
        stream = output[0] if isinstance(output, tuple) else output
        leaked = stream + 1e-2 * kept.get(number, 0)
        return (leaked, *output[1:]) if isinstance(output, tuple) else leaked

    # Neighbours share in every pair of the same parity; else it is the one connection.
    for start in range(source % 2, 11, 2) if step == 1 else (source,):
        model.blocks[start].register_forward_hook(partial(remember, number=start))
        model.blocks[start + step].register_forward_hook(partial(leak, number=start))
    refusal = BlockSkipper(model).reason_unsupported(model, torch.tensor([[1, 2, 3]]))
    assert refusal.startswith("a pass resumed at block")


def test_trial_of_a_deep_model_takes_few_passes(monkeypatch):
    model = tk.load_model(tiny.hf_model("llama", num_hidden_layers=12))
    passes, original = [], model.run_with_hooks

    def run(*args, **options):
        passes.append(args)
        return original(*args, **options)

    monkeypatch.setattr(model, "run_with_hooks", run)
    assert BlockSkipper(model).reason_unsupported(model, torch.tensor([[1, 2, 3]])) == ""
    assert len(passes) == 9
