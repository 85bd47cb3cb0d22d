"""Every shortcut gives what the plain way gives: values and gradients, for every kind."""

from __future__ import annotations

import gc
import warnings
import weakref
from itertools import combinations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import tracekit as tk
from tests import tiny
from tracekit.components import KINDS
from tracekit.engine import capabilities, prefix_tree
from tracekit.engine.capabilities import Capabilities, capabilities_of
from tracekit.engine.precision import products_in
from tracekit.errors import ConfigError, SlowPathWarning
from tracekit.masks import from_indices
from tracekit.search.learned.reward import RewardGradient, make_objective

EVERY_KIND = [*KINDS, "+".join(KINDS)]
SCOPES = ["prompt", "last", "all", [0, -2]]


def engines(model, pairs, kinds="attention-patterns", metric="odds-ratio", **options):
    """The same engine with and without optimisations."""
    fast = tiny.engine(model, pairs, kinds, metric, **options)
    plain_options = {**options, "max_batch_size": 64, "capabilities": tk.Capabilities.none()}
    return fast, tiny.engine(model, pairs, kinds, metric, **plain_options)


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
    fast, plain = engines(any_model, pairs, kinds, positions=positions, max_batch_size=4)
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
    fast, plain = engines(any_model, pairs, "mlp-outputs", "probability-drop", max_batch_size=4)
    mask = torch.rand(fast.n_components, generator=torch.Generator().manual_seed(1))
    close(fast.effects(mask), plain.effects(mask))


def test_packing_reads_fewer_tokens(model):
    fast, plain = engines(model, tiny.pairs(16))
    read = [
        sum(batch.sequences.tokens.numel() for batch in engine.batches) for engine in (fast, plain)
    ]
    assert read[0] < 0.8 * read[1]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_data_equal_the_plain_way(any_model, data):
    """Missing, equal and repeated continuations, partial registries, scopes, noise, all at once."""
    draw = data.draw
    count = draw(st.integers(1, 7))
    rows = tiny.rows(count, draw(st.integers(0, 99)), noise=draw(st.booleans()))
    for row in rows:
        change = draw(st.sampled_from(["none", "no y", "equal", "start alike"]))
        if change == "no y":
            del row["y_ids"]
        elif change == "equal":
            row["y_ids"] = row["x_ids"]
        elif change == "start alike":
            row["y_ids"] = [*row["x_ids"][:-1], (row["x_ids"][-1] + 1) % tiny.VOCABULARY]
    pairs = tk.PromptPairs.from_ids([*rows, *rows[: draw(st.integers(0, 2))]])
    options = {
        "metric": "probability-drop",
        "positions": draw(st.sampled_from(SCOPES)),
        "max_batch_size": draw(st.integers(1, 9)),
        "max_memory": draw(st.sampled_from([None, 0])),
        "layers": draw(st.sampled_from([None, [1], [0, 2]])),
        "indices": draw(st.sampled_from([None, [0, 3]])),
    }
    fast, plain = engines(any_model, pairs, draw(st.sampled_from(EVERY_KIND)), **options)
    sets = random_sets(fast, 6, seed=count)
    masks = torch.stack([from_indices(one, fast.n_components) for one in sets])
    close(fast.effects(masks), plain.effects(masks))
    close(fast.set_effects(sets).mean(1), plain.effects(masks).mean(1))
    examples = torch.tensor([0, len(pairs) - 1, 0])
    soft = torch.rand(fast.n_components, generator=torch.Generator().manual_seed(1))
    by_fast, by_plain = (e.gradient(soft, torch.ones_like, examples) for e in (fast, plain))
    close(by_fast[0], by_plain[0])
    close(by_fast[1], by_plain[1], 3)


WINDOWED = {
    "mistral": {"sliding_window": 12},
    "gpt_neo": {"window_size": 12},
}


def long_rows(lengths):
    generator = torch.Generator().manual_seed(0)

    def ids(count):
        return torch.randint(tiny.VOCABULARY, (count,), generator=generator).tolist()

    rows = [{"prompt_ids": ids(n), "x_ids": ids(3), "y_ids": ids(2)} for n in lengths]
    return [{**row, "counterfactual_ids": [*ids(1), *row["prompt_ids"][1:]]} for row in rows]


