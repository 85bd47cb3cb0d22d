from __future__ import annotations

import functools
import warnings
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.engine.effects import masked_log_probs
from tracekit.errors import (
    ComponentError,
    ConfigError,
    IdentityCheckError,
    MaskError,
    MetricError,
    NoResultError,
    PairsError,
    UnknownNameError,
    UnreliableResultWarning,
)


@pytest.fixture
def tracer(model, pairs):
    return tk.Tracer(model, pairs)


@pytest.fixture(scope="module")
def shared_tracer(model):
    """For what leaves no trace in it."""
    return tk.Tracer(model, tiny.pairs())


def test_evaluate_takes_any_mask(tracer):
    soft = torch.full((12,), 0.3)
    values = tracer.evaluate(soft, per_example=True)
    assert values.shape == (8,)
    assert tracer.evaluate(soft) == pytest.approx(values.mean().item())
    assert tracer.evaluate(soft.tolist()) == tracer.evaluate(soft)
    assert tracer.evaluate(soft.numpy()) == tracer.evaluate(soft)
    chosen = [tracer.registry[3], tracer.registry[7]]
    binary = torch.zeros(12, dtype=torch.bool)
    binary[[3, 7]] = True
    assert tracer.evaluate(chosen) == tracer.evaluate(binary)
    assert tracer.evaluate(torch.ones(12)) == pytest.approx(tracer.full_effect)


POSITIONS = "Use one of prompt, last, all, or a list of prompt positions"
LAYERS, INDICES = "whole numbers from 0 to 2", "0 to 3, or a mapping from layer to such lists"
SIZE = "It must be a whole number, at least 1"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"metric": "odds"}, UnknownNameError, "'odds'. .* 'odds-ratio'. Known: accuracy"),
        ({"components": "layers"}, UnknownNameError, "'layers'. Known: attention-blocks"),
        ({"components": "heads"}, UnknownNameError, "two .*'attention-patterns' .*'head-outputs'"),
        ({"components": "neurons"}, UnknownNameError, "two .*'mlp-neurons' .*'mlp-outputs'"),
        ({"components": None}, ComponentError, "None. Name a kind, several joined by"),
        ({"components": [None]}, ComponentError, r"\[None\]. Name a kind, several joined by"),
        ({"layers": ["0"]}, ComponentError, rf"layers are \('0',\), .* {LAYERS}"),
        ({"layers": True}, ComponentError, f"layers are True, .* {LAYERS}"),
        ({"layers": [1.0]}, ComponentError, rf"layers are \(1.0,\), .* {LAYERS}"),
        ({"indices": [1.0]}, ComponentError, rf"indices are \(1.0,\), .* {INDICES}"),
        ({"indices": {0: ["1"]}}, ComponentError, rf"indices are \('1',\), .* {INDICES}"),
        ({"indices": {"0": [1]}}, ComponentError, r"\['0'\]. They must be whole numbers: layers"),
        ({"positions": [1.7]}, PairsError, rf"\(1.7,\). {POSITIONS}"),
        ({"positions": ["a"]}, PairsError, rf"\('a',\). {POSITIONS}"),
        ({"positions": [True]}, PairsError, rf"\(True,\). {POSITIONS}"),
        ({"positions": None}, PairsError, f"None. {POSITIONS}"),
        ({"positions": "sometimes"}, PairsError, f"'sometimes'. {POSITIONS}"),
        ({"positions": 3}, PairsError, f"3. {POSITIONS}"),
        ({"positions": {0}}, PairsError, rf"\{{0\}}. {POSITIONS}"),
        ({"positions": b"a"}, PairsError, f"b'a'. {POSITIONS}"),
        ({"max_batch_size": 0}, ConfigError, f"max_batch_size is 0. {SIZE}"),
        ({"max_batch_size": 1.5}, ConfigError, f"max_batch_size is 1.5. {SIZE}"),
        ({"max_batch_size": "8"}, ConfigError, f"max_batch_size is '8'. {SIZE}"),
        ({"max_batch_size": True}, ConfigError, f"max_batch_size is True. {SIZE}"),
    ],
)
def test_options_that_are_refused(model, pairs, options, error, text):
    with pytest.raises(error, match=text):
        tk.Tracer(model, pairs, **options)


