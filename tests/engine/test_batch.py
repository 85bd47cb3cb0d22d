"""One batch and its read-out."""

from __future__ import annotations

import pytest
import torch

from tests import tiny
from tracekit.engine.layout import Layout


@pytest.mark.parametrize("packed", [False, True])
def test_batches_hold_every_example_once_and_read_it_where_it_is(packed):
    built = Layout.build(tiny.pairs(11), "prompt", packed=packed)
    cpu = torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    batches = list(built.batches(4, device=cpu))
    seen = torch.cat([part.examples for part in batches])
    assert sorted(seen.tolist()) == list(range(11))
    assert max(len(part.examples) for part in batches) <= 4
    for part in batches:
        # Logits that name their own row and position show whether each score reads its place.
        n_readouts = len(part.readout_positions[0])
        logits = torch.randn(n_readouts, tiny.VOCABULARY, generator=generator)
        twice = part.repeat(2).read(torch.cat([logits, logits]), "geometric")
        once = part.read(logits, "geometric")
        assert torch.equal(twice.x, torch.cat([once.x, once.x]))
        assert torch.equal(twice.y_is_argmax, torch.cat([once.y_is_argmax, once.y_is_argmax]))
