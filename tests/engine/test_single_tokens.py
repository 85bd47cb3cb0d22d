"""Readouts of a single token, on pairs whose x and y begin alike, against plain torch."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM

import tracekit as tk
from tests import tiny
from tests.engine.test_head_reads import parts_of, plain_reads
from tests.plain import Plain
from tracekit.errors import PairsError
from tracekit.results.on_examples import choice_rows

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::tracekit.errors.{name}")
    for name in ("DataWarning", "UnreliableResultWarning", "ModelWarning")
]
SHAPES = {
    # Tokens of x and y of every pair, and which token of x is read.
    "one token each": ([((5,), (6,)), ((7,), (8,))], [0, 0]),
    "one token shared": ([((30, 40), (30, 41)), ((31, 42), (31, 43, 44))], [1, 1]),
    "three tokens shared": ([((9, 9, 3, 4, 5), (9, 9, 3, 2, 5))] * 2, [3, 3]),
    "half share": ([((30, 40), (30, 41)), ((30, 40), (31, 40))], [1, 0]),
    "x begins y": ([((30,), (30, 41)), ((30, 40), (30, 40, 3, 4))], [0, 1]),
    "y begins x": ([((30, 41), (30,)), ((30, 40, 3, 4), (30, 40))], [1, 2]),
    "equal": ([((30, 41), (30, 41)), ((7,), (7,))], [1, 0]),
    "no y": ([((30, 41), None), ((7,), None)], [0, 0]),
}
HEADS = ((0, 1), (1, 3))
CASES = [
    pytest.param(
        name,
        shape,
        marks=()
        if name == "llama" and shape in ("half share", "x begins y", "three tokens shared")
        else pytest.mark.slow,
    )
    for name in ("demo", "llama")
    for shape in SHAPES
]


@cache
def model_of(name):
    return tk.load_model("demo") if name == "demo" else tiny.shared_model("llama")


@cache
def plain_of(name):
    if name == "llama":
        return Plain("llama", "mlp-blocks")
    folder = model_of("demo").original_model.config.name_or_path
    hf = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return Plain("gpt2", "mlp-blocks", hf)


@cache
def pairs_of(shape):
    answers, _ = SHAPES[shape]
    rows = []
    for number, (x, y) in enumerate(answers):
        row = {"prompt_ids": [5, 6, 7 + number], "counterfactual_ids": [5, 9, 17], "x_ids": x}
        rows.append(row if y is None else {**row, "y_ids": y})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tk.PromptPairs.from_ids(rows)


def plain_distributions(name, shape):
    """Log-probabilities in the place of the token that is read, clean and patched, by pair."""
    plain, pairs = plain_of(name), pairs_of(shape)
    every = [torch.ones(plain.count)] * len(plain.modules)
    for pair, at in zip(pairs, SHAPES[shape][1], strict=True):
        read = [*pair.prompt_ids, *pair.x_ids[:at]]
        source = plain.activations(pair.counterfactual_ids)
        patch = plain.mixed(every, source, len(pair.prompt_ids))
        yield [plain.run(read, change)[-1] for change in (lambda layer, value: None, patch)]


def _entropy(logs):
    return -(logs.exp() * logs).sum().item()


def _kl(before, after):
    return (before.exp() * (before - after)).sum().item()


def _half(before, after):
    middle = ((before.exp() + after.exp()) / 2).log()
    return (_kl(before, middle) + _kl(after, middle)) / 2


def _rank(logs, token):
    return 1 + int((logs > logs[token]).sum())


METRICS = {
    "kl": lambda before, after, token: _kl(before, after),
    "jensen-shannon": lambda before, after, token: _half(before, after),
    "entropy-change": lambda before, after, token: _entropy(after) - _entropy(before),
    "rank-change": lambda before, after, token: _rank(after, token) - _rank(before, token),
    "first-choice-change": lambda before, after, token: before.argmax() != after.argmax(),
}


def effects(name, shape, metric, **options):
    tracer = tk.Tracer(model_of(name), pairs_of(shape), "mlp-blocks", metric, **options)
    return tracer.evaluate("all", per_example=True)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_metrics_of_a_token_read_the_first_that_differs(name, shape):
    pairs, (_, read_at) = pairs_of(shape), SHAPES[shape]
    runs = [*plain_distributions(name, shape)]
    tokens = [pair.x_ids[at] for pair, at in zip(pairs, read_at, strict=True)]
    for metric, oracle in METRICS.items():
        expected = [float(oracle(*run, token)) for run, token in zip(runs, tokens, strict=True)]
        got = effects(name, shape, metric).tolist()
        assert got == pytest.approx(expected, rel=1e-3, abs=2e-5), metric
    assert effects(name, shape, "kl").min() > 1e-4


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_metrics_of_logits_and_answers_read_the_first_that_differs_or_refuse(name, shape):
    def logit_of_x(logits, answer_tokens):
        return logits[:, -1].gather(1, answer_tokens[:, :1])[:, 0]

    if shape in ("x begins y", "y begins x", "equal"):
        with pytest.raises(PairsError, match=r"In example 0 .* no token tells them apart, and the"):
            effects(name, shape, logit_of_x)
        return
    expected = [
        (before[pair.x_ids[at]] - after[pair.x_ids[at]]).item()
        for (before, after), pair, at in zip(
            plain_distributions(name, shape), pairs_of(shape), SHAPES[shape][1], strict=True
        )
    ]
    got = effects(name, shape, logit_of_x).tolist()
    assert got == pytest.approx(expected, rel=1e-3, abs=2e-5)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_contributions_are_to_the_first_token_that_differs_or_refused(name, shape):
    pairs = pairs_of(shape)
    labels = [f"L{layer}H{head}" for layer, head in HEADS]
    metric = "kl" if shape == "no y" else "logit-difference"
    tracer = tk.Tracer(model_of(name), pairs, "head-outputs", metric)
    if shape in ("x begins y", "y begins x", "equal"):
        with pytest.raises(PairsError, match=r"In example 0 .* a contribution to their difference"):
            tracer.attention(labels)
        return
    read, hf = tracer.attention(labels), plain_of(name).model
    hf.set_attn_implementation("eager")
    parts = parts_of("gpt2" if name == "demo" else name, hf)
    for number, (pair, at) in enumerate(zip(pairs, SHAPES[shape][1], strict=True)):
        ids, tokens = [*pair.prompt_ids, *pair.x_ids[:at]], [pair.x_ids[at]]
        tokens.append(None if pair.y_ids is None else pair.y_ids[at])
        _, direct, _ = plain_reads(hf, parts, ids, *tokens, HEADS)
        torch.testing.assert_close(read.direct[:, number], direct, rtol=2e-3, atol=5e-5)
        patterns = plain_reads(hf, parts, pair.prompt_ids, *tokens, HEADS)[0]
        expected = torch.stack([pattern[-1] for pattern in patterns])
        torch.testing.assert_close(read.clean[..., number], expected, rtol=1e-3, atol=1e-5)
    assert read.direct.abs().min() > 1e-6


@pytest.mark.parametrize(("name", "shape"), CASES)
@pytest.mark.parametrize("is_chosen", [False, True])
def test_first_choices_are_counted_of_whole_answers(name, shape, is_chosen):
    """With `is_chosen`, prompts are followed by what the model says, so that x and y can be it."""
    plain, rows = plain_of(name), []
    for pair in pairs_of(shape):
        sides = {"x_ids": pair.x_ids, "y_ids": pair.y_ids}
        sides = {key: [*ids] for key, ids in sides.items() if ids is not None}
        if is_chosen:
            ids, said = [*pair.prompt_ids], []
            for _ in range(max(map(len, sides.values()))):
                said.append(int(plain.run([*ids, *said], lambda layer, value: None)[-1].argmax()))
            sides = {key: said[: len(tokens)] for key, tokens in sides.items()}
        rows.append({"prompt_ids": pair.prompt_ids, "counterfactual_ids": [5, 9, 17], **sides})
    pairs = tk.PromptPairs.from_ids(rows)
    tracer = tk.Tracer(model_of(name), pairs, "mlp-blocks", "probability-drop")
    row = choice_rows(tracer.question.choices(), len(pairs))[0]
    firsts = []
    for pair in pairs:
        of_pair = []
        for ids in (pair.x_ids, pair.y_ids or ()):
            read = [*pair.prompt_ids, *ids]
            best = plain.run(read, lambda layer, value: None).argmax(-1).tolist()
            of_pair.append(best[len(pair.prompt_ids) - 1 : -1] == [*ids])
        firsts.append(of_pair)
    has_y = shape != "no y"
    assert row["first_x"] == sum(x for x, _ in firsts)
    assert row["first_y"] == (sum(y for _, y in firsts) if has_y else None)
    assert row["neither"] == (sum(not (x or y) for x, y in firsts) if has_y else None)
    assert row["first_x"] == 2 or not is_chosen
