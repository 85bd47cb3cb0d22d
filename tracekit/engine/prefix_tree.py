"""The prefix tree of many sets: they share the layers below the first one in which they differ.

Two sets that agree on every layer below `l` give the same residual stream up to block `l`, so it is
computed once. A node of the tree is the residual stream that enters a block. From there some sets
are run to the end (leaves), and others to the block at which they part (children).

    top-k, 3 layers:   node at block 0, no component patched yet
                         leaves: {L0H0}, {L0H1}, ...          run blocks 0 to 2
                         child:  clean stream, carried to block 1
                           leaves: {L1H0}, {L1H1}, ...        run blocks 1 to 2
                           child:  ... carried to block 2
                             leaves: {L2H0}, ...              run block 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracekit.components import ComponentSet


@dataclass
class PrefixNode:
    """The residual stream that enters a block, and what is run from it."""

    layer: int
    prefix: ComponentSet = ()
    """Components patched between the parent's layer and this one."""
    leaves: list[int] = field(default_factory=list)
    """Numbers of the sets that are run from here to the end."""
    children: list[PrefixNode] = field(default_factory=list)
    """Nodes at which several sets go on together."""


def build_prefix_tree(
    sets: Sequence[ComponentSet], layer_of: Sequence[int], n_layers: int
) -> PrefixNode:
    """The tree for some sets, with `layer_of` each component of the model."""
    by_layer: list[dict[int, ComponentSet]] = []
    for members in sets:
        in_layers: dict[int, list[int]] = {}
        for index in sorted(members):
            in_layers.setdefault(layer_of[index], []).append(index)
        by_layer.append({layer: tuple(indices) for layer, indices in in_layers.items()})

    def build_node(numbers: Sequence[int], layer: int, prefix: ComponentSet) -> PrefixNode:
        """The node at a block for sets that agree on every layer below it."""
        node = PrefixNode(layer, prefix)
        groups: dict[ComponentSet, list[int]] = {}
        for number in numbers:
            groups.setdefault(by_layer[number].get(layer, ()), []).append(number)
        for group in groups.values():
            parting = layer
            while parting < n_layers and len({by_layer[n].get(parting, ()) for n in group}) == 1:
                parting += 1
            if parting == n_layers:
                node.leaves += group
            else:
                shared = by_layer[group[0]]
                patched = tuple(i for at in range(layer, parting) for i in shared.get(at, ()))
                node.children.append(build_node(group, parting, patched))
        node.leaves.sort()
        return node

    return build_node(range(len(sets)), 0, ())
