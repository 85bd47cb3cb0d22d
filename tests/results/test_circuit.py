"""Circuits of edges: nodes, figures and files of the MIB benchmark."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import networkx
import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.results.test_faithfulness import names_in_mib
from tracekit.errors import ComponentError, ConfigError, DataFormatError
from tracekit.results import ParetoFront, TraceCurve
from tracekit.results.faithfulness import MIB_SHARES


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


# ---- folders of MIB --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deep():
    """A tracer of so many edges that MIB's smallest share has one; pairs of heads share keys."""
    model = tk.load_model(tiny.hf_model("llama", num_hidden_layers=8))
    return tk.Tracer(model, tiny.pairs(3, longest=1), "edges", "logit-difference")


@pytest.fixture(scope="module")
def curve(deep):
    """Sets of budgets that count a shared key once, and smaller ones; mostly of shared keys."""
    n, generator = len(deep.registry), torch.Generator().manual_seed(4)
    drawn = torch.randperm(n, generator=generator).tolist()
    drawn.sort(key=lambda i: "K" not in str(deep.registry[i]) and "V" not in str(deep.registry[i]))
    order = list(dict.fromkeys([deep.registry.index("E>logits"), *drawn]))
    sizes = sorted({*(int(share * n) for share in MIB_SHARES[:-1]), 2, 5, 10, 21, 60, 120, 250})
    results = []
    for size in sizes:
        mask = torch.zeros(n)
        mask[order[:size]] = 1
        results.append(replace(deep.as_result(mask), budget=size))
    return TraceCurve(tuple(results))


def circuits_as_mib_reads_them(folder):
    """The edges of each file in a folder, the fewest first, by the rules of MIB's evaluation.

    It takes the first nine .json or .pt files, looks up every node and edge by its name in a graph
    that it makes of cfg, and reads a score and whether the edge is in the graph.
    """
    files = [each for each in folder.iterdir() if each.suffix in (".json", ".pt")][:9]
    circuits = []
    for document in (json.loads(file.read_text()) for file in files):
        cfg, nodes, edges = document["cfg"], ["input"], set()
        assert not cfg["parallel_attn_mlp"]
        assert cfg["d_model"] > 0
        for layer in range(cfg["n_layers"]):
            heads = [f"a{layer}.h{head}" for head in range(cfg["n_heads"])]
            edges |= {f"{a}->{b}<{use}>" for a in nodes for b in heads for use in "qkv"}
            edges |= {f"{a}->m{layer}" for a in [*nodes, *heads]}
            nodes += [*heads, f"m{layer}"]
        edges |= {f"{a}->logits" for a in nodes}
        assert {*document["nodes"]} == {*nodes, "logits"}
        assert all(node == {"in_graph": True} for node in document["nodes"].values())
        assert {*document["edges"]} == edges
        assert all(edge["score"] == float(edge["in_graph"]) for edge in document["edges"].values())
        circuits.append({name for name, edge in document["edges"].items() if edge["in_graph"]})
    return sorted(circuits, key=len), len(edges)


@pytest.mark.slow
def test_nine_circuits_are_written_as_mib_reads_and_counts_them(deep, curve, tmp_path):
    folder = curve.to_mib(tmp_path / "new" / "ioi_tiny")
    assert len([*folder.iterdir()]) == 9
    circuits, n_edges = circuits_as_mib_reads_them(folder)
    assert n_edges > len(deep.registry)
    sets = []
    for result in curve:
        members = (each for each in deep.registry if str(each) in result.labels)
        sets.append(set().union(*(names_in_mib(each, deep.registry) for each in members)))
    too_large = 0
    for share, circuit in zip(MIB_SHARES[:-1], circuits, strict=True):
        fitting = [names for names in sets if len(names) <= int(share * n_edges)]
        assert circuit == max(fitting, key=len)
        budget = int(share * len(deep.registry))
        too_large += len(sets[[each.budget for each in curve].index(budget)]) > share * n_edges
    assert too_large


