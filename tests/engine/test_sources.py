"""Sources and directions against plain Hugging Face models with torch hooks.

The reference is `tests/plain.py`.
"""

from __future__ import annotations

import json
import re
import warnings
from itertools import count
from typing import get_args

import pytest
import torch
from transformer_lens.model_bridge import TransformerBridge

import tracekit as tk
from tests import tiny
from tests.plain import MODULES, Plain
from tracekit._util.names import SourceName
from tracekit.demo import MODEL_DIR
from tracekit.engine.effects import masked_log_probs
from tracekit.engine.sources import SOURCES, parse_source, source_name
from tracekit.errors import (
    ConfigError,
    DataFormatError,
    ModelWarning,
    PairsError,
    SourceError,
)
from tracekit.search import METHODS


def plain_effects(plain, rows, mask, source_of, *, denoising=False):
    """Logit differences: of the intervention, against the run that is started from."""
    effects = []
    for row in rows:
        prompt, base_noise, source = source_of(row)
        nothing = plain.mixed(torch.zeros_like(mask), source, len(prompt))
        act = plain.mixed(mask, source, len(prompt))
        odds = []
        for change in (nothing, act):
            x, y = (plain.score(prompt, row[key], change, base_noise) for key in ("x_ids", "y_ids"))
            odds.append(y - x)
        effects.append((odds[0] - odds[1]) if denoising else (odds[1] - odds[0]))
    return torch.stack(effects)


def mean_of(plain, rows):
    """One vector a layer, over every prompt position of every example."""
    by_layer = {}
    for row in rows:
        for layer, value in plain.activations(row["prompt_ids"]).items():
            by_layer.setdefault(layer, []).append(value)
    return {layer: torch.cat(values).mean(0) for layer, values in by_layer.items()}


def everywhere(vectors):
    return {layer: vector.expand(64, -1) for layer, vector in vectors.items()}


# Norms behind the MLP and grouped queries by default, the other architectures as slow.
QUICK = ("gpt2", "gemma2")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODULES
    ],
)
def architecture(request):
    return request.param


@pytest.fixture(scope="module")
def bridge(architecture):
    return tiny.shared_model(architecture)


