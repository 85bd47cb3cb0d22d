"""Metrics of one's own: whatever they return is taken as it is meant, or refused in plain words."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import MetricError, NonFiniteMetricError, NotDifferentiableError

MODEL = tiny.shared_model("gpt2")
PAIRS = tiny.pairs(4, seed=3)
SEARCHES = ("attribution", "mask-ig", "pgb-ct", "dcm", "local-search")
_own = torch.nn.Parameter(torch.tensor(2.0))


def drop(clean, intervened):
    return clean.x.exp() - intervened.x.exp()


def traced(change, **options):
    """A tracer by the drop of P(x), changed."""
    metric = tk.metrics.Metric(
        "own", lambda clean, intervened: change(drop(clean, intervened)), needs_y=False
    )
    return tk.Tracer(MODEL, PAIRS, "head-outputs", metric, **options)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda drops: drops / (1e-6 + drops.std()), {}),
        (lambda drops: drops - drops.mean(), {}),
        (lambda drops: drops - drops.mean(), {"max_batch_size": 1}),
        (lambda drops: drops * torch.rand(len(drops)), {}),
        (lambda drops: drops.cumsum(0), {}),
    ],
)
def test_a_metric_of_all_examples_together_is_refused(change, options):
    with pytest.raises(MetricError, match="'own' .* one example alone.* alone and .* in a batch"):
        traced(change, **options)


@pytest.mark.parametrize("max_batch_size", [None, 1])
def test_so_is_one_among_others(max_batch_size):
    metric = tk.metrics.Metric(
        "own", lambda clean, moved: drop(clean, moved) - drop(clean, moved).mean(), needs_y=False
    )
    ways = {"metric": "probability-drop", "max_batch_size": max_batch_size}
    tracer = tk.Tracer(MODEL, PAIRS, "head-outputs", extra_metrics=[metric], **ways)
    refusal = pytest.raises(MetricError, match="'own' must depend on one example alone: it is")
    with refusal:
        tracer.run("top-k", budget=2)
    with refusal:
        tracer.evaluate(tracer.registry, metrics=["kl", metric])
    tracer = tk.Tracer(MODEL, PAIRS, "head-outputs", **ways)
    with refusal:
        tracer.side_effects([tracer.registry[0]], {"own": (PAIRS, metric)})
    with refusal:
        tracer.run("top-k", budget=2, constraint=tk.Constraint(metric=metric, at_most=0.1))


@pytest.mark.parametrize("factor", [1, 1e2, 1e4])
def test_rounding_is_no_other_example(factor):
    """A product of matrices is rounded otherwise for another number of rows."""
    counts = (torch.arange(MODEL.cfg.d_vocab) % 2).float() * factor

    def change(clean, moved):
        return moved.distribution.exp() @ counts - clean.distribution.exp() @ counts

    metric = tk.metrics.Metric("own", change, needs_y=False, reads=("distribution",))
    tracer = tk.Tracer(MODEL, PAIRS, "head-outputs", metric)
    plain = tk.Tracer(MODEL, PAIRS, "head-outputs", "probability-drop")
    for component in tracer.registry:
        assert plain.evaluate([component], metrics=[metric])["own"]["effect"] == pytest.approx(
            tracer.evaluate([component]), rel=1e-3, abs=1e-6 * factor
        )


def test_a_metric_that_squeezes_is_taken():
    metric = tk.metrics.Metric(
        "own", lambda clean, moved: (clean.x - moved.x)[:, None].squeeze(), needs_y=False
    )
    assert tk.Tracer(MODEL, PAIRS, "head-outputs", metric).full_effect


def numbers(tracer):
    return tracer.evaluate([tracer.registry[1]], per_example=True)


@pytest.mark.parametrize(
    ("change", "rounded"),
    [
        (torch.Tensor.double, torch.Tensor.float),
        (torch.Tensor.half, lambda effects: effects.half().float()),
        (torch.Tensor.bfloat16, lambda effects: effects.bfloat16().float()),
        (lambda effects: (effects * 1e4).long(), lambda effects: (effects * 1e4).long().float()),
        (lambda effects: effects > 0, lambda effects: (effects > 0).float()),
        (torch.Tensor.detach, torch.Tensor.float),
        (torch.nn.Parameter, torch.Tensor.float),
        (lambda effects: effects * _own, lambda effects: effects * 2),
        (lambda effects: effects * _own.double(), lambda effects: effects * 2),
    ],
)
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_real_numbers_of_any_type_are_taken(change, rounded, direction):
    plain, own = (traced(each, direction=direction) for each in (lambda effects: effects, change))
    assert torch.equal(numbers(own), rounded(numbers(plain)))
    assert not numbers(own).requires_grad
    together = plain.evaluate([plain.registry[1]], metrics=[own.engine.metric], per_example=True)
    assert torch.equal(torch.tensor(together["own"].to_numpy()).float(), numbers(own))


@pytest.mark.slow
def test_types_with_a_gradient_lead_every_search_where_float32_does():
    plain = traced(lambda effects: effects)
    for change in (torch.Tensor.double, lambda effects: effects * (_own / 2).double()):
        own = traced(change)
        for method in ("attribution", "mask-ig"):
            result = own.run(method, budget=3)
            assert result.labels == plain.run(method, budget=3).labels, method


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda effects: effects + 0j, "complex numbers"),
        (lambda effects: effects.to("meta"), "without data"),
        (lambda effects: torch.nested.nested_tensor(list(effects)), "tensors of several shapes"),
        (torch.Tensor.mean, r"\(\)"),
        (lambda effects: effects[:, None], r"\(4, 1\)"),
        (lambda effects: float(effects.sum()), "float"),
        (torch.Tensor.tolist, "list"),
        (lambda effects: effects.detach().numpy(), "ndarray"),
        (lambda effects: None, "NoneType"),
    ],
)
def test_what_is_no_real_number_per_example_is_refused(change, named):
    expected = f"'own' returned .*{named}.* must return a tensor of shape .*one effect per example"
    with pytest.raises(MetricError, match=expected):
        traced(change)
    with pytest.raises(MetricError, match=expected):
        traced(lambda effects: effects).evaluate(
            "all", metrics=[tk.metrics.Metric("own", lambda c, i: change(drop(c, i)), False)]
        )

    def own(logits, answer_tokens):
        return change(logits[:, 0].gather(1, answer_tokens[:, :1])[:, 0])

    with pytest.raises(MetricError, match=expected):
        tk.Tracer(MODEL, PAIRS, "head-outputs", own)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e300])
def test_numbers_that_are_not_finite_name_their_examples(value):
    def some(effects):
        moved = (effects != 0) & (torch.arange(len(effects)) == 1)
        return torch.where(moved, value, effects.double())

    with pytest.raises(NonFiniteMetricError, match=r"not finite on 1 of 4 .*example \d \("):
        traced(some).evaluate("all")


def test_a_mean_that_is_not_finite_names_its_metric():
    huge = tk.metrics.Metric("huge", lambda c, i: torch.where(drop(c, i) == 0, 0.0, 3e38), False)
    with pytest.raises(NonFiniteMetricError, match="The mean of the metric 'huge' is not finite"):
        traced(lambda effects: effects).evaluate("all", metrics=[huge])


@pytest.mark.parametrize(
    "change",
    [
        torch.Tensor.detach,
        torch.Tensor.long,
        lambda effects: effects > 0.01,
        torch.nn.Parameter,
        lambda effects: effects.detach() * _own,
        lambda effects: torch.from_numpy(np.square(effects.numpy())),
    ],
)
def test_without_a_gradient_only_searches_that_need_none_run(change):
    tracer = traced(change)
    for method in SEARCHES:
        with pytest.raises(NotDifferentiableError, match="No gradient reaches .* 'own'"):
            tracer.run(method, budget=2)
    assert tracer.run("top-k", budget=2).n_selected == 2


def test_an_error_of_the_metric_itself_is_the_users():
    with pytest.raises(ZeroDivisionError):
        traced(partial(lambda number, effects: effects * (number / 0), 1))
    with pytest.raises(RuntimeError, match="of my own"):
        traced(_fails)


def _fails(effects):
    raise RuntimeError("of my own")


def test_a_metric_without_a_gradient_of_its_own_weights_is_taken(recwarn):
    """Numbers of NumPy have none, and searches that need none take them."""
    weight = torch.nn.Parameter(torch.tensor(2.0))
    metric = lambda clean, moved: torch.from_numpy(((clean.x - moved.x) * weight).numpy())  # noqa: E731
    assert tk.Tracer(MODEL, PAIRS, "head-outputs", metric).run("top-k", budget=2).n_selected == 2
