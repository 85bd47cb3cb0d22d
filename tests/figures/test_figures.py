from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import tracekit as tk
from tests import tiny
from tracekit import figures
from tracekit.errors import ComparisonError, ConfigError, FigureExportError, NoResultError
from tracekit.search import Goal

BROWSER = any(shutil.which(name) for name in ("chromium", "google-chrome", "chrome"))


@pytest.fixture(scope="module")
def tracer(model):
    tracer = tk.Tracer(model, tiny.pairs(6), "head-outputs+mlp-blocks")
    tracer.run("top-k", budgets=[1, 4])
    tracer.run("greedy", budget=3)
    tracer.run("random", budgets=[2, 4], draws=3)
    return tracer


def test_selection_data_holds_the_masks(tracer):
    result = tracer.results[1]
    heads, blocks = figures.selection_data(result)
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
    figure = tracer.heatmap(result)
    heads, blocks = cells_of(figure)
    assert [list(row) for row in heads.z] == result.binary_mask[:12].float().reshape(3, 4).tolist()
    assert [row[0] for row in blocks.z] == result.binary_mask[12:].float().tolist()
    # White, and the colour of the method in all other figures.
    assert heads.colorscale == ((0, "white"), (1, figures.style.STYLES["top-k"][0]))
    assert not heads.showscale
    assert not [trace for trace in figure.data if trace.type == "scatter"]
    assert f"{result.n_selected} of 15 selected" in figure.layout.title.subtitle.text
    assert figure.layout.yaxis.title.text == "layer"


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
    frames = [trace for trace in figure.data if trace.type == "scatter"]
    corners = [(x, y) for trace in frames for x, y in zip(trace.x, trace.y, strict=True)]
    assert corners.count((None, None)) == result.n_selected
    first = next(i for i in range(12) if result.binary_mask[i])
    assert (first % 4 - 0.5, first // 4 - 0.5) in corners
    assert bool(heads.showscale) == (color != "none")


@pytest.mark.usefixtures("unchecked")
def test_colors_that_are_none_are_refused(tracer):
    with pytest.raises(ConfigError, match="Unknown color 'red'. Use one of selected, soft, score"):
        figures.heatmap(tracer.results[0], color="red")
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
    registry = tk.ComponentRegistry.build(shape)
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
    registry = tk.ComponentRegistry.build(demo_model.cfg, "mlp-outputs")
    tracer = tk.Tracer(demo_model, tk.load_dataset("demo-professions", demo_model)[:4], registry)
    result = tracer.run("random", budget=0.25, draws=1)
    (panel,) = figures.selection_data(result)
    assert panel.is_share
    per_layer = result.to_frame().groupby("layer")["selected"].mean().tolist()
    assert panel.shares == pytest.approx(per_layer)
    figure = tracer.heatmap()
    (bar,) = [trace for trace in figure.data if trace.type == "bar"]
    assert list(bar.x) == pytest.approx([100 * share for share in per_layer])
    (uniform,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert uniform.x[0] == pytest.approx(25)
    assert "of 128 selected" in bar.text[0]


def test_a_few_of_many_components_are_cells(demo_model):
    tracer = tk.Tracer(
        demo_model,
        tk.load_dataset("demo-professions", demo_model)[:4],
        "mlp-outputs",
        indices={0: [3, 70], 2: [70]},
    )
    (panel,) = figures.selection_data(tracer.run("top-k", budget=1))
    assert panel.indices == (3, 70)
    assert [[cell is None for cell in row] for row in panel.selected] == [
        [False, False],
        [True, False],
    ]


def test_components_outside_the_registry_are_left_blank(model):
    tracer = tk.Tracer(model, tiny.pairs(4), indices={0: [1], 2: [0, 3]})
    result = tracer.run("top-k", budget=1)
    (panel,) = figures.selection_data(result)
    assert panel.layers == (0, 2)
    assert [[cell is None for cell in row] for row in panel.values] == [
        [True, False, True, True],
        [False, True, True, False],
    ]
    # Layer 1 is not there, and a line says so.
    (line,) = result.heatmap().layout.shapes
    assert (line.y0, line.y1) == (0.5, 0.5)


class TestComparison:
    def test_panels_share_rows_and_colours(self, tracer):
        top_k, greedy = tracer.results[1], tracer.results[2]
        figure = tk.compare([top_k, greedy], ["one", "two"]).heatmap()
        first, _, second, _ = cells_of(figure)
        assert [list(row) for row in first.z] == top_k.binary_mask[:12].reshape(3, 4).tolist()
        assert [list(row) for row in second.z] == greedy.binary_mask[:12].reshape(3, 4).tolist()
        assert first.colorscale[1][1] != second.colorscale[1][1]
        assert [note.text for note in figure.layout.annotations] == ["one", "two"]

    def test_similarities(self, tracer):
        comparison = tk.compare(tracer.results[:3])
        sets = [set(result.labels) for result in comparison]
        expected = [[len(a & b) / len(a | b) for b in sets] for a in sets]
        assert comparison.jaccard.to_numpy() == pytest.approx(torch.tensor(expected).numpy())
        assert list(comparison.jaccard) == list(comparison.labels)
        (trace,) = comparison.similarities().data
        assert trace.z[0][1] == pytest.approx(expected[0][1])

    def test_curves_have_the_intervals_of_results(self, tracer):
        result = tracer.results[2]
        figure = tk.compare(tracer.results).curve()
        (trace,) = [trace for trace in figure.data if trace.name == "greedy"]
        index = list(trace.x).index(result.n_selected)
        low, high = result.spread
        assert trace.error_y.array[index] == pytest.approx(high - result.effect)
        assert trace.error_y.arrayminus[index] == pytest.approx(result.effect - low)
        # Sizes that were passed on the way have no interval.
        assert trace.error_y.array[0] == 0

    def test_labels(self, tracer):
        assert tk.compare(tracer.results[1:3]).labels == ("top-k", "greedy")
        assert tk.compare([tracer.results[:2], tracer.results[2]]).labels == (
            "top-k, 1",
            "top-k, 4",
            "greedy, 3",
        )
        twice = tk.compare([tracer.results[2], tracer.results[2]])
        assert twice.labels == ("greedy, 3 (1)", "greedy, 3 (2)")
        with pytest.raises(ComparisonError, match="There are 2 results and 1 labels. Give a label"):
            tk.compare(tracer.results[:2], ["a"])
        with pytest.raises(NoResultError, match="There is no result to compare. Give at least one"):
            tk.compare([])

    def test_the_table(self, tracer):
        comparison = tk.compare(tracer.results[:3])
        frame = comparison.to_frame()
        assert frame["effect"].tolist() == [result.effect for result in comparison]
        assert frame["share"].tolist() == pytest.approx(
            [result.effect / result.full_effect for result in comparison]
        )
        assert frame["components"][2] == " ".join(comparison[2].labels)

    def test_latex_and_markdown(self, tracer):
        comparison = tk.compare(tracer.results)
        text = comparison.to_latex(label="tab:mine")
        assert "\\label{tab:mine}" in text
        assert "\\textbf{" in text
        assert "held out" not in text
        lines = comparison.to_markdown().splitlines()
        assert len(lines) == 2 + len(comparison)
        assert lines[0].startswith("| result | selected | effect | 95 % spread | share | passes |")


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
    # The bar ends where the sizes do, and names both ends.
    ends = (front.sizes[0], front.sizes[-1])
    assert (cells.zmin, cells.zmax) == ends
    assert (cells.colorbar.tickvals[0], cells.colorbar.tickvals[-1]) == ends


def test_curve_data_has_every_measured_size(tracer):
    frame = figures.curve_data(tracer.results)
    sizes = {name: part["n_selected"].tolist() for name, part in frame.groupby("method")}
    assert sizes == {"top-k": [1, 4], "greedy": [1, 2, 3], "random": [2, 4]}
    greedy = tracer.results[2]
    found = frame[frame["method"] == "greedy"]["effect"].tolist()
    assert found == pytest.approx([record["effect"] for record in greedy.history], rel=1e-4)


def test_curve_data_has_every_size_of_a_path(tracer):
    search = tk.LocalSearch(max_passes=40)
    found = search.search(tracer.engine, Goal(budgets=(3,)), 0)[0]
    assert [record["n_selected"] for record in found.history] == [1, 2, 3]
    before = list(tracer.results)
    result = tracer.run(search, budget=3)
    tracer.results[:] = before
    frame = figures.curve_data([result])
    assert frame["n_selected"].tolist() == [1, 2, 3]
    assert frame["effect"].tolist() == pytest.approx([r["effect"] for r in result.history])


def test_curves_draw_their_data(tracer):
    figure = tracer.curve()
    named = {trace.name: trace for trace in figure.data if trace.name}
    assert list(named) == ["top-k", "greedy", "best of 3 random sets"]
    assert len({trace.line.color for trace in named.values()}) == 3
    assert len({trace.line.dash for trace in named.values()}) == 3
    assert len({trace.marker.symbol for trace in named.values()}) == 3
    assert list(named["greedy"].x) == [1, 2, 3]
    starts = [trace for trace in figure.data if not trace.name and trace.mode == "lines"]
    assert [(trace.x[0], trace.y[0]) for trace in starts] == [(0, 0)] * 3
    assert figure.layout.shapes[0].y0 == pytest.approx(tracer.full_effect)
    assert "odds ratio \u2212 1" in figure.layout.yaxis.title.text
    # The second axis has shares of all 15 components.
    ticks, texts = figure.layout.xaxis2.tickvals, figure.layout.xaxis2.ticktext
    assert [float(text[:-2]) * 15 / 100 for text in texts] == pytest.approx(list(ticks))


def test_pgb_ct_lies_on_top(tracer):
    results = [replace(tracer.results[0], method="pgb-ct"), *tracer.results[1:]]
    named = [trace.name for trace in figures.curve(results).data if trace.name]
    assert named[-1] == "top-k"  # The title that was kept.


def test_long_legends_leave_the_axis_alone(tracer):
    results = [
        replace(tracer.results[1], method=f"m{k}", method_title=f"a long name of method {k}")
        for k in range(7)
    ]
    few, many = figures.curve(results[:1]), figures.curve(results)
    assert many.layout.legend.yanchor == "top"
    assert many.layout.height > few.layout.height + 7 * 10
    assert many.layout.margin.b - few.layout.margin.b == many.layout.height - few.layout.height


def test_interaction_maps_are_centred_on_additive(tracer):
    grid = tracer.interactions(layers=[0])
    figure = grid.heatmap()
    trace = figure.data[0]
    assert trace.zmid == 0
    assert trace.zmin == -trace.zmax
    assert trace.z[0][0] is None
    assert trace.z[0][1] == pytest.approx(grid.interaction[0, 1].item())
    assert trace.text[0][1].startswith("L0H0 and L0H1<br>interaction: ")
    assert list(figure.layout.xaxis.ticktext) == list(grid.labels)


def test_interaction_maps_have_two_levels_of_labels_and_signs(model):
    grid = tk.Tracer(model, tiny.pairs(6)).interactions(layers=[0, 2])
    figure = grid.heatmap()
    assert list(figure.layout.xaxis.ticktext) == list("01230123")
    assert [note.text for note in figure.layout.annotations] == ["layer 0"] * 2 + ["layer 2"] * 2
    assert {(line.x0, line.y0) for line in figure.layout.shapes} == {(3.5, 0), (0, 3.5)}
    signs = figure.data[1]
    values = grid.interaction
    upper = [(i, j) for i in range(8) for j in range(i + 1, 8)]
    largest = sorted(upper, key=lambda cell: -abs(values[cell].item()))[:5]
    marked = {(y, x): text for x, y, text in zip(signs.x, signs.y, signs.text, strict=True)}
    assert set(marked) == {*largest, *((j, i) for i, j in largest)}
    assert all((text == "+") == (values[cell] > 0) for cell, text in marked.items())


def test_interaction_maps_are_clipped_if_asked(model):
    grid = tk.Tracer(model, tiny.pairs(6)).interactions(layers=[0, 2])
    upper = grid.interaction[tuple(torch.triu_indices(8, 8, 1))].abs()
    figure = grid.heatmap(clip=0.5)
    assert figure.data[0].zmax == pytest.approx(upper.quantile(0.5).item())
    assert figure.data[0].colorbar.ticktext[-1].startswith("\u25b2")
    assert grid.heatmap().data[0].zmax == pytest.approx(upper.max().item())
    assert grid.heatmap().data[0].colorbar.ticktext is None
    with pytest.raises(ConfigError, match="clip is 0. It is a quantile, above 0 and at most 1"):
        grid.heatmap(clip=0)


def test_html_opens_offline(tracer, tmp_path):
    path = figures.write(tracer.curve(), tmp_path / "deep" / "curve.html")
    assert (path.parent / "plotly.min.js").stat().st_size > 1e6
    text = path.read_text()
    assert "plotly.min.js" in text
    assert "cdn" not in text.split("<body>")[1][:3000].lower()


@pytest.mark.skipif(not BROWSER, reason="images need Chrome or Chromium")
def test_images(tracer, tmp_path):
    path = figures.write(tracer.heatmap(), tmp_path / "heatmap.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_images_without_a_browser_are_one_clear_error(tracer, tmp_path, monkeypatch):
    figure = tracer.curve()
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "chrome"))
    with pytest.raises(FigureExportError) as caught:
        figures.write(figure, tmp_path / "curve.png")
    assert str(caught.value).startswith("Could not write curve.png: ")
    assert "Chrome" in str(caught.value).split(". Install")[0]
    assert "or write .html" in str(caught.value)
    paths = {tmp_path / name: figure for name in ("a.png", "b.html", "c.svg")}
    with pytest.raises(FigureExportError, match=r"Could not write a.png, c.svg: "):
        figures.write_all(paths)
    assert (tmp_path / "b.html").exists()


@pytest.mark.skipif(os.name == "nt", reason="the browser that hangs is a shell script")
def test_a_browser_that_hangs_is_tried_twice_and_given_up(tracer, tmp_path, monkeypatch):
    browser = tmp_path / "chrome"
    browser.write_text(f"#!/bin/sh\necho started >> {tmp_path / 'starts'}\nexec sleep 20\n")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(browser))
    monkeypatch.setattr(figures.export, "_TO_START", 3.0)
    monkeypatch.setattr(figures.export, "_PER_IMAGE", 1.0)
    text = "Could not write curve.png: the browser did not answer in 4 seconds, 2 times. Install"
    with pytest.raises(FigureExportError, match=text):
        figures.write(tracer.curve(), tmp_path / "curve.png")
    assert (tmp_path / "starts").read_text().split() == ["started", "started"]
    assert not (tmp_path / "curve.png").exists()


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="images need Chrome or Chromium")
def test_many_figures_at_once(tracer, tmp_path):
    paths = {tmp_path / "curve.svg": tracer.curve(), tmp_path / "heatmap.png": tracer.heatmap()}
    assert figures.write_all(paths) == list(paths)
    assert "all 15 components" in (tmp_path / "curve.svg").read_text()
    alone = figures.write(tracer.heatmap(), tmp_path / "alone.png").read_bytes()
    assert (tmp_path / "heatmap.png").read_bytes() == alone