NUMBERS = "one number for each of the 12 components, or name components by their labels"
AMONG = "is not among the 12 components"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("mask", "error", "text"),
    [
        (torch.zeros(11), MaskError, r"shape \(11,\).* each of the 12 components"),
        (torch.zeros(2, 12), MaskError, r"shape \(2, 12\).* takes one mask .* once per mask"),
        (torch.full((12,), 2.0), MaskError, r"holds 2 at \[0\]. Entries must lie in \[0, 1\]"),
        (None, MaskError, f"None. .* {NUMBERS}"),
        ([None] * 12, MaskError, f"None, .* {NUMBERS}"),
        ({1: ["a"]}, MaskError, f"{{1: ..a..}}. .* {NUMBERS}"),
        ("a", ComponentError, f"'a' {AMONG}"),
        (["1"] * 12, ComponentError, f"'1' {AMONG} .* Did you mean 'L0H1'"),
        (["L1H2", None], ComponentError, f"None {AMONG}"),
        ([(1, 2), 3], ComponentError, f"3 {AMONG}"),
        ({1: [9]}, ComponentError, rf"\(1, 9\) {AMONG}"),
        ([tk.Component("nope", 0)], UnknownNameError, "'nope'. Known: attention-blocks"),
    ],
)
def test_masks_that_are_refused(shared_tracer, mask, error, text):
    with pytest.raises(error, match=text):
        shared_tracer.evaluate(mask)


def test_numbers_that_could_be_a_mask_too_are_refused(model, pairs):
    two = tk.Tracer(model, pairs, layers=[0], indices=[0, 1])
    with pytest.raises(
        MaskError, match=r"\(0, 1\) may be a mask, .* as a tensor, or components by"
    ):
        two.evaluate((0, 1))
    assert two.evaluate([0, 1]) == two.evaluate("L0H1")


def test_a_user_s_own_metric(model, pairs):
    def halved(clean: tk.metrics.ContinuationLogProbs, intervened: tk.metrics.ContinuationLogProbs):
        return 0.5 * (clean.x.exp() - intervened.x.exp())

    own = tk.Tracer(model, pairs, metric=halved)
    named = tk.Tracer(model, pairs, metric="probability-drop")
    mask = torch.full((12,), 0.7)
    assert own.evaluate(mask) == pytest.approx(named.evaluate(mask) / 2)
    result = own.run(budget=2, trials=2, epochs=2)
    assert result.setup.metric == "halved"


def test_subsets_and_registries(model, pairs):
    registry = tk.components.ComponentRegistry.build(model.cfg, "attention-patterns", layers=[1])
    assert tk.Tracer(model, pairs, registry).registry is registry
    subset = tk.Tracer(model, pairs, layers=[1], indices=[0, 3])
    assert [str(c) for c in subset.registry] == ["L1H0", "L1H3"]
    whole = tk.Tracer(model, pairs)
    mask = torch.zeros(12)
    mask[[4, 7]] = 1
    assert subset.evaluate(torch.ones(2)) == pytest.approx(whole.evaluate(mask), rel=1e-5)
    with pytest.raises(ComponentError, match="indices or layer_window were given along"):
        tk.Tracer(model, pairs, registry, layers=[0])


def test_interactions_of_a_result_are_those_of_its_components(tracer):
    result = tracer.run("top-k", budget=3)
    grid, listed = tracer.interactions(result), tracer.interactions(result.components)
    assert grid.to_frame().equals(listed.to_frame())


def test_interactions(tracer):
    grid = tracer.interactions(layers=[0, -1])
    assert grid.labels == tuple(tracer.registry.label(i) for i in [*range(4), *range(8, 12)])
    for i, j in ((0, 1), (2, 6)):
        places = [tracer.registry[k if k < 4 else k + 4] for k in (i, j)]
        pair, one, other = (tracer.evaluate(c) for c in (places, places[:1], places[1:]))
        expected = pair - one - other
        assert grid.interaction[i, j].item() == pytest.approx(expected, abs=2e-6)
        assert grid.interaction[j, i] == grid.interaction[i, j]
    assert torch.isnan(grid.interaction.diagonal()).all()
    frame = grid.to_frame()
    assert len(frame) == 28
    assert frame["interaction"].abs().is_monotonic_decreasing
    with pytest.raises(ComponentError, match="A component is named twice among those"):
        tracer.interactions([tracer.registry[0]] * 2)
    some = tracer.interactions(tracer.registry[:3])
    assert some.labels == grid.labels[:3]
    with pytest.raises(ComponentError, match="1 components were chosen for pairs. Choose 2 to 256"):
        tracer.interactions(tracer.registry[:1])