@pytest.mark.parametrize("unnamed", [False, True], ids=["named", "unnamed"])
@pytest.mark.parametrize("architecture", WINDOWED)
def test_an_attention_window_is_never_undone(architecture, unnamed, monkeypatch):
    """Not even of rows that need no packing, and not if no configuration tells of it."""
    model = tk.load_model(tiny.hf_model(architecture, **WINDOWED[architecture]))
    if unnamed:
        monkeypatch.setattr(capabilities, "_WINDOWS", ())
    short = tk.PromptPairs.from_ids(long_rows([3, 4]))
    fast, plain = engines(model, short, "mlp-outputs")
    assert fast.layout.sequences.has_branches
    close(fast.clean.x, plain.clean.x)
    mixed = tk.PromptPairs.from_ids(long_rows([3, 13, 4, 14]))
    with pytest.warns(SlowPathWarning, match="x and y of an example are run as two sequences"):
        fast = tiny.engine(model, mixed, "mlp-outputs")
    assert not fast.layout.sequences.has_branches
    plain = tiny.engine(model, mixed, "mlp-outputs", capabilities=Capabilities.none())
    mask = torch.full((fast.n_components,), 0.7)
    close(fast.effects(mask), plain.effects(mask))


def test_half_precision_takes_the_same_shortcuts(pairs):
    model = tk.load_model(tiny.hf_model("llama").to(torch.bfloat16))
    fast, plain = engines(model, pairs, "attention-patterns", "logit-difference")
    assert fast.layout.sequences.has_branches
    mask = torch.full((12,), 0.5)
    torch.testing.assert_close(fast.effects(mask), plain.effects(mask), rtol=0.1, atol=0.1)
    sets = [(0, 1), (0, 5), (7,)]
    torch.testing.assert_close(
        fast.set_effects(sets).mean(1), plain.set_effects(sets).mean(1), rtol=0.1, atol=0.1
    )


# ---- layers that sets share -----------------------------------------------------------------


@pytest.mark.parametrize("kinds", EVERY_KIND)
def test_many_sets_equal_one_at_a_time(any_model, kinds):
    fast, plain = engines(any_model, tiny.pairs(5, seed=1), kinds, max_batch_size=11)
    sets = [*random_sets(fast, 30), (), (0,), (0,), (fast.n_components - 1,)]
    sets += [(0, i) for i in range(1, min(fast.n_components, 9))]
    # A whole set that others go on from, with several components in a layer.
    start = random_sets(fast, 40, seed=3)[-1][:4]
    sets += [tuple({*start, i}) for i in range(0, fast.n_components, 1 + fast.n_components // 12)]
    masks = torch.stack([from_indices(one, fast.n_components) for one in sets])
    close(fast.set_effects(sets).mean(1), plain.effects(masks).mean(1))
    close(plain.set_effects(sets).mean(1), plain.effects(masks).mean(1))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 11), max_size=5, unique=True), min_size=1, max_size=12))
def test_any_sets_equal_one_at_a_time(model, sets):
    engine = tiny.engine(model, tiny.pairs(3), max_batch_size=7)
    masks = torch.stack([from_indices(one, 12) for one in sets])
    close(engine.set_effects(sets).mean(1), engine.effects(masks).mean(1))


def test_layers_below_a_candidate_are_not_run_again(any_model, monkeypatch):
    engine = tiny.engine(any_model, tiny.pairs(4), max_batch_size=4)
    engine.set_effects([[0]]).mean(1)
    ran = []
    # On what the blocks wrap: a block that is left out is called and hands its input on.
    handles = [
        block.original_component.register_forward_hook(lambda *_, n=number: ran.append(n))
        for number, block in enumerate(any_model.blocks)
    ]
    engine.set_effects([[i] for i in range(12)]).mean(1)
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
        tree = prefix_tree.build_prefix_tree(sets, layer_of, 12)
        assert sorted(leaves(tree)) == list(range(len(sets)))
        assert tree.layers_run(12) <= 12 * len(sets)
    assert (
        prefix_tree.build_prefix_tree(singles, layer_of, 12).layers_run(12)
        == 4 * sum(range(1, 13)) + 11
    )
    assert prefix_tree.build_prefix_tree(greedy, layer_of, 12).layers_run(12) < 0.6 * 12 * len(
        greedy
    )
    assert prefix_tree.build_prefix_tree(pairs, layer_of, 12).layers_run(12) < 0.3 * 12 * len(pairs)


