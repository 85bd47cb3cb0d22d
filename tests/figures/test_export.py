"""Figures as files."""

from __future__ import annotations

import os
import re
import shutil
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

import tracekit as tk
from tracekit import figures
from tracekit.components import ComponentRegistry
from tracekit.errors import ConfigError, FigureExportError
from tracekit.figures.layout import text_width
from tracekit.figures.members import Arrow, path_network
from tracekit.results.panels import panels_of, scale_of

BROWSER = any(shutil.which(name) for name in ("chromium", "google-chrome", "chrome"))


def test_html_opens_offline(tracer, tmp_path):
    path = figures.write(tracer.curve(), tmp_path / "deep" / "curve.html")
    assert (path.parent / "plotly.min.js").stat().st_size > 1e6
    text = path.read_text()
    assert "plotly.min.js" in text
    assert "cdn" not in text.split("<body>")[1][:3000].lower()


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="images need Chrome or Chromium")
def test_images_leave_nothing_in_the_home(tracer, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    path = figures.write(tracer.heatmap(), tmp_path / "heatmap.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert not [*home.iterdir()]


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


@pytest.mark.soak
@pytest.mark.slow
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


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="images need Chrome or Chromium")
def test_many_figures_at_once(tracer, tmp_path):
    paths = {tmp_path / "curve.svg": tracer.curve(), tmp_path / "heatmap.png": tracer.heatmap()}
    assert figures.write_all(paths) == list(paths)
    assert "all 15 components" in (tmp_path / "curve.svg").read_text()
    alone = figures.write(tracer.heatmap(), tmp_path / "alone.png").read_bytes()
    assert (tmp_path / "heatmap.png").read_bytes() == alone


@pytest.mark.slow
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


def map_of(n_layers: int, kinds: str, n_heads: int, **options: Any) -> go.Figure:
    """A map of scores on a model of so many layers."""
    shape = SimpleNamespace(n_layers=n_layers, n_heads=n_heads, d_model=576, d_mlp=1536)
    registry = ComponentRegistry.build(shape, kinds, **options)
    n = len(registry)
    return figures.draw_panels(
        panels_of(registry, torch.zeros(n).bool(), values=[0.0] * n, texts=[""] * n),
        scale=scale_of("score", n, 1.0),
        width=figures.WIDTH,
        outlines=True,
        title="top-k: ioi-abc data, SmolLM2-135M-Instruct model",
        subtitle="",
    )


SPANS = {"spans": ("IO", "S1", "S2", "last", "rest")}


@pytest.mark.parametrize(("n_layers", "n_heads"), [(4, 8), (12, 12), (30, 9), (80, 64)])
@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ("head-outputs", {}),
        ("mlp-neurons", {}),
        ("residual", SPANS),
        ("head-outputs+mlp-blocks", {}),
    ],
)
def test_maps_of_deep_models_fit_a_page(kinds, options, n_layers, n_heads):
    figure = map_of(n_layers, kinds, n_heads, **options)
    for height in (None, "3in"):
        layout = figures.for_print(figure, width="3.3in", height=height).layout
        assert layout.width == pytest.approx(3.3 * 96)
        assert layout.height <= (8 if height is None else 3) * 96 + 1e-6
        plot = [layout.width - layout.margin.l - layout.margin.r]
        plot += [layout.height - layout.margin.t - layout.margin.b]
        if n_layers >= 20:
            assert plot[1] / n_layers <= 0.12 * 96 + 1e-6
        # No two texts of layers overlap.
        apart = min(b - a for a, b in pairwise(layout.yaxis.tickvals))
        assert apart * plot[1] / n_layers >= 0.89 * layout.yaxis.tickfont.size


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
        # A curve keeps its proportions.
        figure = tracer.curve()
        ratios = []
        for layout in (figure.layout, figures.for_print(figure, width="3.3in").layout):
            width = layout.width - layout.margin.l - layout.margin.r
            ratios.append(width / (layout.height - layout.margin.t - layout.margin.b))
        assert ratios[1] == pytest.approx(ratios[0], rel=0.01)

    def test_all_texts_shrink_alike(self, tracer):
        figure = tracer.curve()
        figure.add_annotation(text="a note", x=1, y=1, font_size=12)
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

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"width": "wide"}, "width is 'wide'. Give inches, or a number with a unit"),
            ({"width": "3.3 feet"}, "width is '3.3 feet'. Give inches"),
            ({"width": "0in"}, "width is '0in'. Give inches"),
            ({"width": "-2in"}, "width is '-2in'. Give inches"),
            ({"width": "900in"}, "width is '900in'. Give inches"),
            ({"width": ""}, "width is ''. Give inches"),
            ({"height": "high"}, "height is 'high'. Give inches"),
            ({"width": "3.3in", "height": "0.6in"}, "height of 0.6 inches .* Give a larger height"),
            ({"width": "1in", "font_size": 20}, "leaves .* at 20 points. Give a"),
            ({"font_size": 1}, "font_size is 1. Give points, from 2 to 72"),
        ],
        ids=str,
    )
    def test_sizes_that_are_refused(self, tracer, options, text):
        with pytest.raises(ConfigError, match=text):
            figures.for_print(tracer.curve(), **options)

    def test_heights(self, tracer):
        figure = tracer.curve()
        printed = figures.for_print(figure, width="3.3in", height="2.4in")
        assert printed.layout.width == pytest.approx(3.3 * 96)
        assert printed.layout.height == pytest.approx(2.4 * 96)

    def test_figures_of_others_are_refused(self):
        for figure in (go.Figure(), go.Figure(layout_meta="mine")):
            with pytest.raises(ConfigError, match="not drawn by tracekit.*without width, height"):
                figures.for_print(figure, width="3.3in")

    @pytest.mark.soak
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