def test_figures_need_a_run(tracer):
    for draw in (tracer.heatmap, tracer.curve):
        with pytest.raises(
            NoResultError, match=r"There is no result to draw yet. Call run\(\) fir"
        ):
            draw()


def test_a_model_that_does_not_do_the_task_is_said(model, pairs):
    clean = tk.Tracer(model, pairs).engine.clean
    worse = [int(x > y) for x, y in zip(clean.x, clean.y, strict=True)]
    # Of eight examples, one is left of which the model prefers x.
    rows = [
        replace(p, x_ids=p.y_ids, y_ids=p.x_ids) if w else p
        for p, w in zip(pairs, worse, strict=True)
    ]
    rows[0] = replace(rows[0], x_ids=rows[0].y_ids, y_ids=rows[0].x_ids)
    tracer = tk.Tracer(model, replace(pairs, pairs=tuple(rows)))
    assert "x preferred" not in repr(tracer) + tracer._repr_html_()
    with pytest.warns(
        UnreliableResultWarning, match="as probable as x on 7 of 8 examples. x is .*known"
    ):
        tracer.run("top-k", budget=2)
    assert repr(tracer).endswith("odds-ratio, counterfactual patching, x preferred on 1 of 8)")
    assert "x preferred on 1 of 8" in tracer._repr_html_()


def test_runs_are_kept(tracer):
    first = tracer.run("top-k", budget=2)
    curve = tracer.run("random", budgets=[1, 2], draws=3)
    assert tracer.evaluate(first) == pytest.approx(first.effect)
    names = [trace.name for trace in tracer.curve(first).data if trace.name]
    assert names == [first.method, "all 12 components"]
    assert tracer.results == [first, *curve]
    assert first.dataset_fingerprint == tracer.pairs.fingerprint
    assert "12 attention-patterns in layers 0-2" in repr(tracer)


@pytest.mark.lens
def test_the_hook_factory_works_with_plain_transformer_lens(model):
    """MaskedPatch gives hooks that run_with_hooks takes as they are."""
    rows = tiny.rows(1)[0]
    clean, other = torch.tensor([rows["prompt_ids"]]), torch.tensor([rows["counterfactual_ids"]])
    registry = tk.components.ComponentRegistry.build(model.cfg, "mlp-outputs")
    _, cache = model.run_with_cache(other)
    patch = tk.engine.MaskedPatch(
        registry=registry,
        counterfactual={name: cache[name] for name in registry.hook_names},
        positions=torch.ones_like(clean, dtype=torch.bool),
    )
    mask = torch.rand(len(registry), generator=torch.Generator().manual_seed(2))
    logs = model.run_with_hooks(clean, fwd_hooks=patch.hooks(mask))[0, -1].log_softmax(-1)
    engine = tiny.engine(
        model, tk.PromptPairs.from_ids([{**rows, "x_ids": rows["x_ids"][:1]}]), "mlp-outputs"
    )
    torch.testing.assert_close(masked_log_probs(engine, mask).x[0], logs[rows["x_ids"][0]])


def test_settings_are_fixed(tracer):
    tracer.engine.prepare_clean()
    for name in ("model", "metric", "registry", "pairs", "config", "layout", "max_batch_size"):
        with pytest.raises(FrozenInstanceError):
            setattr(tracer.engine, name, None)
    for name in ("positions", "continuation_mean", "max_batch_size", "max_memory", "progress"):
        with pytest.raises(FrozenInstanceError):
            setattr(tracer.engine.config, name, None)


@pytest.mark.lens
def test_a_model_that_changed_since_is_noticed(pairs):
    model = tk.load_model(tiny.hf_model("gpt2"))
    tracer = tk.Tracer(model, pairs)
    tracer.run("top-k", budget=1)
    model.add_hook("blocks.0.hook_mlp_out", lambda value, hook: 1.1 * value)
    with pytest.raises(IdentityCheckError, match="The empty mask now has an effect of"):
        tracer.run("top-k", budget=1)
    model.reset_hooks()
    tracer.run("top-k", budget=1)
    with torch.no_grad():
        next(p for p in model.parameters() if p.ndim == 2).mul_(1.5)
    with pytest.raises(IdentityCheckError, match="weights or hooks changed since the Tracer was"):
        tracer.run("top-k", budget=1)


