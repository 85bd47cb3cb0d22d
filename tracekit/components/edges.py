"""Edges: what one part of a model passes to a later part through the residual stream.

A *sender* writes to the residual stream: the embedding with its positions (`E`), a head, an MLP. A
*receiver* reads the stream: the query, key or value of a head, an MLP, the logits. Every sender has
an edge to every later receiver. The edges into a layer are numbered receiver by receiver, and for
each receiver in the order of the senders.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

from typing_extensions import TypedDict

from tracekit._util.options import check_choice, short_repr
from tracekit.components.kinds import KINDS, Kind
from tracekit.errors import ComponentError, near_miss

EdgesBy = Literal["inputs", "heads", "blocks"]
EDGE_KINDS: dict[str, EdgesBy] = {
    "edges": "inputs",
    "edges-by-head": "heads",
    "edges-by-block": "blocks",
}
"""Kinds of edges, and how finely each divides a block into senders and receivers."""
EMBEDDING, LOGITS = "E", "logits"
Labels = Collection[str] | None
"""Labels of senders or receivers; None: of all."""


class EdgeSpec(TypedDict):
    """An `EdgeGraph` in values of JSON."""

    by: EdgesBy
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    parallel_attn_mlp: bool


class Receivers(NamedTuple):
    """The receivers of one input (such as all queries) in one layer; all have the same senders."""

    labels: tuple[str, ...]
    n_senders: int
    """Each receiver has an edge from the first `n_senders` senders."""
    start: int
    """Number of the first edge into them within the layer."""

    @property
    def stop(self) -> int:
        """One past the last."""
        return self.start + len(self.labels) * self.n_senders


@dataclass(frozen=True)
class EdgeGraph:
    """Senders and receivers of a model."""

    by: EdgesBy
    """`inputs`: query, key and value of each head are separate receivers; heads may share the last
    two. `heads`: a head, with the heads that share its keys, is one receiver. `blocks`: an
    attention block is one sender and one receiver."""
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    parallel_attn_mlp: bool
    """Whether the MLP of a block reads what its attention reads, and not what it writes."""

    @classmethod
    def of(cls, shape: Any, by: EdgesBy) -> EdgeGraph:
        """The graph of a model of these sizes."""
        check_choice("by", by, get_args(EdgesBy), ComponentError)
        return cls(
            by=by,
            n_layers=int(shape.n_layers),
            n_heads=int(shape.n_heads),
            n_key_value_heads=int(getattr(shape, "n_key_value_heads", None) or shape.n_heads),
            parallel_attn_mlp=bool(getattr(shape, "parallel_attn_mlp", False)),
        )

    @cached_property
    def n_in_attention(self) -> int:
        """Senders in the attention of a layer."""
        return 1 if self.by == "blocks" else self.n_heads

    @cached_property
    def senders(self) -> tuple[str, ...]:
        """Labels of the senders, in their order: the embedding, then layer by layer."""
        labels = [EMBEDDING]
        for layer in range(self.n_layers):
            heads = [f"L{layer}H{head}" for head in range(self.n_heads)]
            labels += [f"ATT{layer}"] if self.by == "blocks" else heads
            labels.append(f"MLP{layer}")
        return tuple(labels)

    def first_sender(self, layer: int) -> int:
        """Number of the first sender of a layer: how many senders there are before it."""
        return 1 + layer * (self.n_in_attention + 1)

    @cached_property
    def receivers(self) -> list[list[Receivers]]:
        """The receivers of each layer, in their order; after the last layer, the logits."""
        return [self._receivers_in(layer) for layer in range(self.n_layers + 1)]

    def _receivers_in(self, layer: int) -> list[Receivers]:
        n_senders = self.first_sender(layer)
        if layer == self.n_layers:
            return [Receivers((LOGITS,), n_senders, 0)]
        heads, shared = self.n_heads, self.n_key_value_heads
        counts_by_letter = {
            "inputs": {"Q": heads, "K": shared, "V": shared},
            "heads": {"H" if heads == shared else "G": shared},
            "blocks": {},
        }[self.by]
        groups = [
            tuple(f"L{layer}{letter}{n}" for n in range(count))
            for letter, count in counts_by_letter.items()
        ]
        receivers, start = [], 0
        for labels in groups or [(f"ATT{layer}",)]:
            receivers.append(Receivers(labels, n_senders, start))
            start = receivers[-1].stop
        if not self.parallel_attn_mlp:
            n_senders += self.n_in_attention
        return [*receivers, Receivers((f"MLP{layer}",), n_senders, start)]

    @cached_property
    def edge_ends_by_layer(self) -> list[list[tuple[str, str]]]:
        """Labels of the sender and the receiver of each edge, for each layer that edges enter."""
        by_layer = []
        for groups in self.receivers:
            ends = []
            for group in groups:
                senders = self.senders[: group.n_senders]
                ends += [(sender, label) for label in group.labels for sender in senders]
            by_layer.append(ends)
        return by_layer

    def nodes_of(self, receiver: str) -> tuple[str, ...]:
        """The heads that a receiver belongs to: one for a query, all that share a key or value."""
        letter = next((each for each in "QKVG" if each in receiver), None)
        if letter is None:
            return (receiver,)
        layer, number = receiver.split(letter)
        size = 1 if letter == "Q" else self.n_heads // self.n_key_value_heads
        return tuple(f"{layer}H{int(number) * size + head}" for head in range(size))

    def select_edges(
        self, layer: int, layers: Collection[int] | None, senders: Labels, receivers: Labels
    ) -> tuple[int, ...]:
        """Numbers of the edges into a layer whose two ends are in `layers` and among those named.

        The embedding and the logits count as part of every layer. None stands for all.
        """
        senders = self._select("senders", senders, {each: {each} for each in self.senders})
        every = [label for into in self.receivers for group in into for label in group.labels]
        names = {label: {label, *self.nodes_of(label)} for label in every}
        receivers = self._select("receivers", receivers, names)

        def is_within(label: str) -> bool:
            match = _LAYER.match(label)
            return layers is None or match is None or int(match[1]) in layers

        senders = set(filter(is_within, senders))
        receivers = set(filter(is_within, receivers))
        return tuple(
            number
            for number, (sender, receiver) in enumerate(self.edge_ends_by_layer[layer])
            if sender in senders and receiver in receivers
        )

    def _select(self, role: str, chosen: Labels, names: Mapping[str, set[str]]) -> list[str]:
        """Labels of the senders or receivers that are chosen by any of their names."""
        every = {name for each in names.values() for name in each}
        unknown = [] if chosen is None else [name for name in chosen if name not in every]
        if isinstance(chosen, str) or unknown:
            first = chosen if isinstance(chosen, str) else unknown[0]
            guess = near_miss(str(first), list(every))
            raise ComponentError(
                f"The {role} are {short_repr(chosen)}, but the model has no {short_repr(first)} "
                f"among them. {guess + ' ' if guess else ''}Give a list of labels, such as "
                f"{sorted(every)[:3]}."
            )
        return [label for label, each in names.items() if chosen is None or each & set(chosen)]


_LAYER = re.compile(r"^\D+(\d+)")


def activations_read(graph: EdgeGraph, layer: int) -> dict[str, Kind]:
    """Hook points of the senders of edges into a layer, where counterfactual values are taken."""
    kinds = [KINDS[name] for name in ("residual-before", "head-outputs", "mlp-blocks")]
    n_after = 0 if graph.parallel_attn_mlp or layer == graph.n_layers else 1
    stream, heads, mlps = (kind.hook for kind in kinds)
    return {
        f"blocks.0.{stream}": kinds[0],
        **{f"blocks.{each}.{heads}": kinds[1] for each in range(layer + n_after)},
        **{f"blocks.{each}.{mlps}": kinds[2] for each in range(layer)},
    }
