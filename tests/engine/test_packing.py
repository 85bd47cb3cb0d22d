"""Packing: x and y in one row give what rows of their own give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit as tk
from tests import tiny
from tracekit.components.masks import from_indices
from tracekit.engine.capabilities import Capabilities
from tracekit.errors import ModelWarning
from tracekit.models import architectures

EVERY_KIND = [*tiny.PATCHED_KINDS, "+".join(tiny.WRITING_KINDS)]


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


@pytest.mark.lens
@pytest.mark.pairwise
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


EASY = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.slow
@settings(max_examples=12, **EASY)
@given(data=st.data())
def test_any_data_equal_the_plain_way(any_model, data):
    """Missing, equal and repeated continuations, partial registries, scopes, noise, all at once."""
    compare_with_the_plain_way(any_model, data.draw)


@pytest.mark.soak
@settings(max_examples=100, **EASY)
@given(data=st.data())
def test_much_data_equals_the_plain_way(any_model, data):
    compare_with_the_plain_way(any_model, data.draw)


def compare_with_the_plain_way(any_model, draw):
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
        "indices": draw(st.sampled_from([None, [0, 1]])),
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
        monkeypatch.setattr(architectures, "_WINDOWS", ())
    short = tk.PromptPairs.from_ids(long_rows([3, 4]))
    fast, plain = engines(model, short, "mlp-outputs")
    assert fast.layout.sequences.has_branches
    close(fast.clean.x, plain.clean.x)
    mixed = tk.PromptPairs.from_ids(long_rows([3, 13, 4, 14]))
    with pytest.warns(ModelWarning, match="x and y of an example are run as two sequences"):
        fast = tiny.engine(model, mixed, "mlp-outputs")
    assert not fast.layout.sequences.has_branches
    plain = tiny.engine(model, mixed, "mlp-outputs", capabilities=Capabilities.none())
    mask = torch.full((fast.n_components,), 0.7)
    close(fast.effects(mask), plain.effects(mask))


def test_packing_in_half_precision(pairs):
    model = tk.load_model(tiny.hf_model("llama").to(torch.bfloat16))
    fast, plain = engines(model, pairs, "attention-patterns", "logit-difference")
    assert fast.layout.sequences.has_branches
    mask = torch.full((12,), 0.5)
    torch.testing.assert_close(fast.effects(mask), plain.effects(mask), rtol=0.1, atol=0.1)
    sets = [(0, 1), (0, 5), (7,)]
    torch.testing.assert_close(
        fast.set_effects(sets).mean(1), plain.set_effects(sets).mean(1), rtol=0.1, atol=0.1
    )
