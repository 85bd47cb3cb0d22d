from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.components import KINDS, Component, ComponentRegistry
from tracekit.components.edges import EDGE_KINDS
from tracekit.errors import ComponentError, UnknownNameError, near_miss

GPT2 = SimpleNamespace(n_layers=12, n_heads=12, d_model=768, d_mlp=3072)
LLAMA_7B = SimpleNamespace(n_layers=32, n_heads=32, d_model=4096, d_mlp=11008)


@pytest.mark.parametrize(
    ("shape", "kinds", "count"),
    [
        (GPT2, "attention-patterns", 144),
        (GPT2, "mlp-outputs", 9216),
        (GPT2, "mlp-neurons", 36864),
        (LLAMA_7B, "head-outputs+mlp-blocks", 1024 + 32),
        (SimpleNamespace(n_layers=6, n_heads=12, d_model=768), "attention-patterns", 72),
        (SimpleNamespace(n_layers=48, n_heads=25, d_model=1600), "mlp-outputs", 76800),
    ],
)
def test_counts_of_the_paper(shape, kinds, count):
    assert len(ComponentRegistry.build(shape, kinds)) == count


@given(
    kinds=st.lists(st.sampled_from(sorted(set(KINDS) - set(EDGE_KINDS))), min_size=1, unique=True),
    layers=st.lists(st.integers(0, 11), min_size=1, unique=True),
    indices=st.none() | st.lists(st.integers(0, 11), min_size=1, unique=True),
    place=st.floats(0, 0.999),
)
def test_flat_index_and_component_are_inverse(kinds, layers, indices, place):
    registry = ComponentRegistry.build(GPT2, kinds, layers=layers, indices=indices)
    flat = int(place * len(registry))
    assert registry.index(registry[flat]) == flat
    assert registry[flat].layer in layers
    assert ComponentRegistry.from_spec(registry.spec()) == registry


def test_flat_order_is_kind_then_layer_then_index():
    registry = ComponentRegistry.build(GPT2, ["head-outputs", "mlp-blocks"], layers=[-1, 0])
    assert registry[0] == Component("head-outputs", 0, 0)
    assert registry[12] == Component("head-outputs", 11, 0)
    assert registry[-1] == Component("mlp-blocks", 11, 0)
    assert list(registry) == [registry[i] for i in range(len(registry))]
    assert registry.describe() == "24 head-outputs in layers 0, 11, 2 mlp-blocks in layers 0, 11"


@pytest.mark.parametrize(
    ("component", "label", "hook"),
    [
        (Component("attention-patterns", 5, 3), "L5H3", "blocks.5.attn.hook_pattern"),
        (Component("head-outputs", 5, 3), "L5H3", "blocks.5.attn.hook_z"),
        (Component("mlp-outputs", 5, 70), "L5O70", "blocks.5.hook_mlp_out"),
        (Component("mlp-neurons", 5, 70), "L5N70", "blocks.5.mlp.hook_post"),
        (Component("mlp-blocks", 5), "MLP5", "blocks.5.hook_mlp_out"),
    ],
)
def test_labels_and_hook_points(component, label, hook):
    registry = ComponentRegistry.build(GPT2, component.kind)
    assert registry.label(registry.index(component)) == label
    assert hook in registry.hook_names


def test_labels_that_would_be_alike_name_their_kind():
    registry = ComponentRegistry.build(GPT2, "attention-patterns+head-outputs", layers=[0])
    assert registry.label(0) == "L0H0 (attention-patterns)"
    assert len({registry.label(i) for i in range(len(registry))}) == len(registry)


def test_indices_by_layer():
    registry = ComponentRegistry.build(GPT2, "attention-patterns", indices={2: [7, 1], 4: [0]})
    assert [str(c) for c in registry] == ["L2H1", "L2H7", "L4H0"]
    assert registry.layers == (2, 4)
    last = ComponentRegistry.build(GPT2, "attention-patterns", indices={-1: [3]})
    assert [str(c) for c in last] == ["L11H3"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kinds": "neuron"}, UnknownNameError, "'neuron'. Did you mean"),
        ({"kinds": "head-outputs+head-outputs"}, ComponentError, "A kind is named twice"),
        ({"layers": [12]}, ComponentError, r"layers are \W*12\W.* whole numbers from 0 to 11"),
        ({"layers": []}, ComponentError, "contains no component"),
        ({"indices": {12: [0]}}, ComponentError, r"layers \[12\] of the indices are not all among"),
        ({"indices": {0: [1]}, "layers": [1]}, ComponentError, "Use layers 1"),
        ({"indices": {11: [1], -1: [2]}}, ComponentError, "or name one twice"),
        ({"indices": [12]}, ComponentError, r"\[12\], .* attention-patterns of layer 0. Give"),
    ],
)
def test_bad_selections(options, error, text):
    with pytest.raises(error, match=text):
        ComponentRegistry.build(GPT2, **options)


def test_unknown_component_and_index():
    registry = ComponentRegistry.build(GPT2, "attention-patterns", layers=[0])
    with pytest.raises(
        ComponentError, match=r"L3H3 \(attention-patterns\) is not among the 12 components"
    ):
        registry.index(Component("attention-patterns", 3, 3))
    with pytest.raises(ComponentError, match=r"'L0H12' is not .* Did you mean 'L0H..?'\? It cont"):
        registry.index("L0H12")
    assert near_miss("R2@4", ["R2@3", "R2@4 is", "R2@5 on"]) == "Did you mean 'R2@4 is'?"
    with pytest.raises(ComponentError, match=r"'l0h3' is not .* Did you mean 'L0H3'\?"):
        registry.index("l0h3")
    with pytest.raises(IndexError, match="Component 12 of 12. Use 0 to 11."):
        registry[12]


def test_components_are_found_by_label_and_by_place():
    registry = ComponentRegistry.build(GPT2, "head-outputs+mlp-blocks", spans=("a", "b"))
    for flat in (0, 5, len(registry) - 1):
        assert registry[registry.label(flat)] == registry[flat]
    with pytest.raises(ComponentError, match="'L0H3@a', 'L0H3@b'"):
        registry.index((0, 3))
    alike = ComponentRegistry.build(GPT2, "head-outputs+attention-patterns")
    with pytest.raises(ComponentError, match=r"'L1H2' names 2 .*'L1H2 \(head-outputs\)'"):
        alike.index("L1H2")
    assert alike["L1H2 (attention-patterns)"] == Component("attention-patterns", 1, 2)
    assert ComponentRegistry.build(GPT2)[(3, 4)] == Component("attention-patterns", 3, 4)
