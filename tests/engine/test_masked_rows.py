"""Mean rows of attention are over the keys that a query sees: windows, chunks, sinks, caches.

The reference is the Hugging Face model with its own eager attention: what a query sees there has a
weight, and what a sink takes is the last column of its softmax.
"""

from __future__ import annotations

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.engine.test_sources import PlainPatterns
from tracekit.errors import SourceError

pytestmark = pytest.mark.lens

WINDOWS = {
    "llama": {},
    "mistral": {"sliding_window": 4},
    "gemma2": {"sliding_window": 3},
    "gpt_oss": {"sliding_window": 4},
    "gpt_neo": {"window_size": 4},
    "bloom": {},
    "cohere2": {"sliding_window": 3},
}


def rows_of(*lengths):
    return [
        {key: value for key, value in row.items() if key != "counterfactual_ids"}
        | {"prompt_ids": (6 * row["prompt_ids"])[:length]}
        for row, length in zip(tiny.rows(len(lengths), seed=3), lengths, strict=True)
    ]


ROWS, LONGER = rows_of(12, 9, 7), rows_of(17, 9)
N_KNOWN = 17
MEAN = tk.Mean(pairs=tk.PromptPairs.from_ids(LONGER))


@pytest.fixture(scope="module", params=WINDOWS)
def windowed(request):
    """An architecture, its plain model, and the same with hooks."""
    plain, hooked = (tiny.hf_model(request.param, **WINDOWS[request.param]) for _ in range(2))
    return PlainPatterns(request.param, plain), tk.load_model(hooked)


def mean_rows(plain, rows):
    """By layer, the mean row over all queries; beside the keys, what goes to a sink."""
    sums, count = {}, sum(len(row["prompt_ids"]) for row in rows)
    for row in rows:

        def add(layer, weights):
            keys, sink = weights[0].split(
                [weights.shape[-2], weights.shape[-1] - weights.shape[-2]], -1
            )
            whole = torch.cat(
                [torch.nn.functional.pad(keys, (0, N_KNOWN - keys.shape[-1])), sink], -1
            )
            sums[layer] = sums.get(layer, 0) + whole.double().sum(1)

        plain.run(row["prompt_ids"], add)
    return {layer: (value / count).float() for layer, value in sums.items()}


def replacing(means, mask, n_prompt):
    """All queries before `n_prompt` take the mean row over what they see, by the mask."""

    def change(layer, weights):
        keys, sink = means[layer][:, : weights.shape[-2]], means[layer][:, N_KNOWN:]
        rows = torch.cat([keys, sink], -1)[:, None] * (weights[0] > 0)
        rows = rows / rows.sum(-1, keepdim=True)
        weights = weights.clone()
        share = mask[layer][:, None, None]
        weights[0, :, :n_prompt] = ((1 - share) * weights[0] + share * rows)[:, :n_prompt]
        return weights

    return change


@pytest.mark.pairwise
@pytest.mark.parametrize("positions", ["prompt", "last", "all"])
@pytest.mark.parametrize("plainly", [False, True])
def test_means_are_over_the_keys_that_a_query_sees(windowed, positions, plainly):
    plain, model = windowed
    tracer = tk.Tracer(
        model,
        tk.PromptPairs.from_ids(ROWS),
        "attention-patterns",
        "logit-difference",
        source=MEAN,
        positions=positions,
        capabilities=tk.Capabilities.none() if plainly else None,
    )
    mask = torch.rand(tracer.registry.grid_shape, generator=torch.Generator().manual_seed(7))
    means, expected = mean_rows(plain, LONGER), []
    for row in ROWS:
        n = len(row["prompt_ids"])
        change = replacing(means, mask, {"prompt": n, "all": None, "last": n}[positions])

        def last_only(layer, weights, change=change, n=n):
            changed = weights.clone()
            changed[:, :, n - 1] = change(layer, weights)[:, :, n - 1]
            return changed

        changes = (last_only if positions == "last" else change, lambda layer, weights: None)
        (y, y_clean), (x, x_clean) = (
            [plain.score(row["prompt_ids"], row[key], each) for each in changes]
            for key in ("y_ids", "x_ids")
        )
        expected.append((y - x) - (y_clean - x_clean))
    found = tracer.evaluate(mask, per_example=True)
    assert torch.stack(expected).abs().max() > 1e-2
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-3, atol=1e-4)


def test_where_no_seen_key_has_a_mean_it_is_refused():
    model = tk.load_model(tiny.hf_model("mistral", sliding_window=3))
    short = tk.Mean(pairs=tk.PromptPairs.from_ids(rows_of(7)))
    with pytest.raises(SourceError, match="over 7 keys, and a query of this text of 12 tokens"):
        tk.Tracer(model, tk.PromptPairs.from_ids(ROWS), "attention-patterns", source=short)


def test_where_scores_do_not_say_what_is_seen_it_is_refused():
    model = tk.load_model(tiny.hf_model("llama"))
    # Keys that are masked have weight 0, and a score that others could have.
    model.add_hook("blocks.0.attn.hook_attn_scores", lambda scores, hook: scores.clamp(min=-1e4))
    with pytest.raises(SourceError, match="blocks.0.attn.hook_attn_scores does not say which"):
        tk.Tracer(model, MEAN.pairs, "attention-patterns", source="mean")
