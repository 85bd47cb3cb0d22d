"""Circuits: that of a set of edges, and those from the literature, beside a set.

A set of edges has nodes by layer, and arrows from senders to receivers. Beside a published circuit,
a set has hits, misses and extras.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tracekit._util.deferred import networkx, pd
from tracekit._util.markup import clean_text
from tracekit._util.options import check_int
from tracekit.components import ComponentRegistry, ComponentSet
from tracekit.components.edges import EMBEDDING, LOGITS, EdgeGraph
from tracekit.components.masks import BinaryMask, Mask
from tracekit.components.members import ComponentsLike, mask_of
from tracekit.errors import ComponentError, ConfigError, UnknownNameError
from tracekit.figures.members import Arrow, path_network
from tracekit.figures.style import plain
from tracekit.results.display import InWords, Tabular

_NOTES = {"[qkv]": "q, k, v: inputs", r"\bE\b": "E: embedding", "G": "G: shared key"}
"""What letters in names of nodes and at heads of arrows mean."""
_PUBLISHED = Path(__file__).with_name("published_circuits.json")


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Against(InWords, Tabular):
    """A set beside a circuit that somebody has published, or named; `TraceResult.against`."""

    name: str
    """What the circuit is called, and where it stands."""
    method: str
    """Title of the search that selected the set."""
    table: pd.DataFrame
    """A row for each component of either: `component`; `verdict`, a `hit` if it is in both, a
    `miss` in the circuit alone, an `extra` in the set alone; its `role` in the circuit; `score`,
    what the method ranked it by (of top-k its single effect; of spans the largest)."""
    not_studied: tuple[str, ...]
    """Members of the circuit that are no component of the tracer: they count for nothing."""

    def __getitem__(self, verdict: str) -> list[str]:
        """The components of a verdict."""
        return self.table["component"][self.table["verdict"] == verdict].tolist()

    @property
    def precision(self) -> float:
        """Share of the set that is in the circuit; NaN of an empty set."""
        return len(self["hit"]) / (len(self["hit"] + self["extra"]) or float("nan"))

    @property
    def recall(self) -> float:
        """Share of what is studied of the circuit that is in the set; NaN if nothing is."""
        return len(self["hit"]) / (len(self["hit"] + self["miss"]) or float("nan"))

    def __repr__(self) -> str:
        shares = f"precision {self.precision:.2f}, recall {self.recall:.2f}"
        lines = [f"{self.method} ({self.intervention}) against {self.name}: {shares}"]
        by_verdict = {name: self[name] for name in ("hit", "extra", "miss")}
        for name, labels in (by_verdict | {"not studied": [*self.not_studied]}).items():
            plural = {"hit": "hits", "extra": "extras", "miss": "misses"}.get(name, name)
            if n := len(labels):
                lines.append(f"  {n} {name if n == 1 else plural}: {', '.join(labels)}")
        return clean_text("\n".join(lines))


def name_and_roles(circuit: Any, result: Any) -> tuple[str, dict[str, str]]:
    """What a circuit is called, and the role of each of its members, by label without span."""
    if not isinstance(circuit, str):
        chosen = mask_of(circuit, result.registry).nonzero()[:, 0].tolist()
        is_result = hasattr(circuit, "run")
        name = f"{circuit.title} ({circuit.setup.intervention})" if is_result else "given set"
        return name, dict.fromkeys((_labels(result)[i] for i in chosen), "")
    circuits = json.loads(_PUBLISHED.read_text(encoding="utf-8"))
    if circuit not in circuits:
        raise UnknownNameError("circuit", circuit, circuits)
    entry, sizes = circuits[circuit], result.model_facts.sizes
    wanted, own = (f"{e['n_layers']} layers of {e['n_heads']} heads" for e in (entry, sizes))
    roles = {label: role for role, labels in entry["roles"].items() for label in labels.split()}
    if wanted != own or not {*roles} & {*_labels(result)}:
        raise ConfigError(
            f"The circuit {circuit!r} is of heads of a model of {wanted}, and the result is of "
            f"{result.registry.describe()} of {own}. Give labels of these: ['L0H1', 'L1H4']."
        )
    return f"{circuit} ({entry['source']})", roles


def mask_of_circuit(circuit: str | Sequence[str], result: Any) -> BinaryMask:
    """Which components of a result are of a circuit."""
    _, roles = name_and_roles(circuit, result)
    return result.binary_mask.new_tensor([label in roles for label in _labels(result)])


def against(result: Any, circuit: ComponentsLike, name: str | None) -> Against:
    """A result beside a circuit; a component is in the set if it is at any span."""
    called, roles = name_and_roles(circuit, result)
    frame = result.to_frame().assign(component=_labels(result)).astype({"score": float})
    whole = frame.groupby("component", sort=False).agg({"selected": "any", "score": "max"})
    table = whole[whole["selected"] | whole.index.isin(roles)].reset_index()
    in_circuit = table["component"].isin(roles)
    table["verdict"] = in_circuit.map({True: "hit", False: "extra"}).where(
        table["selected"], "miss"
    )
    table["role"] = table["component"].map(roles).fillna("")
    table = table[["component", "verdict", "role", "score"]]
    others = tuple(label for label in roles if label not in whole.index)
    how, method = result.setup.intervention, result.title
    return Against(
        name=name or called, method=method, intervention=how, table=table, not_studied=others
    )


def _labels(result: Any) -> list[str]:
    """Labels of all components, without spans."""
    return [result.registry.label(i).partition("@")[0] for i in range(result.n_components)]