def test_global_templates_are_left_alone(tracer):
    import plotly.io as pio

    before = pio.templates.default
    tracer.curve()
    assert pio.templates.default == before


def test_curves_never_mix_what_is_not_comparable(model):
    pairs = tiny.pairs(6)
    base = tk.Tracer(model, pairs).run("top-k", budget=2)
    for other, text in (
        (tk.Tracer(model, tiny.pairs(6, seed=1)), "of different examples"),
        (tk.Tracer(model, pairs, metric="probability-drop"), "(odds-ratio and probability-drop)"),
        (tk.Tracer(model, pairs, "head-outputs"), "of different components"),
        (tk.Tracer(model, pairs, positions="last"), "of different positions (prompt and last)"),
    ):
        with pytest.raises(ComparisonError) as caught:
            figures.curve([base, other.run("top-k", budget=2)])
        assert text in str(caught.value)
    assert figures.curve([base, base]).data


def test_images_have_the_size_of_their_figures(tracer, tmp_path):
    """A PNG's header holds its size: two pixels a point; an SVG's its width and height."""
    small, large = tracer.heatmap(), tracer.curve()
    small.update_layout(width=310, height=170)
    figures.write_all(
        {tmp_path / "s.png": small, tmp_path / "l.png": large, tmp_path / "s.svg": small}
    )
    for name, figure in (("s.png", small), ("l.png", large)):
        header = (tmp_path / name).read_bytes()[16:24]
        size = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")
        assert size == (2 * figure.layout.width, 2 * figure.layout.height)
    assert 'width="310" height="170"' in (tmp_path / "s.svg").read_text()