@pytest.mark.slow
def test_held_out_examples_are_measured_and_not_searched(model, tmp_path):
    inside, outside = tiny.pairs(12).split(0.5)
    plain = tk.Tracer(model, inside).run("top-k", budgets=[2, 4])
    tracer = tk.Tracer(model, inside, held_out=outside)
    for ours, theirs in zip(tracer.run("top-k", budgets=[2, 4]), plain, strict=True):
        assert torch.equal(ours.binary_mask, theirs.binary_mask)
        assert ours.cost == theirs.cost
        expected = tk.Tracer(model, outside).evaluate(ours.binary_mask, per_example=True)
        torch.testing.assert_close(ours.held_out.effects, expected)
        low, high = ours.held_out_interval
        assert low <= ours.held_out_effect <= high
        assert theirs.held_out is theirs.held_out_effect is theirs.held_out_interval is None
        torch.testing.assert_close(
            tracer.evaluate(ours, per_example=True, held_out=True), ours.held_out.effects
        )
        assert ours.spread[0] <= ours.effect <= ours.spread[1]
        assert torch.equal(
            tk.TraceResult.load(ours.save(tmp_path)).held_out.effects, ours.held_out.effects
        )
    assert tracer.held_out.fingerprint == ours.held_out.fingerprint
    with pytest.raises(ConfigError, match="This tracer has no held-out examples. Give it some"):
        tk.Tracer(model, inside).evaluate([0], held_out=True)


def test_results_of_other_components_are_not_taken_by_their_length(model, pairs):
    """As many entries that mean something else: refused, or found by name."""
    patterns = tk.Tracer(model, pairs, "attention-patterns", layers=[0, 1])
    outputs = tk.Tracer(model, pairs, "head-outputs", layers=[0, 1])
    later = tk.Tracer(model, pairs, "attention-patterns", layers=[1, 2])
    everything = tk.Tracer(model, pairs, "attention-patterns")
    result = patterns.run("top-k", budget=3)
    assert {component.layer for component in result.components} == {0, 1}
    with pytest.raises(ComponentError, match=r"\(attention-patterns\) is not among the 8"):
        outputs.evaluate(result)
    with pytest.raises(ComponentError, match="is not among the 8 components of this registry"):
        later.evaluate(result)
    assert everything.evaluate(result) == pytest.approx(result.effect, rel=1e-4)


def test_a_mask_may_have_the_shape_of_layers_and_heads(model, pairs):
    tracer = tk.Tracer(model, pairs)
    mask = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    assert tracer.evaluate(mask) == tracer.evaluate(mask.flatten())
    partial = tk.Tracer(model, pairs, indices={0: [0, 1], 1: [0, 1], 2: [1, 3]})
    with pytest.raises(MaskError):
        partial.evaluate(torch.zeros(3, 2))


@pytest.mark.slow
def test_a_named_component_is_the_same_in_a_partial_registry(any_model, pairs):
    """An entry of a partial registry acts on the head it names, for every head."""
    for kind in ("attention-patterns", "head-outputs", "mlp-neurons"):
        whole = tk.Tracer(any_model, pairs, kind)
        partial = tk.Tracer(any_model, pairs, kind, layers=[0, 2], indices=[0, 3])
        for component in partial.registry:
            expected = whole.evaluate([component])
            assert partial.evaluate([component]) == pytest.approx(expected, rel=1e-4, abs=1e-6)
        effects = [whole.evaluate([component]) for component in partial.registry]
        assert len({round(effect, 5) for effect in effects}) == len(effects)


def test_a_model_that_changed_is_not_measured(pairs):
    hf = tiny.hf_model("gpt2")
    tracer = tk.Tracer(tk.load_model(hf), pairs)
    assert tracer.evaluate(torch.zeros(12)) == 0
    with torch.no_grad():
        hf.transformer.h[0].mlp.c_proj.weight.mul_(2)
    for measure in (lambda: tracer.evaluate(torch.ones(12)), lambda: tracer.interactions()):
        with pytest.raises(IdentityCheckError, match="changed since the Tracer was built"):
            measure()


def test_a_result_that_selects_nothing_has_no_effect(tracer):
    result = tracer.run("pgb-ct", lambda1=50.0, epochs=2)
    assert result.n_selected == 0
    assert tracer.evaluate(result) == 0


