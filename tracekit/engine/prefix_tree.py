"""What many sets of components share: the layers below the first one in which they differ.

Two sets that agree on every layer below `l` give the same residual stream up to block `l`, so it
is computed once. A plan is a tree: a node stands for the residual stream that enters a block; from
there some sets are run to the end (leaves), and for others, that agree for some more layers, the
stream is carried on once to the block where they part (children).

    top-k, 3 layers:   node at block 0, no component changed yet
                         leaves: {L0H0}, {L0H1}, ...          run blocks 0 to 2
                         child:  clean stream, carried to block 1
                           leaves: {L1H0}, {L1H1}, ...        run blocks 1 to 2
                           child:  ... carried to block 2
                             leaves: {L2H0}, ...              run block 2

Pure bookkeeping; the engine runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Set = tuple[int, ...]

_PASS_CHARGE = 2
"""What a pass of its own costs besides its layers, in layers."""


@dataclass
class Node:
    """The residual stream that enters a block, and what is run from it."""

    layer: int
    """The block."""
    prefix: Set = ()
    """Components that are changed on the way here from the parent node."""
    leaves: list[int] = field(default_factory=list)
    """Numbers of the sets that are run from here to the end."""
    children: list[Node] = field(default_factory=list)
    """Where sets go on together."""

    def layers_run(self, n_layers: int) -> int:
        """Layers computed below this node, all sets together."""
        carried = sum(c.layer - self.layer + c.layers_run(n_layers) for c in self.children)
        return carried + len(self.leaves) * (n_layers - self.layer)


def plan(sets: Sequence[Set], layer_of: Sequence[int], n_layers: int) -> Node:
    """The tree for some sets.

    Args:
        sets: Sets of flat indices.
        layer_of: Layer of each component.
        n_layers: Layers of the model.
    """
    contents: list[dict[int, Set]] = []
    for one in sets:
        by_layer: dict[int, list[int]] = {}
        for index in sorted(one):
            by_layer.setdefault(layer_of[index], []).append(index)
        contents.append({layer: tuple(held) for layer, held in by_layer.items()})
    return _grow(list(range(len(sets))), contents, 0, n_layers, ())


def _grow(
    numbers: Sequence[int],
    contents: Sequence[dict[int, Set]],
    layer: int,
    n_layers: int,
    prefix: Set,
) -> Node:
    """The node at a block for sets that agree on every layer below it."""
    node = Node(layer, prefix)
    groups: dict[Set, list[int]] = {}
    for number in numbers:
        groups.setdefault(contents[number].get(layer, ()), []).append(number)
    for members in groups.values():
        parting = _parting(members, contents, layer, n_layers)
        saved = (len(members) - 1) * (parting - layer)
        # Sets that are equal never part; they are run as they are.
        if parting == n_layers or saved <= _PASS_CHARGE:
            node.leaves += members
        else:
            shared = contents[members[0]]
            changed = tuple(i for at in range(layer, parting) for i in shared.get(at, ()))
            node.children.append(_grow(members, contents, parting, n_layers, changed))
    node.leaves.sort()
    return node


def _parting(
    members: Sequence[int], contents: Sequence[dict[int, Set]], layer: int, n_layers: int
) -> int:
    """First layer in which some sets differ; the number of layers if none."""
    agreeing: dict[int, int] = {}
    first = contents[members[0]]
    for number in members:
        for at, content in contents[number].items():
            if at >= layer:
                agreeing[at] = agreeing.get(at, 0) + (content == first.get(at))
    return min((at for at, count in agreeing.items() if count < len(members)), default=n_layers)
