from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tracekit as tk
from tests import tiny
from tracekit import metrics
from tracekit.errors import (
    ConfigError,
    MetricError,
    MissingContinuationError,
    NonFiniteMetricError,
    UnknownNameError,
)
from tracekit.metrics import METRICS, ContinuationLogProbs

probability = st.floats(0.01, 0.99)


def scores(x, y=None, chosen=None):
    logs = [None if p is None else torch.tensor([p]).log() for p in (x, y)]
    picked = None if chosen is None else torch.tensor([chosen])
    return ContinuationLogProbs(logs[0], logs[1], picked, picked)


@given(probability, probability, probability, probability)
def test_effects_against_their_definitions(px, py, qx, qy):
    clean, intervened = scores(px, py), scores(qx, qy)
    expected = {
        "odds-ratio": (qy / qx) / (py / px) - 1,
        "probability-drop": px - qx,
        "probability-ratio": px / qx - 1,
        "logit-difference": math.log(qy / qx) - math.log(py / px),
    }
    for name, value in expected.items():
        assert METRICS[name](clean, intervened).item() == pytest.approx(value, rel=1e-4, abs=1e-5)
        assert METRICS[name](clean, clean).item() == 0


@pytest.mark.parametrize(
    ("before", "after", "effect"), [(True, True, 0), (False, True, 1), (True, False, -1)]
)
def test_accuracy(before, after, effect):
    found = METRICS["accuracy"](scores(0.5, 0.5, before), scores(0.5, 0.5, after))
    assert found.item() == effect


@given(st.lists(probability, min_size=1, max_size=6), st.integers(0, 3))
def test_means_over_tokens(probabilities, padding):
    logs = torch.tensor(probabilities + [0.5] * padding).log()
    valid = torch.arange(len(logs)) < len(probabilities)
    geometric = math.prod(probabilities) ** (1 / len(probabilities))
    arithmetic = sum(probabilities) / len(probabilities)
    for mean, expected in (("geometric", geometric), ("arithmetic", arithmetic)):
        found = metrics.continuation_log_prob(logs, valid, mean)
        assert found.exp().item() == pytest.approx(expected, rel=1e-4)


def test_missing_continuations_have_no_nan_gradient():
    logs = torch.full((2, 3), -1.0, requires_grad=True)
    valid = torch.tensor([[True, True, False], [False, False, False]])
    for mean in ("geometric", "arithmetic"):
        total = metrics.continuation_log_prob(logs, valid, mean).sum()
        assert torch.isfinite(torch.autograd.grad(total, logs)[0]).all()


def test_unknown_mean(unchecked):
    with pytest.raises(ConfigError, match="Unknown mean 'harmonic'. Use 'geometric' or"):
        metrics.continuation_log_prob(torch.zeros(1), torch.ones(1, dtype=torch.bool), "harmonic")


def test_unknown_metric_names_the_known_ones():
    with pytest.raises(UnknownNameError) as caught:
        metrics.resolve_metric("odd-ratio")
    assert str(caught.value).startswith("Unknown metric 'odd-ratio'. Did you mean 'odds-ratio'?")
    assert "probability-drop" in str(caught.value)


def test_metrics_that_compare_need_y():
    for name in ("odds-ratio", "logit-difference", "accuracy"):
        with pytest.raises(MissingContinuationError, match="has a y. Give every example"):
            METRICS[name](scores(0.5), scores(0.5))


def test_callables_become_metrics_and_must_return_one_value_per_example():
    def doubled(clean, intervened):
        return 2 * (intervened.x - clean.x)

    assert metrics.resolve_metric(doubled).name == "doubled"
    found = metrics.resolve_metric(doubled)(scores(0.5), scores(0.25)).item()
    assert found == pytest.approx(2 * math.log(0.5))
    with pytest.raises(MetricError, match=r"'<lambda>' returned \(\). It must"):
        metrics.resolve_metric(lambda c, i: i.x.sum())(scores(0.5), scores(0.5))
    for function in (lambda logits: logits, lambda run: run.x, lambda c, i, *, scale: c.x):
        with pytest.raises(MetricError, match="cannot be called with two arguments .*of the log-p"):
            metrics.resolve_metric(function)


@pytest.mark.parametrize(
    ("function", "field"),
    [
        (lambda c, i: (c.distribution - i.distribution).abs().sum(-1), "distribution"),
        (lambda c, i: i.x_rank.float() - c.x_rank.float(), "x_rank"),
        (lambda c, i: i.x_set - c.x_set, "x_set"),
    ],
)
def test_a_metric_that_reads_what_was_not_asked_for(function, field, model):
    pairs = tiny.pairs(4)
    text = rf"'<lambda>' cannot be computed: .*NoneType.* have no .*\b{field}\b.* Name in `reads`"
    with pytest.raises(MetricError, match=text):
        tk.Tracer(model, pairs, metric=function)
    tracer = tk.Tracer(model, pairs)
    with pytest.raises(MetricError, match=text):
        tracer.evaluate(torch.ones(12), metrics=[function])
    with pytest.raises(MetricError, match=text):
        tracer.run("top-k", budget=1, constraint=tk.Constraint(metric=function, at_most=1.0))


def test_a_metric_that_reads_y_where_there_is_none(model):
    rows = [{k: v for k, v in row.items() if k != "y_ids"} for row in tiny.rows(3)]
    with pytest.raises(MetricError, match="cannot be computed: .* have no y, .*every example has"):
        tk.Tracer(model, tk.PromptPairs.from_ids(rows), metric=lambda c, i: i.y - c.y)


def test_errors_raised_in_a_metric_reach_the_user(model):
    with pytest.raises(TypeError, match="unsupported operand"):
        tk.Tracer(model, tiny.pairs(3), metric=lambda c, i: i.x + "a")


def test_not_finite_names_the_examples():
    effects = torch.tensor([0.0, float("nan"), float("inf")])
    text = r"'odds-ratio'.* 2 of 3 examples: example 1 \(prompt 1\): nan; example 2"
    with pytest.raises(NonFiniteMetricError, match=text):
        metrics.check_finite(effects, METRICS["odds-ratio"], lambda i: f"prompt {i}")
