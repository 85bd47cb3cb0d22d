"""Hooks in a generation act on the same tokens with and without a cache, in any steps.

The reference runs the whole text anew for every token, with hooks that are written here and know
positions of the text.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.engine.test_masked_rows import MEAN, ROWS, WINDOWS
from tests.tracer.test_generation import continued
from tracekit.components import KINDS
from tracekit.errors import ConfigError, MaskError, SourceError, UnsupportedModelError

PROMPTS = ["the", "the nurse", "the pilot said that"]
CHANGED = ["she", "she baker", "she cook forgot key"]
POSITIONS = ["prompt", "last", "all", [0], [-1], [0, 1]]
KIND_NAMES = ["head-outputs", "attention-patterns", "keys", "mlp-blocks", "residual-between"]


@pytest.fixture(scope="module")
def pairs(demo_model):
    # Of one length, and every token differs.
    rows = [
        {"prompt": prompt, "counterfactual": changed, "x": "he", "y": "she"}
        for prompt, changed in (
            (PROMPTS[2], CHANGED[2]),
            ("she forgot the key", "the pilot said that"),
        )
    ]
    return tk.PromptPairs.from_text(rows, demo_model, warn=False)


def chosen(positions, length):
    """Positions of the prompt, or all of the text."""
    places = {"prompt": range(length), "last": [length - 1], "all": range(1000)}
    if isinstance(positions, str):
        return places[positions]
    return [at % length for at in positions]


def own_hooks(model, tracer, name, positions, prompt, other):
    """Whole activations of all components, put in at positions of the text."""
    kind, length = KINDS[name], len(prompt)
    cache = None if other is None else model.run_with_cache(torch.tensor([other]))[1]
    constants = None if cache else tracer.engine.pairs[0].counterfactual.constants.values

    def put(activation, hook, at):
        out, dim = activation.clone(), kind.position_dim
        for position in chosen(positions, length):
            if position >= out.shape[dim]:
                break
            place = out.select(dim, position)
            if cache is not None:
                values = cache[at].select(dim, position)
                if kind.key_dim is not None:
                    values = torch.nn.functional.pad(values, (0, out.shape[-1] - length))
                place.copy_(values)
            elif kind.key_dim is None:
                place.copy_(constants[at].expand_as(place))
            else:
                row = torch.nn.functional.pad(constants[at], (0, 100))[:, : position + 1]
                total = row.sum(-1, keepdim=True)
                place.zero_()[:, :, : position + 1] = row / torch.where(total > 0, total, 1.0)
        # Where the model goes on with the tensor itself.
        return activation.copy_(out) if name == "residual-between" else out

    return [(at, lambda x, hook=None, at=at: put(x, hook, at)) for at in tracer.registry.hook_names]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["zero", "mean", "counterfactual"])
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_generate_acts_on_the_positions_of_the_prompt(demo_model, pairs, kind, source):
    encode = demo_model.tokenizer.encode
    changed = 0
    for positions in POSITIONS:
        # A prompt has no values for later tokens, and the first query sees itself only.
        if (source == "counterfactual" and positions == "all") or (
            kind == "attention-patterns" and source != "zero" and positions == [0]
        ):
            continue
        tracer = tk.Tracer(demo_model, pairs, kind, source=source, positions=positions)
        for prompt, other in zip(PROMPTS, CHANGED, strict=True):
            ids = encode(prompt, add_special_tokens=False)
            # Prompts of one token and of four; where the first two are patched, of two and of four.
            if len(ids) == (1 if positions == [0, 1] else 2):
                continue
            other = other if source == "counterfactual" else None
            row = tracer.generate("all", prompt, other, max_new_tokens=3).table.iloc[0]
            others = None if other is None else encode(other, add_special_tokens=False)
            hooks = own_hooks(demo_model, tracer, kind, positions, ids, others)
            expected = continued(demo_model, prompt, 3, lambda _, hooks=hooks: hooks)
            assert row["intervened"] == expected, (positions, prompt)
            changed += row["intervened"] != row["clean"]
    assert changed


HOW = {
    "cache": {"use_cache": True},
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
    "chunks": {"prefill_chunk_size": 2},
}

NEW = 5
"""New tokens: more than a window has keys, so that even a short prompt leaves it."""
LACKING = {("static cache", "gpt_neo")}
"""Ways of generating that give other texts in transformers itself."""


def greedy(model, ids, **options):
    """New tokens; ids may be several rows, padded on the left by -1."""
    mask = (ids >= 0).long()
    whole = model.original_model.generate(
        ids.clamp(min=0),
        attention_mask=mask,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    return whole[:, ids.shape[1] :].tolist()


@pytest.fixture(scope="module", params=["llama", "mistral", "gpt2"])
def small(request):
    return tk.load_model(tiny.hf_model(request.param, **WINDOWS.get(request.param, {})))


def patch_of(model, kind, ids, positions):
    registry = tk.components.ComponentRegistry.build(model.cfg, kind)
    other = torch.tensor([[(token + 5) % 61 for token in ids]])
    _, cache = model.run_with_cache(other, names_filter=list(registry.hook_names))
    where = torch.zeros(1, len(ids), dtype=torch.bool)
    where[0, positions] = True
    last = max(positions) + 1
    # Values up to the last position that is patched, as the engine gives them.
    values = {
        name: value.narrow(KINDS[kind].position_dim, 0, last) for name, value in cache.items()
    }
    values = {
        name: value if KINDS[kind].key_dim is None else value[..., :last]
        for name, value in values.items()
    }
    patch = tk.engine.MaskedPatch(registry=registry, counterfactual=values, positions=where)
    return patch, torch.ones(len(registry))


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", ["head-outputs", "attention-patterns", "keys", "residual-before"])
@pytest.mark.parametrize(
    ("length", "positions"), [(1, [0]), (2, [0]), (7, [0]), (7, [6]), (7, [1, 3]), (7, range(7))]
)
def test_a_patch_by_hand_acts_on_the_prompt(small, kind, length, positions):
    ids = [(7 * n + 3) % 61 for n in range(length)]
    patch, mask = patch_of(small, kind, ids, list(positions))
    tokens = torch.tensor([ids])
    expected = tokens
    for _ in range(NEW):
        logits = small.run_with_hooks(expected, fwd_hooks=patch.hooks(mask))
        expected = torch.cat([expected, logits[:, -1:].argmax(-1)], 1)
    expected = expected[:, length:].tolist()
    with small.hooks(fwd_hooks=patch.hooks(mask)):
        for name, options in HOW.items():
            assert greedy(small, tokens, **options) == expected, name
        for cached in (True, False):
            whole = small.generate(
                tokens,
                max_new_tokens=NEW,
                do_sample=False,
                use_past_kv_cache=cached,
                verbose=False,
                stop_at_eos=False,
                return_type="tokens",
            )
            assert whole[:, length:].tolist() == expected, cached


def test_rows_of_which_nothing_says_whose_values_they_take_are_refused(small):
    patch, mask = patch_of(small, "head-outputs", [3, 10, 17], [1, 2])
    both = tk.engine.MaskedPatch(
        registry=patch.registry,
        counterfactual={
            name: each.repeat(2, 1, 1, 1) for name, each in patch.counterfactual.items()
        },
        positions=patch.positions.repeat(2, 1),
    )
    ids = torch.tensor([[3, 10, 17], [5, 6, 7]])
    refused = pytest.raises(MaskError, match="4 rows, and the patch 2 under 1 masks. Run every row")
    with small.hooks(fwd_hooks=both.hooks(mask)), refused:
        greedy(small, ids, num_beams=2)
    with small.hooks(fwd_hooks=patch.hooks(mask)):
        assert greedy(small, ids[:1], num_beams=2, num_return_sequences=2)


def test_a_model_that_was_not_loaded_does_not_say_its_steps():
    bridge = tk.load_model(tiny.hf_model("llama"))
    patch, mask = patch_of(bridge, "head-outputs", [3, 10, 17], [0])
    # As if it came from elsewhere.
    bridge.original_model._forward_pre_hooks.clear()
    with bridge.hooks(fwd_hooks=patch.hooks(mask)):
        with pytest.raises(UnsupportedModelError, match="Pass the model through tk.load_model, or"):
            greedy(bridge, torch.tensor([[3, 10, 17]]))
        assert greedy(bridge, torch.tensor([[3, 10, 17]]), use_cache=False)


@pytest.mark.parametrize("kind", ["attention-patterns", "head-outputs", "mlp-blocks"])
@pytest.mark.parametrize("architecture", ["mistral", "gemma2", "gpt_oss", "gpt_neo", "gpt2"])
def test_steering_is_the_same_in_any_steps(architecture, kind):
    """Also where a cache has lost the first keys, and where prompts are padded on the left."""
    model = tk.load_model(tiny.hf_model(architecture, **WINDOWS.get(architecture, {})))
    pairs = tk.PromptPairs.from_ids(ROWS)
    tracer = tk.Tracer(model, pairs, kind, source=MEAN, positions="all")
    members = [tracer.registry.label(n) for n in (0, 1, len(tracer.registry) - 1)]
    rows = [[3, 10, 17, 24, 31, 38, 45, 52], [5, 6, 7]]
    alone = []
    for ids in rows:
        with tracer.steer(members) as steered:
            texts = [
                greedy(steered, torch.tensor([ids]), **options)
                for name, options in HOW.items()
                if (name, architecture) not in LACKING
            ]
        assert all(text == texts[0] for text in texts)
        alone += texts[0]
        assert texts[0] != greedy(model, torch.tensor([ids]))
    padded = torch.tensor([rows[0], [-1] * 5 + rows[1]])
    with tracer.steer(members) as steered:
        for cached in (True, False):
            assert greedy(steered, padded, use_cache=cached) == alone


def test_beyond_the_keys_that_have_a_mean_steering_is_refused():
    model = tk.load_model(tiny.hf_model("mistral", sliding_window=4))
    tracer = tk.Tracer(model, MEAN.pairs, "attention-patterns", source="mean", positions="all")
    ids = torch.tensor([[(5 * n + 2) % 61 for n in range(17)]])
    for cached in (True, False):
        with (
            tracer.steer("all") as steered,
            pytest.raises(SourceError, match="over 17 keys, and a query of this text of 21 to"),
        ):
            greedy(steered, ids, use_cache=cached)


SETTINGS = {
    "repetition_penalty": 100.0,
    "num_beams": 4,
    "no_repeat_ngram_size": 1,
    "suppress_tokens": list(range(60)),
    "min_length": 12,
    "length_penalty": 3.0,
    "max_length": 6,
}


@pytest.fixture(scope="module", params=[0.0, 1.0])
def written(request, demo_model, pairs):
    """Who writes, what it is asked, and what it writes without settings of the checkpoint."""
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", source="mean", positions="all")
    prompts = ["she forgot the key . she forgot the", "the pilot"]
    options = {"max_new_tokens": 8, "temperature": request.param}
    expected = tracer.generate("L1H4", prompts, **options)
    assert "settings" not in expected.how
    assert request.param or expected.clean == tuple(continued(demo_model, p) for p in prompts)
    return tracer, prompts, options, expected


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_checkpoint_act_if_asked_for(demo_model, written, monkeypatch, name):
    tracer, prompts, options, expected = written
    config = demo_model.original_model.generation_config
    monkeypatch.setattr(config, name, SETTINGS[name])
    found = tracer.generate("L1H4", prompts, **options)
    assert found.table.equals(expected.table)
    assert found.how == expected.how
    assert demo_model.original_model.generation_config is config
    asked = tracer.generate("L1H4", prompts, **options, checkpoint_settings=True)
    assert asked.how.endswith(", with the settings of the checkpoint.")
    if name in ("repetition_penalty", "suppress_tokens"):
        assert not asked.table.equals(expected.table)


def test_generations_name_the_settings_of_the_checkpoint(demo_model, pairs):
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", source="mean", positions="all")
    plain = tracer.generate("L1H4", "the", max_new_tokens=2)
    assert plain.how.endswith("the likeliest ones.")
    changed = replace(plain, checkpoint_settings=True)
    assert changed.how.endswith("the likeliest ones, with the settings of the checkpoint.")


def test_components_by_span_are_refused(demo_model, pairs):
    rows = [{"prompt": "the pilot said that", "spans": {"who": "pilot"}, "x": "he", "y": "she"}]
    spans = tk.PromptPairs.from_text(rows, demo_model, warn=False)
    tracer = tk.Tracer(demo_model, spans, "head-outputs", source="zero", split_by="span")
    with pytest.raises(
        ConfigError, match="split by span, .* Build a tracer without split_by, e.g."
    ):
        tracer.generate([0], "the pilot said that")