class TestPrint:
    def test_a_width_in_inches(self, tracer):
        figure = tracer.heatmap()
        before = figure.to_json()
        printed = figures.for_print(figure, width="3.3in", font_size=8, font="Times", title=False)
        assert figure.to_json() == before
        assert printed.layout.width == pytest.approx(3.3 * 96)
        assert printed.layout.font.size == pytest.approx(8 * 96 / 72)
        assert printed.layout.font.family == "Times"
        assert not printed.layout.title.text
        # The plot keeps its proportions.
        ratios = []
        for layout in (figure.layout, printed.layout):
            width = layout.width - layout.margin.l - layout.margin.r
            ratios.append(width / (layout.height - layout.margin.t - layout.margin.b))
        spare = figure.layout.margin.r - 20
        assert spare >= 0
        assert ratios[1] == pytest.approx(ratios[0], rel=1e-6)

    def test_all_texts_shrink_alike(self, tracer):
        figure = tracer.curve()
        printed = figures.for_print(figure, width="3.3in")
        factor = printed.layout.font.size / figure.layout.font.size
        assert factor == pytest.approx(8 * 96 / 72 / figure.layout.font.size)
        for get in (
            lambda layout: layout.xaxis.tickfont.size,
            lambda layout: layout.xaxis.title.font.size,
            lambda layout: layout.legend.font.size,
            lambda layout: layout.title.font.size,
            lambda layout: layout.annotations[0].font.size,
        ):
            assert get(printed.layout) == pytest.approx(factor * get(figure.layout))

    @pytest.mark.parametrize(
        ("width", "inches"),
        [("85mm", 85 / 25.4), ("8.5 cm", 8.5 / 2.54), (5, 5), ("200px", 200 / 96)],
    )
    def test_units(self, tracer, width, inches):
        printed = figures.for_print(tracer.curve(), width=width, font_size=6)
        assert printed.layout.width == pytest.approx(96 * inches)

    @pytest.mark.parametrize("width", ["wide", "3.3 feet", "0in", "-2in", "900in", ""])
    def test_widths_that_are_none(self, tracer, width):
        with pytest.raises(
            ConfigError, match="The width is .* Give inches, or a number with a unit"
        ):
            figures.for_print(tracer.curve(), width=width)

    def test_sizes_that_do_not_fit(self, tracer):
        with pytest.raises(ConfigError, match="leaves .* pixels for the plot at 20 points. Give a"):
            figures.for_print(tracer.curve(), width="1in", font_size=20)
        with pytest.raises(ConfigError, match="font_size is 1. Give points, from 2 to 72"):
            figures.for_print(tracer.curve(), font_size=1)

    @pytest.mark.slow
    @pytest.mark.skipif(not BROWSER, reason="images need Chrome or Chromium")
    def test_files_have_the_width(self, tracer, tmp_path):
        figure = tracer.heatmap()
        for name in ("a.png", "a.svg", "a.pdf"):
            figures.write(figure, tmp_path / name, width="3.3in", font_size=8)
        width = int.from_bytes((tmp_path / "a.png").read_bytes()[16:20], "big")
        assert width == pytest.approx(3.3 * 300, abs=3)
        svg = re.search(r'width="([\d.]+)"', (tmp_path / "a.svg").read_text())
        assert float(svg[1]) == pytest.approx(3.3 * 96, abs=1)
        box = re.search(rb"/MediaBox ?\[0 0 ([\d.]+) ", (tmp_path / "a.pdf").read_bytes())
        assert float(box[1]) == pytest.approx(3.3 * 72, abs=1.5)


