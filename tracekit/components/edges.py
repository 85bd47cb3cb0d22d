"""Edges: what one part of a model hands to a later one through the residual stream.

A *sender* adds to the residual stream: the embedding with its positions (`E`), a head, an MLP. A
*receiver* reads the stream: the query, key or value of a head, an MLP, the logits. Every sender has
an edge to every receiver behind it. The edges into a layer are numbered receiver by receiver, and
of each receiver in the order of the senders.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

from typing_extensions import TypedDict

from tracekit._util.options import is_whole, shortened
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
    is_parallel: bool


class Receivers(NamedTuple):
    """The receivers of one use in one layer, which all have the same senders."""

    use: Literal["query", "key", "value", "head", "attention", "mlp", "logits"]
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
    is_parallel: bool
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
            is_parallel=bool(getattr(shape, "parallel_attn_mlp", False)),
        )

    @property
    def parallel_attn_mlp(self) -> bool:
        """As a TransformerLens configuration names it, so that a graph is a shape too."""
        return self.is_parallel

    @classmethod
    def from_spec(cls, spec: EdgeSpec) -> EdgeGraph:
        """The graph of a `spec()`; refuses sizes of no model."""
        sizes = (spec["n_layers"], spec["n_heads"], spec["n_key_value_heads"])
        are_sizes = all(is_whole(each) and 0 < each < _MOST for each in sizes)
        if spec["by"] not in get_args(EdgesBy) or not are_sizes or sizes[1] % sizes[2]:
            raise ComponentError(
                f"The edges {shortened(spec)} are those of no model. Give numbers of layers, heads "
                "and key/value heads, of which the last divides the one before."
            )
        return cls(**spec)

    def spec(self) -> EdgeSpec:
        """The graph in values of JSON."""
        return EdgeSpec(**asdict(self))

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

    def receivers(self, layer: int) -> list[Receivers]:
        """The receivers of a layer, in their order; behind the last one, the logits."""
        return self._receivers[layer]

    @cached_property
    def _receivers(self) -> list[list[Receivers]]:
        return [self._receivers_in(layer) for layer in range(self.n_layers + 1)]

    def _receivers_in(self, layer: int) -> list[Receivers]:
        heads, shared = self.n_heads, self.n_key_value_heads
        names: list[tuple[Any, list[str]]]
        if layer == self.n_layers:
            names = [("logits", [LOGITS])]
        elif self.by == "inputs":
            counts = {"query": heads, "key": shared, "value": shared}
            names = [
                (use, [f"L{layer}{use[0].upper()}{number}" for number in range(count)])
                for use, count in counts.items()
            ]
        elif self.by == "heads":
            letter = "H" if heads == shared else "G"
            names = [("head", [f"L{layer}{letter}{number}" for number in range(shared)])]
        else:
            names = [("attention", [f"ATT{layer}"])]
        if layer < self.n_layers:
            names.append(("mlp", [f"MLP{layer}"]))
        before, receivers, start = self.first_sender(layer), [], 0
        for use, labels in names:
            own = self.n_in_attention if use == "mlp" and not self.is_parallel else 0
            receivers.append(Receivers(use, tuple(labels), before + own, start))
            start = receivers[-1].stop
        return receivers

    def width(self, layer: int) -> int:
        """Number of edges into a layer."""
        return self.receivers(layer)[-1].stop

    def ends(self, layer: int, index: int) -> tuple[str, str]:
        """Labels of the sender and the receiver of an edge into a layer."""
        into = next(each for each in self.receivers(layer) if index < each.stop)
        receiver, sender = divmod(index - into.start, into.n_senders)
        return self.senders[sender], into.labels[receiver]

    def label(self, layer: int, index: int) -> str:
        """Printed name of an edge into a layer, e.g. `L16H0>L17K1`."""
        return ">".join(self.ends(layer, index))

    def nodes_of(self, receiver: str) -> tuple[str, ...]:
        """The senders that a receiver is a part of: the head of a query, all heads of a key."""
        if receiver in self._numbers or receiver == LOGITS:
            return (receiver,)
        letter = next(each for each in "QKVG" if each in receiver)
        layer, number = receiver.split(letter)
        size = 1 if letter == "Q" else self.n_heads // self.n_key_value_heads
        first = int(number) * size
        return tuple(f"{layer}H{head}" for head in range(first, first + size))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.senders)}

    @cached_property
    def _nodes(self) -> dict[str, tuple[str, ...]]:
        """Of each receiver, the names by which it is asked for."""
        every = (label for into in self._receivers for each in into for label in each.labels)
        return {label: (label, *self.nodes_of(label)) for label in every}

    def chosen(
        self,
        layer: int,
        *,
        layers: Collection[int] | None,
        senders: Collection[str] | None,
        receivers: Collection[str] | None,
    ) -> tuple[int, ...]:
        """Numbers of the edges into a layer whose ends are in `layers` and among those named.

        The embedding and the logits are in all layers. A head names its query, key and value too.
        """
        within = None if layers is None else set(layers)
        if within is not None and layer < self.n_layers and layer not in within:
            return ()
        per_layer = self.n_in_attention + 1
        from_ = [
            number
            for number, label in enumerate(self.senders[: self.receivers(layer)[-1].n_senders])
            if (within is None or not number or (number - 1) // per_layer in within)
            and (senders is None or label in senders)
        ]
        return tuple(
            into.start + row * into.n_senders + number
            for into in self.receivers(layer)
            for row, label in enumerate(into.labels)
            if receivers is None or any(name in receivers for name in self._nodes[label])
            for number in from_
            if number < into.n_senders
        )

    def check_names(
        self, names: Sequence[str] | None, *, of: Literal["senders", "receivers"]
    ) -> None:
        """Refuses names of no sender or receiver."""
        every = (
            self.senders if of == "senders" else {n for each in self._nodes.values() for n in each}
        )
        unknown = [] if names is None else [name for name in names if name not in every]
        if isinstance(names, str) or unknown:
            first = names if isinstance(names, str) else unknown[0]
            guess = near_miss(str(first), list(every))
            raise ComponentError(
                f"The {of} are {shortened(names)}, and {shortened(first)} is none of them here. "
                f"{guess + ' ' if guess else ''}Give a list of labels, such as "
                f"{', '.join(repr(label) for label in sorted(every)[:3])}."
            )


_MOST = 2**16
"""Layers and heads of a description are below it."""


def activations_read(graph: EdgeGraph, layer: int) -> dict[str, Kind]:
    """Hook points that the edges into a layer take counterfactual values from, and their kinds."""
    kinds = [KINDS[name] for name in ("residual-before", "head-outputs", "mlp-blocks")]
    n_after = 0 if graph.is_parallel or layer == graph.n_layers else 1
    stream, heads, mlps = (kind.hook for kind in kinds)
    return {
        f"blocks.0.{stream}": kinds[0],
        **{f"blocks.{each}.{heads}": kinds[1] for each in range(layer + n_after)},
        **{f"blocks.{each}.{mlps}": kinds[2] for each in range(layer)},
    }
