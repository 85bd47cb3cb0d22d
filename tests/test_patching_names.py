"""docs/from-transformer-lens.md: each row of its table gives the numbers of TransformerLens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformer_lens import patching

import tracekit as tk

PAGE = Path(__file__).parent.parent / "docs/from-transformer-lens.md"
NAMES = {
    "attn_head_out_all_pos": ("head-outputs", None),
    "attn_head_pattern_all_pos": ("attention-patterns", None),
    "attn_head_q_all_pos": ("queries", None),
    "attn_head_k_all_pos": ("keys", None),
    "attn_head_v_all_pos": ("values", None),
    "mlp_out": ("mlp-blocks", "position"),
    "attn_out": ("attention-blocks", "position"),
    "resid_pre": ("residual-before", "position"),
    "resid_mid": ("residual-between", "position"),
}
"""Function of TransformerLens -> kind and `by`."""


@pytest.fixture(scope="module")
def pairs(model) -> tk.PromptPairs:
    prompt = "the {} waited for the {} while {}"
    return tk.PromptPairs.from_text(
        [
            {
                "prompt": prompt.format(first, second, "she"),
                "counterfactual": prompt.format(first, second, "he"),
                "x": x,
                "y": y,
            }
            for first, second, x, y in (
                ("mechanic", "maid", " ironed", " was"),
                ("weaver", "roofer", " threaded", " needed"),
            )
        ],
        model,
    )


@pytest.fixture(scope="module")
def model():
    return tk.load_model("demo")


@pytest.mark.parametrize(
    ("name", "kind", "by"),
    [pytest.param(name, *kind_and_by, id=name) for name, kind_and_by in NAMES.items()],
)
def test_the_kind_gives_the_numbers_of_the_function(model, pairs, name, kind, by):
    clean = torch.tensor([pair.prompt_ids for pair in pairs])
    corrupted = torch.tensor([pair.counterfactual.ids for pair in pairs])
    x, y = (torch.tensor([getattr(pair, f"{each}_ids")[0] for pair in pairs]) for each in "xy")
    rows = torch.arange(len(pairs))

    def metric(logits):
        return (logits[rows, -1, y] - logits[rows, -1, x]).mean()

    layers = [0, 2]  # Of four: the numbers of layers and heads differ.
    _, cache = model.run_with_cache(corrupted)
    patch = getattr(patching, f"get_act_patch_{name}")
    with torch.no_grad():
        by_hand = patch(model, clean, cache, metric) - metric(model(clean))
    tracer = tk.Tracer(model, pairs, kind, "logit-difference", split_by=by, layers=layers)
    effects = tracer.run("top-k", budget=1).component_scores
    assert effects.numel() == by_hand[layers].numel()
    torch.testing.assert_close(effects, by_hand[layers].flatten(), atol=1e-5, rtol=1e-4)
    assert by_hand[layers].abs().max() > 1e-3


def test_the_page_names_these_functions_and_kinds():
    text = PAGE.read_text()
    rows = [row for row in text.splitlines() if row.startswith("| `get_act_patch")]
    named = set()
    for row in rows:
        left, right = row.strip("| ").split(" | ")
        functions = re.findall(r"`(?:get_act_patch_)?(\w+)`", left)
        kinds = re.findall(r'"([\w-]+)"', right.replace('split_by="position"', ""))
        full = [f if f in NAMES else f"attn_head_{f}_all_pos" for f in functions]
        assert [NAMES[f][0] for f in full] == kinds, row
        assert {NAMES[f][1] for f in full} == {"position" if "split_by=" in right else None}, row
        named |= set(full)
    assert named == set(NAMES)