@pytest.mark.slow
def test_every_measurement_takes_the_labels_that_are_printed(tracer):
    result = tracer.run("top-k", budget=2)
    first, second = result.labels
    places = [(c.layer, c.index) for c in result.components]
    by_layer: dict[int, list[int]] = {}
    for layer, index in places:
        by_layer.setdefault(layer, []).append(index)
    forms = [result.labels, f"{first}, {second}", {second, first}, places, by_layer]
    assert [tracer.evaluate(form) for form in forms] == [result.effect] * len(forms)
    assert tracer.evaluate("all") == pytest.approx(tracer.full_effect)
    one = [first, places[0], result.components[0], {places[0][0]: places[0][1]}]
    assert len({tracer.evaluate(form) for form in one}) == 1
    # The order of a list is that of the axes.
    assert tracer.interactions([second, first]).labels == (second, first)
    pair = tracer.strongest_pairs(1, components=[second, first])
    assert {pair.first[0], pair.second[0]} == {first, second}
    assert tracer.noising_and_denoising(first).effect["noising"] == tracer.evaluate(first)
    assert tracer.faithfulness([first]).sizes == (1,)
    assert list(tracer.explain(result.labels).labels) == result.labels


@pytest.mark.parametrize("part", ["clean", "intervened"])
def test_a_metric_that_changes_its_arguments_is_found_out(model, pairs, part):
    def careless(clean, intervened):
        effects = clean.x - intervened.x
        {"clean": clean, "intervened": intervened}[part].x.mul_(0)
        return effects

    with pytest.raises(MetricError, match="'careless' changes the log-probabilities"):
        tk.Tracer(model, pairs, metric=careless)


def test_a_metric_of_whole_numbers_is_taken(model, pairs):
    def counts(clean, intervened):
        return (intervened.x < clean.x).long()

    tracer = tk.Tracer(model, pairs, metric=counts)
    values = tracer.evaluate(torch.ones(12), per_example=True)
    assert values.dtype == torch.float32
    assert set(values.tolist()) <= {0.0, 1.0}


class TestWeakEffects:
    def warnings_of(self, tracer):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                tracer.run("top-k", budget=1)
        return [
            str(w.message)
            for w in caught
            if issubclass(w.category, UnreliableResultWarning)
            and "selected set" not in str(w.message)
        ]

    def test_a_full_effect_near_zero(self, model, pairs):
        registry = tk.components.ComponentRegistry.build(model.cfg, indices={2: [0]})
        tracer = tk.Tracer(model, pairs, registry, "probability-drop", positions=[0, -1])
        assert abs(tracer.full_effect) < 0.01
        (text,) = self.warnings_of(tracer)
        assert text.startswith("All components together have an effect of only ")
        assert "Either the model does not do this task" in text

    def test_one_example_that_carries_the_mean(self, model, pairs):
        chosen = tk.Tracer(model, pairs, max_batch_size=64).engine.clean.x[2]

        def one(clean, intervened):
            effects = clean.x - intervened.x
            return torch.where(torch.isclose(clean.x, chosen), 100 * effects, effects)

        metric = tk.Metric("one", one, needs_y=False)
        tracer = tk.Tracer(model, pairs, metric=metric, max_batch_size=64)
        effects = tracer.engine.full_effects.abs()
        share = effects.max() / effects.sum()
        assert share > 0.5
        (text,) = self.warnings_of(tracer)
        assert text.startswith(f"Example {int(effects.argmax())} (")
        assert f"carries {100 * share:.0f} % of the effect of all components" in text
        # It points to the line of whoever asked, not into a cached property.
        with pytest.warns(UnreliableResultWarning) as caught:
            tk.Tracer(model, pairs, metric=metric).run("top-k", budget=1)
        assert functools.__file__ not in {warning.filename for warning in caught}

    def test_one_answer_whatever_the_prompt(self, model):
        rows = tiny.rows(8, longest=1)
        with torch.no_grad():
            logits = [model(torch.tensor([row["prompt_ids"]]))[0, -1] for row in rows]
        often, rare = torch.stack(logits).amin(0).argmax(), torch.stack(logits).amax(0).argmin()
        assert all(each[often] > each[rare] for each in logits)
        for n, row in enumerate(rows):
            answers = [[int(often)], [int(rare)]]
            row["x_ids"], row["y_ids"] = answers if n % 2 else answers[::-1]
        texts = self.warnings_of(tk.Tracer(model, tk.PromptPairs.from_ids(rows), "head-outputs"))
        bias = f"The model prefers '[{often}]' on 8 of 8, whatever the prompt: this is a bias"
        assert [text for text in texts if text.startswith(bias)]
        assert not any("keep the pairs that the model knows" in text for text in texts)

    @pytest.mark.parametrize("is_swapped", [False, True])
    def test_one_answer_that_suits_nearly_every_prompt_is_no_bias(self, model, is_swapped):
        """The model is right on all, or wrong on all; of one it prefers the other answer."""
        rows = tiny.rows(20, longest=1)
        with torch.no_grad():
            logits = [model(torch.tensor([row["prompt_ids"]]))[0, -1] for row in rows]
        gaps = torch.stack(logits)[:, :, None] - torch.stack(logits)[:, None]
        # One example prefers a to b, and all others b to a.
        most = ((gaps > 0).sum(0) == 1).nonzero()[0].tolist()
        for row, gap in zip(rows, gaps[:, most[0], most[1]], strict=True):
            answers = [[most[0]], [most[1]]]
            row["x_ids"], row["y_ids"] = answers if (gap > 0) != is_swapped else answers[::-1]
        texts = self.warnings_of(tk.Tracer(model, tk.PromptPairs.from_ids(rows), "head-outputs"))
        assert not any("this is a bias" in text for text in texts)
        assert any("exchange x and y, or the prompts" in text for text in texts) == is_swapped

    @pytest.mark.slow
    def test_usual_effects_are_silent(self, demo_model):
        tracer = tk.Tracer(demo_model, tk.load_dataset("demo-bias", demo_model)[:16])
        assert self.warnings_of(tracer) == []
        assert tracer.n_prefers_x == sum(
            x > y for x, y in zip(tracer.engine.clean.x, tracer.engine.clean.y, strict=True)
        )
        assert tracer.n_prefers_x >= 14

    def test_without_y_nothing_is_preferred(self, model):
        rows = [{k: v for k, v in row.items() if k != "y_ids"} for row in tiny.rows(3)]
        tracer = tk.Tracer(model, tk.PromptPairs.from_ids(rows), metric="probability-drop")
        assert tracer.n_prefers_x is None