def test_names_are_no_html(tracer):
    """Plotly takes some tags in texts: bold, links. Names are shown letter by letter."""
    bad = '<b>a</b><a href="http://evil">b</a>'
    shown = '&lt;b&gt;a&lt;/b&gt;&lt;a href="http://evil"&gt;b&lt;/a&gt;'
    result = replace(tracer.results[0], method_title=bad, dataset=bad, model=bad)
    grid = replace(tracer.interactions(layers=[0]), title=bad)
    for figure, count in (
        (result.heatmap(), 3),
        (tk.compare([result]).heatmap(), 3),
        (figures.curve([result]), 3),
        (tk.compare([result]).similarities(), 4),
        (grid.heatmap(), 1),
    ):
        texts = [figure.layout.title.text, *(note.text for note in figure.layout.annotations)]
        texts += [trace.name or "" for trace in figure.data]
        axes = [values for trace in figure.data for values in (trace.x, trace.y)]
        cells = [cell for values in axes if values is not None for cell in values]
        texts += [cell for cell in cells if isinstance(cell, str)]
        assert not any("<b>" in text or "<a " in text for text in texts)
        assert sum(text.count(shown) for text in texts) == count


def test_maps_of_both_directions_have_one_above_the_other(tracer):
    members = [tracer.registry[i] for i in (0, 1, 4, 6)]
    given = [tracer.registry[9]]
    grid = tracer.interactions(members, both_directions=True, given=given)
    p = torch.full((6,), 0.5)
    first, second = p.clone(), p.clone()
    first[1], second[4] = 0.01, 0.02
    grid = replace(grid, p=first, opposite=replace(grid.opposite, p=second))
    figure = grid.heatmap()
    cells, signs, dots = figure.data
    kinds = grid.to_frame().set_index(["first", "second"])["kind"]
    for i, j in grid.index_pairs:
        assert cells.z[i][j] == pytest.approx(grid.interaction[i, j].item())
        assert cells.z[j][i] == pytest.approx(grid.opposite.interaction[i, j].item())
        kind = kinds[grid.labels[i], grid.labels[j]]
        assert cells.text[i][j].endswith(f"noising; {kind}")
        assert cells.text[j][i].endswith(f"denoising; {kind}")
    assert {(y > x) for x, y in zip(signs.x, signs.y, strict=True)} == {True, False}
    # The second pair above the diagonal, the fifth below it.
    (i, j), (k, m) = grid.index_pairs[1], grid.index_pairs[4]
    spots = {(round(y), round(x)) for x, y in zip(dots.x, dots.y, strict=True)}
    assert spots == {(i, j), (m, k)}
    assert figure.layout.title.subtitle.text == "above: noising; below: denoising; given L2H1"
    low, high = grid.interaction_interval[1].tolist()
    assert f"({low:.3g} to {high:.3g}), p = 0.01" in cells.text[i][j]


def test_what_looks_white_has_no_sign(tracer):
    grid = tracer.interactions(layers=[0])
    pairs = grid.singles[:, None] + grid.singles[None, :]
    pairs[0, 1] = pairs[1, 0] = pairs[0, 1] + 1
    pairs[2, 3] = pairs[3, 2] = pairs[2, 3] - 1e-6
    pairs.diagonal().copy_(grid.singles)
    signs = replace(grid, pairs=pairs).heatmap().data[1]
    assert sorted(zip(signs.y, signs.x, signs.text, strict=True)) == [(0, 1, "+"), (1, 0, "+")]
