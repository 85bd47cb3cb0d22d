"""Agreement with what the published implementation printed on small rebuilt models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tracekit as tk
from tests import oracle
from tests.conftest import SHARED
from tracekit.engine.effects import masked_log_probs
from tracekit.metrics import Metric

pytestmark = pytest.mark.lens

FILES = [
    "gpt2_101/heads_winobias",
    "gpt2_101/heads_winogender",
    "gpt2_101/neurons_factual",
    "gpt2_101/neurons_professions",
    "gpt2_202/heads_winobias",
    "gpt2_202/heads_winogender",
    "gpt2_202/neurons_factual",
    "gpt2_202/neurons_professions",
    "gqa_303/heads_winobias_llama",
    "gqa_303/heads_winobias_qwen3",
    "gqa_303/neurons_professions_llama",
    "gqa_303/neurons_professions_qwen3",
]


def sampled(names):
    """The names as parameters: those of the second random model are slow tests."""
    return [
        pytest.param(name, marks=pytest.mark.slow if "gpt2_202" in name else ()) for name in names
    ]


def load(shared, name, wrap=tk.load_model):
    record = oracle.read(shared / "oracle" / f"{name}.json")
    return record, wrap(oracle.hf_model(record["model"], shared / "oracle" / "recipe.py"))


def tracer_of(record, name, model):
    return tk.Tracer(
        model,
        tk.PromptPairs.from_ids(record["examples"]),
        components="attention-patterns" if "heads" in name else "mlp-outputs",
        metric="probability-ratio" if "factual" in name else "odds-ratio",
    )


def assert_cases_agree(record, tracer):
    assert len(record["cases"]) >= 6
    for case in record["cases"]:
        mask = torch.tensor(case["values"]).flatten()
        effects = tracer.evaluate(mask, per_example=True)
        # An effect comes from four log-probabilities near -11, each known to 1e-6 in float32.
        expected = torch.tensor(case["per_example"])
        torch.testing.assert_close(effects, expected, rtol=1e-3, atol=5e-6, msg=case["mask"])
        assert effects.mean().item() == pytest.approx(case["metric"], rel=1e-3, abs=5e-6)


# ---- the published code on the embedded model: recorded in this repository -------------------

DEMO_RECORDS = Path(__file__).parent / "oracle" / "demo"


def demo_tracer(record, components, metric):
    return tk.Tracer(
        "demo", tk.PromptPairs.from_ids(record["examples"]), components=components, metric=metric
    )


def test_the_embedded_model_on_bias_agrees_with_the_published_code():
    record = oracle.read(DEMO_RECORDS / "demo_bias.json")
    tracer = demo_tracer(record, "attention-patterns", "odds-ratio")
    assert_cases_agree(record, tracer)
    singles = tracer.engine.set_effects([[i] for i in range(len(tracer.registry))]).mean(1)
    expected = torch.tensor(record["single_component"]).flatten()
    torch.testing.assert_close(singles, expected, rtol=1e-3, atol=5e-6)


def test_the_embedded_model_on_facts_agrees_with_the_published_code():
    """Ratios of probabilities span orders of magnitude, so logarithms are compared."""
    record = oracle.read(DEMO_RECORDS / "demo_facts.json")
    tracer = demo_tracer(record, "mlp-outputs", "probability-ratio")
    assert len(record["cases"]) >= 6
    for case in record["cases"]:
        effects = tracer.evaluate(torch.tensor(case["values"]).flatten(), per_example=True)
        expected = torch.tensor(case["per_example"], dtype=torch.float64)
        torch.testing.assert_close(
            effects.double().log1p(), expected.log1p(), rtol=1e-3, atol=1e-4, msg=case["mask"]
        )


# ---- on rebuilt models: recorded beside the checkout ------------------------------------------


@pytest.mark.parametrize("name", sampled(FILES))
def test_effects_of_masks(shared, name):
    record, model = load(shared, name)
    assert_cases_agree(record, tracer_of(record, name, model))


@pytest.mark.parametrize("name", sampled(n for n in FILES if "gpt2" in n and "heads" in n))
def test_effect_of_every_single_head(shared, name):
    record, model = load(shared, name)
    tracer = tracer_of(record, name, model)
    result = tracer.run("top-k", budget=1)
    expected = torch.tensor(record["single_component"]).flatten()
    torch.testing.assert_close(result.component_scores, expected, rtol=1e-3, atol=5e-6)
    assert result.binary_mask.nonzero().item() == expected.argmax().item()


def test_heads_and_blocks_at_the_last_token(shared):
    record, model = load(shared, "vbd_404")
    rows = [
        {**example, "x_ids": [example["token_b"]], "y_ids": [example["token_a"]]}
        for example in record["examples"]
    ]
    # The record holds the difference itself, not its change.
    difference = Metric("difference", lambda clean, intervened: intervened.y - intervened.x)
    registry = tk.components.ComponentRegistry.build(model.cfg, "head-outputs+mlp-blocks")
    pairs = tk.PromptPairs.from_ids(rows)
    tracer = tk.Tracer(model, pairs, registry, "logit-difference", positions="last")
    clean = torch.tensor(record["cases"][0]["last_token_logit_difference"])
    for case in record["cases"]:
        mask = torch.cat([torch.tensor(case["heads"]).flatten(), torch.tensor(case["mlp_blocks"])])
        expected = torch.tensor(case["last_token_logit_difference"])
        scores = masked_log_probs(tracer.engine, mask)
        torch.testing.assert_close(
            difference.function(scores, scores), expected, rtol=1e-3, atol=1e-4
        )
        effects = tracer.evaluate(mask, per_example=True)
        torch.testing.assert_close(effects, expected - clean, rtol=1e-3, atol=2e-4)


def evaluated(capsys, monkeypatch, folder, record, rows, masks, *options):
    """Effects of masks on every example, from `tracekit evaluate` on files."""
    import json
    import sys

    import pandas as pd

    from tracekit import cli

    oracle.hf_model(record["model"], RECIPE).save_pretrained(folder / "model")
    (folder / "pairs.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "masks.json").write_text(json.dumps(masks))
    files = {"model": "model", "dataset": "pairs.jsonl", "mask": "masks.json"}
    given = [part for key, name in files.items() for part in (f"--{key}", str(folder / name))]
    output = folder / "effects.csv"
    arguments = ["tracekit", "evaluate", *given, *options, "--output", str(output)]
    monkeypatch.setattr(sys, "argv", arguments)
    cli.main()
    capsys.readouterr()
    frame = pd.read_csv(output)
    effects = [part["effect"].tolist() for _, part in frame.groupby("mask", sort=False)]
    return torch.tensor(effects, dtype=torch.float32)


RECIPE = SHARED / "oracle" / "recipe.py"
KEYS = ("prompt_ids", "counterfactual_ids", "x_ids", "y_ids", "noise")


@pytest.mark.parametrize("name", sampled(FILES))
def test_effects_of_masks_from_the_command_line(shared, name, tmp_path, capsys, monkeypatch):
    record = oracle.read(shared / "oracle" / f"{name}.json")
    rows = [{key: row[key] for key in KEYS if row.get(key)} for row in record["examples"]]
    masks = [torch.tensor(case["values"]).flatten().tolist() for case in record["cases"]]
    effects = evaluated(
        *(capsys, monkeypatch, tmp_path, record, rows, masks),
        *("--components", "attention-patterns" if "heads" in name else "mlp-outputs"),
        *("--metric", "probability-ratio" if "factual" in name else "odds-ratio"),
    )
    expected = torch.tensor([case["per_example"] for case in record["cases"]])
    torch.testing.assert_close(effects, expected, rtol=1e-3, atol=5e-6)


def test_variable_binding_from_the_command_line(shared, tmp_path, capsys, monkeypatch):
    record = oracle.read(shared / "oracle" / "vbd_404.json")
    rows = [
        {
            "prompt_ids": row["prompt_ids"],
            "counterfactual_ids": row["counterfactual_ids"],
            "x_ids": [row["token_b"]],
            "y_ids": [row["token_a"]],
        }
        for row in record["examples"]
    ]
    masks = [
        [*torch.tensor(case["heads"]).flatten().tolist(), *case["mlp_blocks"]]
        for case in record["cases"]
    ]
    effects = evaluated(
        *(capsys, monkeypatch, tmp_path, record, rows, masks),
        *("--components", "head-outputs+mlp-blocks", "--metric", "logit-difference"),
        *("--positions", "last"),
    )
    found = torch.tensor([case["last_token_logit_difference"] for case in record["cases"]])
    torch.testing.assert_close(effects, found - found[:1], rtol=1e-3, atol=2e-4)


def trajectory_options(record):
    given = record["hyperparameters"]
    return {
        "lambda1": given["lambda1"],
        "lambda2": given["lambda2"],
        "learning_rate": given["lr"],
        "epochs": len(record["mask_after_epoch"]),
        "reward": "per-example",
        "inclusive": True,
        "example_order": record["example_order_per_epoch"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "components"),
    [("heads_winobias", "attention-patterns"), ("neurons_professions", "mlp-outputs")],
)
@pytest.mark.parametrize(
    "every_epoch", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["some", "every"]
)
def test_training_trajectory(shared, gpt2_tokenizer, name, components, every_epoch):
    """Masks after some epochs or after every one; each takes a run of its own from the start."""
    record = oracle.read(shared / "oracle" / f"trajectory_{name}_101.json")
    hf = oracle.hf_model(record["model"], shared / "oracle" / "recipe.py")
    model = tk.load_model(hf, tokenizer=gpt2_tokenizer)
    dataset = name.split("_")[1]
    pairs = tk.load_dataset(dataset, model, data_dir=shared / "data" / dataset)
    tracer = tk.Tracer(model, pairs, components=components)
    n_epochs = len(record["mask_after_epoch"])
    for epochs in range(1, n_epochs + 1) if every_epoch else (1, n_epochs):
        result = tracer.run(**{**trajectory_options(record), "epochs": epochs})
        expected = torch.tensor(record["mask_after_epoch"][epochs - 1]).flatten()
        torch.testing.assert_close(result.soft_mask, expected, rtol=0, atol=1e-3)
        assert torch.equal(result.binary_mask, expected >= 0.5)
        assert result.n_selected == record["selected_after_epoch"][epochs - 1]
        assert result.effect == pytest.approx(record["metric_after_epoch"][epochs - 1], rel=1e-3)
    assert [line["n_selected"] for line in result.history] == record["selected_after_epoch"]


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name in FILES if "gpt2" in name])
def test_effects_on_hooked_transformer(shared, name):
    record, model = load(shared, name, wrap=hooked_transformer)
    assert type(model).__name__ == "HookedTransformer"
    assert_cases_agree(record, tracer_of(record, name, model))


def hooked_transformer(hf):
    """The same weights in TransformerLens' own class, which 4.x no longer has."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights

    given = hf.config
    cfg = HookedTransformerConfig(
        n_layers=given.n_layer,
        d_model=given.n_embd,
        n_ctx=given.n_positions,
        d_head=given.n_embd // given.n_head,
        n_heads=given.n_head,
        d_vocab=given.vocab_size,
        act_fn="gelu_new",
        eps=given.layer_norm_epsilon,
        normalization_type="LN",
        model_name="rebuilt",
        default_prepend_bos=False,
        device="cpu",
    )
    model = HookedTransformer(cfg)
    model.load_state_dict(convert_gpt2_weights(hf, cfg), strict=False)
    return model
