from __future__ import annotations

import shutil

import pytest

import tracekit as tk
from tests import tiny
from tracekit import figures
from tracekit.errors import ComparisonError, FigureExportError
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
    flat = [share for row in heads.share for share in row] + [row[0] for row in blocks.share]
    assert flat == result.binary_mask.float().tolist()
    assert heads.hover[1][2].startswith("L1H2: ")
    assert "alone: " in heads.hover[1][2]
    assert not heads.binned


def test_heatmaps_draw_their_data(tracer):
    result = tracer.results[1]
    figure = tracer.heatmap(result)
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    dots = [trace for trace in figure.data if trace.type == "scatter"]
    assert [list(row) for row in maps[0].z] == result.soft_mask[:12].reshape(3, 4).tolist()
    assert sum(len(trace.x) for trace in dots) == result.n_selected
    assert f"{result.n_selected} of 15 selected" in figure.layout.title.subtitle.text
    assert figure.layout.yaxis.title.text == "layer"


def test_many_components_are_binned(demo_model):
    registry = tk.ComponentRegistry.build(demo_model.cfg, "mlp-outputs")
    tracer = tk.Tracer(demo_model, tk.load_dataset("demo-professions", demo_model)[:4], registry)
    result = tracer.run("random", budget=0.25, draws=1)
    (panel,) = figures.selection_data(result)
    assert panel.binned
    assert panel.columns[0] == "0-1"
    total = sum(share * 2 for row in panel.share for share in row)
    assert total == pytest.approx(result.n_selected)
    assert "2 selected" in panel.hover[0][0]
    assert max(max(row) for row in tracer.heatmap().data[0].z) <= 1


def test_components_outside_the_registry_are_left_blank(model):
    tracer = tk.Tracer(model, tiny.pairs(4), indices={0: [1], 2: [0, 3]})
    (panel,) = figures.selection_data(tracer.run("top-k", budget=1))
    assert panel.layers == (0, 2)
    assert [[cell is None for cell in row] for row in panel.soft] == [
        [True, False, True, True],
        [False, True, True, False],
    ]


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
    assert [trace.name for trace in figure.data] == ["top-k", "greedy", "random"]
    assert len({trace.line.color for trace in figure.data}) == 3
    assert len({trace.line.dash for trace in figure.data}) == 3
    assert len({trace.marker.symbol for trace in figure.data}) == 3
    assert figure.layout.shapes[0].y0 == pytest.approx(tracer.full_effect)
    assert "odds ratio" in figure.layout.yaxis.title.text


def test_interaction_maps_are_centred_on_additive(tracer):
    grid = tracer.interactions(layers=[0])
    figure = grid.heatmap()
    (trace,) = figure.data
    assert trace.zmid == 0
    assert trace.zmin == -trace.zmax
    assert trace.z[0][0] is None
    assert trace.z[0][1] == pytest.approx(grid.interaction[0, 1].item())
    assert trace.text[0][1].startswith("L0H0 and L0H1<br>interaction: ")
    assert list(figure.layout.xaxis.ticktext) == list(grid.labels)


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
    def fail(*args, **kwargs):
        raise RuntimeError("Kaleido requires Google Chrome to be installed.\nmore")

    figure = tracer.curve()
    monkeypatch.setattr("plotly.io.write_images", fail)
    with pytest.raises(FigureExportError) as caught:
        figures.write(figure, tmp_path / "curve.png")
    assert str(caught.value).startswith("Could not write curve.png: Kaleido requires Google Chrome")
    assert "or write .html" in str(caught.value)
    paths = {tmp_path / name: figure for name in ("a.png", "b.html", "c.svg")}
    with pytest.raises(FigureExportError, match=r"Could not write a.png, c.svg: Kaleido requires"):
        figures.write_all(paths)
    assert (tmp_path / "b.html").exists()


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
