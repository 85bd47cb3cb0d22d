"""The circuit of a set of edges: its nodes by layer, and arrows from senders to receivers."""

from __future__ import annotations

import re
from math import inf, isfinite

import plotly.graph_objects as go

from tracekit._util.deferred import networkx
from tracekit._util.options import check_int
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.edges import EMBEDDING, LOGITS, EdgeGraph
from tracekit.components.masks import Mask
from tracekit.errors import ComponentError
from tracekit.figures.members import Arrow, path_network
from tracekit.figures.style import plain

_NOTES = {"[qkv]": "q, k, v: inputs", r"\bE\b": "E: embedding", "G": "G: shared key"}
"""What letters in names of nodes and at heads of arrows mean."""


def nodes_of(registry: ComponentRegistry, members: ComponentSet) -> tuple[str, ...]:
    """Returns the heads and MLPs that some edges of a registry join; see `TraceResult.nodes`."""
    graph = _graph(registry)
    ends = [registry[flat].ends.split(">") for flat in members]
    named = {sender for sender, _ in ends}
    receivers = [graph.nodes_of(receiver) for _, receiver in ends]
    named |= {nodes[0] for nodes in receivers if len(nodes) == 1}
    for nodes in receivers:
        named |= set() if named & set(nodes) else set(nodes)
    return tuple(label for label in graph.senders if label in named - {EMBEDDING})


def graph_of(
    registry: ComponentRegistry, members: ComponentSet, scores: Mask
) -> networkx.MultiDiGraph:
    """Returns some edges of a registry as a graph; see `TraceResult.graph`."""
    graph, drawn = _graph(registry), networkx.MultiDiGraph()
    drawn.add_nodes_from([EMBEDDING, LOGITS])
    for flat in members:
        label = registry[flat].ends
        sender, receiver = label.split(">")
        reads = "".join(each.lower() for each in "QKV" if each in receiver)
        for node in graph.nodes_of(receiver):
            score = scores[flat].item()
            drawn.add_edge(sender, node, label=label, score=score, reads=reads)
    within = {EMBEDDING, *networkx.descendants(drawn, EMBEDDING)}
    within &= {LOGITS, *networkx.ancestors(drawn, LOGITS)}
    for start, end, facts in drawn.edges(data=True):
        facts["carries"] = start in within and end in within
    return drawn


def circuit_figure(
    registry: ComponentRegistry,
    members: ComponentSet,
    scores: Mask,
    n: int,
    *,
    title: str,
    subtitle: str,
    quantity: str = "score",
) -> go.Figure:
    """Draws the `n` edges with the largest scores; see `TraceResult.circuit`."""
    graph, is_score = _graph(registry), quantity == "score"
    check_int("n", n)
    values = [(float(scores[flat]), registry[flat]) for flat in members]
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
            value=(sum if is_score else max)(value for value, _ in parts),
            letter="".join(each.lower() for each in "QKV" if any(each in e for _, e in parts)),
            hover="<br>".join(f"{plain(ends)}: {quantity} {value:.4g}" for value, ends in parts),
            is_sure=True,
        )
        for (start, end, _), parts in joined.items()
    ]
    marks = " ".join([*names, *(arrow.letter for arrow in arrows)])
    order = f"{len(shown)} strongest of {len(values)} edges by {quantity}"
    if rest and is_score:
        total, others = (sum(value for value, _ in part) for part in (values, rest))
        order += f"; the others sum to {others:+.3g} of {total:+.3g}"
    edges = graph_of(registry, members, scores).edges(data=True)
    carrying = {facts["label"] for *_, facts in edges if facts["carries"]}
    if len(carrying) < len(values):
        order += f"; {len(values) - len(carrying)} lie on no way from {EMBEDDING} to the logits"
    return path_network(
        names,
        [places[name] if isfinite(places[name]) else None for name in names],
        arrows,
        title=title,
        subtitle=f"{subtitle}; {order}",
        quantity=quantity,
        is_signed=is_score,
        notes=[note for mark, note in _NOTES.items() if re.search(mark, marks)],
    )


def _node(graph: EdgeGraph, receiver: str) -> str:
    """Where an edge ends: a node, or the heads that share a key or value."""
    nodes = graph.nodes_of(receiver)
    return nodes[0] if len(nodes) == 1 else re.sub("[KV]", "G", receiver)


def _place(node: str) -> float:
    """Height of a node: its layer, an MLP half a layer above."""
    if node in (EMBEDDING, LOGITS):
        return -inf if node == EMBEDDING else inf
    return int(re.findall(r"\d+", node)[0]) + 0.5 * node.startswith("MLP")


def _graph(registry: ComponentRegistry) -> EdgeGraph:
    if registry.edges is None:
        raise ComponentError(
            f"The components are {registry.describe()}, and only edges make a circuit with "
            "arrows. Trace with components='edges', or ask tracer.paths of heads and MLPs."
        )
    return registry.edges