@pytest.fixture(scope="module", params=["mlp-outputs", "head-outputs"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def plain(architecture, kind):
    return Plain(architecture, kind)


@pytest.fixture(scope="module", params=["soft", pytest.param("binary", marks=pytest.mark.slow)])
def mask_of(request):
    def make(tracer):
        draw = torch.Generator().manual_seed(7)
        values = torch.rand(tracer.registry.grid_shape, generator=draw)
        return values if request.param == "soft" else (values > 0.5).float()

    return make


ROWS = tiny.rows(5, seed=3)


def compare(tracer, plain, mask_of, source_of, rows=ROWS, **options):
    mask = mask_of(tracer)
    found = tracer.evaluate(mask, per_example=True)
    expected = plain_effects(plain, rows, mask, source_of, **options)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def tracer_of(bridge, kind, rows=ROWS, **options):
    return tk.Tracer(bridge, tk.PromptPairs.from_ids(rows), kind, "logit-difference", **options)


def without_counterfactuals(rows=ROWS):
    return [{k: v for k, v in row.items() if k != "counterfactual_ids"} for row in rows]


@pytest.mark.lens
@pytest.mark.pairwise
class TestAgainstHuggingFace:
    def test_zero(self, bridge, kind, plain, mask_of):
        zeros = {n: torch.zeros(64, 24) for n in range(len(plain.modules))}
        tracer = tracer_of(bridge, kind, without_counterfactuals(), source="zero")
        compare(tracer, plain, mask_of, lambda row: (row["prompt_ids"], None, zeros))

    def test_mean(self, bridge, kind, plain, mask_of):
        means = everywhere(mean_of(plain, ROWS))
        tracer = tracer_of(bridge, kind, without_counterfactuals(), source="mean", max_batch_size=2)
        compare(tracer, plain, mask_of, lambda row: (row["prompt_ids"], None, means))

    def test_mean_at_each_position(self, bridge, kind, plain, mask_of):
        rows = [
            {**row, "prompt_ids": (row["prompt_ids"] * 4)[:4]} for row in without_counterfactuals()
        ]
        every = [plain.activations(row["prompt_ids"]) for row in rows]
        means = {layer: torch.stack([each[layer] for each in every]).mean(0) for layer in every[0]}
        tracer = tracer_of(bridge, kind, rows, source="mean-positional", max_batch_size=2)
        compare(tracer, plain, mask_of, lambda row: (row["prompt_ids"], None, means), rows)

    def test_mean_of_other_pairs(self, bridge, kind, plain, mask_of):
        others = tiny.rows(4, seed=9)
        means = everywhere(mean_of(plain, others))
        source = tk.Mean(pairs=tk.PromptPairs.from_ids(others))
        tracer = tracer_of(bridge, kind, source=source)
        compare(tracer, plain, mask_of, lambda row: (row["prompt_ids"], None, means))

    def test_own_tensors(self, bridge, kind, plain, mask_of):
        draw = torch.Generator().manual_seed(2)
        n = len(plain.modules)
        vectors = {layer: torch.randn(24, generator=draw) for layer in range(n)}
        hook = "hook_mlp_out" if kind == "mlp-outputs" else "attn.hook_z"
        shape = (24,) if kind == "mlp-outputs" else (4, 6)
        tensors = {f"blocks.{layer}.{hook}": vectors[layer].reshape(shape) for layer in range(n)}
        tracer = tracer_of(bridge, kind, source=tensors)
        values = everywhere(vectors)
        compare(tracer, plain, mask_of, lambda row: (row["prompt_ids"], None, values))

    def test_resample(self, bridge, kind, plain, mask_of):
        # Every length occurs twice.
        rows = [row for row in ROWS for _ in range(2)]
        shuffled = [
            {**row, "prompt_ids": row["prompt_ids"][::-1] if n % 2 else row["prompt_ids"]}
            for n, row in enumerate(rows)
        ]
        tracer = tracer_of(bridge, kind, without_counterfactuals(shuffled), source="resample")
        chosen = [pair.counterfactual.ids for pair in tracer.engine.pairs]
        mask = mask_of(tracer)
        for row, ids in zip(shuffled, chosen, strict=True):
            assert len(ids) == len(row["prompt_ids"])
            assert list(ids) != list(row["prompt_ids"])
        sources = {id(r): plain.activations(c) for r, c in zip(shuffled, chosen, strict=True)}
        expected = plain_effects(
            plain, shuffled, mask, lambda row: (row["prompt_ids"], None, sources[id(row)])
        )
        found = tracer.evaluate(mask, per_example=True)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)

    def test_denoising_from_a_prompt(self, bridge, kind, plain, mask_of):
        tracer = tracer_of(bridge, kind, direction="denoising")
        compare(
            tracer,
            plain,
            mask_of,
            lambda row: (row["counterfactual_ids"], None, plain.activations(row["prompt_ids"])),
            denoising=True,
        )

    def test_denoising_from_noise(self, bridge, kind, plain, mask_of):
        """The setting of causal tracing in ROME: a noisy run, and clean values put back."""
        tracer = tracer_of(
            bridge, kind, without_counterfactuals(), source="noise", direction="denoising"
        )
        noises = {
            id(row): pair.prompt_noise for row, pair in zip(ROWS, tracer.engine.pairs, strict=True)
        }
        compare(
            tracer,
            plain,
            mask_of,
            lambda row: (row["prompt_ids"], noises[id(row)], plain.activations(row["prompt_ids"])),
            denoising=True,
        )


class PlainPatterns:
    """A Hugging Face model whose attention weights are read and replaced where they are made."""

    def __init__(self, architecture, model=None):
        self.model = tiny.hf_model(architecture) if model is None else model
        self.model.set_attn_implementation("eager")

    def run(self, ids, change):
        """Log-probabilities; `change(layer, weights)` is seen or gives other weights."""
        softmax, layers = torch.nn.functional.softmax, count()

        def changed(scores, *args, **options):
            weights = softmax(scores, *args, **options)
            if weights.ndim != 4:
                return weights
            other = change(next(layers), weights)
            return weights if other is None else other

        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(torch.nn.functional, "softmax", changed)
            logits = self.model(torch.tensor([list(ids)])).logits[0]
        assert next(layers) == self.model.config.num_hidden_layers
        return logits.log_softmax(-1)

    def score(self, prompt, ids, change):
        logs = self.run([*prompt, *ids[:-1]], change)
        return torch.stack([logs[len(prompt) - 1 + n, token] for n, token in enumerate(ids)]).mean()

    def means(self, rows):
        """By layer, the mean row of every head over all prompt positions of all examples."""
        longest = max(len(row["prompt_ids"]) for row in rows)
        sums = {}

        def add(layer, weights):
            padded = torch.nn.functional.pad(weights[0], (0, longest - weights.shape[-1]))
            sums[layer] = sums.get(layer, 0) + padded.double().sum(1)

        for row in rows:
            self.run(row["prompt_ids"], add)
        total = sum(len(row["prompt_ids"]) for row in rows)
        return {layer: (value / total).float() for layer, value in sums.items()}


@pytest.mark.lens
@pytest.mark.parametrize("source", ["zero", "mean"])
def test_attention_patterns_under_constants(architecture, bridge, mask_of, source):
    """Every query gets zeros, or the mean row, cut to the keys it sees and made a distribution."""
    plain = PlainPatterns(architecture)
    tracer = tracer_of(bridge, "attention-patterns", without_counterfactuals(), source=source)
    mask, means = mask_of(tracer), plain.means(ROWS)

    def mixed(length):
        def change(layer, weights):
            weights = weights.clone()
            for query in range(length):
                row = torch.zeros(weights.shape[1], weights.shape[-1])
                if source == "mean":
                    visible = means[layer][:, : query + 1]
                    row[:, : query + 1] = visible / visible.sum(-1, keepdim=True)
                share = mask[layer][:, None]
                weights[0, :, query] = (1 - share) * weights[0, :, query] + share * row
            return weights

        return change

    expected = []
    for row in ROWS:
        prompt = row["prompt_ids"]
        changes = (mixed(len(prompt)), lambda layer, weights: None)
        (x_after, x), (y_after, y) = (
            [plain.score(prompt, row[key], change) for change in changes]
            for key in ("x_ids", "y_ids")
        )
        expected.append((y_after - x_after) - (y - x))
    expected = torch.stack(expected)
    assert expected.abs().max() > 1e-2
    found = tracer.evaluate(mask, per_example=True)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.lens
class TestScores:
    """A kind of one's own with queries and keys that is no distribution."""

    SCORES = tk.Kind(
        name="attention-scores",
        hook="attn.hook_attn_scores",
        axes=("batch", "component", "query", "key"),
        width="n_heads",
        label="L{layer}S{index}",
    )

    @pytest.mark.parametrize("source", ["counterfactual", "resample"])
    def test_all_scores_of_a_run_are_its_patterns(self, model, even_pairs, source):
        """Continuations of several tokens stand behind the queries that are changed."""
        scores, patterns = (
            tk.Tracer(model, even_pairs, kind, "logit-difference", source=source)
            for kind in (self.SCORES, "attention-patterns")
        )
        for members in ([0], [3, 7], list(range(12))):
            mask = torch.zeros(12).index_fill(0, torch.tensor(members), 1.0)
            found = scores.evaluate(mask, per_example=True)
            expected = patterns.evaluate(mask, per_example=True)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert expected.abs().max() > 1e-2

    @pytest.mark.parametrize("source", ["zero", "mean"])
    def test_constants_are_refused(self, model, even_pairs, source):
        with pytest.raises(SourceError, match="the later ones included, and a constant would let"):
            tk.Tracer(model, even_pairs, self.SCORES, source=source)


class TestNames:
    """Results name their source, and the name gives it again."""

    @pytest.mark.parametrize(
        "source",
        [
            *("counterfactual", "noise", "zero", "mean", "mean-positional", "resample"),
            tk.Noise(spans=("subject",)),
            tk.Noise(spans=("subject", "the rest"), factor=1 / 3),
            tk.Noise(factor=2.5e-7),
        ],
    )
    def test_names_give_the_source(self, source):
        parsed = parse_source(source_name(source))
        assert (parsed.name, type(parsed)) == (source_name(source), type(parse_source(parsed.name)))
        if isinstance(source, tk.Noise):
            assert parsed == source

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("mean over pairs", "takes more than"),
            ("mean-positional over x", "takes more than"),
            ("own tensors (12ab)", "takes more than"),
            ("model base (12ab)", "takes more than"),
            ("nothing", "Unknown .* Use one of counterfactual, noise"),
            ("noise times 2", "Unknown .* Use one of counterfactual, noise"),
            ("Zero", "Unknown .* Use one of counterfactual, noise"),
            ("", "Unknown .* Use one of counterfactual, noise"),
            ("zero:factor=2", "no options. Give 'zero' alone"),
            ("noise:width=2", "'noise' .* 'width'. It takes spans and factor"),
            ("mean:factor=2", "'mean' .* 'factor'. It takes pairs and digest"),
            ("noise:spans", "the option 'spans'. Write options as NAME=VALUE"),
            ("noise:", "the option ''. Write options as NAME=VALUE"),
            ("noise:factor=1.2.3", "factor .* '1.2.3'. Give a number"),
            ("noise:factor=-1", "factor of -1.0. It must be positive"),
        ],
    )
    def test_names_that_are_refused(self, name, text):
        with pytest.raises(SourceError, match=text) as refusal:
            parse_source(name)
        if ":" not in name:
            assert f"source '{name}'" in str(refusal.value)

    def test_names_are_those_of_the_table(self):
        assert [*SOURCES] == [*get_args(SourceName)]
        assert {name: source.name for name, source in SOURCES.items()} == {n: n for n in SOURCES}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mean", "mean-positional"])
