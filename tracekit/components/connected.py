"""Edges that lie on a path from the embedding to the logits within a set of edges.

With all edges outside a set patched, an edge on no such path changes nothing: its sender has the
counterfactual value whether or not the edge is patched, or what it changes never reaches the
logits. Edges of the model that are not studied are never patched, so paths may run through them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tracekit.components.edges import EMBEDDING, LOGITS
from tracekit.components.registry import ComponentRegistry, ComponentSet


class EdgePaths:
    """Paths through the edges of a registry."""

    def __init__(self, registry: ComponentRegistry) -> None:
        """Lists every edge of the model once for each node that reads through it."""
        graph = registry.edges
        assert graph is not None
        self.n_edges = len(registry)
        nodes = {label: number for number, label in enumerate((*graph.senders, LOGITS))}
        self._n_nodes, self._embedding, self._logits = len(nodes), nodes[EMBEDDING], nodes[LOGITS]
        studied: dict[tuple[int, int], list[int]] = {}
        for site in registry.sites:
            for rank, index in enumerate(site.indices):
                first = site.start + rank * site.n_spans
                studied[site.layer, index] = [*range(first, first + site.n_spans)]
        # An edge that is not studied has the number after the last one, which is always present.
        rows = [
            (flat, nodes[sender], nodes[node])
            for layer, ends in enumerate(graph.edge_ends_by_layer)
            for index, (sender, receiver) in enumerate(ends)
            for node in graph.nodes_of(receiver)
            for flat in studied.get((layer, index), [self.n_edges])
        ]
        self._edges, self._senders, self._readers = np.array(rows).T

    def edges_on_paths(self, members: Sequence[int]) -> ComponentSet:
        """The members that lie on a path within the set and the edges that are not studied."""
        live = set(self._between_live_nodes(members))
        return tuple(member for member in members if member in live)

    def first(self, order: Sequence[int], size: int) -> ComponentSet:
        """The first edges of a ranking that lie on paths among themselves, at most `size`.

        The ranking is read until its next edge would complete more paths than there is room for;
        later edges then fill up the set where they join nodes that are already on its paths.
        """
        lengths = range(len(order) + 1)
        n_too_long = bisect_right(lengths, size, key=lambda n: len(self.edges_on_paths(order[:n])))
        members, joining = self.edges_on_paths(order[: n_too_long - 1]), [-1]
        while joining and len(members) < size:
            live = set(self._between_live_nodes(members)) - set(members)
            joining = [edge for edge in order if edge in live][: size - len(members)]
            members += tuple(joining)
        return members

    def _between_live_nodes(self, members: Sequence[int]) -> list[int]:
        """All edges from nodes that a set reaches to nodes from which it leads to the logits."""
        # Slow to import, and only sets of edges need it.
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order

        is_present = np.isin(self._edges, [*members, self.n_edges])
        ends = self._senders[is_present], self._readers[is_present]
        graph = csr_array((np.ones(len(ends[0])), ends), shape=(self._n_nodes, self._n_nodes))
        reached = breadth_first_order(graph, self._embedding, return_predecessors=False)
        leading = breadth_first_order(graph.T.tocsr(), self._logits, return_predecessors=False)
        is_between = np.isin(self._senders, reached) & np.isin(self._readers, leading)
        return self._edges[is_between].tolist()


paths_of = lru_cache(maxsize=4)(EdgePaths)
"""Paths through the edges of a registry, made once."""
