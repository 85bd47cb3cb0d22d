"""Rules of every figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tracekit as tk
from tests.files import renamed
from tracekit.figures import style
from tracekit.results.curve_figures import effect_curve


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
