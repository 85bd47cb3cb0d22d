"""Edges by name: which there are, what they are called, and how they are narrowed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tracekit.components import ComponentRegistry
from tracekit.components.edges import EDGE_KINDS
from tracekit.errors import ComponentError

SHAPES = {
    "smollm2": SimpleNamespace(n_layers=30, n_heads=9, n_key_value_heads=3, d_model=576),
    "gpt2": SimpleNamespace(n_layers=12, n_heads=12, d_model=768),
    "parallel": SimpleNamespace(n_layers=2, n_heads=2, d_model=8, parallel_attn_mlp=True),
}


@pytest.mark.parametrize(
    ("shape", "kind", "count"),
    [
        ("smollm2", "edges", 70_651),
        # As EAP counts them in GPT-2 small.
        ("gpt2", "edges", 32_491),
        ("gpt2", "edges-by-head", 11_611),
        ("gpt2", "edges-by-block", 325),
        # Into each layer 2 x 3 and 1 readers, of 1 and 4 senders; 7 into the logits.
        ("parallel", "edges", 7 * 1 + 7 * 4 + 7),
    ],
)
def test_counts(shape, kind, count):
    assert len(ComponentRegistry.build(SHAPES[shape], kind)) == count


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", EDGE_KINDS)
def test_labels_are_unique_and_name_their_edge(shape, kind):
    registry = ComponentRegistry.build(SHAPES[shape], kind)
    labels = [str(edge) for edge in registry]
    assert len(set(labels)) == len(labels)
    last = len(registry) - 1
    for number in (0, last // 3, last):
        assert registry.index(labels[number]) == number
        assert registry.index(registry[number]) == number
        assert registry.label(number) == labels[number] == str(registry[number])
    assert labels[0].startswith("E>")
    assert labels[-1].endswith(">logits")


def test_senders_lie_before_receivers():
    """Every pair of a writer and a later reader is an edge, and no other."""
    labels = set(map(str, ComponentRegistry.build(SHAPES["gpt2"], "edges")))
    assert {"L3H5>L4K0", "MLP3>L4V11", "L3H5>MLP3", "E>MLP0", "MLP11>logits"} <= labels
    assert not {"L4H0>L4Q1", "L5H0>L4Q0", "MLP4>MLP4", "MLP4>L4Q0", "E>E"} & labels
    parallel = set(map(str, ComponentRegistry.build(SHAPES["parallel"], "edges")))
    assert "L1H0>MLP1" not in parallel
    grouped = set(map(str, ComponentRegistry.build(SHAPES["smollm2"], "edges-by-head")))
    assert {"L0H8>L1G2", "L0H8>MLP0"} <= grouped


_INTO_L0H1 = ["E>L0Q1", "E>L0K1", "E>L0V1"]


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"senders": ["E"], "receivers": ["MLP1"]}, ["E>MLP1"]),
        # A head stands for all that it reads.
        (
            {"senders": ["L0H1"], "receivers": ["L1H0", "logits"]},
            ["L0H1>L1Q0", "L0H1>L1K0", "L0H1>L1V0", "L0H1>logits"],
        ),
        ({"senders": ["L0H1"], "receivers": ["L1K0"]}, ["L0H1>L1K0"]),
        (
            {"among": ["L0H1", "MLP1"]},
            ["L0H1>MLP1", "E>MLP1", "L0H1>logits", "E>logits", "MLP1>logits", *_INTO_L0H1],
        ),
        ({"among": ["L0H1", "MLP1"], "receivers": ["MLP1"]}, ["L0H1>MLP1", "E>MLP1"]),
        ({"layers": [-1], "senders": ["E", "L0H0", "MLP1"]}, None),
    ],
)
def test_narrowed(options, labels):
    shape = SimpleNamespace(n_layers=2, n_heads=2, d_model=8)
    registry = ComponentRegistry.of_edges(shape, **options)
    if labels is None:
        assert {edge.ends.split(">")[0] for edge in registry} == {"E", "MLP1"}
        assert registry.layers == (1, 2)
    else:
        assert sorted(map(str, registry)) == sorted(labels)
    whole = ComponentRegistry.build(shape, "edges")
    assert [whole[str(edge)] for edge in registry] == list(registry)
    assert ComponentRegistry.from_spec(registry.spec()) == registry


@pytest.mark.parametrize(
    ("options", "said"),
    [
        # 6 + 3 of the first layer, 24 + 6 of the second, 7 into the logits.
        ({}, "46 edges into layers 0-1 and the logits"),
        ({"receivers": ["MLP1"]}, "6 edges into layers 1"),
        ({"receivers": ["logits"]}, "7 edges into the logits"),
    ],
)
def test_the_logits_are_no_layer(options, said):
    shape = SimpleNamespace(n_layers=2, n_heads=2, d_model=8)
    assert ComponentRegistry.of_edges(shape, **options).describe() == said


def test_edges_of_another_model_are_not_confused():
    shapes = [SimpleNamespace(n_layers=2, n_heads=n, d_model=8) for n in (2, 4)]
    small, large = (ComponentRegistry.build(shape, "edges") for shape in shapes)
    with pytest.raises(ComponentError, match="is not among the"):
        large.index(small[-1])


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        ({"by": "units"}, "by is 'units'. Use one of inputs, heads, blocks."),
        ({"senders": ["L0H9"]}, "the model has no 'L0H9' among them"),
        ({"receivers": "logits"}, "Give a list of labels, such as"),
        ({"senders": ["MLP1"], "receivers": ["MLP0"]}, "No sender lies before a receiver"),
        ({"among": ["L0H9"]}, "the model has no 'L0H9' among them"),
        ({"layers": [4]}, "whole numbers from 0 to 1."),
    ],
)
def test_refused(ask, text, unchecked):
    with pytest.raises(ComponentError, match=text):
        ComponentRegistry.of_edges(SimpleNamespace(n_layers=2, n_heads=2, d_model=8), **ask)


@pytest.mark.parametrize(
    "options",
    [{"kinds": "edges+mlp-blocks"}, {"kinds": "edges", "indices": [0]}, {"layer_window": 2}],
)
def test_edges_are_traced_alone(options):
    with pytest.raises(ComponentError, match=r"by layers, or by ComponentRegistry\.of_edges"):
        ComponentRegistry.build(SHAPES["gpt2"], **{"kinds": "edges", **options})


@pytest.mark.parametrize(
    "change",
    [
        {"width": 12},
        {"edges": None},
        {"edges": {"by": "heads"}},
        {"edges": {"n_heads": 0}},
        {"edges": {"n_layers": 1}},
    ],
)
def test_described_edges_of_no_model(change):
    registry = ComponentRegistry.build(SHAPES["parallel"], "edges")
    spec = registry.spec()
    for site in spec:
        if change.get("edges", 0) is None:
            del site["edges"]
        elif "edges" in change:
            site["edges"] = {**site["edges"], **change["edges"]}
        else:
            site.update(change)
    with pytest.raises(ComponentError):
        ComponentRegistry.from_spec(spec)
