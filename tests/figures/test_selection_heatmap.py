"""Selection heatmaps against the masks that they show."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tests.figures.gallery import legend_of
from tracekit import figures
from tracekit.errors import ConfigError
from tracekit.figures import style
from tracekit.results.panels import panels_of


def test_selection_data_holds_the_masks(tracer):
    result = tracer.results[1]
    heads, blocks = result.panels()
    assert (heads.kind, blocks.kind) == ("head-outputs", "mlp-blocks")
    assert heads.layers == blocks.layers == (0, 1, 2)
    flat = [cell for row in heads.selected for cell in row] + [row[0] for row in blocks.selected]
    assert flat == result.binary_mask.tolist()
    assert heads.hover[1][2].startswith("L1H2: ")
    assert "score " in heads.hover[1][2]
    assert not heads.is_share
    assert sum(heads.shares) * 4 + sum(blocks.shares) == result.n_selected


def cells_of(figure):
    """The heatmaps that show values; others are the white ground."""
    return [t for t in figure.data if t.type == "heatmap" and t.hovertemplate]


def test_heatmaps_show_what_is_selected(tracer):
    result = tracer.results[1]
    figure = tracer.heatmap(result, color="selected")
    heads, blocks = cells_of(figure)
    assert [list(row) for row in heads.z] == result.binary_mask[:12].float().reshape(3, 4).tolist()
    assert [row[0] for row in blocks.z] == result.binary_mask[12:].float().tolist()
    # White, and the one colour of what is selected.
    assert heads.colorscale == ((0, "white"), (1, figures.style.SELECTED))
    assert not heads.showscale
    (key,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert (key.name, key.marker.color, list(key.x)) == ("selected", style.SELECTED, [None])
    assert legend_of(figures.for_print(figure, width=3.25, title=False)) == ["selected"]
    assert (
        f"{result.n_selected} of 15 head-outputs+mlp-blocks selected"
        in figure.layout.title.subtitle.text
    )
    assert figure.layout.yaxis.title.text == "layer"


def test_every_method_has_a_colour_in_all_figures():
    of_methods = {figures.style.STYLES[name][0] for name in {*tk.search.METHODS} - {"pgb-ct"}}
    # What PGB-CT finds has one colour, improved or not.
    assert len(of_methods) == len(tk.search.METHODS) - 1


@pytest.mark.parametrize("color", ["soft", "score", "rank", "none"])
def test_other_colors_frame_what_is_selected(tracer, color):
    result = tracer.results[1]
    figure = result.heatmap(color=color)
    heads = cells_of(figure)[0]
    values = [value for row in heads.z for value in row]
    scores = result.component_scores
    expected = {
        "soft": result.soft_mask.tolist(),
        "score": scores.tolist(),
        "rank": [1.0 + (scores > score).sum().item() for score in scores],
        "none": [0.0] * 15,
    }[color]
    assert values == pytest.approx(expected[:12])
    frames = [trace for trace in figure.data if trace.name == "frame"]
    corners = [(x, y) for trace in frames for x, y in zip(trace.x, trace.y, strict=True)]
    assert corners.count((None, None)) == result.n_selected
    first = next(i for i in range(12) if result.binary_mask[i])
    assert (first % 4 - 0.5, first // 4 - 0.5) in corners
    assert bool(heads.showscale) == (color != "none")
    assert legend_of(figure) == ["selected"]
    if color == "rank":
        assert heads.zmax == result.n_components


@pytest.mark.usefixtures("unchecked")
def test_colors_that_are_none_are_refused(tracer):
    with pytest.raises(ConfigError, match="color is 'red'. Use one of selected, soft, score"):
        tracer.results[0].heatmap(color="red")
    greedy = tracer.results[2]
    assert greedy.component_scores is None
    with pytest.raises(ConfigError, match="of greedy has no scores of components. Use color="):
        greedy.heatmap(color="score")


def test_cells_are_square_and_layer_0_is_on_top(tracer):
    for figure in (tracer.heatmap(), tk.compare(tracer.results[:3]).heatmap()):
        layout = figure.layout
        plot = layout.width - layout.margin.l - layout.margin.r
        height = layout.height - layout.margin.t - layout.margin.b
        names = [name for name in layout.to_plotly_json() if name.startswith("xaxis")]
        assert len(names) >= 2
        for name in names:
            x, y = layout[name], layout[name.replace("x", "y", 1)]
            assert tuple(y.range) == (2.5, -0.5)
            cell = (x.domain[1] - x.domain[0]) * plot / (x.range[1] - x.range[0])
            assert cell == pytest.approx(height / 3, rel=0.03)
            assert all((x.mirror, y.mirror, x.showline, y.showline))


@pytest.mark.parametrize(("n_layers", "n_heads"), [(12, 12), (24, 16), (48, 25), (40, 40)])
def test_large_models_fit_a_page(tracer, n_layers, n_heads):
    shape = SimpleNamespace(n_layers=n_layers, n_heads=n_heads)
    registry = tk.components.ComponentRegistry.build(shape)
    mask = torch.rand(len(registry), generator=torch.Generator().manual_seed(0)) < 0.2
    result = replace(
        tracer.results[0],
        registry=registry,
        binary_mask=mask,
        soft_mask=mask.float(),
        component_scores=None,
    )
    alone, panel = result.heatmap(), tk.compare([result] * 3).heatmap()
    assert alone.layout.width <= 540
    assert panel.layout.width <= 660
    assert max(alone.layout.height, panel.layout.height) <= 800
    (cells,) = cells_of(alone)
    assert sum(value for row in cells.z for value in row) == mask.sum()
    n_labels = len(alone.layout.yaxis.tickvals)
    assert 10 <= n_labels <= n_layers
    assert 640 / n_layers * (n_layers / n_labels) >= 13


def test_many_components_are_shares_of_layers(demo_model):
    registry = tk.components.ComponentRegistry.build(demo_model.cfg, "mlp-outputs")
    tracer = tk.Tracer(demo_model, tk.load_dataset("demo-professions", demo_model)[:4], registry)
    result = tracer.run("random", budget=0.25, draws=1)
    (panel,) = result.panels()
    assert panel.is_share
    per_layer = result.to_frame().groupby("layer")["selected"].mean().tolist()
    assert panel.shares == pytest.approx(per_layer)
    figure = tracer.heatmap()
    (bar,) = [trace for trace in figure.data if trace.type == "bar"]
    assert list(bar.x) == pytest.approx([100 * share for share in per_layer])
    uniform = next(trace for trace in figure.data[1:] if trace.mode == "lines")
    assert uniform.x[0] == pytest.approx(25)
    assert "of 128 (" in bar.text[0]
    assert legend_of(figure) == ["bar: selected", "share of all layers"]
    alone = tk.Tracer(demo_model, tracer.pairs, "mlp-outputs", layers=[1]).run(
        "random", budget=9, draws=1
    )
    assert [trace.type for trace in alone.heatmap().data] == ["bar", "scatter"]
    assert legend_of(alone.heatmap()) == ["bar: selected"]


def test_a_few_of_many_components_are_cells(demo_model):
    tracer = tk.Tracer(
        demo_model,
        tk.load_dataset("demo-professions", demo_model)[:4],
        "mlp-outputs",
        indices={0: [3, 70], 2: [70]},
    )
    (panel,) = tracer.run("top-k", budget=1).panels()
    assert panel.indices == (3, 70)
    assert [[cell is None for cell in row] for row in panel.selected] == [
        [False, False],
        [True, False],
    ]


def test_components_outside_the_registry_are_left_blank(model):
    tracer = tk.Tracer(model, tiny.pairs(4), indices={0: [1], 2: [0, 3]})
    result = tracer.run("top-k", budget=1)
    (panel,) = result.panels()
    assert panel.layers == (0, 2)
    assert [[cell is None for cell in row] for row in panel.values] == [
        [True, False, True, True],
        [False, True, True, False],
    ]
    # Layer 1 is not there, and a line says so.
    figure = result.heatmap()
    (line,) = figure.layout.shapes
    assert (line.y0, line.y1) == (0.5, 0.5)
    assert legend_of(figure) == ["selected", "layers not studied", "not studied"]


def test_layers_that_one_kind_lacks_have_no_cells():
    """Cells of neighbouring rows would else grow over them."""
    shape = SimpleNamespace(n_layers=3, n_heads=2, d_mlp=8)
    panels = []
    for kind, layers in (("head-outputs", [0, 2]), ("mlp-blocks", None)):
        registry = tk.components.ComponentRegistry.build(shape, kind, layers=layers)
        zeros = torch.zeros(len(registry))
        texts = [""] * len(zeros)
        panels += panels_of(registry, zeros.bool(), values=zeros.tolist(), texts=texts)
    options = {"scale": None, "width": 520, "outlines": False, "title": "", "subtitle": ""}
    heads, blocks = cells_of(figures.draw_panels(panels, **options))
    assert list(heads.y) == list(blocks.y) == [0, 1, 2]
    assert list(heads.z[1]) == [None] * len(heads.x)


@pytest.mark.parametrize("layers_on", ["y", "x"])
def test_runs_of_empty_layers_are_folded(layers_on):
    """Each is one row of white cells with a line, and its layers stand at the axis."""
    shape = SimpleNamespace(n_layers=30, n_heads=2, d_mlp=80)
    registry = tk.components.ComponentRegistry.build(shape, "head-outputs+mlp-neurons")
    selected = torch.zeros(len(registry))
    names = ["L8H0", "L9H1", "L17H0", "L19H1", "L29H1", "L17N3"]
    selected[[registry.index(name) for name in names]] = 1
    panels = panels_of(
        registry, selected.bool(), values=selected.tolist(), texts=[""] * len(registry)
    )
    options = {"scale": None, "width": 520, "outlines": False, "title": "", "subtitle": ""}
    figure = figures.draw_panels(panels, layers_on=layers_on, fold=True, **options)
    axis = figure.layout.yaxis if layers_on == "y" else figure.layout.xaxis2
    # One empty layer between others stays.
    names = [name.replace("\u2013", " to ") for name in axis.ticktext]
    assert names == ["0 to 7", "8", "9", "10 to 16", "17", "18", "19", "20 to 28", "29"]
    (heads,) = cells_of(figure)
    rows = heads.z if layers_on == "y" else list(zip(*heads.z, strict=True))
    empty = (None, None)
    assert list(map(tuple, rows)) == [
        empty, (1, 0), (0, 1), empty, (1, 0), (0, 0), (0, 1), empty, (0, 1)
    ]  # fmt: skip
    white = next(trace for trace in figure.data if trace.type == "heatmap").z
    assert not any(cell is None for row in white for cell in row)
    (bars,) = [trace for trace in figure.data if trace.type == "bar"]
    assert list(bars.x if layers_on == "y" else bars.y) == pytest.approx([0] * 4 + [1.25] + [0] * 4)
    lines = [shape for shape in figure.layout.shapes if shape.type == "line"]
    ends = [(line.y0, line.y1) if layers_on == "y" else (line.x0, line.x1) for line in lines]
    assert ends == [(0, 0), (3, 3), (7, 7)] * 2
    assert "folded layers" in legend_of(figure)
    whole = figures.draw_panels(panels, layers_on=layers_on, **options)
    assert len(cells_of(whole)[0].z[0 if layers_on == "x" else slice(None)]) == 30
    assert "folded layers" not in legend_of(whole)


def test_every_heatmap_of_cells_can_be_folded(tracer):
    result = replace(tracer.results[0], binary_mask=torch.eye(15)[0], soft_mask=torch.eye(15)[0])
    assert result.labels == ["L0H0"]
    front = tk.Tracer(tracer.model, tracer.pairs).pareto(
        max_budget=1, statistics=False, max_passes=20
    )
    singles = tracer.single_effects()
    unlike = replace(singles, tests=replace(singles.tests, q=torch.eye(15)[0] * -0.9 + 0.9))
    for figure in (
        result.heatmap(fold=True),
        result.heatmap(color="score", fold=True),
        tk.compare([result]).heatmap(fold=True),
        unlike.heatmap(fold=True),
    ):
        assert list(figure.layout.yaxis.ticktext) == ["0", "1\u20132"]
    assert len(front.heatmap(fold=True).layout.yaxis.ticktext) < 3
    # Without frames, what is to be seen is the colours.
    assert len(singles.heatmap(mark=None, fold=True).layout.yaxis.ticktext) == 3


def test_fronts_show_the_size_at_which_components_enter(model):
    front = tk.Tracer(model, tiny.pairs(6)).pareto(max_budget=6, statistics=False, max_passes=100)
    figure = front.heatmap()
    (cells,) = cells_of(figure)
    values = [value for row in cells.z for value in row]
    for flat, value in enumerate(values):
        sizes = [
            size
            for size, result in zip(front.sizes, front, strict=True)
            if result.binary_mask[flat]
        ]
        assert value == (min(sizes) if sizes else None)
    texts = [text for row in cells.text for text in row]
    assert f"of {len(front)} sizes" in texts[0]
    assert legend_of(figure) == (["in no set"] if None in values else [])
    # The bar ends where the sizes do, and names both ends.
    ends = (front.sizes[0], front.sizes[-1])
    assert (cells.zmin, cells.zmax) == ends
    assert (cells.colorbar.tickvals[0], cells.colorbar.tickvals[-1]) == ends


def test_cells_below_zero_say_so_without_colour(model):
    result = tk.Tracer(model, tiny.pairs(6)).run("top-k", budget=2)
    figure = result.heatmap(color="score")
    drawn = [trace for trace in figure.data if trace.type == "heatmap" and trace.showscale]
    values = {
        (row, column): value
        for row, cells in enumerate(drawn[0].z)
        for column, value in enumerate(cells)
    }
    least = 0.1 * max(map(abs, values.values()))
    below = [cell for cell, value in values.items() if value < -least]
    assert 0 < len(below) < len(values)
    (marks,) = [trace for trace in figure.data if trace.name == "below 0"]
    assert list(zip(marks.y, marks.x, strict=True)) == below
    shown = drawn[0].colorbar.title.text.split("\u2212: below ")[1].replace("\u2212", "-")
    assert float(shown) == pytest.approx(-least, rel=0.05)