@pytest.mark.slow
def test_circuits_of_mib_come_back_with_its_areas(deep, curve, tmp_path):
    folder = curve.to_mib(tmp_path / "ioi_tiny")
    circuits, _ = circuits_as_mib_reads_them(folder)
    back = deep.curve_from_mib(folder)
    values = []
    for circuit, result in zip(circuits, back[:-1], strict=True):
        inside = [names_in_mib(each, deep.registry) <= circuit for each in deep.registry]
        assert result.binary_mask.tolist() == inside
        values.append(1 - deep.evaluate(1 - result.binary_mask.float()) / deep.full_effect)
    assert back[-1].n_selected == len(deep.registry)
    found = deep.faithfulness(back)
    assert found.faithfulness == pytest.approx([*values, 1], abs=1e-5)
    steps = list(pairwise(zip(MIB_SHARES, [*values, 1], strict=True)))
    cpr = sum((b - a) * (u + v) / 2 for (a, u), (b, v) in steps)
    cmd = sum((b - a) * (abs(1 - u) + abs(1 - v)) / 2 for (a, u), (b, v) in steps)
    assert (found.cpr, found.cmd) == pytest.approx((cpr, cmd), abs=1e-5)
    again = back.to_mib(tmp_path / "again")
    for file in folder.iterdir():
        assert (again / file.name).read_text() == file.read_text()


def test_a_front_is_written_too(curve, tmp_path):
    front = ParetoFront(curve.results, curve[-1].n_selected)
    assert circuits_as_mib_reads_them(front.to_mib(tmp_path / "a")) == circuits_as_mib_reads_them(
        curve.to_mib(tmp_path / "b")
    )


@pytest.mark.slow
def test_folders_that_are_not_written(deep, curve, result, tmp_path):
    with pytest.raises(DataFormatError, match=r"No set has at most 1 of the 1997 edges that MIB"):
        TraceCurve(curve[3:]).to_mib(tmp_path / "ioi_tiny")
    part = tk.Tracer(deep.model, tiny.pairs(3, longest=1), "edges", "logit-difference", layers=[0])
    with pytest.raises(DataFormatError, match=r"circuits of all edges of a model, and .* were tr"):
        TraceCurve((part.as_result(["E>MLP0"]),)).to_mib(tmp_path / "ioi_tiny")
    heads = tk.Tracer(deep.model, tiny.pairs(3, longest=1), "head-outputs")
    with pytest.raises(DataFormatError, match="and 32 head-outputs in layers 0-7 were traced"):
        TraceCurve((heads.as_result(["L0H1"]),)).to_mib(tmp_path / "ioi_tiny")
    blocks = tk.Tracer(deep.model, tiny.pairs(3, longest=1), "edges-by-block")
    with pytest.raises(DataFormatError, match="edges-by-block have no node in a MIB file"):
        TraceCurve((blocks.as_result(["E>MLP0"]),)).to_mib(tmp_path / "ioi_tiny")
    assert list(tmp_path.iterdir()) == []
    curve.save(tmp_path)
    with pytest.raises(DataFormatError, match=r"holds curve.json, which MIB would read as a circ"):
        curve.to_mib(tmp_path)


def test_folders_that_are_not_read(deep, curve, tmp_path):
    folder = curve.to_mib(tmp_path / "ioi_tiny")
    path = folder / "0.5.json"
    document = json.loads(path.read_text())
    for flag, text in (
        (False, r"0.5.json has E>L0K0 for some heads and not for others"),
        (1, r"has no in_graph of input->a0.h0<k> \(E>L0K0\)"),
    ):
        edges = document["edges"] | {"input->a0.h1<k>": {"in_graph": True}}
        changed = edges | {"input->a0.h0<k>": {"in_graph": flag}}
        path.write_text(json.dumps({**document, "edges": changed}))
        with pytest.raises(DataFormatError, match=text):
            deep.curve_from_mib(folder)
    path.unlink()
    with pytest.raises(DataFormatError, match=r"ioi_tiny holds 8 .json files, and MIB evaluat"):
        deep.curve_from_mib(folder)


def test_a_set_below_its_budget_counts_at_its_share(deep, curve):
    """As in MIB, where the circuit for a share has at most so many edges."""
    n = len(deep.registry)
    results = [replace(curve[0], budget=int(share * n)) for share in MIB_SHARES[:-1]]
    whole = TraceCurve((*results, replace(deep.as_result("all"), budget=n)))
    scores = deep.faithfulness(whole)
    value, *_, of_all = scores.faithfulness
    assert scores.shares == MIB_SHARES
    assert scores.cpr == pytest.approx(0.499 * value + 0.5 * (of_all + value) / 2)
    assert of_all == pytest.approx(1, abs=1e-5)
    assert deep.faithfulness(TraceCurve(whole[:-1])).shares == ()
