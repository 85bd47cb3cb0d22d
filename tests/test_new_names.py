"""A name without a branch of its own is an error: nothing gives it the values of another one.

Setups check their values when they are made; here the `Literal` has one name more. Metrics, kinds
and search methods are tables, which `test_public_names.py` holds against their names.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import pytest
import torch

import tests.tiny as tiny
import tracekit as tk
from tracekit import metrics
from tracekit._util import options
from tracekit.components.kinds import KINDS
from tracekit.engine import layout, setup_fields
from tracekit.engine.setup import Setup
from tracekit.errors import ConfigError, UnknownNameError
from tracekit.metrics import METRICS
from tracekit.results import panels
from tracekit.search import objectives
from tracekit.search.learned import reward

NEW: Any = "new-name"


@pytest.fixture(scope="module")
def tracer():
    pairs = tk.PromptPairs.from_ids(tiny.rows(2))
    return tk.Tracer(tk.load_model(tiny.hf_model("gpt2")), pairs, "mlp-blocks")


@pytest.mark.parametrize(
    ("field", "literal"), [("direction", "Direction"), ("split_by", "SplitBy")]
)
def test_new_name_of_a_setup(tracer, monkeypatch, field, literal):
    names = (*get_args(getattr(setup_fields, literal)), NEW)
    monkeypatch.setattr(setup_fields, literal, Literal[names])
    options.field_hints.cache_clear()
    # What is no other way to split is the name of a span, which these prompts have not.
    rows = [row | {"spans": {"first": [0, 1]}} for row in tiny.rows(2)]
    pairs = tk.PromptPairs.from_ids(rows) if field == "split_by" else tracer.pairs
    with pytest.raises(Exception, match=NEW):  # checked annotations refuse it earlier
        tk.Tracer(tracer.model, pairs, Setup(components="mlp-blocks", **{field: NEW}))
    options.field_hints.cache_clear()


def test_new_positions():
    rows = [((5, 6, 7), ()), ((5, 6, 7, 8), ())]
    assert layout._position_mask("last", rows).sum() == 2
    with pytest.raises(ConfigError, match=NEW):
        layout._position_mask(NEW, rows)


def test_new_metric_and_kind(tracer):
    assert NEW not in METRICS
    with pytest.raises(UnknownNameError, match=NEW):
        metrics.resolve_metric(NEW)
    assert NEW not in KINDS
    with pytest.raises(UnknownNameError, match=NEW):
        tk.Tracer(tracer.model, tracer.pairs, NEW)


def test_new_objective(tracer):
    assert tuple(objectives._BY_NAME) == get_args(objectives.ObjectiveName)
    with pytest.raises(ConfigError, match=NEW):
        objectives.resolve_objective(NEW)


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: reward.make_loss(NEW, tk.search.make_target(engine)),
        lambda engine: metrics.continuation_log_prob(
            torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), NEW
        ),
    ],
    ids=["reward", "continuation mean"],
)
def test_new_name_of_an_internal_choice(tracer, call):
    """Annotations that are checked refuse it too."""
    with pytest.raises(Exception, match=NEW):
        call(tracer.engine)


@pytest.mark.parametrize("color", get_args(panels.CellColor))
def test_every_colour_has_a_branch(color):
    assert (panels.scale_of(color, 4, 1.0) is None) == (color in ("selected", "none"))


def test_new_colour():
    with pytest.raises(ConfigError, match=NEW):
        panels.scale_of(NEW, 4, 1.0)
