"""Setups: one value from which tracers are made, that files hold and code makes again."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import get_args

import pytest
import torch

import tests.tiny as tiny
import tracekit as tk
from tracekit._util.names import SourceName
from tracekit._util.options import field_help
from tracekit.components import ComponentRegistry
from tracekit.engine.setup import SETUP_OPTIONS, Setup, SetupOptions, SetupSpec
from tracekit.errors import ComponentError, ConfigError
from tracekit.measure.question import bind


@pytest.fixture(scope="module")
def model():
    return tk.load_model(tiny.hf_model("gpt2"))


SETUPS = [
    Setup(),
    Setup(components="head-outputs + mlp-blocks", metric="kl", layers=[0, -1]),
    Setup(components=["head-outputs", "mlp-blocks"], indices={0: [1, 2], -1: [0]}, positions=[0]),
    Setup(components="residual", split_by="position", layer_window=2, direction="denoising"),
    Setup(source=tk.Noise(spans=("last",), factor=2.5), source_seed=3, positions="last"),
    Setup(source="resample", source_seed=4, continuation_mean="arithmetic"),
]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_setup_is_made_again_by_its_code_and_from_json(model, setup):
    pairs = tk.PromptPairs.from_ids([r for r in tiny.rows(40) if len(r["prompt_ids"]) == 5][:4])
    registry = bind(setup, model, pairs, tk.engine.EngineConfig()).registry
    named = setup.named(registry)
    assert eval(repr(named), {"tk": tk}).named(registry) == named
    assert Setup.from_spec(json.loads(json.dumps(named.spec()))) == named
    again = bind(named, model, pairs, tk.engine.EngineConfig())
    assert again.registry == registry
    assert again.named_setup == named


def test_setup_of_a_registry_or_own_kind_names_exactly_its_components(model):
    registry = ComponentRegistry.build(model.cfg, "head-outputs", layers=[0], indices=[1])
    named = Setup(components=registry).named(registry)
    assert Setup.from_spec(json.loads(json.dumps(named.spec()))).components == registry
    assert eval(repr(named), {"tk": tk}).components == registry
    whole = ComponentRegistry.build(model.cfg, "head-outputs", layers=[1, 2])
    assert Setup(components=whole).named(whole) == Setup(components="head-outputs", layers=(1, 2))


def test_setup_code_says_where_there_is_no_code(model):
    def my_metric(clean, intervened):
        return intervened.x - clean.x

    pairs = tiny.pairs(4)
    registry = ComponentRegistry.build(model.cfg, "mlp-outputs")
    setup = Setup(components="mlp-outputs", metric=my_metric, source=tk.Mean(pairs=pairs))
    assert repr(setup) == (
        "tk.Setup(components='mlp-outputs', metric=my_metric, source=tk.Mean(pairs=...))"
    )
    named = setup.named(registry)
    assert (named.metric, named.source) == (
        "my_metric",
        f"mean over {pairs.name} ({pairs.fingerprint[:8]})",
    )
    assert repr(named).endswith("metric=my_metric, source=...)")


def test_source_seed_counts_only_where_something_is_drawn():
    assert Setup(source="zero", source_seed=5) == Setup(source="zero")
    assert Setup(source="noise", source_seed=5) != Setup(source="noise")
    assert Setup(source="noise:spans=last", source_seed=5).source_seed == 5


def test_tracer_from_a_setup_is_the_tracer_from_its_options(model):
    pairs, options = tiny.pairs(6), {"positions": "last", "direction": "denoising"}
    setup = Setup(components="head-outputs", metric="logit-difference", **options)
    tracers = [
        tk.Tracer(model, pairs, setup),
        tk.Tracer(model, pairs, "head-outputs", "logit-difference", **options),
    ]
    mask = torch.rand(len(tracers[0].registry))
    assert tracers[0].evaluate(mask) == tracers[1].evaluate(mask)
    assert tracers[0].setup == tracers[1].setup == setup
    with pytest.raises(ConfigError, match="A setup was given along with a metric or options"):
        tk.Tracer(model, pairs, setup, "kl")
    with pytest.raises(ConfigError, match="A setup was given along with a metric or options"):
        tk.Tracer(model, pairs, setup, layers=[0])


def test_types_for_type_checkers_have_every_field_of_a_setup():
    names = [each.name for each in fields(Setup)]
    assert [*SetupSpec.__annotations__] == names
    assert ["components", "metric", *SetupOptions.__annotations__] == names
    assert ("components", "metric", *SETUP_OPTIONS) == tuple(names)


def test_every_field_of_a_setup_has_help():
    helps = field_help(Setup)
    assert [*helps] == [each.name for each in fields(Setup)]
    for name, text in helps.items():
        assert text[0].isupper() or text[0] == "`", name
        assert text.endswith("."), name


def test_setup_refuses_options_that_contradict(model, unchecked):
    registry = ComponentRegistry.build(model.cfg, "head-outputs")
    with pytest.raises(ComponentError, match="were given along with a registry"):
        Setup(components=registry, layer_window=2)
    with pytest.raises(
        ConfigError, match="The option split_by is 2. Input should be 'span' or 'position'"
    ):
        replace(Setup(), split_by=2)


@pytest.mark.slow
@pytest.mark.parametrize("source", get_args(SourceName))
def test_every_source_name_has_values_of_its_own(model, source):
    """A name without a branch would silently take another one's values."""
    rows = [row for row in tiny.rows(40) if len(row["prompt_ids"]) == 5][:4]
    pairs = tk.PromptPairs.from_ids(rows)
    effects = {
        name: tk.Tracer(model, pairs, "mlp-outputs", "logit-difference", source=name).full_effect
        for name in get_args(SourceName)
    }
    assert [other for other in effects if effects[other] == effects[source]] == [source]
