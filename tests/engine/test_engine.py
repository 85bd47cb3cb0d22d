"""The algebra of interventions, on tiny random models of several architectures."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit as tk
from tests import tiny
from tracekit.engine.effects import masked_log_probs
from tracekit.engine.patching import MaskedPatch
from tracekit.errors import (
    ConfigError,
    MissingContinuationError,
    NonFiniteMetricError,
    PairsError,
)
from tracekit.metrics import METRICS

ALL_KINDS = [*tiny.PATCHED_KINDS, "head-outputs+mlp-blocks", "mlp-outputs+mlp-blocks"]
SCOPES = ["prompt", "last", "all", [0, -2]]


def random_mask(n, seed=0):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed))


@pytest.mark.pairwise
@pytest.mark.parametrize("kinds", ALL_KINDS)
@pytest.mark.parametrize("noise", [False, True])
def test_the_empty_mask_has_no_effect_and_the_full_mask_has_one(any_model, kinds, noise):
    engine = tiny.engine(any_model, tiny.pairs(6, noise=noise), kinds, positions="all")
    assert torch.equal(engine.effects(torch.zeros(engine.n_components)), torch.zeros(6))
    assert engine.full_effects.abs().min() > 0


def test_copies_of_an_engine_share_full_effects_by_one_metric_only(model):
    engine = tiny.engine(model, tiny.pairs(6), metric="logit-difference")
    assert engine.known_full_effects is None
    full, odds = engine.full_effects, engine.with_metric(METRICS["odds-ratio"])
    assert replace(engine, record=lambda *_: None).known_full_effects is full
    assert odds.known_full_effects is None
    expected = tiny.engine(model, tiny.pairs(6), metric="odds-ratio").full_effects
    torch.testing.assert_close(odds.full_effects, expected)
    assert not torch.allclose(odds.full_effects, full)
    assert (engine.cost.forward, odds.cost.forward) == (1, 1)


def reference_scores(model, pairs, kinds, mask, positions):
    """One example and one continuation at a time, with hooks written out: the plain way."""
    registry = tk.components.ComponentRegistry.build(model.cfg, kinds)

    def run(tokens, hooks):
        with torch.no_grad():
            return model.run_with_hooks(torch.tensor([tokens]), fwd_hooks=hooks)[0].log_softmax(-1)

    scores = []
    for pair in pairs:
        for ids in (pair.x_ids, pair.y_ids):
            read = ids[:-1] if positions == "all" else ()
            cache = {}

            def keep(name, cache=cache):
                return name, lambda value, hook: cache.__setitem__(name, value.clone())

            def disturb(value, hook, pair=pair):
                value = value.clone()
                value[0, : len(pair.prompt_ids)] += pair.counterfactual.added_to_embeddings()
                return value

            hooks = [keep(name) for name in registry.hook_names]
            if pair.counterfactual.added_to_embeddings() is not None:
                hooks.insert(0, ("blocks.0.hook_resid_pre", disturb))
            run([*pair.counterfactual_ids, *read], hooks)
            length = len(pair.prompt_ids) + len(read)
            places = {"prompt": range(length), "all": range(length), "last": [length - 1]}
            indices = positions if isinstance(positions, list) else places[positions]
            chosen = [q + len(pair.prompt_ids) if q < 0 else q for q in indices]

            def patch(site, cache=cache, chosen=chosen, length=length):
                def act(value, hook):
                    value, source = value.clone(), cache[site.hook_name]
                    for k, index in enumerate(site.indices):
                        m = mask[site.start + k]
                        for q in chosen:
                            if site.kind.name == "attention-patterns":
                                at = (0, index, q, slice(0, length))
                            elif site.kind.component_dim is None:
                                at = (0, q)
                            else:
                                at = (0, q, index)
                            value[at] = (1 - m) * value[at] + m * source[at]
                    return value

                return site.hook_name, act

            tokens = [*pair.prompt_ids, *ids[:-1]]
            logs = run(tokens, [patch(site) for site in registry.sites])
            at = range(len(pair.prompt_ids) - 1, len(tokens))
            scores.append(torch.stack([logs[p, t] for p, t in zip(at, ids, strict=True)]).mean())
    return torch.stack(scores).reshape(-1, 2)


@pytest.mark.lens
@pytest.mark.pairwise
@pytest.mark.parametrize("kinds", ALL_KINDS)
@pytest.mark.parametrize("positions", SCOPES, ids=str)
def test_the_engine_equals_one_example_at_a_time(any_model, kinds, positions):
    pairs = tiny.pairs(4, seed=1)
    engine = tiny.engine(any_model, pairs, kinds, positions=positions)
    mask = random_mask(engine.n_components)
    log_probs = masked_log_probs(engine, mask)
    expected = reference_scores(any_model, pairs, kinds, mask, positions)
    torch.testing.assert_close(log_probs.x, expected[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_probs.y, expected[:, 1], rtol=1e-4, atol=1e-4)


@pytest.mark.lens
def test_the_engine_equals_one_example_at_a_time_with_noise(any_model):
    pairs = tiny.pairs(4, seed=1, noise=True)
    engine = tiny.engine(any_model, pairs, "mlp-outputs")
    mask = random_mask(engine.n_components)
    expected = reference_scores(any_model, pairs, "mlp-outputs", mask, "prompt")
    torch.testing.assert_close(
        masked_log_probs(engine, mask).x, expected[:, 0], rtol=1e-4, atol=1e-4
    )


LIMIT = 6
"""Tokens beyond which the long-rope model reads positions by other factors."""


@pytest.fixture(scope="module")
def long_rope_model():
    factors = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
        "short_factor": [1.0] * 3,
        "long_factor": [2.0, 5.0, 9.0],
        "original_max_position_embeddings": LIMIT,
    }
    changes = {"rope_parameters": factors, "original_max_position_embeddings": LIMIT}
    return tk.load_model(tiny.hf_model("phi3", **changes))


def rows_around_the_limit(n_x=1, n_y=1, lengths=(2, 4, 6, 7, 9, 11)):
    draw = torch.Generator().manual_seed(5)

    def ids(length):
        return torch.randint(tiny.VOCABULARY, (length,), generator=draw).tolist()

    keys = ("prompt_ids", "counterfactual_ids", "x_ids", "y_ids")
    return [
        dict(zip(keys, map(ids, (length, length, n_x, n_y)), strict=True)) for length in lengths
    ]


@pytest.mark.lens
@pytest.mark.parametrize("positions", ["prompt", "all"])
@pytest.mark.parametrize("capabilities", [None, tk.Capabilities.none()])
def test_rows_on_both_sides_of_a_long_rope_limit_never_share_a_batch(
    long_rope_model, positions, capabilities
):
    pairs = tk.PromptPairs.from_ids(rows_around_the_limit(n_x=2, n_y=2, lengths=range(2, 12)))
    engine = tiny.engine(
        long_rope_model,
        pairs,
        "attention-patterns",
        positions=positions,
        capabilities=capabilities,
        max_batch_size=64,
    )
    mask = random_mask(engine.n_components)
    log_probs = masked_log_probs(engine, mask)
    expected = reference_scores(long_rope_model, pairs, "attention-patterns", mask, positions)
    torch.testing.assert_close(log_probs.x, expected[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_probs.y, expected[:, 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("source", ["mean", "zero", "noise"])
def test_batch_sizes_change_no_source_of_a_long_rope_model(long_rope_model, source):
    """Means too are taken over batches that lie on one side of the limit."""
    pairs = tk.PromptPairs.from_ids(rows_around_the_limit(n_x=2, n_y=2, lengths=range(2, 12)))
    one, many = (
        tk.Tracer(long_rope_model, pairs, "mlp-outputs", source=source, max_batch_size=size)
        for size in (1, 64)
    )
    mask = random_mask(len(one.registry))
    torch.testing.assert_close(
        many.evaluate(mask, per_example=True),
        one.evaluate(mask, per_example=True),
        rtol=1e-4,
        atol=1e-4,
    )


def test_the_long_rope_limit_matters(long_rope_model):
    """The same row, alone and beside one beyond the limit."""
    short, long = (torch.randint(tiny.VOCABULARY, (1, n)) for n in (4, 9))
    padded = torch.cat([torch.nn.functional.pad(short, (0, 5)), long])
    with torch.no_grad():
        alone, beside = long_rope_model(short)[0], long_rope_model(padded)[0, :4]
    assert (alone - beside).abs().max() > 1e-2


@pytest.mark.parametrize("capabilities", [None, tk.Capabilities.none()])
def test_continuations_on_both_sides_of_a_long_rope_limit_are_refused(
    long_rope_model, capabilities
):
    pairs = tk.PromptPairs.from_ids(rows_around_the_limit(n_y=5, lengths=(2, 4)))
    with pytest.raises(PairsError, match="x and y of example 1 lie on both sides of 6 tokens"):
        tiny.engine(long_rope_model, pairs, capabilities=capabilities)
    assert tk.Tracer(tk.load_model(tiny.hf_model("phi3")), pairs).full_effect


@pytest.mark.lens
def test_all_head_outputs_and_blocks_leave_the_difference_of_the_embeddings(any_model):
    """With every block's output counterfactual, only the embeddings remain of the clean run."""
    rows = tiny.rows(1)[0]
    clean, other = torch.tensor([rows["prompt_ids"]]), torch.tensor([rows["counterfactual_ids"]])
    registry = tk.components.ComponentRegistry.build(any_model.cfg, "head-outputs+mlp-blocks")
    last = f"blocks.{tiny.N_LAYERS - 1}.hook_resid_post"
    first = "blocks.0.hook_resid_pre"
    seen = {}

    def keep(name, key):
        return name, lambda value, hook: seen.__setitem__(key, value.clone())

    with torch.no_grad():
        any_model.run_with_hooks(clean, fwd_hooks=[keep(first, "clean embedding")])
        names = [*registry.hook_names, first, last]
        any_model.run_with_hooks(other, fwd_hooks=[keep(name, name) for name in names])
        source = {name: seen[name] for name in registry.hook_names}
        patch = MaskedPatch(
            registry=registry, counterfactual=source, positions=torch.ones_like(clean).bool()
        )
        hooks = [*patch.hooks(torch.ones(len(registry))), keep(last, "patched")]
        any_model.run_with_hooks(clean, fwd_hooks=hooks)
    expected = seen[last] + seen["clean embedding"] - seen[first]
    torch.testing.assert_close(seen["patched"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batch_size=st.integers(1, 9),
    order=st.permutations(range(8)),
    seed=st.integers(0, 100),
    mean=st.sampled_from(["geometric", "arithmetic"]),
    kinds=st.sampled_from(["attention-patterns", "mlp-outputs+mlp-blocks"]),
)
def test_batches_padding_and_order_change_nothing(model, batch_size, order, seed, mean, kinds):
    pairs = tiny.pairs(8, seed=seed)
    plain = tiny.engine(model, pairs, kinds, continuation_mean=mean, max_batch_size=1)
    mask = random_mask(plain.n_components, seed)
    expected = plain.effects(mask)
    shuffled = tiny.engine(
        model, pairs.subset(order), kinds, continuation_mean=mean, max_batch_size=batch_size
    )
    torch.testing.assert_close(shuffled.effects(mask), expected[order], rtol=2e-4, atol=2e-5)


def test_many_masks_at_once_equal_one_at_a_time(any_model, pairs):
    engine = tiny.engine(any_model, pairs, "attention-patterns", max_batch_size=19)
    masks = torch.rand(5, engine.n_components, generator=torch.Generator().manual_seed(0))
    together = engine.effects(masks)
    apart = torch.stack([engine.effects(mask) for mask in masks])
    torch.testing.assert_close(together, apart, rtol=2e-4, atol=2e-5)
    sets = [[0], [3, 5], [1, 2, 7]]
    means = engine.set_effects(sets).mean(1)
    for chosen, mean in zip(sets, means, strict=True):
        mask = torch.zeros(engine.n_components)
        mask[chosen] = 1
        assert mean.item() == pytest.approx(engine.effects(mask).mean().item(), rel=2e-4, abs=2e-5)


@pytest.mark.lens
@pytest.mark.parametrize("kinds", ["attention-patterns", "head-outputs+mlp-blocks", "mlp-neurons"])
def test_gradients_equal_finite_differences(any_model, pairs, kinds):
    engine = tiny.engine(any_model, pairs, kinds, "logit-difference", max_batch_size=3)
    mask = 0.2 + 0.6 * random_mask(engine.n_components)
    # Weights of 1 + l make it the gradient of the sum of l + l^2 / 2.
    effects, gradient = engine.gradient(mask, lambda effects: 1 + effects)
    torch.testing.assert_close(effects, engine.effects(mask), rtol=1e-3, atol=1e-4)
    direction = torch.randn(engine.n_components, generator=torch.Generator().manual_seed(1))
    direction /= direction.norm()
    step = 0.02
    moved = [engine.effects(mask + s * direction) for s in (step, -step)]
    ends = [(effects + effects**2 / 2).sum() for effects in moved]
    slope = (ends[0] - ends[1]).item() / (2 * step)
    assert slope == pytest.approx((gradient @ direction).item(), rel=0.02, abs=2e-3)


def test_a_minibatch_gradient_is_that_of_its_examples(model, pairs):
    engine = tiny.engine(model, pairs)
    mask = random_mask(engine.n_components)
    chosen = torch.tensor([6, 1, 3])
    effects, gradient = engine.gradient(mask, torch.ones_like, chosen)
    alone = tiny.engine(model, pairs.subset(chosen.tolist()))
    expected_effects, expected = alone.gradient(mask, torch.ones_like)
    torch.testing.assert_close(effects, expected_effects, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.lens
def test_permuting_heads_permutes_the_mask(pairs):
    """Heads of a layer moved about in the weights are found where they were moved to."""
    hf, moved = tiny.hf_model("gpt2"), tiny.hf_model("gpt2")
    order, d_head = [2, 0, 3, 1], tiny.D_MODEL // tiny.N_HEADS
    columns = torch.cat([torch.arange(d_head) + h * d_head for h in order])
    thirds = torch.cat([columns + k * tiny.D_MODEL for k in range(3)])
    attention = moved.transformer.h[1].attn
    with torch.no_grad():
        attention.c_attn.weight.copy_(attention.c_attn.weight[:, thirds])
        attention.c_attn.bias.copy_(attention.c_attn.bias[thirds])
        attention.c_proj.weight.copy_(attention.c_proj.weight[columns])
    for kinds in ("attention-patterns", "head-outputs"):
        before, after = (
            tiny.engine(tk.load_model(m), pairs, kinds)
            .set_effects([[i] for i in range(12)])
            .mean(1)
            for m in (hf, moved)
        )
        torch.testing.assert_close(after[4:8], before[4:8][order], rtol=1e-3, atol=1e-5)
        assert (before[4:8] - before[4:8][order]).abs().max() > 1e-3


@pytest.mark.lens
def test_an_intervention_is_no_run_of_the_model_left_changed(model, pairs):
    tokens = torch.tensor([[1, 2, 3, 4]])
    before = model.run_with_hooks(tokens, fwd_hooks=[])
    thawed = next(iter(model.parameters()))
    thawed.requires_grad_(True)
    engine = tiny.engine(model, pairs)
    engine.gradient(torch.full((12,), 0.5), torch.ones_like)
    assert thawed.requires_grad
    assert thawed.grad is None
    assert torch.equal(model.run_with_hooks(tokens, fwd_hooks=[]), before)
    thawed.requires_grad_(False)


@pytest.mark.lens
def test_dropout_is_off_while_tracing(pairs):
    hf = tiny.hf_model("gpt2")
    model = tk.load_model(hf)
    model.train(True)
    engine = tiny.engine(model, pairs)
    mask = random_mask(12)
    assert torch.equal(engine.effects(mask), engine.effects(mask))
    assert model.training


def test_what_does_not_change_is_computed_once(model, pairs, monkeypatch):
    engine = tiny.engine(model, pairs)
    calls = []
    original = model.run_with_hooks
    monkeypatch.setattr(
        model, "run_with_hooks", lambda *a, **k: calls.append(a) or original(*a, **k)
    )
    engine.effects(torch.zeros(12))
    assert len(calls) == 3  # clean, counterfactual, intervened
    for _ in range(3):
        engine.effects(random_mask(12))
    assert len(calls) == 6
    assert engine.cost == tk.engine.Cost(forward=4, backward=0)
    engine.gradient(random_mask(12), torch.ones_like, torch.arange(4))
    assert engine.cost == tk.engine.Cost(forward=4.5, backward=0.5)
    assert (engine.cost - tk.engine.Cost(forward=4)).forward_equivalents == 1


def test_logits_are_computed_only_where_a_token_is_scored(model, pairs):
    engine = tiny.engine(model, pairs)
    widths = []
    batch = engine.batches[0]
    hook = ("unembed.hook_out", lambda value, hook: widths.append(value.shape[:2].numel()))
    with torch.no_grad():
        engine.forward_pass.log_probs(batch, [hook])
    assert widths == [len(batch.readout_positions[0])]
    assert widths[0] < batch.sequences.tokens.numel()


def test_a_metric_that_is_not_finite_names_the_example(model, pairs):
    def broken(clean, intervened):
        effects = intervened.x - clean.x
        return torch.where(torch.arange(8, device=effects.device) == 5, torch.nan, effects)

    engine = tiny.engine(model, pairs, metric=broken)
    number = int(engine.batches[0].examples[5])
    prompt = pairs[number].describe()
    text = rf"'broken'.* on 1 of 8 examples.*example {number} \({re.escape(prompt)}\)"
    with pytest.raises(NonFiniteMetricError, match=text):
        engine.effects(torch.zeros(12))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"x_ids": [tiny.VOCABULARY]}, "token id outside the vocabulary. Ids must be 0 to 60"),
        ({"x_ids": [1] * 70}, "needs 71 positions. The model has 64; shorten it"),
        ({"counterfactual_ids": None, "noise": torch.zeros(2, 5)}, "5 wide, .* embeddings 24"),
    ],
)
def test_pairs_that_do_not_fit_the_model(model, change, text):
    row = {"prompt_ids": [1, 2], "counterfactual_ids": [1, 3], "x_ids": [4], "y_ids": [5]}
    with pytest.raises(PairsError, match=text):
        tiny.engine(model, tk.PromptPairs.from_ids([{**row, **change}]))


