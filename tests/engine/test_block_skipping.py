"""Block skipping leaves a model as it was."""

from __future__ import annotations

import pytest
import torch

from tracekit.engine.capabilities import capabilities_of


def test_blocks_are_whole_again_after_an_error(model):
    blocks = capabilities_of(model).block_skipper
    tokens = torch.tensor([[1, 2, 3]])
    before = model.run_with_hooks(tokens, fwd_hooks=[])
    with pytest.raises(RuntimeError, match="on purpose"), blocks.run_only(2, None, before):
        raise RuntimeError("on purpose")
    assert all("forward" not in vars(block) for block in model.blocks)
    assert torch.equal(model.run_with_hooks(tokens, fwd_hooks=[]), before)
