"""Networks of members: where their arrows go."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.figures.gallery import legend_of
from tracekit.figures import for_print
from tracekit.figures.members import Arrow, path_network


def drawn_network(layers, ends, **options):
    """A network with arrows between numbered nodes, of given or other values."""
    arrows = [
        Arrow(start=start, end=end, value=value, letter="", hover="one", is_sure=is_sure)
        for start, end, value, is_sure in ends
    ]
    names = [f"L{layer}H{n}" for n, layer in enumerate(layers)]
    return path_network(names, layers, arrows, title="", subtitle="", **options)


def parts_of(figure):
    """Lines with the heads that lie on them, and boxes."""
    traces = [trace for trace in figure.data if trace.text]
    return traces[::2], traces[1::2], figure.layout.shapes


@pytest.mark.slow
def test_arrows_stay_within_the_plot():
    """Two long ones between nodes on the left, with all others in between."""
    layers = [float(layer) for layer in range(25)]
    figure = drawn_network(layers, [(0, 24, 1.0, True), (6, 24, 1.0, True)])
    low, high = figure.layout.xaxis.range
    lines, _, _ = parts_of(figure)
    assert len(lines) == 2
    assert all(low <= x <= high for line in lines for x in line.x)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_lines_pass_by_other_nodes_and_heads_touch_theirs(seed):
    """In the coordinates of the plot, in which boxes, lines and tips of heads are drawn."""
    generator = random.Random(seed)
    layers = sorted(generator.choices([0, 1, 1.5, 7, 8, 12, 12.5, 20, 23, 23, 23.5, 29], k=24))
    pairs = [(i, j) for i in range(24) for j in range(24) if layers[i] < layers[j]]
    values = [(i, j, generator.uniform(-1, 1), True) for i, j in generator.sample(pairs, 30)]
    figure = drawn_network(layers, values)
    lines, heads, boxes = parts_of(figure)
    by_size = sorted(values, key=lambda each: abs(each[2]))
    for (start, end, _, _), line, head in zip(by_size, lines, heads, strict=True):
        assert len({line.x[-1], line.x[-2], head.x[0]}) == 1  # Upright into its head.
        assert line.y[0] == boxes[start].y1
        assert line.y[-1] == head.y[0] == boxes[end].y0
        assert boxes[start].x0 <= line.x[0] <= boxes[start].x1
        assert boxes[end].x0 <= head.x[0] <= boxes[end].x1
        for box in (box for n, box in enumerate(boxes) if n not in (start, end)):
            for x, y in zip(line.x, line.y, strict=True):
                assert not (box.x0 < x < box.x1 and box.y0 < y < box.y1)
    printed = for_print(figure, width=3.25)
    for before, after in zip(figure.data, printed.data, strict=True):
        assert (before.x, before.y) == (tuple(after.x), tuple(after.y))
        if before.text and before.mode == "markers":
            assert (after.marker.symbol, after.marker.angle) == ("arrow", None)
            assert after.marker.size < before.marker.size
    line = next(trace for trace in printed.data if trace.text)
    assert line.line.backoff < lines[0].line.backoff


def test_two_arrows_between_the_same_nodes_are_apart():
    lines, heads, _ = parts_of(drawn_network([0, 1], [(0, 1, 0.5, True), (0, 1, -0.4, True)]))
    assert abs(heads[0].x[0] - heads[1].x[0]) >= 13
    assert lines[0].x[0] != lines[1].x[0]


def test_many_heads_have_room():
    """The box becomes wider."""
    figure = drawn_network([0] * 9 + [1], [(n, 9, 0.5, True) for n in range(9)])
    _, heads, _ = parts_of(figure)
    places = sorted(head.x[0] for head in heads)
    assert min(b - a for a, b in pairwise(places)) > 12


def test_the_legend_says_what_widths_heads_and_letters_are():
    values = [(0, 2, 2.0, True), (1, 2, -0.5, False)]
    figure = drawn_network([0, 0, 1], values, quantity="score", notes=["E: embedding"])
    names = ["score above 0", "score below 0", "score \u00b12", "score \u00b10.5"]
    assert sorted(legend_of(figure)) == sorted([*names, "p \u2265 .05", "E: embedding"])
    by_name = {trace.name: trace for trace in figure.data if trace.showlegend is not False}
    assert by_name[names[2]].line.width == max(
        t.line.width for t in figure.data if t.text and t.line.width
    )
    assert by_name[names[3]].line.width == 1.5
    unsure = next(trace for trace in figure.data if trace.mode == "markers" and trace.text)
    assert unsure.marker.symbol == by_name["p \u2265 .05"].marker.symbol == "arrow-open"
    printed = for_print(figure, width=3.25, title=False)
    assert legend_of(printed) == legend_of(figure)
    shares = drawn_network([0, 1], [(0, 1, 0.8, True)], quantity="share", is_signed=False)
    assert legend_of(shares) == ["share", "share 0.8", "share 0.2"]