def test_texts_beyond_what_dynamic_rotary_factors_read_alike_are_refused():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = tk.load_model(tiny.hf_model("llama", rope_parameters=rope))
    row = {"prompt_ids": [1] * 64, "counterfactual_ids": [2] * 64, "x_ids": [4], "y_ids": [5]}
    tiny.engine(model, tk.PromptPairs.from_ids([row]))
    row["x_ids"] = [4, 4]
    with pytest.raises(
        PairsError, match="needs 65 positions. The model reads more than 64 by rota"
    ):
        tiny.engine(model, tk.PromptPairs.from_ids([row]))


def test_missing_y_and_bad_batch_size(model, pairs):
    rows = tiny.rows(3)
    del rows[1]["y_ids"]
    with pytest.raises(MissingContinuationError, match="'odds-ratio' compares x with y, and examp"):
        tiny.engine(model, tk.PromptPairs.from_ids(rows))
    engine = tiny.engine(model, tk.PromptPairs.from_ids(rows), metric="probability-drop")
    assert engine.clean.y is None
    assert engine.full_effects.abs().min() > 0
    with pytest.raises(ConfigError, match="max_batch_size is 0. It must be a whole number, at"):
        tiny.engine(model, pairs, max_batch_size=0)


def test_half_precision_keeps_the_identity(pairs):
    model = tk.load_model(tiny.hf_model("llama").to(torch.bfloat16))
    for kinds in ("attention-patterns", "mlp-outputs"):
        engine = tiny.engine(model, pairs, kinds)
        assert engine.effects(torch.zeros(engine.n_components)).abs().max() == 0
        assert engine.full_effects.abs().max() > 0
        gradient = engine.gradient(torch.full((engine.n_components,), 0.5), torch.ones_like)[1]
        assert gradient.abs().max() > 0


