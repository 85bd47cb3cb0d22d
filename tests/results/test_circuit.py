"""Circuits of edges: nodes, figures and files of the MIB benchmark."""

from __future__ import annotations

import json

import networkx
import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit.errors import ComponentError, ConfigError, DataFormatError


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def result(request):
    model = tiny.shared_model(request.param)
    tracer = tk.Tracer(model, tiny.pairs(8), "edges", "logit-difference")
    return tracer.run("mask-ig", budget=25, sign="full")


def subtitle(figure):
    return figure.layout.title.subtitle.text.replace("<br>", " ")


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


def test_edges_among_the_nodes_of_a_result(result):
    """A result of edges stands for its nodes, one of nodes for its labels."""
    graph, of_edges = result.registry.edges, tk.components.ComponentRegistry.of_edges
    among = of_edges(graph, among=result)
    assert set(result.labels) <= set(map(str, among))
    assert among == of_edges(graph, among=result.nodes)
    tracer = tk.Tracer(tiny.shared_model("gpt2"), tiny.pairs(4), "head-outputs+mlp-blocks")
    of_nodes = tracer.as_result(["L0H1", "MLP1"])
    shape = tracer.model.cfg
    expected = of_edges(shape, senders=["E", "L0H1", "MLP1"], receivers=["L0H1", "MLP1", "logits"])
    assert of_edges(shape, among=of_nodes) == expected


def test_a_circuit_without_heads_has_a_figure():
    tracer = tk.Tracer(tiny.shared_model("gpt2"), tiny.pairs(4), "edges-by-block")
    figure = tracer.as_result(["E>logits"]).circuit()
    assert {text.text for text in figure.layout.annotations} >= {"E", "logits"}


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
    said = subtitle(figure)
    assert f"10 strongest of 25 edges by score; the others sum to {rest:+.3g}" in said
    names = {each.text for each in figure.layout.annotations}
    assert {"E"} <= names or not any(label.startswith("E>") for label in strongest)


def test_the_graph_has_all_edges_and_is_written(result, tmp_path):
    graph, n_heads = result.graph(), 4 // result.registry.edges.n_key_value_heads
    facts = [each for *_, each in graph.edges(data=True)]
    assert {each["label"] for each in facts} == set(result.labels)
    for _, end, each in graph.edges(data=True):
        assert each["score"] == result.component_scores[result.registry.index(each["label"])]
        receiver = each["label"].split(">")[1]
        assert receiver == end or each["reads"].upper() == receiver.strip("L0123456789")
        shared = [other for other in facts if other["label"] == each["label"]]
        assert len(shared) == (n_heads if each["reads"] in ("k", "v") else 1)
    networkx.write_graphml(graph, tmp_path / "circuit.graphml")
    read = networkx.read_graphml(tmp_path / "circuit.graphml")
    found = [{name: each[name] for name in facts[0]} for *_, each in read.edges(data=True)]
    assert sorted(facts, key=str) == sorted(found, key=str)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_edges_that_carry_nothing_change_no_faithfulness(architecture):
    """They lie on no way from the embedding to the logits, so all else patched, both ends are."""
    tracer = tk.Tracer(
        tk.load_model(tiny.hf_model(architecture)),
        tiny.pairs(4, longest=1),
        "edges",
        "logit-difference",
    )
    n, n_idle = len(tracer.registry), 0
    for seed in range(3):
        drawn = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: n // 9]
        result = tracer.as_result([str(tracer.registry[i]) for i in drawn.tolist()])
        facts = [each for *_, each in result.graph().edges(data=True)]
        carrying = {each["label"] for each in facts if each["carries"]}
        idle = set(result.labels) - carrying
        n_idle += len(idle)

        def done(labels):
            mask = torch.ones(n)
            mask[[tracer.registry.index(label) for label in labels]] = 0
            return tracer.engine.effects(mask)

        torch.testing.assert_close(done(carrying), done(result.labels), rtol=1e-5, atol=1e-6)
        assert not carrying or (done(idle) - done(result.labels)).abs().max() > 1e-4
        said = subtitle(result.circuit())
        assert (f"{len(idle)} lie on no way from E to the logits" in said) == bool(idle)
    assert n_idle > 5


@pytest.mark.parametrize("n", [0, 1.5, None])
def test_a_number_of_edges(result, n, unchecked):
    with pytest.raises(ConfigError, match="Give a whole number, at least 1"):
        result.circuit(n)


def test_other_components_have_no_circuit(any_model):
    result = tk.Tracer(any_model, tiny.pairs(4), "mlp-blocks").run("top-k", budget=1)
    for ask in (lambda: result.circuit(), lambda: result.nodes, result.graph):
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
