"""Exported models: plain checkpoints that behave as the intervention, or none at all."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tracekit as tk
from tests import tiny
from tests.models.test_as_given import IDS, TRACED
from tracekit.demo import MODEL_DIR
from tracekit.errors import (
    ConfigError,
    MaskError,
    ModelWarning,
    OutputError,
    UnsupportedModelError,
)
from tracekit.models.tokenizers import tokenizer_differences
from tracekit.tracer import exporting

KINDS = ("head-outputs", "mlp-outputs", "mlp-neurons", "mlp-blocks", "attention-blocks")


TOKENIZER_CHANGES = {
    "added token": lambda tokenizer: tokenizer.add_tokens(["<x>"]),
    "template": lambda tokenizer: setattr(tokenizer, "chat_template", "{{ messages }}"),
}


def traced(model, kind="head-outputs", source="zero", **options):
    options = {"metric": "logit-difference", "positions": "all", **options}
    return tk.Tracer(model, tiny.pairs(6), kind, source=source, **options)


def half_of(tracer):
    """Every other component."""
    return (torch.arange(len(tracer.registry)) % 2 == 0).float()


def has_no_bias(any_model, kind, source):
    """Whether means would need a bias that the MLP of an architecture has no setting for."""
    return any_model == "qwen3" and "mlp" in kind and source == "mean"


class TestTheSameEffect:
    @pytest.mark.parametrize("source", ["zero", "mean"])
    @pytest.mark.parametrize("kind", [*KINDS, "head-outputs+mlp-neurons+mlp-outputs+mlp-blocks"])
    @pytest.mark.pairwise(without=has_no_bias)
    def test_of_every_kind(self, any_model, tmp_path, kind, source):
        """GPT-2 has biases; Llama and Qwen3 get them by their configuration."""
        tracer = traced(any_model, kind, source)
        if has_no_bias(any_model.original_model.config.model_type, kind, source):
            pytest.skip("Its MLP has no setting for a bias")
        export = tracer.export(half_of(tracer), tmp_path / "edited")
        assert export.effects.abs().max() > 1e-3
        torch.testing.assert_close(export.effects, export.written_effects, rtol=0, atol=1e-5)
        torch.testing.assert_close(
            export.effects, tracer.evaluate(half_of(tracer), per_example=True)
        )

    def test_own_tensors_and_layer_windows(self, model, tmp_path):
        zero = traced(model)
        shape = (tiny.N_HEADS, tiny.D_MODEL // tiny.N_HEADS)
        tensors = {name: torch.full(shape, 0.5) for name in zero.registry.hook_names}
        tracer = traced(model, source=tensors, layer_window=2)
        assert tracer.export(half_of(tracer), tmp_path / "edited").largest_difference < 1e-5

    def test_the_model_in_memory_stays_as_it_was(self, model, tmp_path):
        before = tk.models.weights_digest(model)
        tracer = traced(model)
        tracer.export(half_of(tracer), tmp_path / "edited")
        assert tk.models.weights_digest(model) == before

    def test_plain_transformers_reads_it(self, demo_model, tmp_path):
        pairs = tk.load_dataset("demo-professions", demo_model)[:12]
        train, test = pairs.split(0.5)
        tracer = tk.Tracer(demo_model, train, "head-outputs", source="zero", held_out=test)
        result = tracer.run("attribution", budget=4)
        folder = tmp_path / "deep" / "edited"
        export = tracer.export(result, folder)
        plain = AutoModelForCausalLM.from_pretrained(folder)
        assert not plain.config.output_attentions
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.encode("the nurse") == demo_model.tokenizer.encode("the nurse")
        # One of the heads, by hand.
        first = result.components[0]
        columns = slice(16 * first.index, 16 * first.index + 16)
        weight = plain.transformer.h[first.layer].attn.c_proj.weight
        assert not weight[columns].any()
        torch.testing.assert_close(
            export.held_out_effects, result.held_out.effects, rtol=0, atol=1e-5
        )
        card = (folder / "README.md").read_text()
        for text in (
            *result.labels,
            "odds-ratio on 6",
            "On 6 held-out examples",
            "seed 0",
            "torch",
        ):
            assert text in card
        assert tk.TraceResult.load(folder / "trace").labels == result.labels

    @pytest.mark.slow
    @pytest.mark.parametrize("way", ["given to load_model", "set on the model", "changed in place"])
    @pytest.mark.parametrize("change", TOKENIZER_CHANGES)
    def test_the_tokenizer_is_that_of_the_model(self, tmp_path, way, change):
        changed = AutoTokenizer.from_pretrained(MODEL_DIR)
        if way == "given to load_model":
            TOKENIZER_CHANGES[change](changed)
            model = tk.load_model("demo", tokenizer=changed)
        elif way == "set on the model":
            TOKENIZER_CHANGES[change](changed)
            model = tk.load_model("demo")
            model.tokenizer = changed
        else:
            model = tk.load_model("demo")
            TOKENIZER_CHANGES[change](model.tokenizer)
        tracer = tk.Tracer(
            model, tk.load_dataset("demo-professions", model)[:4], "head-outputs", source="zero"
        )
        export = tracer.export(["L0H0"], tmp_path / "edited")
        written = AutoTokenizer.from_pretrained(tmp_path / "edited")
        text = "the nurse <x> said"
        ids = model.tokenizer.encode(text, add_special_tokens=False)
        assert written.encode(text) == ids
        assert written.chat_template == model.tokenizer.chat_template
        assert f"{len(written):,} tokens" in export.tokenizer
        assert export.tokenizer in (tmp_path / "edited" / "README.md").read_text()
        plain = AutoTokenizer.from_pretrained(MODEL_DIR)
        assert tokenizer_differences(plain, written) != []

    def test_a_tokenizer_that_is_read_otherwise_is_warned_of(
        self, demo_model, tmp_path, monkeypatch
    ):
        tracer = tk.Tracer(
            demo_model,
            tk.load_dataset("demo-professions", demo_model)[:4],
            "head-outputs",
            source="zero",
        )
        tokenizer_copy = exporting.copy_as_given(demo_model.tokenizer)
        monkeypatch.setattr(exporting, "copy_as_given", lambda tokenizer: tokenizer_copy)
        monkeypatch.setattr(tokenizer_copy, "encode", lambda text: [1])
        with pytest.warns(ModelWarning, match="is read with ids of a text other than those of the"):
            tracer.export(["L0H0"], tmp_path / "edited")

    def test_side_effects_stand_in_the_card(self, demo_model, tmp_path):
        pairs = tk.load_dataset("demo-professions", demo_model)[:6]
        tracer = tk.Tracer(demo_model, pairs, "head-outputs", source="zero")
        side = tracer.side_effects(
            ["L0H0", "L2H3"], {"bias": tk.load_dataset("demo-bias", demo_model)[:4]}, draws=0
        )
        tracer.export(["L0H0", "L2H3"], tmp_path / "edited", side_effects=side)
        assert str(side) in (tmp_path / "edited" / "README.md").read_text()


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (
                {"kind": "attention-patterns"},
                "attention-patterns .* no inputs or outputs of a proj",
            ),
            ({"kind": "residual"}, "Exact would be head-outputs, mlp-outputs, mlp-neurons"),
            (
                {"source": "counterfactual"},
                "The source 'counterfactual' has other values for every",
            ),
            ({"source": "resample"}, "Exact would be source='zero' or 'mean'"),
            ({"positions": "last"}, "positions='last' leaves some tokens as they are"),
            ({"positions": "prompt"}, "or 'prompt' with x and y of one token"),
            ({"direction": "denoising", "source": "counterfactual"}, "Exact would be direction='n"),
        ],
    )
    def test_what_is_not_exact(self, model, tmp_path, options, text):
        pairs = tk.PromptPairs.from_ids(
            [
                {**row, "prompt_ids": row["prompt_ids"][:3], "counterfactual_ids": [1, 2, 3]}
                for row in tiny.rows(4)
            ]
        )
        kind = options.pop("kind", "head-outputs")
        tracer = tk.Tracer(model, pairs, kind, **{"source": "zero", "positions": "all", **options})
        with pytest.raises(ConfigError, match=text):
            tracer.export(half_of(tracer), tmp_path / "edited")
        assert not (tmp_path / "edited").exists()

    def test_spans_and_soft_masks(self, model, tmp_path):
        rows = [{**row, "spans": {"first": [0, 1]}} for row in tiny.rows(4, longest=1)]
        pairs = tk.PromptPairs.from_ids(rows)
        tracer = tk.Tracer(model, pairs, "head-outputs", source="zero", split_by="span")
        with pytest.raises(ConfigError, match="Spans act at some tokens only.* without split_by"):
            tracer.export(half_of(tracer), tmp_path / "edited")
        tracer = traced(model)
        with pytest.raises(MaskError, match="A set of components is needed here"):
            tracer.export(half_of(tracer) / 2, tmp_path / "edited")

    @pytest.mark.slow
    def test_a_model_without_room_for_a_bias(self, tmp_path):
        tracer = traced(tk.load_model(tiny.hf_model("mistral")), source="mean")
        text = r"bias at model\.layers\.0\.self_attn\.o_proj\.bias.*MistralForCausalLM has none"
        with pytest.raises(ConfigError, match=text):
            tracer.export(half_of(tracer), tmp_path / "edited")
        zero = traced(tracer.model)
        assert zero.export(half_of(zero), tmp_path / "edited").largest_difference < 1e-5

    def test_a_mixture_of_experts(self, tmp_path):
        tracer = traced(tk.load_model(tiny.hf_model("mixtral")), "mlp-blocks")
        with pytest.raises(UnsupportedModelError, match="no single projection behind hook_mlp_out"):
            tracer.export(half_of(tracer), tmp_path / "edited")

    @pytest.mark.slow
    def test_a_norm_behind_the_projection(self, tmp_path):
        """Its output is normed before it is added, so that a mean there is no bias."""
        tracer = traced(tk.load_model(tiny.hf_model("gemma2")), "attention-blocks", "mean")
        with pytest.raises((UnsupportedModelError, ConfigError)):
            tracer.export(half_of(tracer), tmp_path / "edited")
        assert not list(tmp_path.iterdir())

    def test_another_effect_leaves_nothing(self, model, tmp_path, monkeypatch):
        monkeypatch.setattr(exporting, "_effects_of", lambda written, engine: torch.ones(6))
        tracer = traced(model)
        with pytest.raises(UnsupportedModelError, match="The written model has another effect"):
            tracer.export(half_of(tracer), tmp_path / "edited")
        assert not list(tmp_path.iterdir())

    def test_a_folder_in_use(self, model, tmp_path):
        (tmp_path / "file").touch()
        tracer = traced(model)
        with pytest.raises(OutputError, match="is not empty. Give a new folder."):
            tracer.export(half_of(tracer), tmp_path)


@pytest.mark.soak
@pytest.mark.real
def test_heads_of_the_real_model(real_model, tmp_path):
    pairs = tk.load_dataset("gendered-pronouns", real_model)[:12]
    for source in ("zero", "mean"):
        tracer = tk.Tracer(
            real_model, pairs, "head-outputs", "logit-difference", source=source, positions="all"
        )
        chosen = [tk.Component("head-outputs", *head) for head in ((25, 1), (25, 2), (26, 2))]
        export = tracer.export(chosen, tmp_path / source)
        assert export.effects.mean() > 2
        # Rounding of float32 through 30 layers; it differs between processors.
        assert export.largest_difference < 1e-5 * export.effects.abs().max()


CHANGED = [
    name
    for name in TRACED
    if name.startswith(("pruned", "norms_doubled", "old_norms", "spectral_norm", "low_rank model"))
]
"""Models whose weights are computed from others."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*CHANGED, "off", "lm_head", "second of two", "compiled", "all layers"]
)
def test_the_written_model_is_the_given_one_without_a_head(name, tmp_path):
    hf_model = TRACED[name]()
    tracer = traced(tk.load_model(hf_model), positions="all")
    tracer.export(["L1H2"], tmp_path / "edited")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "edited")
    _, out = next(
        (path, module)
        for path, module in hf_model.named_modules()
        if path.endswith("layers.1.self_attn.o_proj")
    )

    def without_head(module, args):
        heads = args[0].clone()
        heads[..., 12:18] = 0
        return (heads,)

    out.register_forward_pre_hook(without_head)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = hf_model(IDS).logits
        torch.testing.assert_close(written(IDS).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lm_head, tied", "lm_head is a peft.tuners.*Linear. .*adapters: by merge_and_unload"),
        ("of transformers, on", "layers.0.self_attn.q_proj is a peft.tuners"),
        ("hook at model.layers.1.mlp", "hooks were left at model.layers.1.mlp. A checkpoint"),
        ("hook at ", "hooks were left at the model. A checkpoint"),
        ("own MLP", "model.layers.1.mlp is a tests.models.test_as_given.ReluMLP"),
        ("own projection", "model.layers.1.self_attn.o_proj is a .*Larger"),
        ("forward of model.layers.1.mlp, False", "the forward of model.layers.1.mlp was replaced"),
        ("forward of model.layers.1, True", "the forward of model.layers.1 was replaced"),
        ("no final norm", "model.norm is a torch.nn.modules.linear.Identity"),
        ("low_rank lm_head, tied", "as weights that it ties are not the same"),
    ],
)
def test_what_weights_alone_do_not_compute_is_refused_by_name(name, reason, tmp_path):
    tracer = traced(tk.load_model(TRACED[name]()))
    with pytest.raises(UnsupportedModelError, match=f"A plain LlamaForCausalLM with .*{reason}"):
        tracer.export(["L1H2"], tmp_path / "edited")
    assert not (tmp_path / "edited").exists()
