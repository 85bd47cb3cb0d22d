"""Circuits of edges: nodes, figures and files of the MIB benchmark."""

from __future__ import annotations

import json

import pytest

import tracekit as tk
from tests import tiny
from tracekit.errors import ComponentError, ConfigError, DataFormatError


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def result(request):
    model = tiny.shared_model(request.param)
    tracer = tk.Tracer(model, tiny.pairs(8), "edges", "logit-difference")
    return tracer.run("mask-ig", budget=25, sign="full")


def test_nodes_are_the_ends_of_the_edges(result):
    """Every sender is a node; of heads that share a key some are, or all of them."""
    ends = [label.split(">") for label in result.labels]
    senders = {sender for sender, _ in ends} - {"E"}
    assert senders <= set(result.nodes)
    for _, receiver in ends:
        heads = set(result.registry.edges.nodes_of(receiver)) - {"logits"}
        assert not heads or heads & set(result.nodes)
    order = [result.registry.edges.senders.index(node) for node in result.nodes]
    assert order == sorted(order)
    others = tk.components.ComponentRegistry.build(result.registry.edges, "head-outputs+mlp-blocks")
    assert all(others[node] for node in result.nodes)


def test_the_figure_has_the_strongest_edges(result):
    figure = result.circuit(n=10)
    scores = {
        label: result.component_scores[result.registry.index(label)].item()
        for label in result.labels
    }
    strongest = sorted(scores, key=lambda label: -abs(scores[label]))[:10]
    hovers = "<br>".join(
        str(trace.text) for trace in figure.data if trace.mode == "lines" and trace.text
    )
    shown = {line.split(":")[0].replace("&gt;", ">") for line in hovers.split("<br>")}
    assert shown == set(strongest)
    rest = sum(scores.values()) - sum(scores[label] for label in strongest)
    assert f"10 strongest of 25 edges by score; the others sum to {rest:+.3g}" in str(
        figure.layout.title
    ) + str(figure.layout.annotations)
    names = {each.text for each in figure.layout.annotations}
    assert {"E"} <= names or not any(label.startswith("E>") for label in strongest)


@pytest.mark.parametrize("n", [0, 1.5, None])
def test_a_number_of_edges(result, n, unchecked):
    with pytest.raises(ConfigError, match="Give a whole number, at least 1"):
        result.circuit(n)


def test_other_components_have_no_circuit(any_model):
    result = tk.Tracer(any_model, tiny.pairs(4), "mlp-blocks").run("top-k", budget=1)
    for ask in (lambda: result.circuit(), lambda: result.nodes):
        with pytest.raises(ComponentError, match=r"only edges make a circuit.*tracer\.paths"):
            ask()


def test_mib_files_come_back(result, tmp_path):
    path = result.to_mib(tmp_path / "edges.json")
    edges = json.loads(path.read_text())["edges"]
    is_grouped = "a1.h3<k>" in " ".join(edges)
    assert is_grouped
    # As many as EAP has, which gives every head a key and a value of its own.
    assert (
        len(edges) == sum(1 + 5 * n for n in range(3)) * 12 + sum(5 + 5 * n for n in range(3)) + 16
    )
    assert edges["a0.h1->a1.h2<q>"]["score"] == pytest.approx(
        result.component_scores[result.registry.index("L0H1>L1Q2")].item()
    )
    inside = {name for name, edge in edges.items() if edge["in_graph"]}
    assert len(inside) >= result.n_selected
    model = tiny.shared_model("gpt2" if len(result.registry) == 262 else "llama")
    tracer = tk.Tracer(model, tiny.pairs(8), "edges", "logit-difference")
    scores = tracer.from_mib(path)
    assert scores.tolist() == pytest.approx(result.component_scores.tolist(), abs=1e-6)
    del edges["input->m0"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"edges": edges}))
    with pytest.raises(DataFormatError, match=r"no score of input->m0 \(E>MLP0\)"):
        tracer.from_mib(path)
