"""The cache of counterfactual activations."""

from __future__ import annotations

import pytest
import torch

from tests import tiny
from tracekit.errors import ConfigError

SCOPES = ["prompt", "last", "all", [0, -2]]


def close(value, expected, factor=1.0):
    torch.testing.assert_close(value, expected, rtol=factor * 5e-4, atol=factor * 2e-5)


@pytest.mark.pairwise
@pytest.mark.parametrize("positions", SCOPES, ids=str)
@pytest.mark.parametrize("kinds", ["attention-patterns", "mlp-outputs+mlp-blocks", "head-outputs"])
def test_recomputed_sources_equal_kept_ones(any_model, kinds, positions):
    pairs = tiny.pairs(9, seed=5)
    options = {"positions": positions, "max_batch_size": 4}
    kept = tiny.engine(any_model, pairs, kinds, **options)
    recomputed = tiny.engine(any_model, pairs, kinds, **options, max_memory=0)
    mask = torch.rand(kept.n_components, generator=torch.Generator().manual_seed(1))
    close(recomputed.effects(mask), kept.effects(mask))
    gradients = [engine.gradient(mask, torch.ones_like)[1] for engine in (kept, recomputed)]
    close(gradients[1], gradients[0])
    assert (
        kept.counterfactual_cache.storage,
        recomputed.counterfactual_cache.storage,
    ) == (
        "device",
        "recomputed",
    )


@pytest.mark.lens
@pytest.mark.parametrize("positions", SCOPES, ids=str)
def test_sources_are_the_activations_of_the_counterfactual_run(any_model, positions):
    pairs = tiny.pairs(7, seed=6, longest=1)
    engine = tiny.engine(
        any_model, pairs, "attention-patterns+mlp-outputs", positions=positions, max_batch_size=3
    )
    for batch in engine.batches:
        found = engine.counterfactual_cache.activations_for(batch)
        for row, number in enumerate(batch.examples.tolist()):
            tokens = torch.tensor([pairs[number].counterfactual.ids])
            _, cache = any_model.run_with_cache(tokens)
            for at in batch.positions[row].nonzero()[:, 0].tolist():
                slot = at - batch.first_position
                pattern = found["blocks.1.attn.hook_pattern"][row, :, slot, : at + 1]
                close(pattern, cache["blocks.1.attn.hook_pattern"][0, :, at, : at + 1])
                output = found["blocks.2.hook_mlp_out"][row, slot]
                close(output, cache["blocks.2.hook_mlp_out"][0, at])


@pytest.mark.parametrize("positions", ["last", [-2, -1], "prompt"])
def test_only_the_positions_in_use_are_handed_out(model, positions):
    """Of long prompts, rows of attention for all queries would not fit."""
    pairs = tiny.pairs(7, seed=6, longest=1)
    pairs = pairs.subset([n for n, pair in enumerate(pairs) if len(pair.prompt_ids) >= 4])
    engine = tiny.engine(model, pairs, positions=positions, max_batch_size=1)
    for batch in engine.batches:
        length = int(batch.positions.any(0).nonzero().max()) + 1
        n_used = {"last": 1, "prompt": length}.get(str(positions), 2)
        found = engine.counterfactual_cache.activations_for(batch)
        for value in found.values():
            assert value.shape == (1, 4, n_used, length)


def stored(engine):
    chunks = engine.counterfactual_cache._chunks
    return sum(value.nbytes for chunk in chunks for value in chunk.values.values())


def test_max_memory_decides_the_storage(model):
    pairs = tiny.pairs(9)
    engine = tiny.engine(model, pairs)
    engine.full_effects  # noqa: B018
    exact = stored(engine)
    for bound, kept in ((exact, "device"), (exact - 1, "recomputed")):
        bounded = tiny.engine(model, pairs, max_memory=bound)
        bounded.full_effects  # noqa: B018
        assert bounded.counterfactual_cache.storage == kept


def test_only_positions_in_use_are_kept(model):
    sizes = {}
    for scope in ("prompt", "last"):
        engine = tiny.engine(model, tiny.pairs(9), "mlp-outputs", positions=scope)
        engine.full_effects  # noqa: B018
        sizes[scope] = stored(engine)
    assert sizes["last"] == 9 * tiny.N_LAYERS * tiny.D_MODEL * 4
    assert sizes["prompt"] > 3 * sizes["last"]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("bound", "shown"),
    [(-1, "-1"), (float("nan"), "nan"), ("", "''"), ("2 GB", "'2 GB'"), (True, "True")],
)
def test_a_max_memory_that_is_none_is_refused(model, pairs, bound, shown):
    text = f"max_memory is {shown} bytes. It must be a number of at least 0."
    with pytest.raises(ConfigError, match=text):
        tiny.engine(model, pairs, max_memory=bound)
