"""Every text of a figure stands inside the page, and none on another text, whatever the width."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from tests.figures.gallery import gallery, texts_of
from tracekit import figures


def faults(figure, texts):
    """Texts beyond the page, and pairs of texts on each other."""
    layout = figure.layout
    found = []
    for text, left, top, right, bottom in texts:
        if left < -0.5 or top < -0.5 or right > layout.width + 0.5 or bottom > layout.height + 0.5:
            found.append(f"{text!r} at {left:.0f} {top:.0f} {right:.0f} {bottom:.0f} is cut off")
    for first, second in combinations(texts, 2):
        (_, left, top, right, bottom), (_, left2, top2, right2, bottom2) = first, second
        # Above and below letters there is room in their boxes.
        spare = 0.12 * min(bottom - top, right - left, bottom2 - top2, right2 - left2)
        shared = min(right, right2) - max(left, left2), min(bottom, bottom2) - max(top, top2)
        if min(shared) > 1 + 2 * spare:
            found.append(f"{first[0]!r} and {second[0]!r} lie on each other")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("n_layers", [4, 30])
@pytest.mark.parametrize("width", [None, "3.25in", "6.75in"])
def test_texts_are_on_the_page_and_not_on_each_other(chromium, n_layers, width):
    drawn = gallery(n_layers)
    if width is not None:
        drawn = {name: figures.for_print(figure, width=width) for name, figure in drawn.items()}
        assert {figure.layout.width for figure in drawn.values()} == {96 * float(width[:-2])}

    async def scenario():
        async with chromium.page() as page:
            return await texts_of(page, [json.loads(f.to_json()) for f in drawn.values()])

    boxes = dict(zip(drawn, chromium.run(scenario()), strict=True))
    wrong = {name: faults(figure, boxes[name]) for name, figure in drawn.items()}
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("method", "title"),
    [("top-k", "effect<br>(odds ratio \u2212 1)<br>\u2212: below 0"), ("mask-ig", "score<br>")],
)
def test_the_bar_says_what_colours_are(demo_tracer, method, title):
    drawn = demo_tracer.run(method, budget=2).heatmap().data
    (bar,) = [
        each.colorbar.title.text for each in drawn if each.type == "heatmap" and each.showscale
    ]
    assert bar.startswith(title)
