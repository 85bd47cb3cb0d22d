"""Every text of a figure stands inside the page, and none on another text, whatever the width."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

import tracekit as tk
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


@pytest.mark.soak
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
    [
        ("top-k", "effect<br>(odds ratio \u2212 1)<br>\u2212: below \u22120.03"),
        ("mask-ig", "score<br>"),
    ],
)
def test_the_bar_says_what_colours_are(demo_tracer, method, title):
    drawn = demo_tracer.run(method, budget=2).heatmap().data
    (bar,) = [
        each.colorbar.title.text for each in drawn if each.type == "heatmap" and each.showscale
    ]
    assert bar.startswith(title)


@pytest.fixture(scope="module")
def said_of(demo_model):
    """What a page of each figure says, by the name of the figure."""
    pairs = tk.load_dataset("demo-bias", demo_model)[:16].grouped([n // 2 for n in range(16)])
    tracer = tk.Tracer(demo_model, pairs[:8], "head-outputs", held_out=pairs[8:])
    result = tracer.run("top-k", budget=3)
    others = {"facts": tk.load_dataset("demo-facts", demo_model)[:5]}
    drawn = {
        "interactions": tracer.interactions(layers=[0]),
        "both": tracer.interactions(layers=[0], both_directions=True),
        "given": tracer.interactions(layers=[0], given=["L1H0"]),
        "members": tracer.explain(result),
        "compared": tk.compare([result]),
        "selection": result,
        "front": tracer.pareto(max_budget=2, max_passes=40),
    }
    figures = {name: each.heatmap() for name, each in drawn.items()}
    figures["strengths"] = tracer.side_effects(result, others, draws=3).figure()
    figures["effects"] = tracer.curve()
    figures["network"] = drawn["members"].network()
    figures["paths"] = tracer.paths(result).network()
    figures["sizes"] = drawn["front"].curve()
    figures["faithfulness"] = tracer.faithfulness(result).curve()
    return {name: str(figure.to_dict()).replace("<br>", " ") for name, figure in figures.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("interactions", ["; counterfactual patching, n = 8 (4 independent) searched"]),
        (
            "both",
            ["1); above: noising; below: denoising; counterfactual patching, n = 8 (4"],
        ),
        (
            "given",
            ["l: effect (odds ratio \u2212 1); given L1H0; counterfactual patching, n = 8 (4 ind"],
        ),
        (
            "members",
            [
                "effect (odds ratio \u2212 1); above",
                "counterfactual patching, on held-out examples, n = 8 (4 ind",
            ],
        ),
        (
            "network",
            ["effect (odds ratio \u2212 1); area: Shapley value", "held-out examples, n = 8"],
        ),
        (
            "paths",
            [
                "effect (odds ratio \u2212 1); ",
                "leaves out 0, counterfactual patching, on held-out exam",
            ],
        ),
        (
            "compared",
            ["3 of 32 head-outputs selected, counterfactual patching", " on 8 (4 indep"],
        ),
        ("selection", ["effect (odds ratio \u2212 1) 0.", " on 8 (4 independent) searched, "]),
        (
            "front",
            ["of 32 head-outputs; counterfactual patching", " 8 (4 independent) sear"],
        ),
        (
            "effects",
            [
                "in layers 0-3; counterfactual patching; on 8 (4 independent) searched examples",
                " (held out: 8 (4 independent))'",
            ],
        ),
        (
            "sizes",
            ["searched examples (held out: 8 (4 independent))", "best set, searched, 95 % spread"],
        ),
        (
            "strengths",
            [
                "a share of all; bars and brackets: 95 % intervals; target: on held-out examples, ",
                "target odds-ratio n = 8 (4 independent)",
                "facts odds-ratio n = 5",
            ],
        ),
        (
            "faithfulness",
            [
                "by odds-ratio",
                "; counterfactual patching, on held-out examples, n = 8 (4 independent)'",
                "completeness, 95 % interval",
            ],
        ),
    ],
)
def test_figures_say_their_examples_metric_and_bars(said_of, name, words):
    assert [each for each in words if each not in said_of[name]] == []