@pytest.mark.slow
def test_heatmap_and_curve_after_a_front_draw_the_front_or_earlier_runs(model):
    tracer = tk.Tracer(model, tiny.pairs(4), "head-outputs")
    front = tracer.pareto(max_budget=3, statistics=False, max_passes=20)
    assert tracer.heatmap().to_json() == front[-1].heatmap().to_json()
    assert len(tracer.curve().data) > 0
    result = tracer.run("top-k", budget=1)
    assert tracer.heatmap().to_json() == result.heatmap().to_json()


@pytest.mark.lens
def test_a_metric_may_be_one_of_transformer_lens(model, pairs):
    def logit_diff(logits, answer_tokens):
        chosen = logits[:, -1].gather(-1, answer_tokens)
        return chosen[:, 0] - chosen[:, 1]

    one = [replace(p, x_ids=p.x_ids[:1], y_ids=p.y_ids[:1]) for p in pairs]
    single = replace(pairs, pairs=tuple(one))
    theirs, ours = (tk.Tracer(model, single, metric=m) for m in (logit_diff, "logit-difference"))
    result = theirs.run("pgb-ct", budget=3, epochs=4, trials=1)
    assert result.effect == pytest.approx(ours.evaluate(result), abs=1e-5)
    assert result.full_effect == pytest.approx(ours.full_effect, abs=1e-5)
    assert result.setup.metric == "logit_diff"
    with pytest.raises(MetricError, match="returned"):
        tk.Tracer(model, single, metric=lambda logits, answers: logits.mean()).evaluate("all")


def test_a_model_and_data_may_be_named(demo_model):
    tracer = tk.Tracer(demo_model, "demo-facts")
    usual = tk.data.registry.DATASETS["demo-facts"]
    assert (tracer.setup.components, tracer.setup.metric) == (usual.components, usual.metric)
    assert tracer.pairs.fingerprint == tk.load_dataset("demo-facts", "demo").fingerprint
    heads = tk.Tracer(demo_model, "demo-binding", "head-outputs", layers=[0])
    assert (heads.setup.positions, heads.setup.metric) == ("last", "logit-difference")
    with pytest.raises(UnknownNameError, match="Unknown data set 'demo-fact'. Did you mean"):
        tk.Tracer(demo_model, "demo-fact")


@pytest.mark.slow
def test_a_heatmap_of_several_results_is_of_the_last(tracer):
    curve = tracer.run("top-k", budgets=[2, 4])
    drawn, alone = tracer.heatmap(curve), curve[-1].heatmap()
    assert drawn.to_json() == alone.to_json()
    # Of a result with scores, colour says what they are.
    assert alone.to_json() == curve[-1].heatmap(color="score").to_json()
    selected = tracer.run("greedy", budget=2)
    assert selected.heatmap().to_json() == selected.heatmap(color="selected").to_json()
