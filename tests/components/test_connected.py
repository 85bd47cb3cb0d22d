"""Paths through edges: which edges of a set lie on one, and the first of a ranking that do."""

from __future__ import annotations

from types import SimpleNamespace

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.components.test_edges import SHAPES
from tracekit.components import ComponentRegistry
from tracekit.components.connected import EdgePaths, paths_of
from tracekit.components.edges import EDGE_KINDS
from tracekit.components.masks import complement_of

SMALL = {
    "grouped": SimpleNamespace(n_layers=2, n_heads=4, n_key_value_heads=2, d_model=8),
    "parallel": SHAPES["parallel"],
    "plain": SimpleNamespace(n_layers=3, n_heads=2, d_model=8),
}


def edges_on_paths(registry, members):
    """The members on a path from the embedding to the logits, by networkx."""
    graph, edges = nx.MultiDiGraph(), registry.edges
    studied = set(map(str, registry))
    present = {str(registry[member]) for member in members}
    for ends in edges.edge_ends_by_layer:
        for sender, receiver in ends:
            label = f"{sender}>{receiver}"
            if label in present or label not in studied:
                for node in edges.nodes_of(receiver):
                    graph.add_edge(sender, node, key=label)
    graph.add_nodes_from(["E", "logits"])
    reached = {"E", *nx.descendants(graph, "E")}
    leading = {"logits", *nx.ancestors(graph, "logits")}
    live = {key for start, end, key in graph.edges if start in reached and end in leading}
    return tuple(member for member in members if str(registry[member]) in live)


def registry_of(shape, kind, senders=None):
    return ComponentRegistry.of_edges(SMALL[shape], EDGE_KINDS[kind], senders=senders)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("shape", SMALL)
@pytest.mark.parametrize("kind", EDGE_KINDS)
def test_edges_on_paths_are_those_that_networkx_finds(shape, kind, data):
    senders = data.draw(st.sampled_from([None, ["E", "MLP0"], ["MLP1"]]))
    registry = registry_of(shape, kind, senders)
    n = len(registry)
    order = data.draw(st.permutations(range(n)))
    count, size = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    paths = EdgePaths(registry)
    members = order[:count]
    assert paths.edges_on_paths(members) == edges_on_paths(registry, members)
    first = paths.first(order, size)
    assert len(first) == len(set(first)) <= size
    assert edges_on_paths(registry, first) == first
    # Fewer only where no other edge joins the paths, which one more edge would.
    if len(first) < size:
        for edge in set(order) - set(first):
            assert edge not in edges_on_paths(registry, [*first, edge])


def test_a_ranking_is_read_until_the_set_is_full():
    registry = registry_of("plain", "edges-by-block")
    by_name = registry.index
    order = list(map(by_name, ["ATT0>MLP1", "E>ATT0", "E>ATT2", "E>MLP0", "MLP1>logits"]))
    order += [edge for edge in range(len(registry)) if edge not in order]
    paths = paths_of(registry)
    assert set(paths.first(order, 3)) == set(map(by_name, ["ATT0>MLP1", "E>ATT0", "MLP1>logits"]))
    # The next edges would complete no path; the edge from the embedding to the logits is one.
    assert paths.first(order, 2) == (by_name("E>logits"),)
    assert paths.first(order, len(order)) == tuple(order)


@pytest.mark.parametrize("kind", EDGE_KINDS)
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gpt_neox"])
def test_edges_on_no_path_change_nothing_with_all_others_patched(kind, architecture):
    pairs = tiny.pairs(3, seed=5, longest=1)
    engine = tiny.engine(tiny.shared_model(architecture), pairs, kind, "logit-difference")
    n, generator = engine.n_components, torch.Generator().manual_seed(0)
    orders = [torch.randperm(n, generator=generator).tolist() for _ in range(8)]
    sets = [tuple(sorted(order[: n // 3])) for order in orders]
    live = [engine.edge_paths.edges_on_paths(each) for each in sets]
    assert any(0 < len(a) < len(b) for a, b in zip(live, sets, strict=True))
    others, others_live = ([complement_of(each, n) for each in every] for every in (sets, live))
    alone, alone_live = engine.set_effects(others), engine.set_effects(others_live)
    assert torch.allclose(alone, alone_live, atol=2e-5)


def test_where_some_tokens_are_not_patched_no_paths_are_asked_for():
    def paths(**options):
        pairs = tiny.pairs(3, longest=options.pop("longest", 1))
        return tiny.engine(tiny.shared_model("gpt2"), pairs, "edges-by-block", **options).edge_paths

    assert paths() is not None
    assert paths(longest=4, positions="all") is not None
    assert paths(longest=4) is None
    assert paths(positions="last") is None
