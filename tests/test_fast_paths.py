"""Every shortcut gives what the plain way gives: values and gradients, for every kind."""

from __future__ import annotations

import gc
import warnings
import weakref
from contextlib import contextmanager
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit as tk
from tests import tiny
from tracekit import abilities, sharing
from tracekit.abilities import Abilities, abilities_of
from tracekit.components import KINDS
from tracekit.errors import ConfigError, SlowPathWarning
from tracekit.masks import from_indices
from tracekit.passes import precision_of
from tracekit.runs import Engine

EVERY_KIND = [*KINDS, "heads+head-outputs+neurons+mlp-hidden+mlp-blocks"]
SCOPES = ["prompt", "last", "all", [0, -2]]


@contextmanager
def plainly(model):
    """Within, engines built on a model take no shortcut."""
    before = abilities_of(model)
    abilities._KNOWN[model] = Abilities(pack_up_to=0, blocks=None)
    try:
        yield
    finally:
        abilities._KNOWN[model] = before


def engines(model, pairs, kinds="heads", metric="odds-ratio", **options):
    """The same engine with and without shortcuts."""
    fast = tiny.engine(model, pairs, kinds, metric, **options)
    with plainly(model):
        plain = tiny.engine(model, pairs, kinds, metric, **{**options, "batch_size": 64})
    return fast, plain


def random_sets(engine, count, seed=0, largest=6):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, largest, (count,), generator=generator).tolist()
    draw = torch.rand(count, engine.n_components, generator=generator).argsort(1)
    return [tuple(row[:size].tolist()) for row, size in zip(draw, sizes, strict=True)]


def close(value, expected, factor=1.0):
    torch.testing.assert_close(value, expected, rtol=factor * 5e-4, atol=factor * 2e-5)


# ---- x and y in one row ---------------------------------------------------------------------


@pytest.mark.parametrize("positions", SCOPES, ids=str)
@pytest.mark.parametrize("kinds", EVERY_KIND)
def test_packed_rows_equal_rows_of_their_own(any_model, kinds, positions):
    pairs = tiny.pairs(9, seed=2)
    fast, plain = engines(any_model, pairs, kinds, positions=positions, batch_size=4)
    assert len(fast.layout.sequences) == 9
    assert len(plain.layout.sequences) > 9
    close(fast.clean.x, plain.clean.x)
    mask = torch.rand(fast.n_components, generator=torch.Generator().manual_seed(1))
    close(fast.effects(mask), plain.effects(mask))
    by_fast, by_plain = (e.gradient(mask, lambda effects: 1 + effects) for e in (fast, plain))
    close(by_fast[0], by_plain[0])
    close(by_fast[1], by_plain[1], 3)


def test_packing_serves_noise_too(any_model):
    pairs = tiny.pairs(6, seed=4, noise=True)
    fast, plain = engines(any_model, pairs, "neurons", "probability-drop", batch_size=4)
    mask = torch.rand(fast.n_components, generator=torch.Generator().manual_seed(1))
    close(fast.effects(mask), plain.effects(mask))


def test_packing_reads_fewer_tokens(model):
    fast, plain = engines(model, tiny.pairs(16))
    read = [sum(batch.tokens.numel() for batch in engine._batches) for engine in (fast, plain)]
    assert read[0] < 0.8 * read[1]


def test_a_row_longer_than_an_attention_window_is_not_packed(model, monkeypatch):
    monkeypatch.setattr(model.original_model.config, "sliding_window", 9, raising=False)
    monkeypatch.setattr(abilities, "_KNOWN", type(abilities._KNOWN)())
    engine = tiny.engine(model, tiny.pairs(16))
    forked = (engine.layout.sequences.branches > 1).any(1)
    assert 0 < forked.sum() < 16
    assert engine.layout.lengths[forked].max() <= 9


# ---- layers that sets share -----------------------------------------------------------------


@pytest.mark.parametrize("kinds", EVERY_KIND)
def test_many_sets_equal_one_at_a_time(any_model, kinds):
    fast, plain = engines(any_model, tiny.pairs(5, seed=1), kinds, batch_size=11)
    sets = [*random_sets(fast, 30), (), (0,), (0,), (fast.n_components - 1,)]
    sets += [(0, i) for i in range(1, min(fast.n_components, 9))]
    masks = torch.stack([from_indices(one, fast.n_components) for one in sets])
    close(fast.mean_effects(sets), plain.effects(masks).mean(1))
    close(plain.mean_effects(sets), plain.effects(masks).mean(1))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 11), max_size=5, unique=True), min_size=1, max_size=12))
def test_any_sets_equal_one_at_a_time(model, sets):
    engine = tiny.engine(model, tiny.pairs(3), batch_size=7)
    masks = torch.stack([from_indices(one, 12) for one in sets])
    close(engine.mean_effects(sets), engine.effects(masks).mean(1))


