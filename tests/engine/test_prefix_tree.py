"""The prefix tree of many sets."""

from __future__ import annotations

from itertools import combinations

from tracekit.engine import prefix_tree


def test_a_prefix_tree_covers_every_set_once_and_never_runs_more_layers():
    layer_of = [i // 4 for i in range(48)]

    def leaves(node):
        return node.leaves + [number for child in node.children for number in leaves(child)]

    singles = [(i,) for i in range(48)]
    chosen = (5, 18, 33)
    greedy = [(*chosen, i) for i in range(48) if i not in chosen]
    pairs = list(combinations(range(24, 48), 2))

    def layers_run(node):
        carried = sum(c.layer - node.layer + layers_run(c) for c in node.children)
        return carried + len(node.leaves) * (12 - node.layer)

    def tree_of(sets):
        return prefix_tree.build_prefix_tree(sets, layer_of, 12)

    for sets in (singles, greedy, pairs, [()], [(1,), (1,), (1,)]):
        assert sorted(leaves(tree_of(sets))) == list(range(len(sets)))
        assert layers_run(tree_of(sets)) <= 12 * len(sets)
    assert layers_run(tree_of(singles)) == 4 * sum(range(1, 13)) + 11
    assert layers_run(tree_of(greedy)) < 0.6 * 12 * len(greedy)
    assert layers_run(tree_of(pairs)) < 0.3 * 12 * len(pairs)
