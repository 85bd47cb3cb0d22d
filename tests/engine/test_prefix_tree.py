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
    for sets in (singles, greedy, pairs, [()], [(1,), (1,), (1,)]):
        tree = prefix_tree.build_prefix_tree(sets, layer_of, 12)
        assert sorted(leaves(tree)) == list(range(len(sets)))
        assert tree.layers_run(12) <= 12 * len(sets)
    assert (
        prefix_tree.build_prefix_tree(singles, layer_of, 12).layers_run(12)
        == 4 * sum(range(1, 13)) + 11
    )
    assert prefix_tree.build_prefix_tree(greedy, layer_of, 12).layers_run(12) < 0.6 * 12 * len(
        greedy
    )
    assert prefix_tree.build_prefix_tree(pairs, layer_of, 12).layers_run(12) < 0.3 * 12 * len(pairs)
