"""The circuit of a set of edges: its nodes by layer, and arrows from senders to receivers."""

from __future__ import annotations

import re
from math import inf, isfinite
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from tracekit._util.options import check_whole
from tracekit.components.edges import EMBEDDING, LOGITS, EdgeGraph
from tracekit.components.masks import Mask, members_of_mask
from tracekit.errors import ComponentError
from tracekit.figures.paths import Arrow, path_network
from tracekit.figures.style import data_and_model, plain

if TYPE_CHECKING:
    import networkx

    from tracekit.results.result import TraceResult


def nodes_of(result: TraceResult) -> tuple[str, ...]:
    """Labels of the heads and MLPs that selected edges join, layer by layer, for other tracers.

    Of heads that share a key or value, those that also send or have a query; of none, all.

    Raises:
        ComponentError: The components are no edges.
    """
    graph = _graph(result)
    ends = [edge.ends.split(">") for edge in result.components]
    named = {sender for sender, _ in ends}
    receivers = [graph.nodes_of(receiver) for _, receiver in ends]
    named |= {nodes[0] for nodes in receivers if len(nodes) == 1}
    for nodes in receivers:
        named |= set() if named & set(nodes) else set(nodes)
    return tuple(label for label in graph.senders if label in named - {EMBEDDING})


def graph_of(result: TraceResult) -> networkx.MultiDiGraph:
    """The selected edges as a graph: `networkx.write_graphml(result.graph(), path)` writes it.

    Nodes are the embedding `E`, heads, MLPs and `logits`. An edge has its `label`, `score`, `reads`
    (q, k, v or nothing) and whether it `carries` anything: whether it lies on a way from `E` to the
    logits. Where all but the selected edges are patched, at every position, the others change
    nothing. One into a key that heads share enters each of them.

    Raises:
        ComponentError: The components are no edges.
    """
    import networkx

    graph, drawn = _graph(result), networkx.MultiDiGraph()
    drawn.add_nodes_from([EMBEDDING, LOGITS])
    for flat in members_of_mask(result.binary_mask):
        label = result.registry[flat].ends
        sender, receiver = label.split(">")
        reads = "".join(each.lower() for each in "QKV" if each in receiver)
        for node in graph.nodes_of(receiver):
            score = _scores(result)[flat].item()
            drawn.add_edge(sender, node, label=label, score=score, reads=reads)
    within = {EMBEDDING, *networkx.descendants(drawn, EMBEDDING)}
    within &= {LOGITS, *networkx.ancestors(drawn, LOGITS)}
    for start, end, facts in drawn.edges(data=True):
        facts["carries"] = start in within and end in within
    return drawn


def circuit_figure(result: TraceResult, n: int = 30) -> go.Figure:
    """The strongest edges as a circuit: nodes by layer, arrows from senders to receivers.

    An arrow is as wide as its score is large, solid above 0 and dashed below; q, k or v at its head
    says what it enters. Heads that share a key are one node (`G`) where it is read.

    Args:
        result: Selected edges.
        n: Edges to draw; what the scores of the others sum to stands below the title, and how many
            of all carry nothing (`graph`).

    Raises:
        ComponentError: The components are no edges.
    """
    graph = _graph(result)
    check_whole("n", n)
    members, scores = members_of_mask(result.binary_mask), _scores(result)
    values = [(float(scores[flat]), result.registry[flat]) for flat in members]
    values.sort(key=lambda each: -abs(each[0]))
    shown, rest = values[:n], values[n:]
    ends = [edge.ends.split(">") for _, edge in shown]
    nodes = [(sender, _node(graph, receiver)) for sender, receiver in ends]
    places = {name: _place(name) for pair in nodes for name in pair}
    names = sorted(places, key=lambda name: (places[name], name))
    joined: dict[tuple[str, str, bool], list[tuple[float, str]]] = {}
    for (value, edge), (start, end) in zip(shown, nodes, strict=True):
        joined.setdefault((start, end, value > 0), []).append((value, edge.ends))
    arrows = [
        Arrow(
            start=names.index(start),
            end=names.index(end),
            value=sum(value for value, _ in parts),
            letter="".join(each.lower() for each in "QKV" if any(each in e for _, e in parts)),
            hover="<br>".join(f"{plain(ends)}: score {value:.4g}" for value, ends in parts),
            is_sure=True,
        )
        for (start, end, _), parts in joined.items()
    ]
    said = f"{len(shown)} strongest of {len(values)} edges by score"
    if rest:
        total, others = (sum(value for value, _ in part) for part in (values, rest))
        said += f"; the others sum to {others:+.3g} of {total:+.3g}"
    carrying = {
        facts["label"] for *_, facts in graph_of(result).edges(data=True) if facts["carries"]
    }
    if len(carrying) < len(values):
        said += f"; {len(values) - len(carrying)} lie on no way from {EMBEDDING} to the logits"
    return path_network(
        names,
        [places[name] if isfinite(places[name]) else None for name in names],
        arrows,
        title=f"{plain(result.title)}: {data_and_model(result.dataset, result.model)}",
        subtitle=said,
        quantity="score",
    )


def _scores(result: TraceResult) -> Mask:
    return result.soft_mask if result.component_scores is None else result.component_scores


def _node(graph: EdgeGraph, receiver: str) -> str:
    """Where an edge ends: a node, or the heads that share a key or value."""
    nodes = graph.nodes_of(receiver)
    return nodes[0] if len(nodes) == 1 else re.sub("[KV]", "G", receiver)


def _place(node: str) -> float:
    """Height of a node: its layer, an MLP half a layer above."""
    if node in (EMBEDDING, LOGITS):
        return -inf if node == EMBEDDING else inf
    return int(re.findall(r"\d+", node)[0]) + 0.5 * node.startswith("MLP")


def _graph(result: TraceResult) -> EdgeGraph:
    if result.registry.edges is None:
        raise ComponentError(
            f"The components are {result.registry.describe()}, and only edges make a circuit with "
            "arrows. Trace with components='edges', or ask tracer.paths of heads and MLPs."
        )
    return result.registry.edges