@pytest.mark.gpu
def test_cuda_equals_the_cpu(pairs):
    here = tiny.engine(
        tk.load_model(tiny.hf_model("llama")), pairs, "attention-patterns+mlp-outputs"
    )
    there = tiny.engine(
        tk.load_model(tiny.hf_model("llama").to("cuda")), pairs, "attention-patterns+mlp-outputs"
    )
    mask = random_mask(here.n_components)
    torch.testing.assert_close(there.effects(mask), here.effects(mask), rtol=1e-3, atol=1e-4)
    gradients = [engine.gradient(mask, torch.ones_like)[1] for engine in (here, there)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("metric", ["odds-ratio", "logit-difference", "probability-drop"])
def test_weights_make_the_plain_mean_the_weighted_one(model, metric):
    rows, weights = tiny.rows(5), [1.0, 4.0, 0.5, 2.0, 2.5]
    weighted = [{**row, "weight": weight} for row, weight in zip(rows, weights, strict=True)]
    plain = tiny.engine(model, tk.PromptPairs.from_ids(rows), metric=metric)
    ours = tiny.engine(model, tk.PromptPairs.from_ids(weighted), metric=metric)
    share = torch.tensor(weights) / sum(weights)
    mask = torch.rand(plain.n_components, generator=torch.Generator().manual_seed(3))
    expected = (share * plain.effects(mask)).sum().item()
    assert ours.effects(mask).mean().item() == pytest.approx(expected, rel=1e-5)
    means = ours.set_effects([(0, 5), (3,)]).mean(1)
    singles = plain.set_effects([(0, 5), (3,)])
    torch.testing.assert_close(means, (share * singles).sum(1))
    _, gradient = ours.gradient(mask, torch.ones_like)
    alone = [plain.gradient(mask, torch.ones_like, torch.tensor([i]))[1] for i in range(5)]
    torch.testing.assert_close(gradient, (5 * share[:, None] * torch.stack(alone)).sum(0))


def test_looking_ahead_heeds_weights(model):
    rows = tiny.rows(4)
    doubled = tk.PromptPairs.from_ids([*rows, rows[0], rows[0]])
    weighted = tk.PromptPairs.from_ids([{**rows[0], "weight": 3}, *rows[1:]])
    for metric in ("odds-ratio", "logit-difference"):
        first = tiny.engine(model, doubled, metric=metric).predict_changes((1, 7))
        second = tiny.engine(model, weighted, metric=metric).predict_changes((1, 7))
        torch.testing.assert_close(
            first.predicted_effects, second.predicted_effects, rtol=1e-4, atol=1e-7
        )
        torch.testing.assert_close(first.gradient, second.gradient, rtol=1e-4, atol=1e-7)
