"""Rules of every figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
import pytest

import tracekit as tk
from tests.files import renamed
from tracekit import figures
from tracekit.errors import ConfigError
from tracekit.figures import style
from tracekit.results.curve import effect_curve


def test_global_templates_are_left_alone(tracer):
    import plotly.io as pio

    before = pio.templates.default
    tracer.curve()
    assert pio.templates.default == before


def test_names_are_no_html(tracer):
    """Plotly takes some tags in texts: bold, links. Names are shown letter by letter."""
    bad = '<b>a</b><a href="http://evil">b</a>'
    shown = '&lt;b&gt;a&lt;/b&gt;&lt;a href="http://evil"&gt;b&lt;/a&gt;'
    result = renamed(tracer.results[0], dataset=bad, model=bad, title=bad)
    grid = replace(tracer.interactions(layers=[0]), title=bad)
    for figure, count in (
        (result.heatmap(), 3),
        (tk.compare([result]).heatmap(), 3),
        (effect_curve([result]), 3),
        (tk.compare([result]).similarities(), 4),
        (grid.heatmap(), 1),
    ):
        texts = [figure.layout.title.text, *(note.text for note in figure.layout.annotations)]
        texts += [trace.name or "" for trace in figure.data]
        axes = [values for trace in figure.data for values in (trace.x, trace.y)]
        cells = [cell for values in axes if values is not None for cell in values]
        texts += [cell for cell in cells if isinstance(cell, str)]
        assert not any("<b>" in text or "<a " in text for text in texts)
        assert sum(text.replace("<br>", " ").count(shown) for text in texts) == count


@pytest.mark.parametrize("color", [style.SELECTED, style.BELOW, style.UNSTUDIED])
def test_colours_stand_in_one_file(color):
    """Selected cells have one colour in figures, pictures of sets, and the explorer."""
    root = Path(tk.__file__).parent
    files = [*root.rglob("*.py"), *root.rglob("*.js")]
    named = [file for file in files if color.lower() in file.read_text(encoding="utf-8").lower()]
    assert named == [root / "figures/style.py"]


@pytest.mark.parametrize(
    "trace",
    [
        go.Scatter(x=[1, 2], y=[3, 1], mode="markers", marker={"size": 9}),
        go.Bar(x=["a", "b"], y=[3, 1]),
        go.Histogram(x=[1, 2, 2]),
        go.Box(y=[1, 2, 3], line={"width": 3}),
        go.Contour(z=[[1, 2], [3, 4]]),
        go.Heatmap(z=[[1, 2], [3, 4]], colorbar={"title": "score"}),
    ],
    ids=lambda trace: trace.type,
)
def test_figures_of_ones_own_have_the_fonts_and_sizes_of_others(tracer, trace):
    own = go.Figure(trace).update_xaxes(title="attribution").update_yaxes(title="effect")
    with pytest.raises(ConfigError, match="give it to tracekit.figures.in_style"):
        figures.for_print(own, width=3.25)
    other = tracer.curve()
    own = figures.in_style(own, "Estimates", "60 heads")
    for size in (None, 3.25):
        a, b = (
            each if size is None else figures.for_print(each, width=size) for each in (own, other)
        )
        assert (a.layout.font, a.layout.title.font) == (b.layout.font, b.layout.title.font)
        assert a.layout.xaxis.title.font == b.layout.xaxis.title.font
        assert a.layout.yaxis.tickfont == b.layout.yaxis.tickfont
        assert a.layout.xaxis.linecolor == b.layout.xaxis.linecolor == "black"
        if size is not None:
            assert a.layout.width == 96 * size
    assert own.layout.title.text == "Estimates"
    assert list(own.layout.colorway) == figures.COLORS
    assert len(figures.COLORS) == 7
    if trace.type == "scatter":
        assert figures.for_print(own, width=3.25).data[0].marker.size < 9
