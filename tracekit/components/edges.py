"""Edges: what one part of a model hands to a later one through the residual stream.

A *sender* adds to the residual stream: the embedding with its positions (`E`), a head, an MLP. A
*receiver* reads the stream: the query, key or value of a head, an MLP, the logits. Every sender has
an edge to every receiver behind it. The edges into a layer are numbered receiver by receiver, and
of each receiver in the order of the senders.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

from typing_extensions import TypedDict

from tracekit._util.options import shortened
from tracekit.components.kinds import KINDS, Kind
from tracekit.errors import ComponentError, near_miss

EdgesBy = Literal["inputs", "heads", "blocks"]
EDGE_KINDS: dict[str, EdgesBy] = {
    "edges": "inputs",
    "edges-by-head": "heads",
    "edges-by-block": "blocks",
}
"""Kinds of edges: how finely the senders and receivers of a block are told apart."""
EMBEDDING, LOGITS = "E", "logits"


class EdgeSpec(TypedDict):
    """An `EdgeGraph` in values of JSON."""

    by: EdgesBy
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    parallel_attn_mlp: bool


class Receivers(NamedTuple):
    """The receivers of one use in one layer, which all have the same senders."""

    labels: tuple[str, ...]
    n_senders: int
    """They read the first so many senders."""
    start: int
    """Number of the first of their edges within the layer."""

    @property
    def stop(self) -> int:
        """One past the last."""
        return self.start + len(self.labels) * self.n_senders


@dataclass(frozen=True)
class EdgeGraph:
    """Senders and receivers of a model."""

    by: EdgesBy
    """`inputs`: query, key and value of each head read apart; heads that share keys and values
    share those receivers. `heads`: a head, with those that share its keys, reads as one. `blocks`:
    attention blocks send and read as one."""
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    parallel_attn_mlp: bool
    """Whether the MLP of a block reads what its attention reads, and not what it writes."""

    @classmethod
    def of(cls, shape: Any, by: EdgesBy) -> EdgeGraph:
        """The graph of a model of these sizes."""
        if by not in get_args(EdgesBy):
            every = ", ".join(get_args(EdgesBy))
            raise ComponentError(f"Edges are told apart by {shortened(by)}. Use one of {every}.")
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
        """Number of the first sender of a layer, which is how many there are before it."""
        return 1 + layer * (self.n_in_attention + 1)

    @cached_property
    def receivers(self) -> list[list[Receivers]]:
        """The receivers of each layer, in their order; behind the last one, the logits."""
        return [self._receivers_in(layer) for layer in range(self.n_layers + 1)]

    def _receivers_in(self, layer: int) -> list[Receivers]:
        heads, shared = self.n_heads, self.n_key_value_heads
        letters = {
            "inputs": {"Q": heads, "K": shared, "V": shared},
            "heads": {"H" if heads == shared else "G": shared},
            "blocks": {},
        }[self.by]
        names = [[f"L{layer}{use}{n}" for n in range(count)] for use, count in letters.items()]
        names = [*(names or [[f"ATT{layer}"]]), [f"MLP{layer}"]]
        if layer == self.n_layers:
            names = [[LOGITS]]
        before, receivers, start = self.first_sender(layer), [], 0
        for labels in names:
            own = self.n_in_attention if labels[0][0] == "M" and not self.parallel_attn_mlp else 0
            receivers.append(Receivers(tuple(labels), before + own, start))
            start = receivers[-1].stop
        return receivers

    @cached_property
    def ends(self) -> list[list[tuple[str, str]]]:
        """Labels of the sender and the receiver of each edge, by layer that it enters."""
        return [
            [
                (sender, label)
                for use in into
                for label in use.labels
                for sender in self.senders[: use.n_senders]
            ]
            for into in self.receivers
        ]

    def nodes_of(self, receiver: str) -> tuple[str, ...]:
        """The senders that a receiver is a part of: the head of a query, all heads of a key."""
        use = next((each for each in "QKVG" if each in receiver), None)
        if use is None:
            return (receiver,)
        layer, number = receiver.split(use)
        size = 1 if use == "Q" else self.n_heads // self.n_key_value_heads
        return tuple(f"{layer}H{int(number) * size + head}" for head in range(size))

    def chosen(
        self,
        layer: int,
        layers: Collection[int] | None,
        senders: Sequence[str] | None,
        receivers: Sequence[str] | None,
    ) -> tuple[int, ...]:
        """Numbers of the edges into a layer whose ends are in `layers` and among those named.

        The embedding and the logits are in all layers.
        """
        senders = self._named("senders", senders, {each: {each} for each in self.senders})
        every = {each for into in self.receivers for use in into for each in use.labels}
        names = {each: {each, *self.nodes_of(each)} for each in every}
        receivers = self._named("receivers", receivers, names)

        def is_within(label: str) -> bool:
            own = _LAYER.match(label)
            return layers is None or own is None or int(own[1]) in layers

        ends = [set(filter(is_within, chosen)) for chosen in (senders, receivers)]
        return tuple(
            number
            for number, (sender, receiver) in enumerate(self.ends[layer])
            if sender in ends[0] and receiver in ends[1]
        )

    def _named(
        self, role: str, given: Sequence[str] | None, names: Mapping[str, set[str]]
    ) -> list[str]:
        """The senders or receivers that are named, each by any of its names."""
        every = {name for each in names.values() for name in each}
        unknown = [] if given is None else [name for name in given if name not in every]
        if isinstance(given, str) or unknown:
            first = given if isinstance(given, str) else unknown[0]
            guess = near_miss(str(first), list(every))
            raise ComponentError(
                f"The {role} are {shortened(given)}, and {shortened(first)} is none of them here. "
                f"{guess + ' ' if guess else ''}Give a list of labels, such as "
                f"{sorted(every)[:3]}."
            )
        return [label for label, each in names.items() if given is None or each & set(given)]


_LAYER = re.compile(r"^\D+(\d+)")


def activations_read(graph: EdgeGraph, layer: int) -> dict[str, Kind]:
    """Hook points that the edges into a layer take counterfactual values from, and their kinds."""
    kinds = [KINDS[name] for name in ("residual-before", "head-outputs", "mlp-blocks")]
    n_after = 0 if graph.parallel_attn_mlp or layer == graph.n_layers else 1
    stream, heads, mlps = (kind.hook for kind in kinds)
    return {
        f"blocks.0.{stream}": kinds[0],
        **{f"blocks.{each}.{heads}": kinds[1] for each in range(layer + n_after)},
        **{f"blocks.{each}.{mlps}": kinds[2] for each in range(layer)},
    }