def test_layers_below_a_candidate_are_not_run_again(any_model, monkeypatch):
    engine = tiny.engine(any_model, tiny.pairs(4), batch_size=4)
    engine.mean_effects([[0]])
    ran = []
    # On what the blocks wrap: a block that is left out is called and hands its input on.
    handles = [
        block.original_component.register_forward_hook(lambda *_, n=number: ran.append(n))
        for number, block in enumerate(any_model.blocks)
    ]
    engine.mean_effects([[i] for i in range(12)])
    for handle in handles:
        handle.remove()
    # Four heads in each of three layers, and the clean stream carried on by a block twice.
    assert [ran.count(layer) for layer in range(3)] == [4 + 1, 8 + 1, 12]


def test_a_plan_covers_every_set_once_and_never_runs_more_layers():
    layer_of = [i // 4 for i in range(48)]

    def leaves(node):
        return node.leaves + [number for child in node.children for number in leaves(child)]

    singles = [(i,) for i in range(48)]
    chosen = (5, 18, 33)
    greedy = [(*chosen, i) for i in range(48) if i not in chosen]
    pairs = list(combinations(range(24, 48), 2))
    for sets in (singles, greedy, pairs, [()], [(1,), (1,), (1,)]):
        tree = sharing.plan(sets, layer_of, 12)
        assert sorted(leaves(tree)) == list(range(len(sets)))
        assert tree.layers_run(12) <= 12 * len(sets)
    assert sharing.plan(singles, layer_of, 12).layers_run(12) == 4 * sum(range(1, 13)) + 11
    assert sharing.plan(greedy, layer_of, 12).layers_run(12) < 0.6 * 12 * len(greedy)
    assert sharing.plan(pairs, layer_of, 12).layers_run(12) < 0.3 * 12 * len(pairs)


def test_blocks_are_whole_again_after_an_error(model):
    blocks = abilities_of(model).blocks
    tokens = torch.tensor([[1, 2, 3]])
    before = model.run_with_hooks(tokens, fwd_hooks=[])
    with pytest.raises(RuntimeError, match="on purpose"), blocks.leaving_out(2, None, before):
        raise RuntimeError("on purpose")
    assert all("forward" not in vars(block) for block in model.blocks)
    assert torch.equal(model.run_with_hooks(tokens, fwd_hooks=[]), before)


# ---- models on which a shortcut does not serve ----------------------------------------------


def no_mask(model):
    """A model that takes nothing but tokens."""
    run = model.run_with_hooks

    def refuse(tokens, *, fwd_hooks, **inputs):
        if inputs:
            raise TypeError("unexpected keyword")
        return run(tokens, fwd_hooks=fwd_hooks)

    return "run_with_hooks", refuse


def ignores_mask(model):
    """A model that takes a mask and does not heed it: the dangerous one."""
    run = model.run_with_hooks
    return "run_with_hooks", lambda tokens, *, fwd_hooks, **_: run(tokens, fwd_hooks=fwd_hooks)


def one_stack(model):
    """A model whose blocks are not to be had one by one."""
    return "blocks", ()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (no_mask, "two sequences, because it takes no attention mask of its own (TypeError)"),
        (ignores_mask, "two sequences, because the logits differ under an attention mask of its"),
        (one_stack, "is run through all layers, because it has no list of blocks."),
    ],
)
def test_the_plain_way_is_taken_and_said_once(change, text, pairs, monkeypatch):
    model = tk.load_model(tiny.hf_model("gpt2"))
    expected = tiny.engine(model, pairs).mean_effects([[i] for i in range(12)])
    other = tk.load_model(tiny.hf_model("gpt2"))
    monkeypatch.setitem(vars(other), *change(other))
    with pytest.warns(SlowPathWarning) as caught:
        engine = tiny.engine(other, pairs)
    assert [text in str(warning.message) for warning in caught] == [True]
    assert "GPT2LMHeadModel takes the slower way: " in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.engine(other, pairs)
    close(engine.mean_effects([[i] for i in range(12)]), expected)


def test_no_warning_where_everything_serves(any_model, pairs):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        tiny.engine(any_model, pairs)
    known = abilities_of(any_model)
    assert known.pack_up_to == 64
    assert known.blocks is not None


