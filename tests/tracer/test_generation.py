"""Generating and steering: the intervention that is measured, with a cache of keys and values."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

import tracekit as tk
from tracekit.errors import ConfigError
from tracekit.results import Generations

PROMPTS = ["the nurse said that", "the old mechanic waited for the maid while"]
CHANGED = ["the pilot said that", "the old mechanic waited for the baker while"]
SET = ["L0H1", "L1H5", "L2H0", "L3H2"]


@pytest.fixture(scope="module")
def pairs(demo_model):
    return tk.load_dataset("demo-professions", demo_model)[:12]


def traced(model, pairs, kind="head-outputs", **options):
    return tk.Tracer(model, pairs, kind, **{"source": "mean", "positions": "all", **options})


def continued(model, prompt, n=8, hooks=lambda length: []):
    """Greedy, without a cache: every step runs the whole text anew, with hooks."""
    ids = torch.tensor([model.tokenizer.encode(prompt, add_special_tokens=False)])
    start = ids.shape[1]
    for _ in range(n):
        logits = model.run_with_hooks(ids, fwd_hooks=hooks(start))
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
        if ids[0, -1] == model.tokenizer.eos_token_id:
            break
    return model.tokenizer.decode(ids[0, start:], skip_special_tokens=True)


class TestGenerate:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "kind", ["head-outputs", "attention-patterns", "mlp-blocks", "residual-between"]
    )
    def test_constants_act_on_new_tokens_too(self, demo_model, pairs, kind):
        tracer = traced(demo_model, pairs, kind, source="zero")
        members = [0.0 if n % 3 else 1.0 for n in range(len(tracer.registry))]
        table = tracer.generate(members, PROMPTS, max_new_tokens=8).table
        with tracer.steer(members) as model:
            expected = [continued(model, prompt) for prompt in PROMPTS]
        assert table["intervened"].tolist() == expected
        clean = [continued(demo_model, prompt) for prompt in PROMPTS]
        assert table["clean"].tolist() == clean != expected
        assert table["prompt"].tolist() == PROMPTS

    def test_a_prompt_as_its_own_counterfactual_changes_nothing_and_says_so(
        self, demo_model, pairs
    ):
        tracer = tk.Tracer(demo_model, pairs, "head-outputs")
        with pytest.warns(tk.errors.DataWarning, match="1 of 2 .* counterfactual that equals the"):
            written = tracer.generate(SET, PROMPTS, [PROMPTS[0], CHANGED[1]], max_new_tokens=4)
        assert written.clean[0] == written.intervened[0]

    def test_an_exported_model_writes_the_same(self, demo_model, pairs, tmp_path):
        tracer = traced(demo_model, pairs)
        tracer.export(SET, tmp_path / "edited")
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "edited")
        table = tracer.generate(SET, PROMPTS, max_new_tokens=8).table
        for prompt, text in zip(PROMPTS, table["intervened"], strict=True):
            ids = torch.tensor([demo_model.tokenizer.encode(prompt)])
            whole = plain.generate(ids, max_new_tokens=8, do_sample=False)
            new = whole[0, ids.shape[1] :]
            assert demo_model.tokenizer.decode(new, skip_special_tokens=True) == text

    @pytest.mark.parametrize("kind", ["head-outputs", "attention-patterns"])
    def test_counterfactual_prompts_act_in_the_prompt(self, demo_model, pairs, kind):
        tracer = traced(demo_model, pairs, kind, source="counterfactual", positions="prompt")
        table = tracer.generate("all", PROMPTS, CHANGED, max_new_tokens=8).table
        rows = [
            {"prompt": prompt, "counterfactual": changed, "x": " she"}
            for prompt, changed in zip(PROMPTS, CHANGED, strict=True)
        ]
        own = tk.PromptPairs.from_text(rows, demo_model)
        data = tk.Tracer(
            demo_model, own, kind, "probability-drop", capabilities=tk.Capabilities.none()
        ).engine
        for number, text in enumerate(table["intervened"]):
            (batch,) = data.batches_of(torch.tensor([number]))
            source = data.counterfactual_cache.activations_for(batch)
            hooks = data.hooks(batch, source, torch.ones(data.n_components))
            assert text == continued(demo_model, PROMPTS[number], hooks=lambda _, h=hooks: h)

    def test_strength_zero_is_the_model_itself(self, demo_model, pairs):
        tracer = traced(demo_model, pairs)
        table = tracer.generate("all", PROMPTS[0], strength=0).table
        assert table["clean"].tolist() == table["intervened"].tolist()

    @pytest.mark.parametrize("source", ["noise", "resample"])
    def test_sources_that_draw(self, demo_model, pairs, source):
        tracer = traced(demo_model, pairs, source=source, positions="prompt")
        same = {len(pair.prompt_ids) for pair in pairs}
        prompts = [p for p in PROMPTS if len(demo_model.tokenizer.encode(p)) in same][:1]
        table = tracer.generate("all", prompts or [pairs[0].texts["prompt"]]).table
        assert table["clean"][0] != table["intervened"][0]

    def test_samples_depend_on_the_seed(self, demo_model, pairs):
        tracer = traced(demo_model, pairs)
        options = {"temperature": 2.0, "max_new_tokens": 8}
        torch.manual_seed(1)
        state = torch.random.get_rng_state()
        first, again, other = (
            tracer.generate(SET, PROMPTS[0], seed=seed, **options).table["clean"][0]
            for seed in (1, 1, 2)
        )
        assert first == again != other
        assert torch.equal(torch.random.get_rng_state(), state)

    def test_they_are_shown(self, demo_model, pairs):
        generations = traced(demo_model, pairs).generate(SET, PROMPTS[0])
        text = generations.table["intervened"][0]
        assert f"intervened: {text!r}" in str(generations) == repr(generations)
        assert text in generations._repr_html_()

    def test_they_are_saved_and_read(self, demo_model, pairs, tmp_path):
        tracer = traced(demo_model, pairs, source="counterfactual", positions="prompt")
        options = {"strength": 0.5, "temperature": 1.0, "seed": 3, "max_new_tokens": 4}
        written = tracer.generate(SET, PROMPTS, CHANGED, **options)
        loaded = Generations.load(written.save(tmp_path))
        assert loaded.table.equals(written.table)
        assert loaded.table["counterfactual"].tolist() == CHANGED
        assert (loaded.labels, loaded.how) == (SET, written.how)
        assert loaded.how == (
            "Intervention: counterfactual patching, pairs of demo-professions, strength 0.5; at "
            "most 4 tokens, sampled at temperature 1, seed 3."
        )

    def test_the_empty_set_is_saved_and_read_too(self, demo_model, pairs, tmp_path):
        written = traced(demo_model, pairs).generate([], PROMPTS)
        assert Generations.load(written.save(tmp_path)).table.equals(written.table)
        page = tk.report(written, tmp_path / "page.html").read_text()
        assert "What the model writes with nothing replaced" in page

    def test_errors(self, demo_model, pairs):
        tracer = traced(demo_model, pairs, source="counterfactual", positions="prompt")
        for options in ({}, {"counterfactuals": CHANGED}):
            with pytest.raises(ConfigError, match="1 prompts and . counterfactuals. With source"):
                tracer.generate(SET, PROMPTS[0], **options)
        with pytest.raises(ConfigError, match="2 prompts and 2 counterfactuals.* with other"):
            traced(demo_model, pairs).generate(SET, PROMPTS, counterfactuals=CHANGED)
        with pytest.raises(ConfigError, match="max_new_tokens is 0 and the temperature 0.0. Give"):
            traced(demo_model, pairs).generate(SET, PROMPTS, max_new_tokens=0)


class TestSteer:
    @pytest.mark.slow
    def test_it_is_the_measured_effect(self, demo_model, pairs):
        tracer = traced(demo_model, pairs, metric="logit-difference")
        result = tracer.run("attribution", budget=3)
        expected = tracer.evaluate(result, per_example=True)
        clean, changed = [], []
        for into, strength in ((clean, 0.0), (changed, 1.0)):
            with tracer.steer(result, strength) as model:
                for pair in pairs:
                    last = model(torch.tensor([pair.prompt_ids]))[0, -1]
                    into.append(last[pair.x_ids[0]] - last[pair.y_ids[0]])
        found = torch.stack(clean) - torch.stack(changed)
        torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-4, atol=1e-4)

    def test_beyond_one_goes_on_in_the_same_direction(self, demo_model, pairs):
        tracer = traced(demo_model, pairs, "mlp-blocks", source="zero", layers=[3])
        tokens = torch.tensor([pairs[0].prompt_ids])
        outputs = []
        for strength in (0.0, 0.5, 2.0):
            with tracer.steer("all", strength) as model:
                _, cache = model.run_with_cache(tokens, names_filter="blocks.3.hook_mlp_out")
                outputs.append(cache["blocks.3.hook_mlp_out"])
        torch.testing.assert_close(outputs[1], 0.5 * outputs[0])
        torch.testing.assert_close(outputs[2], -outputs[0])

    def test_afterwards_the_model_is_as_it_was(self, demo_model, pairs):
        tracer, tokens = traced(demo_model, pairs), torch.tensor([pairs[0].prompt_ids])
        before = demo_model(tokens)
        with tracer.steer("all"):
            assert not torch.equal(demo_model(tokens), before)
        assert torch.equal(demo_model(tokens), before)

    def test_other_sources(self, demo_model, pairs):
        tracer = traced(demo_model, pairs, source="counterfactual", positions="prompt")
        with pytest.raises(ConfigError, match="has values for prompts of its own only, and steer"):
            tracer.steer(SET)

    def test_spans(self, demo_model, pairs):
        split = traced(demo_model, pairs, split_by="position", positions="prompt", source="zero")
        with pytest.raises(ConfigError, match="Spans act at some tokens only. Steer with a trace"):
            split.steer([1.0] * len(split.registry))