def test_a_bar_beside_a_low_map_keeps_its_ticks_apart():
    figure = map_of(4, "head-outputs+mlp-neurons+mlp-blocks", 8)
    for texts, drawn in ((1.0, figure), (0.76, figures.for_print(figure, width="3.3in"))):
        maps = [trace for trace in drawn.data if trace.type == "heatmap"]
        (bar,) = [trace.colorbar for trace in maps if trace.showscale]
        layout = drawn.layout
        assert list(bar.ticktext) == ["\u22121", "0", "1"]
        plot = layout.height - layout.margin.t - layout.margin.b
        if plot < 100 * texts:
            assert (bar.lenmode, bar.y, bar.yanchor) == ("pixels", 1, "top")
            # Three ticks and two lines above them, all of them within the figure.
            assert 5 * bar.tickfont.size < bar.len < plot + layout.margin.b
    assert figures.style.two_digits(-0.0000381) == "\u22123.8e\u22125"


@pytest.mark.slow
def test_titles_of_panels_do_not_touch(tracer):
    names = [f"a rather long name {number}" for number in range(4)]
    drawn = tk.compare(tracer.results[1:3] * 2, names).heatmap()
    layout = figures.for_print(drawn, width="3.3in").layout
    plot = layout.width - layout.margin.l - layout.margin.r
    notes = [note for note in layout.annotations if note.text.replace("<br>", " ") in names]
    starts = [layout[note.xref.replace("x", "xaxis").split()[0]].domain[0] for note in notes]
    assert len(starts) == 4
    for note, (start, end) in zip(notes, pairwise([*starts, 1]), strict=True):
        assert max(map(len, note.text.split("<br>"))) * 0.5 * note.font.size < plot * (end - start)


@pytest.mark.slow
@pytest.mark.parametrize("width", [None, "3.25in", "6.75in"])
def test_names_of_nodes_fit_their_boxes(width):
    names = [*(f"L{n}H0" for n in range(30)), "embedding", "logits"]
    arrows = [
        Arrow(start=30, end=n, value=0.5, letter="q", hover="", is_sure=True) for n in range(30)
    ]
    layers = [*map(float, range(30)), None, None]
    drawn = figures.for_print(
        path_network(names, layers, arrows, title="t", subtitle="s"), width=width
    )
    layout = drawn.layout
    plot = layout.width - layout.margin.l - layout.margin.r
    pixels = layout.height - layout.margin.t - layout.margin.b
    assert layout.height <= 768 or width is None
    wide = plot / (layout.xaxis.range[1] - layout.xaxis.range[0])
    tall = pixels / (layout.yaxis.range[1] - layout.yaxis.range[0])
    named = [note for note in layout.annotations if note.text in names]
    for note, box in zip(named, layout.shapes, strict=True):
        assert (note.x, note.y) == pytest.approx(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
        assert text_width(note.text, note.font.size) < wide * (box.x1 - box.x0)
        assert 1.2 * note.font.size < tall * (box.y1 - box.y0)