def test_what_is_known_of_a_model_does_not_keep_it(pairs):
    model = tk.load_model(tiny.hf_model("gpt2"))
    abilities_of(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# ---- where counterfactual activations are kept ----------------------------------------------


@pytest.mark.parametrize("positions", SCOPES, ids=str)
@pytest.mark.parametrize("kinds", ["heads", "neurons+mlp-blocks", "head-outputs"])
def test_recomputed_sources_equal_kept_ones(any_model, kinds, positions):
    pairs = tiny.pairs(9, seed=5)
    options = {"positions": positions, "batch_size": 4}
    kept = tiny.engine(any_model, pairs, kinds, **options)
    recomputed = tiny.engine(any_model, pairs, kinds, **options, max_memory=0)
    mask = torch.rand(kept.n_components, generator=torch.Generator().manual_seed(1))
    close(recomputed.effects(mask), kept.effects(mask))
    gradients = [engine.gradient(mask, torch.ones_like)[1] for engine in (kept, recomputed)]
    close(gradients[1], gradients[0])
    assert (kept.sources.kept, recomputed.sources.kept) == ("device", "recomputed")


def stored(engine):
    chunks = engine.sources._chunks
    return sum(value.nbytes for chunk in chunks for value in chunk.values.values())


def test_the_bound_is_what_is_kept(model):
    pairs = tiny.pairs(9)
    engine = tiny.engine(model, pairs)
    engine.full_effects  # noqa: B018
    exact = stored(engine)
    for bound, kept in ((exact, "device"), (exact - 1, "recomputed")):
        bounded = tiny.engine(model, pairs, max_memory=bound)
        bounded.full_effects  # noqa: B018
        assert bounded.sources.kept == kept


def test_only_positions_in_use_are_kept(model):
    sizes = {}
    for scope in ("prompt", "last"):
        engine = tiny.engine(model, tiny.pairs(9), "neurons", positions=scope)
        engine.full_effects  # noqa: B018
        sizes[scope] = stored(engine)
    assert sizes["last"] == 9 * tiny.N_LAYERS * tiny.D_MODEL * 4
    assert sizes["prompt"] > 3 * sizes["last"]


def test_a_negative_bound(model, pairs):
    with pytest.raises(ConfigError, match="max_memory is -1 bytes. It must be at least 0."):
        tiny.engine(model, pairs, max_memory=-1)


# ---- precision ------------------------------------------------------------------------------


def test_bfloat16_learns_the_mask_and_float32_measures_it(model, pairs):
    tracer = tk.Tracer(model, pairs)
    engine = tracer.engine
    mask = torch.full((12,), 0.5)
    exact, rough = (
        engine.gradient(mask, torch.ones_like, precision=p)[1] for p in ("float32", "bfloat16")
    )
    assert not torch.equal(rough, exact)
    assert torch.nn.functional.cosine_similarity(rough, exact, dim=0) > 0.99
    result = tracer.run(budget=3, epochs=4, trials=3, precision="bfloat16")
    assert result.effect == engine.effects(result.binary_mask).mean().item()
    assert result.config["precision"] == "bfloat16"


def test_the_clean_run_is_never_in_low_precision(model, pairs):
    rough, exact = tiny.engine(model, pairs), tiny.engine(model, pairs)
    rough.gradient(torch.full((12,), 0.5), torch.ones_like, precision="bfloat16")
    assert torch.equal(rough.clean.x, exact.clean.x)
    assert torch.equal(rough.full_effects, exact.full_effects)


def test_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with precision_of("tf32", torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("method", ["engine", "search"])
def test_an_unknown_precision(model, pairs, method, unchecked):
    text = "Unknown precision 'half'. Use one of float32, tf32, bfloat16."
    with pytest.raises(ConfigError, match=text):
        if method == "search":
            tk.PGBCT(precision="half")
        else:
            tiny.engine(model, pairs).gradient(
                torch.full((12,), 0.5), torch.ones_like, precision="half"
            )


# ---- waiting for a device -------------------------------------------------------------------

_WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "masked_select", "equal"}


def test_nothing_is_read_from_the_device_inside_a_step(model):
    """These operations make an accelerator's queue run dry; batches are laid out on the CPU."""
    from torch.utils._python_dispatch import TorchDispatchMode

    engine = tiny.engine(model, tiny.pairs(8))
    engine.full_effects  # noqa: B018
    batches = list(engine._split(torch.arange(8)))
    sources = [engine.sources.of(batch) for batch in batches]
    seen = set()

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    leaf = torch.full((1, 12), 0.5, requires_grad=True)
    with Record():
        for batch, source in zip(batches, sources, strict=True):
            effects = engine._effects_of_batch(batch, source, leaf)
            torch.autograd.grad(effects.sum(), leaf)
    assert "lerp" in str(seen)
    assert not seen & _WAITS


@pytest.mark.gpu
def test_cuda_does_not_wait_inside_a_step(pairs):
    model = tk.load_model(tiny.hf_model("llama").to("cuda"))
    engine: Engine = tiny.engine(model, pairs, "heads+neurons")
    mask = torch.full((engine.n_components,), 0.5, device="cuda")
    engine.gradient(mask, torch.ones_like)
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.gradient(mask, torch.ones_like)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("max_memory", [None, 0])
def test_cuda_takes_the_same_shortcuts(pairs, max_memory):
    here = tiny.engine(tk.load_model(tiny.hf_model("llama")), pairs, "heads+neurons")
    model = tk.load_model(tiny.hf_model("llama").to("cuda"))
    there = tiny.engine(model, pairs, "heads+neurons", max_memory=max_memory)
    sets = random_sets(here, 20)
    torch.testing.assert_close(
        there.mean_effects(sets), here.mean_effects(sets), rtol=1e-3, atol=1e-4
    )
    assert there.sources.kept == ("host" if max_memory == 0 else "device")
