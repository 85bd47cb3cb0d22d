"""Operations and memory of passes over edges, by the sizes of a model, on paper.

Operations are those of matrix products, per token of a prompt and 2 for each product and sum. A
forward pass has the logits at one position of each row, as tracekit computes them, and scores of
attention for all pairs of positions. Everything else (norms, activation functions, copies) counts
as nothing, although it takes time: `large_models.py` measures how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tracekit.components import ComponentRegistry
from tracekit.components.edges import EdgeGraph, EdgesBy

QUERY, MLP_READER = 0, -1
"""Numbers of the queries and of the MLP among the receivers of a layer."""


class EdgeOperations(NamedTuple):
    """Operations that edges add to a pass."""

    mixing: float
    """Products of the mask and the changes of senders."""
    projections: float
    """Queries, keys and values of the receivers that read something of their own."""
    out: float
    """What single heads write."""


class PartShares(NamedTuple):
    """What a set of edges touches, as shares of what the model has."""

    attentions: float
    """Attentions that an edge of the set leaves."""
    mlps: float
    mixing: float
    """The other three are shares of the operations that a mask over all edges adds."""
    projections: float
    out: float


@dataclass(frozen=True)
class Shape:
    """Sizes of a model whose blocks are those of GPT-2, Llama or Qwen 2."""

    name: str
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    mlp_matrices: int
    """3 if the MLP has a gate, else 2."""
    kept_in_mlp: int
    """Numbers for each of `d_mlp` that an MLP keeps for its gradient."""
    d_vocab: int
    is_tied: bool
    """Whether the unembedding has the weights of the embedding."""
    norm_bytes: int | None
    """Bytes of each number that a norm keeps for its gradient; None: those of the weights."""

    @classmethod
    def of(cls, name: str, config: Any) -> Shape:
        """The sizes of a Hugging Face configuration."""
        heads = config.num_attention_heads
        is_gpt2 = config.model_type == "gpt2"
        width = config.hidden_size
        return cls(
            name=name,
            n_layers=config.num_hidden_layers,
            n_heads=heads,
            n_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
            d_model=width,
            d_head=getattr(config, "head_dim", None) or width // heads,
            d_mlp=4 * width if is_gpt2 else config.intermediate_size,
            mlp_matrices=2 if is_gpt2 else 3,
            kept_in_mlp=4 if is_gpt2 else 3,
            d_vocab=config.vocab_size,
            is_tied=config.tie_word_embeddings,
            norm_bytes=None if is_gpt2 else 4,
        )

    def graph(self, by: EdgesBy = "inputs") -> EdgeGraph:
        """Senders and receivers."""
        return EdgeGraph.of(self, by)

    def registry(self, by: EdgesBy = "inputs") -> ComponentRegistry:
        """All edges."""
        return ComponentRegistry.of_edges(self, by)

    def n_edges(self, by: EdgesBy = "inputs") -> int:
        """How many edges there are."""
        return sum(groups[-1].stop for groups in self.graph(by).receivers)

    @property
    def width_of_heads(self) -> int:
        """Numbers that the heads of a layer write together, before their output projection."""
        return self.n_heads * self.d_head

    @property
    def n_parameters(self) -> int:
        """Weights of the blocks, the embedding and the unembedding."""
        embeddings = self.d_vocab * self.d_model * (1 if self.is_tied else 2)
        of_token = self.projections + self.out + self.mlp
        return self.n_layers * of_token // 2 + embeddings

    @property
    def projections(self) -> int:
        """Operations of the queries, keys and values of a layer."""
        heads = self.n_heads + 2 * self.n_key_value_heads
        return 2 * self.d_model * self.d_head * heads

    @property
    def out(self) -> int:
        """Operations of the output projection of an attention."""
        return 2 * self.width_of_heads * self.d_model

    @property
    def mlp(self) -> int:
        """Operations of an MLP."""
        return 2 * self.mlp_matrices * self.d_model * self.d_mlp

    def scores(self, length: int) -> int:
        """Operations of attention scores, and of values weighted by them, in a layer."""
        return 4 * length * self.width_of_heads

    def attention(self, length: int) -> int:
        """Operations of the attention of a layer."""
        return self.projections + self.scores(length) + self.out

    def unembedding(self, length: int) -> float:
        """Operations of the logits at one position of a prompt."""
        return 2 * self.d_vocab * self.d_model / length

    def forward(self, length: int) -> float:
        """Operations of a plain forward pass."""
        return self.n_layers * (self.attention(length) + self.mlp) + self.unembedding(length)

    def mixing(self, by: EdgesBy = "inputs") -> int:
        """Operations of the product of a mask over all edges and the changes of senders."""
        return 2 * self.d_model * self.n_edges(by)

    def patched(self, length: int, shares: PartShares, by: EdgesBy = "inputs") -> float:
        """Operations of a pass in which a set of edges is patched."""
        return self.forward(length) + self._of_edges(shares, by)

    def others_patched(self, length: int, shares: PartShares, by: EdgesBy = "inputs") -> float:
        """Operations of a pass in which all edges but a set are patched."""
        # The output projection makes what an attention that is left out wrote.
        attentions = shares.attentions * self.attention(length) + (1 - shares.attentions) * self.out
        blocks = self.n_layers * (attentions + shares.mlps * self.mlp)
        return blocks + self.unembedding(length) + self._of_edges(shares, by)

    def _of_edges(self, shares: PartShares, by: EdgesBy) -> float:
        again = shares.projections * self.projections + shares.out * self.out
        return self.n_layers * again + shares.mixing * self.mixing(by)

    def dense_pass(self, length: int, by: EdgesBy = "inputs") -> float:
        """Operations of a mask over all edges that is 0 or 1 nowhere."""
        return self.patched(length, PartShares(1, 1, 1, 1, 1), by)

    def gradient(self, length: int, by: EdgesBy = "inputs") -> float:
        """Operations of such a pass and its gradient; weights get none."""
        # The projections that the hooks replace have no gradient; the mixing has two products.
        backward = self.projections + 2 * self.scores(length) + 2 * self.out + self.mlp
        of_blocks = self.n_layers * backward + 2 * self.mixing(by)
        return self.dense_pass(length, by) + of_blocks + self.unembedding(length)

    def counterfactual_bytes(self, itemsize: int) -> int:
        """Memory of the counterfactual activations of a token."""
        streams = self.d_model + self.n_layers * (self.width_of_heads + self.d_model)
        return streams * itemsize

    def bank_bytes(self, itemsize: int, by: EdgesBy = "inputs") -> int:
        """Memory of the changes of all senders at a token."""
        return len(self.graph(by).senders) * self.d_model * itemsize

    def gradient_bytes(self, itemsize: int, length: int, by: EdgesBy = "inputs") -> int:
        """Memory of a token in a pass with its gradient, apart from the counterfactual run.

        These are the changes of the senders and their gradients, what the norms of all receivers
        keep, what the blocks keep (the stream, queries, keys, values, heads, patterns twice, and
        numbers within an MLP), and what the receivers of one layer need for a moment.
        """
        receivers = sum(len(group.labels) for group in self.graph(by).receivers[0])
        norms = receivers * self.d_model * (self.norm_bytes or itemsize)
        momentary = 4 * receivers * self.d_model * itemsize
        heads = 2 * self.width_of_heads + 2 * self.n_key_value_heads * self.d_head
        inner = self.kept_in_mlp * self.d_mlp
        blocks = 4 * self.d_model + heads + 2 * self.n_heads * length + inner
        kept = self.n_layers * (norms + blocks * itemsize)
        return 2 * self.bank_bytes(itemsize, by) + kept + momentary


@dataclass(frozen=True)
class TouchedParts:
    """What a set of edges touches: the senders and receivers of its edges, layer by layer.

    Operations are those of connected sets; an edge into an attention that is left out costs less.
    """

    shape: Shape
    graph: EdgeGraph
    n_edges: int
    receivers: tuple[tuple[int, ...], ...]
    """Receivers of each group that an edge of the set enters."""
    senders_into: np.ndarray
    """Which senders have an edge of the set into each layer."""

    @classmethod
    def of(cls, shape: Shape, members: Sequence[int], by: EdgesBy = "inputs") -> TouchedParts:
        """What some edges touch, by their numbers among all edges."""
        graph, first = shape.graph(by), 0
        is_member = np.zeros(shape.n_edges(by), dtype=bool)
        is_member[list(members)] = True
        receivers, senders_into = [], np.zeros((shape.n_layers + 1, len(graph.senders)), bool)
        for layer, groups in enumerate(graph.receivers):
            counts = []
            for group in groups:
                edges = is_member[first + group.start : first + group.stop]
                edges = edges.reshape(len(group.labels), group.n_senders)
                counts.append(int(edges.any(1).sum()))
                senders_into[layer, : group.n_senders] |= edges.any(0)
            receivers.append(tuple(counts))
            first += groups[-1].stop
        return cls(shape, graph, len(members), tuple(receivers), senders_into)

    @cached_property
    def senders(self) -> np.ndarray:
        """Which senders have an edge of the set."""
        return np.asarray(self.senders_into.any(0))

    def heads_of(self, layer: int) -> np.ndarray:
        """Which senders of an attention have an edge of the set."""
        first = self.graph.first_sender(layer)
        return self.senders[first : first + self.graph.n_in_attention]

    @property
    def attentions(self) -> int:
        """Attentions that an edge of the set leaves."""
        return sum(bool(self.heads_of(layer).any()) for layer in range(self.shape.n_layers))

    @property
    def mlps(self) -> int:
        """MLPs that an edge of the set leaves."""
        numbers = [self.graph.first_sender(layer + 1) - 1 for layer in range(self.shape.n_layers)]
        return int(self.senders[numbers].sum())

    def _columns(self, layer: int, first: int, stop: int) -> int:
        """Senders between two numbers whose changes a product reads."""
        stored = int(self.senders[first:stop].sum())
        read = int(self.senders_into[layer, first:stop].sum())
        # The rarely read ones are copied, so that the product has only them.
        return read if 2 * read < stored else stored

    def _of_edges(self) -> EdgeOperations:
        """Operations that the edges of the set add to a pass."""
        shape, mixing, projections, out = self.shape, 0, 0, 0
        for layer, counts in enumerate(self.receivers):
            first = self.graph.first_sender(layer)
            mixing += sum(counts) * self._columns(layer, 0, first)
            if layer == shape.n_layers:
                break
            own = self.graph.receivers[layer][MLP_READER].n_senders
            mixing += counts[MLP_READER] * self._columns(layer, first, own)
            projections += self._projected_heads(counts)
            heads = int(self.heads_of(layer).sum())
            out += heads * shape.n_heads // self.graph.n_in_attention
        of_head = 2 * shape.d_model * shape.d_head
        return EdgeOperations(2 * shape.d_model * mixing, of_head * projections, of_head * out)

    def _projected_heads(self, counts: Sequence[int]) -> int:
        """Queries, keys and values that get an input of their own."""
        shape = self.shape
        if self.graph.by == "inputs":
            return sum(counts[:MLP_READER])
        of_all = shape.n_heads + 2 * shape.n_key_value_heads
        return counts[QUERY] * of_all // len(self.graph.receivers[0][QUERY].labels)

    @property
    def shares(self) -> PartShares:
        """What is touched, as shares of what a model has."""
        shape, of_edges = self.shape, self._of_edges()
        layers = shape.n_layers
        return PartShares(
            attentions=self.attentions / layers,
            mlps=self.mlps / layers,
            mixing=of_edges.mixing / shape.mixing(self.graph.by),
            projections=of_edges.projections / (layers * shape.projections),
            out=of_edges.out / (layers * shape.out),
        )

    def patched(self, length: int) -> float:
        """Operations of a pass in which the set is patched."""
        return self.shape.patched(length, self.shares, self.graph.by)

    def others_patched(self, length: int) -> float:
        """Operations of a pass in which all other edges are patched."""
        return self.shape.others_patched(length, self.shares, self.graph.by)
