"""Noise and other prompts are drawn by seed and example, whatever other examples there are."""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny

SOURCES = ["noise", "resample", tk.Noise(factor=2.0)]


def rows(count, seed):
    """Prompts of 5 tokens, some of them twice with another x."""
    made = [
        {"prompt_ids": (5 * row["prompt_ids"])[:5], "x_ids": row["x_ids"], "y_ids": row["y_ids"]}
        for row in tiny.rows(count, seed=seed)
    ]
    return [*made, {**made[0], "x_ids": [1, 2]}, made[1]]


def drawn(model, given, source="noise", seed=0, held_out=None):
    """What stands in for every example: noise, or tokens."""
    tracer = tk.Tracer(
        model,
        tk.PromptPairs.from_ids(given),
        "head-outputs",
        "logit-difference",
        source=source,
        source_seed=seed,
        held_out=None if held_out is None else tk.PromptPairs.from_ids(held_out),
    )
    pairs = tracer.engine.pairs if held_out is None else tracer.question.held_out_engine.pairs
    return [
        getattr(pair.counterfactual, "ids", None) or pair.counterfactual.noise for pair in pairs
    ]


def same(one, other):
    each = zip(one, other, strict=True)
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in each)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("change", ["reversed", "rotated", "seed"])
def test_the_order_of_examples_changes_no_draw(model, source, change):
    given = rows(8, seed=1)
    before = drawn(model, given, source)
    if change == "seed":
        assert not same(drawn(model, given, source, seed=1), before)
        return
    order = list(range(len(given)))
    order = order[::-1] if change == "reversed" else order[3:] + order[:3]
    after = drawn(model, [given[n] for n in order], source)
    assert same(after, [before[n] for n in order])


@pytest.mark.parametrize("source", ["noise", tk.Noise(factor=2.0)])
def test_neighbours_change_no_noise(model, source):
    given = rows(8, seed=1)
    before = drawn(model, given, source)
    assert same(drawn(model, given[2:5], source), before[2:5])
    assert same(drawn(model, given[3:8], source, held_out=given[:3]), before[:3])


@pytest.mark.parametrize("source", SOURCES)
def test_equal_examples_have_equal_draws_and_others_have_not(model, source):
    draws = drawn(model, rows(8, seed=1), source)
    assert same(draws[1:2], draws[-1:])
    if source != "resample":
        # The last but one has the prompt of the first, and another x.
        assert len({tuple(torch.as_tensor(draw).flatten().tolist()) for draw in draws}) == 9


def test_a_prompt_more_changes_the_draws_of_those_who_take_it(model):
    given = rows(30, seed=1)
    before, after = drawn(model, given[1:], "resample"), drawn(model, given, "resample")[1:]
    new = given[0]["prompt_ids"]
    assert all(
        list(b) == list(a) or list(a) == list(new) for b, a in zip(before, after, strict=True)
    )
    # Each of 30 is taken about once: none by all.
    taken = [tuple(ids) for ids in after]
    assert len(set(taken)) >= 12
    assert max(map(taken.count, taken)) <= 6
    assert all(
        list(ids) != list(row["prompt_ids"]) for ids, row in zip(after, given[1:], strict=True)
    )


def test_noise_of_text_is_drawn_by_example(demo_model):
    texts = [
        {"prompt": prompt, "x": "he"}
        for prompt in ("the pilot said that", "the nurse", "she forgot")
    ]
    noise = tk.data.GaussianNoise(std=1.0)
    every = tk.PromptPairs.from_text(texts, demo_model, noise=noise, warn=False)
    some = tk.PromptPairs.from_text(texts[:0:-1], demo_model, noise=noise, warn=False)
    found = [pair.counterfactual.noise for pair in some]
    assert same(found, [every[2].counterfactual.noise, every[1].counterfactual.noise])
    whole = torch.cat([pair.counterfactual.noise.flatten() for pair in every])
    assert abs(whole.std() - 1) < 0.1
    assert abs(whole.mean()) < 0.1


def test_prompts_to_go_on_with_do_not_draw_from_each_other(demo_model):
    pairs = tk.load_dataset("demo-professions", demo_model)[:12]
    tracer = tk.Tracer(demo_model, pairs, "head-outputs", source="resample")
    n = len(pairs[0].prompt_ids)
    prompts = [f"the {who} said that" for who in ("pilot", "nurse", "baker", "cook")]
    prompts = [p for p in prompts if len(demo_model.tokenizer.encode(p)) == n] or [
        pair.texts["prompt"] for pair in pairs[:3]
    ]
    together = tracer.generate("all", prompts, max_new_tokens=4)
    alone = [tracer.generate("all", p, max_new_tokens=4).intervened[0] for p in prompts]
    assert list(together.intervened) == alone
