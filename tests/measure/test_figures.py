"""Figures that explain a set, against the tables that they are drawn from."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import pytest
import torch

from tests.figures.gallery import legend_of
from tracekit import figures


@pytest.fixture(scope="module")
def why(tracer):
    return tracer.explain([tracer.registry[i] for i in (1, 4, 6, 11)], look_outside=False)


def test_bars_go_from_the_clean_run_to_the_effect_of_the_set(why):
    bars, lines, *_ = why.waterfall().data
    signs = [f"{'above' if value >= 0 else 'below'} 0" for value in why.table["value"]]
    assert legend_of(why.waterfall()) == [*sorted({*signs}), "95 % interval"]
    values = why.table["value"].tolist()
    assert list(bars.y) == [*why.table["component"], "all"]
    assert list(bars.x) == pytest.approx([*values, why.effect.mean().item()])
    assert list(bars.base) == pytest.approx([0, *torch.tensor(values).cumsum(0).tolist()[:-1], 0])
    # The last bar ends where the effect of the set does.
    assert bars.base[3] + bars.x[3] == pytest.approx(why.effect.mean().item(), abs=1e-6)
    assert list(lines.x) == pytest.approx(torch.tensor(values).cumsum(0).tolist())
    widths = why.table["value_high"] - why.table["value"]
    assert list(lines.error_x.array) == pytest.approx(widths.tolist())
    assert why.table["verdict"][0] in bars.customdata[0]


def test_the_map_has_two_contexts(why):
    cells = why.heatmap().data[0].z
    rank_of = {label: rank for rank, label in enumerate(why.labels)}
    for row in why.interactions.to_dict("records"):
        i, j = sorted((rank_of[row["first"]], rank_of[row["second"]]))
        assert cells[i][j] == pytest.approx(row["alone"])
        assert cells[j][i] == pytest.approx(row["averaged"])
    assert all(cells[i][i] is None for i in range(4))


def significant(why, which):
    """An explanation of which some pairs are significant."""
    changed = replace(why)
    frame = why.interactions.copy()
    frame["significant"] = [rank in which for rank in range(len(frame))]
    vars(changed)["interactions"] = frame
    return changed


def test_significant_pairs_are_marked_and_joined(why):
    changed = significant(why, {0, 3})
    chosen = changed.interactions[changed.interactions["significant"]].to_dict("records")
    marks = next(each for each in changed.heatmap().data[1:] if each.mode == "markers")
    assert marks.marker.symbol == "circle"
    assert "dot: p &lt; .05" in changed.heatmap().data[0].colorbar.title.text
    rank_of = {label: rank for rank, label in enumerate(why.labels)}
    expected = {tuple(sorted((rank_of[r["first"]], rank_of[r["second"]]))) for r in chosen}
    assert {(round(x), round(y)) for x, y in zip(marks.x, marks.y, strict=True)} == expected
    *drawn, nodes = changed.network().data
    edges = [edge for edge in drawn if edge.text and edge.line.dash != "dash"]
    assert len(edges) == 2
    spots = dict(zip(nodes.text, zip(nodes.x, nodes.y, strict=True), strict=True))
    widths = []
    for edge, row in zip(edges, chosen, strict=True):
        ends = {(edge.x[0], edge.y[0]), (edge.x[-1], edge.y[-1])}
        assert ends == {spots[row["first"]], spots[row["second"]]}
        assert (edge.line.dash == "solid") == (row["averaged"] > 0)
        assert f"{row['averaged']:+.4g}" in edge.text
        widths.append(edge.line.width / abs(row["averaged"]))
    assert max(edge.line.width for edge in edges) <= 7
    assert widths[1] == pytest.approx(widths[0]) or edges[1].line.width == 1


def test_pairs_whose_interval_leaves_out_0_are_dashed_and_ringed(why):
    none = significant(why, set())
    frame = none.interactions
    for side in ("low", "high"):
        frame[f"averaged_{side}"] = [-1.0 if side == "low" else 1.0] * len(frame)
    assert len([trace for trace in none.network().data if trace.text]) == 1
    names = sorted(
        {f"node: {'above' if value >= 0 else 'below'} 0" for value in why.table["value"]}
    )
    assert legend_of(none.network()) == names
    assert "no interval leaves out 0" in none.network().layout.title.subtitle.text
    frame.loc[2, ["averaged_low", "averaged_high"]] = 0.1, 0.9
    frame.loc[2, "averaged"] = 0.5
    edge, _ = [trace for trace in none.network().data if trace.text]
    assert (edge.line.dash, edge.line.width, edge.showlegend) == ("dash", 3.5, True)
    assert edge.name == "more together, p \u2265 .05"
    texts = [note.text for note in none.network().layout.annotations]
    assert "+0.5" in texts
    assert len(texts) == len(why.labels) + 1
    ring = none.heatmap().data[-1]
    assert (len(ring.x), ring.marker.symbol) == (1, "circle-open")


def test_nodes_have_the_area_of_their_values(why):
    nodes = why.network().data[-1]
    values = why.table.set_index("component")["value"]
    areas = [size**2 for size in nodes.marker.size]
    ratios = [area / abs(values[name]) for area, name in zip(areas, nodes.text, strict=True)]
    large = [r for r, size in zip(ratios, nodes.marker.size, strict=True) if size > 4]
    assert large == pytest.approx([large[0]] * len(large))
    layers = [component.layer for component in why.components]
    assert list(nodes.y) == layers


def test_layers_of_the_network_keep_their_distances():
    members = figures.Members(
        names=["L0H1", "L23H3", "L24H0", "L29H1"],
        values=[1.0, 2.0, -1.0, 0.5],
        low=[0.0] * 4,
        high=[1.0] * 4,
        hover=[""] * 4,
    )
    figure = figures.network(members, [0, 23, 24, 29], [], title="", subtitle="")
    nodes = figure.data[-1]
    assert list(nodes.y) == [0, 23, 24, 29]
    # Too near for one column: the name of one would lie on the other.
    assert nodes.x[1] != nodes.x[2]
    assert figure.layout.height < 8 * 96


@pytest.fixture(scope="module")
def side(tracer):
    members = [tracer.registry[i] for i in (1, 4, 6)]
    others = {"<b>": (tracer.pairs, "kl"), "odds": (tracer.pairs, "odds-ratio")}
    return tracer.side_effects(members, others, draws=5)


def test_cards_show_what_print_does(why, side, tracer):
    for shown in (why, side):
        lines = str(shown).splitlines()
        html = shown._repr_html_()
        assert all(line in unescape(html) for line in lines)
    faithful = tracer.faithfulness("all")._repr_html_()
    assert "<th" in faithful
    assert "faithfulness" in faithful
    pairs = tracer.strongest_pairs(2)
    assert f"{pairs.interactions[0]:.4g}" in pairs._repr_html_()


def test_side_effects_stand_beside_random_sets(side):
    figure = side.figure()
    crosses, points = figure.data
    assert list(points.x) == pytest.approx(side.table["strength"].tolist())
    ends = side.table["strength_high"] - side.table["strength"]
    assert list(points.error_x.array) == pytest.approx(ends.tolist())
    measured = (side.target, *side.others)
    controls = [x for each in measured for x in each.control_strengths.tolist()]
    assert list(crosses.x) == pytest.approx(controls)
    assert [round(y) for y in crosses.y] == [row for row in range(3) for _ in range(5)]
    assert [round(y) for y in points.y] == [0, 1, 2]
    low, high = figure.layout.xaxis.range
    assert low <= 0
    assert high >= max(*controls, *side.table["strength_high"])
    notes = [note.text for note in figure.layout.annotations]
    assert notes[0] == "selectivity"
    for note, value in zip(notes[1:], side.table["selectivity"][1:], strict=True):
        assert note.startswith(f"{value:.2f}".replace("-", "\u2212"))
    # A name is shown letter by letter, and fits when the figure is printed in a column.
    assert figure.layout.yaxis.ticktext[1] == "&lt;b&gt;<br>kl<br>n = 12"
    assert figures.for_print(figure, width=3.3).layout.margin.r > 60