def test_means_over_the_prompts_of_a_file(demo_model, tmp_path, kind):
    """By name they are those of the pairs in the file, in Python and in a saved result."""
    model = demo_model
    data = tk.load_dataset("demo-facts", model)
    length = len(data[0].prompt_ids)
    same = [number for number, pair in enumerate(data) if len(pair.prompt_ids) == length]
    others = data.subset(same)
    file = tmp_path / "others.jsonl"
    rows = [{"prompt": model.tokenizer.decode(p.prompt_ids), "x": " a"} for p in others[4:9]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    question = {"components": "head-outputs", "metric": "probability-drop"}
    by_name = tk.Tracer(model, others[:4], source=f"{kind}:pairs={file}", **question)
    over = tk.Mean(pairs=others[4:9], positional=kind != "mean")
    by_pairs = tk.Tracer(model, others[:4], source=over, **question)
    assert torch.equal(by_name.engine.full_effects, by_pairs.engine.full_effects)
    by_name.run("top-k", budget=1).save(tmp_path / "run")
    setup = tk.TraceResult.load(tmp_path / "run").setup
    assert setup.source.startswith(f"{kind}:pairs={file},digest=")
    again = tk.Tracer(model, others[:4], setup)
    assert torch.equal(again.engine.full_effects, by_pairs.engine.full_effects)
    file.write_text(file.read_text() * 2)
    with pytest.raises(SourceError, match=r"others.jsonl, which has changed since: its digest is"):
        tk.Tracer(model, others[:4], setup)


PROMPTS = ["the nurse said that", "the king said that"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prompts.txt", "\n\n".join(PROMPTS)),
        ("prompts.csv", "\n".join(["prompt", *PROMPTS])),
        ("prompts.json", json.dumps([{"prompt": prompt} for prompt in PROMPTS])),
        ("pairs.csv", "\n".join(["prompt,x", *(f"{prompt}, she" for prompt in PROMPTS)])),
    ],
)
def test_prompts_of_a_mean_need_no_answers(demo_model, tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    pairs = tk.load_dataset("demo-facts", demo_model)[:4]
    question = demo_model, pairs, "head-outputs", "logit-difference"
    rows = [{"prompt": prompt, "x": " she"} for prompt in PROMPTS]
    over = tk.PromptPairs.from_text(rows, demo_model)
    expected = tk.Tracer(*question, source=tk.Mean(pairs=over)).full_effect
    for source in (tk.Mean(pairs=file), f"mean:pairs={file}"):
        tracer = tk.Tracer(*question, source=source)
        assert tracer.full_effect == pytest.approx(expected, rel=1e-5)
        assert tracer.setup.intervention == f"mean ablation over the prompts of {file}"


@pytest.mark.parametrize(("name", "text"), [("prompts.txt", "\n"), ("mine.csv", "x\n she\n")])
def test_a_file_without_prompts_is_named(demo_model, tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    pairs = tk.load_dataset("demo-facts", demo_model)[:4]
    with pytest.raises(DataFormatError, match=f"A row of .*{name} has no prompt. Give each row"):
        tk.Tracer(demo_model, pairs, source=tk.Mean(pairs=file))


class TestNoise:
    def rows(self):
        rows = [{**row, "spans": {"subject": [1, 3]}} for row in without_counterfactuals()]
        return tk.PromptPairs.from_ids(rows)

    def test_noise_on_spans_is_that_of_the_prompt_there(self, bridge):
        whole = tk.Tracer(bridge, self.rows(), source="noise")
        part = tk.Tracer(bridge, self.rows(), source=tk.Noise(spans=("subject",), factor=6.0))
        for everywhere, there in zip(whole.engine.pairs, part.engine.pairs, strict=True):
            expected = 2 * everywhere.counterfactual.noise
            expected[:1], expected[3:] = 0, 0
            torch.testing.assert_close(there.counterfactual.noise, expected)
        assert part.full_effect != whole.full_effect
        assert part.run("top-k", budget=1).setup.source == "noise:spans=subject,factor=6"

    @pytest.mark.parametrize("by", ["span", "position", None])
    def test_it_is_on_spans_whatever_is_told_apart(self, model, by):
        """ROME's figure: noise on the subject, and every position a component."""
        rows = [
            {**row, "prompt_ids": row["prompt_ids"][:4], "spans": {"subject": [1, 3]}}
            for row in without_counterfactuals(tiny.rows(4, seed=3))
        ]
        rows = [row for row in rows if len(row["prompt_ids"]) == 4]
        pairs, source = tk.PromptPairs.from_ids(rows), tk.Noise(spans=("subject", "last"))
        options = {"direction": "denoising", "source": source, "split_by": by}
        tracer = tk.Tracer(model, pairs, "residual-before", "logit-difference", **options)
        for pair in tracer.engine.pairs.reversed():
            noise = pair.counterfactual.noise
            assert (noise[[1, 2, 3]] != 0).all()
            assert not noise[0].any()
        # Restoring the input of the first block at the noisy positions restores all.
        everything = tracer.evaluate(torch.ones(len(tracer.registry)))
        first = {"span": ("subject", "last"), "position": ("1", "2", "3")}.get(by)
        chosen = [
            each.layer == 0 and (first is None or each.span.split()[0] in first)
            for each in tracer.registry
        ]
        found = tracer.evaluate(torch.tensor(chosen).float())
        assert found == pytest.approx(everything, abs=1e-4)
        assert abs(found) > 1e-3

    def test_noise_on_what_is_no_span(self, model):
        with pytest.raises(SourceError, match="'object', .* the spans subject, last, rest. Name"):
            tk.Tracer(model, self.rows(), source=tk.Noise(spans=("object",)))

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize(
        ("option", "value", "text"),
        [
            *(("spans", value, "a tuple of names") for value in ("subject", (), 3, ("subject", 3))),
            *(("factor", value, "must be positive") for value in (0, float("nan"), "3", True)),
        ],
    )
    def test_options_that_are_refused(self, option, value, text):
        with pytest.raises(SourceError, match=f"{option} .*{re.escape(repr(value))}.*{text}"):
            tk.Noise(**{option: value})


OPTIONS = [
    {"source": "zero"},
    {"source": "mean"},
    {"source": "resample"},
    {"source": "noise"},
    {"direction": "denoising"},
    {"source": "noise", "direction": "denoising"},
    {"source": "resample", "direction": "denoising"},
]


@pytest.fixture(scope="module")
def even_pairs():
    """Several prompts of each length, as `resample` needs."""
    draw = torch.Generator().manual_seed(1)

    def ids(length):
        return torch.randint(tiny.VOCABULARY, (length,), generator=draw).tolist()

    rows = [
        {
            "prompt_ids": ids(n),
            "counterfactual_ids": ids(n),
            "x_ids": ids(2),
            "y_ids": ids(1 + n % 3),
        }
        for n in (3, 3, 5, 5, 5, 4, 4)
    ]
    return tk.PromptPairs.from_ids(rows)


KINDS = ["attention-patterns", "head-outputs+mlp-blocks", "mlp-neurons"]
SCOPES = ["prompt", "last", [0, -1]]


def _cells():
    """Every option with every kind and scope: a ninth by default, another as slow, all as soak."""
    for number, options in enumerate(OPTIONS):
        for i, kinds in enumerate(KINDS):
            for j, positions in enumerate(SCOPES):
                is_quick = (i, j) == (number % 3, number // 3)
                is_slow = (i, j) == ((number + 1) % 3, number // 3)
                marks = () if is_quick else pytest.mark.slow if is_slow else pytest.mark.soak
                yield pytest.param(options, kinds, positions, marks=marks)


@pytest.mark.pairwise
@pytest.mark.parametrize(("options", "kinds", "positions"), list(_cells()), ids=str)
def test_fast_paths_equal_the_plain_way(any_model, even_pairs, options, kinds, positions):
    def tracer(**further):
        return tk.Tracer(any_model, even_pairs, kinds, positions=positions, **options, **further)

    fast, slow = tracer(), tracer(capabilities=tk.Capabilities.none(), max_batch_size=2)
    n = len(fast.registry)
    mask = torch.rand(n, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        fast.evaluate(mask, per_example=True),
        slow.evaluate(mask, per_example=True),
        rtol=1e-3,
        atol=1e-4,
    )
    # Many that begin alike, so that they share layers.
    sets = [(), (0,), (0, n - 1), (0, n - 2), (n // 2, n - 1), (n - 2, n - 1), (n - 1,)]
    sets += [tuple(range(n)), tuple(range(n - 1))]
    found = fast.engine.set_effects(sets)
    for members, row in zip(sets, found, strict=True):
        binary = torch.zeros(n)
        binary[list(members)] = 1
        torch.testing.assert_close(row, slow.engine.effects(binary), rtol=1e-3, atol=1e-4)
    assert torch.equal(fast.engine.effects(torch.zeros(n)), torch.zeros(len(even_pairs)))


@pytest.mark.parametrize("metric", ["odds-ratio", "probability-drop", "probability-ratio"])
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_look_ahead_knows_the_direction(model, even_pairs, metric, direction):
    """For small changes the prediction is the measured change."""
    tracer = tk.Tracer(model, even_pairs, metric=metric, direction=direction)
    prediction = tracer.engine.predict_changes((1, 5))
    step, base = 1e-3, torch.zeros(12)
    base[[1, 5]] = 1
    for index in (0, 1, 7):
        nudged = base.clone()
        nudged[index] += -step if base[index] else step
        slope = (tracer.evaluate(nudged) - tracer.evaluate(base)) / (nudged - base)[index].item()
        assert prediction.gradient[index].item() == pytest.approx(slope, rel=0.05, abs=2e-3)
    linear, restored = tracer.engine.metric.linearization, tracer.engine.metric
    restored_log_probs = masked_log_probs(tracer.engine, base)
    values = linear.to_effect(tracer.engine.clean, linear.to_linear(restored_log_probs))
    torch.testing.assert_close(
        values, restored(tracer.engine.clean, restored_log_probs), rtol=1e-4, atol=1e-5
    )


QUESTIONS = [
    *({"source": source} for source in ("zero", "mean", "noise", "resample")),
    *({"source": each, "direction": "denoising"} for each in ("counterfactual", "noise")),
]
SHORT = {
    "pgb-ct": {"epochs": 2, "trials": 2},
    "dcm": {"epochs": 2},
    "learned-ranking": {"epochs": 2, "steps": 2},
    "local-search": {"max_passes": 40},
}


@pytest.mark.pairwise
@pytest.mark.parametrize("method", sorted({*METHODS} - {"eap-ig"}))  # It needs edges.
@pytest.mark.parametrize("options", QUESTIONS, ids=lambda options: "-".join(options.values()))
def test_every_search_under_every_source(model, even_pairs, method, options, tmp_path):
    tracer = tk.Tracer(model, even_pairs, metric="logit-difference", **options)
    result = tracer.run(method, budget=3, **SHORT.get(method, {}))
    assert result.effect == pytest.approx(tracer.evaluate(result), rel=1e-4, abs=1e-6)
    assert (result.setup.source, result.setup.direction) == (tracer.source, tracer.direction)
    loaded = tk.TraceResult.load(result.save(tmp_path / "run"))
    assert (loaded.setup.source, loaded.setup.direction) == (
        result.setup.source,
        result.setup.direction,
    )


def test_results_of_different_questions_do_not_mix(model, even_pairs):
    base = tk.Tracer(model, even_pairs).run("top-k", budget=2)
    for options, text in (
        ({"source": "zero"}, "different sources \\(counterfactual and zero\\)"),
        ({"direction": "denoising"}, "different directions \\(noising and denoising\\)"),
    ):
        other = tk.Tracer(model, even_pairs, **options).run("top-k", budget=2)
        with pytest.raises(tk.errors.ComparisonError, match=text):
            tk.compare([base, other]).curve()


@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_equal_prompts_with_other_noise_share_nothing(model, direction):
    draw = torch.Generator().manual_seed(0)
    row = {"prompt_ids": [5, 9, 2], "x_ids": [1, 2], "y_ids": [3]}
    rows = [{**row, "noise": torch.randn(3, 24, generator=draw)} for _ in range(3)]
    pairs = tk.PromptPairs.from_ids(rows)
    mask = torch.rand(12, generator=draw)
    together = tk.Tracer(model, pairs, direction=direction).evaluate(mask, per_example=True)
    for number, value in enumerate(together.tolist()):
        alone = tk.Tracer(model, pairs[number : number + 1], direction=direction)
        assert alone.evaluate(mask) == pytest.approx(value, rel=1e-4)
    assert together.unique().numel() == 3


class TestMeaning:
    @pytest.mark.lens
    def test_attention_patterns_stay_distributions_under_means(self, any_model, even_pairs):
        tracer = tk.Tracer(any_model, even_pairs, "attention-patterns", source="mean")
        names = tracer.registry.hook_names
        with tracer.steer("all") as steered:
            _, cache = steered.run_with_cache(
                torch.tensor([even_pairs[0].prompt_ids]), names_filter=list(names)
            )
        for pattern in (cache[name] for name in names):
            assert (pattern >= 0).all()
            torch.testing.assert_close(pattern.sum(-1), torch.ones(pattern.shape[:-1]))
            assert torch.equal(pattern, pattern.tril())

    def test_mean_positional(self, model):
        rows = [dict(row) for row in tiny.rows(4, seed=5)]
        for row in rows:
            row["prompt_ids"] = (row["prompt_ids"] * 4)[:4]
        del row["counterfactual_ids"]
        for row in rows:
            row.pop("counterfactual_ids", None)
        pairs = tk.PromptPairs.from_ids(rows)
        tracer = tk.Tracer(model, pairs, "mlp-outputs", source="mean-positional")
        seen = []
        for pair in pairs:
            hook = ("blocks.1.hook_mlp_out", lambda value, hook: seen.append(value[0].clone()))
            with torch.no_grad():
                model.run_with_hooks(torch.tensor([pair.prompt_ids]), fwd_hooks=[hook])
        constants = tracer.engine.pairs[0].counterfactual.constants
        torch.testing.assert_close(
            constants.values["blocks.1.hook_mlp_out"],
            torch.stack(seen).mean(0),
            rtol=1e-4,
            atol=1e-5,
        )
        binary = torch.ones(len(tracer.registry))
        plain = tk.Tracer(
            model,
            pairs,
            "mlp-outputs",
            source="mean-positional",
            capabilities=tk.Capabilities.none(),
        )
        assert tracer.evaluate(binary) == pytest.approx(plain.evaluate(binary), rel=1e-3)

    def test_restoring_the_first_blocks_input_would_restore_everything(self, model, even_pairs):
        """Both directions have the same whole: the counterfactual run against the clean one."""
        noising = tk.Tracer(model, even_pairs, metric="logit-difference")
        denoising = tk.Tracer(model, even_pairs, metric="logit-difference", direction="denoising")
        clean, base = noising.engine.clean, denoising.engine.clean
        whole = (base.y - base.x) - (clean.y - clean.x)
        metric = denoising.engine.metric
        torch.testing.assert_close(metric(base, clean), whole)
        torch.testing.assert_close(noising.engine.metric(clean, base), whole)

    @pytest.mark.parametrize("noise", [False, True])
    def test_reversing_twice_changes_nothing(self, noise):
        pairs = tiny.pairs(5, noise=noise)
        once = pairs.reversed()
        assert once.fingerprint != pairs.fingerprint == once.reversed().fingerprint
        for pair, back in zip(pairs, once, strict=True):
            if noise:
                assert back.prompt_noise is pair.counterfactual.noise
                assert back.counterfactual.ids == pair.prompt_ids == back.prompt_ids
            else:
                assert back.prompt_ids == pair.counterfactual.ids
                assert back.counterfactual.ids == pair.prompt_ids

    def test_reversed_texts(self, demo_model):
        pairs = tk.load_dataset("demo-bias", demo_model)[:2]
        pair, back = pairs[0], pairs.reversed()[0]
        assert back.texts["prompt"] == pair.texts["counterfactual"]
        assert back.texts["counterfactual"] == pair.texts["prompt"]
        assert back.texts["x"] == pair.texts["x"]

    def test_both_directions_of_a_set(self, model, even_pairs):
        noising = tk.Tracer(model, even_pairs)
        denoising = tk.Tracer(model, even_pairs, direction="denoising")
        members = [noising.registry[2], noising.registry[9]]
        frame = noising.noising_and_denoising(members)
        assert frame.index.tolist() == ["noising", "denoising"]
        assert frame.loc["noising", "effect"] == pytest.approx(noising.evaluate(members))
        assert frame.loc["denoising", "effect"] == pytest.approx(denoising.evaluate(members))
        assert frame.loc["denoising", "full_effect"] == pytest.approx(denoising.full_effect)
        share = frame["effect"] / frame["full_effect"]
        assert frame["share"].tolist() == pytest.approx(share.tolist())
        assert (frame["effect_low"] <= frame["effect"]).all()
        assert denoising.noising_and_denoising(members).equals(frame) or torch.allclose(
            torch.tensor(denoising.noising_and_denoising(members).to_numpy()),
            torch.tensor(frame.to_numpy()),
        )

    @pytest.mark.parametrize("source", ["zero", "mean", "mean-positional"])
    def test_constants_run_no_counterfactual(self, model, even_pairs, monkeypatch, source):
        length = len(even_pairs[0].prompt_ids)
        even = [n for n, pair in enumerate(even_pairs) if len(pair.prompt_ids) == length]
        tracer = tk.Tracer(model, even_pairs.subset(even), "head-outputs", source=source)
        calls = []
        original = model.run_with_hooks
        monkeypatch.setattr(
            model, "run_with_hooks", lambda *a, **k: calls.append(a) or original(*a, **k)
        )
        n_batches = len(tracer.engine.batches)
        for n_masks in (1, 2, 3):
            tracer.engine.effects(torch.full((12,), n_masks / 3))
            assert len(calls) == (1 + n_masks) * n_batches  # The clean run, and each mask.
        assert tracer.engine.counterfactual_cache.storage is None

    def test_the_seed_draws(self, model, even_pairs):
        def chosen(source, seed):
            tracer = tk.Tracer(model, even_pairs, source=source, source_seed=seed)
            return tracer.engine.pairs.fingerprint

        for source in ("resample", "noise"):
            assert chosen(source, 0) == chosen(source, 0)
            assert len({chosen(source, seed) for seed in range(3)}) > 1

    def test_held_out_pairs_get_the_means_of_the_searched_ones(self, model, even_pairs):
        main, held_out = even_pairs[:4], even_pairs[4:]
        tracer = tk.Tracer(model, main, source="mean", held_out=held_out)
        result = tracer.run("top-k", budget=2)
        over = tk.Tracer(model, held_out, source=tk.Mean(pairs=main))
        expected = over.evaluate(result, per_example=True)
        torch.testing.assert_close(result.held_out.effects, expected)


def tensors(value, hook="hook_mlp_out"):
    """A mapping of hook points of three layers to tensors; layer 1 gets `value`."""
    zeros = torch.zeros(24)
    return {f"blocks.{layer}.{hook}": (zeros, value, zeros)[layer] for layer in range(3)}


def pairs_of(*prompts):
    return tk.PromptPairs.from_ids([{"prompt_ids": ids, "x_ids": [1]} for ids in prompts])


def mean_over(prompt):
    return tk.Mean(pairs=pairs_of(prompt))


def refusal(name, text, error=SourceError, **options):
    return pytest.param(text, error, options, id=name)


ONE_LENGTH = {"pairs": pairs_of([1, 2, 3], [4, 5, 6]), "source": "mean-positional"}
LENGTHS = pairs_of([1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
WITHOUT = tk.PromptPairs.from_ids(without_counterfactuals())
REFUSALS = [
    refusal("source", "'nought'. Use one of counterfactual, noise", source="nought"),
    refusal("a number as source", "a int. Use .* a Mean, or a mapping", source=3),
    refusal("None as source", "a NoneType. Use one of", source=None),
    refusal("a list as source", "a list. Use one of", source=["zero"]),
    refusal("direction", "'up'. .* 'noising' or 'denoising'", ConfigError, direction="up"),
    refusal("no counterfactual", "Example 0 .* Give it one .*'zero'", PairsError, pairs=WITHOUT),
    refusal("prompts of 3 to 5", "3 to 5 tok.* Use source='mean'", source="mean-positional"),
    refusal(
        "patterns", "patterns .* or head-outputs", components="attention-patterns", **ONE_LENGTH
    ),
    refusal(
        "continuations", "positions='all' .* Use positions='prompt'", positions="all", **ONE_LENGTH
    ),
    refusal(
        "too few fellows",
        r"example 2 \(.*, 4 tokens\)\. Leave these .* or use source='mean'",
        pairs=tiny.pairs(3, seed=11),
        source="resample",
    ),
    refusal(
        "no fellows",
        r"example 2 \(.*\); and 2 more\. Leave",
        pairs=LENGTHS,
        source="resample",
        metric="kl",
    ),
    refusal(
        "a layer without tensor",
        "blocks.1.hook_mlp_out. It needs one for each of .*, blocks.2.hook_mlp_out",
        source={"blocks.0.hook_mlp_out": torch.zeros(24)},
    ),
    refusal("shape", r"\.1\..* shape \(3,\). It needs \(24,\)", source=tensors(torch.zeros(3))),
    refusal("nan", r"\.1\..* not finite", source=tensors(torch.full((24,), torch.nan))),
    refusal("a text as tensor", r"'a' at .* tensor of shape \(24,\)", source=tensors("a")),
    refusal("None as tensor", r"None at .* tensor of shape \(24,\)", source=tensors(None)),
    refusal("ragged tensor", r"2.0\]\] at .* shape", source=tensors([[1.0], [1.0, 2.0]])),
    refusal(
        "a tensor for patterns",
        "patterns take no tensor .* Use source='zero', 'mean' or 'resample', or head-outputs",
        components="attention-patterns",
        source=tensors(torch.zeros(4, 8), "attn.hook_pattern"),
    ),
    refusal("token 10000", r"10000 \(example 0\).* has 61 .*Give", source=mean_over([10_000])),
    refusal("500 tokens", r"500 .*\(example 0,.* 64. Leave it out", source=mean_over([1] * 500)),
]


class TestRefusals:
    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize(("text", "error", "options"), REFUSALS)
    def test_options(self, model, even_pairs, text, error, options):
        options = {"pairs": even_pairs, "components": "mlp-outputs", **options}
        with pytest.raises(error, match=text):
            tk.Tracer(model, **options)

    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("pairs", [3, [1, 2]])
    def test_means_over_what_is_no_pairs(self, pairs):
        with pytest.raises(SourceError, match=rf"over {re.escape(str(pairs))}. Give PromptPairs"):
            tk.Mean(pairs=pairs)

    def test_pairs_that_mix_constants_and_prompts(self, model, even_pairs):
        zero = tk.Tracer(model, even_pairs, source="zero").engine.pairs
        mixed = tk.PromptPairs(pairs=(*zero[:2], *even_pairs[2:]))
        with pytest.raises(PairsError, match="the same constant values.* Use one source for all"):
            tk.Tracer(model, mixed)

    @pytest.mark.parametrize("source", ["zero", "mean"])
    def test_denoising_from_constants(self, model, even_pairs, source):
        with pytest.raises(PairsError, match="cannot be reversed. Use counterfactual prompts"):
            tk.Tracer(model, even_pairs, source=source, direction="denoising")
        tracer = tk.Tracer(model, even_pairs, source=source)
        with pytest.raises(PairsError, match="cannot be reversed"):
            tracer.noising_and_denoising(tracer.registry[0:2])


@pytest.mark.lens
@pytest.mark.parametrize("source", ["zero", "mean"])
@pytest.mark.parametrize("is_processed", [False, True])
def test_zero_ablation_of_processed_weights_warns_once(source, is_processed):
    """Folded and centred weights have other activations, of which zero is another value."""
    model = TransformerBridge.boot_transformers(str(MODEL_DIR))
    if is_processed:
        model.enable_compatibility_mode()
    pairs = tk.load_dataset("demo-facts", model)[:4]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tk.Tracer(model, pairs, "head-outputs", "logit-difference", source=source)
    texts = [str(each.message) for each in caught if issubclass(each.category, ModelWarning)]
    expected = is_processed and source == "zero"
    assert sum("TransformerLens processed the weights of" in text for text in texts) == expected