def test_blocks_are_whole_again_after_an_error(model):
    blocks = capabilities_of(model).block_skipper
    tokens = torch.tensor([[1, 2, 3]])
    before = model.run_with_hooks(tokens, fwd_hooks=[])
    with pytest.raises(RuntimeError, match="on purpose"), blocks.run_only(2, None, before):
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (no_mask, "two sequences, because it takes no attention mask of its own (TypeError)"),
        (
            ignores_mask,
            "because its logits differ under an attention mask of its own in rows of",
        ),
        (one_stack, "is run through all layers, because it has no list of blocks."),
    ],
)
def test_the_plain_way_is_taken_and_said_once(change, text, dtype, pairs, monkeypatch):
    model, other = (tk.load_model(shifted(tiny.hf_model("gpt2")).to(dtype)) for _ in range(2))
    expected = tiny.engine(model, pairs).set_effects([[i] for i in range(12)]).mean(1)
    monkeypatch.setitem(vars(other), *change(other))
    with pytest.warns(SlowPathWarning) as caught:
        engine = tiny.engine(other, pairs)
    assert [text in str(warning.message) for warning in caught] == [True]
    assert "GPT2LMHeadModel takes the slower way: " in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.engine(other, pairs)
    found = engine.set_effects([[i] for i in range(12)]).mean(1)
    close(found, expected, 1 if dtype == torch.float32 else 400)


def shifted(model):
    """With a large logit that all tokens share, as GPT-2 has: it hides differences."""
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(3)
        model.lm_head.weight.add_(1)
    return model


def test_no_warning_where_everything_serves(any_model, pairs):
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        tiny.engine(any_model, pairs)
    assert capabilities_of(any_model).block_skipper is not None
    assert tiny.engine(any_model, pairs).layout.sequences.has_branches


def test_what_is_known_of_a_model_does_not_keep_it(pairs):
    model = tk.load_model(tiny.hf_model("gpt2"))
    capabilities_of(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# ---- where counterfactual activations are kept ----------------------------------------------


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
    assert (kept.counterfactual_cache.storage, recomputed.counterfactual_cache.storage) == (
        "device",
        "recomputed",
    )


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
                pattern = found["blocks.1.attn.hook_pattern"][row, :, at, : at + 1]
                close(pattern, cache["blocks.1.attn.hook_pattern"][0, :, at, : at + 1])
                output = found["blocks.2.hook_mlp_out"][row, at]
                close(output, cache["blocks.2.hook_mlp_out"][0, at])


def stored(engine):
    chunks = engine.counterfactual_cache._chunks
    return sum(value.nbytes for chunk in chunks for value in chunk.values.values())


def test_the_bound_is_what_is_kept(model):
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


@pytest.mark.parametrize("positions", SCOPES, ids=str)
@pytest.mark.parametrize("reward", ["dataset", "per-example"])
@pytest.mark.parametrize("longest", [1, 4])
def test_nothing_is_read_from_the_device_inside_a_step(positions, reward, longest):
    """A device without data stands in for an accelerator: nothing can be read from it."""
    hf = tiny.hf_model("llama")
    here = tk.load_model(hf)
    hf.to("meta")
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
    step = RewardGradient(engine, make_objective(reward, engine))
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
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("longest", [1, 4])
def test_cuda_does_not_wait_inside_a_step(longest, precision):
    model = tk.load_model(tiny.hf_model("llama").to("cuda"))
    engine = tiny.engine(
        model, tiny.pairs(8, longest=longest), "attention-patterns+mlp-outputs", indices=[0, 3]
    )
    step = RewardGradient(engine, make_objective("dataset", engine), precision)
    mask = torch.full((engine.n_components,), 0.5, device="cuda")
    step.step(mask, torch.arange(8))
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.step(mask, torch.arange(8))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    step.check()


@pytest.mark.gpu
@pytest.mark.parametrize("max_memory", [None, 0])
def test_cuda_takes_the_same_shortcuts(pairs, max_memory):
    here = tiny.engine(
        tk.load_model(tiny.hf_model("llama")), pairs, "attention-patterns+mlp-outputs"
    )
    model = tk.load_model(tiny.hf_model("llama").to("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        there = tiny.engine(model, pairs, "attention-patterns+mlp-outputs", max_memory=max_memory)
    assert there.layout.sequences.has_branches
    assert there.capabilities.block_skipper is not None
    sets = random_sets(here, 20)
    torch.testing.assert_close(
        there.set_effects(sets).mean(1), here.set_effects(sets).mean(1), rtol=1e-3, atol=1e-4
    )
    assert there.counterfactual_cache.storage == ("host" if max_memory == 0 else "device")


@pytest.mark.gpu
def test_tf32_is_put_back():
    before = torch.backends.cuda.matmul.fp32_precision
    with products_in("tf32", torch.device("cuda")):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == before
